"""A long chat with the agent on, while its model fails and its workers are killed.

On PostgreSQL there are a server and two workers, `talekeeper serve` and twice `talekeeper work`,
each a process; some seconds after it last happened one of them is killed (SIGKILL) and started
again. There being no Qdrant server, they share a Qdrant Edge on a socket (`_enrichment_index.py`).
On SQLite there is one process, the server, which works on the jobs itself: it is what is killed.
Waits of the queue are shortened: `_enrichment_process.py` says which.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx

from scripts._bench_table import DatabaseName, Row, new_database, start
from scripts._enrichment_counting import Played, Stored, rows_of, stored_of
from scripts._enrichment_model import transcript
from scripts._enrichment_town import (
    PATIENCE,
    Town,
    all_items,
    checked,
    player,
    stats_of,
    town,
)

SETTLED = 300.0
"""Seconds after which what is left of the work is given up."""
IDLE = 5.0
"""Seconds without a job after which there will be none."""


@dataclass
class Game:
    """A chat that is being played."""

    client: httpx.AsyncClient
    chat_id: str
    chronicle_id: str
    completed: dict[UUID, float] = field(default_factory=dict[UUID, float])
    broken: int = 0
    kills: int = 0
    retried: int = 0


async def bench_story(name: DatabaseName, options: argparse.Namespace) -> list[Row]:
    """The rows of one database."""
    lines = transcript(options.data)[: 2 * options.turns]
    if len(lines) < 2 * options.turns:
        print(f"The transcripts have {len(lines)} lines: fewer turns.", file=sys.stderr)
    async with new_database(name) as url:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            model = await start(
                "_enrichment_model",
                str(options.data),
                *("--seed", str(options.seed), "--failures", str(options.failures)),
                *("--think", str(options.think)),
            )
            settings: dict[str, Any] = {"embedder": "none"}
            if options.embedder == "local":
                settings = {"embedder": "local", "embedding_model_path": options.model_path}
            async with (
                town(name, url, Path(folder), model, **settings) as made,
                player(made) as client,
            ):
                game = await _opened(client)
                began = time.perf_counter()
                await _play(made, game, lines[::2], options)
                seconds = time.perf_counter() - began
                settled = await _settle(game)
                stored = await stored_of(url, UUID(game.chat_id))
                played = await _played(game, stored, seconds, settled, await stats_of(model))
        return rows_of(name, played)


async def _opened(client: httpx.AsyncClient) -> Game:
    chat = checked(await client.post("/chats", json={"title": "A long campaign"}))
    path = f"/chats/{chat['id']}/settings"
    settings = checked(await client.patch(path, json={"chronicle_enabled": True}))
    return Game(client, chat["id"], settings["chronicle_id"])


async def _play(made: Town, game: Game, said: Sequence[str], options: argparse.Namespace) -> None:
    """Take turns at an even pace, while something is killed every now and then."""
    over = asyncio.Event()
    killer = asyncio.create_task(_kill_again_and_again(made, game, options, over))
    due = time.monotonic()
    try:
        for line in said:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic() - 1 / options.pace) + 1 / options.pace
            await _take_turn(made, game, line)
    finally:
        over.set()
        # What was killed last is started again.
        await killer


async def _take_turn(made: Town, game: Game, line: str) -> None:
    path = f"/chats/{game.chat_id}/turns"
    reply_id, is_over = None, False
    try:
        async with game.client.stream("POST", path, json={"text": line}) as answer:
            if answer.is_error:
                await answer.aread()
                checked(answer)
            event = ""
            async for each in answer.aiter_lines():
                if each.startswith("event: "):
                    event = each[7:]
                elif each.startswith("data: ") and reply_id is None:
                    reply_id = UUID(json.loads(each[6:])["reply_id"])
                is_over = is_over or event == "turn.completed"
    except httpx.TransportError:
        pass  # the server was killed
    if reply_id is not None and is_over:
        game.completed[reply_id] = time.time()
        return
    game.broken += 1
    if made.name == "postgres":
        raise SystemExit("A turn broke off, though nobody killed the server.")
    await _until_ready(made)


async def _until_ready(made: Town) -> None:
    began = time.monotonic()
    async with httpx.AsyncClient(trust_env=False) as client:
        while time.monotonic() - began < PATIENCE:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get(f"{made.url}/ready")).is_success:
                    return
            await asyncio.sleep(0.05)
    raise SystemExit("The server does not come up again.")


async def _kill_again_and_again(
    made: Town, game: Game, options: argparse.Namespace, over: asyncio.Event
) -> None:
    draw = random.Random(options.seed)
    while options.kill_every:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(options.kill_every * draw.uniform(0.5, 1.5)):
                await over.wait()
        if over.is_set():
            return
        await _kill_one(made, draw)
        game.kills += 1


async def _kill_one(made: Town, draw: random.Random) -> None:
    if made.workers:
        await made.kill_worker(draw.randrange(len(made.workers)))
    else:
        await made.kill_server()


async def _settle(game: Game) -> float:
    """Wait until nothing is left to read; seconds that it took.

    A line whose reply broke off with the server waits for the next one: without a job it is left.
    A last job that died, which no further reply follows, is put back as its user would do it.
    """
    began = busy = time.monotonic()
    while time.monotonic() - began < SETTLED:
        found = checked(await game.client.get(f"/chats/{game.chat_id}/enrichment?limit=1"))
        if found["job"] is not None:
            busy = time.monotonic()
            if found["job"]["state"] == "dead":
                checked(await game.client.post(f"/jobs/{found['job']['id']}/retry"))
                game.retried += 1
        elif not found["pending"] or time.monotonic() - busy > IDLE:
            break
        await asyncio.sleep(0.1)
    return busy - began


async def _played(
    game: Game, stored: Stored, seconds: float, settled: float, stats: dict[str, Any]
) -> Played:
    events = await all_items(game.client, f"/chronicles/{game.chronicle_id}/events", current=False)
    runs = await all_items(game.client, f"/chats/{game.chat_id}/enrichment")
    return Played(
        stored=stored,
        events=events,
        runs=runs,
        completed=game.completed,
        broken=game.broken,
        kills=game.kills,
        retried=game.retried,
        seconds=seconds,
        settled=settled,
        stats=stats,
    )
