from __future__ import annotations

from uuid import uuid4

from backend.core.plain_cache import PlainCache

USER, OTHER = uuid4(), uuid4()
FIRST, SECOND, THIRD = uuid4(), uuid4(), uuid4()


class Seconds:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def cache(most: int = 10, clock: Seconds | None = None) -> PlainCache[str]:
    return PlainCache(most=most, seconds=600, clock=clock or Seconds())


def test_what_is_kept_is_its_user_s_alone() -> None:
    kept = cache()
    kept.put(USER, FIRST, "a", size=1)
    assert kept.get(USER, FIRST) == "a"
    assert kept.get(OTHER, FIRST) is None
    assert kept.get(USER, SECOND) is None


def test_what_comes_later_takes_the_place_of_what_was_there() -> None:
    kept = cache()
    kept.put(USER, FIRST, "a", size=3)
    kept.put(USER, FIRST, "b", size=2)
    assert kept.get(USER, FIRST) == "b"
    assert kept.size == 2


def test_what_was_not_used_for_a_while_is_dropped() -> None:
    clock = Seconds()
    kept = cache(clock=clock)
    kept.put(USER, FIRST, "a", size=1)
    for _ in range(2):
        clock.now += 500
        assert kept.get(USER, FIRST) == "a"
    clock.now += 601
    kept.sweep()
    assert kept.size == 0


def test_there_is_a_limit_and_what_was_used_longest_ago_goes_first() -> None:
    kept = cache(most=5)
    kept.put(USER, FIRST, "a", size=2)
    kept.put(USER, SECOND, "b", size=2)
    kept.get(USER, FIRST)
    kept.put(USER, THIRD, "c", size=2)
    assert kept.get(USER, SECOND) is None
    assert kept.get(USER, FIRST) == "a"
    kept.put(USER, uuid4(), "too large", size=6)
    assert kept.size == 4


def test_a_user_can_be_forgotten() -> None:
    kept = cache()
    kept.put(USER, FIRST, "a", size=0)
    kept.put(OTHER, SECOND, "b", size=0)
    kept.forget(USER)
    assert kept.get(USER, FIRST) is None
    assert kept.get(OTHER, SECOND) == "b"
    assert kept.size == 1
