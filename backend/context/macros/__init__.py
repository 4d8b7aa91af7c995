"""Macros: `{{user}}`, `{{random::a::b}}` and the rest, put into the fields that users write.

Pure: no clock, no global randomness, nothing stored. docs/reference/macros.md explains each macro.
`expand` takes a field through three steps, one module each:

    syntax      text -> tree of literal text, calls and conditionals; nothing is looked up
    expansion   tree -> text, within the limits of `model`: a field's own, and the request's budget
    table       what each macro does, by name

Values are put in literally. Text that a macro brings in never turns into syntax: what a model
wrote, a name or a variable may hold braces and they stay braces. The one exception is a field that
is itself written with macros (a card's description, say): it is expanded on its own, as a whole.
"""

from __future__ import annotations

from backend.context.macros.expansion import Expander
from backend.context.macros.model import (
    MAX_CHARACTERS,
    MAX_MACROS,
    Expansion,
    MacroBudget,
    MacroContext,
    MacroLimitError,
    Variables,
)
from backend.context.macros.table import MACROS

__all__ = [
    "MACROS",
    "MAX_CHARACTERS",
    "MAX_MACROS",
    "Expansion",
    "MacroBudget",
    "MacroContext",
    "MacroLimitError",
    "Variables",
    "expand",
    "may_hold_macros",
]


def may_hold_macros(text: str) -> bool:
    """Whether a text has to be read for macros. One that does not expands to itself."""
    return "{{" in text or "<" in text or "\\{" in text or "\\}" in text


def expand(
    text: str, context: MacroContext, variables: Variables, *, place: str, budget: MacroBudget
) -> Expansion:
    """Expand the macros of one field. docs/reference/macros.md lists them.

    A field that macros put in (`description`) is expanded on its own, under its macro's name as
    its place, and reads the same wherever it is put in. Within itself it stays as written.

    Args:
        text: A field that a user wrote; never what a model wrote.
        context: What the macros stand for.
        variables: Left as they are; the new ones come back. A preview drops those.
        place: The field's name, for draws and for errors. For a field that a macro stands for,
            that macro's name as docs/reference/macros.md spells it, so that draws agree. Distinct
            fields need distinct places (`lore:<id>`), or equal macros in them draw the same.
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
    return Expander(MACROS, context, variables, place=place, budget=budget).run(text)
