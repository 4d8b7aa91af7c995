"""The texts that are indexed: lines, windows, entries, events and chunks."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import pairwise
from uuid import UUID, uuid4

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backend.memory.indexing import documents
from backend.memory.indexing import documents as chunks
from backend.memory.indexing.documents import (
    CHUNK_WORDS,
    IndexedMessage,
    build_event_document,
    build_lore_documents,
    build_message_documents,
    split_into_chunks,
)

CHAT, SCENE = uuid4(), uuid4()
MAY = datetime(2023, 5, 7, 20, 15, tzinfo=UTC)


def line(
    text: str, author: str = "Mira", *, scene: UUID = SCENE, position: int = 3
) -> IndexedMessage:
    return IndexedMessage(
        id=uuid4(),
        container_id=CHAT,
        author=author,
        text=text,
        said_at=MAY,
        position=position,
        scene_id=scene,
        version=7,
    )


def words(count: int, word: str = "word") -> str:
    return " ".join(f"{word}{number}" for number in range(count))


def test_terms_get_the_date_of_a_line_and_its_vector_does_not() -> None:
    (document,) = build_message_documents(line("The door is locked."), before=[], after=[])
    assert document.text == "7 May 2023. Mira: The door is locked."
    assert document.dense_text == "Mira: The door is locked."
    assert document.said_at == int(MAY.timestamp())


def test_a_window_includes_the_neighbours_of_a_line_in_its_scene() -> None:
    above = [line("one", "Ben"), line("two"), line("three", "Ben")]
    below = [line("four", "Ben"), line("five", scene=uuid4())]
    (document,) = build_message_documents(line("HERE"), before=above, after=below)
    assert document.sparse_window == "7 May 2023\nMira: two\nBen: three\nMira: HERE\nBen: four"
    assert document.dense_window == "Ben: three\nMira: HERE\nBen: four"


def test_only_the_near_end_of_a_neighbour_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []

    def cut_and_measure(text: str) -> list[str]:
        cut.append(len(text))
        return split_into_chunks(text)

    monkeypatch.setattr(documents, "split_into_chunks", cut_and_measure)
    above, below = line(words(200_000, "a")), line(words(200_000, "b"))
    (document,) = build_message_documents(line("HERE"), before=[above], after=[below])

    assert sum(cut) < 40_000
    window = (document.sparse_window or "").split()
    assert "a199999" in window
    assert "b0" in window


def test_a_window_for_vectors_takes_the_near_ends_of_long_neighbours() -> None:
    (document,) = build_message_documents(
        line("HERE"), before=[line(words(150, "a"))], after=[line(words(150, "b"))]
    )
    window = (document.dense_window or "").split()
    assert len(window) < 100
    assert "a149" in window
    assert "b0" in window
    assert "a0" not in window


def test_a_long_message_becomes_chunks_that_know_their_neighbours() -> None:
    documents = build_message_documents(
        line(words(450)), before=[line("before")], after=[line("after")]
    )
    assert [document.chunk for document in documents] == list(range(len(documents)))
    assert len(documents) == 3
    assert all(document.words <= CHUNK_WORDS for document in documents)
    assert "before" in (documents[0].dense_window or "")
    assert "after" in (documents[-1].dense_window or "")
    assert "Mira: after" not in (documents[0].dense_window or "")


@pytest.mark.parametrize(
    ("text", "is_question"),
    [
        ("Where to?", True),
        ("*She frowns.* “Where to?”*", True),
        ("Where? Here.", False),
        ("", False),
    ],
)
def test_a_question_is_recognised_by_its_end(text: str, is_question: bool) -> None:
    (document,) = build_message_documents(line(text), before=[], after=[])
    assert document.is_question is is_question


def test_a_line_without_an_author_has_no_name() -> None:
    (document,) = build_message_documents(line("The sun sets.", ""), before=[], after=[])
    assert document.dense_text == "The sun sets."


def test_each_chunk_of_an_entry_has_its_title_and_keys() -> None:
    documents = build_lore_documents(
        uuid4(), uuid4(), title="Moonwell", keys=["well", "silver water"], content=words(300),
        version=1,
    )  # fmt: skip
    assert len(documents) == 2
    assert all(each.text.startswith("Moonwell, well, silver water\n") for each in documents)


def test_an_entry_without_title_and_keys_is_its_content() -> None:
    (document,) = build_lore_documents(
        uuid4(), uuid4(), title="", keys=[], content=" Hm. ", version=1
    )
    assert document.text == "Hm."


def test_an_event_has_time_place_and_people_in_both_texts() -> None:
    document = build_event_document(
        uuid4(), uuid4(), summary="The bridge fell.", when="third day of frost", where="Aldern",
        who=["Mira", "Ben"], keywords=["bridge"], said_at=MAY, version=1,
    )  # fmt: skip
    assert document.dense_text == "third day of frost, Aldern, Mira, Ben: The bridge fell."
    assert document.text == f"7 May 2023\n{document.dense_text}\nbridge"


def test_an_event_of_no_time_and_place_is_its_summary() -> None:
    document = build_event_document(
        uuid4(), uuid4(), summary="It rained.", when="", where="", who=[], keywords=[],
        said_at=None, version=1,
    )  # fmt: skip
    assert (document.text, document.said_at) == ("It rained.", 0)


@pytest.mark.parametrize(
    ("text", "size", "parts"),
    [
        (" All of it. ", 10, ["All of it."]),
        ("", 10, [""]),
        (f"{words(8, 'a')}\n\n{words(8, 'b')}", 10, [words(8, "a"), words(8, "b")]),
        (
            "One two three. Four five six! Seven eight.",
            4,
            ["One two three.", "Four five six!", "Seven eight."],
        ),
    ],
    ids=["short", "empty", "paragraphs", "sentences"],
)
def test_a_text_is_cut_between_paragraphs_or_sentences(
    text: str, size: int, parts: list[str]
) -> None:
    assert split_into_chunks(text, words=size, overlap=0) == parts


def test_a_part_begins_with_the_end_of_the_one_before() -> None:
    parts = split_into_chunks(words(25), words=10, overlap=3)
    assert parts[1].split()[:3] == parts[0].split()[-3:]


def test_a_text_without_spaces_is_cut_as_well() -> None:
    parts = split_into_chunks("字" * 10_000)
    assert len(parts) > 3
    assert max(map(len, parts)) <= CHUNK_WORDS * 12 + 40


def test_an_overlap_must_be_less_than_a_part() -> None:
    with pytest.raises(ValueError, match="overlap"):
        split_into_chunks("a b c", words=2, overlap=2)


texts = st.text(st.sampled_from("ab .\n?!字"), max_size=400)


@given(texts, st.integers(2, 20))
def test_without_overlap_the_parts_are_the_text(text: str, size: int) -> None:
    parts = split_into_chunks(text, words=size, overlap=0)
    assert "".join("".join(parts).split()) == "".join(text.split())


@given(texts, st.integers(3, 20), st.integers(0, 2))
def test_no_part_is_too_long_and_none_is_empty(text: str, size: int, overlap: int) -> None:
    parts = split_into_chunks(text, words=size, overlap=overlap)
    assert all(len(part.split()) <= size for part in parts)
    assert all(parts) or not text.strip()


FRAGMENTS = (
    *("a", "bc", "dddd", "e" * 36, "f" * 37, "g" * 100, "字字", "。", ". ", "! ", '…" '),
    *(" ", "  ", "\t", "\n", "\n\n", "\n \n", "\u3000", "\x1c", '"', "😀"),
)

fragments = st.lists(st.sampled_from(FRAGMENTS), max_size=120).map("".join)


def reference(text: str, words: int, overlap: int) -> list[str]:
    """Split as `split_into_chunks` documents it, and count every text again when needed."""

    def length(some: str) -> int:
        return sum(1 if len(each) <= 36 else -(-len(each) // 12) for each in some.split())

    def pieces(some: str, depth: int) -> list[str]:
        if length(some) <= words - overlap:
            return [some] if some else []
        if depth == len(chunks.SEPARATORS):
            size = (words - overlap) * 12
            return [some[start : start + size] for start in range(0, len(some), size)]
        cuts = [match.end() for match in chunks.SEPARATORS[depth].finditer(some)]
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


@given(fragments, st.integers(1, 25), st.data())
@example("字。" * 60, 12, None)
def test_the_parts_are_those_of_the_plain_reference(
    text: str, words: int, data: st.DataObject | None
) -> None:
    overlap = data.draw(st.integers(0, words - 1)) if data else 3
    assert split_into_chunks(text, words=words, overlap=overlap) == reference(text, words, overlap)
