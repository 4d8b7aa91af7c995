"""The behaviour that all engines of the index share."""

from __future__ import annotations

import random
from dataclasses import replace
from uuid import UUID, uuid4

import msgspec
import numpy as np
import pytest

from backend.memory.index.protocol import (
    Hit,
    IndexUnavailableError,
    Payload,
    Point,
    Scope,
    ScopePart,
    VectorIndex,
    point_id,
)
from backend.memory.search.features import SIGNALS, gather
from backend.memory.search.ranking import rank
from tests.support.points import DIMENSION, Open, point, query, scope, terms, unit

pytestmark = pytest.mark.anyio

ANN, BEN = uuid4(), uuid4()
CHAT, BOOK = uuid4(), uuid4()


@pytest.fixture
async def index(open_index: Open) -> VectorIndex:
    return await open_index("tales", DIMENSION)


def sources(hits: list[Hit]) -> list[UUID]:
    return [hit.payload.source_id for hit in hits]


def source(item: Point) -> UUID:
    return item.payload.source_id


async def test_an_index_is_new_once(open_index: Open) -> None:
    first = await open_index("tales", DIMENSION)
    await first.upsert([point(ANN, CHAT)])
    await first.aclose()
    second = await open_index("tales", DIMENSION)
    assert (first.is_new, second.is_new) == (True, False)
    assert await second.count() == 1


async def test_what_is_stored_twice_is_there_once(index: VectorIndex) -> None:
    item = point(ANN, CHAT)
    await index.upsert([item])
    await index.upsert([item])
    assert await index.count() == 1


async def test_storing_nothing_is_no_error(index: VectorIndex) -> None:
    await index.upsert([])
    assert await index.count() == 0


@pytest.mark.parametrize(
    "payload",
    [
        Payload(owner_id=ANN, kind="lore", container_id=BOOK, source_id=uuid4()),
        Payload(
            owner_id=ANN,
            kind="message",
            container_id=CHAT,
            source_id=uuid4(),
            chunk=3,
            version=2**62,
            position=100_000,
            scene_id=uuid4(),
            said_at=-5,
            speaker=2**32 - 1,
            words=12,
            is_question=True,
        ),
    ],
)
async def test_a_payload_comes_back_as_it_was(index: VectorIndex, payload: Payload) -> None:
    await index.upsert([replace(point(ANN, CHAT), payload=payload)])
    within = scope(ANN, payload.container_id, kinds=[payload.kind])
    [[hit]] = await index.search([query(unit(1), within)])
    assert hit.payload == payload
    assert [page async for page in index.scan(ANN)] == [[(hit.id, payload)]]


async def test_the_nearest_comes_first_with_its_cosine(index: VectorIndex) -> None:
    near, far = unit(1, 0.2), unit(0.2, 1)
    items = [point(ANN, CHAT, dense={"dense": vector}) for vector in (far, near)]
    await index.upsert(items)
    [hits] = await index.search([query(unit(1), scope(ANN, CHAT))])
    assert sources(hits) == [source(items[1]), source(items[0])]
    assert [hit.score for hit in hits] == pytest.approx([near[0], far[0]], abs=1e-6)
    assert [hit.id for hit in hits] == [items[1].id, items[0].id]


async def test_no_more_come_than_were_asked_for(index: VectorIndex) -> None:
    await index.upsert([point(ANN, CHAT) for _ in range(5)])
    [hits] = await index.search([query(unit(1), scope(ANN, CHAT), limit=3)])
    assert len(hits) == 3


async def test_what_is_someone_elses_is_never_found(index: VectorIndex) -> None:
    hers = point(ANN, CHAT, sparse={"sparse": terms({7: 1})})
    await index.upsert([hers, point(BEN, CHAT, sparse={"sparse": terms({7: 1})})])
    within = scope(ANN, CHAT)
    found = await index.search([query(unit(1), within), query(terms({7: 1}), within)])
    assert [sources(hits) for hits in found] == [[source(hers)]] * 2


async def test_only_the_kinds_and_containers_that_were_named_are_looked_at(
    index: VectorIndex,
) -> None:
    message, scene = point(ANN, CHAT), point(ANN, CHAT, kind="scene")
    lore, other = point(ANN, BOOK, kind="lore"), point(ANN, uuid4())
    await index.upsert([message, scene, lore, other])
    within = scope(ANN, CHAT, BOOK, kinds=["message", "lore"])
    [hits] = await index.search([query(unit(1), within)])
    assert set(sources(hits)) == {source(message), source(lore)}


async def test_a_chat_may_be_cut_off_at_a_position_while_a_book_is_whole(
    index: VectorIndex,
) -> None:
    early, late = point(ANN, CHAT, position=9), point(ANN, CHAT, position=10)
    lore = point(ANN, BOOK, kind="lore", position=50)
    await index.upsert([early, late, lore])
    within = Scope(
        owner_id=ANN,
        parts=[ScopePart(containers=[BOOK]), ScopePart(containers=[CHAT], before_position=10)],
        kinds=["message", "lore"],
    )
    [hits] = await index.search([query(unit(1), within)])
    assert set(sources(hits)) == {source(early), source(lore)}


@pytest.mark.parametrize(
    "nowhere",
    [
        Scope(owner_id=ANN, parts=[], kinds=["message"]),
        Scope(owner_id=ANN, parts=[ScopePart(containers=[])], kinds=["message"]),
        Scope(owner_id=ANN, parts=[ScopePart(containers=[], before_position=5)], kinds=["message"]),
        scope(ANN, CHAT, kinds=[]),
    ],
)
async def test_a_scope_with_nothing_in_it_finds_nothing(index: VectorIndex, nowhere: Scope) -> None:
    await index.upsert([point(ANN, CHAT)])
    assert await index.search([query(unit(1), nowhere)]) == [[]]


async def test_a_part_without_containers_does_not_widen_the_others(index: VectorIndex) -> None:
    here = point(ANN, CHAT)
    await index.upsert([here, point(ANN, BOOK)])
    parts = [ScopePart(containers=[]), ScopePart(containers=[CHAT])]
    within = Scope(owner_id=ANN, parts=parts, kinds=["message"])
    [hits] = await index.search([query(unit(1), within)])
    assert sources(hits) == [source(here)]


async def test_each_query_of_a_batch_gets_its_own_answer(index: VectorIndex) -> None:
    first = point(ANN, CHAT, dense={"dense": unit(1), "dense_window": unit(0, 0, 1)})
    second = point(ANN, CHAT, dense={"dense": unit(0, 1)}, sparse={"sparse": terms({7: 2})})
    await index.upsert([first, second])
    within = scope(ANN, CHAT)
    found = await index.search(
        [
            query(unit(0, 1), within, limit=1),
            query(terms({}), within),
            query(unit(0, 0, 1), within, vector="dense_window"),
            query(terms({7: 1, 8: 1}), within),
            query(terms({7: 1}), within, vector="sparse_window"),
        ]
    )
    here, there = source(first), source(second)
    assert [sources(hits) for hits in found] == [[there], [], [here], [there], []]
    assert await index.search([]) == []


async def test_terms_are_weighed_by_how_rare_they_are_among_ones_own_points(
    index: VectorIndex,
) -> None:
    common, rare = terms({1: 1}), terms({2: 1})
    hers = [point(ANN, CHAT, sparse={"sparse": common}) for _ in range(9)]
    hers.append(point(ANN, CHAT, sparse={"sparse": rare}))
    await index.upsert(hers)
    asked = [query(terms({1: 1, 2: 1}), scope(ANN, CHAT))]
    [before] = await index.search(asked)
    assert source(hers[-1]) == before[0].payload.source_id
    assert before[0].score > 2 * before[1].score > 0

    # To someone else the rare term is the common one: that is nothing to her.
    await index.upsert([point(BEN, CHAT, sparse={"sparse": rare}) for _ in range(50)])
    [after] = await index.search(asked)
    assert [hit.score for hit in after] == pytest.approx([hit.score for hit in before], rel=1e-6)


async def test_term_ids_have_all_32_bits(index: VectorIndex) -> None:
    item = point(ANN, CHAT, sparse={"sparse": terms({2**32 - 1: 1, 0: 1})})
    await index.upsert([item])
    [hits] = await index.search([query(terms({2**32 - 1: 1}), scope(ANN, CHAT))])
    assert sources(hits) == [source(item)]


async def test_a_point_without_dense_vectors_is_found_by_its_terms_alone(
    index: VectorIndex,
) -> None:
    item = point(ANN, CHAT, dense={}, sparse={"sparse": terms({3: 1})})
    await index.upsert([item])
    within = scope(ANN, CHAT)
    found = await index.search([query(unit(1), within), query(terms({3: 1}), within)])
    assert [sources(hits) for hits in found] == [[], [source(item)]]


async def test_storing_anew_takes_away_the_vectors_that_are_gone(index: VectorIndex) -> None:
    item = point(ANN, CHAT, dense={"dense": unit(1), "dense_window": unit(0, 1)})
    await index.upsert([item])
    await index.upsert([replace(item, dense={"dense": unit(0, 0, 1)})])
    within = scope(ANN, CHAT)
    [hits, window] = await index.search(
        [query(unit(0, 0, 1), within), query(unit(0, 1), within, vector="dense_window")]
    )
    assert hits[0].score == pytest.approx(1, abs=1e-6)
    assert window == []


async def test_dense_vectors_come_back_for_the_points_that_have_one(index: VectorIndex) -> None:
    vector = unit(3, 4, 5)
    with_one = point(ANN, CHAT, dense={"dense": vector})
    without = point(ANN, CHAT, dense={}, sparse={"sparse": terms({1: 1})})
    await index.upsert([with_one, without])
    found = await index.dense_vectors([with_one.id, without.id, uuid4()])
    assert set(found) == {with_one.id}
    assert found[with_one.id].dtype == np.float32
    assert found[with_one.id] == pytest.approx(vector, abs=1e-6)


async def test_terms_come_back_for_the_points_that_have_some(index: VectorIndex) -> None:
    with_some = point(ANN, CHAT, sparse={"sparse": terms({2**32 - 1: 1.5, 7: 0.25})})
    without = point(ANN, CHAT, dense={"dense": unit(1)}, sparse={})
    await index.upsert([with_some, without])
    assert await index.term_vectors([]) == {}
    found = await index.term_vectors([with_some.id, without.id, uuid4()])
    assert set(found) == {with_some.id}
    vector = found[with_some.id]
    pairs = zip(vector.ids.tolist(), vector.weights.tolist(), strict=True)
    assert dict(pairs) == {2**32 - 1: 1.5, 7: 0.25}


def in_chunks(row: UUID) -> tuple[list[Point], Point]:
    """The points of a row of Ann's, and one of Ben's that names the same row."""
    points = [
        replace(point(ANN, CHAT, source=row), id=point_id("message", row, chunk))
        for chunk in range(3)
    ]
    return points, replace(point(BEN, CHAT, source=row), id=uuid4())


async def test_deleting_rows_takes_all_their_chunks_and_nothing_of_anybody_elses(
    index: VectorIndex,
) -> None:
    row, kept = uuid4(), point(ANN, CHAT)
    chunks, theirs = in_chunks(row)
    await index.upsert([*chunks, kept, theirs])
    await index.delete_sources(ANN, [row, uuid4()])
    await index.delete_sources(ANN, [])
    assert await index.count(ANN) == 1
    assert await index.count(BEN) == 1


async def test_points_come_in_place_of_all_points_of_rows_of_the_same_user(
    index: VectorIndex,
) -> None:
    row, kept = uuid4(), point(ANN, CHAT)
    chunks, theirs = in_chunks(row)
    await index.upsert([*chunks, kept, theirs])
    many = [point(ANN, CHAT) for _ in range(40)]
    await index.upsert([*many, chunks[0]], instead_of=[row, uuid4()])
    assert await index.count(ANN) == len(many) + 2
    assert await index.count(BEN) == 1


async def test_an_audience_finds_what_names_it_and_nothing_without_one(index: VectorIndex) -> None:
    words = [("public",), ("gm",), (str(ANN), str(BEN)), (str(BEN),), ()]
    items = [
        replace(made, payload=msgspec.structs.replace(made.payload, audience=each))
        for each in words
        for made in [point(ANN, CHAT)]
    ]
    await index.upsert(items)
    public, gm, both, ben, nothing = (source(item) for item in items)

    async def found(*audience: str, before: int | None = None) -> set[UUID]:
        where = scope(ANN, CHAT, before=before)._replace(audience=audience)
        [hits] = await index.search([query(unit(1), where)])
        return set(sources(hits))

    assert await found() == {public, gm, both, ben, nothing}
    assert await found("public") == {public}
    assert await found("public", str(ANN)) == {public, both}
    assert await found("public", str(BEN), before=5) == {public, both, ben}
    two = Scope(
        owner_id=ANN,
        parts=[ScopePart(containers=[CHAT], before_position=9), ScopePart(containers=[BOOK])],
        kinds=("message",),
        audience=["public"],
    )
    [hits] = await index.search([query(unit(1), two)])
    assert sources(hits) == [public]


async def test_deleting_a_container_leaves_the_others(index: VectorIndex) -> None:
    kept, theirs = point(ANN, BOOK), point(BEN, CHAT)
    await index.upsert([point(ANN, CHAT), point(ANN, CHAT), kept, theirs])
    await index.delete_container(ANN, CHAT)
    assert [[item for item, _ in page] async for page in index.scan(ANN)] == [[kept.id]]
    assert await index.count(BEN) == 1


async def test_deleting_a_user_leaves_nothing_of_theirs(index: VectorIndex) -> None:
    await index.upsert([point(ANN, CHAT), point(ANN, BOOK), point(BEN, CHAT)])
    assert await index.owners() == {ANN, BEN}
    await index.delete_owner(ANN)
    assert await index.owners() == {BEN}
    assert (await index.count(ANN), await index.count()) == (0, 1)
    assert [page async for page in index.scan(ANN)] == []


async def test_a_scan_meets_every_point_once(index: VectorIndex) -> None:
    items = [point(ANN, CHAT if number % 3 else BOOK) for number in range(1203)]
    await index.upsert([*items, point(BEN, CHAT)])
    pages = [page async for page in index.scan(ANN)]
    assert len(pages) > 1
    met = [item for page in pages for item, _ in page]
    assert len(met) == len(items)
    assert set(met) == {item.id for item in items}
    in_book = [item async for page in index.scan(ANN, container_id=BOOK) for item in page]
    assert len(in_book) == 401


async def test_hits_say_what_is_stored_of_them_whatever_was_written_in_between(
    index: VectorIndex,
) -> None:
    draw = random.Random(5)
    rows = [(owner, uuid4()) for owner in (ANN, ANN, BEN) for _ in range(30)]
    chats, within = (
        (CHAT, uuid4()),
        {each: scope(each, CHAT, kinds=["message"]) for each in (ANN, BEN)},
    )

    def made(owner: UUID, row: UUID) -> Point:
        item = point(
            owner,
            draw.choice(chats),
            source=row,
            dense={"dense": unit(*(draw.random() for _ in range(3))), "dense_window": unit(1)},
            sparse={
                "sparse": terms({draw.randrange(4): draw.random()}),
                "sparse_window": terms({1: 1}),
            },
        )
        payload = msgspec.structs.replace(
            item.payload,
            scene_id=draw.choice((None, CHAT, ANN)),
            said_at=draw.randrange(1000),
            speaker=draw.randrange(3),
            words=draw.randrange(80),
            is_question=draw.random() < 0.3,
            version=draw.randrange(1000),
        )
        return replace(item, payload=payload)

    for _ in range(12):
        await index.upsert([made(*row) for row in draw.sample(rows, 40)])
        await index.delete_sources(ANN, [row for _, row in draw.sample(rows, 5)])
        if draw.random() < 0.2:
            await index.delete_container(BEN, CHAT)
        if draw.random() < 0.2:
            await index.delete_owner(BEN)
        for owner in (ANN, BEN):
            stored = {item: payload async for page in index.scan(owner) for item, payload in page}
            near = unit(*(draw.random() for _ in range(3)))
            asked = [
                query(near, within[owner], vector="dense", limit=20),
                query(near, within[owner], vector="dense_window", limit=20),
                query(terms({1: 1, 2: 0.5}), within[owner], vector="sparse", limit=20),
                query(terms({1: 1}), within[owner], vector="sparse_window", limit=20),
            ]
            found = await index.search(asked)
            told = [[Hit(hit.id, hit.score, stored[hit.id]) for hit in hits] for hits in found]
            assert found == told
            spans, named = [(100, 400)], {1}
            ranked = rank(gather(SIGNALS, found), speakers=named, spans=spans)
            assert ranked == rank(gather(SIGNALS, told), speakers=named, spans=spans)
            assert len(ranked) == len({hit.id for hits in found for hit in hits})


async def test_a_vector_of_another_length_is_refused_before_anything_is_stored(
    index: VectorIndex,
) -> None:
    short = point(ANN, CHAT, dense={"dense": np.ones(DIMENSION - 1, dtype=np.float32)})
    with pytest.raises(ValueError, match="have 8 numbers"):
        await index.upsert([point(ANN, CHAT), short])
    assert await index.count() == 0


async def test_a_collection_without_dense_vectors_works_by_terms(open_index: Open) -> None:
    index = await open_index("words", None)
    item = point(ANN, CHAT, dense={}, sparse={"sparse": terms({1: 1})})
    await index.upsert([item])
    [hits] = await index.search([query(terms({1: 1}), scope(ANN, CHAT))])
    assert sources(hits) == [source(item)]
    assert await index.dense_vectors([item.id]) == {}


async def test_it_answers_until_it_is_closed(open_index: Open) -> None:
    index = await open_index("brief", DIMENSION)
    await index.ping()
    await index.aclose()
    await index.aclose()
    with pytest.raises(IndexUnavailableError):
        await index.ping()
