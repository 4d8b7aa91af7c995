from __future__ import annotations

from math import ceil
from uuid import uuid5

import numpy as np

from backend.memory.index.protocol import Hit, Kind, Payload, Query, Scope, ScopePart, Sparse
from backend.memory.search.features import Candidate, Scores, SignalHits, gather
from backend.memory.search.query import Signal
from backend.memory.search.ranking import (
    DENSE_HITS,
    FIXED_RANKS,
    TOKENS_PER_LINE,
    TOKENS_PER_WORD,
    RankingThresholds,
    deepen_queries,
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
        meaning=cosine,
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


def test_lines_that_are_half_near_come_nearest_first_whatever_their_words() -> None:
    far, half, near = hit("words", 0.02), hit("half", LEAST.dense / 2), hit("near", LEAST.dense)
    assert names(find_nearest(found(far, half, near), LEAST), "half", "near") == ["near", "half"]
    ranked = rank({"dense": [near, half, far], "sparse": [hit("words", 20)]})
    assert names(select_relevant(ranked, LEAST), "words", "near") == ["near", "words"]


def test_no_more_lines_come_than_are_wanted() -> None:
    hits = found(*(hit(f"near {number}", LEAST.dense + number / 100) for number in range(9)))
    every = find_nearest(hits, LEAST)
    assert len(every) == 9
    assert [find_nearest(hits, LEAST, most=most) for most in (4, 0)] == [every[:4], []]


def test_where_no_line_is_near_by_its_meaning_alone_none_comes() -> None:
    assert find_nearest(found(hit("words", 0.28), hit("half", 0.2)), LEAST) == []
    assert find_nearest({}, LEAST) == []


def test_what_is_no_line_of_a_chat_keeps_its_thresholds() -> None:
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


def test_only_what_there_is_room_for_comes_in_and_nothing_chosen_goes_for_it() -> None:
    chosen, near = some("chosen", 3, 0.3), some("near", 9, 0.2)
    line = 10 * TOKENS_PER_WORD + TOKENS_PER_LINE
    assert merge_nearest(chosen, near, room=ceil(5 * line), most=100) == [*chosen, *near[:2]]
    assert merge_nearest(chosen, near, room=0, most=100) == chosen
    assert merge_nearest(chosen, near, room=4000, most=4) == [*chosen, near[0]]
    long = candidate("long", 0.25, words=4000)
    assert merge_nearest(chosen, [long, near[0]], room=4000, most=9) == [*chosen, near[0]]


def test_chance_words_say_nothing_of_how_near_a_line_is() -> None:
    answer, other = hit("answer", 0.4), hit("other", 0.2)
    ranked = rank({"dense": [answer, other], "sparse": [hit("other", 12)]})
    by_name = {each.payload.source_id: each for each in ranked}
    assert ranked[0].payload.source_id == uuid5(CHAT, "other")
    assert by_name[uuid5(CHAT, "answer")].meaning > by_name[uuid5(CHAT, "other")].meaning
