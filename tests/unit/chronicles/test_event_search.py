"""Which events a list shows, by what they say."""

from __future__ import annotations

import pytest

from backend.chronicles.event_search import EventFilter
from backend.chronicles.events import EventFields

LENS = EventFields(
    summary="She found the lens.",
    kind="discovery",
    where="Tower",
    who=["Mara Vell"],
    keywords=["x"],
)


@pytest.mark.parametrize(
    "wanted",
    [
        EventFilter(),
        EventFilter(q="  "),
        EventFilter(q="LENS tower vell x"),
        EventFilter(who=" vell "),
        EventFilter(kind="discovery", q="found", who="mara"),
    ],
)
def test_what_says_so_is_shown(wanted: EventFilter) -> None:
    assert wanted.matches(LENS)


@pytest.mark.parametrize(
    "wanted",
    [
        EventFilter(q="lens dragon"),
        EventFilter(q="towermara"),
        EventFilter(who="lens"),
        EventFilter(kind="promise"),
        EventFilter(kind="promise", q="lens"),
    ],
)
def test_what_does_not_is_not(wanted: EventFilter) -> None:
    assert not wanted.matches(LENS)


def test_texts_are_read_only_where_they_decide() -> None:
    assert not EventFilter(q=" ", who=" ", pinned=True, min_significance=4).reads_texts
    assert EventFilter(kind="event").reads_texts
