"""Characters in the own formats of Agnai, Chub, Character.AI and RisuAI.

Sources: https://github.com/agnaistic/agnai (common/types/library.ts),
https://github.com/kwaroran/RisuAI (src/ts/storage/database.svelte.ts); those of Chub and of
Character.AI have no published description.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from backend.characters.cards.translation import translate_backyard
from backend.characters.cards.codec import Object, list_names, get_object, to_text, omit
from backend.characters.cards.fields import FLAT_FIELDS
from backend.characters.cards.translation import Translation, build_translation, is_set, take_fields

_WRAPPERS: Final = ("character", "char", "card")
"""Members that some programs put a whole character into."""

_OF_CARDS: Final = frozenset({"first_mes", "mes_example"})
"""Members of the card format that no other program has."""

_DATES: Final = frozenset(
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
            if beside := omit(raw, {wrapper, "version"}):
                found.warnings.append(
                    f"Left out, because it is beside the character: {list_names(beside)}."
                )
            return found
    return _translate(raw)


def _translate(raw: Object) -> Translation | None:
    if not raw.keys().isdisjoint(_OF_CARDS):
        return None
    found = (each(raw) for each in _TRANSLATORS)
    return next((each for each in found if each is not None), None)


def _translate_agnai(raw: Object) -> Translation | None:
    persona: Any = raw.get("persona")
    is_own = raw.get("kind") in ("character", "library-character")
    if not get_object(raw, "persona") and not (is_own and "greeting" in raw):
        return None
    data, rest = take_fields(raw, _AGNAI)
    text = _persona_text(cast("Object", persona)) if isinstance(persona, dict) else persona
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
    return build_translation("Agnai", "agnai", data, rest, known=_DATES | {"persona"})


def _persona_text(persona: Object) -> str:
    """Return an Agnai persona as lines: free text first, then `attribute: value, value`."""
    attributes = get_object(persona, "attributes")
    lines = _texts(persona.get("text")) + _texts(attributes.get("text"))
    for name, value in attributes.items():
        if name != "text" and (said := ", ".join(_texts(value))):
            lines.append(f"{name}: {said}")
    return "\n".join(lines)


def _texts(value: object) -> list[str]:
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
    beside = "What its page says beside the character is left out."
    return build_translation("Chub", "chub", data, rest, known=_DATES, warnings=[beside])


def _translate_character_ai(raw: Object) -> Translation | None:
    if raw.keys().isdisjoint({"external_id", "participant__name", "definition"}):
        return None
    data, rest = take_fields(raw, _CHARACTER_AI)
    return build_translation(
        "Character.AI", "character_ai", data, rest, known=_DATES | {"external_id", "identifier"}
    )


def _translate_risu(raw: Object) -> Translation | None:
    lore = raw.get("globalLore")
    if not isinstance(lore, list) and not raw.keys() >= {"desc", "firstMessage"}:
        return None
    data, rest = take_fields(raw, _RISU)
    rest.pop("globalLore", None)
    if lore:
        data["character_book"] = {"type": "risu", "data": lore}
    return build_translation("RisuAI", "risuai", data, rest, known=_DATES | {"chaId", "type"})


_TRANSLATORS: Final[tuple[Callable[[Object], Translation | None], ...]] = (
    _translate_agnai,
    translate_backyard,
    _translate_chub,
    _translate_character_ai,
    _translate_risu,
)
