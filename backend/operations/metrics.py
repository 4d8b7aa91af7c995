"""The figures of `/metrics` that are read when they are asked for.

Counters and histograms are next to the code that they measure. The figures of this module are those
of the process's connection pool, and those of the whole installation, which every process of it
reports.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import Select, func, select, union_all

from backend.database.base import get_table, now
from backend.database.engine import Database
from backend.database.processes import Process
from backend.errors import UnavailableError
from backend.jobs.models import JOBS
from backend.turns.models import IS_OPEN, OPEN_STATES, Turn

KEEP_SECONDS = 10.0
"""Time for which the figures of the installation are kept, however many servers ask for them."""

READ_SECONDS = 5.0
"""Time limit for reading them."""

MAX_COUNTED = 10_000
"""Jobs and turns of each state that are counted. More would make a full queue slower."""

_OPEN_JOBS = ("queued", "running", "waiting_key", "dead")
_TURNS = get_table(Turn)


def _count_jobs(state: str) -> Select[Any, Any, int, Any]:
    """Count the jobs of a state by kind, with the time when the first of them was due.

    They are read in the order of an index, so that no other row is read.
    """
    jobs = JOBS.c
    some = (
        select(jobs.kind, jobs.state, jobs.run_after)
        .where(jobs.state == state)
        .order_by(jobs.share, jobs.run_after)
        .limit(MAX_COUNTED)
        .subquery()
        .c
    )
    return select(some.kind, some.state, func.count(), func.min(some.run_after)).group_by(
        some.kind, some.state
    )


class PoolMetrics(Collector):
    """The database connections of this process."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def collect(self) -> Iterable[GaugeMetricFamily]:
        used = GaugeMetricFamily(
            "talekeeper_database_connections", "Open database connections", labels=["pool", "state"]
        )
        most = GaugeMetricFamily(
            "talekeeper_database_connections_max", "Maximum of connections", labels=["pool"]
        )
        for pool in self._database.measure_pools():
            used.add_metric([pool.name, "in_use"], pool.in_use)
            used.add_metric([pool.name, "idle"], pool.idle)
            most.add_metric([pool.name], pool.most)
        return [used, most]


@dataclass(frozen=True, slots=True)
class _Figures:
    """Figures of an installation. `is_up` is False if the database did not respond."""

    is_up: bool
    at: datetime
    jobs: list[tuple[str, str, int, datetime]] = field(
        default_factory=list[tuple[str, str, int, datetime]]
    )
    turns: dict[str, int] = field(default_factory=dict[str, int])
    processes: int = 0

    def collect(self) -> Iterator[GaugeMetricFamily]:
        up = GaugeMetricFamily("talekeeper_database_up", "1 if the database responds")
        up.add_metric([], self.is_up)
        yield up
        if not self.is_up:
            return
        count = GaugeMetricFamily(
            "talekeeper_queue_jobs", "Jobs that are not done", labels=["kind", "state"]
        )
        age = GaugeMetricFamily(
            "talekeeper_queue_age_seconds",
            "Seconds since the job that waits longest was due",
            labels=["kind", "state"],
        )
        for kind, state, number, due in self.jobs:
            count.add_metric([kind, state], number)
            if state in {"queued", "waiting_key"}:
                age.add_metric([kind, state], max(0.0, (self.at - due).total_seconds()))
        yield from (count, age)
        turns = GaugeMetricFamily(
            "talekeeper_open_turns", "Turns that are running or wait for a choice", labels=["state"]
        )
        for state in OPEN_STATES:
            turns.add_metric([state], self.turns.get(state, 0))
        processes = GaugeMetricFamily("talekeeper_processes", "Live processes of the installation")
        processes.add_metric([], self.processes)
        yield from (turns, processes)


class MetricsService:
    """The figures of this process and of the installation, in Prometheus' text format."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = asyncio.Lock()
        self._figures: _Figures | None = None
        self._read_at = 0.0

    async def render(self) -> bytes:
        """Return all figures. Those of the installation are up to `KEEP_SECONDS` old."""
        async with self._lock:
            figures = self._figures
            if figures is None or time.monotonic() - self._read_at >= KEEP_SECONDS:
                figures = self._figures = await self._read()
                self._read_at = time.monotonic()
        own = CollectorRegistry(auto_describe=False)
        own.register(PoolMetrics(self._database))
        own.register(_Collected(list(figures.collect())))
        return generate_latest(REGISTRY) + generate_latest(own)

    async def _read(self) -> _Figures:
        at = now()
        queue = union_all(*map(_count_jobs, _OPEN_JOBS))
        some = select(_TURNS.c.state).where(IS_OPEN).limit(MAX_COUNTED).subquery().c
        turns = select(some.state, func.count()).group_by(some.state)
        try:
            async with asyncio.timeout(READ_SECONDS), self._database.read() as session:
                rows: Sequence[Any] = (await session.execute(queue)).all()
                states = (await session.execute(turns)).all()
                live = 1
                if not self._database.is_sqlite:
                    live = await session.scalar(select(func.count()).select_from(Process)) or 0
        except (UnavailableError, TimeoutError):
            return _Figures(is_up=False, at=at)
        return _Figures(
            is_up=True,
            at=at,
            jobs=[(row[0], row[1], row[2], row[3]) for row in rows],
            turns={row[0]: row[1] for row in states},
            processes=live,
        )


class _Collected(Collector):
    def __init__(self, families: list[GaugeMetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterable[GaugeMetricFamily]:
        return self._families


def serve_metrics(database: Database, address: str) -> None:
    """Serve the figures of a process without routes, such as a worker, until it ends.

    Those of the installation are not among them.

    Args:
        database: Its connections are among the figures.
        address: Host and port.

    Raises `OSError` or `OverflowError` if the address cannot be used.
    """
    host, _, port = address.rpartition(":")
    REGISTRY.register(PoolMetrics(database))
    start_http_server(int(port), host.strip("[]"))
