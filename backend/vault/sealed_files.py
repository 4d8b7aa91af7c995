"""Files on disk that are sealed with a user's key, for uploads and archives.

A file is a series of blocks of the same size, each sealed for its number, so that any part can be
read without the rest. A last, empty block marks the end: a file that was cut does not open.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from backend.vault.sealing import OVERHEAD, Column, SealBrokenError, Sealer

BLOCK_BYTES = 256 * 1024
SEALED_BLOCK_BYTES = BLOCK_BYTES + OVERHEAD


class SealedFileWriter(io.RawIOBase):
    """Writes a sealed file, in order. Only its owner can read the file on disk.

    Args:
        path: The file, which must not exist.
        column: The place that the blocks are bound to, with `file_id`.
    """

    def __init__(self, path: Path, sealer: Sealer, column: Column, file_id: UUID) -> None:
        super().__init__()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags, 0o600)
        self._file: BinaryIO = os.fdopen(descriptor, "wb")
        self._seal = _BlockSealer(sealer, column, file_id)
        self._pending = bytearray()
        self._number = 0
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]  # anything with a buffer
        self._pending += view
        self._size += len(view)
        while len(self._pending) >= BLOCK_BYTES:
            self._write_block(bytes(self._pending[:BLOCK_BYTES]))
            del self._pending[:BLOCK_BYTES]
        return len(view)

    def tell(self) -> int:
        return self._size

    def finish(self) -> int:
        """Write the rest and the end, and wait for the disk. Return the size of the content."""
        if self._pending:
            self._write_block(bytes(self._pending))
            self._pending.clear()
        self._write_block(b"")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()
        return self._size

    def close(self) -> None:
        self._file.close()
        super().close()

    def _write_block(self, data: bytes) -> None:
        self._file.write(self._seal.seal(self._number, data))
        self._number += 1


class SealedFileReader(io.RawIOBase):
    """Reads a sealed file from any position. Raises `SealBrokenError` if it is damaged or cut."""

    def __init__(self, path: Path, sealer: Sealer, column: Column, file_id: UUID) -> None:
        super().__init__()
        self._file = path.open("rb")
        self._seal = _BlockSealer(sealer, column, file_id)
        stored = self._file.seek(0, os.SEEK_END) - OVERHEAD
        self._blocks = -(-stored // SEALED_BLOCK_BYTES)
        self.size = stored - self._blocks * OVERHEAD
        self._position = 0
        self._held: tuple[int, bytes] = (-1, b"")
        if stored < 0 or self._read_sealed(self._blocks, OVERHEAD) != b"":
            self.close()
            raise SealBrokenError

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]  # anything with a buffer
        if self._position >= self.size:
            return 0
        number, start = divmod(self._position, BLOCK_BYTES)
        if self._held[0] != number:
            self._held = number, self._read_block(number)
        part = self._held[1][start : start + len(view)]
        view[: len(part)] = part
        self._position += len(part)
        return len(part)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _read_block(self, number: int) -> bytes:
        is_last = number == self._blocks - 1
        size = self.size - number * BLOCK_BYTES if is_last else BLOCK_BYTES
        return self._read_sealed(number, size + OVERHEAD)

    def _read_sealed(self, number: int, size: int) -> bytes:
        self._file.seek(
            number * SEALED_BLOCK_BYTES if number < self._blocks else -OVERHEAD,
            os.SEEK_SET if number < self._blocks else os.SEEK_END,
        )
        return self._seal.open(number, self._file.read(size))


class _BlockSealer:
    """Seals blocks under an id that is made of the file's id and the block's number."""

    def __init__(self, sealer: Sealer, column: Column, file_id: UUID) -> None:
        self._sealer = sealer
        self._column = column
        self._file_id = file_id

    def seal(self, number: int, data: bytes) -> bytes:
        return self._sealer.seal_bytes(self._column, self._block_id(number), data)

    def open(self, number: int, blob: bytes) -> bytes:
        return self._sealer.open_bytes(self._column, self._block_id(number), blob)

    def _block_id(self, number: int) -> UUID:
        return UUID(int=self._file_id.int ^ number)
