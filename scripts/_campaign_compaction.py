"""Whether a campaign that is kept by the compactor still says what is so after many rounds.

A made-up campaign (`_campaign_script.py`) is told twice in one installation, block by block: in a
chat that the compactor reads, and in one that it does not. A share of the calls behind replies
fails, and now and then a process is killed while it works: of two workers one after the other, or,
on SQLite, the one process that there is. After each block of rounds it is asked about what was told
some rounds ago. In the end the state is compared with what the script knows, and turns of the chat
that was read are timed with the work behind them and without it.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import select

from backend.database.engine import Database
from backend.jobs.models import Job
from scripts._bench_table import DatabaseName, Row, new_database, spread
from scripts._campaign_compactor import Compactor
from scripts._campaign_continuity import ASIDE, prompt_lines
from scripts._campaign_script import BLOCK, Script, Scripted, write_script
from scripts._campaign_state import Differences, differences, read_state
from scripts._campaign_tally import Tally, sliding_window
from scripts._campaign_truth import Question
from scripts._campaign_words import PLAYERS
from scripts._enrichment_latency import time_turn
from scripts._enrichment_town import PATIENCE, Town, checked, player, town
from scripts._enrichment_wire import listen

WINDOW = 8_192
ROUNDS = 100
FAILURES = 0.2
THINK = 0.1
"""Seconds that a call behind a reply takes."""
TIMED_BLOCKS, TIMED = 12, 6
"""Stretches of turns with and without the work behind them, by turns, and turns in each."""
TIMED_PACE = 1.0
"""Seconds from the end of a turn that is timed to the next one."""

_WORDS = (150, 250)
"""Words of a line and of a reply, at most."""


@dataclass
class Telling:
    """A campaign's chat in which the script is told."""

    client: httpx.AsyncClient
    made: Town
    model: Compactor
    database: Database
    campaign: str
    chat: str
    ids: dict[str, str]
    tally: Tally = field(default_factory=Tally)
    budget: int = 0
    kills: int = 0

    @classmethod
    async def open(
        cls,
        client: httpx.AsyncClient,
        made: Town,
        model: Compactor,
        database: Database,
        *,
        is_read: bool,
    ) -> Telling:
        """Make the campaign with its cast, and its chat; `is_read`: the compactor may read it."""
        settings = {"hidden_information": True, "tools": False}
        body: dict[str, Any] = {"name": "Saltgate", "settings": settings}
        campaign = checked(await client.post("/campaigns", json=body))["id"]
        ids: dict[str, str] = {}
        cast = sorted(model.script.cast.items(), key=lambda each: each[0][0] != "location")
        for (kind, name), fields in cast:
            if kind != "world":
                values = dict(fields)
                given = {"kind": kind, "name": name, "status": "active"}
                if "location" in values:
                    given["location_id"] = ids[values.pop("location")]
                values.pop("status", None)
                path = f"/campaigns/{campaign}/entities"
                item = checked(await client.post(path, json={**given, "attributes": values}))
                ids[name] = item["id"]
        master = {"name": "Game master", "description": "Tells the story."}
        character = checked(await client.post("/characters", json=master))
        body = {"campaign_id": campaign, "character_ids": [character["id"]]}
        chat = checked(await client.post("/chats", json=body))["id"]
        telling = cls(client, made, model, database, campaign, chat, ids)
        await telling.agree(is_read=is_read)
        return telling

    async def play(self, told: Scripted) -> None:
        """Tell a round."""
        text = f"{told.speaker}: {told.line}"
        if told.discarded:
            await self.turn(told.discarded, text=text)
            await self.settle()
            page = checked(await self.client.get(f"/chats/{self.chat}/messages?limit=500"))
            await self.turn(told.reply, regenerate_of=page["items"][-1]["id"])
        else:
            await self.turn(told.reply, text=text)
        if told.aside is not None:
            says, audience = told.aside
            to = audience if audience == "gm" else [self.ids[audience]]
            await self.turn(says, text=ASIDE, audience=to)

    async def turn(self, reply: str, **turn: Any) -> float:
        """Take a turn; the milliseconds to its first token."""
        self.model.next_reply = reply
        authorization = self.client.headers["authorization"]
        first, _ = await time_turn(self.made.port, authorization, self.chat, **turn)
        return first

    async def agree(self, *, is_read: bool) -> None:
        """Agree to the work behind the replies, or no longer."""
        consent = {"chronicle_enabled": is_read}
        checked(await self.client.patch(f"/chats/{self.chat}/settings", json=consent))

    async def time_turns(self) -> Mapping[bool, Sequence[float]]:
        """Milliseconds to the first token of turns with the work behind them, and without."""
        times: dict[bool, list[float]] = {True: [], False: []}
        for block in range(TIMED_BLOCKS):
            is_read = block % 2 == 0
            await self.agree(is_read=is_read)
            for number in range(TIMED):
                name = PLAYERS[number % len(PLAYERS)]
                times[is_read].append(await self.turn("Rain falls.", text=f"{name} waits."))
                await asyncio.sleep(TIMED_PACE)
            await self.settle()
        return times

    async def kill(self, after: float) -> None:
        """Kill what works for it, some time after the last turn."""
        await asyncio.sleep(after)
        if self.made.workers:
            await self.made.kill_worker(self.kills % len(self.made.workers))
        else:
            await self.made.kill_server()
        self.kills += 1

    async def settle(self) -> None:
        """Wait until nothing is left of the work behind replies."""
        query = select(Job.id, Job.state).where(
            Job.kind != "quotas.recount", Job.kind != "memory.reconcile", Job.state != "done"
        )
        async with asyncio.timeout(PATIENCE):
            while True:
                async with self.database.read() as session:
                    left = (await session.execute(query)).all()
                for job in left:
                    if job.state == "dead":
                        checked(await self.client.post(f"/jobs/{job.id}/retry"))
                if not left:
                    return
                await asyncio.sleep(0.05)

    async def ask(self, number: int, questions: Sequence[Question]) -> None:
        """Ask, and judge the prompts that come of it."""
        for each in questions:
            viewpoint = each.asker if each.asker == "gm" else self.ids[each.asker]
            body = {"text": each.asks, "prompt": True, "viewpoint": viewpoint}
            answer = await self.client.post(f"/chats/{self.chat}/context", json=body)
            view = checked(answer)
            self.budget = view["budgets"]["total"] - view["budgets"]["reply_reserve"]
            self.tally.judge(each, prompt_lines(view, each.asks), number)


async def bench_compaction(
    name: DatabaseName,
    turns: Sequence[tuple[str, str]],
    *,
    rounds: int = ROUNDS,
    embedding: Path | None = None,
    explain: bool = False,
) -> list[Row]:
    """The rows of one database."""
    script = write_script(fillers(turns), rounds)
    model = Compactor(script, failures=FAILURES, think=THINK)
    server, port = await listen(model.respond)
    settings: dict[str, Any] = {"embedder": "none"}
    if embedding is not None:
        settings = {"embedder": "local", "embedding_model_path": embedding}
    settings |= {"openai_context_window": WINDOW, "openai_max_output_tokens": 1_000}
    async with server, new_database(name) as url:
        database = Database(url)
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            async with (
                town(name, url, Path(folder), port, **settings) as made,
                player(made) as client,
            ):
                read = await Telling.open(client, made, model, database, is_read=True)
                plain = await Telling.open(client, made, model, database, is_read=False)
                await _tell(script, read, plain)
                state = await read_state(client, read.campaign, read.chat)
                memory = checked(await client.get(f"/campaigns/{read.campaign}/memory"))
                times = await read.time_turns()
        await database.dispose()
    window = sliding_window(script, read.budget)
    tallies = {"with the compactor": read.tally, "without": plain.tally, "sliding window": window}
    rows = [tally.row(name, f"{WINDOW:,}: {what}") for what, tally in tallies.items()]
    found = differences(script.truth, state)
    rows += _rows(name, read, found, memory, times)
    told = {
        "missed": read.tally.missed,
        "stale": read.tally.stale,
        "leaked": read.tally.leaked,
        "wrong": found.wrong,
        "is lost": found.lost,
        "is doubled": found.doubled,
        "refused": model.refused,
    }
    if explain:
        rows += [
            Row(name, f"  {what}", 0, note=note) for what, some in told.items() for note in some
        ]
    return rows


async def _tell(script: Script, read: Telling, plain: Telling) -> None:
    draw = random.Random(2)
    for start in range(0, len(script.rounds), BLOCK):
        block = list(enumerate(script.rounds[start : start + BLOCK], start + 1))
        for telling in (read, plain) if start // BLOCK % 2 else (plain, read):
            killed = draw.randrange(len(block)) if telling is read else None
            for place, (_, told) in enumerate(block):
                await telling.play(told)
                if place == killed:
                    await telling.kill(draw.uniform(0.0, 4 * THINK))
            if telling is read and block[-1][0] == len(script.rounds):
                await _compact(telling)
            await telling.settle()
            for number, told in block:
                await telling.ask(number, told.questions)


async def _compact(telling: Telling) -> None:
    """What is left at the end is read as a user would have it read."""
    await telling.settle()
    path = f"/campaigns/{telling.campaign}/compact"
    checked(await telling.client.post(path, json={"chat_id": telling.chat}))


def fillers(turns: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Lines of players and replies of the game master, out of transcripts."""
    line: list[str] = []
    reply: list[str] = []
    for speaker, text in turns:
        (reply if speaker == "MATT" else line).extend(text.split())
        if len(reply) >= _WORDS[1] // 2 and line:
            yield " ".join(line[: _WORDS[0]]), " ".join(reply[: _WORDS[1]])
            line, reply = [], []


def _rows(
    name: str,
    read: Telling,
    found: Differences,
    memory: dict[str, Any],
    times: Mapping[bool, Sequence[float]],
) -> list[Row]:
    percent = round(100 * (found.fields - len(found.wrong)) / max(1, found.fields), 1)
    ratio = round(statistics.median(times[True]) / statistics.median(times[False]), 3)
    asked, refused = read.model.asked, len(read.model.refused)
    calls = sum(n for kind, n in asked.items() if kind not in {"reply", "failed", "updates"})
    work = f"{asked['failed']} failed; {asked['updates']} updates, {refused} refused"
    tokens = "{saved_tokens:,} tokens saved of {whole_tokens:,}, {tokens:,} spent"
    return [
        Row(name, "fields as the script knows them", percent, unit="%", note=f"of {found.fields}"),
        Row(name, "lost", len(found.lost)),
        Row(name, "doubled or made up", len(found.doubled)),
        Row(name, "calls behind replies", calls, note=f"{work}; {read.kills} kills"),
        Row(name, "compactions", memory["compactions"], note=tokens.format(**memory)),
        spread(name, "first token, with work behind replies", times[True], unit="ms"),
        spread(name, "first token, without", times[False], unit="ms"),
        Row(name, "  with by without", ratio, note="aim: 1.05"),
    ]
