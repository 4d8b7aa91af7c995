"""Limits of background work: the tokens of a day, and the window of its model."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from backend.database.base import now
from backend.enrichment.models import EnrichmentRun
from backend.enrichment.reader import DAY, seconds_to_wait, spent_today
from backend.generation.registry import ModelRegistry
from tests.fakes.openai_server import MODEL, MODEL_ID, reply, usage
from tests.fakes.scripted_server import Answer, Request
from tests.fakes.window_server import WindowServer
from tests.integration.enrichment.storytelling import (
    Storyteller,
    at_rest,
    is_summing_up,
    list_numbers,
    load_jobs,
    load_runs,
    read_summary,
)
from tests.integration.turns.seeding import identity_of, seed
from tests.support.memory import set_chat
from tests.support.server import Account, Running, running
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


async def spend(server: Running, ada: Account, chat: str, *spent: tuple[datetime, int]) -> UUID:
    """Add runs with these times and tokens; return the id of their user."""
    user_id = (await identity_of(server, ada)).user_id
    async with server.parts.database.write() as session:
        session.add_all(
            EnrichmentRun(
                user_id=user_id,
                chat_id=UUID(chat),
                kind="summary",
                state="done",
                model="demo",
                from_position=0,
                to_position=0,
                prompt_tokens=tokens - 1,
                completion_tokens=1,
                created_at=at,
            )
            for at, tokens in spent
        )
    return user_id


async def test_spent_tokens_count_for_one_day(server: Running, ada: Account, chat: str) -> None:
    at = now()
    user_id = await spend(
        server, ada, chat, (at - 25 * HOUR, 1_000), (at - 23 * HOUR, 300), (at - HOUR, 40)
    )
    async with server.parts.database.read() as session:
        assert await spent_today(session, user_id, at) == 340
        assert await spent_today(session, user_id, at + 2 * HOUR) == 40
        assert await spent_today(session, UUID(int=1), at) == 0


async def test_the_wait_ends_a_day_later(server: Running, ada: Account, chat: str) -> None:
    at = now()
    user_id = await spend(
        server, ada, chat, (at - 20 * HOUR, 60), (at - 10 * HOUR, 60), (at - HOUR, 60)
    )
    async with server.parts.database.read() as session:
        for allowed, hours in ((200, 0), (180, 4), (120, 14), (100, 14), (60, 23), (1, 23)):
            wait = await seconds_to_wait(session, user_id, at, allowed=allowed)
            assert wait == pytest.approx(hours * 3600), allowed
            if wait:
                after = at + timedelta(seconds=wait)
                assert await spent_today(session, user_id, after) < allowed
        assert await seconds_to_wait(session, user_id, at, allowed=0) == DAY.total_seconds()
        assert await seconds_to_wait(session, UUID(int=1), at, allowed=1) == 0


async def test_a_summary_waits_for_tokens_of_the_next_day(
    database_url: str, tmp_path: Path
) -> None:
    async with Storyteller() as teller:
        registry = ModelRegistry(demo_tokens_per_second=0, openai=teller.config(), default=MODEL_ID)
        async with (
            running(
                database_url, tmp_path / "data", registry=registry, enrichment_tokens_per_day=100
            ) as server,
            server.account("ada") as ada,
        ):
            chat = str((await ada.new_chat())["id"])
            await seed(server, ada, chat, ["It rains, and it rains, and it rains."] * 60)
            await set_chat(ada, chat, budgets={"history": 300}, summary={"enabled": True})
            await ada.turn(chat, text="Well?")
            await until(lambda: read_summary(ada, chat))
            await seed(server, ada, chat, ["It rains, and it rains, and it rains."] * 60)
            events = await ada.turn(chat, text="Well?")
            assert events[-1].name == "turn.completed"

            async def waits() -> bool:
                jobs = await load_jobs(server, chat)
                return bool(jobs) and jobs[0].run_after > now() + 23 * HOUR

            await until(waits)
            assert len(teller.summed_up) == 1
            job = (await load_jobs(server, chat))[0]
            assert (job.state, job.attempts) == ("queued", 0)


READER = "reader"
LINE = "The clock in the hall went on and on, and nobody minded it any more, for it rained. " * 6


class Reader(WindowServer):
    """Answers turns of any length; the model of background work has a window."""

    def count(self, body: Any) -> int:
        return super().count(body) if body["model"] == READER else 1

    def accept(self, body: Any, needed: int) -> Answer:
        if body["model"] != READER:
            return super().accept(body, needed)
        if "response_format" in body:
            decision = '{"why": "Nothing of note.", "significant": false, "kinds": []}'
            return reply(decision, used=usage(needed, 10))
        request = Request("POST", "", {}, {}, body)
        return reply(f"Told up to {list_numbers(request)[-1]}.", used=usage(needed, 10))

    @property
    def read(self) -> list[Request]:
        """Return the requests of background work that fitted."""
        asked = [each for each in self.requests if (each.body or {}).get("model") == READER]
        return [each for each in asked if self.count(each.body) <= self.window]


@asynccontextmanager
async def talekeeper(
    url: str, folder: Path, vendor: Reader
) -> AsyncGenerator[tuple[Running, Account, str]]:
    """Yield a server, an account and a chat that the other model reads."""
    config = vendor.config(models=(MODEL, READER), context_window=32_768)
    registry = ModelRegistry(demo_tokens_per_second=0, openai=config, default=MODEL_ID)
    async with running(url, folder, registry=registry) as server, server.account("ada") as ada:
        character = await ada.new_character()
        chat = str((await ada.new_chat(character_ids=[character["id"]]))["id"])
        models = {"task_models": dict.fromkeys(("summary", "agent", "triage"), f"openai/{READER}")}
        await set_chat(ada, chat, **models)
        yield server, ada, chat


async def window_of_reader(ada: Account) -> int:
    models = (await ada.get("/models"))["items"]
    return int(next(each["context_window"] for each in models if each["id"] == f"openai/{READER}"))


async def test_a_refused_summary_is_written_in_steps(sqlite_url: str, tmp_path: Path) -> None:
    async with (
        Reader(3_000) as vendor,
        talekeeper(sqlite_url, tmp_path, vendor) as (server, ada, chat),
    ):
        await seed(server, ada, chat, [f"{number}: {LINE}" for number in range(120)])
        summary = {"enabled": True, "interval": 4, "words": 60}
        await set_chat(ada, chat, budgets={"history": 1_000}, summary=summary)
        await ada.turn(chat, text="Well?")
        await at_rest(server, chat)
        found = await read_summary(ada, chat)
        assert found["text"] == f"Told up to {found['through_position'] + 1}."
        assert vendor.refusals == 1
        assert await window_of_reader(ada) == 3_000
        # No line was skipped, and no run failed.
        told = [
            number for each in vendor.read if is_summing_up(each) for number in list_numbers(each)
        ]
        assert told == list(range(1, found["through_position"] + 2))
        assert {run.state for run in await load_runs(server, chat)} == {"done"}


async def test_the_agent_continues_after_a_refusal(sqlite_url: str, tmp_path: Path) -> None:
    async with (
        Reader(2_500) as vendor,
        talekeeper(sqlite_url, tmp_path, vendor) as (server, ada, chat),
    ):
        await set_chat(ada, chat, chronicle_enabled=True)
        await seed(server, ada, chat, [f"{number}: {LINE}" for number in range(24)])
        await ada.turn(chat, text="Well?")

        async def has_read() -> bool:
            return any(run.to_position == 26 for run in await load_runs(server, chat))

        await until(has_read)
        runs = await load_runs(server, chat)
        assert {(run.kind, run.state) for run in runs} == {("turn", "done")}
        assert vendor.refusals in {1, 2}


async def test_work_that_cannot_read_less_fails(sqlite_url: str, tmp_path: Path) -> None:
    class Tiny(Reader):
        def count(self, body: Any) -> int:
            return 9_000 if body["model"] == READER else 1

    async with Tiny(300) as vendor, talekeeper(sqlite_url, tmp_path, vendor) as (server, ada, chat):
        await seed(server, ada, chat, [f"{number}: {LINE}" for number in range(60)])
        summary = {"enabled": True, "interval": 4, "words": 60}
        await set_chat(ada, chat, budgets={"history": 1_000}, summary=summary)
        await ada.turn(chat, text="Well?")
        await at_rest(server, chat)
        (run,) = await load_runs(server, chat)
        assert (run.state, run.error) == ("failed", "model-context-overflow")
        assert vendor.refusals < 10
