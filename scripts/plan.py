"""Calculate the parts of an installation for a number of users, and its first bottleneck.

    .venv/bin/python scripts/plan.py [USERS...]

A simulation on paper: measured figures of one turn, times assumptions about the users. Edit the
constants for your installation. docs/how-to/grow.md shows the result.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# Measured: docs/explanation/performance.md, "Growing tables, more players and a lost process", with
# 200 players on four processes, among 1,000,000 messages.
SERVER_CPU_MS = 31.8
"""CPU of a turn in `talekeeper serve`."""
WORKER_CPU_MS = 5.0
"""CPU in `talekeeper work` that follows from a turn, with indexing by words."""
POSTGRES_CPU_MS = 6.4
PROCESS_CONNECTIONS = 16
"""Database connections of a process: the most of four processes, 65 with 500 players."""

# Measured: the same document, "A database on another machine, and a pooler".
COMMITS = 4

# Measured: the same document, about the storage of a turn and about memory.
TURN_BYTES = 8_100
"""Growth of all tables by a turn: line, reply, prompt record, ledgers and indexes."""
POINT_BYTES = 4_765
"""Disk space of a point: a vector of 384 numbers, and the terms of about 110 words."""
EMBEDDED_POINT_BYTES = 4_300
"""Memory of a point in the embedded index, with the pages of its files."""

# Assumed.
ACTIVE_SHARE = 0.1
"""Share of the registered users who play on a day."""
TURNS_A_DAY = 25
PEAK_HOUR_SHARE = 0.1
"""Share of the day's turns in its busiest hour."""
YEARS = 1.0
"""Time for which everything is kept."""
POINT_MEMORY_BYTES = 1_000
"""Memory of a point with vectors on disk and 8-bit copies in memory."""
REPLICAS = 2
ONE_PROCESS_USERS = 1_000
LOAD = 0.5
"""Part of the processors that the peak may use: a lost machine must not matter."""

# Limits of one machine, and monthly prices in US dollars. Rounded figures of large clouds in 2026.
MACHINE_MEMORY = 16e9
POSTGRES_CORES = 64
POSTGRES_BYTES = 16e12
POSTGRES_COMMITS = 10_000
POSTGRES_CONNECTIONS = 500
NODE_CORES, NODE_MEMORY, NODE_BYTES = 4, 128e9, 4e12
NODES = 32
"""Nodes of a Qdrant cluster that one team can look after."""
CORE_PRICE, MEMORY_PRICE, DISK_PRICE = 20.0, 3.0, 0.10
"""Per core, per GB of memory and per GB of disk."""


@dataclass(frozen=True)
class Plan:
    """The parts of an installation.

    Attributes:
        turns_a_second: In the busiest hour.
        postgres_cores: 0 for SQLite.
        database_bytes: After `YEARS`, as `points`.
        nodes: Qdrant nodes. 0 for the embedded index.
        cost: US dollars a month, without models.
        used: The part of each limit that is used.
    """

    users: int
    turns_a_second: float
    servers: int
    workers: int
    postgres_cores: int
    database_bytes: float
    points: float
    nodes: int
    cost: float
    used: Mapping[str, float]

    @property
    def bottleneck(self) -> str:
        """The limit of which the largest part is used."""
        return max(self.used, key=lambda each: self.used[each])


def plan(users: int) -> Plan:
    """Calculate the parts for `users` registered users after `YEARS`."""
    turns_a_day = users * ACTIVE_SHARE * TURNS_A_DAY
    peak = turns_a_day * PEAK_HOUR_SHARE / 3600
    turns = turns_a_day * 365 * YEARS
    busy = peak / 1000 / LOAD
    server_cores, worker_cores = busy * SERVER_CPU_MS, busy * WORKER_CPU_MS
    points = 2 * turns
    if users <= ONE_PROCESS_USERS:
        disk = turns * (TURN_BYTES + 2 * POINT_BYTES)
        memory = 0.6e9 + points * EMBEDDED_POINT_BYTES
        cost = CORE_PRICE + memory / 1e9 * MEMORY_PRICE + disk / 1e9 * DISK_PRICE
        used = {
            "processor of the process": server_cores + worker_cores,
            "memory of the embedded index": memory / MACHINE_MEMORY,
        }
        return Plan(users, peak, 1, 0, 0, turns * TURN_BYTES, points, 0, cost, used)
    servers, workers = max(2, math.ceil(server_cores)), max(1, math.ceil(worker_cores))
    postgres_cores = max(2, math.ceil(busy * POSTGRES_CPU_MS))
    index_bytes, index_memory = (
        each * points * REPLICAS for each in (POINT_BYTES, POINT_MEMORY_BYTES)
    )
    nodes = max(3, math.ceil(index_bytes / NODE_BYTES), math.ceil(index_memory / NODE_MEMORY))
    memory = 0.6e9 * (servers + workers) + 4e9 * postgres_cores + index_memory
    disk = turns * TURN_BYTES * REPLICAS + index_bytes
    cost = (
        (servers + workers + postgres_cores + NODE_CORES * nodes) * CORE_PRICE
        + memory / 1e9 * MEMORY_PRICE
        + disk / 1e9 * DISK_PRICE
    )
    used = {
        "processors of PostgreSQL": busy * POSTGRES_CPU_MS / POSTGRES_CORES,
        "disk of PostgreSQL": turns * TURN_BYTES / POSTGRES_BYTES,
        "commits of PostgreSQL": peak * COMMITS / POSTGRES_COMMITS,
        "connections of PostgreSQL": (servers + workers)
        * PROCESS_CONNECTIONS
        / POSTGRES_CONNECTIONS,
        "nodes of the index": nodes / NODES,
    }
    return Plan(
        users, peak, servers, workers, postgres_cores, turns * TURN_BYTES, points, nodes, cost, used
    )


REMEDIES = {
    "processor of the process": "PostgreSQL, Qdrant and a second process",
    "memory of the embedded index": "a Qdrant server",
    "processors of PostgreSQL": "a larger machine, then several installations",
    "disk of PostgreSQL": "a shorter time for prompt records, then several installations",
    "commits of PostgreSQL": "faster disks for its log",
    "connections of PostgreSQL": "a pooler in transaction mode",
    "nodes of the index": "an embedding model with shorter vectors, then several installations",
}


def make_table(users: Sequence[int]) -> str:
    """Return a Markdown table with a column for each number of users."""
    plans = [plan(each) for each in users]
    rows: list[tuple[str, Callable[[Plan], str]]] = [
        ("Turns a second in the busiest hour", lambda each: format_rate(each.turns_a_second)),
        ("`talekeeper serve`", lambda each: f"{each.servers}"),
        ("`talekeeper work`", lambda each: f"{each.workers}"),
        ("Database", lambda each: f"{each.postgres_cores} cores" if each.nodes else "SQLite"),
        ("Database after a year", lambda each: format_bytes(each.database_bytes)),
        ("Points after a year", lambda each: format_count(each.points)),
        ("Qdrant nodes", lambda each: f"{each.nodes}" if each.nodes else "embedded"),
        ("Shards, copies", lambda each: f"{2 * each.nodes}, {REPLICAS}" if each.nodes else ""),
        ("Cost a month, without models", lambda each: f"${each.cost:,.0f}"),
        ("Nearest limit", lambda each: f"{each.bottleneck}, {each.used[each.bottleneck]:.0%}"),
        ("Remedy", lambda each: REMEDIES[each.bottleneck]),
    ]
    lines = [
        f"| Registered users | {' | '.join(f'{each:,}' for each in users)} |",
        "| --- |" + " --- |" * len(users),
        *(f"| {name} | {' | '.join(map(show, plans))} |" for name, show in rows),
    ]
    return "\n".join(lines)


def format_bytes(size: float) -> str:
    units = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6))
    unit, factor = next((each for each in units if size >= each[1]), ("kB", 1e3))
    return f"{size / factor:.3g} {unit}"


def format_rate(rate: float) -> str:
    return f"{rate:.2g}" if rate >= 0.01 else "less than 0.01"


def format_count(number: float) -> str:
    units = (("billion", 1e9), ("million", 1e6))
    found = next((each for each in units if number >= each[1]), None)
    return f"{number / found[1]:.3g} {found[0]}" if found else f"{number:,.0f}"


USERS = (1, 1_000, 100_000, 1_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("users", type=int, nargs="*", default=USERS)
    print(make_table(parser.parse_args().users))


if __name__ == "__main__":
    main()
