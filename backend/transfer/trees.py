"""Trees of files: a zip, a folder on disk, a single file.

Entries that cannot be read safely are `refused`, each with its reason. The other files can be
imported. Contents are counted while they are read, because headers of zips can lie.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from backend.characters.cards.charx import normalise_path
from backend.characters.errors import CardError
from backend.core.cpu_pool import check_stopped
from backend.core.zip_files import COMPRESSION_METHODS, ENCRYPTED_FLAG, ZIP_ERRORS
from backend.transfer.contracts import FileTree
from backend.transfer.errors import TransferFileError
from backend.transfer.recognition import is_package

MEGABYTE = 1024 * 1024
MAX_FILES = 100_000
MAX_DEPTH = 20
"""Maximum number of folders in a path."""
MAX_PATH_CHARACTERS = 1_000
MAX_FILE_BYTES = 4 * 1024 * MEGABYTE
MAX_TREE_BYTES = 16 * 1024 * MEGABYTE
MAX_RATIO = 200
"""Maximum ratio of a file's size to its compressed size, above `FREE_BYTES`. Chats reach 20."""
FREE_BYTES = 16 * MEGABYTE
"""Small files may have any ratio."""
MAX_DIRECTORY_BYTES = 64 * MEGABYTE
"""Maximum size of a zip's list of entries, which `zipfile` reads at once."""

ZIP_SIGNATURES = (b"PK\x03\x04", b"PK\x05\x06")
"""The first bytes of a zip, and of a zip without entries."""

_DIRECTORY_ENTRY = b"PK\x01\x02"
_DIRECTORY_ENTRY_BYTES = 46
"""Minimum size of an entry in the list of entries."""

_UTF8_NAME = 0x800
_UNICODE_PATH = 0x7075
"""Extra field of Info-ZIP: the name in UTF-8, with the CRC of the other name."""

_IGNORED_NAMES = frozenset({".ds_store", "thumbs.db", "desktop.ini", "__macosx", ".git"})
"""Files and folders that operating systems add."""


@dataclass(frozen=True, slots=True)
class FileRefusal:
    """An entry that cannot be read, as the user sees it, and the reason."""

    path: str
    reason: str


class SafeTree(FileTree):
    """A tree with checked paths.

    Args:
        name: The name of the zip, folder or file, as the user sees it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.refused: list[FileRefusal] = []

    @property
    def name(self) -> str:
        return self._name

    def close(self) -> None:
        """Close the files that the tree has opened."""


class SingleFileTree(SafeTree):
    """A tree with one file. Its path is its name. `open_file` opens it again each time."""

    def __init__(self, name: str, size: int, open_file: Callable[[], BinaryIO]) -> None:
        super().__init__(name)
        self._size = size
        self._open = open_file

    def list_paths(self) -> Sequence[str]:
        return (self.name,)

    def get_size(self, path: str) -> int:
        return self._size if path == self.name else 0

    def open(self, path: str) -> BinaryIO:
        if path != self.name:
            raise _make_missing_error()
        return self._open()


class FolderTree(SafeTree):
    """The files below a folder of this machine. Links that leave the folder are refused."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.resolve().name or str(folder))
        self._root = folder.resolve()
        self._files: dict[str, tuple[Path, int]] = {}
        for place, path in _walk(self._root):
            self._add(place, path)
        _check_total(size for _, size in self._files.values())

    def list_paths(self) -> Sequence[str]:
        return tuple(self._files)

    def get_size(self, path: str) -> int:
        return self._files[path][1] if path in self._files else 0

    def open(self, path: str) -> BinaryIO:
        if path not in self._files:
            raise _make_missing_error()
        place, _ = self._files[path]
        try:
            file = place.open("rb")
        except OSError as error:
            raise TransferFileError(
                f"The file cannot be read ({os.strerror(error.errno or 0)})."
            ) from error
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise TransferFileError("This is not a plain file.")
        return file

    def _add(self, place: Path, path: str) -> None:
        try:
            found, target = place.stat(), place.resolve()
        except OSError as error:
            reason = f"The file cannot be read ({os.strerror(error.errno or 0)})."
            self.refused.append(FileRefusal(path, reason))
            return
        if not target.is_relative_to(self._root):
            self.refused.append(FileRefusal(path, "This is a link to a place outside the folder."))
        elif stat.S_ISDIR(found.st_mode):
            self.refused.append(FileRefusal(path, "Links to folders are not followed."))
        elif not stat.S_ISREG(found.st_mode):
            self.refused.append(FileRefusal(path, "This is not a plain file."))
        elif reason := _find_fault(path, found.st_size):
            self.refused.append(FileRefusal(path, reason))
        elif path in self._files:
            self.refused.append(FileRefusal(path, "Another file has the same name."))
        else:
            self._files[path] = place, found.st_size
            _check_count(len(self._files) + len(self.refused))


def _walk(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the places and paths of all entries except folders, in the order of their paths.

    A name that is not valid UTF-8 is shown with replacement characters.
    """
    folders: list[tuple[Path, str]] = [(root, "")]
    while folders:
        check_stopped()
        place, path = folders.pop()
        try:
            with os.scandir(place) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            yield place, path.rstrip("/")
            continue
        below: list[tuple[Path, str]] = []
        for entry in entries:
            name = os.fsencode(entry.name).decode(errors="replace")
            if _is_ignored(name):
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and path.count("/") <= MAX_DEPTH:
                below.append((place / entry.name, f"{path}{name}/"))
            else:
                yield place / entry.name, f"{path}{name}"
        folders += reversed(below)


class ZipTree(SafeTree):
    """The files in a zip, up to many gigabytes. Nothing is unpacked to disk.

    Raises `TransferFileError` if the zip is broken or exceeds a limit as a whole.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        super().__init__(name)
        self._guard = _DirectoryGuard(file)
        self._entries: dict[str, zipfile.ZipInfo] = {}
        try:
            self._zip = zipfile.ZipFile(self._guard)
        except ZIP_ERRORS as error:
            raise TransferFileError(
                "The zip file is broken. Make it again, or upload it again if it was cut."
            ) from error
        infos = self._zip.infolist()
        _check_count(len(infos))
        for entry in infos:
            check_stopped()
            self._add(entry)
        _check_total(entry.file_size for entry in self._entries.values())

    def list_paths(self) -> Sequence[str]:
        return tuple(self._entries)

    def get_size(self, path: str) -> int:
        entry = self._entries.get(path)
        return 0 if entry is None else entry.file_size

    def open(self, path: str) -> BinaryIO:
        entry = self._entries.get(path)
        if entry is None:
            raise _make_missing_error()
        try:
            file = self._zip.open(entry)
        except ZIP_ERRORS as error:
            raise _make_broken_error() from error
        return io.BufferedReader(_EntryReader(file, entry))

    def close(self) -> None:
        self._zip.close()

    def _add(self, entry: zipfile.ZipInfo) -> None:
        raw = _read_name(entry)
        try:
            path = _clean_path(normalise_path(raw))
        except CardError:
            self.refused.append(FileRefusal(_make_printable(raw), "The path leaves the zip file."))
            return
        if _is_folder(entry) or any(_is_ignored(part) for part in path.split("/")):
            return
        if reason := _find_entry_fault(entry) or _find_fault(path, entry.file_size):
            self.refused.append(FileRefusal(_make_printable(path), reason))
        elif path in self._entries:
            number = 2 + sum(each.path.startswith(path) for each in self.refused)
            self.refused.append(
                FileRefusal(f"{path} ({number})", "The zip file has two entries of the same name.")
            )
        else:
            self._entries[path] = entry


class _DirectoryGuard(io.BufferedReader):
    """Limits the list of entries before `zipfile` makes an object for each of them.

    `zipfile` reads the list in one piece. All its other reads are small.
    """

    def __init__(self, file: BinaryIO) -> None:
        raw = file if isinstance(file, io.RawIOBase) else _Raw(file)
        super().__init__(raw, MEGABYTE // 4)

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = -1 if size is None else size
        if wanted > MAX_DIRECTORY_BYTES:
            raise TransferFileError("The list of files in the zip file is too long.")
        data = super().read(wanted)
        if wanted > MAX_FILES * _DIRECTORY_ENTRY_BYTES:
            _check_count(data.count(_DIRECTORY_ENTRY))
        return data


class _Raw(io.RawIOBase):
    """Makes a raw file of a buffered one."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]  # anything with a buffer
        data = self._file.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class _EntryReader(io.RawIOBase):
    """Reads an entry of a zip, and compares it with its header."""

    def __init__(self, file: IO[bytes], entry: zipfile.ZipInfo) -> None:
        super().__init__()
        self._file = file
        self._expected = entry.file_size
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        check_stopped()
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]  # anything with a buffer
        try:
            data = self._file.read(len(view))
        except ZIP_ERRORS as error:
            raise _make_broken_error() from error
        self._count += len(data)
        if not data and self._count != self._expected:
            raise TransferFileError("The size of the file differs from its entry in the zip file.")
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def _read_name(entry: zipfile.ZipInfo) -> str:
    """Return the name of an entry. Many programs do not declare its encoding.

    Without the flag for UTF-8, `zipfile` decodes a name as code page 437. macOS and others write
    UTF-8 without the flag. Other encodings are not recognised, and their names are kept.
    """
    name = entry.orig_filename
    if entry.flag_bits & _UTF8_NAME:
        return name
    raw = name.encode("cp437", errors="replace")
    try:
        return _read_unicode_path(entry.extra, raw) or raw.decode()
    except (UnicodeDecodeError, struct.error):
        return name


def _read_unicode_path(extra: bytes, raw: bytes) -> str:
    """Return the name in the extra field of Info-ZIP, if it belongs to the name `raw`."""
    while len(extra) >= 4:  # noqa: PLR2004  # the head of a field
        kind, size = struct.unpack_from("<HH", extra)
        body, extra = extra[4 : 4 + size], extra[4 + size :]
        if kind == _UNICODE_PATH:
            version, crc = struct.unpack_from("<BI", body)
            if version == 1 and crc == zlib.crc32(raw):
                return body[5:].decode()
    return ""


def _find_entry_fault(entry: zipfile.ZipInfo) -> str:
    """Return the reason why an entry of a zip cannot be read, or an empty string."""
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in {0, stat.S_IFREG}:
        return "This is a link or another special file."
    if entry.flag_bits & ENCRYPTED_FLAG:
        return "The file is encrypted. Make a zip file without a password."
    if entry.compress_type not in COMPRESSION_METHODS:
        return (
            f"The file uses an unsupported compression (method {entry.compress_type}). "
            "Make the zip file with deflate, the usual method."
        )
    if entry.file_size > max(FREE_BYTES, entry.compress_size * MAX_RATIO):
        return f"The file is compressed to less than 1/{MAX_RATIO} of its size."
    return ""


def _find_fault(path: str, size: int) -> str:
    """Return the reason why a file of any tree cannot be read, or an empty string."""
    if path.count("/") > MAX_DEPTH:
        return f"The file is in more than {MAX_DEPTH} folders."
    if len(path) > MAX_PATH_CHARACTERS:
        return f"The path has more than {MAX_PATH_CHARACTERS:,} characters."
    if size > MAX_FILE_BYTES:
        return f"The file has {size:,} bytes; {MAX_FILE_BYTES:,} are allowed."
    return ""


def _check_count(found: int) -> None:
    if found > MAX_FILES:
        raise TransferFileError(
            f"There are more than {MAX_FILES:,} files. Import a smaller part of them."
        )


def _check_total(sizes: Iterator[int]) -> None:
    total = sum(sizes)
    if total > MAX_TREE_BYTES:
        raise TransferFileError(
            f"The files have {total:,} bytes; {MAX_TREE_BYTES:,} are allowed. Import a part."
        )


def _clean_path(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in {"", "."})


def _is_folder(entry: zipfile.ZipInfo) -> bool:
    name = entry.orig_filename
    return name.endswith(("/", "\\")) and not entry.file_size


def _is_ignored(name: str) -> bool:
    return name.lower() in _IGNORED_NAMES or name.startswith("._")


def _make_printable(path: str) -> str:
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in path)
    return shown[:MAX_PATH_CHARACTERS]


def _make_missing_error() -> TransferFileError:
    return TransferFileError("There is no such file.")


def _make_broken_error() -> TransferFileError:
    return TransferFileError("The file is damaged in the zip file.")


def is_zip(head: bytes) -> bool:
    """True if a file with these first bytes is a zip."""
    return head.startswith(ZIP_SIGNATURES)


def open_path(path: Path) -> SafeTree:
    """Return the tree of a folder, zip or file of this machine. Raises `TransferFileError`."""
    if path.is_dir():
        return FolderTree(path)
    try:
        with path.open("rb") as file:
            return open_file(lambda: path.open("rb"), path.name, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise TransferFileError(
            f"{path} cannot be read ({os.strerror(error.errno or 0)})."
        ) from error


def open_file(open_again: Callable[[], BinaryIO], name: str, size: int) -> SafeTree:
    """Return the tree of a zip, or of a single file. `open_again` opens it at its beginning.

    A zip that is one card or one campaign is a single file. Raises `TransferFileError`.
    """
    with open_again() as file:
        head = file.read(len(ZIP_SIGNATURES[0]))
    if is_zip(head):
        tree = ZipTree(open_again(), name)
        if not is_package(tree.list_paths()):
            return tree
        tree.close()
    return SingleFileTree(name, size, open_again)
