"""Files of other programs that contain characters together with their chats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from backend.transfer.formats.chat_file import ChatReading


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterBundle:
    """A character and its chats.

    Args:
        name: The character's name, or that of a group.
        card: The JSON of the character, which `read_card` reads. None for a group (its members
            are separate bundles), and for the chats of a character that the file lacks.
        picture: The name by which the format's `read_pictures` finds the character's picture in
            the file, or empty.
        chats: Its chats. Their heads name the members.
        warnings: Sentences about chats that were left out.
    """

    name: str
    card: bytes | None
    picture: str = ""
    chats: Sequence[ChatReading] = ()
    warnings: Sequence[str] = field(default_factory=list[str])


class BundleReader(Protocol):
    """Yields the characters of a file, groups last. Raises `TransferFileError`."""

    def __call__(self, file: BinaryIO, *, name: str) -> Iterator[CharacterBundle]: ...


class PictureReader(Protocol):
    """Yields the pictures of those names, in the order of the file.

    Pictures can precede the characters, so that they need a second pass over the file. A picture
    over the limit of a card is left out. Raises `TransferFileError`.
    """

    def __call__(
        self, file: BinaryIO, *, names: Collection[str]
    ) -> Iterator[tuple[str, bytes]]: ...


@dataclass(frozen=True, slots=True)
class BundleFormat:
    """A format of such files. `matches` gets the first 64 KiB of a file and its name."""

    name: str
    title: str
    matches: Callable[[bytes, str], bool]
    read: BundleReader
    read_pictures: PictureReader | None = None
