"""Tree to text: macros are looked up and run, each field in its own place, within the limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from backend.context.macros.chance import draw
from backend.context.macros.model import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_MACROS,
    Expansion,
    MacroContext,
    MacroLimitError,
    Variables,
)
from backend.context.macros.syntax import Call, Conditional, Part, Parts, parse
from backend.context.macros.table import MACROS, Scope
from backend.context.macros.variables import Draft

_FALSE: Final = frozenset({"", "0", "false", "no", "off"})
_LINE_BREAKS: Final = "\r\n"


def expand(text: str, context: MacroContext, variables: Variables, *, place: str) -> Expansion:
    """Expand the macros of one field. docs/macros.md says what each stands for.

    A field that macros put in (`description`) is expanded on its own, under its macro's name as
    its place, and reads the same wherever it is put in. Within itself it stays as written.

    Args:
        text: A field that a user wrote; never what a model wrote.
        context: What the macros stand for.
        variables: Left as they are; the new ones come back. Whoever only previews drops those.
        place: The field's name, for draws and for errors. For a field that a macro stands for,
            that macro's name as docs/macros.md spells it, so that draws agree. Distinct fields
            need distinct places (`lore:<id>`), or equal macros in them draw the same.

    Returns:
        The text (the same object where there is nothing to expand) and the variables (the same
        object where none was written).

    Raises:
        MacroLimitError: If a limit is reached. Nothing of the field is given back then.

    Time is linear in `text`, the fields that it puts in and what comes out.
    """
    if "{{" not in text and "<" not in text:
        return Expansion(text, variables)
    parts = parse(text)
    if all(isinstance(part, str) for part in parts):
        return Expansion(text, variables)
    expander = _Expander(context, variables, place)
    expanded = expander.expand(parts, _Field(place), depth=0)
    return Expansion(expanded, expander.variables())


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


class _Expander:
    """One call of `expand`: what all its fields share, and what they have used of the limits."""

    def __init__(self, context: MacroContext, variables: Variables, place: str) -> None:
        self.context = context
        self.drafts: dict[Scope, Draft] = {
            "local": Draft(variables.local),
            "global": Draft(variables.global_),
        }
        self._variables = variables
        self._place = place
        self._macros = 0
        self._characters = 0
        self._parsed: dict[str, Parts] = {}

    def variables(self) -> Variables:
        """The variables after the expansion; those that were handed in, if none was written."""
        if not any(draft.written for draft in self.drafts.values()):
            return self._variables
        return Variables(self.drafts["local"].result(), self.drafts["global"].result())

    def keep_within(self, most: int, amount: int, *, unit: str) -> None:
        if amount > most:
            raise MacroLimitError(place=self._place, limit=unit, most=most)

    def expand(self, parts: Parts, within: _Field, *, depth: int) -> str:
        output = _Output()
        self.write(parts, output, within, depth=depth)
        return output.text()

    def expand_field(self, name: str, text: str, around: _Field, *, depth: int) -> str:
        if name not in self._parsed:
            self._parsed[name] = parse(text)
        within = _Field(name, around.around | {around.place})
        return self.expand(self._parsed[name], within, depth=depth)

    def write(self, parts: Sequence[Part], output: _Output, within: _Field, *, depth: int) -> None:
        self.keep_within(MAX_DEPTH, depth, unit="levels of nesting")
        for part in parts:
            if isinstance(part, str):
                self.spend(len(part))
                output.write(part)
            elif isinstance(part, Call):
                self._write_call(part, output, within, depth)
            else:
                self._write_conditional(part, output, within, depth)

    def spend(self, characters: int) -> None:
        self._characters += characters
        self.keep_within(MAX_CHARACTERS, self._characters, unit="characters")

    def _write_call(self, call: Call, output: _Output, within: _Field, depth: int) -> None:
        macro = MACROS.get(call.name)
        arguments = macro.split_arguments(call.argument) if macro else None
        if macro is None or arguments is None:
            self.write(("{{", *call.inside, "}}"), output, within, depth=depth + 1)
            return
        self._count_macro()
        self.spend(call.end - call.start)  # arguments are read, whether they are expanded or not
        value = macro.run(_Invocation(self, call, arguments, output, within, depth + 1))
        value = call.source if value is None else value
        self.spend(len(value))
        output.write(value)

    def _write_conditional(
        self, conditional: Conditional, output: _Output, within: _Field, depth: int
    ) -> None:
        self._count_macro()
        condition = self._condition(conditional.condition, within, depth + 1)
        holds = condition.strip().lower() not in _FALSE
        chosen = conditional.otherwise if holds == conditional.negated else conditional.then
        self.write(chosen, output, within, depth=depth + 1)

    def _condition(self, parts: Parts, within: _Field, depth: int) -> str:
        """The bare name of a macro stands for the macro: `{{if persona}}`."""
        if len(parts) == 1 and isinstance(parts[0], str):
            macro = MACROS.get(parts[0].lower())
            if macro is not None and macro.fewest == 0:
                parts = [Call(parts[0].lower(), None, parts, parts[0], 0, len(parts[0]))]
        return self.expand(parts, within, depth=depth)

    def _count_macro(self) -> None:
        self._macros += 1
        self.keep_within(MAX_MACROS, self._macros, unit="macros")


@dataclass(frozen=True, slots=True)
class _Invocation:
    """`table.Invocation`, for one call."""

    expander: _Expander
    call: Call
    arguments: Sequence[Parts]
    output: _Output
    within: _Field
    depth: int

    @property
    def context(self) -> MacroContext:
        return self.expander.context

    def text(self, index: int) -> str:
        if index >= len(self.arguments):
            return ""
        return self.expander.expand(self.arguments[index], self.within, depth=self.depth)

    def put(self, parts: Parts) -> None:
        self.expander.write(parts, self.output, self.within, depth=self.depth)

    def put_field(self, name: str, text: str) -> bool:
        if self.within.holds(name):
            return False
        self.output.write(self.expander.expand_field(name, text, self.within, depth=self.depth))
        return True

    def trim(self) -> None:
        self.output.trim()

    def draw(self, seed: int, *, choices: int, count: int = 1) -> list[int]:
        self.expander.spend(count)  # thousands of dice are work, too
        source = self.call.source
        repetition = self.within.draws[source]
        self.within.draws[source] += 1
        key = (seed, self.within.place, repetition, source)
        return draw(key, choices=choices, count=count)

    def get_variable(self, scope: Scope, name: str) -> str:
        return self.expander.drafts[scope].read(name)

    def set_variable(self, scope: Scope, name: str, value: str) -> None:
        self.expander.spend(len(value))
        self.expander.drafts[scope].write(name, value)

    def keep_within(self, most: int, amount: int, *, unit: str) -> None:
        self.expander.keep_within(most, amount, unit=unit)
