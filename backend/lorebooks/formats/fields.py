"""Fields of entries and books in each format, and their conversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast, get_args

import msgspec

from backend.accounts.profile.settings import LoreMode
from backend.characters.cards.codec import (
    Codec,
    Field,
    Notes,
    Object,
    Reader,
    UnusableError,
    get_object,
    make_choice_reader,
    make_integer_reader,
    make_number_reader,
    omit_null,
    read_flag,
    read_text,
    to_text,
)
from backend.generation.model import Role
from backend.lorebooks.entries import (
    MAX_CONTENT,
    MAX_KEYS,
    BookFields,
    CharacterFilter,
    Logic,
    LoreEntry,
    MatchedField,
    Position,
    Trigger,
)
from backend.lorebooks.errors import LoreLimitError

Format = Literal["world_info", "character_book", "agnai", "risu", "novelai", "kobold"]


class EntrySource(msgspec.Struct, frozen=True, omit_defaults=True):
    """The imported form of an entry.

    If `is_short` is set, the text of `content` is omitted here, because the entry contains it.
    `key` is the entry's name in World Info's object of entries.
    """

    format: Format
    raw: dict[str, Any]
    key: str | None = None
    is_short: bool = False


class BookSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """The imported form of a book, without its entries.

    `envelope` contains the members around the `data` of a `lorebook_v3`. `given_name` is the name
    that was assigned on import if the book had none. `count` is the number of its entries.
    """

    format: Format
    raw: dict[str, Any]
    envelope: dict[str, Any] = {}
    given_name: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class ReadBook:
    """A lorebook read from a file.

    Attributes:
        fields: The book's own fields.
        source: The imported form of the book.
        entries: Each entry with its imported form, in the file's order.
        warnings: Sentences about adapted values, for the user who imports.
        skipped: Number of items that were not entries and were left out.
    """

    fields: BookFields
    source: BookSource
    entries: list[tuple[LoreEntry, EntrySource]]
    warnings: list[str] = field(default_factory=list[str])
    skipped: int = 0


MAX_KEY: Final = 2_000
MAX_NAME: Final = 500
MAX_DESCRIPTION: Final = 20_000
OURS: Final = "talekeeper"
"""Our key in a book's `extensions`, for settings that no format has."""

POSITIONS: Final[tuple[Position, ...]] = get_args(Position)
LOGICS: Final[tuple[Logic, ...]] = get_args(Logic)
ROLES: Final[tuple[Role, ...]] = ("system", "user", "assistant")
TRIGGERS: Final[tuple[Trigger, ...]] = tuple(each for each in get_args(Trigger) if each != "other")
_MODE: Final[Reader[LoreMode]] = make_choice_reader(get_args(LoreMode))
_SCAN_DEPTH: Final = make_integer_reader(0, 1_000)
_COUNT: Final = make_integer_reader(0, 100_000)
MATCHED: Final[dict[MatchedField, str]] = {
    "persona_description": "matchPersonaDescription",
    "character_description": "matchCharacterDescription",
    "character_personality": "matchCharacterPersonality",
    "character_depth_prompt": "matchCharacterDepthPrompt",
    "scenario": "matchScenario",
    "creator_notes": "matchCreatorNotes",
}
"""World Info's flags for additional fields in which keys are searched."""


def _name(value: object, notes: Notes) -> str:
    """Read a title or label. If it is too long, only the source keeps its end."""
    found = to_text(value)
    if len(found) > MAX_NAME:
        notes.add(f"A name was longer than {MAX_NAME} characters and is cut here")
    return found[:MAX_NAME]


def _description(value: object, notes: Notes) -> str:
    found = to_text(value)
    if len(found) > MAX_DESCRIPTION:
        notes.add(f"The description was longer than {MAX_DESCRIPTION:,} characters and is cut here")
    return found[:MAX_DESCRIPTION]


def _content(value: object, notes: Notes) -> str:
    found = read_text(value, notes)
    check_content(found)
    return found


def check_content(found: str) -> None:
    """Raise `LoreLimitError` if the content is too long. Content is never truncated."""
    if len(found) > MAX_CONTENT:
        raise LoreLimitError(
            f"An entry has {len(found):,} characters of content; {MAX_CONTENT:,} are allowed. "
            "Split it.",
            limit="lore_content",
            allowed=MAX_CONTENT,
            found=len(found),
        )


def _keys(value: object, notes: Notes) -> list[str]:
    """Read keys without blank ones from a list, or from a text separated by commas."""
    return _usable_keys([key for key in _key_texts(value) if key.strip()], notes)


def _secondary_keys(value: object, notes: Notes) -> list[str]:
    """Read secondary keys. A blank one in a list is kept as a key that never matches."""
    texts = _key_texts(value)
    found = [key for key in texts if key.strip()]
    if isinstance(value, list) and len(found) < len(texts):
        found.append("")
    return _usable_keys(found, notes)


def _key_texts(value: object) -> list[str]:
    match value:
        case str():
            return _split_keys(value)
        case list():
            return list(map(to_text, cast("list[object]", value)))
        case dict():
            return list(map(to_text, cast("Object", value).values()))
        case _:
            return [to_text(value)]


def _split_keys(value: str) -> list[str]:
    """Split a text at commas. A text between slashes is a single pattern."""
    stripped = value.strip()
    if len(stripped) > 1 and stripped.startswith("/") and stripped.rstrip("gimsuy").endswith("/"):
        return [stripped]
    return [key.strip() for key in value.split(",")]


def _usable_keys(found: list[str], notes: Notes) -> list[str]:
    usable = [key for key in found if len(key) <= MAX_KEY][:MAX_KEYS]
    if len(usable) < len(found):
        notes.add(
            f"An entry had more than {MAX_KEYS} keys, or one of more than {MAX_KEY:,} characters: "
            "those are not used"
        )
    return usable


def _names(value: object, notes: Notes) -> list[str]:
    """Read a list of names without blank ones, truncated to the limit."""
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    found = [_name(item, notes) for item in items if to_text(item).strip()]
    if len(found) > MAX_KEYS:
        notes.add(f"A list of names had more than {MAX_KEYS}: those behind are not used")
    return found[:MAX_KEYS]


def _triggers(value: object, notes: Notes) -> list[Trigger]:
    wanted = _names(value, notes)
    known: list[Trigger] = [trigger for trigger in TRIGGERS if trigger in wanted]
    return known if set(wanted) <= set(known) else [*known, "other"]


def _level(value: object, notes: Notes) -> int:
    """Read `delayUntilRecursion`. True means the first level."""
    return int(value) if isinstance(value, bool) else make_integer_reader(0, 1_000)(value, notes)


def _plain_number(value: float) -> float:
    """Return whole numbers as integers, as other tools write them."""
    return int(value) if float(value).is_integer() else value


_FILTER: Final = Codec(
    (
        Field("is_exclude", read_flag, {"": "isExclude is_exclude"}),
        Field("names", _names, {"": "names"}),
        Field("tags", _names, {"": "tags"}),
    ),
    "",
)


def _filter(value: object, notes: Notes) -> CharacterFilter:
    """Read SillyTavern's filter. Its names are names of image files without extension."""
    if not isinstance(value, dict):
        raise UnusableError
    return CharacterFilter(**_FILTER.read(cast("Object", value), notes))


def _filter_object(value: CharacterFilter) -> Any:
    if value == CharacterFilter():
        return msgspec.UNSET
    return _FILTER.write(msgspec.structs.asdict(value))


_OTHERS: Final[dict[Format, dict[str, str]]] = {
    "agnai": {
        "title": "name",
        "content": "entry",
        "keys": "keywords",
        "secondary_keys": "secondaryKeys",
        "constant": "constant",
        "order": "weight",
        "enabled": "enabled",
    },
    "risu": {
        "title": "comment",
        "content": "content",
        "keys": "key",
        "secondary_keys": "secondkey",
        "constant": "alwaysActive",
        "selective": "selective",
        "order": "insertorder",
        "probability": "activationPercent",
    },
    "novelai": {
        "title": "displayName",
        "content": "text",
        "keys": "keys",
        "constant": "forceActivation",
        "order": "contextConfig.budgetPriority",
        "enabled": "enabled",
    },
    "kobold": {
        "title": "comment title",
        "content": "content",
        "keys": "key",
        "secondary_keys": "keysecondary",
        "anti_keys": "keyanti",
        "constant": "constant",
        "selective": "selective",
        "disabled": "widisabled",
        "probability": "probability",
    },
}
"""Names of an entry's fields in formats that are only read."""


def _field(
    name: str,
    read: Reader[Any],
    world_info: str,
    character_book: str,
    write: Callable[[Any], Any] | None = None,
    default: Any = msgspec.UNSET,
) -> Field:
    places = {"world_info": world_info, "character_book": character_book}
    places |= {each: names[name] for each, names in _OTHERS.items() if name in names}
    return Field(name, read, places, write, default)


_ENTRY: Final = (
    _field("title", _name, "comment", "comment name"),
    _field("content", _content, "content", "content"),
    _field("keys", _keys, "key", "keys"),
    _field("secondary_keys", _secondary_keys, "keysecondary", "secondary_keys"),
    _field("anti_keys", _keys, "", ""),
    _field("constant", read_flag, "constant", "constant"),
    _field("selective", read_flag, "selective", "selective", default=False),
    _field("order", make_integer_reader(-1_000_000, 1_000_000), "order", "insertion_order"),
    _field("enabled", read_flag, "", "enabled"),
    _field("disabled", read_flag, "disable", ""),
    _field(
        "position",
        make_choice_reader(POSITIONS),
        "position",
        "extensions.position",
        POSITIONS.index,
    ),
    _field("depth", make_integer_reader(0, 10_000), "depth", "extensions.depth"),
    _field("role", make_choice_reader(ROLES), "role", "extensions.role", ROLES.index),
    _field(
        "logic",
        make_choice_reader(LOGICS),
        "selectiveLogic",
        "extensions.selectiveLogic",
        LOGICS.index,
    ),
    _field("outlet", _name, "outletName", "extensions.outlet_name"),
    _field("mode", _MODE, "talekeeperMode", "extensions.talekeeper_mode", omit_null),
    _field("vectorized", read_flag, "vectorized", "extensions.vectorized"),
    _field("ignore_budget", read_flag, "ignoreBudget", "extensions.ignore_budget"),
    _field("exclude_recursion", read_flag, "excludeRecursion", "extensions.exclude_recursion"),
    _field("prevent_recursion", read_flag, "preventRecursion", "extensions.prevent_recursion"),
    _field(
        "delay_until_recursion", _level, "delayUntilRecursion", "extensions.delay_until_recursion"
    ),
    _field(
        "probability",
        make_number_reader(0, 100),
        "probability",
        "extensions.probability",
        _plain_number,
    ),
    _field("use_probability", read_flag, "useProbability", "extensions.useProbability"),
    _field("group", _name, "group", "extensions.group"),
    _field("group_override", read_flag, "groupOverride", "extensions.group_override"),
    _field(
        "group_weight",
        make_number_reader(0, 1_000_000),
        "groupWeight",
        "extensions.group_weight",
        _plain_number,
    ),
    _field("use_group_scoring", read_flag, "useGroupScoring", "extensions.use_group_scoring"),
    _field("scan_depth", _SCAN_DEPTH, "scanDepth", "extensions.scan_depth"),
    _field(
        "case_sensitive", read_flag, "caseSensitive", "extensions.case_sensitive case_sensitive"
    ),
    _field("match_whole_words", read_flag, "matchWholeWords", "extensions.match_whole_words"),
    _field("sticky", _COUNT, "sticky", "extensions.sticky"),
    _field("cooldown", _COUNT, "cooldown", "extensions.cooldown"),
    _field("delay", _COUNT, "delay", "extensions.delay"),
    _field(
        "character_filter",
        _filter,
        "characterFilter",
        "extensions.character_filter",
        _filter_object,
    ),
    _field("triggers", _triggers, "triggers", "extensions.triggers"),
    _field("automation_id", _name, "automationId", "extensions.automation_id"),
    *(
        _field(f"match_{field}", read_flag, member, f"extensions.match_{field}")
        for field, member in MATCHED.items()
    ),
)

ENTRIES: Final[dict[Format, Codec]] = {each: Codec(_ENTRY, each) for each in get_args(Format)}
CONTENT: Final[dict[Format, str]] = {
    "world_info": "content",
    "character_book": "content",
    **{each: names["content"] for each, names in _OTHERS.items()},
}
"""The member with the content of an entry."""

BOOK: Final = Codec(
    (
        Field("name", _name, {"": "name"}),
        Field("description", _description, {"": "description"}),
        *(
            Field(name, read, {"": place}, omit_null)
            for name, read, place in (
                ("scan_depth", _SCAN_DEPTH, "scan_depth"),
                ("token_budget", make_integer_reader(0, 10_000_000), "token_budget"),
                ("recursive_scanning", read_flag, "recursive_scanning"),
                ("case_sensitive", read_flag, f"extensions.{OURS}.case_sensitive"),
                ("match_whole_words", read_flag, f"extensions.{OURS}.match_whole_words"),
                ("use_group_scoring", read_flag, f"extensions.{OURS}.use_group_scoring"),
                ("mode", _MODE, f"extensions.{OURS}.mode"),
            )
        ),
    ),
    "",
)
"""The book's own fields in all formats, next to its entries."""


Target = Literal["world_info", "character_book"]
"""A format that can be written."""

_SILLYTAVERNS: Final = frozenset(
    {"useProbability", "selectiveLogic", "exclude_recursion", "display_index"}
)
"""Marks of tools that write a meaningless `use_regex: true` in every entry."""


def read_entry(file_format: Format, raw: Mapping[str, Any], notes: Notes) -> LoreEntry:
    """Read an entry from an object of any format. Raises `LoreLimitError`."""
    found = ENTRIES[file_format].read(raw, notes)
    matched = [field for field in MATCHED if found.pop(f"match_{field}", False)]
    if matched:
        found["match_fields"] = matched
    if found.pop("disabled", False):
        found["enabled"] = False
    if file_format == "character_book":
        _read_book_members(found, raw)
    elif file_format in {"risu", "kobold"}:
        # A blank key has no effect in these formats.
        found["secondary_keys"] = [key for key in found.get("secondary_keys", []) if key]
    if file_format == "kobold":
        _read_anti_keys(found, raw)
    return LoreEntry(**found)


def _read_book_members(found: Object, raw: Mapping[str, Any]) -> None:
    """Read members of a `character_book` entry. `extensions` take precedence over its members."""
    if get_object(raw, "extensions").get("position") is None:
        before = raw.get("position") in ("before_char", 0, "0")
        found["position"] = "before_character" if before else "after_character"
    if has_bare_patterns(raw):
        ignore_case = raw.get("case_sensitive") is False
        for name in ("keys", "secondary_keys"):
            found[name] = [_pattern(key, ignore_case=ignore_case) for key in found.get(name, [])]


def has_bare_patterns(raw: Mapping[str, Any]) -> bool:
    """True if an entry's keys are patterns without the slashes that mark a pattern here."""
    return bool(raw.get("use_regex")) and _SILLYTAVERNS.isdisjoint(get_object(raw, "extensions"))


def _pattern(key: str, *, ignore_case: bool) -> str:
    if _is_pattern(key):
        return key
    body = key.replace("\\/", "/").replace("/", "\\/")
    pattern = f"/{body}/i" if ignore_case else f"/{body}/"
    return pattern if len(pattern) <= MAX_KEY else key


def _is_pattern(key: str) -> bool:
    return len(key) > 1 and key.startswith("/") and "/" in key[1:]


def _read_anti_keys(found: Object, raw: Mapping[str, Any]) -> None:
    """Read Kobold's keys that must not occur.

    They become secondary keys, or a V3 decorator if there are secondary keys already.
    """
    anti, secondary = found.pop("anti_keys", []), found["secondary_keys"]
    if raw.get("selective") is None:
        found["selective"] = bool(secondary)
    if anti and secondary and found["selective"]:
        found["content"] = f"@@exclude_keys {','.join(anti)}\n{found.get('content', '')}"
        check_content(found["content"])
    elif anti:
        found |= {"secondary_keys": anti, "selective": True, "logic": "not_any"}


def write_entry(entry: LoreEntry, target: Target) -> Object:
    """Write all fields of the entry in the format `target`, except its number."""
    values = msgspec.structs.asdict(entry)
    values["disabled"] = not entry.enabled
    values |= {f"match_{field}": field in entry.match_fields for field in MATCHED}
    written = ENTRIES[target].write(values)
    if target == "character_book":
        written["name"] = entry.title
        written["position"] = (
            "before_char" if entry.position == "before_character" else "after_char"
        )
        written["use_regex"] = bool(entry.keys) and all(map(_is_pattern, entry.keys))
        if entry.case_sensitive is not None:
            written["case_sensitive"] = entry.case_sensitive
    return written


def read_book(raw: Mapping[str, Any], notes: Notes, *, given_name: str) -> BookFields:
    """Read a book's own fields. `given_name` is used if it has no name."""
    fields = BookFields(**BOOK.read(raw, notes))
    name = fields.name.strip() or given_name[:MAX_NAME]
    return msgspec.structs.replace(fields, name=name)


def write_book(fields: BookFields) -> Object:
    """Write the fields that are set. `name`, `description` and `extensions` are always written."""
    return {"extensions": {}, **BOOK.write(msgspec.structs.asdict(fields))}
