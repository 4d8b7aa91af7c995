"""Costs and savings of a campaign's memory: `GET /campaigns/{id}/memory`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select

from backend.campaigns.models import Campaign, CampaignProposal
from backend.chats.models import Chat
from backend.database.base import new_id, now
from backend.enrichment.models import EnrichmentRun
from backend.generation.catalogue import ListedModel, Price
from backend.generation.registry import ModelRegistry
from backend.jobs import running as running_jobs
from backend.jobs.models import Job
from backend.turns.models import Turn
from tests.fakes.openai_server import MODEL_ID, OpenAIServer, error, reply, usage
from tests.fakes.scripted_server import Answer, Request
from tests.integration.campaigns.seagate import Table, new_session
from tests.support.memory import working
from tests.support.server import Account, Running, problem, running
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

LINE = "The tide turns under the pier, and somebody laughs where nobody should be. " * 4


class Teller(OpenAIServer):
    """Answers turns. Other requests fail `failures` times, then return a summary."""

    failures = 0

    def usual(self, request: Request) -> Answer:
        if not request.path.endswith("/completions"):
            return super().usual(request)
        messages: list[Any] = request.body["messages"]
        first = str(messages[0]["content"])
        if not first.startswith("Task: "):
            return reply(LINE)
        if self.failures:
            self.failures -= 1
            return error(503)
        return reply("They waited for the tide.", used=usage(90, 10))


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_jobs, "FIRST_DELAY_SECONDS", 0.1)


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[Teller]:
    async with Teller() as model:
        yield model


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: Teller
) -> AsyncGenerator[Running]:
    told = {MODEL_ID: ListedModel(name=MODEL_ID, price=Price(input=2, output=8))}
    registry = ModelRegistry(
        demo_tokens_per_second=0, openai=model.config(), default=MODEL_ID, figures=told
    )
    folder = tmp_path_factory.mktemp("data")
    async with running(shared_url, folder, registry=registry) as server, working(server.parts):
        yield server


async def wait_for_jobs(server: Running) -> None:
    async def is_done() -> bool:
        query = select(func.count()).where(Job.kind.like("enrichment.%"), Job.state != "dead")
        async with server.parts.database.read() as session:
            return not await session.scalar(query)

    await until(is_done)


async def test_a_long_campaign_saves_tokens_with_its_summary(
    server: Running, ada: Account, table: Table, model: Teller
) -> None:
    await table.change("", settings={"memory_interval": 1})
    chat = await new_session(table, first_mes="")
    assert (await table.get("/memory"))["replies"] == 0
    for place in range(9):
        await ada.turn(chat, text=f"{place}. {LINE}")
        await wait_for_jobs(server)

    seen = await table.get("/memory")
    prompts = seen["prompts"]
    assert seen["replies"] == len(prompts) == 9
    assert [each["whole_tokens"] for each in prompts] == sorted(
        each["whole_tokens"] for each in prompts
    )
    # At first there is only the state block; later the summary replaces most lines.
    assert prompts[0]["whole_tokens"] == 0 < prompts[0]["sent_tokens"]
    assert prompts[-1]["sent_tokens"] < prompts[-1]["whole_tokens"]
    assert seen["whole_tokens"] == sum(each["whole_tokens"] for each in prompts)
    assert seen["saved_tokens"] == seen["whole_tokens"] - seen["sent_tokens"]
    [work] = seen["work"]
    assert (work["kind"], work["failures"]) == ("summary", 0)
    assert work["calls"] == work["runs"] > 1
    assert work["prompt_tokens"] == 90 * work["runs"]
    assert 0 < work["seconds_p50"] <= work["seconds_p95"] < 30
    assert seen["models"] == [
        {
            "model": MODEL_ID,
            "calls": work["calls"],
            "prompt_tokens": work["prompt_tokens"],
            "completion_tokens": work["completion_tokens"],
            "cost": pytest.approx((2 * 90 + 8 * 10) / 1e6 * work["runs"]),
        }
    ]
    assert seen["cost"] == seen["models"][0]["cost"]
    [today] = seen["days"]
    assert today["runs"] == work["runs"]
    assert seen["tokens"] == 100 * work["runs"]


async def test_failures_are_shown_with_the_job_that_retries(
    server: Running, ada: Account, table: Table, model: Teller
) -> None:
    chat = await new_session(table, first_mes="")
    model.failures = 10**6
    await table.change("", settings={"memory_interval": 1})
    for _ in range(5):
        await ada.turn(chat, text=LINE)

    async def has_failed() -> Any:
        return (await table.get("/memory"))["problems"]

    [problem_, *_] = await until(has_failed)
    assert (problem_["kind"], problem_["error"]) == ("summary", "model-overloaded")
    assert problem_["chat_id"] == chat
    assert problem_["job"]["state"] in {"queued", "running"}
    model.failures = 0
    await wait_for_jobs(server)
    seen = await table.get("/memory")
    assert seen["failures"] >= 1
    assert {each["job"] for each in seen["problems"]} == {None}


async def test_figures_are_of_one_campaign(server: Running, ada: Account, table: Table) -> None:
    chat, campaign = UUID(await new_session(table, first_mes="")), UUID(table.campaign["id"])
    async with server.parts.database.write() as session:
        owner = (await session.get_one(Chat, chat)).user_id
        at = now()

        def run(number: int, campaign_id: UUID | None, **fields: Any) -> EnrichmentRun:
            values = {"kind": "compaction", "state": "done", "calls": 2, "created_at": at}
            return EnrichmentRun(
                user_id=owner,
                chat_id=chat,
                campaign_id=campaign_id,
                model="m",
                from_position=0,
                to_position=1,
                prompt_tokens=10,
                completion_tokens=1,
                delay_ms=number * 1000,
                **(values | fields),
            )

        session.add_all(run(number, campaign) for number in range(1, 101))
        session.add(run(9_000, None))
        session.add(run(9_000, campaign, state="failed", error="model-timeout"))
        session.add(run(1, campaign, kind="scene", created_at=at - timedelta(days=40)))
    seen = await table.get("/memory")
    compaction, scene = seen["work"]
    assert (compaction["seconds_p50"], compaction["seconds_p95"]) == (50, 95)
    assert (compaction["runs"], compaction["failures"]) == (101, 1)
    assert (scene["seconds_p50"], scene["seconds_p95"]) == (1, 1)
    assert (seen["compactions"], seen["failures"], seen["calls"]) == (100, 1, 204)
    days = [datetime.fromisoformat(each["day"]).date() for each in seen["days"]]
    assert days == [(at - timedelta(days=40)).date(), at.date()]


async def test_conflicts_are_counted_by_state(server: Running, table: Table) -> None:
    campaign = UUID(table.campaign["id"])
    async with server.parts.database.write() as session:
        owner = (await session.get_one(Campaign, campaign)).user_id
        for state in ("open", "open", "refused"):
            session.add(
                CampaignProposal(
                    user_id=owner,
                    campaign_id=campaign,
                    item_id=new_id(),
                    kind="entity",
                    reason="locked",
                    state=state,
                    sealed_proposal=b"",
                )
            )
    assert (await table.get("/memory"))["conflicts"] == {"open": 2, "accepted": 0, "refused": 1}


async def test_plain_chats_store_no_figures(server: Running, ada: Account, table: Table) -> None:
    chat = await ada.new_chat()
    await ada.turn(chat["id"], text="Hello.")
    async with server.parts.database.read() as session:
        query = select(Turn.path_tokens).where(Turn.chat_id == UUID(chat["id"]))
        assert list(await session.scalars(query)) == [None]
    path = f"/campaigns/{new_id()}/memory"
    problem(await ada.ask("GET", path), 404, "campaign-not-found")


async def test_runs_outlive_their_campaign(server: Running, ada: Account, table: Table) -> None:
    chat = UUID(await new_session(table, first_mes=""))
    async with server.parts.database.write() as session:
        owner = (await session.get_one(Chat, chat)).user_id
        run = EnrichmentRun(
            user_id=owner,
            chat_id=chat,
            campaign_id=UUID(table.campaign["id"]),
            kind="scene",
            state="done",
            model="m",
            from_position=0,
            to_position=1,
        )
        session.add(run)
    await table.delete()

    async def is_apart() -> bool:
        async with server.parts.database.read() as session:
            return (await session.get_one(EnrichmentRun, run.id)).campaign_id is None

    await until(is_apart)
