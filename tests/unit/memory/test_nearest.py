from __future__ import annotations

from uuid import uuid5

from backend.memory.index.protocol import Kind, Payload
from backend.memory.nearest import FIRST, TOKENS_A_LINE, TOKENS_A_WORD, nearest, with_nearest
from backend.memory.ranking import Candidate, Signal, rank
from backend.memory.thresholds import RankingThresholds, relevant
from tests.unit.memory.test_ranking import CHAT, OWNER, hit

LEAST = RankingThresholds()


def candidate(
    name: str, cosine: float, *, terms: float = 0.0, kind: Kind = "message", words: int = 10
) -> Candidate:
    payload = Payload(
        owner_id=OWNER, kind=kind, container_id=CHAT, source_id=uuid5(CHAT, name), words=words
    )
    signals: dict[Signal, float] = {"dense": cosine, "sparse": terms}
    return Candidate(
        id=uuid5(OWNER, name), payload=payload, score=terms, signals=signals, meaning=cosine
    )


def some(name: str, count: int, cosine: float) -> list[Candidate]:
    return [candidate(f"{name} {number}", cosine) for number in range(count)]


def test_lines_that_are_half_near_come_nearest_first_whatever_their_words() -> None:
    lines = [
        candidate("words", 0.10, terms=20),
        candidate("half", LEAST.dense / 2),
        candidate("near", LEAST.dense),
    ]
    assert nearest(lines, LEAST) == [lines[2], lines[1]]
    assert relevant(lines, LEAST) == [lines[0], lines[2]]


def test_where_no_line_is_near_by_its_meaning_alone_none_comes() -> None:
    assert nearest([candidate("words", 0.28, terms=20), candidate("half", 0.2)], LEAST) == []
    assert nearest([], LEAST) == []


def test_what_is_no_line_of_a_chat_keeps_its_thresholds() -> None:
    events = [candidate("event", 0.6, kind="event"), candidate("lore", 0.6, kind="lore")]
    assert nearest(events, LEAST) == []


def test_the_first_memories_keep_their_places_and_then_the_nearest_come_by_turns() -> None:
    chosen = some("chosen", FIRST + 2, 0.3)
    near = some("near", 3, 0.2)
    merged = with_nearest(chosen, [near[0], chosen[3], *near[1:]], room=4000, most=100)
    first, (other, last) = chosen[:FIRST], chosen[FIRST:]
    assert merged == [*first, near[0], other, last, near[1], near[2]]


def test_only_what_there_is_room_for_comes_in_and_nothing_chosen_goes_for_it() -> None:
    chosen, near = some("chosen", 3, 0.3), some("near", 9, 0.2)
    line = 10 * TOKENS_A_WORD + TOKENS_A_LINE
    assert with_nearest(chosen, near, room=int(5 * line), most=100) == [*chosen, *near[:2]]
    assert with_nearest(chosen, near, room=0, most=100) == chosen
    assert with_nearest(chosen, near, room=4000, most=4) == [*chosen, near[0]]
    long = candidate("long", 0.25, words=4000)
    assert with_nearest(chosen, [long, near[0]], room=4000, most=9) == [*chosen, near[0]]


def test_chance_words_say_nothing_of_how_near_a_line_is() -> None:
    answer, other = hit("answer", 0.4), hit("other", 0.2)
    ranked = rank({"dense": [answer, other], "sparse": [hit("other", 12)]})
    by_name = {each.payload.source_id: each for each in ranked}
    assert ranked[0].payload.source_id == uuid5(CHAT, "other")
    assert by_name[uuid5(CHAT, "answer")].meaning > by_name[uuid5(CHAT, "other")].meaning
