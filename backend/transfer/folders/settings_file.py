"""Read the parts of SillyTavern's `settings.json` that have a counterpart. Pure.

Members of an unexpected type are ignored, because years of versions and extensions wrote the file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

import msgspec

from backend.accounts.profile.settings import LoreOverrides, LoreStrategy
from backend.characters.cards.codec import Object, get_object
from backend.characters.cards.text import parse_json
from backend.characters.errors import CardError
from backend.chats.schemas import AuthorsNote
from backend.generation.model import Role
from backend.transfer.errors import TransferFileError

T = TypeVar("T")

UNUSED_POSITION: Final = 9
"""`persona_description_positions.NONE`: the description is not sent."""

_ROLES: Final[Sequence[Role]] = ("system", "user", "assistant")
_STRATEGIES: Final[Sequence[LoreStrategy]] = ("evenly", "character_first", "global_first")
_NOTE_POSITIONS: Final = ("after_prompt", "at_depth", "before_prompt")
"""SillyTavern's numbers of an author's note: in the prompt, in the chat, before the prompt."""

_LORE_MEMBERS: Final[Mapping[str, str]] = {
    "scan_depth": "world_info_depth",
    "budget_percent": "world_info_budget",
    "budget_cap": "world_info_budget_cap",
    "include_names": "world_info_include_names",
    "recursive": "world_info_recursive",
    "max_recursion_steps": "world_info_max_recursion_steps",
    "case_sensitive": "world_info_case_sensitive",
    "match_whole_words": "world_info_match_whole_words",
    "use_group_scoring": "world_info_use_group_scoring",
    "min_activations": "world_info_min_activations",
    "min_activations_depth": "world_info_min_activations_depth_max",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderPersona:
    """A persona of `power_user`. `file` is the name of its picture, and its identity.

    `character_files` and `group_ids` are the cards and groups that it is locked to.
    """

    file: str
    name: str
    description: str = ""
    position: int = 0
    lorebook: str = ""
    character_files: Sequence[str] = ()
    group_ids: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSettings:
    """The settings of a user folder.

    Args:
        personas: In the order of the file.
        default_persona: The picture file of the persona of new chats.
        tags: Names of tags by card file.
        global_books: Names of the books that are active everywhere.
        character_books: Names of more books by card file without extension.
        scripts: The regex scripts of the account, as written.
        scripted_cards: Card files with scripts that may run.
        notes: Author's notes by card file without extension.
        lore: The overrides of World Info's settings.
        left_out: Sentences about settings that are in use and have no counterpart.
    """

    personas: Sequence[FolderPersona] = ()
    default_persona: str = ""
    tags: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    global_books: Sequence[str] = ()
    character_books: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    scripts: Sequence[object] = ()
    scripted_cards: Sequence[str] = ()
    notes: Mapping[str, AuthorsNote] = field(default_factory=dict[str, AuthorsNote])
    lore: LoreOverrides = field(default_factory=LoreOverrides)
    left_out: Sequence[str] = ()


def read_settings_file(data: bytes) -> FolderSettings:
    """Read a file. CPU-bound. Raises `TransferFileError`."""
    try:
        parsed: object = parse_json(data)
    except CardError as error:
        raise TransferFileError(f"The settings cannot be read: {error.detail}") from error
    if not isinstance(parsed, dict):
        raise TransferFileError("The settings cannot be read: they are not a JSON object.")
    raw = cast("Object", parsed)
    power = get_object(raw, "power_user")
    more = get_object(raw, "extension_settings")
    world = get_object(get_object(raw, "world_info_settings"), "world_info")
    notes = get_object(more, "note")
    return FolderSettings(
        personas=_read_personas(raw, power),
        default_persona=_text(power.get("default_persona")) or _text(raw.get("user_avatar")),
        tags=_read_tags(raw),
        global_books=_texts(world.get("globalSelect")),
        character_books={
            _text(each.get("name")): _texts(each.get("extraBooks"))
            for each in _objects(world.get("charLore"))
        },
        scripts=_list(more.get("regex")),
        scripted_cards=_texts(more.get("character_allowed_regex")),
        notes=_read_notes(notes),
        lore=_read_lore(get_object(raw, "world_info_settings")),
        left_out=_describe_left_out(notes, get_object(more, "variables")),
    )


def _read_personas(raw: Object, power: Object) -> list[FolderPersona]:
    named = {file: _text(name) for file, name in get_object(power, "personas").items()}
    described = get_object(power, "persona_descriptions")
    current = _text(raw.get("user_avatar"))
    personas = [
        _read_persona(file, name or _text(raw.get("username")), get_object(described, file))
        for file, name in named.items()
    ]
    if current and current not in named:
        # Before a picture gets a persona's name, the account's name and description belong to it.
        own = {"description": power.get("persona_description")}
        own |= {"position": power.get("persona_description_position")}
        about = get_object(described, current) or own
        personas.append(_read_persona(current, _text(raw.get("username")), about))
    return personas


def _read_persona(file: str, name: str, about: Object) -> FolderPersona:
    connections = [
        (_text(each.get("type")), _text(each.get("id")))
        for each in _objects(about.get("connections"))
    ]
    position = about.get("position")
    return FolderPersona(
        file=file,
        name=name.strip() or "User",
        description=_text(about.get("description")),
        position=position if isinstance(position, int) else 0,
        lorebook=_text(about.get("lorebook")),
        character_files=[each for kind, each in connections if kind == "character"],
        group_ids=[each for kind, each in connections if kind == "group"],
    )


def _read_tags(raw: Object) -> dict[str, Sequence[str]]:
    names = {
        _text(tag.get("id")): _text(tag.get("name")).strip() for tag in _objects(raw.get("tags"))
    }
    return {
        owner: [names[each] for each in _texts(ids) if names.get(each)]
        for owner, ids in get_object(raw, "tag_map").items()
    }


def _read_notes(notes: Object) -> dict[str, AuthorsNote]:
    """Read the notes of characters. The defaults of new notes are their place among messages."""
    place = {
        "depth": notes.get("defaultDepth"),
        "interval": notes.get("defaultInterval"),
        "role": _pick(_ROLES, notes.get("defaultRole")),
        "position": _pick(_NOTE_POSITIONS, notes.get("defaultPosition")),
        "scan": notes.get("allowWIScan"),
    }
    given = {name: value for name, value in place.items() if value is not None}
    found: dict[str, AuthorsNote] = {}
    for each in _objects(notes.get("chara")):
        prompt = _text(each.get("prompt"))
        if each.get("useChara") is True and prompt.strip():
            with contextlib.suppress(msgspec.ValidationError):
                note = msgspec.convert({"text": prompt, **given}, AuthorsNote)
                found[_text(each.get("name"))] = note
    return found


def _read_lore(world: Object) -> LoreOverrides:
    values = {
        name: world[member]
        for name, member in _LORE_MEMBERS.items()
        if world.get(member) is not None
    }
    if strategy := _pick(_STRATEGIES, world.get("world_info_character_strategy")):
        values["strategy"] = strategy
    for name in list(values):
        try:
            msgspec.convert({name: values[name]}, LoreOverrides)
        except msgspec.ValidationError:
            del values[name]
    return msgspec.convert(values, LoreOverrides)


def _describe_left_out(notes: Object, variables: Object) -> list[str]:
    sentences: list[str] = []
    if _text(notes.get("default")).strip():
        sentences.append(
            "The default author's note was left out: Talekeeper has notes of chats and characters."
        )
    if count := len(get_object(variables, "global")):
        sentences.append(
            f"Global variables ({count:,}) were left out: Talekeeper has variables of chats only."
        )
    return sentences


def _pick(values: Sequence[T], number: object) -> T | None:
    if isinstance(number, bool) or not isinstance(number, int):
        return None
    return values[number] if 0 <= number < len(values) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    return [each for each in _list(value) if isinstance(each, str)]


def _objects(value: object) -> list[Object]:
    return [cast("Object", each) for each in _list(value) if isinstance(each, dict)]
