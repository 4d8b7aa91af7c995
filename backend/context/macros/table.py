"""Every macro by name, and what it does. docs/macros.md describes the same table to users."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from backend.context.macros.chance import parse_roll
from backend.context.macros.dates import describe_duration, format_moment, parse_utc_offset
from backend.context.macros.model import MAX_DICE, MAX_SIDES, MacroContext
from backend.context.macros.syntax import Parts, split
from backend.context.macros.variables import added, counted

Scope = Literal["local", "global"]

TIME: Final = "h:mm A"
DATE: Final = "MMMM D, YYYY"


class Invocation(Protocol):
    """One macro where it stands. Arguments are expanded only when they are asked for."""

    @property
    def context(self) -> MacroContext:
        """What macros stand for."""
        ...

    @property
    def arguments(self) -> Sequence[Parts]:
        """As many as the macro takes, not expanded yet."""
        ...

    def text(self, index: int) -> str:
        """The argument, expanded; empty where there is none."""
        ...

    def put(self, parts: Parts) -> None:
        """Expand an argument in the macro's place."""
        ...

    def put_field(self, name: str, text: str) -> bool:
        """Expand a field in the macro's place. False, and nothing put, if it stands in itself."""
        ...

    def trim(self) -> None:
        """Take away the line breaks on both sides of the macro."""
        ...

    def draw(self, seed: int, *, choices: int, count: int = 1) -> list[int]:
        """Numbers from 0 to `choices` - 1: other ones for another seed, place or macro text."""
        ...

    def get_variable(self, scope: Scope, name: str) -> str:
        """The value; empty where there is none."""
        ...

    def set_variable(self, scope: Scope, name: str, value: str) -> None:
        """Set the value, for the rest of this field and for what comes after it."""
        ...

    def keep_within(self, most: int, amount: int, *, unit: str) -> None:
        """Raise `MacroLimitError` if `amount` is more than `most`."""
        ...


Run = Callable[[Invocation], str | None]
"""What a macro does. It returns its text, empty if it put it itself; None: stay as written."""


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro. With fewer arguments, or with any where `most` is 0, its braces are only braces.

    The last argument of `most` takes the rest, `::` included; None is no end of arguments.
    """

    name: str
    run: Run
    fewest: int = 0
    most: int | None = 0
    aliases: Sequence[str] = ()

    def split_arguments(self, argument: Parts | None) -> Sequence[Parts] | None:
        """The arguments one by one; None if they are too few or too many for this macro."""
        if argument is None:
            arguments: Sequence[Parts] = ()
        elif self.most == 0:
            return None
        else:
            arguments = split(argument, _ARGUMENTS, self.most)
        return arguments if len(arguments) >= self.fewest else None


_ARGUMENTS: Final = re.compile("::")
_COMMA: Final = re.compile(r"(?<!\\),")


def _value(name: str, read: Callable[[MacroContext], str], *aliases: str) -> Macro:
    """A macro for a text that is put in as it is."""
    return Macro(name, lambda call: read(call.context), aliases=aliases)


def _field(name: str, read: Callable[[MacroContext], str]) -> Macro:
    """A macro for a field that may hold macros itself."""
    return Macro(name, lambda call: "" if call.put_field(name, read(call.context)) else None)


def _moment(name: str, pattern: str) -> Macro:
    return Macro(name, lambda call: format_moment(call.context.now, pattern))


def _nothing(_: Invocation) -> str:
    return ""


def _trim(call: Invocation) -> str:
    call.trim()
    return ""


def _outlet(call: Invocation) -> str:
    return call.context.outlets.get(call.text(0).strip(), "")


def _time(call: Invocation) -> str | None:
    if not call.arguments:
        return format_moment(call.context.now, TIME)
    zone = parse_utc_offset(call.text(0))
    return None if zone is None else format_moment(call.context.now.astimezone(zone), TIME)


def _choose(call: Invocation, seed: int) -> str:
    options = call.arguments
    if len(options) == 1:  # the older list with commas, in which `\,` is a comma
        options = [
            [part.replace("\\,", ",") if isinstance(part, str) else part for part in option]
            for option in split(options[0], _COMMA)
        ]
    (index,) = call.draw(seed, choices=len(options))
    call.put(options[index])
    return ""


def _roll(call: Invocation) -> str | None:
    roll = parse_roll(call.text(0))
    if roll is None:
        return None
    call.keep_within(MAX_DICE, roll.dice, unit="dice in a roll")
    call.keep_within(MAX_SIDES, roll.sides, unit="sides on a die")
    drawn = call.draw(call.context.message_seed, choices=roll.sides, count=roll.dice)
    return str(sum(drawn) + roll.dice + roll.plus)


def _variable_macros(scope: Scope, infix: str) -> Iterator[Macro]:
    def get(call: Invocation) -> str:
        return call.get_variable(scope, call.text(0).strip())

    def put(call: Invocation) -> str:
        call.set_variable(scope, call.text(0).strip(), call.text(1))
        return ""

    def add(call: Invocation) -> str:
        name, more = call.text(0).strip(), call.text(1)
        call.set_variable(scope, name, added(call.get_variable(scope, name), more))
        return ""

    def count(call: Invocation, step: int) -> str:
        name = call.text(0).strip()
        value = counted(call.get_variable(scope, name), step)
        call.set_variable(scope, name, value)
        return value

    yield Macro(f"get{infix}var", get, 1, 1)
    yield Macro(f"set{infix}var", put, 2, 2)
    yield Macro(f"add{infix}var", add, 2, 2)
    yield Macro(f"inc{infix}var", lambda call: count(call, 1), 1, 1)
    yield Macro(f"dec{infix}var", lambda call: count(call, -1), 1, 1)


_MACROS: Final[Sequence[Macro]] = (
    _value("user", lambda context: context.user),
    _value("char", lambda context: context.char),
    _value("charVersion", lambda context: context.char_version, "char_version"),
    _field("persona", lambda context: context.persona),
    _field("description", lambda context: context.description),
    _field("personality", lambda context: context.personality),
    _field("scenario", lambda context: context.scenario),
    _field("mesExamples", lambda context: context.mes_examples),
    _field("charPrompt", lambda context: context.char_prompt),
    _field("original", lambda context: context.original or ""),
    _field("authorsNote", lambda context: context.authors_note),
    _value("lastMessage", lambda context: context.last_message),
    _value("lastUserMessage", lambda context: context.last_user_message),
    _value("lastCharMessage", lambda context: context.last_char_message),
    _value("summary", lambda context: context.summary),
    _value("model", lambda context: context.model),
    _value("maxPrompt", lambda context: str(context.max_prompt)),
    _value("idleDuration", lambda context: describe_duration(context.idle), "idle_duration"),
    Macro("outlet", _outlet, 1, 1),
    Macro("time", _time, most=1, aliases=("time_UTC",)),
    _moment("date", DATE),
    _moment("weekday", "dddd"),
    _moment("isotime", "HH:mm"),
    _moment("isodate", "YYYY-MM-DD"),
    Macro("datetimeformat", lambda call: format_moment(call.context.now, call.text(0)), 1, 1),
    Macro("random", lambda call: _choose(call, call.context.message_seed), 1, None),
    Macro("pick", lambda call: _choose(call, call.context.chat_seed), 1, None),
    Macro("roll", _roll, 1, 1),
    Macro("newline", lambda _: "\n"),
    Macro("noop", _nothing),
    Macro("trim", _trim),
    Macro("reverse", lambda call: call.text(0)[::-1], 1, 1),
    Macro("//", _nothing, most=1),
    Macro("comment", _nothing, most=1),
    Macro("hidden_key", _nothing, most=1),
    *_variable_macros("local", ""),
    *_variable_macros("global", "global"),
)

MACROS: Final[Mapping[str, Macro]] = {
    name.lower(): macro for macro in _MACROS for name in (macro.name, *macro.aliases)
}
"""By name and alias, in lower case. `if`, `else` and `/if` are syntax and not among them."""
