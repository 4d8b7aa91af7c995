"""Events are read however the network cuts them."""

from __future__ import annotations

import json

import pytest

from backend.generation._server_sent import EventReader, parse_event

STREAM = (
    b": a comment\r\n\r\nevent: message\ndata: one\nid: 1\n\n"
    b"data:two\r\ndata: lines\r\n\r\n\r\rdata:  indented\r\rretry: 5\n\ndata: never ends"
)
EVENTS = [b"one", b"two\nlines", b" indented"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_events_do_not_depend_on_how_they_are_cut(size: int) -> None:
    reader = EventReader()
    chunks = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [data for chunk in chunks for data in reader.feed(chunk)] == EVENTS


def test_json_that_msgspec_refuses_is_read() -> None:
    assert parse_event(b'{"a": [1, "\\ud83d"]}') == {"a": [1, "\ud83d"]}
    with pytest.raises(json.JSONDecodeError):
        parse_event(b'{"a"')
