"""Recognise files that people upload as something else, and say where they belong.

The marks are members that only one kind of file has. A file without such marks is left to its
reader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from backend.characters.cards.codec import Object, get_object
from backend.characters.cards.fields import SPEECH

CARD: Final = "a character card"
LOREBOOK: Final = "a lorebook"

AS_LOREBOOK: Final = "Import it as a lorebook"
_AS_CHAT: Final = "Import it as a chat."
_NOT_USED: Final = "It cannot be imported."


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file: its name, advice for the user, and a test for its marks."""

    name: str
    advice: str
    has_marks: Callable[[Object], bool]

    def explain(self, wanted: str) -> str:
        """Return the sentences that refuse such a file as `wanted`."""
        return f"This is {self.name}, not {wanted}. {self.advice}"


def find_kind(value: object) -> FileKind | None:
    """Return the kind of a parsed JSON value, or None if its marks are not known.

    A list is of the kind of its first object.
    """
    values = cast("list[object]", value) if isinstance(value, list) else [value]
    raw = next((cast("Object", each) for each in values if isinstance(each, dict)), None)
    kinds = KINDS if values is not value else (_LORE_ENTRIES, *KINDS)
    return next((kind for kind in kinds if raw is not None and kind.has_marks(raw)), None)


def is_card(raw: Object) -> bool:
    """True if an object names a version of the card format, or has `data` as such cards have."""
    spec = raw.get("spec")
    if isinstance(spec, str) and spec.strip().lower().startswith("chara_card"):
        return True
    return isinstance(raw.get("data"), dict) and not _is_lorebook(raw)


def _has(*members: str) -> Callable[[Object], bool]:
    return lambda raw: raw.keys() >= set(members)


def _has_any(*members: str) -> Callable[[Object], bool]:
    return lambda raw: not raw.keys().isdisjoint(members)


def _says(member: str, *values: str) -> Callable[[Object], bool]:
    return lambda raw: isinstance(raw.get(member), str) and raw[member] in values


def _is_lorebook(raw: Object) -> bool:
    spec = raw.get("spec")
    if isinstance(spec, str) and spec.startswith("lorebook"):
        return True
    fields = get_object(raw, "data") or raw
    holds_lore = "entries" in fields or "lorebookVersion" in fields or _says("type", "risu")(raw)
    return holds_lore and fields.keys().isdisjoint(SPEECH)


def _is_lore_entry(raw: Object) -> bool:
    keys = not raw.keys().isdisjoint({"key", "keys", "keywords", "keysecondary"})
    return keys and not raw.keys().isdisjoint({"content", "entry", "text"})


def _is_lore_node(raw: Object) -> bool:
    definition = get_object(get_object(raw, "node") or raw, "definition")
    says: Any = definition.get("first_message") or definition.get("personality")
    return bool(definition.get("embedded_lorebook")) and not says


def _is_chat(raw: Object) -> bool:
    has_messages = isinstance(raw.get("messages"), list) and not raw.keys() & {"schemaVersion"}
    return (
        "chat_metadata" in raw
        or _has("user_name", "character_name")(raw)
        or _has("mes", "is_user")(raw)
        or _has("internal", "visible")(raw)
        or "histories" in raw
        or _says("type", "risuChat", "risuAllChats")(raw)
        or _says("format", "talekeeper-chat")(raw)
        or (has_messages and not raw.keys() & {"persona", "first_mes", "data"})
    )


def _is_preset(raw: Object) -> bool:
    return isinstance(raw.get("prompts"), list) and not raw.keys().isdisjoint(
        {"prompt_order", "temperature", "openai_max_tokens"}
    )


def _is_group(raw: Object) -> bool:
    return isinstance(raw.get("members"), list) and not raw.keys().isdisjoint(
        {"chat_id", "chats", "activation_strategy", "generation_mode", "disabled_members"}
    )


def _is_story(raw: Object) -> bool:
    return "gamestarted" in raw or isinstance(raw.get("worldinfo"), list)


_LORE_ENTRIES: Final = FileKind("a list of lorebook entries", f"{AS_LOREBOOK}.", _is_lore_entry)
KINDS: Final[tuple[FileKind, ...]] = (
    FileKind("a lorebook", f"{AS_LOREBOOK}.", _is_lorebook),
    FileKind("a lorebook of Chub", f"{AS_LOREBOOK}.", _is_lore_node),
    FileKind(
        "a module of RisuAI",
        f"{AS_LOREBOOK}: its lore is read.",
        _says("type", "risuModule"),
    ),
    FileKind(
        "a group of SillyTavern",
        "Import the cards of its members, and open a chat with all of them.",
        _is_group,
    ),
    FileKind(
        "a story of KoboldAI",
        f"{_AS_CHAT} {AS_LOREBOOK} as well: its world info is read.",
        _is_story,
    ),
    FileKind(
        "a story of NovelAI",
        f"{AS_LOREBOOK}: its lorebook is read.",
        _has_any("scenarioVersion", "storyContainerVersion"),
    ),
    FileKind(
        "a campaign of Talekeeper",
        "Import the whole zip as a campaign.",
        _says("format", "talekeeper-campaign"),
    ),
    FileKind("a chronicle", "Import it as a chronicle.", _says("format", "talekeeper-chronicle")),
    FileKind("a chat", _AS_CHAT, _is_chat),
    FileKind("a chat-completion preset", "Import it as a preset.", _is_preset),
    FileKind(
        "a preset of RisuAI",
        _NOT_USED,
        lambda raw: _has("mainPrompt", "jailbreak")(raw) or _has("promptTemplate", "aiModel")(raw),
    ),
    FileKind("a preset of Agnai", _NOT_USED, _says("kind", "gen-setting")),
    FileKind("a preset for text completion", _NOT_USED, _has("temp", "rep_pen")),
    FileKind("an instruct template", _NOT_USED, _has("input_sequence", "output_sequence")),
    FileKind("a context template", _NOT_USED, _has_any("story_string")),
    FileKind("a regex script", "Import it as a regex script.", _has("scriptName", "findRegex")),
    FileKind("a set of quick replies", _NOT_USED, _has_any("qrList", "quickReplySlots")),
    FileKind("a theme of SillyTavern", _NOT_USED, _has("main_text_color", "blur_strength")),
    FileKind(
        "a backup of personas",
        "Make personas on their own page.",
        _has("personas", "persona_descriptions"),
    ),
    FileKind("settings of SillyTavern", _NOT_USED, _has("power_user", "extension_settings")),
    FileKind(
        "the manifest of a Backyard archive",
        "Import the archive (.byaf) itself.",
        _has("schemaVersion", "characters", "scenarios"),
    ),
    FileKind(
        "a scenario of a Backyard archive",
        "Import the archive (.byaf) itself.",
        lambda raw: (
            "schemaVersion" in raw
            and not raw.keys().isdisjoint({"firstMessages", "exampleMessages", "narrative"})
        ),
    ),
)
"""The first kind with matching marks is used."""
