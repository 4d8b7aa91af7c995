"""The filter and the cursor of an event list."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backend.chronicles.event_search import Cursor, EventFilter
from backend.chronicles.events import EventFields
from backend.errors import ValidationError

LENS = EventFields(
    summary="She found the lens.",
    kind="discovery",
    where="Tower",
    who=["Mara Vell"],
    keywords=["x"],
)


@pytest.mark.parametrize(
    ("wanted", "is_shown"),
    [
        (EventFilter(), True),
        (EventFilter(q="  "), True),
        (EventFilter(q="LENS tower vell x"), True),
        (EventFilter(who=" vell "), True),
        (EventFilter(kind="discovery", q="found", who="mara"), True),
        (EventFilter(q="lens dragon"), False),
        (EventFilter(q="towermara"), False),
        (EventFilter(who="lens"), False),
        (EventFilter(kind="promise"), False),
        (EventFilter(kind="promise", q="lens"), False),
    ],
)
def test_only_matching_events_are_shown(wanted: EventFilter, is_shown: bool) -> None:
    assert wanted.matches(LENS) is is_shown


def test_texts_are_read_only_if_a_filter_needs_them() -> None:
    assert not EventFilter(q=" ", who=" ", pinned=True, min_significance=4).reads_texts
    assert EventFilter(kind="event").reads_texts


MOMENTS = st.datetimes(timezones=st.just(UTC))


@example(datetime(2026, 3, 1, 0, 0, 0, 1, tzinfo=UTC), -1, UUID(int=2**128 - 1))
@given(MOMENTS, st.integers(-(2**31), 2**31 - 1), st.uuids())
def test_a_cursor_is_read_back_and_needs_no_escaping(
    moment: datetime, place: int, event_id: UUID
) -> None:
    text = str(Cursor(moment, place, event_id))
    assert Cursor.parse(text) == Cursor(moment, place, event_id)
    assert set("+/=&?#").isdisjoint(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "AAAA",
        "é",
        "!" * 40,
        urlsafe_b64encode(b"\x7f" + b"\xff" * 27).decode(),
        urlsafe_b64encode(b"\x80" + b"\x00" * 27).decode(),
        urlsafe_b64encode(bytes(29)).decode(),
    ],
)
def test_any_other_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        Cursor.parse(text)
