"""Where a page of events ends."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.chronicles.event_search import Cursor
from backend.errors import ValidationError

MOMENTS = st.datetimes(timezones=st.just(UTC))


@given(MOMENTS, st.integers(-(2**31), 2**31 - 1), st.uuids())
def test_what_was_told_is_read_back(moment: datetime, place: int, event_id: UUID) -> None:
    cursor = Cursor(moment, place, event_id)
    assert Cursor.parse(str(cursor)) == cursor


def test_it_keeps_the_last_microsecond() -> None:
    moment = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(microseconds=1)
    assert Cursor.parse(str(Cursor(moment, 0, UUID(int=1)))).happened_at == moment


def test_it_goes_into_an_address_as_it_is() -> None:
    text = str(Cursor(datetime(2026, 3, 1, tzinfo=UTC), -1, UUID(int=2**128 - 1)))
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
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        Cursor.parse(text)
