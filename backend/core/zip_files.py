"""The exceptions of `zipfile`, properties of entries that every reader can read, and a writer."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import Any

DAMAGED_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    ValueError,
    OverflowError,
)
"""Exceptions that `zipfile` raises for invalid, encrypted or unsupported content."""

ZIP_ERRORS = (*DAMAGED_ZIP_ERRORS, OSError)
"""The same, with the errors of offsets outside the file. Not if the disk may fail."""

COMPRESSION_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
ENCRYPTED_FLAG = 0x1


class ZipStream:
    """Writes a zip, one entry after the other. Each method returns the bytes that are ready."""

    def __init__(self) -> None:
        self._ready = _Ready()
        self._zip = zipfile.ZipFile(self._ready, "w")
        self._entry: Any = None

    def begin(self, path: str, *, is_compressed: bool = False) -> None:
        info = zipfile.ZipInfo(path)
        info.compress_type = zipfile.ZIP_STORED if is_compressed else zipfile.ZIP_DEFLATED
        self._entry = self._zip.open(info, "w", force_zip64=True)

    def put(self, path: str, data: bytes, *, is_compressed: bool = False) -> bytes:
        """Write a whole entry."""
        self.begin(path, is_compressed=is_compressed)
        return self.write(data) + self.end()

    def write(self, data: bytes) -> bytes:
        self._entry.write(data)
        return self._ready.take()

    def end(self) -> bytes:
        self._entry.close()
        return self._ready.take()

    def close(self) -> bytes:
        self._zip.close()
        return self._ready.take()


class _Ready(io.RawIOBase):
    """A file that cannot be sought, and is emptied after each step."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        return len(part)

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data
