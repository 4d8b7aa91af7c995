"""Events and characters are read however the network and the server cut them."""

from __future__ import annotations

from typing import Any

import pytest

from backend.generation.client.client import DONE, CharacterJoiner, EventReader, parse_json_bytes


def read(stream: bytes, size: int) -> list[Any]:
    reader = EventReader()
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    return [*(value for chunk in chunks for value in reader.feed(chunk)), *reader.close()]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("stream", "values"),
    [
        (b'data: {"a": 1}\n\ndata:{"b": 2}\n\n', [{"a": 1}, {"b": 2}]),
        (b"\xef\xbb\xbfdata: 1\r\n\r\n: a comment\r\n\r\ndata: 2\r\rid: 5\n\n", [1, 2]),
        (b'event: message\ndata: {"a":\ndata: 1}\nretry: 3\n\n', [{"a": 1}]),
        (b'data: {"a": 1}\ndata: {"b": 2}\n\n', [{"a": 1}, {"b": 2}]),
        (b"data:\n\ndata: \n\ndata: 1\n\n", [1]),
        (b"data: not json\n\ndata: 1\n\n", [1]),
        (b"data: null\n\ndata: [DONE]\n\n", [None, DONE]),
        (b"data: [DONE] \n\n", [DONE]),
        (b"data: 1\n\ndata: 2", [1, 2]),
        (b"data: 1\n\ndata: [DONE]", [1, DONE]),
        (b'error: {"code": 500}\n\n', [{"error": {"code": 500}}]),
        (b"", []),
    ],
)
def test_events_do_not_depend_on_how_they_are_cut(
    stream: bytes, values: list[Any], size: int
) -> None:
    assert read(stream, size) == values


def test_json_that_the_fast_parser_refuses_is_read() -> None:
    assert parse_json_bytes(b'{"a": [1, "\\ud83d"]}') == {"a": [1, "\ud83d"]}
    with pytest.raises(ValueError, match="Expecting"):
        parse_json_bytes(b'{"a"')
    with pytest.raises(ValueError, match="nested"):
        parse_json_bytes(b"[" * 100_000)


def escaped(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


FOX = "\N{FOX FACE}"


@pytest.mark.parametrize(
    ("pieces", "joined"),
    [
        (["A fox"], ["A fox"]),
        (["A \ud83e", "\udd8a runs"], ["A ", f"{FOX} runs"]),
        (
            [escaped(FOX.encode()[:1]), escaped(FOX.encode()[1:3]), escaped(FOX.encode()[3:])],
            ["", "", FOX],
        ),
        ([escaped("é".encode()[:1]), "x"], ["", "\ufffdx"]),
        (["\ud83e", "x"], ["", "\ufffdx"]),
        (["\udc00x"], ["\ufffdx"]),
        ([escaped(b"\x80\x80\x80")], ["\ufffd\ufffd\ufffd"]),
    ],
)
def test_a_character_that_was_cut_in_two_is_joined(pieces: list[str], joined: list[str]) -> None:
    joiner = CharacterJoiner()
    assert [joiner.feed(piece) for piece in pieces] == joined
    assert joiner.close() == ""


def test_a_part_at_the_very_end_becomes_a_replacement_character() -> None:
    joiner = CharacterJoiner()
    assert joiner.feed("A \ud83e") == "A "
    assert joiner.close() == "\ufffd"
