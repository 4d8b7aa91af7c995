"""The vector index: payloads in memory and counts of points."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from backend.database.base import now
from backend.jobs.models import Job, JobState
from backend.memory.controller import ProblemKind, find_problem
from backend.memory.index.edge import PayloadCache
from backend.memory.index.protocol import Payload
from backend.memory.search import search as module
from backend.memory.search.features import LARGE_CORPUS_POINTS
from backend.memory.search.search import MemorySearch

pytestmark = pytest.mark.anyio

ANN, BEN, CHAT, SCENE = uuid4(), uuid4(), uuid4(), uuid4()
Stored = tuple[UUID, Payload]


def stored(owner: UUID = ANN) -> Stored:
    payload = Payload(
        owner_id=UUID(int=owner.int),
        kind="message",
        container_id=UUID(int=CHAT.int),
        source_id=uuid4(),
        scene_id=UUID(int=SCENE.int),
        words=7,
    )
    return uuid4(), payload


def found(cache: PayloadCache, *items: Stored) -> list[Payload | None]:
    kept = cache.get([point_id.int for point_id, _ in items])
    return [kept.get(point_id.int, (None, None))[1] for point_id, _ in items]


def read(cache: PayloadCache, *items: Stored) -> None:
    """Cache the payloads as a search does."""
    cache.add(items, writes=cache.writes)


def test_a_found_payload_is_cached() -> None:
    cache, item, other = PayloadCache(), stored(), stored()
    read(cache, item)
    assert found(cache, item, other) == [item[1], None]


def test_a_written_payload_replaces_a_found_one() -> None:
    cache, item = PayloadCache(), stored()
    read(cache, item)
    changed = replace(item[1], words=8)
    cache.write([(item[0], changed)])
    assert found(cache, item) == [changed]


def test_an_import_does_not_evict_found_payloads() -> None:
    cache, item = PayloadCache(4), stored()
    read(cache, item)
    cache.write([stored() for _ in range(20)])
    assert found(cache, item) == [item[1]]


def test_a_payload_read_before_a_write_is_not_cached() -> None:
    cache, item = PayloadCache(), stored()
    writes = cache.writes
    cache.write([(item[0], replace(item[1], words=8))])
    cache.add([item], writes=writes)
    assert found(cache, item) == [None]
    writes = cache.writes
    cache.forget(ANN)
    cache.add([item], writes=writes)
    assert found(cache, item) == [None]


def test_there_is_room_until_found_payloads_would_be_evicted() -> None:
    cache = PayloadCache(8)
    assert cache.has_room(4)
    assert not cache.has_room(5)
    read(cache, stored(), stored(), stored())
    assert cache.has_room(1)
    assert not cache.has_room(2)


def test_only_the_given_user_is_forgotten() -> None:
    cache = PayloadCache(8)
    hers, his = [stored() for _ in range(3)], [stored(BEN) for _ in range(3)]
    read(cache, *hers, *his)
    cache.forget(ANN)
    assert found(cache, *hers, *his) == [None] * 3 + [payload for _, payload in his]


def test_no_more_are_kept_than_were_allowed_and_those_in_use_stay() -> None:
    cache, hot = PayloadCache(10), stored()
    read(cache, hot)
    items = [stored() for _ in range(50)]
    for item in items:
        read(cache, item)
        assert found(cache, hot) == [hot[1]]
    kept = [each for each in found(cache, *items) if each]
    assert 4 <= len(kept) <= 10
    assert kept[-1] == items[-1][1]


def test_ids_that_many_payloads_name_are_kept_once() -> None:
    cache, first, second = PayloadCache(), stored(), stored()
    read(cache, first, second)
    one, two = found(cache, first, second)
    assert one is not None
    assert two is not None
    assert one.owner_id is two.owner_id
    assert one.container_id is two.container_id
    assert one.scene_id is two.scene_id


class Index:
    """Counts how often it is asked."""

    name = "tales"

    def __init__(self) -> None:
        self.asked: list[UUID] = []

    async def count(self, owner_id: UUID) -> int:
        self.asked.append(owner_id)
        return LARGE_CORPUS_POINTS


def open_search() -> MemorySearch:
    nowhere = cast("Any", None)
    return MemorySearch(nowhere, [], embedders=nowhere, blinders=nowhere, pool=nowhere)


async def test_many_points_are_counted_once_until_their_user_signs_out() -> None:
    search, index, ann = open_search(), cast("Any", Index()), uuid4()
    for _ in range(2):
        assert await search.count_points(index, ann) == LARGE_CORPUS_POINTS
    assert index.asked == [ann]
    search.user_signed_out(ann)
    await search.count_points(index, ann)
    assert index.asked == [ann, ann]


async def test_the_number_of_counted_users_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COUNTED_USERS", 2)
    search, index = open_search(), cast("Any", Index())
    first, *others = [uuid4() for _ in range(3)]
    for each in (first, *others, *others, first):
        await search.count_points(index, each)
    assert index.asked == [first, *others, first]


@pytest.mark.parametrize(
    ("state", "error", "trouble"),
    [
        ("queued", None, None),
        ("running", None, None),
        ("queued", "embedder-unavailable", "delayed"),
        # Also during the next attempt, so that the problem does not come and go.
        ("running", "embedder-unavailable", "delayed"),
        ("dead", "embedder-unavailable", "gave_up"),
        ("waiting_key", None, "waiting_key"),
    ],
)
def test_a_job_that_failed_is_a_problem_until_it_is_done(
    state: JobState, error: str | None, trouble: ProblemKind | None
) -> None:
    due = now() - timedelta(minutes=1)
    assert find_problem(Job(state=state, error=error, run_after=due)) == trouble


def test_a_job_that_a_process_will_take_soon_is_no_problem() -> None:
    for seconds in (5, -2):
        due = now() + timedelta(seconds=seconds)
        assert find_problem(Job(state="waiting_key", error=None, run_after=due)) is None
