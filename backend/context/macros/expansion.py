"""Tree to text: macros are looked up and run, each field in its own place, within the limits."""

from __future__ import annotations

import re
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
    MacroBudget,
    MacroContext,
    MacroLimitError,
    Variables,
)
from backend.context.macros.syntax import Block, Call, Conditional, Part, Parts, named, parse
from backend.context.macros.table import MACROS, VARIABLE_SIGNS, Macro, Scope
from backend.context.macros.variables import VariablesDraft, is_true

_LINE_BREAKS: Final = "\r\n"

_BRACES: Final = 16
"""Characters that are as much work as a pair of braces or an old `<USER>`, read or written."""

_OLD_MARK: Final = re.compile("<(?:user|bot|char)>", re.IGNORECASE | re.ASCII)


def may_hold_macros(text: str) -> bool:
    """Whether a text has to be read for macros. One that does not expands to itself."""
    return "{{" in text or "<" in text or "\\{" in text or "\\}" in text


def expand(
    text: str, context: MacroContext, variables: Variables, *, place: str, budget: MacroBudget
) -> Expansion:
    """Expand the macros of one field. docs/macros.md lists them.

    A field that macros put in (`description`) is expanded on its own, under its macro's name as
    its place, and reads the same wherever it is put in. Within itself it stays as written.

    Args:
        text: A field that a user wrote; never what a model wrote.
        context: What the macros stand for.
        variables: Left as they are; the new ones come back. A preview drops those.
        place: The field's name, for draws and for errors. For a field that a macro stands for,
            that macro's name as docs/macros.md spells it, so that draws agree. Distinct fields
            need distinct places (`lore:<id>`), or equal macros in them draw the same.
        budget: The request's: what all its fields may take together.

    Returns:
        The text (the same object where there is nothing to expand) and the variables (the same
        object where none was written).

    Raises:
        MacroLimitError: If a limit is reached, the field's or the request's. Nothing of the field
            is given back then.

    Time is linear in `text`, the fields that it puts in and what comes out.
    """
    if not may_hold_macros(text):
        return Expansion(text, variables)
    parts = _read(text, budget, place)
    if all(isinstance(part, str) for part in parts):
        plain = "".join(map(str, parts))
        return Expansion(text if plain == text else plain, variables)
    expander = _Expander(context, variables, place, budget)
    expanded = expander.expand(parts, _Field(place), depth=0)
    return Expansion(expanded, expander.variables())


def _read(text: str, budget: MacroBudget, place: str) -> Parts:
    marks = text.count("}}") + sum(1 for _ in _OLD_MARK.finditer(text))
    budget.spend(characters=len(text) + _BRACES * marks, place=place)
    return parse(text)


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

    def __init__(
        self, context: MacroContext, variables: Variables, place: str, budget: MacroBudget
    ) -> None:
        self.context = context
        self.drafts: dict[Scope, VariablesDraft] = {
            "local": VariablesDraft(variables.local),
            "global": VariablesDraft(variables.global_),
        }
        self._variables = variables
        self._place = place
        self._budget = budget
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
            self._parsed[name] = _read(text, self._budget, self._place)
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
            elif isinstance(part, Block):
                self._write_block(part, output, within, depth)
            else:
                self._write_conditional(part, output, within, depth)

    def spend(self, characters: int) -> None:
        self._characters += characters
        self.keep_within(MAX_CHARACTERS, self._characters, unit="characters")
        self._budget.spend(characters=characters, place=self._place)

    def write_variable(self, scope: Scope, name: str, value: str) -> None:
        draft = self.drafts[scope]
        # The first write copies all variables when the field is done.
        self.spend(len(value) if draft.written else len(value) + len(draft.given))
        draft.write(name, value)

    def delete_variable(self, scope: Scope, name: str) -> None:
        draft = self.drafts[scope]
        if draft.has(name):
            self.spend(0 if draft.written else len(draft.given))
            draft.delete(name)

    def _write_call(self, call: Call, output: _Output, within: _Field, depth: int) -> None:
        macro = MACROS.get(call.name)
        arguments = macro.split_arguments(call.argument) if macro else None
        if macro is None or arguments is None:
            self._budget.spend(characters=_BRACES, place=self._place)
            self.write(("{{", *call.inside, "}}"), output, within, depth=depth + 1)
            return
        self._run(macro, call, arguments, output, within, depth)

    def _write_block(self, block: Block, output: _Output, within: _Field, depth: int) -> None:
        macro = MACROS.get(block.call.name)
        arguments = macro.split_arguments(block.call.argument, block.content) if macro else None
        if macro is None or arguments is None:  # two calls, and what is between them
            self.write((block.call, *block.body, block.closing), output, within, depth=depth)
            return
        self._run(macro, block.call, arguments, output, within, depth)

    def _run(
        self,
        macro: Macro,
        call: Call,
        arguments: Sequence[Parts],
        output: _Output,
        within: _Field,
        depth: int,
    ) -> None:
        self._count_macro()
        self.spend(call.end - call.start)  # arguments are read, whether they are expanded or not
        if macro.is_ignored:
            self._budget.ignored.add(macro.name)
        value = macro.run(_Invocation(self, call, arguments, output, within, depth + 1))
        value = call.source if value is None else value
        self.spend(len(value))
        output.write(value)

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
            call = named(parts[0])
            macro = MACROS.get(call.name)
            is_named = call.argument is None or call.name in VARIABLE_SIGNS
            if macro and is_named and macro.split_arguments(call.argument) is not None:
                parts = [call]
        return self.expand(parts, within, depth=depth)

    def _count_macro(self) -> None:
        self._macros += 1
        self.keep_within(MAX_MACROS, self._macros, unit="macros")
        self._budget.spend(macros=1, place=self._place)


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

    def has_variable(self, scope: Scope, name: str) -> bool:
        return self.expander.drafts[scope].has(name)

    def get_variable(self, scope: Scope, name: str) -> str:
        return self.expander.drafts[scope].read(name)

    def delete_variable(self, scope: Scope, name: str) -> None:
        self.expander.delete_variable(scope, name)

    def set_variable(self, scope: Scope, name: str, value: str) -> None:
        self.expander.write_variable(scope, name, value)

    def keep_within(self, most: int, amount: int, *, unit: str) -> None:
        self.expander.keep_within(most, amount, unit=unit)
