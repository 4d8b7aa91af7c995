"""A card and its source, joined into the object of a card file.

What the model knows comes from the card. What it does not know comes back from the source: at
the top, in `data`, in `extensions`, and in each asset's entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec

from backend.characters.cards.fields import (
    CARD_FIELDS,
    FLAT_SYNONYMS,
    KNOWN_EXTENSIONS,
    OPTIONAL_FIELDS,
    REQUIRED_FIELDS,
)
from backend.characters.cards.model import Card

ExportSpec = Literal["v2", "v3"]

_ENVELOPE = {"spec", "spec_version", "data"}
_VERSIONS = {"v2": ("chara_card_v2", "2.0"), "v3": ("chara_card_v3", "3.0")}
_SYNONYMS = {synonym for group in FLAT_SYNONYMS.values() for synonym in group}
_MIRRORED_EXTENSIONS = {"talkativeness", "fav"}


def card_object(card: Card, raw: Mapping[str, Any], spec: ExportSpec) -> dict[str, Any]:
    """The JSON object of `card` in version 2 or 3.

    V3's own fields are written into V2 too where they say something: V2's readers pass over
    them, and nothing is lost between tools that know both.
    """
    nested = _object(raw.get("data"))
    source = raw if nested is None else nested
    data = _known(card, source, spec)
    data |= {name: value for name, value in (nested or {}).items() if name not in CARD_FIELDS}
    name, version = _VERSIONS[spec]
    beside = _flat_rest(raw) if nested is None else _nested_rest(raw, data)
    return {"spec": name, "spec_version": version, "data": data, **beside}


def with_changes(card: Card, before: Card, now: Card) -> Card:
    """`card` with the fields, and the extensions, that differ between `before` and `now`."""
    names = Card.__struct_fields__
    changed = {
        name: getattr(now, name) for name in names if getattr(before, name) != getattr(now, name)
    }
    if "extensions" in changed:
        then = before.extensions
        kept = {k: v for k, v in card.extensions.items() if k in now.extensions or k not in then}
        new = {k: v for k, v in now.extensions.items() if k not in then or then[k] != v}
        changed["extensions"] = kept | new
    return msgspec.structs.replace(card, **changed)


def _known(card: Card, source: Mapping[str, Any], spec: ExportSpec) -> dict[str, Any]:
    values = cast("dict[str, Any]", msgspec.to_builtins(card))
    values["extensions"] = _extensions(values["extensions"], source)
    values["assets"] = _assets(values["assets"], source)
    data = {name: values[name] for name in REQUIRED_FIELDS}
    for name in OPTIONAL_FIELDS:
        required = spec == "v3" and name == "group_only_greetings"
        if values[name] or required or (name in source and values[name] is not None):
            data[name] = values[name]
    return data


def _extensions(own: dict[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """Other tools' extensions come back; a known one that was taken away stays away."""
    before = _object(source.get("extensions")) or {}
    kept = {name: value for name, value in before.items() if name not in KNOWN_EXTENSIONS}
    return kept | own


def _assets(own: list[dict[str, Any]], source: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each asset over its former entry, which is known by its URI, name and type."""
    listed = source.get("assets")
    entries = cast("list[object]", listed) if isinstance(listed, list) else []
    former = [entry for entry in map(_object, entries) if entry is not None]
    by_identity = {_identity(entry): entry for entry in former}
    return [{**by_identity.get(_identity(asset), {}), **asset} for asset in own]


def _identity(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(name, "")) for name in ("type", "uri", "name"))


def _flat_rest(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What a V1 card had besides; its fields have moved into `data`."""
    known = CARD_FIELDS | _SYNONYMS | _ENVELOPE
    return {name: value for name, value in raw.items() if name not in known}


def _nested_rest(raw: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """What stood beside `data`.

    SillyTavern repeats fields there, for readers of V1: they follow what `data` says now.
    """
    extensions = data["extensions"]
    mirrors = {
        **{name: value for name, value in data.items() if name in CARD_FIELDS},
        **{name: extensions[name] for name in _MIRRORED_EXTENSIONS if name in extensions},
        "creatorcomment": data["creator_notes"],
    }
    beside = {name: value for name, value in raw.items() if name not in _ENVELOPE}
    return {name: mirrors.get(name, value) for name, value in beside.items()}


def _object(value: object) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
