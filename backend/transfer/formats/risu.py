"""Read the chats of RisuAI, as JSON.

RisuAI exports one chat as `{type: "risuChat", ver, data: chat, folders}`, and the chats of a
character as `{type: "risuAllChats", ver, data: [chat], folders}`. Both forms of `ver` 1 and 2 are
alike, except for the folders. The character's name is only in the name of the file:
`NAME_DATE_chat.json` or `NAME_all_chats_DATE.json`.

A chat has `message`, `note` (the author's note), `name`, `localLore`, `scriptstate` (variables with
a `$` before their name), `fmIndex` and `bindedPersona`. A message has `role` (`user` or `char`),
`data` (the text), `time` (milliseconds), `saying` (the character's id in a group), `name`,
`disabled` (true, or `allBefore` for it and all earlier ones), and `isComment`. Thoughts are in the
text, between `<Thoughts>` tags. There are no swipes.

The greeting is not among the messages. It is the character's `firstMessage` if `fmIndex` is -1, or
else one of its `alternateGreetings`, so that only a backup contains it. Chats that have been unused
for a month can be in a separate storage, in no export: one message then has the storage's mark.

Left out: lore of the chat, summaries, pictures inside messages (`{{inlay::id}}`), folders,
bookmarks, and the data about the generation of a message.

Source: https://github.com/kwaroran/RisuAI (src/ts/characters.ts, src/ts/storage/database.svelte.ts,
src/ts/process/coldstorage.svelte.ts).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any, BinaryIO, Final

from backend.characters.cards.codec import Notes, Object, get_object, to_text
from backend.transfer.errors import TransferFileError
from backend.transfer.formats.chat_file import (
    ChatFormat,
    ChatHead,
    ChatReading,
    FileMessage,
    FileSwipe,
)
from backend.transfer.formats.json_files import (
    NO_TEXT,
    find_name,
    find_text,
    get_list,
    get_stem,
    get_text,
    iterate_objects,
    load_object,
    make_note,
    make_reading,
    to_object,
)
from backend.transfer.formats.send_dates import parse_send_date
from backend.transfer.formats.thought_tags import split_thoughts

NEWEST_VERSION: Final = 2
COLD_MARK: Final = "\uef01COLDSTORAGE\uef01"

_TYPE: Final = re.compile(rb'"type"\s*+:\s*+"risu(?:Chat|AllChats)"')
_MACRO: Final = re.compile(r"\{\{(user|char)\}\}|<(user|char|bot)>", re.IGNORECASE)
_SUMMARIES: Final = ("supaMemoryData", "hypaV2Data", "hypaV3Data")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPeople:
    """The people of a chat. `members` and `personas` are names by id.

    `greetings` are the character's, the first message before the alternate ones.
    """

    character: str = ""
    user: str = ""
    members: Mapping[str, str] = field(default_factory=dict[str, str])
    personas: Mapping[str, str] = field(default_factory=dict[str, str])
    greetings: Sequence[str] = ()


def matches(head: bytes, _: str) -> bool:
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") and _TYPE.search(head) is not None


def read(file: BinaryIO, *, name: str) -> Iterator[ChatReading]:
    raw = load_object(file)
    if raw.get("type") not in ("risuChat", "risuAllChats"):
        raise TransferFileError("This is not a chat of RisuAI: its `type` is not `risuChat`.")
    data: Any = raw.get("data")
    chats = get_list(raw, "data", "The file") if isinstance(data, list) else [data]
    people = ChatPeople(character=_find_character(get_stem(name)))
    found, omitted = select_chats(chats, "Chat")
    if not found:
        raise TransferFileError(f"{omitted[0]}." if omitted else "The file has no chats.")
    for chat, place in found:
        notes = Notes()
        if isinstance(version := raw.get("ver"), int) and version > NEWEST_VERSION:
            notes.add(f"The chat has version {version}, newer than {NEWEST_VERSION}")
        notes.add("The greeting is not in the file, because RisuAI keeps it in the character")
        while omitted:
            notes.add(omitted.pop(0))
        yield read_chat(chat, place, people, notes)


def select_chats(chats: list[Any], place: str) -> tuple[list[tuple[Object, str]], list[str]]:
    """Return the chats that can be read, with their places, and sentences about the others.

    The sentences have no full stop.
    """
    found: list[tuple[Object, str]] = []
    omitted: list[str] = []
    for chat, here in iterate_objects(chats, place):
        messages = get_list(chat, "message", here)
        first = messages[0] if messages else None
        if not messages:
            omitted.append(f"{_name_chat(chat)} was left out, because it has no messages")
        elif to_text(to_object(first, f"{here}, message 1").get("data")).startswith(COLD_MARK):
            omitted.append(
                f"{_name_chat(chat)} was left out, because RisuAI has moved its messages to "
                "another storage: open it in RisuAI, and export it again"
            )
        else:
            found.append((chat, here))
    return found, omitted


def _name_chat(chat: Object) -> str:
    return f"The chat “{find_name(chat, 'name')[:100]}”"


def _find_character(stem: str) -> str:
    """Return the character's name in a file's name, or an empty text."""
    if stem.endswith("_chat"):
        return stem.removesuffix("_chat").rpartition("_")[0]
    return stem.rpartition("_all_chats_")[0]


def read_chat(chat: Object, place: str, people: ChatPeople, notes: Notes) -> ChatReading:
    """Read a chat. `place` begins the detail of an error."""
    messages = get_list(chat, "message", place)
    bound: Any = chat.get("bindedPersona")
    user = people.personas.get(bound, people.user) if isinstance(bound, str) else people.user
    lore = len(get_list(chat, "localLore", place))
    if lore:
        notes.add(f"The lore of the chat itself was left out: {lore:,} entries")
    if any(chat.get(member) for member in _SUMMARIES):
        notes.add("The summaries of the chat were left out")
    if chat.get("bookmarks"):
        notes.add("The bookmarks of the chat were left out")
    names = dict.fromkeys(people.members.values()) or dict.fromkeys(
        filter(None, [people.character])
    )
    head = ChatHead(
        title=find_name(chat, "name"),
        user_name=user,
        character_names=list(names),
        authors_note=make_note(find_text(chat, "note"), notes),
        variables={
            key.removeprefix("$"): to_text(value)
            for key, value in get_object(chat, "scriptstate").items()
        },
    )
    return make_reading(head, _read_messages(chat, messages, place, people, user, notes), notes)


def _read_messages(
    chat: Object, messages: list[Any], place: str, people: ChatPeople, user: str, notes: Notes
) -> Iterator[FileMessage]:
    greeting = _make_greeting(chat, people, user)
    if greeting is not None:
        yield greeting
    objects = [
        to_object(each, f"{place}, message {number:,}") for number, each in enumerate(messages, 1)
    ]
    cuts = [number for number, each in enumerate(objects) if each.get("disabled") == "allBefore"]
    for number, raw in enumerate(objects):
        text = get_text(raw, "data", f"{place}, message {number + 1:,}")
        is_user = raw.get("role") == "user"
        thinking, text = (None, text) if is_user else split_thoughts(text)
        if not text.strip():
            notes.add(NO_TEXT)
            continue
        if "{{inlay" in text:
            notes.add("A message has pictures that are not in the file")
        said_by = people.members.get(to_text(raw.get("saying")), people.character)
        yield FileMessage(
            role="user" if is_user else "assistant",
            author=find_name(raw, "name") or (user if is_user else said_by),
            swipes=[
                FileSwipe(
                    text=text,
                    thinking=thinking,
                    created_at=parse_send_date(raw.get("time"), zone=UTC),
                )
            ],
            hidden=bool(raw.get("disabled")) or (bool(cuts) and number <= cuts[-1]),
        )


def _make_greeting(chat: Object, people: ChatPeople, user: str) -> FileMessage | None:
    index: Any = chat.get("fmIndex", -1)
    selected = index + 1 if isinstance(index, int) else 0
    written = list(enumerate(people.greetings))
    kept = [(place, text) for place, text in written if text.strip()]
    places = [place for place, _ in kept]
    if not kept or (selected in range(len(written)) and selected not in places):
        return None

    def expand(found: re.Match[str]) -> str:
        is_user = (found[1] or found[2]).lower() == "user"
        return (user if is_user else people.character) or found[0]

    return FileMessage(
        role="assistant",
        author=people.character,
        swipes=[FileSwipe(text=_MACRO.sub(expand, text)) for _, text in kept],
        selected=places.index(selected) if selected in places else 0,
    )


RISU = ChatFormat("risuai", "RisuAI", matches, read)
