"""Events that are merged into one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from backend.chronicles.event_service import merge_events
from backend.chronicles.events import EventFields
from backend.chronicles.repository import SourceMessage, StoryEvent
from backend.chronicles.schemas import MergedFields
from backend.errors import ValidationError

NOTHING = MergedFields()
CHAT = uuid4()


def event(
    summary: str = "It rained.",
    *,
    day: int = 1,
    significance: int = 3,
    sources: Sequence[SourceMessage] = (),
    **fields: Any,
) -> StoryEvent:
    moment = datetime(2026, 3, day, tzinfo=UTC)
    return StoryEvent(
        id=uuid4(),
        chronicle_id=UUID(int=1),
        fields=EventFields(summary=summary, **fields),
        significance=significance,
        is_pinned=False,
        is_edited=False,
        source="user",
        happened_at=moment,
        place=day + 10,
        superseded_by=None,
        run_id=None,
        revision=1,
        created_at=moment,
        updated_at=moment + timedelta(days=1),
        sources=sources,
        counts=True,
        is_current=True,
    )


def messages(count: int) -> list[SourceMessage]:
    return [SourceMessage(id=uuid4(), chat_id=CHAT, position=place) for place in range(count)]


def test_a_summary_that_is_repeated_is_merged_once() -> None:
    made = merge_events([event("A."), event("B.", day=2), event("A.", day=3)], NOTHING)
    assert made.fields.summary == "A.\nB."


def test_a_merged_event_has_the_place_of_the_first() -> None:
    made = merge_events([event(day=2), event(day=5)], NOTHING)
    assert (made.happened_at.day, made.place) == (2, 12)


def test_day_and_time_come_from_one_event() -> None:
    made = merge_events([event(), event(time="dusk"), event(time="dawn")], NOTHING)
    assert (made.fields.day, made.fields.time) == (None, "dusk")


def test_a_merged_event_has_the_kind_of_the_most_significant() -> None:
    small, great = event(kind="travel"), event(kind="death", significance=5)
    assert merge_events([small, great], NOTHING).fields.kind == "death"
    assert merge_events([small, event(kind="death")], NOTHING).fields.kind == "travel"


def test_names_are_merged_without_case_in_their_first_spelling() -> None:
    first, second = event(who=["Straße", "Mara"]), event(who=["STRASSE", "Tom"])
    assert merge_events([first, second], NOTHING).fields.who == ["Straße", "Mara", "Tom"]


def test_a_message_of_several_is_one_source() -> None:
    shared = messages(30)
    made = merge_events([event(sources=shared), event(sources=shared)], NOTHING)
    assert list(made.sources) == shared


def test_more_messages_than_an_event_may_have_are_refused() -> None:
    with pytest.raises(ValidationError) as refused:
        merge_events([event(sources=messages(30)), event(sources=messages(30))], NOTHING)
    assert refused.value.extra == {"limit": 50, "found": 60}


def test_given_fields_replace_merged_ones() -> None:
    long = [event("a" * 3_000), event("b" * 3_000)]
    made = merge_events(long, MergedFields(summary="Both.", day=4, significance=1, pinned=True))
    assert (made.fields.summary, made.fields.day) == ("Both.", 4)
    assert (made.significance, made.is_pinned) == (1, True)
