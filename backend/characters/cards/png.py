"""The chunks of a PNG: finding the card's text among them, and writing it.

Sources: PNG, third edition (https://www.w3.org/TR/png-3/), chapters 5 and 11.3.3;
https://github.com/kwaroran/character-card-spec-v3, "PNG/APNG".
"""

from __future__ import annotations

import binascii
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from backend.characters.cards.model import INFLATED_TEXT, PNG_CHUNKS
from backend.characters.errors import CardError

SIGNATURE = b"\x89PNG\r\n\x1a\n"

CARD_KEYWORDS = (b"ccv3", b"chara")
"""In the order in which they are believed."""

ASSET_KEYWORD = b"chara-ext-asset_"
"""RisuAI's way of putting more files into a PNG, which the format advises against.

The name of the file follows, after a colon in newer ones; a card's `__asset:name` points to it.
"""

_WHITE_SPACE = b" \t\n\r\v\f"
_TEXT_CHUNKS = frozenset({b"tEXt", b"zTXt", b"iTXt"})
_HEADER = struct.Struct(">I4s")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk, as a view into the file: nothing is copied."""

    kind: bytes
    data: memoryview
    crc: int
    whole: memoryview

    def crc_matches(self) -> bool:
        """Whether the stored checksum is that of kind and data."""
        return zlib.crc32(self.data, zlib.crc32(self.kind)) == self.crc

    def keyword(self) -> bytes:
        """The keyword of a text chunk, in lower case."""
        # At most 79 bytes by the standard: a chunk of megabytes is not searched through.
        return bytes(self.data[:80]).partition(b"\0")[0].lower()


def iterate_chunks(data: bytes) -> Iterator[Chunk]:
    """The chunks of a PNG in order, IEND last; what follows IEND is not looked at.

    Raises:
        CardError: The file is cut short, or is not made of chunks.
        CardLimitError: More than `PNG_CHUNKS`.
    """
    view = memoryview(data)
    position, count = len(SIGNATURE), 0
    while True:
        count += 1
        PNG_CHUNKS.check(count)
        start = position + _HEADER.size
        if start > len(view):
            raise CardError(f"The PNG is truncated: it ends inside chunk {count:,}.")
        length, kind = _HEADER.unpack_from(view, position)
        if not kind.isalpha():
            raise CardError(f"The PNG is damaged: there is no chunk at byte {position:,}.")
        position = start + length + _CRC.size
        if position > len(view):
            raise CardError(f"The PNG is truncated: it ends inside chunk {count:,}.")
        (crc,) = _CRC.unpack_from(view, start + length)
        whole = view[start - _HEADER.size : position]
        yield Chunk(kind, view[start : start + length], crc, whole)
        if kind == b"IEND":
            return


class TextReader:
    """Reads the texts of one PNG, and keeps count of how much they inflate to in all."""

    def __init__(self) -> None:
        self._inflated = 0

    def read(self, chunk: Chunk) -> bytes:
        """The value of a tEXt, zTXt or iTXt chunk, inflated where it is compressed.

        Raises:
            CardError: The chunk is not formed as its kind asks, or can't be inflated.
            CardLimitError: The texts read so far inflate to more than `INFLATED_TEXT`.
        """
        rest = chunk.data[len(chunk.keyword()) + 1 :]
        if chunk.kind == b"tEXt":
            return bytes(rest)
        if chunk.kind == b"zTXt":
            return self._inflate(rest[1:], method=bytes(rest[:1]))
        compressed, method = bytes(rest[:1]), bytes(rest[1:2])
        body = bytes(rest[2:]).split(b"\0", 2)
        if len(body) < 3 or compressed not in {b"\0", b"\1"}:  # noqa: PLR2004 - language, translated keyword, text
            raise CardError("A text in the PNG (iTXt) is damaged.")
        return self._inflate(body[2], method=method) if compressed == b"\1" else body[2]

    def _inflate(self, packed: bytes | memoryview, *, method: bytes) -> bytes:
        if method != b"\0":
            raise CardError("A text in the PNG uses an unknown compression.")
        left = INFLATED_TEXT.allowed - self._inflated
        inflater = zlib.decompressobj()
        try:
            text = inflater.decompress(packed, left + 1)
        except zlib.error as error:
            raise CardError("A compressed text in the PNG is damaged.") from error
        self._inflated += len(text)
        INFLATED_TEXT.check(self._inflated, "The PNG")
        if not inflater.eof:
            raise CardError("A compressed text in the PNG is truncated.")
        return text


@dataclass(frozen=True, slots=True)
class PngTexts:
    """What a PNG carries beside its picture.

    Attributes:
        cards: The chunks that should hold a card, the most trusted keyword first.
        assets: The chunks of files that RisuAI put in as base64, by name.
    """

    cards: list[Chunk]
    assets: dict[str, Chunk]


def find_texts(data: bytes) -> PngTexts:
    """Walk through the whole file, as a card may also stand after the picture."""
    texts = [chunk for chunk in iterate_chunks(data) if chunk.kind in _TEXT_CHUNKS]
    keywords = [chunk.keyword() for chunk in texts]
    return PngTexts(
        cards=[
            chunk
            for wanted in CARD_KEYWORDS
            for chunk, keyword in zip(texts, keywords, strict=True)
            if keyword == wanted
        ],
        assets={
            keyword.removeprefix(ASSET_KEYWORD).removeprefix(b":").decode("latin-1"): chunk
            for chunk, keyword in zip(texts, keywords, strict=True)
            if keyword.startswith(ASSET_KEYWORD)
        },
    )


def decode_value(value: bytes) -> bytes:
    """The bytes behind base64, which may be wrapped in lines or lack its padding.

    Raises:
        CardError: Not base64.
    """
    packed = value.translate(None, _WHITE_SPACE)
    try:
        return binascii.a2b_base64(packed + b"=" * (-len(packed) % 4), strict_mode=True)
    except binascii.Error as error:
        raise CardError("The card in the PNG is not valid base64.") from error


def remove_texts(data: bytes) -> bytes:
    """The same PNG without its text chunks: a fault in them is none of the picture's."""
    kept = (chunk.whole for chunk in iterate_chunks(data) if chunk.kind not in _TEXT_CHUNKS)
    return b"".join((SIGNATURE, *kept))


def replace_texts(
    data: bytes, texts: Mapping[bytes, bytes], *, more: Iterable[Chunk] = ()
) -> bytes:
    """The same PNG with a tEXt chunk for each keyword in the place of those that it has.

    What it has no place for stands behind the header, and so do `more` chunks: before the picture,
    because many readers do not look behind it. All else stays byte for byte.
    """
    left = {keyword: _make_text_chunk(keyword, value) for keyword, value in texts.items()}
    parts: list[bytes | memoryview] = []
    end = len(SIGNATURE)
    for chunk in iterate_chunks(data):
        end += len(chunk.whole)
        keyword = chunk.keyword() if chunk.kind in _TEXT_CHUNKS else b""
        if keyword not in texts:
            parts.append(chunk.whole)
        elif keyword in left:
            parts.append(left.pop(keyword))
    parts[1:1] = [*left.values(), *(chunk.whole for chunk in more)]
    return b"".join([SIGNATURE, *parts, data[end:]])


def _make_text_chunk(keyword: bytes, value: bytes) -> bytes:
    body = b"tEXt" + keyword + b"\0" + value
    return b"".join((_CRC.pack(len(body) - 4), body, _CRC.pack(zlib.crc32(body))))
