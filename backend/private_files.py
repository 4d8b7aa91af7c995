"""Files that their owner alone can read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from backend.operating_system import sync_folder


def create_private(path: Path, text: str) -> None:
    """Make the file, unless it is there by now: of processes that start together, one makes it."""
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
    """Replace the file as a whole: a crash leaves the old one or the new one."""
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
    """Write the file, and wait until it is on the disk."""

    def open_private(name: str, flags: int) -> int:
        return os.open(name, flags, 0o600)

    with open(path, "x", encoding="utf-8", newline="\n", opener=open_private) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
