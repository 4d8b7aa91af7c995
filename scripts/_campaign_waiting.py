"""What turns take that wait for their player: in memory, and in their rows."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import func, select

from backend.campaigns.play.table import Table
from backend.database.engine import Database
from backend.turns.models import Turn
from backend.turns.run.turn_run import TurnRun
from scripts._bench import client, open_account, serving, until_idle
from scripts._bench_table import DatabaseName, Row, new_database
from scripts._stopwatch import hashed_words, prompt_settings

TURNS = 100
WARM_UP = 10
WAITS, ENDS = "I pick the lock of the counting house.", "I look around."
"""What the demo model answers with a die to choose, and with a reply."""


async def bench_waiting(name: DatabaseName, folder: Path) -> list[Row]:
    """What each of so many waiting turns takes, in a chat of its own; the floor: turns that end."""
    async with new_database(name) as url:
        database = Database(url)
        with hashed_words():
            account = await open_account(prompt_settings(url, folder), database, "bench")
        async with serving(account.parts) as port, client(account, port) as api:
            body = {"name": "Doskvol", "rules": "blades"}
            campaign: dict[str, Any] = (await api.post("/campaigns", json=body)).json()

            async def grown(text: str) -> float:
                """KiB of Python's memory that each of the turns leaves behind."""
                before = 0
                for number in range(WARM_UP + TURNS):
                    if number == WARM_UP:
                        await until_idle(account)
                        before = _traced()
                    await _turn(api, campaign["id"], text)
                await until_idle(account)
                return round((_traced() - before) / TURNS / 1024, 1)

            tracemalloc.start()
            ended, waiting = await grown(ENDS), await grown(WAITS)
            tracemalloc.stop()
        alive = sum(isinstance(each, TurnRun | Table) for each in gc.get_objects())
        async with database.read() as session:
            size = func.length(Turn.sealed_play) + func.length(Turn.sealed_events)
            query = select(func.count(), func.avg(size)).where(Turn.state == "waiting")
            count, stored = (await session.execute(query)).one()
    note = f"{count} wait; runs and tables in memory: {alive}"
    return [
        Row(name, "waiting turn: in memory", waiting, unit="KiB", note=note),
        Row(name, "  floor: a turn that is over", ended, unit="KiB"),
        Row(name, "  in its row", round(float(stored) / 1024, 1), unit="KiB"),
    ]


async def _turn(api: httpx.AsyncClient, campaign_id: str, text: str) -> None:
    chat = (await api.post("/chats", json={"campaign_id": campaign_id})).json()["id"]
    headers = {"Accept": "application/json"}
    answer = await api.post(f"/chats/{chat}/turns", json={"text": text}, headers=headers)
    answer.raise_for_status()


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
