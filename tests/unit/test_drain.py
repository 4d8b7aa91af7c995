"""How long the end of a process waits for what runs."""

from __future__ import annotations

import asyncio

import pytest

from backend.http.connections import Drain

pytestmark = pytest.mark.anyio


async def test_it_is_over_once_nothing_runs() -> None:
    drain, running = Drain(60), ["a reply"]
    asyncio.get_running_loop().call_later(0.01, running.clear)
    drain.begin()
    await drain.finish(lambda: bool(running))
    assert drain.is_over
    assert not running


@pytest.mark.parametrize("seconds", [0, 0.01])
async def test_what_still_runs_when_the_time_is_up_is_not_waited_for(seconds: float) -> None:
    drain = Drain(seconds)
    drain.begin()
    async with asyncio.timeout(60):
        await drain.finish(lambda: True)
    assert drain.is_over


async def test_only_the_second_signal_ends_the_wait() -> None:
    drain = Drain(3600)
    drain.receive_signal()
    assert drain.is_on
    waiting = asyncio.create_task(drain.finish(lambda: True))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    drain.receive_signal()
    async with asyncio.timeout(60):
        await waiting


async def test_a_request_whose_answer_has_not_begun_is_waited_for() -> None:
    drain = Drain(3600)
    drain.requests = 1
    drain.begin()
    waiting = asyncio.create_task(drain.finish(lambda: False))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    drain.requests = 0
    async with asyncio.timeout(60):
        await waiting
