"""Read the chats of Agnai.

Agnai exports the path of a chat as `{name, greeting, sampleChat, scenario, treeLeafId, messages}`.
A message has `_id`, `parent`, `msg` (the text), `createdAt`, `handle` and `name` (who speaks),
`userId` or `characterId`, and `ooc` (out of character: the model does not get it). The ids of
messages are cut to eight characters, that of `treeLeafId` is not. `name` is always `Exported`.

The stores of an installation are lists with the same messages: `characters`, `chats` (`name`,
`characterId`, `characters` as `{id: true}`, `scenario`, `treeLeafId`), and `messages` with their
`chatId`, or a list `messages-ID` for each chat. A file with these lists is read with its
characters. Messages of the same parent are swipes of each other, and so are `retries`.

Left out: branches beyond the swipes, pictures, voices, presets, memory books, and members that
describe the state of a message.

Source: https://github.com/agnaistic/agnai (web/pages/Chat/ChatExport.tsx,
web/store/data/storage.ts, common/types/schema.ts).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any, BinaryIO, Final, cast

from backend.characters.cards.codec import Notes, Object
from backend.generation.model import Role
from backend.transfer.errors import TransferFileError
from backend.transfer.formats.bundles import BundleFormat, CharacterBundle
from backend.transfer.formats.chat_file import (
    ChatFormat,
    ChatHead,
    ChatReading,
    FileMessage,
    FileSwipe,
)
from backend.transfer.formats.json_files import (
    NO_TEXT,
    encode_object,
    find_name,
    find_text,
    get_list,
    get_stem,
    get_text,
    iterate_objects,
    list_top_members,
    load_object,
    make_reading,
    make_scenario,
)
from backend.transfer.formats.send_dates import parse_send_date

_ID_CHARACTERS: Final = 8
_EXPORT_NAME: Final = "Exported"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chat:
    """A chat with its messages. `names` are those of the characters by id."""

    raw: Object
    messages: list[Object]
    place: str
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    title: str = ""


def _is_chat(members: set[str], head: bytes) -> bool:
    return "messages" in members and b'"msg"' in head and "mes" not in members


def _is_installation(members: set[str]) -> bool:
    return members >= {"characters", "chats"}


def matches(head: bytes, _: str) -> bool:
    members = list_top_members(head)
    return _is_chat(members, head) or _is_installation(members)


def matches_bundle(head: bytes, _: str) -> bool:
    return _is_installation(list_top_members(head))


def read(file: BinaryIO, *, name: str) -> Iterator[ChatReading]:
    raw = load_object(file)
    if not _is_installation(set(raw)):
        messages = _list_messages(get_list(raw, "messages", "The file"), "Message")
        if not messages:
            raise TransferFileError("The chat has no messages.")
        title = find_name(raw, "name")
        yield _read_chat(
            _Chat(
                raw=raw,
                messages=messages,
                place="Message",
                title=title if title != _EXPORT_NAME else get_stem(name),
            )
        )
        return
    chats = [chat for bundle in _read_bundles(raw) for chat in bundle.chats]
    if not chats:
        raise TransferFileError("The file has no chats with messages.")
    yield from chats


def read_bundles(file: BinaryIO, *, name: str) -> Iterator[CharacterBundle]:  # noqa: ARG001
    return _read_bundles(load_object(file))


def _read_bundles(raw: Object) -> Iterator[CharacterBundle]:
    characters = {
        find_text(each, "_id"): each
        for each, _ in iterate_objects(get_list(raw, "characters", "The file"), "Character")
    }
    names = {identity: find_name(each, "name") for identity, each in characters.items()}
    stored = _group_messages(raw)
    chats: defaultdict[str, list[ChatReading]] = defaultdict(list)
    empty: defaultdict[str, int] = defaultdict(int)
    for chat, place in iterate_objects(get_list(raw, "chats", "The file"), "Chat"):
        identity, character = find_text(chat, "_id"), find_text(chat, "characterId")
        own = get_list(raw, f"messages-{identity}", "The file") or get_list(chat, "messages", place)
        messages = _list_messages(own or stored[identity], f"{place}, message")
        owner = character if character in characters else ""
        if not messages:
            empty[owner] += 1
            continue
        chats[owner].append(
            _read_chat(
                _Chat(
                    raw=chat,
                    messages=messages,
                    place=f"{place}, message",
                    names=names,
                    title=find_name(chat, "name"),
                )
            )
        )
    for identity, described in characters.items():
        yield CharacterBundle(
            name=names[identity],
            card=encode_object(described),
            chats=chats[identity],
            warnings=_describe_empty(empty[identity]),
        )
    if chats[""] and "" not in characters:
        yield CharacterBundle(
            name="", card=None, chats=chats[""], warnings=_describe_empty(empty[""])
        )


def _describe_empty(count: int) -> Sequence[str]:
    return [f"Chats without messages were left out: {count:,}."] if count else []


def _group_messages(raw: Object) -> Mapping[str, list[Any]]:
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for each, _ in iterate_objects(get_list(raw, "messages", "The file"), "Message"):
        found[find_text(each, "chatId")].append(each)
    return found


def _list_messages(values: list[Any], place: str) -> list[Object]:
    return [each for each, _ in iterate_objects(values, place)]


def _read_chat(chat: _Chat) -> ChatReading:
    notes = Notes()
    if find_text(chat.raw, "sampleChat"):
        notes.add("The example dialogue of the chat was left out")
    if chat.raw.get("overrides"):
        notes.add("The character's description in the chat alone was left out")
    path, siblings = _find_path(chat, notes)
    speakers = [_find_author(each, chat) for each in path if _find_role(each) == "assistant"]
    users = [_find_author(each, chat) for each in path if _find_role(each) == "user"]
    head = ChatHead(
        title=chat.title,
        user_name=next(filter(None, users), ""),
        character_names=list(dict.fromkeys(filter(None, speakers))),
        created_at=parse_send_date(chat.raw.get("createdAt"), zone=UTC),
        scenario=make_scenario(find_text(chat.raw, "scenario"), notes),
    )
    return make_reading(head, _read_messages(chat, path, siblings, notes), notes)


def _find_path(chat: _Chat, notes: Notes) -> tuple[list[Object], Mapping[int, list[Object]]]:
    """Return the messages of the path, and the siblings of each by its place.

    Without parents, the path is the list itself.
    """
    by_id = {find_text(each, "_id")[:_ID_CHARACTERS]: each for each in chat.messages}
    if len(by_id) < len(chat.messages) or not any(map(_find_parent, chat.messages)):
        return chat.messages, {}
    leaf = find_text(chat.raw, "treeLeafId")[:_ID_CHARACTERS]
    step: Object | None = by_id.get(leaf, chat.messages[-1])
    path: list[Object] = []
    left = dict(by_id)
    while step is not None:
        path.append(step)
        left.pop(find_text(step, "_id")[:_ID_CHARACTERS])
        step = left.get(_find_parent(step))
    path.reverse()
    children: defaultdict[str, list[Object]] = defaultdict(list)
    for each in left.values():
        children[_find_parent(each)].append(each)
    siblings = {
        place: [other for other in children[_find_parent(each)] if _is_swipe(other, each)]
        for place, each in enumerate(path)
    }
    for _ in range(len(left) - sum(map(len, siblings.values()))):
        notes.add("A message of another branch was left out")
    return path, siblings


def _find_parent(raw: Object) -> str:
    return find_text(raw, "parent")[:_ID_CHARACTERS]


def _is_swipe(other: Object, chosen: Object) -> bool:
    return _find_role(other) == _find_role(chosen) == "assistant"


def _find_role(raw: Object) -> Role:
    if find_text(raw, "userId"):
        return "user"
    return "assistant" if find_text(raw, "characterId") else "system"


def _find_author(raw: Object, chat: _Chat) -> str:
    own = chat.names.get(find_text(raw, "characterId"), "")
    return find_name(raw, "name", "handle") or own


def _read_messages(
    chat: _Chat, path: list[Object], siblings: Mapping[int, list[Object]], notes: Notes
) -> Iterator[FileMessage]:
    for place, raw in enumerate(path):
        here = f"{chat.place} {place + 1:,}"
        swipes = [
            swipe for each in (raw, *siblings.get(place, ())) for swipe in _read_swipes(each, here)
        ]
        kept = [swipe for swipe in swipes if swipe.text.strip()]
        if not kept:
            notes.add(NO_TEXT)
            continue
        if raw.get("extras") or raw.get("adapter") == "image":
            notes.add("The pictures of a message were left out")
        yield FileMessage(
            role=_find_role(raw),
            author=_find_author(raw, chat),
            swipes=kept,
            hidden=bool(raw.get("ooc")),
        )


def _read_swipes(raw: Object, place: str) -> Iterator[FileSwipe]:
    date = parse_send_date(raw.get("createdAt"), zone=UTC)
    yield FileSwipe(text=get_text(raw, "msg", place), created_at=date)
    retries: Any = raw.get("retries")
    for text in cast("list[object]", retries) if isinstance(retries, list) else []:
        if isinstance(text, str):
            yield FileSwipe(text=text, created_at=date)


AGNAI = ChatFormat("agnai", "Agnai", matches, read)
AGNAI_BUNDLES = BundleFormat("agnai", "Agnai", matches_bundle, read_bundles)
