"""What a book says of itself, in all formats: the members beside its entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from backend.accounts.settings import LoreMode
from backend.lorebooks.entries import BookFields
from backend.lorebooks.formats.coerce import MAX_NAME, Notes, flag, name, text, whole
from backend.lorebooks.formats.fields import MODE, SCAN_DEPTH

MAX_DESCRIPTION: Final = 20_000
OURS: Final = "talekeeper"
"""Our own place in a book's `extensions`, for what no format has."""

KNOWN: Final = frozenset(
    {"name", "description", "scan_depth", "token_budget", "recursive_scanning", "extensions"}
)
_BUDGET = whole(0, 10_000_000)
_OWN = ("case_sensitive", "match_whole_words", "use_group_scoring")


def read_fields(raw: Mapping[str, Any], notes: Notes, *, given_name: str) -> BookFields:
    """A book's own fields; `given_name` is its name where it has none."""
    own = _object(_object(raw.get("extensions")).get(OURS))
    return BookFields(
        name=notes.read(raw, "name", name, "").strip() or given_name[:MAX_NAME],
        description=notes.read(raw, "description", _description, ""),
        scan_depth=notes.read(raw, "scan_depth", SCAN_DEPTH, None),
        token_budget=notes.read(raw, "token_budget", _BUDGET, None),
        recursive_scanning=notes.read(raw, "recursive_scanning", flag, None),
        mode=_mode(own, notes),
        **{member: notes.read(own, member, flag, None) for member in _OWN},
    )


def _mode(own: Mapping[str, Any], notes: Notes) -> LoreMode | None:
    return notes.read(own, "mode", MODE, None)


def write_fields(fields: BookFields) -> dict[str, Any]:
    """The same members, those that say something; `name`, `description`, `extensions` always."""
    optional = {
        "scan_depth": fields.scan_depth,
        "token_budget": fields.token_budget,
        "recursive_scanning": fields.recursive_scanning,
    }
    own = {member: getattr(fields, member) for member in _OWN}
    ours: dict[str, Any] = {member: value for member, value in own.items() if value is not None}
    if fields.mode is not None:
        ours["mode"] = fields.mode
    return {
        "name": fields.name,
        "description": fields.description,
        **{member: value for member, value in optional.items() if value is not None},
        "extensions": {OURS: ours} if ours else {},
    }


def _description(value: object, notes: Notes) -> str:
    found = text(value)
    if len(found) > MAX_DESCRIPTION:
        notes.add(f"The description was longer than {MAX_DESCRIPTION:,} characters and is cut here")
    return found[:MAX_DESCRIPTION]


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
