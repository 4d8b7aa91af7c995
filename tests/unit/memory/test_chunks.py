"""Cutting long texts: the same parts as a plain reference makes, with each piece counted once."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backend.memory.indexing import documents as chunks
from backend.memory.indexing.documents import chunked

FRAGMENTS = (
    *("a", "bc", "dddd", "e" * 36, "f" * 37, "g" * 100, "字字", "。", ". ", "! ", '…" '),
    *(" ", "  ", "\t", "\n", "\n\n", "\n \n", "\u3000", "\x1c", '"', "😀"),
)

texts = st.lists(st.sampled_from(FRAGMENTS), max_size=120).map("".join)


def reference(text: str, words: int, overlap: int) -> list[str]:
    """As it is said in `chunked`, with everything counted whenever it is needed."""

    def length(some: str) -> int:
        return sum(1 if len(each) <= 36 else -(-len(each) // 12) for each in some.split())

    def pieces(some: str, depth: int) -> list[str]:
        if length(some) <= words - overlap:
            return [some] if some else []
        if depth == len(chunks._SEPARATORS):
            size = (words - overlap) * 12
            return [some[start : start + size] for start in range(0, len(some), size)]
        cuts = [match.end() for match in chunks._SEPARATORS[depth].finditer(some)]
        bounds = pairwise([0, *cuts, len(some)])
        return [piece for start, end in bounds for piece in pieces(some[start:end], depth + 1)]

    def tail(some: str) -> str:
        starts = [match.start() for match in re.finditer(r"\S+", some)]
        return some[starts[-overlap] :] if overlap and len(starts) > overlap else ""

    if length(text) <= words:
        return [text.strip()]
    parts: list[str] = []
    for piece in pieces(text, 0):
        if parts and length(parts[-1]) + length(piece) <= words:
            parts[-1] += piece
        else:
            parts.append((tail(parts[-1]) if parts else "") + piece)
    return [part.strip() for part in parts]


@given(texts, st.integers(1, 25), st.data())
@example("字。" * 60, 12, None)
def test_the_parts_are_those_of_the_plain_reference(
    text: str, words: int, data: st.DataObject | None
) -> None:
    overlap = data.draw(st.integers(0, words - 1)) if data else 3
    assert chunked(text, words=words, overlap=overlap) == reference(text, words, overlap)


@pytest.mark.parametrize(
    "text",
    ["a\n", "a ", "a. ", "a\n\n", "字。", "字", "a", "\n", " ", "a\n \n", "word. Word\n"],
    ids=repr,
)
def test_each_character_is_counted_a_few_times_however_long_the_text_is(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = 0
    length, append = chunks._length, chunks._Part.append

    def counting_length(some: str) -> int:
        nonlocal counted
        counted += len(some)
        return length(some)

    def counting_append(part: chunks._Part, some: str) -> None:
        nonlocal counted
        counted += len(some)
        append(part, some)

    monkeypatch.setattr(chunks, "_length", counting_length)
    monkeypatch.setattr(chunks._Part, "append", counting_append)
    whole = text * (60_000 // len(text))
    chunked(whole)
    # As a whole, at each of four depths, as a piece, as a part of a part, and in overlaps.
    assert counted <= 9 * len(whole)
