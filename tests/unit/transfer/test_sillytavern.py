"""Tests of reading and writing chats of SillyTavern, faulty and unusual ones included."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from backend.transfer.errors import TransferFileError
from backend.transfer.formats.chat_file import ChatReading, FileMessage
from backend.transfer.formats.lines import MAX_LINE_BYTES, MAX_WARNINGS
from backend.transfer.formats.sillytavern import (
    SILLYTAVERN,
    read_head,
    read_sillytavern,
    write_sillytavern,
)
from tests.support.stored_chats import (
    encode,
    make_header,
    make_line,
    make_swiped,
    read,
    write_lines,
)

HEADER = make_header()
HI = make_line("Hi.")


def read_all(data: bytes) -> tuple[list[FileMessage], ChatReading]:
    reading = read(data)
    return list(reading.messages), reading


def list_texts(messages: list[FileMessage]) -> list[str]:
    return [each.swipes[each.selected].text for each in messages]


def rewrite(data: bytes) -> bytes:
    messages, reading = read_all(data)
    return b"".join(write_sillytavern(reading.head, messages)).removesuffix(b"\n")


REFUSED: dict[str, tuple[bytes, str]] = {
    "a truncated line in the middle": (
        write_lines([HEADER, encode(HI)[:-9], HI]),
        "Line 2 is not a message in JSON",
    ),
    "a line of 50 MB": (
        write_lines([HEADER, HI, make_line("x" * 50_000_000)]),
        "Line 3 is longer than 8 MB",
    ),
    "a line that is no object": (write_lines([HEADER, b"[1, 2]"]), "Line 2"),
    "a line of text": (write_lines([HEADER, b"Mara: Hi.", HI]), "Line 2"),
    "an object that is no message": (
        write_lines([HEADER, {"foo": 1}]),
        "Line 2 is not a message: it has neither `mes` nor `name`",
    ),
    "deep nesting": (
        write_lines([HEADER, b'{"mes": ' + b"[" * 100_000, HI]),
        "Line 2",
    ),
    "too many swipes": (
        write_lines([HEADER, make_swiped(["a"] * 1_001)]),
        "Line 2 has 1,001 swipes",
    ),
    "an empty file": (b"\n \n", "The file is empty"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_is_refused_with_the_number_of_the_line(name: str) -> None:
    data, detail = REFUSED[name]
    with pytest.raises(TransferFileError, match=detail):
        read_all(data)


WARNED: dict[str, tuple[bytes, list[str], str]] = {
    "a last line that is cut off": (
        write_lines([HEADER, HI, encode(HI)[:-9]]),
        ["Hi."],
        "Line 3, the last one, is cut off and was left out.",
    ),
    "two objects in a line": (
        write_lines([HEADER, encode(HI) + encode(make_line("Ho."))]),
        ["Hi.", "Ho."],
        "Line 2 contains 2 messages. They were separated.",
    ),
    "bytes of Windows-1252": (
        write_lines([HEADER, encode(make_line("Café “é”")).replace("é".encode(), b"\xe9")]),
        ["Café “é”"],
        "Line 2 is not valid UTF-8",
    ),
    "half a surrogate pair": (
        write_lines([HEADER, encode(HI).replace(b"Hi.", rb"Hi \ud83e.")]),
        ["Hi \ufffd."],
        "Line 2 contains half a character",
    ),
    "no text": (write_lines([HEADER, {"name": "Mara"}]), [""], "Line 2 has no text in `mes`"),
    "no text, but swipes": (
        write_lines([HEADER, {"name": "Mara", "swipes": ["a", "b"], "swipe_id": 1}]),
        ["b"],
        "The text of its swipe is used.",
    ),
    "a text that is a number": (
        write_lines([HEADER, make_line("") | {"mes": 5}]),
        [""],
        "Line 2 has no text in `mes`",
    ),
    "a swipe_id that is too large": (
        write_lines([HEADER, make_line("b", swipes=["a", "b", "c"], swipe_id=9)]),
        ["b"],
        "`swipe_id` names none of the 3 swipes",
    ),
    "a negative swipe_id": (
        write_lines([HEADER, make_line("c", swipes=["a", "b", "c"], swipe_id=-1)]),
        ["c"],
        "`swipe_id` names none of the 3 swipes",
    ),
    "a text that differs from its swipe": (
        write_lines([HEADER, make_line("new", swipes=["old", "b"], swipe_id=0)]),
        ["new"],
        "`mes` differs from its swipe",
    ),
    "a swipe that is no text": (
        write_lines([HEADER, make_line("a", swipes=["a", None], swipe_id=0)]),
        ["a"],
        "swipe 2 is not a text",
    ),
}


@pytest.mark.parametrize("name", WARNED)
def test_a_fault_is_a_warning_with_the_number_of_the_line(name: str) -> None:
    data, texts, warning = WARNED[name]
    messages, reading = read_all(data)
    assert list_texts(messages) == texts
    assert any(warning in each for each in reading.warnings)


def test_many_warnings_are_counted() -> None:
    _, reading = read_all(write_lines([HEADER, *[{"name": "Mara"}] * 200]))
    assert len(reading.warnings) == MAX_WARNINGS + 1
    assert reading.warnings[-1] == "And 150 more warnings."


ACCEPTED: dict[str, tuple[bytes, list[str]]] = {
    "a byte order mark": (b"\xef\xbb\xbf" + write_lines([HEADER, HI]), ["Hi."]),
    "UTF-16": (write_lines([HEADER, make_line("Füße 🦊")]).decode().encode("utf-16"), ["Füße 🦊"]),
    "UTF-16, big endian": (
        b"\xfe\xff" + write_lines([HEADER, make_line("Füße")]).decode().encode("utf-16-be"),
        ["Füße"],
    ),
    "line ends of Windows": (write_lines([HEADER, HI]).replace(b"\n", b"\r\n"), ["Hi."]),
    "blank lines": (write_lines([b"", HEADER, b"  ", HI, b""]), ["Hi."]),
    "no header": (write_lines([HI, make_line("Ho.")]), ["Hi.", "Ho."]),
    "a header without metadata": (write_lines([{"user_name": "Ada"}, HI]), ["Hi."]),
    "a header with metadata alone": (write_lines([{"chat_metadata": {}}, HI]), ["Hi."]),
    "a header with metadata of another kind": (write_lines([{"chat_metadata": 5}, HI]), ["Hi."]),
    "fewer infos than swipes": (
        write_lines([HEADER, make_swiped(["a", "b"], swipe_info=[])]),
        ["a"],
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_file_is_read_without_a_warning(name: str) -> None:
    data, texts = ACCEPTED[name]
    messages, reading = read_all(data)
    assert list_texts(messages) == texts
    assert reading.warnings == []
    assert reading.head.title == "Mara - 2024-03-01"


def test_names_that_are_unused_are_left_out() -> None:
    _, reading = read_all(
        write_lines([HEADER | {"user_name": "unused", "character_name": "unused"}, HI])
    )
    assert reading.head.user_name == ""
    assert list(reading.head.character_names) == []


def test_the_metadata_of_a_header_are_read() -> None:
    head = read_head(
        encode(
            make_header(
                note_prompt="It rains.",
                note_interval=3,
                note_depth=-4,
                note_position=2,
                note_role=9,
                world_info="Harbour",
                persona="ada.png",
                main_chat="Mara - 1",
                scenario="A mill.",
                variables={"n": 1.5, "s": "x", "list": [1]},
            )
        )
    )
    assert head.authors_note is not None
    assert (head.authors_note.interval, head.authors_note.depth) == (3, 0)
    assert (head.authors_note.position, head.authors_note.role) == ("before_prompt", "system")
    assert (head.lorebook, head.persona, head.main_chat) == ("Harbour", "ada.png", "Mara - 1")
    assert head.scenario == "A mill."
    assert head.variables == {"n": "1.5", "s": "x", "list": "[1]"}
    assert head.created_at == datetime(2024, 3, 1, 10, 0, tzinfo=UTC)


WRITTEN_AGAIN: dict[str, list[dict[str, Any]]] = {
    "infos that are shorter": [make_swiped(["a", "b", "c"], 2) | {"swipe_info": [{"extra": {}}]}],
    "infos that are longer": [make_swiped(["a"]) | {"swipe_info": [{}, {"x": 1}, None]}],
    "infos with other values": [make_swiped(["a", "b"]) | {"swipe_info": [None, 5]}],
    "no infos": [make_line("a", swipes=["a", "b"], swipe_id=0)],
    "an empty list of swipes": [make_line("a", swipes=[], swipe_id=0)],
    "swipes that are null": [make_line("a", swipes=None, swipe_id=None, swipe_info=None)],
    "a text that differs from its swipe": [make_line("new", swipes=["old", "b"], swipe_id=0)],
    "swipes that are no texts": [make_line("a", swipes=[5, None, "a"], swipe_id=2)],
    "members in another order": [{"mes": "Hi.", "extra": {}, "name": "Mara", "is_user": False}],
    "values of null": [make_line("Hi.", gen_started=None) | {"extra": None, "send_date": None}],
    "reasoning in both places": [
        make_swiped(["a", "b"], 1)
        | {
            "extra": {"reasoning": "Hm.", "x": 1},
            "swipe_info": [{"extra": {"reasoning": ""}}, {"extra": {"reasoning": "Hm.", "x": 1}}],
        }
    ],
    "reasoning that differs": [
        make_swiped(["a"])
        | {"extra": {"reasoning": "Hm."}, "swipe_info": [{"extra": {"reasoning": "Oh."}}]}
    ],
    "a message without text": [{"name": "Mara", "is_user": False, "extra": {}}],
    "a text of null": [make_line("") | {"mes": None}],
    "control characters": [make_line('a\u0000\u000b\u001f\u007f\u2028\\"/é🦊')],
}


@pytest.mark.parametrize("name", WRITTEN_AGAIN)
def test_members_are_written_as_they_were(name: str) -> None:
    data = write_lines([HEADER, *WRITTEN_AGAIN[name]])
    assert rewrite(data) == data


def test_numbers_and_escapes_are_written_as_they_were() -> None:
    line = (
        rb'{"name":"Mara","mes":"Hi.",'
        rb'"extra":{"a":1.50,"b":1e3,"c":"\u00e9","d":123456789012345678901}}'
    )
    header = rb'{"user_name":"A\u00e9","chat_metadata":{"x":0.10}}'
    assert rewrite(header + b"\n" + line) == header + b"\n" + line


def test_members_that_are_written_twice_are_written_once() -> None:
    line = b'{"name":"Mara","mes":"Hi.","mes":"Ho."}'
    assert json.loads(rewrite(encode(HEADER) + b"\n" + line).splitlines()[1])["mes"] == "Ho."


@pytest.mark.parametrize(
    ("members", "role", "is_hidden"),
    [
        ({"is_user": True}, "user", False),
        ({"is_user": False}, "assistant", False),
        ({"is_system": True}, "assistant", True),
        ({"is_user": True, "is_system": True}, "user", True),
        ({"extra": {"type": "narrator"}}, "system", False),
        ({"is_system": True, "extra": {"type": "comment"}}, "system", True),
        ({"is_system": True, "extra": {"type": "welcome"}}, "system", True),
    ],
)
def test_the_role_follows_from_the_flags(
    members: dict[str, Any], role: str, is_hidden: bool
) -> None:
    [message], _ = read_all(write_lines([HEADER, HI | members]))
    assert (message.role, message.hidden) == (role, is_hidden)


def test_pictures_and_files_are_listed_once() -> None:
    extra = {
        "image": "user/images/a.png",
        "image_swipes": ["user/images/a.png", "user/images/b.png", 5],
        "media": [{"url": "c.mp4", "type": "video"}, {"title": "no url"}],
        "file": {"url": "user/files/d.txt", "name": "d.txt"},
        "files": [{"url": "e.pdf", "type": "application/pdf"}, None],
    }
    [message], _ = read_all(write_lines([HEADER, make_line("x", extra=extra)]))
    files = message.swipes[0].files
    assert [each.path for each in files] == [
        "user/images/a.png",
        "user/files/d.txt",
        "user/images/b.png",
        "c.mp4",
        "e.pdf",
    ]
    assert (files[1].name, files[4].media_type) == ("d.txt", "application/pdf")


@pytest.mark.parametrize(
    ("data", "name", "matches"),
    [
        (write_lines([HEADER, HI]), "a.jsonl", True),
        (write_lines([HI]), "a.jsonl", True),
        (write_lines([make_line("x" * 100_000)])[:65_536], "a.jsonl", True),
        (write_lines([HEADER]).decode().encode("utf-16"), "a.jsonl", True),
        (b'{"name": "Mara", "description": ""}', "a.json", False),
        (b"Mara: Hi.", "a.txt", False),
        (b"", "a.jsonl", False),
        (b"\x89PNG\r\n", "a.png", False),
    ],
)
def test_a_file_is_recognised_by_its_first_line(data: bytes, name: str, matches: bool) -> None:
    assert SILLYTAVERN.matches(data, name) is matches


class Endless(io.RawIOBase):
    """A line without an end. Counts the bytes that are read of it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        assert size > 0
        self.count += size
        return b"x" * size


def test_a_line_is_not_read_beyond_the_limit() -> None:
    file = Endless()
    with pytest.raises(TransferFileError, match="Line 1"):
        next(read_sillytavern(file, name="a.jsonl"))  # type: ignore[arg-type]
    assert file.count < 2 * MAX_LINE_BYTES
