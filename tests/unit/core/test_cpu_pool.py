"""The threads that work on users' texts: bounded, shared fairly, and never lost."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from uuid import uuid4

import pytest

from backend.core.cpu_pool import (
    INLINE_CHARACTERS,
    MAX_WAITING,
    CpuPool,
    TooMuchWorkError,
    WorkStoppedError,
    WorkTimeoutError,
    check_stopped,
)
from backend.errors import UnavailableError

pytestmark = pytest.mark.anyio

ADA, BEN, EVE = uuid4(), uuid4(), uuid4()


@pytest.fixture
async def pool() -> AsyncGenerator[CpuPool]:
    pool = CpuPool(2)
    yield pool
    await pool.aclose()


class Held:
    """Work that runs until it may end."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> str:
        self.has_begun.set()
        assert self.may_end.wait(30)
        return "done"


class Endless:
    """Work in a loop that never ends by itself."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.was_stopped = threading.Event()

    def __call__(self) -> None:
        self.has_begun.set()
        try:
            while True:
                check_stopped()
        finally:
            self.was_stopped.set()


async def begun(work: Held | Endless) -> None:
    while not work.has_begun.is_set():
        await asyncio.sleep(0.001)


async def settled() -> None:
    """Yield until every task on the loop waits for something."""
    for _ in range(10):
        await asyncio.sleep(0)


async def check_threads(pool: CpuPool, count: int) -> None:
    """Raise unless the pool runs exactly `count` tasks of different users at the same time."""
    hogs = [Held() for _ in range(count + 2)]
    running = [asyncio.create_task(pool.run(uuid4(), hog)) for hog in hogs]
    for hog in hogs[:count]:
        await asyncio.wait_for(begun(hog), 30)
    await asyncio.sleep(0.02)
    assert [hog.has_begun.is_set() for hog in hogs] == [True] * count + [False] * 2
    for hog in hogs:
        hog.may_end.set()
    await asyncio.gather(*running)


def noting(name: str, order: list[str]) -> Callable[[], None]:
    return lambda: order.append(name)


async def test_work_gives_its_result_and_its_error(pool: CpuPool) -> None:
    assert await pool.run(ADA, lambda: 6 * 7) == 42
    with pytest.raises(ZeroDivisionError):
        await pool.run(ADA, lambda: 1 // 0)
    assert await pool.run(ADA, lambda: 6 * 7) == 42


async def test_small_work_is_done_at_once_and_the_rest_in_a_thread(pool: CpuPool) -> None:
    here = threading.get_ident()
    assert await pool.run(ADA, threading.get_ident, size=INLINE_CHARACTERS) == here
    assert await pool.run(ADA, threading.get_ident, size=INLINE_CHARACTERS + 1) != here
    assert await pool.run(ADA, threading.get_ident) != here


async def test_work_sees_the_context_of_its_caller(pool: CpuPool) -> None:
    request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
    request_id.set("7f")
    assert await pool.run(ADA, request_id.get) == "7f"


async def test_one_user_never_holds_all_threads(pool: CpuPool) -> None:
    hog = Held()
    mine = [asyncio.create_task(pool.run(ADA, hog)) for _ in range(9)]
    await begun(hog)
    assert await asyncio.wait_for(pool.run(BEN, lambda: "meanwhile"), 30) == "meanwhile"
    hog.may_end.set()
    assert await asyncio.gather(*mine) == ["done"] * 9


async def test_users_take_turns_by_user_not_by_task(pool: CpuPool) -> None:
    first, second = Held(), Held()
    holding = [asyncio.create_task(pool.run(uuid4(), work)) for work in (first, second)]
    await begun(first)
    await begun(second)
    order: list[str] = []
    wanted = [(ADA, f"a{number}") for number in range(3)]
    wanted += [(BEN, "b0"), (EVE, "e0"), (BEN, "b1")]
    waiting: list[asyncio.Task[object]] = []
    for user_id, name in wanted:
        waiting.append(asyncio.create_task(pool.run(user_id, noting(name, order))))
        await settled()
    first.may_end.set()  # one thread alone, so that the order is that of the turns
    await asyncio.gather(*waiting)
    assert order == ["a0", "b0", "e0", "a1", "b1", "a2"]
    second.may_end.set()
    await asyncio.gather(*holding)


async def test_requests_of_a_user_go_before_jobs(pool: CpuPool) -> None:
    hog = Held()
    holding = asyncio.create_task(pool.run(ADA, hog))
    await begun(hog)
    order: list[str] = []
    jobs = [asyncio.create_task(pool.run(ADA, noting("job", order), is_job=True)) for _ in range(2)]
    await settled()
    request = asyncio.create_task(pool.run(ADA, noting("request", order)))
    await settled()
    hog.may_end.set()
    await asyncio.gather(holding, request, *jobs)
    assert order == ["request", "job", "job"]


async def test_more_waiting_requests_than_allowed_are_refused_and_jobs_are_not(
    pool: CpuPool,
) -> None:
    hog = Held()
    tasks = [asyncio.create_task(pool.run(ADA, hog)) for _ in range(1 + MAX_WAITING)]
    await begun(hog)
    await settled()
    with pytest.raises(TooMuchWorkError):
        await pool.run(ADA, lambda: None)
    job = asyncio.create_task(pool.run(ADA, lambda: "job", is_job=True))
    assert await pool.run(BEN, lambda: "another's") == "another's"
    hog.may_end.set()
    await asyncio.gather(*tasks)
    assert await job == "job"
    assert await pool.run(ADA, lambda: "again") == "again"


async def test_a_cancelled_caller_leaves_its_place_when_the_work_has_ended(pool: CpuPool) -> None:
    hog = Held()
    task = asyncio.create_task(pool.run(ADA, hog))
    await begun(hog)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # The thread is still at it: the user's next work waits.
    following = asyncio.create_task(pool.run(ADA, lambda: "next"))
    await settled()
    assert not following.done()
    hog.may_end.set()
    assert await asyncio.wait_for(following, 30) == "next"


async def test_running_work_of_a_cancelled_caller_stops(pool: CpuPool) -> None:
    endless = Endless()
    task = asyncio.create_task(pool.run(ADA, endless))
    await begun(endless)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.wait_for(pool.run(ADA, lambda: "next"), 30) == "next"
    assert endless.was_stopped.is_set()


async def test_work_past_its_deadline_stops_and_its_caller_gets_an_error(
    pool: CpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.core.cpu_pool.DEADLINE_SECONDS", 0.05)
    endless = Endless()
    with pytest.raises(WorkTimeoutError):
        await pool.run(ADA, endless)
    assert await asyncio.wait_for(pool.run(ADA, lambda: "next"), 30) == "next"
    assert endless.was_stopped.is_set()


async def test_work_past_its_deadline_that_does_not_stop_still_holds_its_users_place(
    pool: CpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hog = Held()
    with monkeypatch.context() as short, pytest.raises(WorkTimeoutError):
        short.setattr("backend.core.cpu_pool.DEADLINE_SECONDS", 0.05)
        await pool.run(ADA, hog)
    following = asyncio.create_task(pool.run(ADA, lambda: "next"))
    await settled()
    assert not following.done()
    hog.may_end.set()
    assert await asyncio.wait_for(following, 30) == "next"


async def test_slow_work_of_some_users_does_not_stop_the_others(
    pool: CpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hogs = [Held() for _ in range(4)]
    with monkeypatch.context() as patch:
        patch.setattr("backend.core.cpu_pool.SLOW_SECONDS", 0.01)
        slow = [asyncio.create_task(pool.run(uuid4(), hog)) for hog in hogs]
        assert await asyncio.wait_for(pool.run(ADA, lambda: "meanwhile"), 30) == "meanwhile"
    for hog in hogs:
        hog.may_end.set()
    await asyncio.gather(*slow)
    await check_threads(pool, 2)


async def test_a_timeout_of_the_work_itself_is_an_error_like_any_other(pool: CpuPool) -> None:
    def failing() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await pool.run(ADA, failing)


async def test_a_closed_pool_stops_work_that_does_not_end_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("backend.core.cpu_pool.CLOSE_SECONDS", 0.01)
    pool, endless = CpuPool(1), Endless()
    task = asyncio.create_task(pool.run(ADA, endless))
    await begun(endless)
    await pool.aclose()
    with pytest.raises(WorkStoppedError):
        await task


def test_work_outside_of_the_pool_is_never_stopped() -> None:
    check_stopped()


@pytest.mark.parametrize("is_job", [False, True])
async def test_cancelled_callers_that_wait_lose_no_place(pool: CpuPool, is_job: bool) -> None:
    for _ in range(5):
        hog = Held()
        holding = asyncio.create_task(pool.run(ADA, hog))
        await begun(hog)
        waiting = [asyncio.create_task(pool.run(ADA, lambda: "x", is_job=is_job)) for _ in range(3)]
        await settled()
        waiting[0].cancel()
        hog.may_end.set()
        await holding
        waiting[1].cancel()  # its place may have come already
        await asyncio.gather(*waiting, return_exceptions=True)
    assert await asyncio.wait_for(asyncio.gather(*(pool.run(each, str) for each in (ADA, BEN))), 30)
    await check_threads(pool, 2)


async def test_a_closed_pool_fails_waiting_work_and_takes_no_more() -> None:
    pool, hog = CpuPool(1), Held()
    running = asyncio.create_task(pool.run(ADA, hog))
    await begun(hog)
    waiting = asyncio.create_task(pool.run(BEN, lambda: None))
    await settled()
    closing = asyncio.create_task(pool.aclose())
    with pytest.raises(UnavailableError):
        await waiting
    with pytest.raises(UnavailableError):
        await pool.run(EVE, lambda: None)
    hog.may_end.set()
    assert await running == "done"
    await closing


async def test_an_error_after_cancellation_is_not_reported(pool: CpuPool) -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    hog = Held()

    def failing() -> None:
        hog()
        raise ValueError

    task = asyncio.create_task(pool.run(ADA, failing))
    await begun(hog)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    hog.may_end.set()
    await pool.run(ADA, lambda: None)
    assert told == []


@pytest.mark.parametrize(("cores", "threads"), [(1, 2), (64, 4)])
async def test_there_are_two_to_four_threads(
    cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    pool = CpuPool()
    await check_threads(pool, threads)
    await pool.aclose()


def test_threads_may_be_the_first_to_use_a_struct() -> None:
    subprocess.run([sys.executable, "-c", FIRST_USES], check=True)


FIRST_USES = """
import sys, threading
import msgspec
import backend.container
from backend.core.cpu_pool import CpuPool

def below(base):
    for struct in base.__subclasses__():
        yield struct
        yield from below(struct)

def use():
    for struct in structs:
        together.wait()
        try:
            msgspec.convert(dict.fromkeys(struct.__struct_encode_fields__, "x"), struct)
        except msgspec.ValidationError:
            pass

CpuPool()
structs = [each for each in below(msgspec.Struct) if each.__module__.startswith("backend.")]
assert len(structs) > 100, structs
together = threading.Barrier(8)
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=use) for _ in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""
