"""What work behind the reply may spend in a day."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from backend.database.base import now
from backend.enrichment.models import EnrichmentRun
from backend.enrichment.reader import DAY, seconds_to_wait, spent_today
from backend.generation.registry import ModelRegistry
from tests.fakes.openai_server import MODEL_ID
from tests.integration.enrichment.storytelling import (
    Storyteller,
    jobs_of,
    set_chat,
    summary_of,
)
from tests.integration.turns.seeding import identity_of, seed
from tests.support.server import Account, Running, running
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


async def spend(server: Running, ada: Account, chat: str, *spent: tuple[datetime, int]) -> UUID:
    """Runs that took so many tokens at such times; whose they are."""
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


async def test_what_was_spent_counts_for_a_day_and_for_one_user(
    server: Running, ada: Account, chat: str
) -> None:
    at = now()
    user_id = await spend(
        server, ada, chat, (at - 25 * HOUR, 1_000), (at - 23 * HOUR, 300), (at - HOUR, 40)
    )
    async with server.parts.database.read() as session:
        assert await spent_today(session, user_id, at) == 340
        assert await spent_today(session, user_id, at + 2 * HOUR) == 40
        assert await spent_today(session, UUID(int=1), at) == 0


async def test_it_is_over_when_enough_of_it_is_a_day_old(
    server: Running, ada: Account, chat: str
) -> None:
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


async def test_a_summary_waits_until_there_is_something_to_spend_again(
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
            await until(lambda: summary_of(ada, chat))
            await seed(server, ada, chat, ["It rains, and it rains, and it rains."] * 60)
            events = await ada.turn(chat, text="Well?")
            assert events[-1].name == "turn.completed"

            async def waits() -> bool:
                jobs = await jobs_of(server, chat)
                return bool(jobs) and jobs[0].run_after > now() + 23 * HOUR

            await until(waits)
            assert len(teller.summed_up) == 1
            job = (await jobs_of(server, chat))[0]
            assert (job.state, job.attempts) == ("queued", 0)
