"""V1, V2 and V3 objects into one `Card`, leniently.

Three things are refused: what is no card, a card without a name, and a text over its limit.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from backend.characters.cards.errors import CardError
from backend.characters.cards.fields import (
    CARD_FIELDS,
    FLAT_SYNONYMS,
    V1_FIELDS,
    V3_ONLY_FIELDS,
)
from backend.characters.cards.limits import (
    CARD_BYTES,
    JSON_BYTES,
    LIST_ITEMS,
    NAME,
    SHORT_TEXT,
    TAG,
    TAGS,
    TEXT,
    Limit,
)
from backend.characters.cards.model import Card, CardAsset, Spec

MAX_SECONDS = 2**53 - 1
"""The largest integer that every JSON reader takes exactly."""


class Coercion:
    """Coerces the fields of one card and collects what was done, once for each field."""

    def __init__(self) -> None:
        self._warnings: dict[str, None] = {}

    @property
    def warnings(self) -> list[str]:
        """The warnings so far, in order, none twice."""
        return list(self._warnings)

    def warn(self, sentence: str) -> None:
        """Note a sentence for the person who imports."""
        self._warnings[sentence] = None

    def text(self, field: str, value: object, limit: Limit = TEXT) -> str:
        """Any value as text; null is empty.

        Raises:
            CardLimitError: More characters than `limit` allows. Never cut silently.
        """
        text = value if isinstance(value, str) else self._as_text(field, value)
        limit.check(len(text), f"`{field}`")
        return text

    def _as_text(self, field: str, value: object) -> str:
        match value:
            case None:
                self.warn(f"`{field}` was null and is now empty.")
                return ""
            case list() if all(isinstance(item, str) for item in cast("list[object]", value)):
                self.warn(f"`{field}` was a list and is now its lines.")
                return "\n".join(cast("list[str]", value))
            case _:
                self.warn(f"`{field}` was no text and is now the text of its value.")
                return json.dumps(value, ensure_ascii=False)

    def texts(self, field: str, value: object, limit: Limit = TEXT) -> list[str]:
        """Any value as a list of texts; a single text is a list of one, null an empty list."""
        items = self._as_list(field, value)
        LIST_ITEMS.check(len(items), f"`{field}`")
        return [self.text(field, item, limit) for item in items if item is not None]

    def _as_list(self, field: str, value: object) -> list[object]:
        match value:
            case list():
                return cast("list[object]", value)
            case None:
                self.warn(f"`{field}` was null and is now an empty list.")
                return []
            case dict():
                self.warn(f"`{field}` was an object and is now the list of its values.")
                return list(cast("dict[str, object]", value).values())
            case "":
                return []
            case _:
                self.warn(f"`{field}` was a single value and is now a list.")
                return [value]

    def tags(self, field: str, value: object) -> list[str]:
        """A list of tags, none blank; a single text is split at its commas."""
        if isinstance(value, str) and value.strip():
            self.warn(f"`{field}` was a single text and was split at its commas.")
            value = value.split(",")
        tags = [tag.strip() for tag in self.texts(field, value, SHORT_TEXT) if tag.strip()]
        TAGS.check(len(tags), f"`{field}`")
        for tag in tags:
            TAG.check(len(tag), f"A tag of `{field}`")
        return tags

    def mapping(self, field: str, value: object) -> dict[str, Any]:
        """An object; anything else is an empty one (PHP writes an empty object as a list)."""
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        if value != []:
            self.warn(f"`{field}` was no object and was left out.")
        return {}

    def seconds(self, field: str, value: object) -> int:
        """A point in time in whole seconds; 0, which means unknown, for what is none."""
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                seconds = int(float(value))
            except (ValueError, OverflowError):
                seconds = -1
            if 0 <= seconds <= MAX_SECONDS:
                return seconds
        if value is not None:
            self.warn(f"`{field}` was no time in seconds and was left out.")
        return 0


NEWEST_VERSION = 3.0
_SPEC_NAME = re.compile(r"\s*chara_card_v(\d{1,3})\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Normalised:
    """A card, the version that it was of, and what had to be bent."""

    card: Card
    spec: Spec
    warnings: list[str]


def normalise(raw: object) -> Normalised:
    """Read a parsed JSON value as a character card.

    Raises:
        CardError: No card, or one without a name.
        CardLimitError: A text, a list or the whole is too long.
    """
    if not isinstance(raw, dict):
        raise CardError("This is no character card: a card is a JSON object.")
    source = cast("dict[str, Any]", raw)
    coercion = Coercion()
    spec, fields = _layout(source, coercion)
    card = _card(fields, coercion)
    bookless = msgspec.structs.replace(card, character_book=None)
    CARD_BYTES.check(len(msgspec.json.encode(bookless)), "The card")
    return Normalised(card, spec, coercion.warnings)


def _layout(raw: dict[str, Any], coercion: Coercion) -> tuple[Spec, dict[str, Any]]:
    """Tell the version, and gather the fields: from `data` where there is one.

    SillyTavern repeats V1's fields beside `data`; they only fill in for what `data` lacks.
    """
    data = raw.get("data")
    if isinstance(data, dict):
        nested = cast("dict[str, Any]", data)
        _refuse_lorebook(raw, nested)
        flat = {name: raw[name] for name in V1_FIELDS if raw.get(name) is not None}
        return _nested_spec(raw, nested, coercion), flat | nested
    fields = _flat_fields(raw)
    _refuse_lorebook(raw, raw)
    if "spec" in raw:
        coercion.warn("The card names a version but has no `data`: it was read as V1.")
    return "v1", fields


def _flat_fields(raw: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in raw.items() if name in CARD_FIELDS}
    for name, synonyms in FLAT_SYNONYMS.items():
        for synonym in synonyms:
            if synonym in raw and not fields.get(name):
                fields[name] = raw[synonym]
    return fields


def _refuse_lorebook(raw: dict[str, Any], fields: dict[str, Any]) -> None:
    """Raise for a lorebook, and for an object that has nothing of a card's."""
    talks = any(name in fields for name in V1_FIELDS if name not in {"name", "description"})
    holds_lore = "entries" in fields or raw.get("type") == "risu"
    if _spec_name(raw).startswith("lorebook") or (holds_lore and not talks):
        raise CardError("This is a lorebook, not a character card: import it as a lorebook.")
    names = {*CARD_FIELDS, *(synonym for group in FLAT_SYNONYMS.values() for synonym in group)}
    if names.isdisjoint(fields) and "spec" not in raw:
        raise CardError("This is no character card: it has none of a card's fields.")


def _spec_name(raw: dict[str, Any]) -> str:
    name = raw.get("spec")
    return name if isinstance(name, str) else ""


def _nested_spec(raw: dict[str, Any], data: dict[str, Any], coercion: Coercion) -> Spec:
    named = _SPEC_NAME.fullmatch(_spec_name(raw))
    guess: Spec = "v2" if V3_ONLY_FIELDS.isdisjoint(data) else "v3"
    if named is None:
        coercion.warn(f"The card names no known version: it was read as {guess.upper()}.")
        return guess
    number = int(named[1])
    if number < math.floor(NEWEST_VERSION):
        return "v2"
    version = _version(raw.get("spec_version"))
    if version is None:
        coercion.warn("`spec_version` is no number; the card was read as 3.0.")
    elif max(version, number) > NEWEST_VERSION:
        coercion.warn(
            f"The card is of version {max(version, number):g}, newer than {NEWEST_VERSION}: "
            "what is new in it is kept, but not used."
        )
    return "v3"


def _version(value: object) -> float | None:
    if not isinstance(value, int | float | str):
        return None
    try:
        version = float(str(value))
    except ValueError:
        return None
    return version if math.isfinite(version) else None


def _card(fields: Mapping[str, Any], coercion: Coercion) -> Card:
    def text(name: str) -> str:
        return coercion.text(name, fields.get(name, ""))

    def texts(name: str) -> list[str]:
        return coercion.texts(name, fields.get(name, []))

    extensions = coercion.mapping("extensions", fields.get("extensions", {}))
    _check_depth_prompt(extensions)
    return Card(
        name=_name(fields.get("name"), coercion),
        nickname=coercion.text("nickname", _optional(fields, "nickname", ""), NAME),
        description=text("description"),
        personality=text("personality"),
        scenario=text("scenario"),
        first_mes=text("first_mes"),
        mes_example=text("mes_example"),
        creator_notes=text("creator_notes"),
        creator_notes_multilingual=_multilingual(fields, coercion),
        system_prompt=text("system_prompt"),
        post_history_instructions=text("post_history_instructions"),
        alternate_greetings=texts("alternate_greetings"),
        group_only_greetings=coercion.texts(
            "group_only_greetings", _optional(fields, "group_only_greetings", [])
        ),
        tags=coercion.tags("tags", fields.get("tags", [])),
        creator=coercion.text("creator", fields.get("creator", ""), SHORT_TEXT),
        character_version=coercion.text(
            "character_version", fields.get("character_version", ""), SHORT_TEXT
        ),
        source=coercion.texts("source", _optional(fields, "source", [])),
        creation_date=coercion.seconds("creation_date", fields.get("creation_date")),
        modification_date=coercion.seconds("modification_date", fields.get("modification_date")),
        extensions=extensions,
        character_book=_book(fields.get("character_book"), coercion),
        assets=_assets(fields, coercion),
    )


def _optional(fields: Mapping[str, Any], name: str, default: object) -> object:
    """A field that may be absent: null, which many tools write for that, needs no warning."""
    value = fields.get(name)
    return default if value is None else value


def _name(value: object, coercion: Coercion) -> str:
    name = "" if value is None else coercion.text("name", value, NAME)
    if not name.strip():
        raise CardError("The card has no name: `name` is missing or blank.")
    return name


def _multilingual(fields: Mapping[str, Any], coercion: Coercion) -> dict[str, str]:
    field = "creator_notes_multilingual"
    notes = coercion.mapping(field, _optional(fields, field, {}))
    LIST_ITEMS.check(len(notes), f"`{field}`")
    return {
        coercion.text(field, language, SHORT_TEXT): coercion.text(field, note)
        for language, note in notes.items()
    }


def _book(value: object, coercion: Coercion) -> dict[str, Any] | None:
    return None if value is None else coercion.mapping("character_book", value) or None


def _assets(fields: Mapping[str, Any], coercion: Coercion) -> list[CardAsset]:
    entries = _optional(fields, "assets", [])
    if not isinstance(entries, list):
        coercion.warn("`assets` was no list and was left out.")
        return []
    described = cast("list[object]", entries)
    LIST_ITEMS.check(len(described), "`assets`")
    assets = [
        _asset(cast("dict[str, Any]", entry), coercion)
        for entry in described
        if isinstance(entry, dict)
    ]
    if len(assets) < len(described):
        coercion.warn("`assets` had entries that are no objects; they were left out.")
    return assets


def _asset(entry: dict[str, Any], coercion: Coercion) -> CardAsset:
    def short(name: str) -> str:
        return coercion.text(f"assets.{name}", entry.get(name, ""), SHORT_TEXT)

    # A `data:` URI holds a whole picture: only the file's own size bounds it.
    uri = coercion.text("assets.uri", entry.get("uri", ""), JSON_BYTES)
    if not uri.startswith("data:"):
        SHORT_TEXT.check(len(uri), "`assets.uri`")
    return CardAsset(type=short("type"), uri=uri, name=short("name"), ext=short("ext"))


def _check_depth_prompt(extensions: Mapping[str, Any]) -> None:
    stored: Any = extensions.get("depth_prompt")
    if isinstance(stored, dict):
        prompt = cast("dict[str, Any]", stored).get("prompt")
        if isinstance(prompt, str):
            TEXT.check(len(prompt), "`extensions.depth_prompt.prompt`")
