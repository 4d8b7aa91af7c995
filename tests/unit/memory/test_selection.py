"""The selection of memories for a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any
from uuid import UUID, uuid4, uuid5

import numpy as np
import pytest
from msgspec import structs

from backend.memory.index.protocol import (
    Hit,
    Kind,
    Payload,
    Query,
    Scope,
    ScopePart,
    Sparse,
    point_id,
)
from backend.memory.indexing.sources import MemoryItem, OriginMessage
from backend.memory.search.features import Candidate, Scores, SignalHits, gather
from backend.memory.search.query import Signal
from backend.memory.search.ranking import (
    ALMOST_EMPTY_SHARE,
    DENSE_HITS,
    EVENT_BOOST,
    FEW_PER_KIND,
    FIXED_RANKS,
    MAX_EVENT_LINES,
    TOKENS_PER_LINE,
    TOKENS_PER_WORD,
    RankingThresholds,
    add_few,
    add_origin_lines,
    compute_thresholds,
    deepen_queries,
    estimate_tokens,
    find_nearest,
    merge_nearest,
    rank,
    select_relevant,
    split_hits,
)
from tests.unit.memory.test_ranking import CHAT, OWNER, hit

LEAST = RankingThresholds()


def candidate(
    name: str, cosine: float, *, terms: float = 0.0, kind: Kind = "message", words: int = 10
) -> Candidate:
    payload = Payload(
        owner_id=OWNER, kind=kind, container_id=CHAT, source_id=uuid5(CHAT, name), words=words
    )
    return Candidate(
        id=uuid5(OWNER, name),
        payload=payload,
        score=terms,
        signals=Scores(dense=cosine, sparse=terms),
        cosine=cosine,
        bm25=terms,
    )


def some(name: str, count: int, cosine: float) -> list[Candidate]:
    return [candidate(f"{name} {number}", cosine) for number in range(count)]


def found(*hits: Hit) -> SignalHits:
    return {"dense": sorted(hits, key=lambda each: -each.score)}


def query(*kinds: Kind, terms: bool = False) -> Query:
    near = Sparse(np.ones(1, np.uint32), np.ones(1, np.float32)) if terms else np.ones(2, "f4")
    scope = Scope(owner_id=OWNER, parts=[ScopePart(containers=[CHAT])], kinds=kinds)
    return Query(vector="sparse" if terms else "dense", near=near, scope=scope, limit=100)


def names(candidates: list[Candidate], *names: str) -> list[str]:
    by_row = {uuid5(CHAT, name): name for name in names}
    return [by_row[each.payload.source_id] for each in candidates]


def test_half_near_lines_are_sorted_by_distance_without_their_words() -> None:
    far, half, near = hit("words", 0.02), hit("half", LEAST.dense / 2), hit("near", LEAST.dense)
    assert names(find_nearest(found(far, half, near), LEAST), "half", "near") == ["near", "half"]
    ranked = rank({"dense": [near, half, far], "sparse": [hit("words", 20)]})
    assert names(select_relevant(ranked, LEAST), "words", "near") == ["near", "words"]


def test_no_more_lines_come_than_are_wanted() -> None:
    hits = found(*(hit(f"near {number}", LEAST.dense + number / 100) for number in range(9)))
    every = find_nearest(hits, LEAST)
    assert len(every) == 9
    assert [find_nearest(hits, LEAST, most=most) for most in (4, 0)] == [every[:4], []]


def test_no_line_is_returned_if_none_is_near() -> None:
    assert find_nearest(found(hit("words", 0.28), hit("half", 0.2)), LEAST) == []
    assert find_nearest({}, LEAST) == []


def test_events_and_lore_keep_their_thresholds() -> None:
    events = found(hit("event", 0.6, kind="event"), hit("lore", 0.6, kind="lore"))
    assert find_nearest(events, LEAST) == []


def test_a_line_comes_back_as_the_whole_search_ranked_it() -> None:
    answer, other = hit("answer", 0.4), hit("other", 0.3)
    ranked = rank({"dense": [answer], "sparse": [hit("answer", 12)]})
    near = find_nearest(found(answer, other), LEAST, ranked=ranked)
    assert near[0] is ranked[0]
    assert names(near, "answer", "other") == ["answer", "other"]


def test_lines_are_looked_for_further_down_by_vectors_and_ranked_as_if_they_were_not() -> None:
    plan: list[tuple[Signal, Query]] = [
        ("dense", query("message")),
        ("dense_window", query("message")),
        ("sparse", query("message", terms=True)),
        ("dense", query("event", "lore")),
    ]
    assert [each.limit for each in deepen_queries(plan)] == [DENSE_HITS, DENSE_HITS, 100, 100]
    lines = [hit(f"line {number}", 0.9 - number / 1000) for number in range(DENSE_HITS)]
    words, event = [hit("line 5", 7)], [hit("event", 0.5, kind="event")]
    first, deep = split_hits(plan, [lines, lines[::-1], words, event])
    signals: list[Signal] = [signal for signal, _ in plan]
    assert first == gather(signals, [lines[:100], lines[::-1][:100], words, event])
    assert deep == {"dense": lines, "dense_window": lines[::-1]}


def test_an_answer_that_many_lines_are_nearer_than_still_comes() -> None:
    lines = [hit(f"line {number}", 0.6 - number / 1000) for number in range(DENSE_HITS)]
    plan: list[tuple[Signal, Query]] = [("dense", query("message"))]
    first, deep = split_hits(plan, [lines])
    answer = uuid5(CHAT, f"line {DENSE_HITS - 20}")
    assert answer not in {each.payload.source_id for each in rank(first)}
    assert answer in {each.payload.source_id for each in find_nearest(deep, LEAST)}


def test_the_first_memories_keep_their_places_and_then_the_nearest_come_by_turns() -> None:
    chosen = some("chosen", FIXED_RANKS + 2, 0.3)
    near = some("near", 3, 0.2)
    merged = merge_nearest(chosen, [near[0], chosen[3], *near[1:]], room=4000, most=100)
    first, (other, last) = chosen[:FIXED_RANKS], chosen[FIXED_RANKS:]
    assert merged == [*first, near[0], other, last, near[1], near[2]]


def test_near_lines_are_added_only_if_they_fit_beside_the_chosen() -> None:
    chosen, near = some("chosen", 3, 0.3), some("near", 9, 0.2)
    line = 10 * TOKENS_PER_WORD + TOKENS_PER_LINE
    assert merge_nearest(chosen, near, room=ceil(5 * line), most=100) == [*chosen, *near[:2]]
    assert merge_nearest(chosen, near, room=0, most=100) == chosen
    assert merge_nearest(chosen, near, room=4000, most=4) == [*chosen, near[0]]
    long = candidate("long", 0.25, words=4000)
    assert merge_nearest(chosen, [long, near[0]], room=4000, most=9) == [*chosen, near[0]]


ROOM = 4_000


def at_share(kind: Kind, count: int, share: float) -> list[Candidate]:
    """Memories whose cosine is this share of the threshold."""
    cosine = share * LEAST.dense
    return [candidate(f"{kind} {share} {n}", cosine, kind=kind) for n in range(count)]


def kinds(candidates: Sequence[Candidate]) -> list[Kind]:
    return [each.payload.kind for each in candidates]


def test_the_best_of_each_kind_but_lore_come_in_while_there_is_room() -> None:
    ranked = [
        *at_share("message", 5, 0.6),
        *at_share("campaign", 2, 0.6),
        *at_share("lore", 2, 0.6),
        *at_share("event", 1, 0.4),
    ]
    assert select_relevant(ranked, LEAST) == []
    few = add_few([], ranked, LEAST, room=ROOM)
    assert few == [*ranked[:FEW_PER_KIND], *ranked[5:7]]
    assert kinds(few) == ["message"] * FEW_PER_KIND + ["campaign"] * 2


def test_those_that_are_near_enough_count_among_the_few_and_keep_their_order() -> None:
    near, far = at_share("message", 2, 1.5), at_share("message", 5, 0.6)
    ranked = [far[0], *near, *far[1:]]
    assert add_few(near, ranked, LEAST, room=ROOM) == [far[0], *near]


def test_no_more_come_in_if_memories_take_a_part_of_the_room_or_there_is_none() -> None:
    [near], ranked = at_share("campaign", 1, 1.5), at_share("message", 2, 0.6)
    kept = [near]
    enough = int(estimate_tokens(near) / ALMOST_EMPTY_SHARE)
    assert add_few(kept, [*kept, *ranked], LEAST, room=enough) == kept
    assert add_few(kept, [*kept, *ranked], LEAST, room=0) == kept
    assert len(add_few(kept, [*kept, *ranked], LEAST, room=enough + 1)) == 3
    everything = compute_thresholds(0.0, activates_lore=False)
    assert add_few(ranked, ranked, everything, room=ROOM) == ranked


@pytest.mark.parametrize(
    ("aboutness", "cosine", "bm25", "is_in"),
    [
        (1.0, None, 5.0, True),
        (0.9, None, 20.0, False),
        (1.0, None, 4.0, False),
        (1.0, 0.16, 5.0, True),
        (1.0, 0.14, 20.0, False),
        (1.0, -0.1, 20.0, False),
        (0.0, 0.31, 0.0, True),
    ],
)
def test_lore_comes_in_by_its_words_or_its_meaning(
    aboutness: float, cosine: float | None, bm25: float, *, is_in: bool
) -> None:
    least = compute_thresholds(None, activates_lore=True)
    entry = worded("entry", aboutness, cosine, bm25)
    assert select_relevant([entry], least) == ([entry] if is_in else [])


def test_words_bring_in_the_best_five_entries() -> None:
    least = compute_thresholds(None, activates_lore=True)
    entries = [worded(f"entry {number}", 1.2, None, 5 + number) for number in range(8)]
    assert select_relevant(entries, least) == entries[3:]


def worded(name: str, aboutness: float, cosine: float | None, bm25: float) -> Candidate:
    """An entry that words found, and meaning too if it has a cosine."""
    plain = candidate(name, cosine or 0.0, terms=bm25, kind="lore")
    signals = structs.replace(plain.signals, dense=cosine)
    return structs.replace(plain, signals=signals, aboutness=aboutness)


HERE = [ScopePart(containers=[CHAT], before_position=50, kinds=("message", "scene"))]


def scored(score: float, kind: Kind = "message") -> Candidate:
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


def test_an_event_raises_the_rank_of_its_lines() -> None:
    best, event, line = scored(1.0), scored(0.9, "event"), scored(0.8)
    told = add_origin_lines(
        [best, event, line], made_of(event, line_of(line)), parts=HERE, kinds=()
    )
    assert [each.id for each in told] == [line.id, best.id, event.id]
    assert (told[0].score, told[0].joined) == (0.8 + EVENT_BOOST * 0.9, 0.9)


def test_a_line_that_was_not_found_is_added_once_after_the_results() -> None:
    event, other, far = scored(1.0, "event"), scored(0.9, "event"), scored(0.5)
    origin = OriginMessage(uuid4(), CHAT, 7)
    recalled = made_of(event, origin, origin) | made_of(other, origin)
    told = add_origin_lines([event, other, far], recalled, parts=HERE, kinds=("event", "message"))
    [line] = [each for each in told if each.id == point_id("message", origin.message_id)]
    assert (line.payload.owner_id, line.payload.container_id) == (OWNER, CHAT)
    assert (line.payload.position, line.score, line.joined) == (7, 0.5 + EVENT_BOOST, 1.0)


def test_only_lines_that_are_looked_through_come_in() -> None:
    event = scored(1.0, "event")
    late, elsewhere = OriginMessage(uuid4(), CHAT, 50), OriginMessage(uuid4(), uuid4(), 3)
    events_alone = [ScopePart(containers=[CHAT], kinds=("event",))]

    def added(*origins: OriginMessage, kinds: Sequence[Kind] = (), parts: Any = HERE) -> int:
        told = add_origin_lines([event], made_of(event, *origins), parts=parts, kinds=kinds)
        assert event in told
        return len(told) - 1

    here = OriginMessage(uuid4(), CHAT, 3)
    assert added(here) == 1
    assert added(late, elsewhere) == 0
    assert added(here, kinds=("event",)) == added(here, parts=events_alone) == 0
    many = [OriginMessage(uuid4(), CHAT, 3) for _ in range(MAX_EVENT_LINES + 1)]
    assert added(*many[1:]) == MAX_EVENT_LINES
    assert added(*many) == 0, "an event of too many lines adds none"
