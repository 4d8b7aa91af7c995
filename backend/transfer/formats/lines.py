"""Read the lines of an untrusted text file as a stream, and convert them to UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import BinaryIO, Final

from backend.core.cpu_pool import check_stopped
from backend.transfer.errors import TransferFileError

CHUNK_BYTES: Final = 64 * 1024
MAX_LINE_BYTES: Final = 8 * 1024 * 1024
MAX_WARNINGS: Final = 50

_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class FileWarnings:
    """Collects warnings about a file. After `MAX_WARNINGS` they are only counted."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._count = 0

    def add(self, text: str) -> None:
        self._count += 1
        if self._count <= MAX_WARNINGS:
            self.found.append(text)
        else:
            self.found[MAX_WARNINGS:] = [f"And {self._count - MAX_WARNINGS:,} more warnings."]


def read_lines(file: BinaryIO, warnings: FileWarnings) -> Iterator[tuple[int, bytes, bool]]:
    """Yield the lines that are not blank: number from 1, text in UTF-8, and if it is complete.

    Only the last line can be incomplete: no line end follows it. A file in UTF-16 is converted.
    Bytes that are not UTF-8 are read as Windows-1252, with a warning. A longer line than
    `MAX_LINE_BYTES` is refused before it is read. Raises `TransferFileError`.
    """
    number, pending = 0, bytearray()
    for chunk in _read_chunks(file):
        check_stopped()
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            pending += chunk[start:end]
            start, number = end + 1, number + 1
            _check_length(pending, number)
            if line := _clean(pending, number, warnings):
                yield number, line, True
            pending.clear()
        pending += chunk[start:]
        _check_length(pending, number + 1)
    if line := _clean(pending, number + 1, warnings):
        yield number + 1, line, False


def _read_chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file's content in UTF-8, without a byte order mark."""
    first = file.read(CHUNK_BYTES)
    while 0 < len(first) < len(codecs.BOM_UTF8) and (more := file.read(CHUNK_BYTES)):
        first += more
    if first.startswith(codecs.BOM_UTF8):
        first = first.removeprefix(codecs.BOM_UTF8)
    encoding = _UTF16.get(first[:2])
    if encoding is None:
        yield first
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    chunk = first[2:]
    while chunk:
        yield decoder.decode(chunk).encode()
        chunk = file.read(CHUNK_BYTES)
    yield decoder.decode(b"", final=True).encode()


def _check_length(line: bytearray, number: int) -> None:
    if len(line) > MAX_LINE_BYTES:
        raise TransferFileError(
            f"Line {number:,} is longer than {MAX_LINE_BYTES // 2**20} MB. "
            "Remove what makes it so long, such as an embedded picture, and try again."
        )


def _clean(line: bytearray, number: int, warnings: FileWarnings) -> bytes:
    text = bytes(line.strip())
    if text.isascii():
        return text
    try:
        text.decode()
    except UnicodeDecodeError:
        warnings.add(
            f"Line {number:,} is not valid UTF-8. Its wrong bytes are read as Windows-1252."
        )
        return text.decode(errors=_AS_WINDOWS_1252).encode()
    return text


_AS_WINDOWS_1252: Final = "talekeeper.windows-1252"


def _decode_wrong_bytes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    wrong = error.object[error.start : error.end]
    # Windows-1252 has no character for five bytes; Latin-1 has one for each.
    return "".join(
        bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in wrong
    ), error.end


codecs.register_error(_AS_WINDOWS_1252, _decode_wrong_bytes)
