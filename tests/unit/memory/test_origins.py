from __future__ import annotations

from uuid import UUID, uuid4

from backend.memory.index.protocol import Kind, Payload, ScopePart, point_id
from backend.memory.indexing.sources import MemoryItem, OriginMessage
from backend.memory.search.features import Candidate
from backend.memory.search.ranking import EVENT_BOOST, MAX_EVENT_LINES, add_origin_lines

OWNER, CHAT = uuid4(), uuid4()
HERE = [ScopePart(containers=[CHAT], before_position=50, kinds=("message", "scene"))]


def found(score: float, kind: Kind = "message") -> Candidate:
    payload = Payload(owner_id=OWNER, kind=kind, container_id=CHAT, source_id=uuid4())
    return Candidate(id=uuid4(), payload=payload, score=score)


def made_of(event: Candidate, *origins: OriginMessage) -> dict[UUID, MemoryItem]:
    row = event.payload.source_id
    recalled = MemoryItem(
        kind="event", source_id=row, container_id=CHAT, title="", text="", origins=origins
    )
    return {row: recalled}


def line_of(candidate: Candidate, position: int = 3) -> OriginMessage:
    return OriginMessage(candidate.payload.source_id, CHAT, position)


def test_the_lines_of_an_event_stand_higher_by_how_near_it_is() -> None:
    best, event, line = found(1.0), found(0.9, "event"), found(0.8)
    told = add_origin_lines(
        [best, event, line], made_of(event, line_of(line)), parts=HERE, kinds=()
    )
    assert [each.id for each in told] == [line.id, best.id, event.id]
    assert (told[0].score, told[0].joined) == (0.8 + EVENT_BOOST * 0.9, 0.9)


def test_a_line_that_was_not_found_comes_in_once_behind_what_was() -> None:
    event, other, far = found(1.0, "event"), found(0.9, "event"), found(0.5)
    origin = OriginMessage(uuid4(), CHAT, 7)
    recalled = made_of(event, origin, origin) | made_of(other, origin)
    told = add_origin_lines([event, other, far], recalled, parts=HERE, kinds=("event", "message"))
    [line] = [each for each in told if each.id == point_id("message", origin.message_id)]
    assert (line.payload.owner_id, line.payload.container_id) == (OWNER, CHAT)
    assert (line.payload.position, line.score, line.joined) == (7, 0.5 + EVENT_BOOST, 1.0)


def test_only_lines_that_are_looked_through_come_in() -> None:
    event = found(1.0, "event")
    late, elsewhere = OriginMessage(uuid4(), CHAT, 50), OriginMessage(uuid4(), uuid4(), 3)
    assert add_origin_lines([event], made_of(event, late, elsewhere), parts=HERE, kinds=()) == [
        event
    ]
    here = OriginMessage(uuid4(), CHAT, 3)
    assert add_origin_lines([event], made_of(event, here), parts=HERE, kinds=("event",)) == [event]
    events_alone = [ScopePart(containers=[CHAT], kinds=("event",))]
    assert add_origin_lines([event], made_of(event, here), parts=events_alone, kinds=()) == [event]


def test_what_very_many_lines_made_says_nothing_of_them() -> None:
    event = found(1.0, "event")
    many = [OriginMessage(uuid4(), CHAT, 3) for _ in range(MAX_EVENT_LINES + 1)]
    assert add_origin_lines([event], made_of(event, *many), parts=HERE, kinds=()) == [event]
    assert (
        len(add_origin_lines([event], made_of(event, *many[1:]), parts=HERE, kinds=()))
        == 1 + MAX_EVENT_LINES
    )
