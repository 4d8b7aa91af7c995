"""Server-sent events and the JSON in them, as real servers send them.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from backend.generation.json_text import clean_text

DONE = object()
"""The event `[DONE]`, with which OpenAI-compatible servers end a stream."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_ENDS = (b"\n", b"\r")
_DONE_DATA = b"[DONE]"


class EventReader:
    """Splits a stream of bytes into the values of its events. Linear in the bytes, however cut.

    It follows the standard: a byte order mark, comments, and lines that end in CR, LF or CRLF. It
    also accepts what servers send beyond the standard: a last event without a blank line after it,
    two JSON values in one event, data that is not JSON (which is skipped), and the `error:` line
    with which older versions of llama.cpp report an error in mid-stream.
    """

    def __init__(self) -> None:
        self._begun: list[bytes] = []  # a line that has no end yet
        self._data: list[bytes] = []
        self._after_return = False
        self._is_first = True

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Yield the value of each event that a chunk completes: JSON, or `DONE`."""
        for line in self._lines(chunk):
            if line:
                self._read_line(line)
            else:
                yield from self._complete()

    def close(self) -> Iterator[Any]:
        """Yield the value of a last event that no blank line follows."""
        if self._begun:
            self._read_line(b"".join(self._begun))
            self._begun = []
        yield from self._complete()

    def _lines(self, chunk: bytes) -> list[bytes]:
        # CR and LF are one line end, also if they come in different chunks.
        text = chunk[1:] if self._after_return and chunk.startswith(b"\n") else chunk
        self._after_return = chunk.endswith(b"\r") if chunk else self._after_return
        lines = text.splitlines()
        rest = lines.pop() if lines and not text.endswith(_LINE_ENDS) else b""
        if lines and self._begun:
            lines[0] = b"".join((*self._begun, lines[0]))
            self._begun = []
        if rest:
            self._begun.append(rest)
        if lines and self._is_first:
            self._is_first = False
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        return lines

    def _read_line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"error":
            self._data.append(b'{"error":%b}' % value)

    def _complete(self) -> Iterator[Any]:
        data, self._data = self._data, []
        if not data:
            return
        if len(data) > 1:
            try:
                yield parse_json_bytes(b"\n".join(data))
            except ValueError:
                pass  # each line is a value of its own
            else:
                return
        for line in data:
            if line.strip().startswith(_DONE_DATA):
                yield DONE
                continue
            try:
                yield parse_json_bytes(line)
            except ValueError:
                continue


def read_json_lines(data: bytes) -> list[Any]:
    """Return the values of lines that are JSON, or `DONE`, with or without `data:` before them.

    Proxies send streams without the framing of events, or one JSON value with `[DONE]` after it.
    Returns an empty list if a line is something else.
    """
    values: list[Any] = []
    for line in data.splitlines():
        text = line.removeprefix(b"data:").strip()
        if text == _DONE_DATA:
            values.append(DONE)
        elif text:
            try:
                values.append(parse_json_bytes(text))
            except ValueError:
                return []
    return values


def parse_json_bytes(data: bytes) -> Any:
    """Parse JSON. Raise `ValueError` if it is not JSON or is nested too deeply.

    Characters that a server has cut in two are kept as lone surrogates, so that
    `CharacterJoiner` can join them: halves of surrogate pairs as they are, and bytes of an
    incomplete UTF-8 sequence as U+DC80 to U+DCFF.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return json.loads(data.decode("utf-8", "surrogateescape"))
        except RecursionError:
            raise ValueError("the JSON is nested too deeply") from None


class CharacterJoiner:
    """Joins characters that were cut in two at the end of a piece of text.

    A model's token can be a part of a character. Servers send such parts as halves of surrogate
    pairs or as incomplete UTF-8 sequences, one piece after the other.
    """

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """Return the text up to its last complete character, with what was held back before it.

        A part that no other part can complete becomes U+FFFD.
        """
        text, self._held = self._held + text, ""
        if text.isascii() or not _SURROGATE.search(text):
            return text
        # UTF-16 joins the two halves of a pair.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        end = len(text)
        if "\ud800" <= text[-1] <= "\udbff":
            end -= 1
        else:
            tail = text[-_LONGEST_CUT:]
            cut = tail[len(tail.rstrip(_ESCAPED_BYTES)) :]
            end += _decode(cut, is_complete=False)[1] - len(cut)
        self._held = text[end:]
        text = _CUT_BYTES.sub(lambda run: _decode(run[0])[0], text[:end])
        return clean_text(text)

    def close(self) -> str:
        """Return U+FFFD if a part is left that was never completed."""
        held, self._held = self._held, ""
        return "\N{REPLACEMENT CHARACTER}" if held else ""


_SURROGATE = re.compile("[\ud800-\udfff]")
_CUT_BYTES = re.compile("[\udc80-\udcff]+")
_ESCAPED_BYTES = "".join(map(chr, range(0xDC80, 0xDD00)))
"""What `surrogateescape` makes of bytes that are not UTF-8."""

_LONGEST_CUT = 3
"""Bytes of a UTF-8 sequence that lacks its last byte."""


def _decode(cut: str, *, is_complete: bool = True) -> tuple[str, int]:
    """Decode a run of escaped bytes: the text, and how many of the bytes it takes."""
    data = cut.encode("utf-8", "surrogateescape")
    return codecs.utf_8_decode(data, "replace", is_complete)
