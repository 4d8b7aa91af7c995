"""Compares two archives by their content. Ids and the times of storing do not count.

Pure: no database. Items are matched by their paths, which come from their names. Ids are replaced
by the paths of their items and numbers of lines, because every import gives new ones.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, BinaryIO, cast

import msgspec

from backend.campaigns.files.archive import list_item_ids
from backend.characters.cards.png import SIGNATURE, remove_texts
from backend.characters.cards.reader import read_card
from backend.chats.transfer import read_log
from backend.core.cpu_pool import check_stopped
from backend.core.zip_files import ZIP_ERRORS
from backend.errors import AppError
from backend.transfer.archives.manifest import (
    MANIFEST,
    PART_KINDS,
    STATE_SUFFIX,
    ArchiveEntry,
    ArchiveManifest,
    EntryKind,
    read_manifest,
)
from backend.transfer.archives.records import ID_PATTERN, CampaignState, LinkList, read_record
from backend.transfer.errors import TransferFileError

MAX_FIELDS = 20
"""Maximum number of differences that are listed for one item."""

MAX_VALUE_CHARACTERS = 60

_PICTURE_KINDS: frozenset[EntryKind] = frozenset(
    {"avatar", "character_background", "chat_background", "file"}
)
_WITHOUT_IDS: frozenset[EntryKind] = frozenset(
    {
        *_PICTURE_KINDS,
        "provider",
        "preset",
        "scripts",
        "persona",
        "character",
        "lorebook",
    }
)
"""Kinds of files without ids: equal bytes are equal items."""

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of an item. `field` is empty if only one archive has the item."""

    item: str
    field: str
    first: str
    second: str

    def render(self) -> str:
        if not self.field:
            return f"{self.item}: {self.first or self.second}"
        return f"{self.item}: {self.field}: {self.first} / {self.second}"


def compare_archives(first: BinaryIO, second: BinaryIO) -> Iterator[Difference]:
    """Yield the differences of two zips, which must be seekable. CPU-bound.

    Raises `TransferFileError` if one of them is not a readable archive.
    """
    one, two = OpenArchive(first), OpenArchive(second)
    yield from _compare_values(MANIFEST, one.read_unreadable(), two.read_unreadable())
    for path in sorted(one.entries.keys() | two.entries.keys()):
        check_stopped()
        if path not in two.entries:
            yield Difference(path, "", "only in the first", "")
        elif path not in one.entries:
            yield Difference(path, "", "", "only in the second")
        elif not _has_same_bytes(one, two, path):
            yield from _compare_values(path, one.open(path), two.open(path))


def _has_same_bytes(one: OpenArchive, two: OpenArchive, path: str) -> bool:
    """True if the files of an item are equal and have no ids. The hashes are of the content."""
    if (
        one.entries[path].kind not in _WITHOUT_IDS
        or one.entries[path].name != two.entries[path].name
    ):
        return False
    return sha256(one.read(path)).digest() == sha256(two.read(path)).digest()


def _compare_values(path: str, first: Any, second: Any) -> Iterator[Difference]:
    count = 0
    for field, left, right in find_changes(first, second):
        count += 1
        if count <= MAX_FIELDS:
            yield Difference(path, field, _shorten(left), _shorten(right))
    if count > MAX_FIELDS:
        yield Difference(path, "", f"and {count - MAX_FIELDS} more differences", "")


def find_changes(first: Any, second: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (field, first, second) for each difference of two JSON values."""
    if isinstance(first, dict) and isinstance(second, dict):
        left, right = cast("dict[str, Any]", first), cast("dict[str, Any]", second)
        for key in sorted(left.keys() | right.keys()):
            place = f"{at}.{key}" if at else key
            yield from find_changes(left.get(key, _MISSING), right.get(key, _MISSING), place)
    elif isinstance(first, list) and isinstance(second, list):
        here, there = cast("Sequence[Any]", first), cast("Sequence[Any]", second)
        for number in range(max(len(here), len(there))):
            left_item = here[number] if number < len(here) else _MISSING
            right_item = there[number] if number < len(there) else _MISSING
            yield from find_changes(left_item, right_item, f"{at}[{number}]")
    elif not _is_equal(cast("object", first), cast("object", second)):
        yield at or "content", first, second


def _is_equal(first: object, second: object) -> bool:
    """True if two JSON values are equal and of the same type: `1` is not `true`."""
    return type(first) is type(second) and first == second


def _shorten(value: Any) -> str:
    if value is _MISSING:
        return "missing"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}…"


class OpenArchive:
    """An archive to compare. Raises `TransferFileError` if it is damaged."""

    def __init__(self, file: BinaryIO) -> None:
        try:
            self._zip = zipfile.ZipFile(file)
            names = self._zip.namelist()
        except ZIP_ERRORS as error:
            raise TransferFileError("The file is not a zip file, or it is damaged.") from error
        if MANIFEST not in names:
            raise TransferFileError(f"The zip file is no archive of an account: no {MANIFEST}.")
        self._names = set(names)
        manifest = read_manifest(self.read(MANIFEST))
        self.entries = {entry.path: entry for entry in manifest.entries}
        self._unreadable = manifest.unreadable
        self._labels = self._find_labels(manifest)

    def read(self, path: str) -> bytes:
        if path not in self._names:
            raise TransferFileError(f"{path} is missing in the archive.")
        try:
            return self._zip.read(path)
        except ZIP_ERRORS as error:
            raise TransferFileError(f"{path} is damaged.") from error

    def open(self, path: str) -> Any:
        """Return the content of an item as JSON values, with labels instead of ids."""
        entry = self.entries[path]
        data = self.read(path)
        try:
            content = self._replace_ids(_open_content(entry, data))
        except (AppError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TransferFileError(f"{path} is damaged: {error}.") from error
        return {"name": entry.name, **content}

    def read_unreadable(self) -> Any:
        """Return the items that the archive lacks because they could not be decrypted."""
        names = (f"{each.kind} {self._replace_text(str(each.id))}" for each in self._unreadable)
        return {"unreadable": sorted(names)}

    def _find_labels(self, manifest: ArchiveManifest) -> dict[str, str]:
        labels: dict[str, str] = {}
        for entry in manifest.entries:
            if entry.id is not None and entry.kind not in PART_KINDS:
                labels[str(entry.id)] = entry.path
            data = self.read(entry.path) if entry.kind in {"chat", "campaign", "links"} else b""
            if entry.kind == "chat":
                labels |= _label_messages(data, entry.path)
            elif entry.kind == "campaign":
                labels |= _label_campaign(_unpack(data), entry.path)
            elif entry.kind == "links":
                books = read_record(data, LinkList).characters
                labels |= {str(each.book_id): f"{each.id}#book" for each in books if each.book_id}
            elif entry.kind == "campaign_state":
                state = read_record(self.read(entry.path), CampaignState)
                home = entry.path.removesuffix(STATE_SUFFIX)
                labels[str(state.chronicle_id)] = f"{home}#chronicle"
        # The label of a card's book names the character by its id.
        for old, label in labels.items():
            character_id, _, part = label.partition("#")
            if part == "book" and character_id in labels:
                labels[old] = f"{labels[character_id]}#book"
        return labels

    def _replace_ids(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._replace_text(value)
        if isinstance(value, list):
            return [self._replace_ids(each) for each in cast("Any", value)]
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {
                self._replace_text(key): self._replace_ids(member)
                for key, member in members.items()
            }
        return value

    def _replace_text(self, text: str) -> str:
        return ID_PATTERN.sub(lambda found: self._labels.get(found[0], found[0]), text)


def _label_messages(data: bytes, label: str) -> dict[str, str]:
    """Label the messages of a chat by their numbers. A damaged chat has none."""
    try:
        log = read_log(data)
    except AppError as error:
        raise TransferFileError(f"{label} is damaged: {error.detail}") from error
    labels = {str(log.head.id): label}
    labels |= {str(line.id): f"{label}#{number}" for number, line in enumerate(log.lines, 1)}
    return labels


def _label_campaign(files: Mapping[str, bytes], label: str) -> dict[str, str]:
    try:
        ids = list_item_ids(files)
    except AppError as error:
        raise TransferFileError(f"{label} is damaged: {error.detail}") from error
    labels = {str(each): f"{label}#item-{number}" for number, each in enumerate(ids, 1)}
    for path, data in files.items():
        if path.endswith(".jsonl"):
            labels |= _label_messages(data, f"{label}#{path}")
    return labels


def _open_content(entry: ArchiveEntry, data: bytes) -> dict[str, Any]:
    """Return the content of a file as JSON values."""
    if entry.kind in _PICTURE_KINDS:
        return {"sha256": sha256(data).hexdigest()}
    if entry.kind == "character":
        return _open_card(data)
    if entry.kind == "chat":
        return {"lines": _open_lines(data)}
    if entry.kind == "campaign":
        return {
            path: _open_lines(content) if path.endswith(".jsonl") else msgspec.json.decode(content)
            for path, content in _unpack(data).items()
        }
    return {"content": msgspec.json.decode(data)}


def _open_card(data: bytes) -> dict[str, Any]:
    """Return a card, and digests of its picture and its files."""
    read = read_card(data)
    files: dict[str, str] = {each.path: sha256(each.data).hexdigest() for each in read.assets}
    picture = b""
    if data.startswith(SIGNATURE):
        picture = remove_texts(data)
    elif read.avatar is not None:
        picture = read.avatar
    return {
        "card": msgspec.to_builtins(read.card),
        "source": read.raw,
        "picture": sha256(picture).hexdigest() if picture else None,
        "files": files,
    }


def _open_lines(data: bytes) -> list[Any]:
    lines: Sequence[bytes] = data.rstrip(b"\n").split(b"\n")
    return [msgspec.json.decode(line) for line in lines]


def _unpack(data: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as inner:
            return {name: inner.read(name) for name in inner.namelist()}
    except ZIP_ERRORS as error:
        raise TransferFileError("A campaign's zip file is damaged.") from error
