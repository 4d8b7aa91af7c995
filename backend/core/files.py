"""Portable file names, and files that only their owner can read."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from backend.core.operating_system import sync_folder

_STEM_LENGTH = 80
_MAX_BYTES = 200
"""Limit for the bytes of a name. Most file systems allow 255; an extension or a number is added."""

# Path separators, and characters that Windows does not allow in names.
_FORBIDDEN = re.compile(r'[<>:"/\\|?*]+')
_DEVICES = re.compile(
    r"(?:con|prn|aux|nul|com[\d¹²³]|lpt[\d¹²³]|conin\$|conout\$) *(?:\.|$)", re.IGNORECASE
)
_EXTENSION = re.compile(r"\.[A-Za-z0-9]{1,10}$")


def is_device(name: str) -> bool:
    """True if the name is a device on Windows, with or without an extension."""
    return _DEVICES.match(name) is not None


def file_stem(name: str, *, fallback: str) -> str:
    """Return `name` as a file name without extension: one line, no path, bounded length.

    Device names, and names without an allowed character, become `fallback`.
    """
    words = " ".join(_readable(name).split())
    stem = _cut(words[:_STEM_LENGTH], _MAX_BYTES).strip(" .")
    return fallback if not stem or is_device(stem) else stem


def portable_paths(paths: Iterable[str]) -> dict[str, str]:
    """Map the paths of an archive to paths that every system can unpack.

    A portable path stays as it is, unless it differs only in case from an earlier one.
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for path in paths:
        portable = "/".join(_portable_part(part) for part in path.split("/"))
        stem, extension = _split(portable)
        number = 2
        while portable.casefold() in taken:
            portable = f"{stem}-{number}{extension}"
            number += 1
        taken.add(portable.casefold())
        found[path] = portable
    return found


def _portable_part(part: str) -> str:
    kept = _readable(part, instead="_").rstrip(" .")
    stem, extension = _split(kept)
    if (cut := _cut(stem, _MAX_BYTES - len(extension))) != stem:
        kept = cut.rstrip(" .") + extension
    return f"_{kept}" if not kept or is_device(kept) else kept


def _readable(text: str, *, instead: str = " ") -> str:
    # Marks for the direction of writing, which can hide extensions, are not printable either.
    printable = "".join(char if char.isprintable() else instead for char in text)
    return _FORBIDDEN.sub(instead, printable)


def _cut(text: str, size: int) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= size else data[:size].decode(errors="ignore")


def _split(path: str) -> tuple[str, str]:
    found = _EXTENSION.search(path)
    return (path, "") if found is None else (path[: found.start()], found[0])


def create_private(path: Path, text: str) -> None:
    """Create the file unless it exists. If several processes start at once, one creates it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    _write(scratch, text)
    try:
        path.hardlink_to(scratch)
    except FileExistsError:
        pass
    finally:
        scratch.unlink()
    sync_folder(path.parent)


def replace_private(path: Path, text: str) -> None:
    """Replace the file atomically."""
    path = path.resolve()
    scratch = path.with_name(path.name + ".new")
    scratch.unlink(missing_ok=True)
    _write(scratch, text)
    try:
        scratch.replace(path)
    except OSError:
        scratch.unlink()
        raise
    sync_folder(path.parent)


def _write(path: Path, text: str) -> None:
    def open_private(name: str, flags: int) -> int:
        return os.open(name, flags, 0o600)

    with open(path, "x", encoding="utf-8", newline="\n", opener=open_private) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
