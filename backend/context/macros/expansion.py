"""Tree to text: macros are looked up and run, each field in its own place, within the limits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import shake_256
from struct import unpack
from typing import Final, Literal

import msgspec

from backend.context.macros.model import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_MACROS,
    Expansion,
    MacroBudget,
    MacroContext,
    MacroLimitError,
    Variables,
)
from backend.context.macros.syntax import (
    ARGUMENTS,
    Conditional,
    MacroBlock,
    MacroCall,
    Part,
    Parts,
    parse,
    parse_condition,
    split,
    split_operation,
)

# So short that a sum of two is exact in Decimal's 28 digits. Anything longer is text.
_NUMBER: Final = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,10})?", re.ASCII)

_FALSE: Final = frozenset({"", "0", "false", "off"})


def is_true(value: str) -> bool:
    """Whether a condition holds."""
    return value.strip().lower() not in _FALSE


def format_value(value: str) -> str:
    """A value as it is read: a number in its plain form (`01` is `1`)."""
    number = _number(value) if value.strip() else None
    return value if number is None else _format_number(number)


def add_values(value: str, more: str) -> str:
    """A list with one item more, the sum of two numbers, else one text after the other.

    A list is a text that holds a JSON array. Nothing counts as 0 beside a number.
    """
    if (items := _list(value)) is not None:
        return msgspec.json.encode([*items, more]).decode()
    left, right = _number(value), _number(more)
    return value + more if left is None or right is None else _format_number(left + right)


def subtract_values(value: str, less: str) -> str:
    """The difference of two numbers; what is no number counts as 0."""
    return _format_number((_number(value) or Decimal(0)) - (_number(less) or Decimal(0)))


def increment(value: str, step: int) -> str:
    """The number `step` further on; what is no number counts as 0."""
    return _format_number((_number(value) or Decimal(0)) + step)


def compare_values(left: str, right: str) -> int:
    """-1, 0 or 1: as numbers where both are numbers, else as texts."""
    one, two = _number(left), _number(right)
    if one is not None and two is not None:
        return (one > two) - (one < two)
    return (left > right) - (left < right)


def _list(value: str) -> list[object] | None:
    if not value.startswith("["):
        return None
    try:
        return msgspec.json.decode(value, type=list[object])
    except (msgspec.DecodeError, RecursionError):
        return None


def _number(text: str) -> Decimal | None:
    text = text.strip() or "0"
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def _format_number(number: Decimal) -> str:
    """Without an exponent, and without noughts after the point."""
    return format(number.normalize(), "f")


Scope = Literal["local", "global"]

Run = Callable[["Invocation"], "str | None"]
"""What a macro does. It returns its text, empty if it put it itself; None: stay as written."""

VARIABLE_SIGNS: Final = frozenset({".", "$"})

_LINE_BREAKS: Final = "\r\n"

_BRACES: Final = 16
"""Characters that are as much work as a pair of braces or an old `<USER>`, read or written."""

_OLD_MARK: Final = re.compile("<(?:user|bot|char)>", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro. With fewer arguments than `fewest` or more than `most`, its braces are only braces.

    Args:
        most: None is no end of arguments.
        is_operation: Whether its argument is what follows a variable's sign: `hp += 2`.
        is_ignored: Whether it means something elsewhere, and nothing here.
    """

    name: str
    run: Run
    fewest: int = 0
    most: int | None = 0
    aliases: Sequence[str] = ()
    is_operation: bool = False
    is_ignored: bool = False

    def split_arguments(
        self, argument: Parts | None, content: Parts | None = None
    ) -> Sequence[Parts] | None:
        """The arguments one by one, a block's content as the last of them.

        None if they are too few or too many for this macro.
        """
        if self.most == 0 and (argument is not None or content is not None):
            return None
        if argument is None:
            arguments: list[Parts] = []
        elif self.is_operation:
            arguments = split_operation(argument)
        else:
            arguments = split(argument, ARGUMENTS)
        if content is not None:
            arguments.append(content)
        fits = self.most is None or len(arguments) <= self.most
        return arguments if fits and len(arguments) >= self.fewest else None


@dataclass(frozen=True, slots=True)
class _Field:
    """A field being expanded: its place, the fields around it, and how often each macro drew."""

    place: str
    around: frozenset[str] = frozenset()
    draws: Counter[str] = field(default_factory=Counter[str])

    def holds(self, name: str) -> bool:
        """Whether this field is `name`, or stands in it."""
        return name == self.place or name in self.around


class _Output:
    """Text as it is put together. Trimming reaches back over its pieces, and ahead."""

    __slots__ = ("_pieces", "_trimming")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._trimming = False

    def write(self, text: str) -> None:
        if self._trimming:
            text = text.lstrip(_LINE_BREAKS)
        if text:
            self._pieces.append(text)
            self._trimming = False

    def trim(self) -> None:
        while self._pieces:
            if kept := self._pieces.pop().rstrip(_LINE_BREAKS):
                self._pieces.append(kept)
                break
        self._trimming = True

    def text(self) -> str:
        return "".join(self._pieces)


class Expander:
    """One field's expansion: what all its parts share, and what they have used of the limits."""

    def __init__(
        self,
        macros: Mapping[str, Macro],
        context: MacroContext,
        variables: Variables,
        *,
        place: str,
        budget: MacroBudget,
    ) -> None:
        self.context = context
        self.variables: dict[Scope, Mapping[str, str]] = {
            "local": variables.local,
            "global": variables.global_,
        }
        self._changed: dict[Scope, dict[str, str]] = {}
        self._macros = macros
        self._variables = variables
        self._place = place
        self._budget = budget
        self._macro_count = 0
        self._characters = 0
        self._parsed: dict[str, Parts] = {}

    def run(self, text: str) -> Expansion:
        """The field's text expanded, and the variables after it."""
        parts = self._read(text)
        if all(isinstance(part, str) for part in parts):
            plain = "".join(map(str, parts))
            return Expansion(text if plain == text else plain, self._variables)
        expanded = self.expand(parts, _Field(self._place), depth=0)
        if not self._changed:
            return Expansion(expanded, self._variables)
        return Expansion(expanded, Variables(self.variables["local"], self.variables["global"]))

    def expand(self, parts: Parts, within: _Field, *, depth: int) -> str:
        """Parts as text of their own."""
        output = _Output()
        self.write(parts, output, within, depth=depth)
        return output.text()

    def expand_field(self, name: str, text: str, around: _Field, *, depth: int) -> str:
        """A field that a macro stands for, read once."""
        if name not in self._parsed:
            self._parsed[name] = self._read(text)
        within = _Field(name, around.around | {around.place})
        return self.expand(self._parsed[name], within, depth=depth)

    def write(self, parts: Sequence[Part], output: _Output, within: _Field, *, depth: int) -> None:
        """Parts into a text that is being put together."""
        self.keep_within(MAX_DEPTH, depth, unit="levels of nesting")
        for part in parts:
            if isinstance(part, str):
                self.spend(len(part))
                output.write(part)
            elif isinstance(part, MacroCall):
                if not self._run(part, None, output, within, depth):
                    self._budget.spend(characters=_BRACES, place=self._place)
                    self.write(("{{", *part.inside, "}}"), output, within, depth=depth + 1)
            elif isinstance(part, MacroBlock):
                if not self._run(part.call, part.content, output, within, depth):
                    # Two calls, and what is between them.
                    self.write((part.call, *part.body, part.closing), output, within, depth=depth)
            else:
                self._write_conditional(part, output, within, depth)

    def to_change(self, scope: Scope) -> dict[str, str]:
        """The variables of a scope, copied before the first of them is changed."""
        if scope not in self._changed:
            self.spend(len(self.variables[scope]))
            self.variables[scope] = self._changed[scope] = dict(self.variables[scope])
        return self._changed[scope]

    def spend(self, characters: int) -> None:
        """Take characters from the field's limit and the request's."""
        self._characters += characters
        self.keep_within(MAX_CHARACTERS, self._characters, unit="characters")
        self._budget.spend(characters=characters, place=self._place)

    def keep_within(self, most: int, amount: int, *, unit: str) -> None:
        """Raise `MacroLimitError` if `amount` is more than `most`."""
        if amount > most:
            raise MacroLimitError(place=self._place, limit=unit, most=most)

    def _read(self, text: str) -> Parts:
        marks = text.count("}}") + sum(1 for _ in _OLD_MARK.finditer(text))
        self._budget.spend(characters=len(text) + _BRACES * marks, place=self._place)
        return parse(text)

    def _run(
        self, call: MacroCall, content: Parts | None, output: _Output, within: _Field, depth: int
    ) -> bool:
        """Run the macro that a call names; False if there is none that takes such arguments."""
        macro = self._macros.get(call.name)
        arguments = macro.split_arguments(call.argument, content) if macro else None
        if macro is None or arguments is None:
            return False
        self._count_macro()
        self.spend(call.end - call.start)  # arguments are read, whether they are expanded or not
        if macro.is_ignored:
            self._budget.ignored.add(macro.name)
        value = macro.run(Invocation(self, call, arguments, output, within, depth + 1))
        value = call.source if value is None else value
        self.spend(len(value))
        output.write(value)
        return True

    def _write_conditional(
        self, conditional: Conditional, output: _Output, within: _Field, depth: int
    ) -> None:
        self._count_macro()
        condition = self._condition(conditional.condition, within, depth + 1)
        holds = is_true(condition)
        chosen = conditional.otherwise if holds == conditional.negated else conditional.then
        self.write(chosen, output, within, depth=depth + 1)

    def _condition(self, parts: Parts, within: _Field, depth: int) -> str:
        """The bare name of a macro stands for the macro: `{{if persona}}`."""
        if len(parts) == 1 and isinstance(parts[0], str):
            call = parse_condition(parts[0])
            macro = self._macros.get(call.name)
            is_named = call.argument is None or call.name in VARIABLE_SIGNS
            if macro and is_named and macro.split_arguments(call.argument) is not None:
                parts = [call]
        return self.expand(parts, within, depth=depth)

    def _count_macro(self) -> None:
        self._macro_count += 1
        self.keep_within(MAX_MACROS, self._macro_count, unit="macros")
        self._budget.spend(macros=1, place=self._place)


@dataclass(frozen=True, slots=True)
class Invocation:
    """One macro where it stands. Arguments are expanded only when they are asked for."""

    expander: Expander
    call: MacroCall
    arguments: Sequence[Parts]
    output: _Output
    within: _Field
    depth: int

    @property
    def context(self) -> MacroContext:
        """What macros stand for."""
        return self.expander.context

    def text(self, index: int) -> str:
        """The argument, expanded; empty where there is none."""
        if index >= len(self.arguments):
            return ""
        return self.expander.expand(self.arguments[index], self.within, depth=self.depth)

    def put(self, parts: Parts) -> None:
        """Expand an argument in the macro's place."""
        self.expander.write(parts, self.output, self.within, depth=self.depth)

    def put_field(self, name: str, text: str) -> bool:
        """Expand a field in the macro's place. False, and nothing put, if it stands in itself."""
        if self.within.holds(name):
            return False
        self.output.write(self.expander.expand_field(name, text, self.within, depth=self.depth))
        return True

    def trim(self) -> None:
        """Take away the line breaks on both sides of the macro."""
        self.output.trim()

    def draw(self, seed: int, *, choices: int, count: int = 1) -> list[int]:
        """Numbers from 0 to `choices` - 1: other ones for another seed, place or macro text."""
        self.expander.spend(count)  # thousands of dice are work, too
        source = self.call.source
        repetition = self.within.draws[source]
        self.within.draws[source] += 1
        key = (seed, self.within.place, repetition, source)
        return _draw(key, choices=choices, count=count)

    def has_variable(self, scope: Scope, name: str) -> bool:
        """Whether there is such a variable."""
        return name in self.expander.variables[scope]

    def get_variable(self, scope: Scope, name: str) -> str:
        """The value; empty where there is none."""
        return self.expander.variables[scope].get(name, "")

    def set_variable(self, scope: Scope, name: str, value: str) -> None:
        """Set the value, for the rest of this field and for what comes after it."""
        self.expander.spend(len(value))
        self.expander.to_change(scope)[name] = value

    def delete_variable(self, scope: Scope, name: str) -> None:
        """Take the variable away."""
        if self.has_variable(scope, name):
            del self.expander.to_change(scope)[name]

    def keep_within(self, most: int, amount: int, *, unit: str) -> None:
        """Raise `MacroLimitError` if `amount` is more than `most`."""
        self.expander.keep_within(most, amount, unit=unit)


def _draw(key: tuple[object, ...], *, choices: int, count: int) -> list[int]:
    """`count` numbers from 0 to `choices` - 1, a function of `key` alone.

    A hash and not `random.Random`, whose draws may change between Python versions: what was picked
    for a chat has to stay. Of 2**64 values, the modulo favours none by more than
    `choices` / 2**64.
    """
    name = "\x1f".join(str(part) for part in key).encode("utf-8", "surrogatepass")
    stream = shake_256(name).digest(8 * count)
    return [number % choices for number in unpack(f">{count}Q", stream)]
