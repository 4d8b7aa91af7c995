"""CHARX files, zip archives with `card.json` at the root, and the assets of cards.

Archives are unpacked in memory only. A name never becomes a path on a disk.
"""

from __future__ import annotations

import binascii
import io
import mimetypes
import re
import stat
import zipfile
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
from backend.core.zip_files import COMPRESSION_METHODS, ENCRYPTED_FLAG, ZIP_ERRORS

CARD_NAME = "card.json"

_FIRST_ENTRY = b"PK\x03\x04"
_DIRECTORY_ENTRY = b"PK\x01\x02"
_DIRECTORY_END = b"PK\x05\x06"
_MAX_DIRECTORY_END_BYTES = 22 + 0xFFFF
"""The end record and the longest comment that may follow it."""

_BLOCK_BYTES = 64 * 1024
_DRIVE = re.compile(r"[A-Za-z]:")


def is_archive(data: bytes) -> bool:
    """True if `data` contains a zip archive, even after other data such as a picture."""
    return data.startswith(_FIRST_ENTRY) or _DIRECTORY_END in data[-_MAX_DIRECTORY_END_BYTES:]


def unpack(
    data: bytes, *, label: str = "CHARX archive", entries: Limit = ARCHIVE_ENTRIES
) -> dict[str, bytes]:
    """Return the files of an archive by path. `label` is its name in messages.

    Raises:
        CardError: Broken or encrypted, or an entry is not a plain file with a safe name.
        CardLimitError: Too many entries or bytes, or too strong a compression. Bytes are counted
            while they are unpacked, because headers can lie.
    """
    # Checked first, because `zipfile` builds an object for each entry and 20 MB can have 500,000.
    entries.check(data.count(_DIRECTORY_ENTRY), "The archive")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _read_entries(archive, label, packed_size=len(data))
    except ZIP_ERRORS as error:
        raise CardError(f"The {label} is broken.") from error


def _read_entries(archive: zipfile.ZipFile, label: str, *, packed_size: int) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    total = 0
    for entry in archive.infolist():
        path = normalise_path(entry.orig_filename, label)
        _check_kind(entry, label)
        if path in files:
            raise CardError(f"The {label} has two entries of the same name.")
        if path.endswith("/"):
            continue
        parts: list[bytes] = []
        with archive.open(entry) as stream:
            while block := stream.read(_BLOCK_BYTES):
                total += len(block)
                ARCHIVE_BYTES.check(total, "The archive")
                # Rounded up, so that a fraction above the ratio exceeds it.
                ARCHIVE_RATIO.check(-(-total // packed_size), "The archive")
                parts.append(block)
        files[path] = b"".join(parts)
        if len(files[path]) != entry.file_size:
            raise CardError(f"The {label} has an entry whose size differs from its header.")
    return files


def normalise_path(name: str, label: str = "CHARX archive") -> str:
    """Return `name` with `/` as the separator.

    Raises `CardError` if it is absolute, or contains `..` or a NUL.
    """
    path = name.replace("\\", "/")
    climbs = ".." in path.split("/")
    if not path or climbs or path.startswith("/") or _DRIVE.match(path) or "\0" in path:
        raise CardError(f"The {label} has an entry with a path outside the archive.")
    return path


def _check_kind(entry: zipfile.ZipInfo, label: str) -> None:
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        raise CardError(f"The {label} contains a link or another special file.")
    if entry.flag_bits & ENCRYPTED_FLAG:
        raise CardError(f"The {label} is encrypted.")
    if entry.compress_type not in COMPRESSION_METHODS:
        raise CardError(f"The {label} uses a compression other than deflate.")


def pack(files: Mapping[str, bytes], *, deflated: bool = False) -> bytes:
    """Return an archive of `files`, in their order. The same files give the same bytes.

    Files are stored unless `deflated`, because media are compressed already and cards are small.
    """
    method = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for path, data in files.items():
            check_stopped()
            archive.writestr(zipfile.ZipInfo(path), data, compress_type=method)
    return target.getvalue()


EMBEDDED_SCHEMES = ("embeded://", "embedded://")
"""The spelling of the format, and the correct one, which some tools write."""

RISU_SCHEME = "__asset:"
"""RisuAI's scheme for a file inside the card's PNG."""

SLICE_CHARACTERS = 64 * 1024
"""Characters of a data URI that are decoded at once."""

OCTET_STREAM = "application/octet-stream"
_PASSIVE_TYPES = ("image/", "audio/", "video/", "font/")
_ACTIVE_TYPES = {"image/svg+xml"}
# The global table of `mimetypes` also depends on files of the machine.
_TYPES = mimetypes.MimeTypes()


def guess_media_type(path: str) -> str:
    """Return the media type for the extension, or `OCTET_STREAM` unless it is passive media."""
    guess, _ = _TYPES.guess_type(path, strict=False)
    return (
        guess
        if guess and guess.startswith(_PASSIVE_TYPES) and guess not in _ACTIVE_TYPES
        else OCTET_STREAM
    )


def find_embedded_path(uri: str) -> str | None:
    """Return the path of an `embeded://` URI, or None for another URI."""
    for scheme in EMBEDDED_SCHEMES:
        if uri.lower().startswith(scheme):
            return uri[len(scheme) :]
    return None


def resolve(asset: CardAsset, files: Mapping[str, bytes]) -> bytes | None:
    """Return the data of an asset, or None if the file does not contain it. Nothing is fetched."""
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
        return unquote_in_slices(body)
    try:
        return binascii.a2b_base64(unquote_in_slices(body))
    except binascii.Error:
        return None


def unquote_in_slices(text: str) -> bytes:
    """Decode `%XX` in slices, because the library's function takes 200 bytes for each `%`."""
    parts: list[bytes] = []
    start = 0
    while start < len(text):
        end = start + SLICE_CHARACTERS
        # End the slice before a `%` among its last two characters, so that no `%XX` is split.
        percent = text.rfind("%", max(start + 1, end - 2), end)
        end = percent if percent > 0 else end
        parts.append(unquote_to_bytes(text[start:end]))
        start = end
    return b"".join(parts)


def list_icons(assets: Iterable[CardAsset]) -> list[CardAsset]:
    """Return the icons among the assets, with `main` first."""
    found = [asset for asset in assets if asset.type == "icon"]
    return sorted(found, key=lambda asset: asset.name != "main")


def find_main_icon(assets: Iterable[CardAsset], files: Mapping[str, bytes]) -> bytes | None:
    """Return the picture of the character: the first icon that the file contains."""
    pictures = (resolve(icon, files) for icon in list_icons(assets))
    return next((picture for picture in pictures if picture), None)


def describe_missing(
    assets: Iterable[CardAsset], files: Mapping[str, bytes], inside: Collection[str] = ()
) -> list[str]:
    """Return a warning if assets are missing. `inside` are URIs that the file contains."""
    known = {"", "ccdefault:", *inside}
    missing = [
        asset for asset in assets if asset.uri not in known and resolve(asset, files) is None
    ]
    if not missing:
        return []
    count = "1 is" if len(missing) == 1 else f"{len(missing):,} are"
    return [f"The file does not contain every asset of the card: {count} missing."]
