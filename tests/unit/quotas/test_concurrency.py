from __future__ import annotations

import asyncio
import random
from uuid import UUID

import pytest

from backend.quotas.limits import UPLOAD_BYTES, UPLOADS, ConcurrencyLimit, QuotaExceededError

pytestmark = pytest.mark.anyio

ADA, BEN = UUID(int=1), UUID(int=2)


async def hold(limit: ConcurrencyLimit, until: asyncio.Event, **options: float) -> None:
    async with limit.wait(ADA, patience=options.get("patience", 5), queue=2):
        await until.wait()


def test_beyond_the_limit_it_is_refused_by_name_and_each_account_has_its_own() -> None:
    limit = ConcurrencyLimit(UPLOADS, 2)
    with limit.hold(ADA), limit.hold(ADA):
        with pytest.raises(QuotaExceededError) as refused, limit.hold(ADA):
            pass
        assert refused.value.extra == {
            "quota": "uploads",
            "limit": 2,
            "used": 2,
            "unit": "at once",
            "frees_at": None,
            "retry_after": 5,
        }
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


async def test_who_waits_comes_in_by_turns_and_only_so_many_wait() -> None:
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
async def test_whoever_gives_up_whenever_nothing_is_lost_and_nobody_is_stuck(seed: int) -> None:
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
