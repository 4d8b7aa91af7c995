"""Processes that are killed, ended or paused at random moments while accounts play.

On SQLite the one process is killed, sometimes while it starts. On PostgreSQL one of two servers or
the worker is killed while the others go on. After each restart `/ready` has to answer within 10 s,
and what was touched is compared with what was acknowledged.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from typing import Any

from scripts.torture.campaign import Campaign, Options, campaign
from scripts.torture.ending import check_everything
from scripts.torture.installation import BrokenPromiseError, Process
from scripts.torture.report import Row

START_UP = 2.0
"""Seconds within which a process may be killed while it starts."""


async def run(options: Options) -> list[Row]:
    """Run a campaign for a number of kills or minutes."""
    async with campaign(options) as made:
        kills: Counter[str] = Counter()
        began = time.monotonic()
        while _is_on(options, made, kills, began):
            await _cycle(options, made, kills)
            made.progress.tell(_told(made, kills, began))
        made.progress.tell(_told(made, kills, began), always=True)
        figures = await check_everything(made)
        return [_row(options, made, kills, figures)]


def _is_on(options: Options, made: Campaign, kills: Counter[str], began: float) -> bool:
    if len(made.history.broken) > 200:
        return False
    if options.minutes is not None:
        return time.monotonic() - began < options.minutes * 60
    return kills.total() < options.kills


async def _cycle(options: Options, made: Campaign, kills: Counter[str]) -> None:
    """Play, kill, start again, check."""
    draw = made.draw
    await made.play(draw.randint(0, 80))
    victim = draw.choice(made.made.processes)
    kind = draw.choices(("SIGKILL", "SIGTERM", "SIGSTOP"), (86, 8, 6))[0]
    await _hit(made, victim, kind)
    kills[kind] += 1
    if options.kind == "sqlite":
        # There is nothing that would answer.
        await made.pause()
        if draw.random() < 0.25 and kills.total() < options.kills:
            await _kill_while_it_starts(made, victim, kills)
    elif draw.random() < 0.7:
        # The others go on without it for a moment.
        await asyncio.sleep(draw.uniform(0, 0.5))
    plays_meanwhile = draw.random() < 0.3
    if plays_meanwhile:
        made.may_act.set()
    await _start(made, victim)
    if not plays_meanwhile or options.kind == "sqlite":
        await made.pause()
        await made.check_touched()


async def _hit(made: Campaign, victim: Process, kind: str) -> None:
    match kind:
        case "SIGTERM":
            victim.send(signal.SIGTERM)
            try:
                await victim.gone(made.made.stop_within)
            except BrokenPromiseError as broken:
                made.history.breach(f"{broken} after SIGTERM")
        case "SIGSTOP":
            victim.send(signal.SIGSTOP)
            # Longer than leases last here: others take its work over, and then it comes back.
            await asyncio.sleep(made.draw.uniform(0.5, 6.0))
            victim.send(signal.SIGCONT)
            await asyncio.sleep(made.draw.uniform(0, 0.5))
            await victim.kill()
        case _:
            await victim.kill()


async def _kill_while_it_starts(made: Campaign, victim: Process, kills: Counter[str]) -> None:
    victim.start()
    await asyncio.sleep(made.draw.uniform(0, START_UP))
    await victim.kill()
    kills["SIGKILL at start-up"] += 1


async def _start(made: Campaign, victim: Process) -> None:
    """Start it again; a worker has nothing to say of itself but that it runs."""
    victim.start()
    if victim in made.made.servers:
        try:
            made.made.started.append(await victim.ready(made.made.ready_within))
        except BrokenPromiseError as broken:
            made.history.breach(str(broken))
            await victim.kill()
            await made.made.open(within=60 * made.slow)


def _told(made: Campaign, kills: Counter[str], began: float) -> str:
    history = made.history
    return (
        f"{kills.total()} kills, {time.monotonic() - began:.0f} s, "
        f"{history.count_acknowledged()} acknowledged ({_messages(made)} messages), "
        f"{len(history.broken)} promises broken"
    )


def _messages(made: Campaign) -> int:
    return sum(len(account.ledger.lines) for account in made.accounts)


def _row(options: Options, made: Campaign, kills: Counter[str], figures: dict[str, Any]) -> Row:
    history = made.history
    told = {
        "kills": kills.total(),
        **dict(kills),
        "acknowledged": history.count_acknowledged(),
        "messages": _messages(made),
        "unknown": sum(n for (_, outcome), n in history.outcomes.items() if outcome == "unknown"),
        "slowest start": f"{max(made.made.started, default=0):.1f} s",
        **figures,
    }
    return Row("kills", options.kind, told, list(history.broken))
