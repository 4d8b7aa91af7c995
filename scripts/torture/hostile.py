"""Hostile inputs of one user, while a bystander must not wait.

Each input gets a new installation on SQLite, a user who sends it, and a bystander in another
process (`bystander.py`). A promise is broken if the bystander waits more than 0.5 s, if the server
has ended, or if its memory grows too much.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from scripts.bench.processes import read_resident_mib
from scripts.torture.bystander import Bystander, start_bystander
from scripts.torture.campaign import Campaign, Options, campaign, run_guarded
from scripts.torture.client import sign_up
from scripts.torture.hostile_connections import CONNECTIONS
from scripts.torture.hostile_servers import SERVERS
from scripts.torture.hostile_texts import TEXTS
from scripts.torture.hostile_uploads import UPLOADS
from scripts.torture.hostile_user import HostileUser
from scripts.torture.installation import UNLIMITED
from scripts.torture.report import Row

LONGEST_WAIT = 0.5
"""Seconds that a bystander may have to wait: a promise."""
MOST_MEMORY = 400
"""Limit of the growth of a server in MiB."""
GIVEN_UP_AFTER = 60.0
AFTERWARDS = 2.0
"""Seconds that a bystander goes on looking after the input was answered."""

# The quotas of an installation as people have it; but there the two have addresses of their own.
LIMITS = {name: "" for name in UNLIMITED if not name.endswith("_per_address")}

Attack = Callable[[HostileUser], Awaitable[None]]

ATTACKS: dict[str, Attack] = {**TEXTS, **UPLOADS, **SERVERS, **CONNECTIONS}


@dataclass
class MemoryWatch:
    """The peak memory of a process and its children, read every 20 ms, in MiB."""

    pid: int
    before: float = 0.0
    most: float = 0.0

    async def watch(self) -> None:
        self.before = self.most = read_resident_mib(self.pid)
        while True:
            self.most = max(self.most, read_resident_mib(self.pid))
            await asyncio.sleep(0.02)

    @property
    def growth(self) -> float:
        """The difference between the peak and the start."""
        return self.most - self.before


async def run(options: Options) -> list[Row]:
    rows: list[Row] = []
    for name, attack in ATTACKS.items():
        if options.name in name:
            rows += await run_guarded("hostile", name, _rows(options, name, attack))
    return rows


async def _rows(options: Options, name: str, attack: Attack) -> list[Row]:
    return [await _row(options, name, attack)]


async def _row(options: Options, name: str, attack: Attack) -> Row:
    alone = dataclasses.replace(
        options, database="sqlite", users=1, workers=0, visitors=0, keep=None
    )
    async with campaign(alone, **LIMITS) as made:
        made.progress.tell(f"hostile: {name}", always=True)
        hostile = made.accounts[0].client
        other = await sign_up(made.made.url, "bystander", made.history, made.made.urls, made.draw)
        user = HostileUser(hostile, made.made.url, made.model, made.accounts[0].servers[0])
        bystander = await start_bystander(made.made.url, other.token)
        try:
            return await _run_attack(options, name, attack, user, bystander, made)
        finally:
            await bystander.stop()
            await other.aclose()


async def _run_attack(
    options: Options,
    name: str,
    attack: Attack,
    user: HostileUser,
    bystander: Bystander,
    made: Campaign,
) -> Row:
    await user.warm_up()
    await asyncio.sleep(1)
    alone = await bystander.take()
    memory = MemoryWatch(made.made.servers[0].pid)
    watching = asyncio.create_task(memory.watch())
    await asyncio.sleep(0.1)
    began = time.monotonic()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GIVEN_UP_AFTER):
            await attack(user)
            await user.until_quiet()
            await asyncio.sleep(AFTERWARDS)
    seconds = time.monotonic() - began
    waits = await bystander.take()
    watching.cancel()
    longest = max(each["longest"] for each in waits.values())
    calm = max(each["longest"] for each in alone.values())
    figures = {
        "worst wait": f"{longest:.2f} s",
        "alone": f"{calm:.2f} s",
        "took": f"{seconds:.1f} s",
        "memory": f"+{memory.growth:.0f} MiB",
        "answers": " ".join(sorted(map(str, user.statuses))),
    }
    row = Row("hostile", name, figures, list(made.history.broken))
    if longest > LONGEST_WAIT * options.slow:
        row.broken.append(f"a bystander waited {longest:.2f} s")
    if failed := sum(each["failed"] for each in waits.values()):
        row.broken.append(f"{failed:.0f} requests of a bystander failed")
    if memory.growth > MOST_MEMORY:
        row.broken.append(f"the server grew by {memory.growth:.0f} MiB")
    if not made.made.servers[0].is_alive:
        row.broken.append(f"the server ended: {made.made.servers[0].last_words()}")
    return row
