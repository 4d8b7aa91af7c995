"""What a card's `assets` point to, and which of them is its picture."""

from __future__ import annotations

import binascii
import mimetypes
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import unquote, unquote_to_bytes

from backend.characters.cards.model import CardAsset

EMBEDDED_SCHEMES = ("embeded://", "embedded://")
"""The format's own spelling, and the one that people write."""

RISU_SCHEME = "__asset:"
"""RisuAI's, for a file that is inside the card's PNG."""

_SLICE = 64 * 1024
"""Characters of a data URI that are decoded at once."""

OCTETS = "application/octet-stream"
_MEDIA = ("image/", "audio/", "video/", "font/")
_ACTIVE = {"image/svg+xml"}
# Python's own table: the global one also reads the machine's files, which differ.
_TYPES = mimetypes.MimeTypes()


def media_type(path: str) -> str:
    """The media type that the extension stands for; `OCTETS` for all but passive media."""
    guess, _ = _TYPES.guess_type(path, strict=False)
    return guess if guess and guess.startswith(_MEDIA) and guess not in _ACTIVE else OCTETS


def embedded_path(uri: str) -> str | None:
    """The path that an `embeded://` URI names, None for any other URI."""
    for scheme in EMBEDDED_SCHEMES:
        if uri.lower().startswith(scheme):
            return uri[len(scheme) :]
    return None


def resolve(asset: CardAsset, files: Mapping[str, bytes]) -> bytes | None:
    """The bytes behind an asset, None where they are not in the file. Nothing is fetched."""
    path = embedded_path(asset.uri)
    if path is not None:
        return files.get(path, files.get(unquote(path)))
    if asset.uri[:5].lower() == "data:":
        return _data_uri(asset.uri)
    return None


def _data_uri(uri: str) -> bytes | None:
    """Source: RFC 2397."""
    header, comma, body = uri.partition(",")
    if not comma:
        return None
    if not header.lower().endswith(";base64"):
        return _unquoted(body)
    try:
        return binascii.a2b_base64(_unquoted(body))
    except binascii.Error:
        return None


def _unquoted(text: str) -> bytes:
    """The bytes behind `%XX`. In slices: the library's function takes 200 bytes for each `%`."""
    parts: list[bytes] = []
    start = 0
    while start < len(text):
        end = start + _SLICE
        # Not in the middle of `%XX`; what begins with another `%` is none.
        percent = text.rfind("%", max(start + 1, end - 2), end)
        end = percent if percent > 0 else end
        parts.append(unquote_to_bytes(text[start:end]))
        start = end
    return b"".join(parts)


def icons(assets: Iterable[CardAsset]) -> list[CardAsset]:
    """The icons among the assets, the one named `main` first."""
    found = [asset for asset in assets if asset.type == "icon"]
    return sorted(found, key=lambda asset: asset.name != "main")


def main_icon(assets: Iterable[CardAsset], files: Mapping[str, bytes]) -> bytes | None:
    """The picture of the character: the first of its icons that the file holds."""
    pictures = (resolve(icon, files) for icon in icons(assets))
    return next((picture for picture in pictures if picture), None)


def missing(
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
