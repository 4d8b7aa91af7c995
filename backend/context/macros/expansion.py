"""Expansion of a tree to text. Looks up and runs macros, within the limits."""

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

# The sum of two such numbers is exact in Decimal's 28 digits. Longer numbers are text.
_NUMBER: Final = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,10})?", re.ASCII)

_FALSE: Final = frozenset({"", "0", "false", "off"})


def is_true(value: str) -> bool:
    """True if a condition with this value is met."""
    return value.strip().lower() not in _FALSE


def format_value(value: str) -> str:
    """Return a value as displayed. Numbers are normalised (`01` becomes `1`)."""
    number = _number(value) if value.strip() else None
    return value if number is None else _format_number(number)


def add_values(value: str, more: str) -> str:
    """Append to a list, add two numbers, or else concatenate texts.

    A list is a text with a JSON array. An empty text counts as 0 next to a number.
    """
    if (items := _list(value)) is not None:
        return msgspec.json.encode([*items, more]).decode()
    left, right = _number(value), _number(more)
    return value + more if left is None or right is None else _format_number(left + right)


def subtract_values(value: str, less: str) -> str:
    """Return the difference. Values that are not numbers count as 0."""
    return _format_number((_number(value) or Decimal(0)) - (_number(less) or Decimal(0)))


def increment(value: str, step: int) -> str:
    """Return the value plus `step`. Values that are not numbers count as 0."""
    return _format_number((_number(value) or Decimal(0)) + step)


def compare_values(left: str, right: str) -> int:
    """Return -1, 0 or 1. Compares as numbers if both are numbers, else as texts."""
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
    """Format without an exponent and without trailing zeros."""
    return format(number.normalize(), "f")


Scope = Literal["local", "global"]

Run = Callable[["Invocation"], "str | None"]
"""Runs a macro and returns its text: empty if it wrote it itself, None to keep the braces."""

VARIABLE_SIGNS: Final = frozenset({".", "$"})

_LINE_BREAKS: Final = "\r\n"

_BRACES: Final = 16
"""Cost in characters of a pair of braces or an old `<USER>`, read or written."""

_OLD_MARK: Final = re.compile("<(?:user|bot|char)>", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro. With a number of arguments outside `fewest` to `most`, its braces stay literal.

    Args:
        most: None means no maximum.
        is_operation: True if its argument follows a variable's sign: `hp += 2`.
        is_ignored: True if it has a meaning in other tools, but none here.
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
        """Split the arguments. The content of a block is the last one.

        Returns None if there are too few or too many for this macro.
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
    """A field being expanded: its place, its enclosing fields, and the draws per macro."""

    place: str
    around: frozenset[str] = frozenset()
    draws: Counter[str] = field(default_factory=Counter[str])

    def is_inside(self, name: str) -> bool:
        return name == self.place or name in self.around


class _Output:
    """Builder of a text. Trimming removes line breaks before it and after it."""

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
    """The expansion of one field, with the state and limits shared by its parts."""

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
        """Return the expanded text and the variables after it."""
        parts = self._read(text)
        if all(isinstance(part, str) for part in parts):
            plain = "".join(map(str, parts))
            return Expansion(text if plain == text else plain, self._variables)
        expanded = self.expand(parts, _Field(self._place), depth=0)
        if not self._changed:
            return Expansion(expanded, self._variables)
        return Expansion(expanded, Variables(self.variables["local"], self.variables["global"]))

    def expand(self, parts: Parts, within: _Field, *, depth: int) -> str:
        """Return the parts as a separate text."""
        output = _Output()
        self.write(parts, output, within, depth=depth)
        return output.text()

    def expand_field(self, name: str, text: str, around: _Field, *, depth: int) -> str:
        """Return the text of a field inserted by a macro. It is parsed only once."""
        if name not in self._parsed:
            self._parsed[name] = self._read(text)
        within = _Field(name, around.around | {around.place})
        return self.expand(self._parsed[name], within, depth=depth)

    def write(self, parts: Sequence[Part], output: _Output, within: _Field, *, depth: int) -> None:
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
                    # Two calls and the parts between them.
                    self.write((part.call, *part.body, part.closing), output, within, depth=depth)
            else:
                self._write_conditional(part, output, within, depth)

    def to_change(self, scope: Scope) -> dict[str, str]:
        """Return a scope's variables for writing, copied before the first change."""
        if scope not in self._changed:
            self.spend(len(self.variables[scope]))
            self.variables[scope] = self._changed[scope] = dict(self.variables[scope])
        return self._changed[scope]

    def spend(self, characters: int) -> None:
        """Reserve characters from the limits of the field and the request."""
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
        """Run the macro of a call. Return False if no macro takes such arguments."""
        macro = self._macros.get(call.name)
        arguments = macro.split_arguments(call.argument, content) if macro else None
        if macro is None or arguments is None:
            return False
        self._count_macro()
        self.spend(call.end - call.start)  # arguments were parsed even if they are not expanded
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
        is_met = is_true(condition)
        chosen = conditional.otherwise if is_met == conditional.negated else conditional.then
        self.write(chosen, output, within, depth=depth + 1)

    def _condition(self, parts: Parts, within: _Field, depth: int) -> str:
        """Expand a condition. A bare macro name counts as the macro: `{{if persona}}`."""
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
    """One macro call. Arguments are expanded only on request."""

    expander: Expander
    call: MacroCall
    arguments: Sequence[Parts]
    output: _Output
    within: _Field
    depth: int

    @property
    def context(self) -> MacroContext:
        """The values of macros."""
        return self.expander.context

    def text(self, index: int) -> str:
        """Return the expanded argument, or an empty string if it is missing."""
        if index >= len(self.arguments):
            return ""
        return self.expander.expand(self.arguments[index], self.within, depth=self.depth)

    def put(self, parts: Parts) -> None:
        """Write an expanded argument in place of the macro."""
        self.expander.write(parts, self.output, self.within, depth=self.depth)

    def put_field(self, name: str, text: str) -> bool:
        """Write an expanded field in place of the macro. Return False if it is inside itself."""
        if self.within.is_inside(name):
            return False
        self.output.write(self.expander.expand_field(name, text, self.within, depth=self.depth))
        return True

    def trim(self) -> None:
        """Remove the line breaks on both sides of the macro."""
        self.output.trim()

    def draw(self, seed: int, *, choices: int, count: int = 1) -> list[int]:
        """Draw numbers from 0 to `choices` - 1, determined by seed, place and macro text."""
        self.expander.spend(count)  # thousands of dice cost time, too
        source = self.call.source
        repetition = self.within.draws[source]
        self.within.draws[source] += 1
        key = (seed, self.within.place, repetition, source)
        return _draw(key, choices=choices, count=count)

    def has_variable(self, scope: Scope, name: str) -> bool:
        return name in self.expander.variables[scope]

    def get_variable(self, scope: Scope, name: str) -> str:
        """Return the value, or an empty string if there is none."""
        return self.expander.variables[scope].get(name, "")

    def set_variable(self, scope: Scope, name: str, value: str) -> None:
        """Set the value for the rest of this field and for later fields."""
        self.expander.spend(len(value))
        self.expander.to_change(scope)[name] = value

    def delete_variable(self, scope: Scope, name: str) -> None:
        if self.has_variable(scope, name):
            del self.expander.to_change(scope)[name]

    def keep_within(self, most: int, amount: int, *, unit: str) -> None:
        """Raise `MacroLimitError` if `amount` is more than `most`."""
        self.expander.keep_within(most, amount, unit=unit)


def _draw(key: tuple[object, ...], *, choices: int, count: int) -> list[int]:
    """Return `count` numbers from 0 to `choices` - 1, a function of `key` only.

    Uses a hash because `random.Random` may draw differently in other Python versions, and choices
    made for a chat must not change. The bias of the modulo is at most `choices` / 2**64.
    """
    name = "\x1f".join(str(part) for part in key).encode("utf-8", "surrogatepass")
    stream = shake_256(name).digest(8 * count)
    return [number % choices for number in unpack(f">{count}Q", stream)]
