"""Macros such as `{{user}}` and `{{random::a::b}}` in the fields that users write.

Pure functions: no clock, no global randomness, no storage. docs/reference/macros.md explains each
macro. `expand` processes a field in three steps, one module each:

    syntax      text -> tree of literal text, calls and conditionals, without lookups
    expansion   tree -> text, within the limits of the field and of the request (`model`)
    table       the function of each macro, by name

Values are inserted literally. Text inserted by a macro is never parsed: braces in a model's reply,
a name or a variable remain braces. The only exception are fields that may contain macros
themselves, such as a card's description. Each of them is expanded separately and completely.
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
    """True if a text must be parsed for macros. Other texts expand to themselves."""
    return "{{" in text or "<" in text or "\\{" in text or "\\}" in text


def expand(
    text: str, context: MacroContext, variables: Variables, *, place: str, budget: MacroBudget
) -> Expansion:
    """Expand the macros of one field. docs/reference/macros.md lists them.

    A field inserted by a macro (`description`) is expanded separately, with its macro's name as its
    place. Its result is the same everywhere. Inside itself it is not expanded.

    Args:
        text: A field that a user wrote, never a text from a model.
        context: The values of the macros.
        variables: The variables before. They are not modified. A preview drops the new ones.
        place: The field's name, for random draws and errors. For a field that a macro inserts, the
            macro's name as in docs/reference/macros.md, so that draws agree. Distinct fields need
            distinct places (`lore:<id>`). Otherwise equal macros in them draw the same.
        budget: The limits shared by all fields of the request.

    Returns:
        The text (the same object if there is nothing to expand) and the variables (the same object
        if none was written).

    Raises:
        MacroLimitError: If a limit of the field or the request is reached. There is no partial
            result.

    The time is linear in `text`, the inserted fields and the result.
    """
    if not may_hold_macros(text):
        return Expansion(text, variables)
    return Expander(MACROS, context, variables, place=place, budget=budget).run(text)
