from __future__ import annotations

from uuid import UUID, uuid4

from backend.memory.index.protocol import Kind, Payload, ScopePart, point_id
from backend.memory.indexing.sources import Origin, Recalled
from backend.memory.search.features import Candidate
from backend.memory.search.recall import LIFT, MOST, joined

OWNER, CHAT = uuid4(), uuid4()
HERE = [ScopePart(containers=[CHAT], before_position=50, kinds=("message", "scene"))]


def found(score: float, kind: Kind = "message") -> Candidate:
    payload = Payload(owner_id=OWNER, kind=kind, container_id=CHAT, source_id=uuid4())
    return Candidate(id=uuid4(), payload=payload, score=score)


def made_of(event: Candidate, *origins: Origin) -> dict[UUID, Recalled]:
    row = event.payload.source_id
    recalled = Recalled(
        kind="event", source_id=row, container_id=CHAT, title="", text="", origins=origins
    )
    return {row: recalled}


def line_of(candidate: Candidate, position: int = 3) -> Origin:
    return Origin(candidate.payload.source_id, CHAT, position)


def test_the_lines_of_an_event_stand_higher_by_how_near_it_is() -> None:
    best, event, line = found(1.0), found(0.9, "event"), found(0.8)
    told = joined([best, event, line], made_of(event, line_of(line)), parts=HERE, kinds=())
    assert [each.id for each in told] == [line.id, best.id, event.id]
    assert (told[0].score, told[0].joined) == (0.8 + LIFT * 0.9, 0.9)


def test_a_line_that_was_not_found_comes_in_once_behind_what_was() -> None:
    event, other, far = found(1.0, "event"), found(0.9, "event"), found(0.5)
    origin = Origin(uuid4(), CHAT, 7)
    recalled = made_of(event, origin, origin) | made_of(other, origin)
    told = joined([event, other, far], recalled, parts=HERE, kinds=("event", "message"))
    [line] = [each for each in told if each.id == point_id("message", origin.message_id)]
    assert (line.payload.owner_id, line.payload.container_id) == (OWNER, CHAT)
    assert (line.payload.position, line.score, line.joined) == (7, 0.5 + LIFT, 1.0)


def test_only_lines_that_are_looked_through_come_in() -> None:
    event = found(1.0, "event")
    late, elsewhere = Origin(uuid4(), CHAT, 50), Origin(uuid4(), uuid4(), 3)
    assert joined([event], made_of(event, late, elsewhere), parts=HERE, kinds=()) == [event]
    here = Origin(uuid4(), CHAT, 3)
    assert joined([event], made_of(event, here), parts=HERE, kinds=("event",)) == [event]
    events_alone = [ScopePart(containers=[CHAT], kinds=("event",))]
    assert joined([event], made_of(event, here), parts=events_alone, kinds=()) == [event]


def test_what_very_many_lines_made_says_nothing_of_them() -> None:
    event = found(1.0, "event")
    many = [Origin(uuid4(), CHAT, 3) for _ in range(MOST + 1)]
    assert joined([event], made_of(event, *many), parts=HERE, kinds=()) == [event]
    assert len(joined([event], made_of(event, *many[1:]), parts=HERE, kinds=())) == 1 + MOST
