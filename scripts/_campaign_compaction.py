"""Whether a campaign that is kept by the compactor still says what is so after many rounds.

A made-up campaign (`_campaign_script.py`) is told twice in one installation, block by block: in a
chat that the compactor reads, and in one that it does not. A share of the calls behind replies
fails, and now and then a process is killed while it works: of two workers one after the other, or,
on SQLite, the one process that there is. After each block of rounds it is asked about what was told
some rounds ago. In the end the state is compared with what the script knows.
"""

from __future__ import annotations

import asyncio
import random
import re
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import select

from backend.database.engine import Database
from backend.generation.tokens import get_tokenizer
from backend.jobs.models import Job
from scripts._bench_table import DatabaseName, Row, new_database, spread
from scripts._campaign_compactor import Compactor
from scripts._campaign_continuity import ASIDE, PRESENT, prompt_lines, recent
from scripts._campaign_script import BLOCK, Script, Scripted, write_script
from scripts._campaign_state import State, differences, read_state
from scripts._campaign_truth import Question
from scripts._enrichment_latency import time_turn
from scripts._enrichment_town import PATIENCE, Town, checked, player, town
from scripts._enrichment_wire import listen

WINDOW = 8_192
ROUNDS = 100
FAILURES = 0.2
THINK = 0.1
"""Seconds that a call behind a reply takes."""
PACE = 0.1
"""Seconds between two turns."""
COLD = 2
"""Turns after a kill whose times do not count: caches are empty."""

_WORDS = (150, 250)
"""Words of a line and of a reply, at most."""


@dataclass
class Tally:
    """How the questions came out, of one way to make prompts."""

    found: Counter[str] = field(default_factory=Counter[str])
    asked: Counter[str] = field(default_factory=Counter[str])
    missed: list[str] = field(default_factory=list[str])
    stale: list[str] = field(default_factory=list[str])
    leaked: list[str] = field(default_factory=list[str])

    def judge(self, question: Question, said: Sequence[tuple[str, str]], number: int) -> None:
        """Note what a prompt says; `said` are its lines, each with the kind of its section."""
        what = f"round {number}, {question.kind}: {question.asks}"
        lines = [line for _, line in said]
        if question.hidden:
            if _says(lines, question.hidden):
                self.leaked.append(what)
            return
        self.asked[question.kind] += 1
        is_found = any(_says(lines, words) for words in question.answers)
        if is_found:
            self.found[question.kind] += 1
        else:
            self.missed.append(f"{what} {question.answers}")
        present = [line for kind, line in said if kind in PRESENT or not is_found]
        if old := next((words for words in question.stale if _says(present, words)), None):
            self.stale.append(f"{what} {old}")

    def row(self, database: str, what: str) -> Row:
        """The share of answers found, with what else there is to say."""
        kinds = ", ".join(f"{k} {self.found[k]}/{n}" for k, n in sorted(self.asked.items()))
        note = f"stale {len(self.stale)}, leaked {len(self.leaked)}; {kinds}"
        percent = round(100 * self.found.total() / max(1, self.asked.total()), 1)
        return Row(database, what, percent, unit="%", note=note)


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
    times: list[float] = field(default_factory=list[float])
    budget: int = 0
    kills: int = 0
    cold: int = 0

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
        consent = {"chronicle_enabled": is_read}
        checked(await client.patch(f"/chats/{chat}/settings", json=consent))
        return cls(client, made, model, database, campaign, chat, ids)

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

    async def turn(self, reply: str, **turn: Any) -> None:
        """Take a turn, and note its time."""
        self.model.next_reply = reply
        authorization = self.client.headers["authorization"]
        first, _ = await time_turn(self.made.port, authorization, self.chat, **turn)
        if "regenerate_of" in turn or "audience" in turn:
            return
        if self.cold:
            self.cold -= 1
        else:
            self.times.append(first)
        await asyncio.sleep(PACE)

    async def kill(self, after: float) -> None:
        """Kill what works for it, some time after the last turn."""
        await asyncio.sleep(after)
        if self.made.workers:
            await self.made.kill_worker(self.kills % len(self.made.workers))
        else:
            await self.made.kill_server()
            self.cold = COLD
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
        await database.dispose()
    window = Tally()
    _slide(script, read.budget, window)
    return _rows(name, script, read, plain, window, state, memory, explain=explain)


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


def _slide(script: Script, budget: int, tally: Tally) -> None:
    """The last messages that fit, whoever asks: what one audience may not know is left out."""
    count = get_tokenizer("o200k_base").count
    told: list[tuple[str, str]] = []
    for number, each in enumerate(script.rounds, 1):
        told += [(f"{each.speaker}: {each.line}", "public"), (each.reply, "public")]
        if each.aside is not None:
            told.append(each.aside)
        for question in each.questions:
            texts = [
                text
                for text, audience in told
                if question.asker == "gm" or audience in {"public", question.asker}
            ]
            room = budget - count(question.asks) - 40
            lines = recent(texts, room, count)
            tally.judge(question, [("history", line) for line in lines], number)


def _rows(
    name: str,
    script: Script,
    read: Telling,
    plain: Telling,
    window: Tally,
    state: State,
    memory: dict[str, Any],
    *,
    explain: bool,
) -> list[Row]:
    found = differences(script.truth, state)
    right = found.fields - len(found.wrong)
    percent = round(100 * right / max(1, found.fields), 1)
    asked, model = read.model.asked, read.model
    ratio = round(statistics.median(read.times) / statistics.median(plain.times), 3)
    rows = [
        read.tally.row(name, f"{WINDOW:,}: with the compactor"),
        plain.tally.row(name, f"{WINDOW:,}: without"),
        window.row(name, f"{WINDOW:,}: sliding window"),
        Row(name, "fields as the script knows them", percent, unit="%", note=f"of {found.fields}"),
        Row(name, "lost", len(found.lost)),
        Row(name, "doubled or made up", len(found.doubled)),
        spread(name, "turn, first token, with", read.times, unit="ms"),
        spread(name, "turn, first token, without", plain.times, unit="ms"),
        Row(name, "  with by without", ratio, note="aim: 1.05"),
        Row(
            name,
            "calls behind replies",
            sum(n for kind, n in asked.items() if kind not in {"reply", "failed", "updates"}),
            note=f"{asked['failed']} failed; {asked['updates']} updates asked, "
            f"{len(model.refused)} refused; {read.kills} kills",
        ),
        Row(
            name,
            "compactions",
            memory["compactions"],
            note=f"{memory['failures']} failures, conflicts {memory['conflicts']}; "
            f"{memory['saved_tokens']:,} tokens saved of {memory['whole_tokens']:,}, "
            f"{memory['tokens']:,} spent",
        ),
    ]
    if explain:
        told = {
            "missed": read.tally.missed,
            "stale": read.tally.stale,
            "leaked": read.tally.leaked,
            "wrong": found.wrong,
            "lost": found.lost,
            "doubled": found.doubled,
            "refused": model.refused,
        }
        rows += [Row("", f"  {what}", 0, note=each) for what, all_ in told.items() for each in all_]
    return rows


def _says(lines: Sequence[str], words: Sequence[str]) -> bool:
    """Whether one of the lines says all of the words, as whole words."""
    return any(all(each(line) for each in map(_finder, words)) for line in lines)


@cache
def _finder(word: str) -> Callable[[str], Any]:
    return re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE).search
