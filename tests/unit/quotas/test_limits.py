"""Limits of rates, concurrent use and stored amounts."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

import pytest

from backend.quotas.limits import (
    CHECK_INTERVAL_SECONDS,
    MIN_FREE_BYTES,
    UPLOAD_BYTES,
    UPLOADS,
    ConcurrencyLimit,
    FreeRoom,
    QuotaExceededError,
    RateLimit,
)

pytestmark = pytest.mark.anyio

ADA, BEN = UUID(int=1), UUID(int=2)


async def hold(limit: ConcurrencyLimit, until: asyncio.Event, **options: float) -> None:
    async with limit.wait(ADA, patience=options.get("patience", 5), queue=2):
        await until.wait()


def test_beyond_the_limit_it_is_refused_by_name_and_each_account_has_its_own() -> None:
    limit = ConcurrencyLimit(UPLOADS, 2)
    expected = {"quota": "uploads", "limit": 2, "used": 2, "unit": "at once"}
    with limit.hold(ADA), limit.hold(ADA):
        with pytest.raises(QuotaExceededError) as refused, limit.hold(ADA):
            pass
        assert refused.value.extra == {**expected, "frees_at": None, "retry_after": 5}
        assert refused.value.headers == {"Retry-After": "5"}
        with limit.hold(BEN):
            assert limit.used(BEN) == 1
    assert (limit.used(ADA), limit.used(BEN)) == (0, 0)
    with limit.hold(ADA):
        pass


async def test_a_permit_may_outlive_its_block() -> None:
    limit, over = ConcurrencyLimit(UPLOADS, 1), asyncio.Event()
    with limit.hold(ADA) as permit:
        permit.extend(over)
    await asyncio.sleep(0)
    assert limit.used(ADA) == 1
    over.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert limit.used(ADA) == 0


async def test_waiting_callers_enter_in_order_and_the_queue_is_bounded() -> None:
    limit = ConcurrencyLimit(UPLOADS, 1)
    first, others, order = asyncio.Event(), asyncio.Event(), list[int]()

    async def later(number: int) -> None:
        async with limit.wait(ADA, patience=5, queue=2):
            order.append(number)
            await others.wait()

    tasks = [asyncio.create_task(hold(limit, first))]
    await asyncio.sleep(0)
    for number in (1, 2):
        tasks.append(asyncio.create_task(later(number)))
        await asyncio.sleep(0)
    with pytest.raises(QuotaExceededError):
        async with limit.wait(ADA, patience=5, queue=2):
            pass
    assert order == []
    first.set()
    others.set()
    await asyncio.gather(*tasks)
    assert order == [1, 2]
    assert limit.used(ADA) == 0


async def test_patience_ends_and_leaves_the_place_in_line_to_others() -> None:
    limit, over = ConcurrencyLimit(UPLOADS, 1), asyncio.Event()
    holder = asyncio.create_task(hold(limit, over))
    await asyncio.sleep(0)
    with pytest.raises(QuotaExceededError):
        await hold(limit, over, patience=0.01)
    waiting = asyncio.create_task(hold(limit, over))
    await asyncio.sleep(0)
    over.set()
    await asyncio.gather(holder, waiting)
    assert limit.used(ADA) == 0


async def test_amounts_add_up_and_one_alone_always_fits() -> None:
    limit = ConcurrencyLimit(UPLOAD_BYTES, 100)
    with limit.hold(ADA, 5000), pytest.raises(QuotaExceededError), limit.hold(ADA, 1):
        pass
    with limit.hold(ADA, 60), limit.hold(ADA, 40):
        assert limit.used(ADA) == 100


@pytest.mark.parametrize("seed", range(20))
async def test_cancelled_callers_lose_no_permits(seed: int) -> None:
    chance = random.Random(seed)
    limit = ConcurrencyLimit(UPLOADS, 2)
    inside = most = 0

    async def one() -> None:
        nonlocal inside, most
        async with limit.wait(ADA, patience=chance.choice([0.001, 0.002, 5]), queue=50):
            inside += 1
            most = max(most, inside)
            try:
                await asyncio.sleep(chance.random() / 500)
            finally:
                inside -= 1

    tasks = [asyncio.create_task(one()) for _ in range(40)]
    await asyncio.sleep(0.002)
    for task in chance.sample(tasks, 10):
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert result is None or isinstance(result, QuotaExceededError | asyncio.CancelledError)
    assert most == 2
    assert limit.used(ADA) == 0
    with limit.hold(ADA), limit.hold(ADA):
        pass


class Clock:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_minutes_worth_passes_at_once_and_the_next_one_waits(clock: Clock) -> None:
    rate = RateLimit(60, clock=clock)
    assert [rate.take("ada") for _ in range(60)] == [0.0] * 60
    assert rate.take("ada") == pytest.approx(1.0)
    assert rate.take("ben") == 0.0
    assert (rate.used("ada"), rate.used("ben")) == (60, 1)


def test_requests_come_back_evenly_and_never_more_than_a_minutes_worth(clock: Clock) -> None:
    rate = RateLimit(60, clock=clock)
    for _ in range(60):
        rate.take("ada")
    clock.at += 2.5
    assert [rate.take("ada") for _ in range(3)] == [0.0, 0.0, pytest.approx(0.5)]
    clock.at += 3600
    assert rate.used("ada") == 0
    assert [rate.take("ada") for _ in range(60)] == [0.0] * 60
    assert rate.take("ada") > 0


def test_a_refused_request_takes_nothing(clock: Clock) -> None:
    rate = RateLimit(2, clock=clock)
    waits = [rate.take("ada") for _ in range(50)]
    assert waits[2:] == [pytest.approx(30.0)] * 48
    clock.at += 30
    assert rate.take("ada") == 0.0


def test_a_share_is_at_least_one_and_grows_again(clock: Clock) -> None:
    rate = RateLimit(60, clock=clock)
    rate.divide(7)
    assert [rate.take("ada") == 0 for _ in range(9)] == [True] * 8 + [False]
    rate.divide(1000)
    assert [rate.take("ben") == 0 for _ in range(2)] == [True, False]
    rate.divide(1)
    assert [rate.take("eve") == 0 for _ in range(61)] == [True] * 60 + [False]
    without = RateLimit(0, clock=clock)
    without.divide(2)
    assert without.per_minute == 0


async def test_waiting_work_starts_when_the_share_grows() -> None:
    limit, over = ConcurrencyLimit(UPLOADS, 2), asyncio.Event()
    limit.divide(2)
    tasks = [asyncio.create_task(hold(limit, over)) for _ in range(2)]
    await asyncio.sleep(0)
    assert limit.used(ADA) == 1
    limit.divide(1)
    assert limit.used(ADA) == 2
    over.set()
    await asyncio.gather(*tasks)


def test_no_limit_lets_everything_through_and_remembers_nothing(clock: Clock) -> None:
    rate = RateLimit(0, clock=clock)
    assert [rate.take("ada") for _ in range(1000)] == [0.0] * 1000
    assert (len(rate), rate.used("ada"), rate.seconds_until_full("ada")) == (0, 0, 0.0)


def test_quiet_accounts_are_forgotten_after_a_minute(clock: Clock) -> None:
    rate = RateLimit(60, clock=clock)
    for number in range(1000):
        rate.take(number)
    clock.at += 61
    rate.take("ada")
    assert len(rate) == 1


def test_free_room_is_valid_for_a_while_and_for_half_of_it() -> None:
    at = 0.0
    room = FreeRoom(clock=lambda: at)
    assert not room.take("ada", 1)
    room.record("ada", MIN_FREE_BYTES - 1)
    assert not room.take("ada", 1)
    room.record("ada", MIN_FREE_BYTES)
    assert room.take("ada", MIN_FREE_BYTES // 2 - 1)
    assert not room.take("ada", 1)
    assert not room.take("bob", 1)
    room.record("ada", MIN_FREE_BYTES)
    at = CHECK_INTERVAL_SECONDS
    assert not room.take("ada", 1)
