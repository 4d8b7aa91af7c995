"""The rank of memories: signals, thresholds and diversity."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4, uuid5

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from backend.core.reasons import Match, Reason
from backend.memory.embedding.protocol import MINILM, ModelCosines, find_cosines
from backend.memory.index.protocol import Floats, Hit, Kind, Payload
from backend.memory.indexing.sources import MemoryItem
from backend.memory.search.features import (
    DENSE_SIGNALS,
    FEATURES,
    LARGE_CORPUS_POINTS,
    MIN_SAMPLE_HITS,
    SIGNALS,
    SPARSE_SIGNALS,
    Candidate,
    FeatureTable,
    Scores,
    find_corpus_factor,
    gather,
    points,
    scale_to_large_corpus,
)
from backend.memory.search.query import Signal
from backend.memory.search.ranking import (
    DUPLICATE_SIMILARITY,
    RankingThresholds,
    Weights,
    breadth,
    compute_thresholds,
    drop_duplicates,
    lower_neighbours,
    rank,
    select_relevant,
)
from backend.memory.search.request import (
    MatchScale,
    SearchRequest,
    SearchResult,
    SharedWords,
)
from backend.memory.search.search import MemorySearch

OWNER, CHAT = uuid4(), uuid4()
PLAIN = Weights(
    dense=0.5, sparse=0.5, dense_window=0, sparse_window=0, speaker=0.2, length=0,
    question=0, span=0.3,
)  # fmt: skip


def hit(
    name: str,
    score: float,
    *,
    kind: Kind = "message",
    row: str = "",
    chunk: int = 0,
    scene: UUID | None = None,
    said_at: int = 0,
    position: int = 0,
    speaker: int = 0,
    words: int = 10,
    is_question: bool = False,
) -> Hit:
    payload = Payload(
        owner_id=OWNER,
        kind=kind,
        container_id=CHAT,
        source_id=uuid5(CHAT, row or name),
        chunk=chunk,
        scene_id=scene,
        said_at=said_at,
        position=position,
        speaker=speaker,
        words=words,
        is_question=is_question,
    )
    return Hit(uuid5(OWNER, f"{name}/{chunk}"), score, payload)


def rows(ranked: list[Candidate]) -> list[UUID]:
    return [candidate.payload.source_id for candidate in ranked]


def named(*names: str) -> list[UUID]:
    return [uuid5(CHAT, name) for name in names]


def test_nothing_found_is_nothing_ranked() -> None:
    assert rank({}) == []
    assert rank({"dense": [], "sparse": []}) == []


def test_a_hit_of_two_signals_ranks_above_a_hit_of_one() -> None:
    found: dict[Signal, list[Hit]] = {
        "dense": [hit("both", 0.6), hit("dense", 0.6), hit("low", 0.1)],
        "sparse": [hit("both", 8), hit("terms", 8), hit("low", 1)],
    }
    assert rows(rank(found, weights=PLAIN))[0] == uuid5(CHAT, "both")


def test_how_far_a_score_is_ahead_counts_and_not_its_place_alone() -> None:
    found: dict[Signal, list[Hit]] = {
        "dense": [hit("a", 0.52), hit("b", 0.51), hit("c", 0.1)],
        "sparse": [hit("b", 20), hit("a", 2), hit("c", 1)],
    }
    assert rows(rank(found, weights=PLAIN)) == named("b", "a", "c")


def test_each_signal_is_handed_on_as_the_index_scored_it() -> None:
    ranked = rank({"dense": [hit("a", 0.42)], "sparse": [hit("a", 7.5)]}, weights=PLAIN)
    assert ranked[0].signals == Scores(dense=0.42, sparse=7.5)


def test_lines_of_the_named_speaker_are_preferred() -> None:
    found: dict[Signal, list[Hit]] = {
        "dense": [hit("other", 0.41, speaker=1), hit("named", 0.4, speaker=2), hit("x", 0.1)]
    }
    assert rows(rank(found, weights=PLAIN, speakers={2})) == named("named", "other", "x")


def test_the_reply_to_a_near_question_ranks_before_equal_lines() -> None:
    scene, other = uuid4(), uuid4()
    found: dict[Signal, list[Hit]] = {
        "dense": [
            hit("question", 0.6, scene=scene, position=4, is_question=True),
            hit("remark", 0.6, scene=scene, position=8),
            hit("after a remark", 0.41, scene=scene, position=9),
            hit("after a pause", 0.41, scene=other, position=5),
            hit("reply", 0.4, scene=scene, position=5),
            hit("x", 0.1),
        ]
    }
    weights = replace(PLAIN, answer=0.2, question=-1)
    lifted = rows(rank(found, weights=weights))
    plain = rows(rank(found, weights=replace(weights, answer=0)))
    others = named("remark", "after a remark", "after a pause")
    assert lifted[:4] == [*named("reply"), *others]
    assert plain[:4] == [*others, *named("reply")]


def test_lines_of_the_named_time_rank_first() -> None:
    found: dict[Signal, list[Hit]] = {
        "dense": [hit("late", 0.41, said_at=200), hit("then", 0.4, said_at=100), hit("x", 0.1)]
    }
    assert rows(rank(found, weights=PLAIN, spans=[(50, 150)]))[0] == uuid5(CHAT, "then")
    assert rows(rank(found, weights=PLAIN, spans=[(50, 100)]))[0] == uuid5(CHAT, "late")


def test_age_only_breaks_ties() -> None:
    found: dict[Signal, list[Hit]] = {
        "dense": [
            hit("best", 0.5, said_at=1),
            hit("old", 0.4, said_at=2),
            hit("new", 0.4, said_at=900),
            hit("x", 0.1, said_at=1000),
        ]
    }
    assert rows(rank(found, weights=PLAIN)) == named("best", "new", "old", "x")


def test_a_query_for_recent_lines_prefers_them() -> None:
    found: dict[Signal, list[Hit]] = {
        "dense": [hit("old", 0.42, said_at=1), hit("new", 0.4, said_at=900), hit("x", 0.1)]
    }
    assert rows(rank(found, weights=PLAIN, wants_recent=True))[0] == uuid5(CHAT, "new")


def test_a_bare_question_ranks_below_an_answer() -> None:
    found: dict[Signal, list[Hit]] = {
        "dense": [hit("asks", 0.41, is_question=True), hit("says", 0.4), hit("x", 0.1)]
    }
    assert rows(rank(found))[0] == uuid5(CHAT, "says")


def test_a_row_comes_once_by_its_best_chunk() -> None:
    found: dict[Signal, list[Hit]] = {
        "dense": [hit("a", 0.5, chunk=3), hit("b", 0.4), hit("a", 0.3, chunk=1)]
    }
    ranked = rank(found, weights=PLAIN)
    assert rows(ranked) == named("a", "b")
    assert ranked[0].payload.chunk == 3


def test_lore_is_not_behind_messages_for_having_no_window() -> None:
    lore, message = hit("lore", 0.5, kind="lore"), hit("line", 0.4)
    found: dict[Signal, list[Hit]] = {
        "dense": [lore, message, hit("x", 0.1)],
        "dense_window": [message, hit("x", 0.1)],
    }
    weights = Weights(length=0, question=0)
    assert rows(rank(found, weights=weights))[0] == uuid5(CHAT, "lore")


def test_two_hits_are_too_few_to_scale_scores() -> None:
    found: dict[Signal, list[Hit]] = {"sparse": [hit("a", 9), hit("b", 8)]}
    assert [round(each.score, 2) for each in rank(found, weights=PLAIN)] == [0.5, 0.44]


def test_answers_of_one_signal_come_together() -> None:
    one, two, three = hit("a", 1), hit("b", 2), hit("c", 3)
    found = gather(["dense", "sparse", "dense"], [[one], [two], [three]])
    assert found == {"dense": [one, three], "sparse": [two]}


def candidate(name: str, **signals: float) -> Candidate:
    one = hit(name, 0)
    known: dict[Signal, float] = {each: signals[each] for each in SIGNALS if each in signals}
    return Candidate(
        id=one.id,
        payload=one.payload,
        score=0.5,
        signals=Scores(**known),
        cosine=max((known[each] for each in DENSE_SIGNALS if each in known), default=-1.0),
        bm25=max((known[each] for each in SPARSE_SIGNALS if each in known), default=0.0),
    )


LEAST = RankingThresholds(dense=0.4, sparse=10, best=1)


def test_meaning_alone_words_alone_or_half_of_each_is_enough() -> None:
    kept = select_relevant(
        [
            candidate("meaning", dense=0.4),
            candidate("words", sparse_window=10),
            candidate("halves", dense_window=0.2, sparse=5),
            candidate("little", dense=0.2, sparse=4),
        ],
        LEAST,
    )
    assert rows(kept) == named("meaning", "words", "halves")


def test_far_candidates_are_not_selected() -> None:
    far = [candidate("a", dense=0.5), candidate("b", dense=0.45)]
    assert select_relevant(far, LEAST) == far
    assert select_relevant(far, RankingThresholds(dense=0.4, sparse=10, best=1.5)) == []


def test_without_vectors_words_count_twice() -> None:
    alone = [candidate("a", sparse=5)]
    assert select_relevant(alone, LEAST) == alone
    near = candidate("b", dense=0.5)
    assert select_relevant([*alone, near], LEAST) == [near]


def test_thresholds_of_zero_let_everything_through() -> None:
    far = [candidate("a", dense=-0.1)]
    assert select_relevant(far, RankingThresholds(dense=0, sparse=0)) == far


def test_cosines_are_measured_from_unrelated_texts_of_the_model() -> None:
    compressed = ModelCosines(unrelated=0.7, dense=0.8, lore=0.82)
    hits = [candidate("near", dense=0.86), candidate("far", dense=0.76), candidate("no", dense=0.7)]
    assert select_relevant(hits, compute_thresholds(None, activates_lore=False)) == hits
    usual = compute_thresholds(None, activates_lore=True, cosines=compressed)
    assert (usual.dense, usual.lore) == (0.8, 0.82)
    assert select_relevant(hits, usual) == hits[:1]
    half = compute_thresholds(0.5, activates_lore=True, cosines=compressed)
    assert (half.dense, half.lore) == (0.85, 0.85)
    everything = compute_thresholds(0.0, activates_lore=False, cosines=compressed)
    assert select_relevant(hits, everything) == hits
    scale = MatchScale(enough=compute_thresholds(None, activates_lore=False, cosines=compressed))
    assert scale.explain(candidate("near", dense=0.79, sparse=5.0), 1).kind == "semantic"
    assert scale.explain(candidate("far", dense=0.71, sparse=5.0), 1).kind == "words"


def test_the_reasons_of_a_line_are_relative_to_the_thresholds() -> None:
    scene = uuid4()
    scale = MatchScale(
        enough=RankingThresholds(dense=0.4, sparse=10, unrelated=0.2),
        speakers={7: "Mira"},
        spans=[(100, 200)],
    )
    one = hit("line", 0, scene=scene, speaker=7, said_at=150)
    scores = Scores(dense=0.7, sparse=2, sparse_window=10)
    line = Candidate(id=one.id, payload=one.payload, score=0.5, signals=scores)
    assert scale.explain(line, 1).signals == (
        Match("meaning", 2.5),
        Match("words_around", 1.0),
        Match("speaker", name="Mira"),
        Match("time"),
    )
    told = SharedWords("Where are the silver keys?").add_words(
        Reason("words", signals=(Match("words"),)), "A key, and silver coins. Silver!"
    )
    assert told.signals[0].words == ("key", "silver")


@pytest.mark.parametrize(
    "name", ["minilm-l6-v2-int8-0a1b2c3d", "sentence-transformers/all-MiniLM-L6-v2"]
)
def test_a_model_is_known_by_its_name_from_every_server(name: str) -> None:
    assert find_cosines(name) == MINILM


def test_a_larger_model_has_cosines_of_its_own() -> None:
    assert find_cosines("all-mpnet-base-v2-8fbb062e") == ModelCosines(dense=0.30, lore=0.25)


def test_the_shipped_weights_of_signals_sum_to_one() -> None:
    weights = Weights()
    total = sum(getattr(weights, name) for name in (*SIGNALS, "speaker"))
    assert total == pytest.approx(1)


def plain_features(
    found: dict[Signal, list[Hit]], lines: list[Hit], named: Sequence[int]
) -> list[list[float]]:
    """The features of each hit, computed as their documentation describes them."""
    scaled: dict[Signal, dict[UUID, float]] = {}
    for signal, hits in found.items():
        given = [each.score for each in hits]
        low = min(given) if len(given) >= MIN_SAMPLE_HITS else min(0.0, *given)
        span = max(given) - low
        scaled[signal] = {each.id: (each.score - low) / span if span > 0 else 1.0 for each in hits}
    table: list[list[float]] = []
    for line in lines:
        payload = line.payload
        row = [scaled[signal].get(line.id, 0.0) for signal in SIGNALS]
        if payload.kind == "message":
            length = min(1.0, float(np.log1p(payload.words)) / 4)
            in_time = 100 <= payload.said_at < 200 or 150 <= payload.said_at < 300
            row += [payload.speaker in named, length, payload.is_question, in_time]
            before = [
                scaled["dense"].get(each.id, 0.0)
                for each in lines
                if each.payload.is_question
                and each.payload.position == payload.position - 1
                and each.payload.scene_id == payload.scene_id is not None
            ]
            row.append(max(before, default=0.0))
        else:
            row = [*row[:2], *row[:2], *[0] * 5]
        table.append(row)
    return table


@pytest.mark.parametrize("seed", range(20))
def test_features_agree_with_a_plain_computation(seed: int) -> None:
    draw = random.Random(seed)
    scenes = [uuid4() for _ in range(4)]
    known = [
        hit(
            str(number),
            0,
            kind=draw.choice(("message", "message", "lore", "event")),
            scene=draw.choice((None, *scenes)),
            said_at=draw.randrange(400),
            position=draw.randrange(20),
            speaker=draw.randrange(3),
            words=draw.choice((0, 5, 50, 500)),
            is_question=draw.random() < 0.3,
        )
        for number in range(60)
    ]
    found: dict[Signal, list[Hit]] = {
        signal: [
            Hit(each.id, draw.choice((0.5, draw.uniform(-1, 30))), each.payload)
            for each in draw.sample(known, draw.choice((2, 9, 10, 40)))
        ]
        for signal in SIGNALS
    }
    lines = points(found)
    table = FeatureTable(found, speakers=[2, 1], spans=[(100, 200), (150, 300)]).values
    assert table.shape == (len(lines), len(FEATURES))
    assert table == pytest.approx(np.array(plain_features(found, lines, named=[2, 1])), abs=1e-12)


scores = st.lists(
    st.tuples(st.integers(0, 30), st.floats(-1, 40, allow_nan=False, width=32)),
    max_size=40,
    unique_by=lambda pair: pair[0],
)


@given(st.dictionaries(st.sampled_from(SIGNALS), scores, max_size=4))
def test_every_hit_is_ranked_once_with_a_finite_score(
    given_scores: dict[Signal, list[tuple[int, float]]],
) -> None:
    found: dict[Signal, list[Hit]] = {
        signal: sorted(
            (hit(str(number), score) for number, score in pairs), key=lambda each: -each.score
        )
        for signal, pairs in given_scores.items()
    }
    ranked = rank(found)
    values = [each.score for each in ranked]
    assert len(set(rows(ranked))) == len(ranked)
    assert set(rows(ranked)) == {each.payload.source_id for hits in found.values() for each in hits}
    assert values == sorted(values, reverse=True)
    assert np.isfinite(values).all()


@given(scores, st.floats(0.1, 10), st.floats(-3, 3))
def test_the_scale_of_a_signal_does_not_matter(
    pairs: list[tuple[int, float]], factor: float, shift: float
) -> None:
    # Of ten hits and more: fewer are measured from zero.
    many = [*pairs, *((100 + number, float(number)) for number in range(10))]
    plain: dict[Signal, list[Hit]] = {"dense": [hit(str(each), score) for each, score in many]}
    scaled: dict[Signal, list[Hit]] = {
        "dense": [hit(str(each), score * factor + shift) for each, score in many]
    }
    before = {each.id: each.score for each in rank(plain)}
    after = {each.id: each.score for each in rank(scaled)}
    assert after == pytest.approx(before, abs=1e-6)


def test_a_match_in_a_small_memory_counts_as_much_as_in_a_large_one() -> None:
    found: dict[Signal, list[Hit]] = {"sparse": [hit("a", 3.0)], "dense": [hit("a", 0.1)]}
    assert select_relevant(rank({"sparse": found["sparse"]}), RankingThresholds()) == []
    small = scale_to_large_corpus(found, 12)
    assert small["dense"] == found["dense"]
    assert len(select_relevant(rank({"sparse": small["sparse"]}), RankingThresholds())) == 1
    assert (
        scale_to_large_corpus(found, LARGE_CORPUS_POINTS)
        == scale_to_large_corpus(found, 10 * LARGE_CORPUS_POINTS)
        == found
    )


@given(points=st.integers(0, LARGE_CORPUS_POINTS))
def test_the_smaller_a_memory_the_more_its_words_weigh(points: int) -> None:
    assert find_corpus_factor(points) >= find_corpus_factor(points + 1) >= 1


def line(
    score: float,
    position: int,
    *,
    scene: UUID | None = None,
    chat: UUID = CHAT,
    kind: Kind = "message",
    window: float = 10.0,
) -> Candidate:
    payload = Payload(
        owner_id=CHAT,
        kind=kind,
        container_id=chat,
        source_id=uuid4(),
        position=position,
        scene_id=scene,
    )
    return Candidate(id=uuid4(), payload=payload, score=score, signals=Scores(sparse_window=window))


def in_scenes(scenes: Sequence[UUID]) -> list[Candidate]:
    return [line(1 - 0.02 * at, 10 * at, scene=scene) for at, scene in enumerate(scenes)]


MANY_SCENES = in_scenes([uuid4() for _ in range(20)])
ONE_SCENE = in_scenes([uuid4()] * 20)


def test_a_short_question_with_hits_in_many_scenes_is_broad() -> None:
    question = "Which spells?"
    assert breadth(question, MANY_SCENES) > 0.8
    assert breadth(question, ONE_SCENE) < 0.5 * breadth(question, MANY_SCENES)


@pytest.mark.parametrize(
    "text",
    [
        "What gift did grandmother bring back from her winter journey across the frozen lake?",
        "She opens the door and waits. " * 20,
        "??",
    ],
)
def test_many_terms_or_none_ask_for_one_thing(text: str) -> None:
    assert breadth(text, MANY_SCENES) < 0.15
    assert breadth("Which spells?", []) == 0
    assert breadth("Which spells?", [line(1.0, 0, kind="lore")]) == 0


def test_a_line_next_to_a_better_one_makes_room_for_another_scene() -> None:
    best, beside, apart = line(1.0, 7), line(0.9, 8), line(0.8, 40)
    lowered = structs.replace(beside, score=0.45)
    assert lower_neighbours([best, beside, apart], 0.9) == [best, apart, lowered]
    assert lower_neighbours([best, beside, apart], 0.0) == [best, beside, apart]


def test_a_line_that_its_own_words_found_keeps_its_place() -> None:
    best, beside, apart = line(1.0, 7), line(0.9, 8, window=1.0), line(0.8, 40)
    lowered = lower_neighbours([best, beside, apart], 0.9)
    assert [each.id for each in lowered] == [best.id, beside.id, apart.id]


def test_only_lines_of_one_chat_are_neighbours() -> None:
    some = [
        line(1.0, 0),
        line(0.9, 1, chat=uuid4()),
        line(0.8, 0, kind="lore"),
        line(0.7, 1, kind="lore"),
    ]
    assert lower_neighbours(some, 1.0) == some


@pytest.mark.anyio
async def test_memories_for_a_broad_question_come_from_several_places() -> None:
    best, beside, apart = line(1.0, 7), line(0.9, 8), line(0.8, 40)
    request = SearchRequest(text="Which spells?", now=datetime(2026, 3, 4, tzinfo=UTC))
    nowhere: Any = None
    everything: Any = EveryRow()
    search = MemorySearch(nowhere, [everything], embedders=nowhere, blinders=nowhere, pool=nowhere)

    async def recalled(breadth: float) -> list[UUID]:
        result = SearchResult(request=request, candidates=[best, beside, apart], breadth=breadth)
        memories = await search.recall(everything, nowhere, result)
        return [each.recalled.source_id for each in memories]

    of = [each.payload.source_id for each in (best, beside, apart)]
    assert await recalled(0.0) == of
    assert await recalled(0.9) == [of[0], of[2], of[1]]


class EveryRow:
    """A source of valid rows, and a database without queries."""

    kind: Kind = "message"

    def read(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def recall(
        self, _session: Any, _sealer: Any, ids: Sequence[UUID], *, viewpoint: Any
    ) -> dict[UUID, MemoryItem]:
        _ = viewpoint
        return {
            each: MemoryItem(kind="message", source_id=each, container_id=CHAT, title="", text="")
            for each in ids
        }


def scored(score: float) -> Candidate:
    row = uuid4()
    payload = Payload(owner_id=uuid4(), kind="message", container_id=uuid4(), source_id=row)
    return Candidate(id=row, payload=payload, score=score)


def at(degrees: float) -> Floats:
    turned = np.radians(degrees)
    return np.array([np.cos(turned), np.sin(turned)], dtype=np.float32)


def test_near_duplicates_of_better_candidates_are_dropped() -> None:
    best, same, other = scored(0.9), scored(0.8), scored(0.7)
    vectors = {best.id: at(0), same.id: at(2), other.id: at(60)}
    assert drop_duplicates([best, same, other], vectors, count=3) == [best, other]


def test_candidates_without_vectors_repeat_nothing() -> None:
    some = [scored(0.9), scored(0.9)]
    assert drop_duplicates(some, {}, count=5) == some
    assert drop_duplicates(some, {some[0].id: at(0)}, count=5) == some
    assert drop_duplicates(some, {}, count=0) == drop_duplicates([], {}, count=3) == []


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 360)), max_size=20),
    st.integers(0, 10),
)
def test_picks_are_candidates_once_each_and_none_near_another(
    given_ones: list[tuple[float, float]], count: int
) -> None:
    some = sorted((scored(score) for score, _ in given_ones), key=lambda each: -each.score)
    vectors: dict[UUID, Floats] = {
        each.id: at(angle) for each, (_, angle) in zip(some, given_ones, strict=True)
    }
    picked = drop_duplicates(some, vectors, count=count)
    assert len(picked) <= count
    assert len({each.id for each in picked}) == len(picked)
    assert all(
        float(vectors[one.id] @ vectors[other.id]) < DUPLICATE_SIMILARITY
        for place, one in enumerate(picked)
        for other in picked[:place]
    )
