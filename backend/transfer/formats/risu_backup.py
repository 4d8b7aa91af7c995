"""Read the characters and chats of a RisuAI backup.

A local backup (`risu-backup.bin`) is a sequence of files. Each has the length of its name (four
bytes, little-endian), the name, the length of the content, and the content. Pictures come first,
named by their digest; `database.risudat` is last. The database can also be a separate file.

| The database begins with | and continues as |
|---|---|
| `00 "RISUSAVE" 00 07` | MessagePack |
| `00 "RISUSAVE" 00 08` or `09` | MessagePack, compressed with gzip |
| `"RISUSAVE" 00` | blocks: type, compression (0, or 1 for gzip), length of the name (a byte each), name, length (four bytes), JSON |
| `00 00 "RISU"` | MessagePack, in old versions |

Of the blocks, 1 has the settings and 2 a character with its chats. Block 6 only names another file
of the browser. The database has `characters`, `username` and `personas`. A group is a character of
type `group` that lists the ids of its members. A character with a `trashTime` is deleted.

Left out: settings, presets, modules, plugins, personas except for their names, provider keys, and
all pictures and sounds except for the main picture of each character.

Source: https://github.com/kwaroran/RisuAI (src/ts/drive/backuplocal.ts, src/ts/storage/risuSave.ts).
"""  # noqa: E501

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final, cast

from backend.characters.cards.codec import Notes, Object, omit
from backend.characters.cards.model import LIST_ITEMS, MEGABYTE, TEXT
from backend.characters.cards.model import MAX_FILE_BYTES as MAX_PICTURE_BYTES
from backend.core.cpu_pool import check_stopped
from backend.transfer.errors import TransferFileError
from backend.transfer.formats.bundles import BundleFormat, CharacterBundle
from backend.transfer.formats.chat_file import ChatFormat, ChatReading
from backend.transfer.formats.json_files import (
    MAX_FILE_BYTES,
    encode_object,
    find_name,
    find_text,
    get_list,
    iterate_objects,
    load_json,
    read_whole,
    to_object,
)
from backend.transfer.formats.message_pack import MessagePackError, decode
from backend.transfer.formats.risu import ChatPeople, read_chat, select_chats

DATABASE: Final = "database.risudat"
_PICTURE_ENDING: Final = ".png"
_MAX_NAME_BYTES: Final = 1_024

_PACKED: Final = b"\0RISUSAVE\0\x07"
_COMPRESSED: Final = (b"\0RISUSAVE\0\x08", b"\0RISUSAVE\0\x09")
_BLOCKS: Final = b"RISUSAVE\0"
_OLD: Final = b"\0\0RISU"
_DATABASES: Final = (_PACKED, *_COMPRESSED, _BLOCKS, _OLD)
_LENGTH: Final = struct.Struct("<I")
_BLOCK_LEAD: Final = struct.Struct("BBB")
_ANY_COMPRESSION: Final = 32 + zlib.MAX_WBITS
"""Makes zlib detect gzip and zlib by their headers."""

_MAX_SIGNS: Final = 4_000_000
"""Maximum number of commas and opening brackets in the blocks of a database."""

_ROOT, _CHARACTER, _REMOTE = 1, 2, 6
_CHAT_MEMBERS: Final = frozenset({"chats", "chatPage", "chatFolders"})


def matches(head: bytes, _: str) -> bool:
    if head.startswith(_DATABASES):
        return True
    if len(head) < _LENGTH.size:
        return False
    (length,) = _LENGTH.unpack_from(head)
    entry = head[_LENGTH.size : _LENGTH.size + length]
    if len(entry) < length or not 0 < length <= _MAX_NAME_BYTES:
        return False
    return entry.endswith(_PICTURE_ENDING.encode()) or entry == DATABASE.encode()


def read_bundles(file: BinaryIO, *, name: str) -> Iterator[CharacterBundle]:  # noqa: ARG001
    database = _parse_database(_find_database(file))
    characters = [
        (character, place)
        for character, place in iterate_objects(
            get_list(database, "characters", "The backup"), "Character"
        )
        if not character.get("trashTime")
    ]
    if not characters:
        raise TransferFileError("The backup has no characters.")
    names = {
        identity: find_name(each, "name")
        for each, _ in characters
        if (identity := find_text(each, "chaId"))
    }
    personas = {
        identity: find_name(each, "name")
        for each, _ in iterate_objects(get_list(database, "personas", "The backup"), "Persona")
        if (identity := find_text(each, "id"))
    }
    user = find_name(database, "username")
    characters.sort(key=lambda each: each[0].get("type") == "group")
    for character, place in characters:
        check_stopped()
        yield _make_bundle(character, place, names, personas, user)


def _make_bundle(
    character: Object,
    place: str,
    names: Mapping[str, str],
    personas: Mapping[str, str],
    user: str,
) -> CharacterBundle:
    is_group = character.get("type") == "group"
    title = find_name(character, "name")
    if is_group:
        listed = [
            each for each in get_list(character, "characters", place) if isinstance(each, str)
        ]
        people = ChatPeople(
            user=user,
            members={each: names[each] for each in listed if each in names},
            personas=personas,
        )
    else:
        people = ChatPeople(
            character=title, user=user, personas=personas, greetings=_list_greetings(character)
        )
    found, omitted = select_chats(get_list(character, "chats", place), f"{place}, chat")
    return CharacterBundle(
        name=title,
        card=None if is_group else encode_object(omit(character, _CHAT_MEMBERS)),
        picture=find_text(character, "image").replace("\\", "/").rpartition("/")[2],
        chats=[
            read_chat({"fmIndex": character.get("firstMsgIndex", -1)} | chat, here, people, Notes())
            for chat, here in found
        ],
        warnings=[f"{sentence}." for sentence in omitted],
    )


def _list_greetings(character: Object) -> Sequence[str]:
    """Return the greetings at their places, with an empty text for one that is unusable."""
    more: Any = character.get("alternateGreetings")
    others = cast("list[object]", more) if isinstance(more, list) else []
    written = [character.get("firstMessage"), *others]
    return [
        each if isinstance(each, str) and len(each) <= TEXT.allowed else ""
        for each in written[: LIST_ITEMS.allowed]
    ]


def read(file: BinaryIO, *, name: str) -> Iterator[ChatReading]:
    """Yield the chats of all characters and groups."""
    is_empty = True
    for bundle in read_bundles(file, name=name):
        for number, chat in enumerate(bundle.chats):
            if number == 0:
                chat.warnings.extend(bundle.warnings)
            is_empty = False
            yield chat
    if is_empty:
        raise TransferFileError("The backup has no chats with messages.")


def read_pictures(file: BinaryIO, *, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    stream = _Stream(file)
    if stream.peek(len(_PACKED)).startswith(_DATABASES):
        return
    for name, length, content in _iterate_files(stream):
        if name in names and length <= MAX_PICTURE_BYTES:
            yield name, b"".join(content)


class _Stream:
    """A file that cannot be sought, with its first bytes known in advance."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._ahead = b""

    def peek(self, length: int) -> bytes:
        self._ahead = self.read_some(length)
        return self._ahead

    def read_some(self, length: int) -> bytes:
        """Read `length` bytes, or fewer at the end of the file."""
        pieces = bytearray(self._ahead[:length])
        self._ahead = self._ahead[length:]
        while len(pieces) < length and (piece := self._file.read(length - len(pieces))):
            pieces += piece
        return bytes(pieces)

    def read_exactly(self, length: int, place: str) -> bytes:
        found = self.read_some(length)
        if len(found) < length:
            raise TransferFileError(f"The backup is cut: it ends within {place}.")
        return found

    def read_rest(self) -> bytes:
        ahead, self._ahead = self._ahead, b""
        return ahead + read_whole(self._file)


def _find_database(file: BinaryIO) -> bytes:
    stream = _Stream(file)
    if stream.peek(len(_PACKED)).startswith(_DATABASES):
        return stream.read_rest()
    for name, length, content in _iterate_files(stream):
        if name == DATABASE:
            if length > MAX_FILE_BYTES:
                raise _refuse_size()
            return b"".join(content)
    raise TransferFileError(f"The backup has no `{DATABASE}`. Make it again in RisuAI.")


def _refuse_size() -> TransferFileError:
    return TransferFileError(
        f"The database of the backup is too large: {MAX_FILE_BYTES // MEGABYTE} MB are allowed. "
        "Export the characters and their chats one by one in RisuAI."
    )


def _iterate_files(stream: _Stream) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """Yield the name, length and content of each file. A content is skipped unless it is read."""
    while lead := stream.read_some(_LENGTH.size):
        if len(lead) < _LENGTH.size:
            raise TransferFileError("The backup is cut: it ends within the length of a name.")
        (length,) = _LENGTH.unpack(lead)
        if not 0 < length <= _MAX_NAME_BYTES:
            raise TransferFileError(
                f"The backup is broken: the name of a file has {length:,} bytes."
            )
        name = stream.read_exactly(length, "the name of a file").decode(errors="replace")
        place = f"`{name[:100]}`"
        (size,) = _LENGTH.unpack(stream.read_exactly(_LENGTH.size, place))
        content = _iterate_content(stream, size, place)
        yield name, size, content
        for _ in content:
            pass


def _iterate_content(stream: _Stream, size: int, place: str) -> Iterator[bytes]:
    while size:
        check_stopped()
        piece = stream.read_exactly(min(size, MEGABYTE), place)
        size -= len(piece)
        yield piece


def _parse_database(data: bytes) -> Object:
    if data.startswith(_BLOCKS):
        return _parse_blocks(data)
    if data.startswith(_COMPRESSED):
        data = _decompress(data[len(_PACKED) :])
    elif data.startswith(_PACKED):
        data = data[len(_PACKED) :]
    elif data.startswith(_OLD):
        data = data[len(_OLD) :]
    else:
        raise TransferFileError(f"`{DATABASE}` begins like none of the versions that are known.")
    try:
        return to_object(decode(data), "The database of the backup")
    except MessagePackError as error:
        raise TransferFileError(f"The database of the backup is broken: {error}.") from error


def _decompress(data: bytes) -> bytes:
    inflater = zlib.decompressobj(_ANY_COMPRESSION)
    pieces = bytearray()
    try:
        while data and not inflater.eof:
            check_stopped()
            pieces += inflater.decompress(data, MEGABYTE)
            data = inflater.unconsumed_tail
            if len(pieces) > MAX_FILE_BYTES:
                raise _refuse_size()
    except zlib.error as error:
        raise TransferFileError("The database of the backup is broken: it is not gzip.") from error
    if not inflater.eof:
        raise TransferFileError("The database of the backup is cut.")
    return bytes(pieces)


def _parse_blocks(data: bytes) -> Object:
    """Return the members of the root block, and the `characters` of their own blocks."""
    found: Object = {}
    characters: list[Object] = []
    place = len(_BLOCKS)
    size = values = 0
    while place < len(data):
        check_stopped()
        kind, content, place = _read_block(data, place)
        if kind == _REMOTE:
            raise TransferFileError(
                "The backup names characters in other files of RisuAI. Make a local backup instead."
            )
        if kind not in (_ROOT, _CHARACTER):
            continue
        size += len(content)
        # Commas in texts count as well, which is more than enough for a large database.
        values += sum(map(content.count, (b",", b"[", b"{")))
        if size > MAX_FILE_BYTES or values > _MAX_SIGNS:
            raise _refuse_size()
        value = to_object(load_json(content), "A block of the database")
        if kind == _ROOT:
            found |= value
        else:
            characters.append(value)
    return found | {"characters": characters}


def _read_block(data: bytes, place: int) -> tuple[int, bytes, int]:
    """Return the type and content of a block, and the place after it."""
    try:
        kind, compression, name_length = _BLOCK_LEAD.unpack_from(data, place)
        place += _BLOCK_LEAD.size + name_length
        (length,) = _LENGTH.unpack_from(data, place)
    except struct.error as error:
        raise TransferFileError("The database of the backup is cut at its end.") from error
    start = place + _LENGTH.size
    end = start + length
    if end > len(data):
        raise TransferFileError("The database of the backup is cut: it ends within a block.")
    content = data[start:end]
    is_compressed = compression and kind in (_ROOT, _CHARACTER)
    return kind, _decompress(content) if is_compressed else content, end


RISU_BACKUP = ChatFormat("risuai_backup", "RisuAI backup", matches, read)
RISU_BUNDLES = BundleFormat("risuai_backup", "RisuAI backup", matches, read_bundles, read_pictures)
