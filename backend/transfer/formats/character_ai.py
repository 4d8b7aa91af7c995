"""Read chats of Character.AI, as CAI Tools and other exporters save them.

| Form | Written by |
|---|---|
| `{info: {character}, histories: {histories: [{msgs: [...]}]}}` | the character dump of old versions, and CharacterAI Dumper |
| `{turns: [...]}`, or a list of such objects under `chats` or `histories` | exporters of Character.AI's newer interface |
| `[{name, message, isHuman}]`, or a list of such lists | CAI Tools, between its steps |
| a page named `NAME_Offline.html` | CAI Tools, "download to read offline" |

An old message has `text`, `src.name`, `src.is_human`, `created`, and `is_alternative` for a reply
that was swiped away; it follows the chosen one. A turn has `author` (`name`, `is_human`),
`candidates` (`candidate_id`, `raw_content`, `create_time`) and `primary_candidate_id`. The
interface sends turns from the newest to the oldest. The page has
`{charPic, userPic, history: [[{isUser, name, message}]]}` as JSON in a script, with the message
encoded as in an address.

CAI Tools' other downloads are chats of SillyTavern and text-generation-webui, and are read as such.

Left out: pictures, ratings, and deleted messages.

Source: https://github.com/irsat000/CAI-Tools (scripts/content.js, ReadOffline.html),
https://github.com/0x000011b/characterai-dumper. Character.AI publishes no description.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC
from typing import Any, BinaryIO, Final, cast
from urllib.parse import unquote

from backend.characters.cards.codec import Notes, Object, get_object, to_text
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
    load_json,
    make_reading,
    read_whole,
    to_list,
)
from backend.transfer.formats.send_dates import parse_send_date

_BOM: Final = b"\xef\xbb\xbf"
_PAGE_TITLE: Final = b"<title>CAI Library</title>"
_PAGE_START: Final = b"JSON.parse(`"
_PAGE_END: Final = b"`)"
_LIST_BEGINNING: Final = re.compile(rb"\s*+\[\s*+(?:\[\s*+)?+\{")

ReadMessages = Callable[[list[Any], str, Notes], list[FileMessage]]
_Part = tuple[list[Any], ReadMessages, object]
"""The messages of a chat, their reader, and the chat's date."""


def matches(head: bytes, _: str) -> bool:
    if _PAGE_TITLE in head:
        return True
    if _LIST_BEGINNING.match(head.removeprefix(_BOM)):
        return b'"isHuman"' in head or (b'"candidates"' in head and b'"author"' in head)
    members = list_top_members(head)
    return "histories" in members or (
        not members.isdisjoint({"turns", "chats"})
        and b'"candidates"' in head
        and b'"author"' in head
    )


def read(file: BinaryIO, *, name: str) -> Iterator[ChatReading]:
    return _read_chats(_load(file), get_stem(name))


def read_bundles(file: BinaryIO, *, name: str) -> Iterator[CharacterBundle]:
    """Yield the character, if the file describes it, and its chats."""
    raw = _load(file)
    chats = list(_read_chats(raw, get_stem(name)))
    character = _find_character(raw)
    yield CharacterBundle(
        name=find_name(character, "name", "participant__name"),
        card=encode_object({"character": character}) if character else None,
        chats=chats,
    )


def matches_bundle(head: bytes, name: str) -> bool:
    return matches(head, name) and "info" in list_top_members(head)


def _load(file: BinaryIO) -> Any:
    data = read_whole(file)
    if data.removeprefix(_BOM).lstrip()[:1] != b"<":
        return load_json(data)
    start = data.find(_PAGE_START) + len(_PAGE_START)
    end = data.find(_PAGE_END, start)
    if start < len(_PAGE_START) or end < 0:
        raise TransferFileError(
            "This page contains no chats: it is not complete, or not from CAI Tools."
        )
    return load_json(data[start:end])


def _find_character(raw: object) -> Object:
    if not isinstance(raw, dict):
        return {}
    return get_object(get_object(cast("Object", raw), "info"), "character")


def _read_chats(raw: Any, stem: str) -> Iterator[ChatReading]:
    found = False
    parts = _list_parts(raw)
    character = find_name(_find_character(raw), "name", "participant__name")
    for number, (values, convert, date) in enumerate(parts, 1):
        notes = Notes()
        messages = convert(values, f"Chat {number:,}, message", notes)
        if not messages:
            continue
        found = True
        title = stem if len(parts) == 1 else f"{stem} {number}"
        yield make_reading(_make_head(title, messages, character, date), iter(messages), notes)
    if not found:
        raise TransferFileError("The file has no chats with messages.")


def _make_head(title: str, messages: list[FileMessage], character: str, date: object) -> ChatHead:
    users = [each.author for each in messages if each.role == "user"]
    names = [each.author for each in messages if each.role == "assistant"]
    return ChatHead(
        title=title,
        user_name=next(filter(None, users), ""),
        character_names=list(dict.fromkeys(filter(None, [character, *names]))),
        created_at=parse_send_date(date, zone=UTC),
    )


def _list_parts(raw: object) -> list[_Part]:
    """Return the chats of a file."""
    if isinstance(raw, dict):
        return _list_parts_of_object(cast("Object", raw))
    values = to_list(raw, "The file")
    first = values[0] if values else None
    if isinstance(first, list):
        return [
            (to_list(each, f"Chat {number:,}"), _read_short, None)
            for number, each in enumerate(values, 1)
        ]
    if isinstance(first, dict) and "turns" in first:
        return [_find_part(each, here) for each, here in iterate_objects(values, "Chat")]
    is_turn = isinstance(first, dict) and "candidates" in first
    return [(values, _read_turns if is_turn else _read_short, None)]


def _list_parts_of_object(raw: Object) -> list[_Part]:
    if "history" in raw and "histories" not in raw:
        histories = get_list(raw, "history", "The file")
        return [
            (to_list(each, f"Chat {number:,}"), _read_page, None)
            for number, each in enumerate(histories, 1)
        ]
    inner: Any = raw.get("histories")
    source = cast("Object", inner) if isinstance(inner, dict) else raw
    if "turns" in source:
        return [_find_part(source, "Chat 1")]
    member = "histories" if "histories" in source else "chats"
    chats = get_list(source, member, "The file")
    return [_find_part(each, here) for each, here in iterate_objects(chats, "Chat")]


def _find_part(chat: Object, place: str) -> _Part:
    date = chat.get("create_time") or chat.get("created")
    if "turns" in chat:
        return get_list(chat, "turns", place), _read_turns, date
    return get_list(chat, "msgs", place), _read_old, date


def _read_old(values: list[Any], place: str, notes: Notes) -> list[FileMessage]:
    found: list[FileMessage] = []
    for raw, here in iterate_objects(values, place):
        source = get_object(raw, "src")
        text = get_text(raw, "text", here)
        if raw.get("image_rel_path"):
            notes.add("The picture of a message was left out")
        if raw.get("deleted"):
            notes.add("A deleted message was left out")
            continue
        if not text.strip():
            notes.add(NO_TEXT)
            continue
        swipe = FileSwipe(text=text, created_at=parse_send_date(raw.get("created"), zone=UTC))
        author = find_name(source, "name") or find_name(raw, "display_name")
        is_user = bool(source.get("is_human"))
        if raw.get("is_alternative"):
            if found and found[-1].role == "assistant" and not is_user:
                found[-1].swipes.append(swipe)
            else:
                notes.add("A reply without its place was left out")
            continue
        found.append(
            FileMessage(role="user" if is_user else "assistant", author=author, swipes=[swipe])
        )
    return found


def _read_turns(values: list[Any], place: str, notes: Notes) -> list[FileMessage]:
    turns = list(iterate_objects(values, place))
    dates = [
        date
        for turn, _ in turns
        if (date := parse_send_date(turn.get("create_time"), zone=UTC)) is not None
    ]
    if dates and dates[0] > dates[-1]:
        turns.reverse()
    found: list[FileMessage] = []
    for turn, here in turns:
        author = get_object(turn, "author")
        swipes: list[FileSwipe] = []
        selected = 0
        candidates = get_list(turn, "candidates", here)
        for each, candidate_place in iterate_objects(candidates, f"{here}, candidate"):
            text = get_text(each, "raw_content", candidate_place)
            if each.get("tti_image_rel_path"):
                notes.add("The picture of a message was left out")
            if not text.strip():
                continue
            if find_text(each, "candidate_id") == to_text(turn.get("primary_candidate_id")):
                selected = len(swipes)
            date = each.get("create_time") or turn.get("create_time")
            swipes.append(FileSwipe(text=text, created_at=parse_send_date(date, zone=UTC)))
        if not swipes:
            notes.add(NO_TEXT)
            continue
        found.append(
            FileMessage(
                role="user" if author.get("is_human") else "assistant",
                author=find_name(author, "name"),
                swipes=swipes,
                selected=selected,
            )
        )
    return found


def _read_short(values: list[Any], place: str, notes: Notes) -> list[FileMessage]:
    return _read_named(values, place, notes, "isHuman", str)


def _read_page(values: list[Any], place: str, notes: Notes) -> list[FileMessage]:
    return _read_named(values, place, notes, "isUser", unquote)


def _read_named(
    values: list[Any], place: str, notes: Notes, user_member: str, decode: Callable[[str], str]
) -> list[FileMessage]:
    found: list[FileMessage] = []
    for raw, here in iterate_objects(values, place):
        text = decode(get_text(raw, "message", here))
        if not text.strip():
            notes.add(NO_TEXT)
            continue
        found.append(
            FileMessage(
                role="user" if raw.get(user_member) else "assistant",
                author=find_name(raw, "name"),
                swipes=[FileSwipe(text=text)],
            )
        )
    return found


CHARACTER_AI = ChatFormat("character_ai", "Character.AI Tools", matches, read)
CHARACTER_AI_BUNDLES = BundleFormat(
    "character_ai", "Character.AI Tools", matches_bundle, read_bundles
)
