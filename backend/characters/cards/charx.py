"""CHARX: a zip archive with `card.json` at its root and the assets beside it.

Unpacked in memory only; a name never becomes a path on a disk.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import zipfile
import zlib

from backend.characters.cards.limits import ARCHIVE_BYTES, ARCHIVE_ENTRIES, ARCHIVE_RATIO
from backend.characters.errors import CardError

CARD_NAME = "card.json"

_FIRST_ENTRY = b"PK\x03\x04"
_DIRECTORY_ENTRY = b"PK\x01\x02"
_DIRECTORY_END = b"PK\x05\x06"
_DIRECTORY_END_REACH = 22 + 0xFFFF
"""The end record and the longest comment that may follow it."""

_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_ENCRYPTED = 0x1
_BLOCK = 64 * 1024
_DRIVE = re.compile(r"[A-Za-z]:")

_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    OSError,
    ValueError,
    OverflowError,
)
"""What `zipfile` lets through when headers make no sense."""


def is_archive(data: bytes) -> bool:
    """Whether there is a zip in `data`, be it behind other bytes (a picture, say)."""
    return data.startswith(_FIRST_ENTRY) or _DIRECTORY_END in data[-_DIRECTORY_END_REACH:]


def unpack(data: bytes) -> dict[str, bytes]:
    """The files of the archive by path, `/` between the parts.

    Raises:
        CardError: Broken, encrypted, or with an entry that is no plain file under a safe name.
        CardLimitError: Too many entries, too many bytes, or packed too tightly. Bytes are
            counted as they are unpacked; what the headers claim is not believed.
    """
    # Before `zipfile` builds an object for each: half a million fit into 20 MB.
    ARCHIVE_ENTRIES.check(data.count(_DIRECTORY_ENTRY), "The archive")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _read_entries(archive, packed_size=len(data))
    except _BROKEN as error:
        raise CardError("The CHARX archive is broken.") from error


def _read_entries(archive: zipfile.ZipFile, *, packed_size: int) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    total = 0
    for entry in archive.infolist():
        path = safe_path(entry.orig_filename)
        _check_kind(entry)
        if path in files:
            raise CardError("The CHARX archive has two entries of the same name.")
        if path.endswith("/"):
            continue
        parts: list[bytes] = []
        with archive.open(entry) as stream:
            while block := stream.read(_BLOCK):
                total += len(block)
                ARCHIVE_BYTES.check(total, "The archive")
                # Rounded up, so that anything over the ratio counts as over it.
                ARCHIVE_RATIO.check(-(-total // packed_size), "The archive")
                parts.append(block)
        files[path] = b"".join(parts)
        if len(files[path]) != entry.file_size:
            raise CardError("The CHARX archive has an entry of another size than it states.")
    return files


def safe_path(name: str) -> str:
    """`name` with `/` between its parts.

    Raises:
        CardError: It is absolute, climbs out with `..`, or has a NUL in it.
    """
    path = name.replace("\\", "/")
    climbs = ".." in path.split("/")
    if not path or climbs or path.startswith("/") or _DRIVE.match(path) or "\0" in path:
        raise CardError("The CHARX archive has an entry whose path leads out of it.")
    return path


def _check_kind(entry: zipfile.ZipInfo) -> None:
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        raise CardError("The CHARX archive has a link, or something else that is no file.")
    if entry.flag_bits & _ENCRYPTED:
        raise CardError("The CHARX archive is encrypted.")
    if entry.compress_type not in _METHODS:
        raise CardError("The CHARX archive is compressed in another way than by deflate.")


def pack(files: dict[str, bytes]) -> bytes:
    """An archive of `files`, in their order; the same bytes for the same files.

    Stored, not compressed: media are compressed already, and a card is small beside them.
    """
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path), data)
    return target.getvalue()
