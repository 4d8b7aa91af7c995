"""Read group files, and the beginnings of chat files. Pure."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, cast

import msgspec

from backend.characters.cards.codec import Object, get_object
from backend.characters.cards.text import parse_json
from backend.characters.errors import CardError
from backend.chats.schemas import NextSpeaker
from backend.core.cpu_pool import check_stopped
from backend.transfer.errors import TransferFileError
from backend.transfer.folders.layout import fold_name, get_stem
from backend.transfer.formats.chat_file import FileGroup

MAX_HEADER_BYTES: Final = 4 << 20
"""Bytes of a chat file that are searched for its first line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFile:
    """A group file. `members` are card files, and `chats` the ids of its chats.

    `metadata` are the `chat_metadata` of chats without header, by chat id. `settings` are those of
    chats that have none of their own.
    """

    id: str
    name: str
    members: Sequence[str] = ()
    chats: Sequence[str] = ()
    metadata: Mapping[str, Object] = field(default_factory=dict[str, Object])
    settings: FileGroup = field(default_factory=FileGroup)


STRATEGIES: Final[Sequence[NextSpeaker]] = ("mention", "list", "by_hand", "pooled")
"""The ways to choose a speaker by SillyTavern's `activation_strategy`."""

JOINING_MODES: Final = (1, 2)
"""Values of `generation_mode` with which a prompt has the cards of all members."""


def read_group(data: bytes, *, name: str) -> GroupFile:
    """Read a group file. `name` is its file name without extension. CPU-bound.

    Raises `TransferFileError`.
    """
    try:
        parsed: object = parse_json(data)
    except CardError as error:
        raise TransferFileError(f"The group cannot be read: {error.detail}") from error
    raw = cast("Object", parsed) if isinstance(parsed, dict) else {}
    if not isinstance(raw.get("members"), list):
        raise TransferFileError("This is not a group of SillyTavern: it has no list of `members`.")
    current = _read_id(raw.get("chat_id"))
    metadata = {
        chat_id: cast("Object", value)
        for chat_id, value in get_object(raw, "past_metadata").items()
        if isinstance(value, dict)
    }
    if present := get_object(raw, "chat_metadata"):
        metadata[current] = present
    chats = _read_ids(raw.get("chats"))
    return GroupFile(
        id=_read_id(raw.get("id")) or name,
        name=_read_id(raw.get("name")).strip() or name,
        members=list(dict.fromkeys(_read_ids(raw.get("members")))),
        chats=chats if current in chats or not current else [*chats, current],
        metadata=metadata,
        settings=_read_settings(raw),
    )


def write_group(
    group: FileGroup, *, group_id: str, name: str, members: Sequence[str], chat: str
) -> bytes:
    """Return a group file. `members` are card files, and `chat` is the file name of its chat."""
    known = group.next_speaker in STRATEGIES
    return msgspec.json.encode(
        {
            "id": group_id,
            "name": name,
            "members": members,
            "avatar_url": "",
            "allow_self_responses": group.allow_self_replies,
            "activation_strategy": STRATEGIES.index(group.next_speaker) if known else 0,
            "generation_mode": JOINING_MODES[0] if group.cards == "joined" else 0,
            "disabled_members": group.muted,
            "chat_metadata": {},
            "fav": False,
            "chat_id": chat,
            "chats": [chat],
            "auto_mode_delay": 5,
            "generation_mode_join_prefix": "",
            "generation_mode_join_suffix": "",
        }
    )


def _read_settings(raw: Object) -> FileGroup:
    strategy: object = raw.get("activation_strategy")
    is_known = type(strategy) is int and 0 <= strategy < len(STRATEGIES)
    return FileGroup(
        next_speaker=STRATEGIES[cast("int", strategy)] if is_known else STRATEGIES[0],
        cards="joined" if raw.get("generation_mode") in JOINING_MODES else "swapped",
        allow_self_replies=raw.get("allow_self_responses") is True,
        muted=_read_ids(raw.get("disabled_members")),
    )


class _Metadata(msgspec.Struct):
    main_chat: Any = None


class _FirstLine(msgspec.Struct):
    """The members of a header that order chats. A message has `mes`."""

    chat_metadata: _Metadata | None = None
    mes: Any = None


@dataclass(frozen=True, slots=True)
class ChatStart:
    """The beginning of a chat file.

    `main_chat` is the name of the chat that it branched from, or empty. `has_header` is false if
    its first line is a message.
    """

    main_chat: str = ""
    has_header: bool = True


def read_start(file: BinaryIO) -> ChatStart:
    """Read the first line. A broken line has an ordinary start, because its reader reports it."""
    try:
        line = msgspec.json.decode(file.readline(MAX_HEADER_BYTES).strip(), type=_FirstLine)
    except (msgspec.MsgspecError, RecursionError):
        return ChatStart()
    if line.chat_metadata is None:
        return ChatStart(has_header=line.mes is None)
    return ChatStart(_read_id(line.chat_metadata.main_chat))


def sort_branches(mains: Mapping[str, str | None]) -> list[str]:
    """Order chats so that each follows the one that it branched from.

    Args:
        mains: The path of the main chat by path, or None. Main chats outside it are ignored, and
            of a circle one chat comes first.
    """
    ordered: dict[str, None] = {}
    for path in mains:
        branch: dict[str, None] = {}
        current: str | None = path
        while (
            current is not None
            and current in mains
            and current not in ordered
            and current not in branch
        ):
            check_stopped()
            branch[current] = None
            current = mains[current]
        ordered.update(dict.fromkeys(reversed(branch)))
    return list(ordered)


def index_by_stem(paths: Iterable[str]) -> dict[str, str]:
    """Return paths by the folded names of their files without extension."""
    return {fold_name(get_stem(path)): path for path in paths}


def add_header(file: BinaryIO, metadata: Object) -> BinaryIO:
    """Return a chat file that begins with a header as SillyTavern 1.18 writes it in groups."""
    header = {"chat_metadata": metadata, "user_name": "unused", "character_name": "unused"}
    raw = _PrefixedFile(msgspec.json.encode(header) + b"\n", file)
    return cast("BinaryIO", io.BufferedReader(raw))


class _PrefixedFile(io.RawIOBase):
    """Reads some bytes, and then a file."""

    def __init__(self, prefix: bytes, file: BinaryIO) -> None:
        self._prefix = prefix
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._prefix[: len(buffer)] or self._file.read(len(buffer))
        self._prefix = self._prefix[len(data) :]
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def _read_id(value: object) -> str:
    """Return a name or an id, which older versions wrote as a number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else ""


def _read_ids(value: object) -> list[str]:
    listed = cast("list[object]", value) if isinstance(value, list) else []
    return [name for each in listed if (name := _read_id(each))]
