"""A chat as it is in a file of any program.

Readers of all formats return a `ChatReading`. `backend.transfer.chats` stores it as a message tree,
and builds the same structures for an export. Pure: no database, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import BinaryIO, Protocol

from backend.chats.schemas import AuthorsNote
from backend.generation.model import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReference:
    """A picture or file of a message. `path` is as written: inside the folder, or a data URI.

    `media_type` is empty if the file does not say.
    """

    path: str
    name: str = ""
    media_type: str = ""


@dataclass(slots=True, kw_only=True)
class FileSwipe:
    """One version of a message.

    `source` is the JSON of its members that Talekeeper has no field for, exactly as written.
    """

    text: str
    thinking: str | None = None
    created_at: datetime | None = None
    source: bytes | None = None
    files: Sequence[FileReference] = ()


@dataclass(slots=True, kw_only=True)
class FileMessage:
    """A message with its swipes, of which there is at least one.

    `selected` is the index of the swipe on the path. `speaker` is the card file of a group's
    member, or empty: then `author` says who speaks. `source` is the JSON of the line's other
    members, exactly as written.
    """

    role: Role
    author: str
    swipes: list[FileSwipe]
    selected: int = 0
    hidden: bool = False
    speaker: str = ""
    source: bytes | None = None


@dataclass(slots=True, kw_only=True)
class ChatHead:
    """The header of a chat file.

    `character_names` are the members by name or card file, as far as the file names them. `persona`
    and `lorebook` are file names as SillyTavern writes them. `main_chat` is the file name of the
    chat that this one branched from. `source` is the JSON of the header, exactly as written.
    """

    title: str = ""
    user_name: str = ""
    character_names: Sequence[str] = ()
    created_at: datetime | None = None
    authors_note: AuthorsNote | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    scenario: str | None = None
    lorebook: str = ""
    persona: str = ""
    main_chat: str = ""
    source: bytes | None = None


@dataclass(slots=True)
class ChatReading:
    """A chat that is being read. `messages` can be iterated once, and reads as it goes.

    `warnings` grows while it is read. A broken file raises `TransferFileError` with its line.
    """

    head: ChatHead
    messages: Iterator[FileMessage]
    warnings: list[str] = field(default_factory=list[str])


class ChatReader(Protocol):
    """Reads one format.

    `name` is the file's name without folder. A file with several chats yields each of them.
    Raises `TransferFileError`.
    """

    def __call__(self, file: BinaryIO, *, name: str) -> Iterator[ChatReading]: ...


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A format of chat files. `matches` gets the first 64 KiB of a file and its name."""

    name: str
    title: str
    matches: Callable[[bytes, str], bool]
    read: ChatReader
