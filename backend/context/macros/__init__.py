"""Macros: `{{user}}`, `{{random::a::b}}` and the rest, put into the fields that users write.

Pure: no clock, no global randomness, nothing stored. `expand` is the way in; docs/macros.md says
what each macro stands for. A field goes through three steps, one module each:

    syntax      text -> tree of literal text, calls and conditionals; nothing is looked up
    expansion   tree -> text, within the limits of `model`: a field's own, and the request's budget
    table       what each macro does, by name

Values are put in literally. Text that a macro brings in never turns into syntax: what a model
wrote, a name or a variable may hold braces and they stay braces. The one exception is a field that
is itself written with macros (a card's description, say): it is expanded on its own, as a whole.
"""

from __future__ import annotations

from backend.context.macros.expansion import expand, may_hold_macros
from backend.context.macros.model import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_DICE,
    MAX_MACROS,
    MAX_REQUEST_CHARACTERS,
    MAX_REQUEST_MACROS,
    MAX_SIDES,
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
    "MAX_DEPTH",
    "MAX_DICE",
    "MAX_MACROS",
    "MAX_REQUEST_CHARACTERS",
    "MAX_REQUEST_MACROS",
    "MAX_SIDES",
    "Expansion",
    "MacroBudget",
    "MacroContext",
    "MacroLimitError",
    "Variables",
    "expand",
    "may_hold_macros",
]
