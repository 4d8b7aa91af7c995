"""Read and write the chunks of a PNG that contain a card's text.

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
"""Keywords of cards, the most trusted first."""

ASSET_KEYWORD = b"chara-ext-asset_"
"""RisuAI's keyword for more files in a PNG, which the format advises against.

The name of the file follows, in newer files after a colon. `__asset:name` of a card refers to it.
"""

_WHITE_SPACE = b" \t\n\r\v\f"
_TEXT_CHUNKS = frozenset({b"tEXt", b"zTXt", b"iTXt"})
_HEADER = struct.Struct(">I4s")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk as a view into the file, without copies."""

    kind: bytes
    data: memoryview
    crc: int
    whole: memoryview

    def has_valid_crc(self) -> bool:
        return zlib.crc32(self.data, zlib.crc32(self.kind)) == self.crc

    def read_keyword(self) -> bytes:
        """Return the keyword of a text chunk in lower case."""
        # At most 79 bytes by the standard: a chunk of megabytes is not searched through.
        return bytes(self.data[:80]).partition(b"\0")[0].lower()


def iterate_chunks(data: bytes) -> Iterator[Chunk]:
    """Yield the chunks of a PNG in order, up to IEND.

    Raises `CardError` if the file is truncated or damaged, and `CardLimitError`.
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
    """Reads the texts of one PNG and limits their total size after decompression."""

    def __init__(self) -> None:
        self._inflated = 0

    def read(self, chunk: Chunk) -> bytes:
        """Return the value of a tEXt, zTXt or iTXt chunk, decompressed.

        Raises `CardError` if it is malformed, and `CardLimitError` if all texts read so far exceed
        `INFLATED_TEXT`.
        """
        rest = chunk.data[len(chunk.read_keyword()) + 1 :]
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
    """The text chunks of a PNG.

    Attributes:
        cards: The chunks with a card, the most trusted keyword first.
        assets: RisuAI's chunks with base64 files, by name.
    """

    cards: list[Chunk]
    assets: dict[str, Chunk]


def find_texts(data: bytes) -> PngTexts:
    """Search the whole file, because a card may also follow the picture."""
    texts = [chunk for chunk in iterate_chunks(data) if chunk.kind in _TEXT_CHUNKS]
    keywords = [chunk.read_keyword() for chunk in texts]
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
    """Decode base64, which may contain line breaks or lack its padding. Raises `CardError`."""
    packed = value.translate(None, _WHITE_SPACE)
    try:
        return binascii.a2b_base64(packed + b"=" * (-len(packed) % 4), strict_mode=True)
    except binascii.Error as error:
        raise CardError("The card in the PNG is not valid base64.") from error


def remove_texts(data: bytes) -> bytes:
    """Return a PNG without its text chunks."""
    kept = (chunk.whole for chunk in iterate_chunks(data) if chunk.kind not in _TEXT_CHUNKS)
    return b"".join((SIGNATURE, *kept))


def replace_texts(
    data: bytes, texts: Mapping[bytes, bytes], *, more: Iterable[Chunk] = ()
) -> bytes:
    """Return a PNG with its chunks of these keywords replaced by tEXt chunks.

    New texts and the `more` chunks are placed after the header, because many readers stop at the
    picture. All other bytes are unchanged.
    """
    left = {keyword: _make_text_chunk(keyword, value) for keyword, value in texts.items()}
    parts: list[bytes | memoryview] = []
    end = len(SIGNATURE)
    for chunk in iterate_chunks(data):
        end += len(chunk.whole)
        keyword = chunk.read_keyword() if chunk.kind in _TEXT_CHUNKS else b""
        if keyword not in texts:
            parts.append(chunk.whole)
        elif keyword in left:
            parts.append(left.pop(keyword))
    parts[1:1] = [*left.values(), *(chunk.whole for chunk in more)]
    return b"".join([SIGNATURE, *parts, data[end:]])


def _make_text_chunk(keyword: bytes, value: bytes) -> bytes:
    body = b"tEXt" + keyword + b"\0" + value
    return b"".join((_CRC.pack(len(body) - 4), body, _CRC.pack(zlib.crc32(body))))
