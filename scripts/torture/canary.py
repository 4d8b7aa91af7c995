"""A word that must not be stored anywhere, and its possible encodings."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

_ZEROS = re.compile(rb"\0{9,}+")
"""Files of an index are mostly zeros, and searching them is slow."""
ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be")


def disguises(word: str) -> list[bytes]:
    """Return the word in each encoding, in base64 and in hexadecimal digits."""
    found: list[bytes] = []
    for encoding in ENCODINGS:
        data = word.encode(encoding)
        found += [data, data.hex().encode(), data.hex().upper().encode()]
        found += _encode_base64(data)
    return found


def _encode_base64(data: bytes) -> Iterator[bytes]:
    """Yield the word in base64, at each possible offset in a longer text."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data)
        # The first and the last letters also encode bits of the neighbouring text.
        first, last = (0, 2, 3)[before], (before + len(data)) // 3 * 4
        yield encoded[first:last]
        yield encoded[first:last].translate(bytes.maketrans(b"+/", b"-_"))


def sightings(needles: list[bytes], haystack: bytes) -> list[bytes]:
    """Return the places of needles with 80 bytes around each.

    A needle in lower case is also found in upper case.
    """
    haystack = _ZEROS.sub(b"\0" * 8, haystack)
    lower = haystack.lower()
    found: list[bytes] = []
    for needle in needles:
        place = (lower if needle == needle.lower() else haystack).find(needle)
        if place >= 0:
            found.append(haystack[max(0, place - 80) : place + len(needle) + 80])
    return found


def find_in_folder(needles: list[bytes], folder: Path) -> dict[str, list[bytes]]:
    """Return the places in the names and contents of all files of a folder, by path."""
    found: dict[str, list[bytes]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        places = sightings(needles, str(name).encode())
        if path.is_file():
            places += sightings(needles, path.read_bytes())
        if places:
            found[str(name)] = places
    return found
