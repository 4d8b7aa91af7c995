"""CHARX, a zip archive with `card.json` at its root, and what the `assets` of a card point to.

Unpacked in memory only; a name never becomes a path on a disk.
"""

from __future__ import annotations

import binascii
import io
import mimetypes
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import unquote, unquote_to_bytes

from backend.characters.cards.model import (
    ARCHIVE_BYTES,
    ARCHIVE_ENTRIES,
    ARCHIVE_RATIO,
    CardAsset,
    Limit,
)
from backend.characters.errors import CardError
from backend.core.cpu_pool import check_stopped

CARD_NAME = "card.json"

_FIRST_ENTRY = b"PK\x03\x04"
_DIRECTORY_ENTRY = b"PK\x01\x02"
_DIRECTORY_END = b"PK\x05\x06"
_MAX_DIRECTORY_END_BYTES = 22 + 0xFFFF
"""The end record and the longest comment that may follow it."""

_COMPRESSION_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_ENCRYPTED = 0x1
_BLOCK_BYTES = 64 * 1024
_DRIVE = re.compile(r"[A-Za-z]:")

_ZIP_ERRORS = (
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
    return data.startswith(_FIRST_ENTRY) or _DIRECTORY_END in data[-_MAX_DIRECTORY_END_BYTES:]


def unpack(
    data: bytes, *, what: str = "CHARX archive", entries: Limit = ARCHIVE_ENTRIES
) -> dict[str, bytes]:
    """The files of the archive by path, `/` between the parts.

    Args:
        data: The zip file.
        what: What messages call it.
        entries: How many entries it may have.

    Raises:
        CardError: Broken, encrypted, or with an entry that is no plain file under a safe name.
        CardLimitError: Too many entries, too many bytes, or packed too tightly. Bytes are
            counted as they are unpacked; what the headers claim is not believed.
    """
    # Before `zipfile` builds an object for each: half a million fit into 20 MB.
    entries.check(data.count(_DIRECTORY_ENTRY), "The archive")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _read_entries(archive, what, packed_size=len(data))
    except _ZIP_ERRORS as error:
        raise CardError(f"The {what} is broken.") from error


def _read_entries(archive: zipfile.ZipFile, what: str, *, packed_size: int) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    total = 0
    for entry in archive.infolist():
        path = normalise_path(entry.orig_filename, what)
        _check_kind(entry, what)
        if path in files:
            raise CardError(f"The {what} has two entries of the same name.")
        if path.endswith("/"):
            continue
        parts: list[bytes] = []
        with archive.open(entry) as stream:
            while block := stream.read(_BLOCK_BYTES):
                total += len(block)
                ARCHIVE_BYTES.check(total, "The archive")
                # Rounded up, so that anything over the ratio counts as over it.
                ARCHIVE_RATIO.check(-(-total // packed_size), "The archive")
                parts.append(block)
        files[path] = b"".join(parts)
        if len(files[path]) != entry.file_size:
            raise CardError(f"The {what} has an entry whose size differs from its header.")
    return files


def normalise_path(name: str, what: str = "CHARX archive") -> str:
    """`name` with `/` between its parts.

    Raises:
        CardError: It is absolute, climbs out with `..`, or has a NUL in it.
    """
    path = name.replace("\\", "/")
    climbs = ".." in path.split("/")
    if not path or climbs or path.startswith("/") or _DRIVE.match(path) or "\0" in path:
        raise CardError(f"The {what} has an entry with a path outside the archive.")
    return path


def _check_kind(entry: zipfile.ZipInfo, what: str) -> None:
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        raise CardError(f"The {what} contains a link or another special file.")
    if entry.flag_bits & _ENCRYPTED:
        raise CardError(f"The {what} is encrypted.")
    if entry.compress_type not in _COMPRESSION_METHODS:
        raise CardError(f"The {what} uses a compression other than deflate.")


def pack(files: Mapping[str, bytes], *, deflated: bool = False) -> bytes:
    """An archive of `files`, in their order; the same bytes for the same files.

    Stored unless `deflated`: media are compressed already, and a card is small beside them.
    """
    method = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for path, data in files.items():
            check_stopped()
            archive.writestr(zipfile.ZipInfo(path), data, compress_type=method)
    return target.getvalue()


EMBEDDED_SCHEMES = ("embeded://", "embedded://")
"""The format's own spelling, and the one that people write."""

RISU_SCHEME = "__asset:"
"""RisuAI's, for a file that is inside the card's PNG."""

_SLICE_CHARACTERS = 64 * 1024
"""Characters of a data URI that are decoded at once."""

OCTET_STREAM = "application/octet-stream"
_PASSIVE_TYPES = ("image/", "audio/", "video/", "font/")
_ACTIVE_TYPES = {"image/svg+xml"}
# Python's own table: the global one also reads the machine's files, which differ.
_TYPES = mimetypes.MimeTypes()


def guess_media_type(path: str) -> str:
    """The media type that the extension stands for; `OCTET_STREAM` for all but passive media."""
    guess, _ = _TYPES.guess_type(path, strict=False)
    return (
        guess
        if guess and guess.startswith(_PASSIVE_TYPES) and guess not in _ACTIVE_TYPES
        else OCTET_STREAM
    )


def find_embedded_path(uri: str) -> str | None:
    """The path that an `embeded://` URI names, None for any other URI."""
    for scheme in EMBEDDED_SCHEMES:
        if uri.lower().startswith(scheme):
            return uri[len(scheme) :]
    return None


def resolve(asset: CardAsset, files: Mapping[str, bytes]) -> bytes | None:
    """The bytes behind an asset, None where they are not in the file. Nothing is fetched."""
    path = find_embedded_path(asset.uri)
    if path is not None:
        return files.get(path, files.get(unquote(path)))
    if asset.uri[:5].lower() == "data:":
        return _decode_data_uri(asset.uri)
    return None


def _decode_data_uri(uri: str) -> bytes | None:
    """Source: RFC 2397."""
    header, comma, body = uri.partition(",")
    if not comma:
        return None
    if not header.lower().endswith(";base64"):
        return _unquote(body)
    try:
        return binascii.a2b_base64(_unquote(body))
    except binascii.Error:
        return None


def _unquote(text: str) -> bytes:
    """The bytes behind `%XX`. In slices: the library's function takes 200 bytes for each `%`."""
    parts: list[bytes] = []
    start = 0
    while start < len(text):
        end = start + _SLICE_CHARACTERS
        # Not in the middle of `%XX`; what begins with another `%` is none.
        percent = text.rfind("%", max(start + 1, end - 2), end)
        end = percent if percent > 0 else end
        parts.append(unquote_to_bytes(text[start:end]))
        start = end
    return b"".join(parts)


def list_icons(assets: Iterable[CardAsset]) -> list[CardAsset]:
    """The icons among the assets, the one named `main` first."""
    found = [asset for asset in assets if asset.type == "icon"]
    return sorted(found, key=lambda asset: asset.name != "main")


def find_main_icon(assets: Iterable[CardAsset], files: Mapping[str, bytes]) -> bytes | None:
    """The picture of the character: the first of its icons that the file holds."""
    pictures = (resolve(icon, files) for icon in list_icons(assets))
    return next((picture for picture in pictures if picture), None)


def describe_missing(
    assets: Iterable[CardAsset], files: Mapping[str, bytes], inside: Collection[str] = ()
) -> list[str]:
    """Warnings about assets that the file does not hold. It holds those `inside`, by their URI."""
    held = {"", "ccdefault:", *inside}
    elsewhere = [
        asset for asset in assets if asset.uri not in held and resolve(asset, files) is None
    ]
    if not elsewhere:
        return []
    count = "1 is" if len(elsewhere) == 1 else f"{len(elsewhere):,} are"
    return [f"The file does not hold every asset of the card: {count} elsewhere."]
