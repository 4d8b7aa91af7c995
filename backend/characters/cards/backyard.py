"""Characters of Backyard AI: `character.json`, older exports, and archives (`.byaf`).

Source: https://github.com/ahoylabs/byaf (specs/v1).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any, Final, cast

from backend.characters.cards.codec import Object, list_names, get_object, to_text, omit
from backend.characters.cards.model import JSON_BYTES
from backend.characters.cards.text import check_structure, parse_json
from backend.characters.cards.translation import Translation, build_translation, is_set, take_fields
from backend.characters.errors import CardError

MANIFEST: Final = "manifest.json"

_NAMES: Final = {
    "name": "displayName aiDisplayName name aiName",
    "nickname": "name aiName",
    "description": "persona aiPersona",
    "scenario": "scenario narrative",
    "first_mes": "firstMessage",
    "mes_example": "customDialogue",
    "system_prompt": "basePrompt formattingInstructions",
}
_KNOWN: Final = frozenset(
    {"$schema", "schemaVersion", "id", "createdAt", "updatedAt", "hubCharId", "images"}
)
_SPEAKER: Final = re.compile(r"#\{(character|user)\}:", re.IGNORECASE)
_NAME: Final = re.compile(r"(?<!\{)\{(character|user)\}(?!\})", re.IGNORECASE)
_MACROS: Final = {"character": "{{char}}", "user": "{{user}}"}


def translate_backyard(raw: Object) -> Translation | None:
    """Translate a `character.json`, or a character of an older export."""
    is_own = isinstance(raw.get("persona"), str) and "displayName" in raw
    is_older = not raw.keys().isdisjoint({"aiName", "aiDisplayName", "aiPersona"})
    if not is_own and not is_older and "loreItems" not in raw:
        return None
    missing = len(_objects(raw.get("images")))
    warnings = [f"Its pictures are not in this file: {missing:,}."] if missing else []
    return _build(raw, {}, warnings)


def translate_archive(files: Mapping[str, bytes]) -> tuple[Translation, dict[str, bytes]]:
    """Translate an archive that has a manifest; return its character, and its pictures by path.

    Raises:
        CardError: The manifest names no character that the archive has, or a file is broken.
    """
    manifest = _read(files, MANIFEST)
    paths = _paths(manifest.get("characters"), files)
    if not paths:
        raise CardError(
            "The archive has a Backyard manifest (.byaf), but none of the characters that it names."
        )
    stories = _paths(manifest.get("scenarios"), files)
    # Together as strict as for one file.
    texts = b",".join(files[path] for path in dict.fromkeys([paths[0], *stories]))
    JSON_BYTES.check(len(texts), "The archive")
    check_structure(texts)
    raw = _read(files, paths[0])
    scenarios = [_read(files, path) for path in stories]
    warnings: list[str] = []
    if others := len(paths) - 1:
        warnings.append(f"Only its first character was imported: it has {others:,} more.")
    if chats := sum(bool(scenario.get("messages")) for scenario in scenarios):
        warnings.append(f"The messages of its chats are left out: {chats:,}.")
    pictures: dict[str, bytes] = {}
    assets: list[Object] = []
    for image in _objects(raw.get("images")):
        path = posixpath.normpath(
            posixpath.join(posixpath.dirname(paths[0]), to_text(image.get("path")))
        )
        if path in files and path not in pictures:
            pictures[path] = files[path]
            name = "main" if not assets else to_text(image.get("label")) or f"{len(assets)}"
            kind = path.rpartition(".")[2].lower()
            assets.append({"type": "icon", "uri": f"embeded://{path}", "name": name, "ext": kind})
    author = get_object(manifest, "author")
    more: Object = {"assets": assets, "creator": to_text(author.get("name"))}
    more["creator_notes"] = to_text(author.get("backyardURL"))
    return _build(raw, more | _scenario_fields(scenarios, warnings), warnings), pictures


def _scenario_fields(scenarios: list[Object], warnings: list[str]) -> Object:
    """Return the fields of the first scenario. Of the others, greetings are alternate ones."""
    if not scenarios:
        return {}
    first, *others = scenarios
    examples = [
        _replace_macros(each.get("text")) for each in _objects(first.get("exampleMessages"))
    ]
    greetings = [_greeting(each) for each in others]
    unused = {
        member
        for each in others
        for member in ("narrative", "formattingInstructions", "exampleMessages")
        if is_set(each.get(member)) and each[member] != first.get(member)
    }
    if unused:
        warnings.append(
            f"Of its other scenarios only greetings are used: not {list_names(sorted(unused))}."
        )
    used = {"exampleMessages", "firstMessages", "narrative", "formattingInstructions", "messages"}
    known = {"$schema", "schemaVersion", "title"}
    if settings := [each for each in omit(first, used | known) if is_set(first[each])]:
        warnings.append(f"Of its scenario, not used here: {list_names(settings)}.")
    return {
        "scenario": _replace_macros(first.get("narrative")),
        "first_mes": _greeting(first),
        "mes_example": "\n".join(f"<START>\n{each}" for each in examples if each),
        "system_prompt": _replace_macros(first.get("formattingInstructions")),
        "alternate_greetings": [each for each in greetings if each],
        "extensions": {
            "backyard": {"scenarios": [omit(each, {"messages"}) for each in scenarios]}
        },
    }


def _build(raw: Object, more: Object, warnings: list[str]) -> Translation:
    data, rest = take_fields(raw, _NAMES)
    for name in data.keys() - {"name", "nickname"}:
        data[name] = _replace_macros(data[name])
    if to_text(data.get("nickname")).casefold() == to_text(data.get("name")).casefold():
        data.pop("nickname", None)
    lore: list[Object] = [
        {
            "keys": [
                key.strip() for key in _replace_macros(each.get("key")).split(",") if key.strip()
            ],
            "content": _replace_macros(each.get("value")),
            "enabled": True,
            "insertion_order": place,
            "extensions": {},
        }
        for place, each in enumerate(_objects(rest.pop("loreItems", None)))
    ]
    if lore:
        data["character_book"] = {"entries": lore}
    data |= {name: value for name, value in more.items() if is_set(value)}
    return build_translation("Backyard AI", "backyard", data, rest, known=_KNOWN, warnings=warnings)


def _greeting(scenario: Object) -> str:
    found = _objects(scenario.get("firstMessages"))
    return _replace_macros(found[0].get("text")) if found else ""


def _replace_macros(value: Any) -> str:
    """Replace Backyard's placeholders by the macros of cards."""

    def macro(found: re.Match[str]) -> str:
        return _MACROS[found[1].lower()]

    text = _SPEAKER.sub(lambda found: f"{macro(found)}:", to_text(value))
    return _NAME.sub(macro, text)


def _objects(value: object) -> list[Object]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Object", each) for each in items if isinstance(each, dict)]


def _paths(value: object, files: Mapping[str, bytes]) -> list[str]:
    listed = cast("list[object]", value) if isinstance(value, list) else []
    named = [each for each in listed if isinstance(each, str) and each in files]
    return list(dict.fromkeys(named))


def _read(files: Mapping[str, bytes], path: str) -> Object:
    try:
        value: Any = parse_json(files[path])
    except CardError as error:
        if error.extra:
            raise
        raise CardError(f"{path[:200]}: {error.detail}") from error
    return cast("Object", value) if isinstance(value, dict) else {}
