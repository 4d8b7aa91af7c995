"""`talekeeper`, with its processor time counted by the stages of a turn.

`python -m scripts._stages serve --port 0` serves as `talekeeper serve` does. At SIGUSR1 it writes a
JSON object to `BENCH_STAGES`: seconds of processor time by stage since it started.

A coroutine is timed step by step, so that what else runs while it waits is not its own, and a stage
within another counts for itself alone. Work in threads counts for the stage that asked for it.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, coroutine
from typing import Any

import aiosqlite
from litestar.response.streaming import ASGIStreamingResponse

from backend.accounts.auth.middleware import IdentityMiddleware
from backend.cli import main
from backend.jobs.running import RunningJob
from backend.jobs.worker import Worker
from backend.memory.indexing.indexer import Indexer
from backend.quotas.middleware import QuotaMiddleware
from backend.turns.api.service import TurnService
from backend.turns.prompt.assemble import PromptAssembler
from backend.turns.prompt.builder import PromptBuilder
from backend.turns.run import registry
from backend.turns.run.registry import RunRegistry
from backend.turns.run.start import TurnStarter
from backend.turns.run.store import TurnStore

STAGES: dict[str, tuple[tuple[type | ModuleType, str], ...]] = {
    "request: HTTP, who asks, limits": (
        (IdentityMiddleware, "handle"),
        (QuotaMiddleware, "handle"),
        (TurnService, "take"),
    ),
    "request: load": ((PromptBuilder, "_load"),),
    "request: retrieve": ((PromptBuilder, "_retrieve"),),
    "request: assemble": ((PromptAssembler, "assemble"),),
    "request: start": ((TurnStarter, "start"),),
    "streaming: the model's stream": ((registry, "take_reply"),),
    "streaming: events sent": ((ASGIStreamingResponse, "_stream"),),
    "streaming: stored each second": ((RunRegistry, "_store_all"),),
    "conclude": ((TurnStore, "conclude"),),
    "jobs: claims and keys": ((Worker, "_turn_over"),),
    "jobs: indexing": ((Indexer, "index"),),
    "jobs: end": ((Worker, "_run"), (RunningJob, "_store")),
}
"""Methods and functions of each stage. The rest is the event loop, HTTP and timers."""


class Clock:
    """Processor time by stage."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._stages: list[str] = []
        self._since = 0.0

    @property
    def stage(self) -> str | None:
        """What the event loop's thread is at."""
        return self._stages[-1] if self._stages else None

    def enter(self, stage: str) -> None:
        """Let the thread's time count for `stage`."""
        self._count()
        self._stages.append(stage)

    def leave(self) -> None:
        """Let it count for the stage around."""
        self._count()
        self._stages.pop()

    def _count(self) -> None:
        at = time.thread_time()
        if self._stages:
            self.seconds[self._stages[-1]] += at - self._since
        self._since = at

    @coroutine
    def steps(self, inner: Coroutine[Any, Any, Any], stage: str) -> Generator[Any, Any, Any]:
        """Run a coroutine, each of its steps on the stage's account."""
        step: Callable[[], Any] = functools.partial(inner.send, None)
        while True:
            self.enter(stage)
            try:
                waits_for = step()
            except StopIteration as stop:
                return stop.value
            finally:
                self.leave()
            try:
                step = functools.partial(inner.send, (yield waits_for))
            except BaseException as error:  # noqa: BLE001  # whatever it is, it is the coroutine's
                step = functools.partial(inner.throw, error)

    def in_thread(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same work, its thread's time on the account of the stage that asks for it."""
        stage = self.stage
        if stage is None:
            return work

        def timed(*arguments: Any, **options: Any) -> Any:
            begun = time.thread_time()
            try:
                return work(*arguments, **options)
            finally:
                self.seconds[stage] += time.thread_time() - begun

        return timed


def watch(clock: Clock) -> None:
    """Have the stages' methods, and the threads that they wait for, timed."""
    for stage, methods in STAGES.items():
        for owner, name in methods:
            setattr(owner, name, _timed(clock, getattr(owner, name), stage))
    for owner, name in ((aiosqlite.Connection, "_execute"), (ThreadPoolExecutor, "submit")):
        setattr(owner, name, _asking(clock, getattr(owner, name)))


def _timed(clock: Clock, method: Callable[..., Any], stage: str) -> Callable[..., Any]:
    @functools.wraps(method)
    async def timed(*arguments: Any, **options: Any) -> Any:
        return await clock.steps(method(*arguments, **options), stage)

    return timed


def _asking(clock: Clock, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def asking(self: Any, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return method(self, clock.in_thread(work), *arguments, **options)

    return asking


def _serve() -> None:
    clock, target = Clock(), Path(os.environ["BENCH_STAGES"])  # noqa: TID251  # of this script's own
    watch(clock)

    def write(*_: object) -> None:
        part = target.with_suffix(".part")
        part.write_text(json.dumps({stage: clock.seconds[stage] for stage in STAGES}))
        part.rename(target)

    signal.signal(signal.SIGUSR1, write)
    sys.argv[0] = "talekeeper"
    main()


if __name__ == "__main__":
    _serve()
