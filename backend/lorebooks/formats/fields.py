"""The fields of an entry that World Info and CCv2/v3 books share, under both names.

SillyTavern writes them into an entry of World Info in camel case, and into the `extensions` of a
`character_book`'s entry in snake case, but for `useProbability` and `selectiveLogic`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from backend.accounts.settings import LoreMode
from backend.generation.model import Role
from backend.lorebooks.entries import (
    CharacterFilter,
    Logic,
    LoreEntry,
    MatchedField,
    Position,
)
from backend.lorebooks.formats.coerce import (
    MATCHED,
    Notes,
    character_filter,
    chosen,
    flag,
    level,
    name,
    number,
    triggers,
    whole,
)

POSITIONS: Final[tuple[Position, ...]] = get_args(Position)
LOGICS: Final[tuple[Logic, ...]] = get_args(Logic)
ROLES: Final[tuple[Role, ...]] = ("system", "user", "assistant")
MODES: Final[tuple[LoreMode, ...]] = get_args(LoreMode)
MODE: Final[Callable[[Any, Notes], LoreMode]] = chosen(MODES)
DEFAULTS: Final = LoreEntry()

ORDER = whole(-1_000_000, 1_000_000)
SCAN_DEPTH = whole(0, 1_000)
_COUNT = whole(0, 100_000)


def _plain(value: Any) -> Any:
    return value


def _filter_object(value: CharacterFilter) -> dict[str, Any] | None:
    if value == CharacterFilter():
        return None
    return {"isExclude": value.is_exclude, "names": value.names, "tags": value.tags}


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its name in the model, in World Info, in `extensions`, and both ways between."""

    name: str
    world_info: str
    extension: str
    read: Callable[[Any, Notes], Any]
    write: Callable[[Any], Any] = _plain


SHARED: Final = (
    Field("position", "position", "position", chosen(POSITIONS), POSITIONS.index),
    Field("depth", "depth", "depth", whole(0, 10_000)),
    Field("role", "role", "role", chosen(ROLES), ROLES.index),
    Field("logic", "selectiveLogic", "selectiveLogic", chosen(LOGICS), LOGICS.index),
    Field("outlet", "outletName", "outlet_name", name),
    Field("mode", "talekeeperMode", "talekeeper_mode", MODE),
    Field("vectorized", "vectorized", "vectorized", flag),
    Field("ignore_budget", "ignoreBudget", "ignore_budget", flag),
    Field("exclude_recursion", "excludeRecursion", "exclude_recursion", flag),
    Field("prevent_recursion", "preventRecursion", "prevent_recursion", flag),
    Field("delay_until_recursion", "delayUntilRecursion", "delay_until_recursion", level),
    Field("probability", "probability", "probability", number(0, 100)),
    Field("use_probability", "useProbability", "useProbability", flag),
    Field("group", "group", "group", name),
    Field("group_override", "groupOverride", "group_override", flag),
    Field("group_weight", "groupWeight", "group_weight", number(0, 1_000_000)),
    Field("use_group_scoring", "useGroupScoring", "use_group_scoring", flag),
    Field("scan_depth", "scanDepth", "scan_depth", SCAN_DEPTH),
    Field("case_sensitive", "caseSensitive", "case_sensitive", flag),
    Field("match_whole_words", "matchWholeWords", "match_whole_words", flag),
    Field("sticky", "sticky", "sticky", _COUNT),
    Field("cooldown", "cooldown", "cooldown", _COUNT),
    Field("delay", "delay", "delay", _COUNT),
    Field(
        "character_filter", "characterFilter", "character_filter", character_filter, _filter_object
    ),
    Field("triggers", "triggers", "triggers", triggers),
    Field("automation_id", "automationId", "automation_id", name),
)
_MATCHED_EXTENSIONS: Final[dict[MatchedField, str]] = {field: f"match_{field}" for field in MATCHED}

WORLD_INFO_NAMES: Final = frozenset(field.world_info for field in SHARED) | {*MATCHED.values()}
EXTENSION_NAMES: Final = frozenset(field.extension for field in SHARED) | {
    *_MATCHED_EXTENSIONS.values()
}


def read_world_info(raw: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    """The shared fields out of an entry of World Info, for `LoreEntry`."""
    found = {
        field.name: notes.read(raw, field.world_info, field.read, getattr(DEFAULTS, field.name))
        for field in SHARED
        if field.world_info in raw
    }
    return {**found, **_matched(raw, MATCHED, notes)}


def read_extensions(raw: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    """The shared fields out of `extensions`, for `LoreEntry`; only those that are there."""
    found = {
        field.name: notes.read(raw, field.extension, field.read, getattr(DEFAULTS, field.name))
        for field in SHARED
        if raw.get(field.extension) is not None
    }
    return {**found, **_matched(raw, _MATCHED_EXTENSIONS, notes)}


def _matched(
    raw: Mapping[str, Any], spelt: Mapping[MatchedField, str], notes: Notes
) -> dict[str, Any]:
    found = [
        field
        for field, member in spelt.items()
        if member in raw and notes.read(raw, member, flag, default=False)
    ]
    return {"match_fields": found} if found else {}


def write_world_info(entry: LoreEntry) -> dict[str, Any]:
    """The shared fields as World Info writes them."""
    found = {field.world_info: field.write(getattr(entry, field.name)) for field in SHARED}
    found |= {member: field in entry.match_fields for field, member in MATCHED.items()}
    return _tidied(found)


def write_extensions(entry: LoreEntry) -> dict[str, Any]:
    """The shared fields as SillyTavern writes them into `extensions`."""
    found = {field.extension: field.write(getattr(entry, field.name)) for field in SHARED}
    found |= {member: field in entry.match_fields for field, member in _MATCHED_EXTENSIONS.items()}
    return _tidied(found)


def _tidied(found: dict[str, Any]) -> dict[str, Any]:
    """Without what says nothing, and with whole numbers as others write them."""
    for member in ("characterFilter", "character_filter", "talekeeperMode", "talekeeper_mode"):
        if member in found and found[member] is None:
            del found[member]
    for member in ("probability", "groupWeight", "group_weight"):
        value = found.get(member)
        if isinstance(value, float) and value.is_integer():
            found[member] = int(value)
    return found
