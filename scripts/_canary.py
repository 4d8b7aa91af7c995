"""A word that must be found nowhere, and the ways in which it could lie somewhere."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

_ZEROS = re.compile(rb"\0{9,}+")
"""Files of an index are mostly that, and to look for a word among zeros is slow."""
ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be")


def disguises(word: str) -> list[bytes]:
    """The word as it would be stored in the clear: encoded, in base64, in hexadecimal digits."""
    found: list[bytes] = []
    for encoding in ENCODINGS:
        data = word.encode(encoding)
        found += [data, data.hex().encode(), data.hex().upper().encode()]
        found += _in_base64(data)
    return found


def _in_base64(data: bytes) -> Iterator[bytes]:
    """What base64 makes of the word, wherever in a longer text it begins."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data)
        # The first letters carry bits of what stands before it, the last ones of what follows.
        first, last = (0, 2, 3)[before], (before + len(data)) // 3 * 4
        yield encoded[first:last]
        yield encoded[first:last].translate(bytes.maketrans(b"+/", b"-_"))


def sightings(needles: list[bytes], haystack: bytes) -> list[bytes]:
    """The places where one of the needles lies, with what stands around them.

    A needle without capitals is found in capitals as well.
    """
    haystack = _ZEROS.sub(b"\0" * 8, haystack)
    lower = haystack.lower()
    found: list[bytes] = []
    for needle in needles:
        place = (lower if needle == needle.lower() else haystack).find(needle)
        if place >= 0:
            found.append(haystack[max(0, place - 80) : place + len(needle) + 80])
    return found


def sightings_in(needles: list[bytes], folder: Path) -> dict[str, list[bytes]]:
    """The same for every file below a folder, by the file's path; empty where there is nothing."""
    found: dict[str, list[bytes]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        places = sightings(needles, str(name).encode())
        if path.is_file():
            places += sightings(needles, path.read_bytes())
        if places:
            found[str(name)] = places
    return found
