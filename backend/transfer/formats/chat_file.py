"""A chat as it is in a file of any program.

Readers of all formats return a `ChatReading`. `backend.transfer.chats` stores it as a message tree,
and builds the same structures for an export. Pure: no database, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import BinaryIO, Final, Literal, Protocol
from uuid import UUID

import msgspec

from backend.chats.models import Presence
from backend.chats.schemas import MAX_AUTO_REPLIES, AuthorsNote, GroupSettings, NextSpeaker
from backend.generation.model import Role

CARD_EXTENSION: Final = ".png"
MAX_NARRATORS: Final = 20


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
    `audience` are the characters that know it, by card file or name. None means everyone who was
    there, and an empty list only the narrator.
    """

    text: str
    thinking: str | None = None
    created_at: datetime | None = None
    source: bytes | None = None
    files: Sequence[FileReference] = ()
    audience: Sequence[str] | None = None


@dataclass(slots=True, kw_only=True)
class FileMessage:
    """A message with its swipes, of which there is at least one.

    `selected` is the index of the swipe on the path. `speaker` is the card file of a group's
    member, or empty: then `author` says who speaks. `source` is the JSON of the line's other
    members, exactly as written. With a `presence`, the message says that the speaker joins, leaves
    or is muted.
    """

    role: Role
    author: str
    swipes: list[FileSwipe]
    selected: int = 0
    hidden: bool = False
    speaker: str = ""
    source: bytes | None = None
    presence: Presence | None = None


class FileGroup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a group in a file. Characters have their card files or names.

    `joined_later` are members that were not there at the beginning. `muted` are those that are
    muted at the end, if the messages do not say it.
    """

    next_speaker: NextSpeaker = "mention"
    cards: Literal["joined", "swapped"] = "joined"
    auto_replies: int = 0
    allow_self_replies: bool = False
    narrators: list[str] = []
    talkativeness: Mapping[str, float] = {}
    joined_later: list[str] = []
    muted: list[str] = []

    def find_settings(self, characters: Mapping[str, UUID]) -> GroupSettings:
        """Return the settings with the ids of characters by card file and name."""
        talkativeness = {
            found: min(max(share, 0.0), 1.0)
            for name, share in self.talkativeness.items()
            if (found := find_character(characters, name)) is not None
        }
        return GroupSettings(
            next_speaker=self.next_speaker,
            cards=self.cards,
            auto_replies=min(max(self.auto_replies, 0), MAX_AUTO_REPLIES),
            allow_self_replies=self.allow_self_replies,
            narrators=find_characters(characters, self.narrators)[:MAX_NARRATORS],
            talkativeness=talkativeness,
        )


def find_character(characters: Mapping[str, UUID], name: str) -> UUID | None:
    """Return the character of a card file or a name. Another file may have had its card."""
    return characters.get(name) or characters.get(name.removesuffix(CARD_EXTENSION))


def find_characters(characters: Mapping[str, UUID], names: Sequence[str]) -> list[UUID]:
    found = (find_character(characters, name) for name in names)
    return list(dict.fromkeys(each for each in found if each is not None))


@dataclass(slots=True, kw_only=True)
class ChatHead:
    """The header of a chat file.

    `character_names` are the members by name or card file, as far as the file names them. `persona`
    and `lorebook` are file names as SillyTavern writes them. `main_chat` is the file name of the
    chat that this one branched from. `source` is the JSON of the header, exactly as written.
    `group` is None in a file without settings of a group.
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
    group: FileGroup | None = None


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
