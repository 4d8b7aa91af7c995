"""Translate characters of Agnai, Backyard, Chub, Character.AI and RisuAI into cards.

Sources: https://github.com/agnaistic/agnai (common/types/library.ts),
https://github.com/kwaroran/RisuAI (src/ts/storage/database.svelte.ts),
https://github.com/ahoylabs/byaf (specs/v1). Chub and Character.AI publish no description.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from backend.characters.cards.codec import Object, get_object, list_names, omit, to_text
from backend.characters.cards.fields import FLAT_FIELDS
from backend.characters.cards.model import JSON_BYTES
from backend.characters.cards.text import check_structure, parse_json
from backend.characters.errors import CardError

CHAT_MEMBERS: Final = frozenset({"chats", "Chat", "chatPage", "messages"})
"""Members that contain whole chats. They are left out, because they can be larger than a card."""


@dataclass(slots=True)
class Translation:
    """A translated card. `card` is an object of version 3 of the card format.

    Members without a field are kept in the card's `extensions`.
    """

    card: Object
    warnings: list[str] = field(default_factory=list[str])


def is_set(value: Any) -> bool:
    """True unless a value is null, false or empty."""
    return value not in (None, "", False, [], {})


def take_fields(raw: Mapping[str, Any], names: Mapping[str, str]) -> tuple[Object, Object]:
    """Return the card's fields of an object, and its other members that are set.

    `names` lists, by field of the card, the object's members for it, separated by spaces. The first
    one that is set is used.
    """
    data: Object = {}
    used: set[str] = set()
    for name, members in names.items():
        member = next((each for each in members.split() if is_set(raw.get(each))), None)
        if member is not None:
            data[name] = raw[member]
            used.add(member)
    rest = {member: value for member, value in raw.items() if member not in used and is_set(value)}
    return data, rest


def build_translation(
    program: str,
    key: str,
    data: Object,
    rest: Mapping[str, Any],
    *,
    known: Collection[str] = (),
    warnings: Iterable[str] = (),
) -> Translation:
    """Build a translation from the card's fields and the `rest` of the object.

    The rest is kept in the card's `extensions` under `key`. Members in `known`, such as ids and
    dates, need no warning.
    """
    kept = omit(rest, CHAT_MEMBERS)
    found = [f"It was translated from {program}."]
    if unknown := [member for member in kept if member not in known]:
        found.append(f"Not used here, and kept for the export: {list_names(unknown)}.")
    if chats := rest.keys() & CHAT_MEMBERS:
        found.append(f"Its chats are left out: {list_names(sorted(chats))}.")
    if kept:
        extensions = get_object(data, "extensions")
        own = {**kept, **get_object(extensions, key)}
        data = {**data, "extensions": {**extensions, key: own}}
    card = {"spec": "chara_card_v3", "spec_version": "3.0", "data": data}
    return Translation(card, [*found, *warnings])


MANIFEST: Final = "manifest.json"

_BACKYARD: Final = {
    "name": "displayName aiDisplayName name aiName",
    "nickname": "name aiName",
    "description": "persona aiPersona",
    "scenario": "scenario narrative",
    "first_mes": "firstMessage",
    "mes_example": "customDialogue",
    "system_prompt": "basePrompt formattingInstructions",
}
_BACKYARD_RECORD_MEMBERS: Final = frozenset(
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
    missing = len(_list_objects(raw.get("images")))
    warnings = [f"Its pictures are not in this file: {missing:,}."] if missing else []
    return _build_backyard(raw, {}, warnings)


def translate_archive(files: Mapping[str, bytes]) -> tuple[Translation, dict[str, bytes]]:
    """Translate a Backyard archive with a manifest into a card and its pictures by path."""
    manifest = _read(files, MANIFEST)
    paths = _list_paths(manifest.get("characters"), files)
    if not paths:
        raise CardError(
            "The archive has a Backyard manifest (.byaf), but none of the characters that it names."
        )
    stories = _list_paths(manifest.get("scenarios"), files)
    # The limits of a single file apply to all of them together.
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
    for image in _list_objects(raw.get("images")):
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
    return _build_backyard(raw, more | _read_scenarios(scenarios, warnings), warnings), pictures


def _read_scenarios(scenarios: list[Object], warnings: list[str]) -> Object:
    """Return the fields of the first scenario. Greetings of the others become alternate ones."""
    if not scenarios:
        return {}
    first, *others = scenarios
    examples = [
        _replace_macros(each.get("text")) for each in _list_objects(first.get("exampleMessages"))
    ]
    greetings = [_get_greeting(each) for each in others]
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
        "first_mes": _get_greeting(first),
        "mes_example": "\n".join(f"<START>\n{each}" for each in examples if each),
        "system_prompt": _replace_macros(first.get("formattingInstructions")),
        "alternate_greetings": [each for each in greetings if each],
        "extensions": {"backyard": {"scenarios": [omit(each, {"messages"}) for each in scenarios]}},
    }


def _build_backyard(raw: Object, more: Object, warnings: list[str]) -> Translation:
    data, rest = take_fields(raw, _BACKYARD)
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
        for place, each in enumerate(_list_objects(rest.pop("loreItems", None)))
    ]
    if lore:
        data["character_book"] = {"entries": lore}
    data |= {name: value for name, value in more.items() if is_set(value)}
    return build_translation(
        "Backyard AI", "backyard", data, rest, known=_BACKYARD_RECORD_MEMBERS, warnings=warnings
    )


def _get_greeting(scenario: Object) -> str:
    found = _list_objects(scenario.get("firstMessages"))
    return _replace_macros(found[0].get("text")) if found else ""


def _replace_macros(value: Any) -> str:
    """Replace Backyard's placeholders with the macros of cards."""

    def macro(found: re.Match[str]) -> str:
        return _MACROS[found[1].lower()]

    text = _SPEAKER.sub(lambda found: f"{macro(found)}:", to_text(value))
    return _NAME.sub(macro, text)


def _list_objects(value: object) -> list[Object]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Object", each) for each in items if isinstance(each, dict)]


def _list_paths(value: object, files: Mapping[str, bytes]) -> list[str]:
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


_WRAPPERS: Final = ("character", "char", "card")
"""Members that some programs put a whole character into."""

_CARD_MEMBERS: Final = frozenset({"first_mes", "mes_example"})
"""Members that only the card format has."""

_RECORD_MEMBERS: Final = frozenset(
    {"_id", "id", "kind", "userId", "createdAt", "updatedAt", "deletedAt", "favorite", "version"}
)
"""Members about the record, not about the character."""

_AGNAI: Final = {
    "name": "name",
    "creator_notes": "description",
    "scenario": "scenario",
    "first_mes": "greeting",
    "mes_example": "sampleChat",
    "alternate_greetings": "alternateGreetings",
    "system_prompt": "systemPrompt",
    "post_history_instructions": "postHistoryInstructions",
    "character_book": "characterBook",
    "tags": "tags",
    "creator": "creator",
    "character_version": "characterVersion",
    "extensions": "extensions",
}
_CHUB: Final = {
    "name": "name",
    "description": "personality",
    "personality": "tavern_personality",
    "scenario": "scenario",
    "first_mes": "first_message",
    "mes_example": "example_dialogs",
    "creator_notes": "description",
    "system_prompt": "system_prompt",
    "post_history_instructions": "post_history_instructions",
    "alternate_greetings": "alternate_greetings",
    "character_book": "embedded_lorebook",
    "extensions": "extensions",
}
_CHARACTER_AI: Final = {
    "name": "name participant__name",
    "description": "description",
    "first_mes": "greeting",
    "mes_example": "definition",
    "creator_notes": "title",
    "creator": "user__username",
}
_RISU: Final = {
    "name": "name",
    "nickname": "nickname",
    "description": "desc",
    "personality": "personality",
    "scenario": "scenario",
    "first_mes": "firstMessage",
    "mes_example": "exampleMessage",
    "creator_notes": "creatorNotes",
    "system_prompt": "systemPrompt",
    "post_history_instructions": "postHistoryInstructions replaceGlobalNote",
    "alternate_greetings": "alternateGreetings",
    "tags": "tags",
    "creator": "creator",
    "character_version": "characterVersion",
}


def translate(raw: Object) -> Translation | None:
    """Translate an object that another program wrote, or return None if it is not recognised."""
    for wrapper in _WRAPPERS:
        inner = raw.get(wrapper)
        if isinstance(inner, dict) and FLAT_FIELDS.members.isdisjoint(raw):
            found = _translate(cast("Object", inner)) or Translation(cast("Object", inner))
            if outside := omit(raw, {wrapper, "version"}):
                found.warnings.append(
                    f"Left out, because it is outside the character: {list_names(outside)}."
                )
            return found
    return _translate(raw)


def _translate(raw: Object) -> Translation | None:
    if not raw.keys().isdisjoint(_CARD_MEMBERS):
        return None
    found = (each(raw) for each in _TRANSLATORS)
    return next((each for each in found if each is not None), None)


def _translate_agnai(raw: Object) -> Translation | None:
    persona: Any = raw.get("persona")
    is_own = raw.get("kind") in ("character", "library-character")
    if not get_object(raw, "persona") and not (is_own and "greeting" in raw):
        return None
    data, rest = take_fields(raw, _AGNAI)
    text = _format_persona(cast("Object", persona)) if isinstance(persona, dict) else persona
    if is_set(text):
        data["description"] = text
    elif is_set(raw.get("description")):
        data["description"] = data.pop("creator_notes")
    insert = get_object(rest, "insert")
    if is_set(insert.get("prompt")):
        prompt = {"prompt": insert["prompt"], "depth": insert.get("depth", 4), "role": "system"}
        data["extensions"] = {**get_object(data, "extensions"), "depth_prompt": prompt}
        rest.pop("insert")
    avatar = rest.get("avatar")
    if isinstance(avatar, str) and avatar.startswith("data:"):
        data["assets"] = [{"type": "icon", "uri": avatar, "name": "main", "ext": "png"}]
        rest.pop("avatar")
    return build_translation("Agnai", "agnai", data, rest, known=_RECORD_MEMBERS | {"persona"})


def _format_persona(persona: Object) -> str:
    """Return an Agnai persona as lines: free text first, then `attribute: value, value`."""
    attributes = get_object(persona, "attributes")
    lines = _list_texts(persona.get("text")) + _list_texts(attributes.get("text"))
    for name, value in attributes.items():
        if name != "text" and (texts := ", ".join(_list_texts(value))):
            lines.append(f"{name}: {texts}")
    return "\n".join(lines)


def _list_texts(value: object) -> list[str]:
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    return [text for each in items if (text := to_text(each).strip())]


def _translate_chub(raw: Object) -> Translation | None:
    node = get_object(raw, "node") or raw
    definition = get_object(node, "definition")
    if not definition:
        return None
    data, rest = take_fields(definition, _CHUB)
    if isinstance(node.get("topics"), list):
        data["tags"] = node["topics"]
    if isinstance(node.get("fullPath"), str):
        data["creator"] = node["fullPath"].partition("/")[0]
    left_out = "Other data of its page is left out."
    return build_translation("Chub", "chub", data, rest, known=_RECORD_MEMBERS, warnings=[left_out])


def _translate_character_ai(raw: Object) -> Translation | None:
    if raw.keys().isdisjoint({"external_id", "participant__name", "definition"}):
        return None
    data, rest = take_fields(raw, _CHARACTER_AI)
    return build_translation(
        "Character.AI",
        "character_ai",
        data,
        rest,
        known=_RECORD_MEMBERS | {"external_id", "identifier"},
    )


def _translate_risu(raw: Object) -> Translation | None:
    lore = raw.get("globalLore")
    if not isinstance(lore, list) and not raw.keys() >= {"desc", "firstMessage"}:
        return None
    data, rest = take_fields(raw, _RISU)
    rest.pop("globalLore", None)
    if lore:
        data["character_book"] = {"type": "risu", "data": lore}
    return build_translation(
        "RisuAI", "risuai", data, rest, known=_RECORD_MEMBERS | {"chaId", "type"}
    )


_TRANSLATORS: Final[tuple[Callable[[Object], Translation | None], ...]] = (
    _translate_agnai,
    translate_backyard,
    _translate_chub,
    _translate_character_ai,
    _translate_risu,
)
