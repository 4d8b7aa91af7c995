"""Writes the zip of an archive, one file after the other."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import BinaryIO, cast

import msgspec

import backend
from backend.core.cpu_pool import check_stopped
from backend.transfer.archives.content import ArchiveFile
from backend.transfer.archives.manifest import (
    MANIFEST,
    MAX_NAME_CHARACTERS,
    MAX_UNREADABLE,
    ArchiveEntry,
    ArchiveManifest,
    UnreadableItem,
)
from backend.vault.sealed_files import SealedFileWriter

_PACKED_SUFFIXES = (".png", ".webp", ".jpg", ".jpeg", ".gif", ".charx", ".zip", ".mp3", ".mp4")
"""Files of these kinds are compressed already, and are stored as they are."""


class _Zip(zipfile.ZipFile):
    """A zip that stays incomplete if it is dropped before it is closed."""

    def __del__(self) -> None:
        """Write nothing. `ZipFile` would write the end to a target that may be closed."""


class ArchiveWriter:
    """Writes files to a zip, and the manifest at its end. CPU-bound.

    Args:
        target: The zip. It is written in order and does not need to be seekable.
        created_at: The time of the manifest and of all files.
    """

    def __init__(self, target: SealedFileWriter | BinaryIO, created_at: datetime) -> None:
        self._zip = _Zip(cast("BinaryIO", target), "w")
        self._created_at = created_at
        self._entries: list[ArchiveEntry] = []

    def add(self, file: ArchiveFile) -> None:
        check_stopped()
        self._write(file.path, file.data)
        self._entries.append(
            ArchiveEntry(
                path=file.path,
                kind=file.kind,
                id=file.id,
                name=file.name[:MAX_NAME_CHARACTERS],
                size=len(file.data),
                sha256=sha256(file.data).hexdigest(),
                chats=list(file.chats),
            )
        )

    def finish(self, unreadable: Sequence[UnreadableItem]) -> None:
        """Write the manifest and the end of the zip."""
        manifest = ArchiveManifest(
            talekeeper=backend.__version__,
            created_at=self._created_at,
            counts=dict(Counter(entry.kind for entry in self._entries)),
            unreadable=list(unreadable[:MAX_UNREADABLE]),
            entries=self._entries,
        )
        self._write(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        self._zip.close()

    def _write(self, path: str, data: bytes) -> None:
        info = zipfile.ZipInfo(path, self._created_at.timetuple()[:6])
        info.external_attr = 0o600 << 16
        is_packed = path.lower().endswith(_PACKED_SUFFIXES)
        info.compress_type = zipfile.ZIP_STORED if is_packed else zipfile.ZIP_DEFLATED
        self._zip.writestr(info, data)
