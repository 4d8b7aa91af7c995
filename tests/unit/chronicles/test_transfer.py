"""Chronicle files: any input is read or refused with the place of its fault."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.chronicles.errors import ChronicleFileError
from backend.chronicles.transfer import FILE_FORMAT, ChronicleFile, read_file

MEMBERS = [
    "id", "summary", "kind", "day", "who", "significance", "pinned", "happened_at", "source",
    "source_message_ids", "superseded_by", "counts", "audience", "other",
]  # fmt: skip
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.sampled_from(["a", "b", "death", "2026-03-01T20:00:00Z", "9999-12-31T23:59:59-14:00"]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
GOOD = {"summary": "It burns.", "happened_at": "2026-03-01T20:00:00Z"}
ODD: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(MEMBERS), VALUES, max_size=3
)
EVENTS = st.lists(ODD | ODD.map(lambda odd: {**GOOD, **odd}), max_size=4)


def taken(value: object) -> ChronicleFile | str:
    """Read a file. Return it, or the detail of the error."""
    try:
        return read_file(json.dumps(value).encode())
    except ChronicleFileError as error:
        return error.detail


@given(EVENTS, st.dictionaries(st.sampled_from(["name", "version", "events", "x"]), VALUES))
def test_any_json_is_read_or_refused(events: list[Any], odd: dict[str, Any]) -> None:
    value: dict[str, Any] = {"format": FILE_FORMAT, "version": 1, "events": events, **odd}
    file = taken(value)
    if isinstance(file, ChronicleFile):
        assert len(file.events) == len(value["events"])
        assert {event.superseded_by for event in file.events} - {None} <= {
            event.id for event in file.events
        }
    else:
        assert file.endswith(".")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ChronicleFileError):
        read_file(data)


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 9)))
def test_chains_are_taken_and_circles_are_not(following: dict[int, int]) -> None:
    events: list[dict[str, Any]] = [{**GOOD, "id": str(number)} for number in range(10)]
    for number, after in following.items():
        events[number]["superseded_by"] = str(after)
    goes_round = False
    for start in following:
        at, steps = start, 0
        while at in following and steps <= len(following):
            at, steps = following[at], steps + 1
        goes_round |= steps > len(following)
    file = taken({"format": FILE_FORMAT, "version": 1, "events": events})
    assert isinstance(file, str) == goes_round
    assert not isinstance(file, str) or "leads back" in file
