from __future__ import annotations

from uuid import UUID, uuid4

from msgspec.structs import replace

from backend.memory.index.edge import PayloadCache
from backend.memory.index.protocol import Payload

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
    """As a search that finds them."""
    cache.add(items, writes=cache.writes)


def test_what_was_found_once_is_known() -> None:
    cache, item, other = PayloadCache(), stored(), stored()
    read(cache, item)
    assert found(cache, item, other) == [item[1], None]


def test_what_is_written_takes_the_place_of_what_was_found() -> None:
    cache, item = PayloadCache(), stored()
    read(cache, item)
    changed = replace(item[1], words=8)
    cache.write([(item[0], changed)])
    assert found(cache, item) == [changed]


def test_an_import_does_not_push_out_what_is_found() -> None:
    cache, item = PayloadCache(4), stored()
    read(cache, item)
    cache.write([stored() for _ in range(20)])
    assert found(cache, item) == [item[1]]


def test_what_was_read_before_a_write_is_not_kept_after_it() -> None:
    cache, item = PayloadCache(), stored()
    writes = cache.writes
    cache.write([(item[0], replace(item[1], words=8))])
    cache.add([item], writes=writes)
    assert found(cache, item) == [None]
    writes = cache.writes
    cache.forget(ANN)
    cache.add([item], writes=writes)
    assert found(cache, item) == [None]


def test_there_is_room_until_what_was_found_would_go() -> None:
    cache = PayloadCache(8)
    assert cache.has_room(4)
    assert not cache.has_room(5)
    read(cache, stored(), stored(), stored())
    assert cache.has_room(1)
    assert not cache.has_room(2)


def test_a_user_is_forgotten_and_nobody_else() -> None:
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
