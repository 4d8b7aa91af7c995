"""A model server with one slot: priorities of requests, and the waits that users see."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from backend.enrichment import pipeline
from backend.enrichment.outbox import TURN as TURN_JOB
from backend.jobs.models import Job
from tests.fakes.one_slot_server import OneSlotServer, is_background, never_ending
from tests.fakes.openai_server import DONE, MODEL, MODEL_ID, chunk, reply, stream
from tests.fakes.scripted_server import Gate
from tests.integration.turns.following import follow, turn_under_way
from tests.integration.turns.seeding import seed
from tests.support.chronicling import last_run, opt_in
from tests.support.models import held_back
from tests.support.server import Account, Event, Running, ok, problem, running, text_of
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry interrupted work at once instead of after seconds."""
    monkeypatch.setattr(pipeline, "_RETRY_SECONDS", 0.1)


@pytest.fixture(params=["at once", "between chunks"])
async def model(request: pytest.FixtureRequest) -> AsyncGenerator[OneSlotServer]:
    async with OneSlotServer(request.param) as model:
        yield model


@pytest.fixture
async def one_slot() -> AsyncGenerator[OneSlotServer]:
    async with OneSlotServer() as model:
        yield model


@pytest.fixture
async def server(
    sqlite_url: str, tmp_path: Path, one_slot: OneSlotServer
) -> AsyncGenerator[Running]:
    async with running(sqlite_url, tmp_path, **settings(one_slot)) as server:
        yield server


@pytest.fixture
async def chat(ada: Account) -> str:
    return str((await ada.new_chat())["id"])


def settings(model: OneSlotServer, **more: Any) -> dict[str, Any]:
    return {
        "openai_base_url": model.url,
        "openai_models": (MODEL,),
        "openai_server": "llama-cpp",
        "default_model": MODEL_ID,
        "registration": "open",
        **more,
    }


@contextlib.asynccontextmanager
async def playing(
    url: str, folder: Path, model: OneSlotServer, **more: Any
) -> AsyncGenerator[tuple[Running, Account, str]]:
    """Yield a server with this model, an account and a chat."""
    async with (
        running(url, folder, **settings(model, **more)) as server,
        server.account("Ada") as ada,
    ):
        yield server, ada, (await ada.new_chat())["id"]


async def is_asked(model: OneSlotServer, *, turns: int = 0, background: int = 0) -> None:
    """Wait until this many requests of turns and background work have begun."""

    async def are_begun() -> bool:
        beside = sum(map(is_background, model.begun))
        return beside >= background and len(model.begun) - beside >= turns

    await until(are_begun)


async def occupy(model: OneSlotServer, ada: Account, chat: str) -> None:
    """Take a turn and wait until the agent has sent a request about it."""
    await opt_in(ada, chat)
    model.background.append(never_ending())
    await ada.turn(chat, text="Is anyone there?")
    await is_asked(model, background=1)


async def jobs(server: Running) -> list[Job]:
    async with server.parts.database.read() as session:
        rows = await session.scalars(select(Job).where(Job.kind.like("enrichment.%")))
        return list(rows)


def occupations(events: list[Event]) -> list[str | None]:
    return [event.data["work"] for event in events if event.name == "model.busy"]


@pytest.mark.every_database
async def test_a_turn_interrupts_the_agent_which_resumes(
    database_url: str, tmp_path: Path, one_slot: OneSlotServer
) -> None:
    async with playing(database_url, tmp_path, one_slot) as (server, ada, chat):
        await occupy(one_slot, ada, chat)
        events = await ada.turn(chat, text="Hello?")
        assert text_of(events) == "The rain has stopped."
        assert occupations(events) == ["chronicle", None]
        (dropped,) = one_slot.dropped
        assert is_background(dropped)
        run = await last_run(ada, chat)
        assert (run["state"], run["kind"]) == ("done", "turn")
        assert await jobs(server) == []
        assert one_slot.most == 1


async def test_a_slow_server_is_free_at_its_next_token(sqlite_url: str, tmp_path: Path) -> None:
    endless = stream(*[chunk(content="{")] * 2_000)
    async with (
        OneSlotServer("between chunks", seconds=0.05) as model,
        playing(sqlite_url, tmp_path, model) as (_, ada, chat),
    ):
        await opt_in(ada, chat)
        model.background.append(endless)
        await ada.turn(chat, text="Is anyone there?")
        await is_asked(model, background=1)
        events = await ada.turn(chat, text="Hello?")
        assert text_of(events) == "The rain has stopped."
        assert list(map(is_background, model.dropped)) == [True]


async def test_an_interruption_is_no_failed_attempt(
    ada: Account,
    chat: str,
    server: Running,
    one_slot: OneSlotServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline, "_RETRY_SECONDS", 60.0)
    await occupy(one_slot, ada, chat)
    await ada.turn(chat, text="Hello?")

    async def is_put_off() -> bool:
        return [job.state for job in await jobs(server)] == ["queued"]

    await until(is_put_off)
    (job,) = await jobs(server)
    assert (job.attempts, job.error) == (0, None)
    overview = await ada.get(f"/chats/{chat}/enrichment")
    assert overview["items"] == []


async def test_interrupted_runs_are_counted(
    ada: Account, chat: str, one_slot: OneSlotServer
) -> None:
    matters = reply('{"why": "A door.", "significant": true, "kinds": ["event"]}')
    await opt_in(ada, chat)
    one_slot.background += [matters, never_ending()]
    await ada.turn(chat, text="Is anyone there?")
    await is_asked(one_slot, background=2)
    await ada.turn(chat, text="Hello?")
    await last_run(ada, chat)
    overview = await ada.get(f"/chats/{chat}/enrichment")
    cut = overview["items"][-1]
    assert (cut["state"], cut["error"]) == ("failed", "interrupted-by-turn")
    assert (cut["calls"], cut["prompt_tokens"]) == (1, 12)


async def test_a_turn_interrupts_a_summary(
    ada: Account, chat: str, server: Running, one_slot: OneSlotServer
) -> None:
    path = f"/chats/{chat}/settings"
    body = {"summary": {"enabled": True}, "budgets": {"history": 400}}
    await ada.patch(path, body)
    one_slot.background.append(never_ending())
    line = "The clock in the hall went on and on, and nobody minded it any more."
    await seed(server, ada, chat, [f"{number}: {line}" for number in range(30)])
    await ada.turn(chat, text="Is anyone there?")
    await is_asked(one_slot, background=1)
    events = await ada.turn(chat, text="Hello?")
    assert occupations(events) == ["summary", None]
    assert list(map(is_background, one_slot.dropped)) == [True]

    async def is_summed_up() -> bool:
        answer = await ada.ask("GET", f"/chats/{chat}/summary")
        return answer.status_code == 200

    await until(is_summed_up)
    assert one_slot.most == 1


async def test_two_users_take_turns(sqlite_url: str, tmp_path: Path, model: OneSlotServer) -> None:
    gate = Gate()
    model.script(held_back(gate), reply("Ben's."))
    async with (
        playing(sqlite_url, tmp_path, model) as (server, ada, chat),
        server.account("Ben") as ben,
    ):
        other = (await ben.new_chat())["id"]
        async with (
            turn_under_way(ada, chat, text="Tell me.") as (_, first),
            turn_under_way(ben, other, text="And me.") as (second_id, second),
        ):
            while (event := await anext(second)).name != "model.busy":
                pass
            assert event.data == {"work": "turn"}
            await is_asked(model, turns=1)
            view = await ben.get(f"/turns/{second_id}")
            assert view["state"] == "running"
            gate.opened.set()
            assert text_of([event async for event in first]) == "Once upon a time."
            rest = [event async for event in second]
        assert text_of(rest) == "Ben's."
        assert len(model.begun) == 2
        assert occupations(rest) == [None]
        assert model.most == 1


async def test_a_waiting_turn_can_be_stopped(
    ada: Account, chat: str, server: Running, one_slot: OneSlotServer
) -> None:
    gate = Gate()
    one_slot.script(held_back(gate))
    async with server.account("Ben") as ben:
        other = (await ben.new_chat())["id"]
        async with turn_under_way(ada, chat, text="Tell me.") as (_, first):
            async with turn_under_way(ben, other, text="And me.") as (turn_id, second):
                while (await anext(second)).name != "model.busy":
                    pass
                await ben.post(f"/turns/{turn_id}/stop", status=202)
                rest = [event async for event in second]
            assert rest[-1].data["state"] == "stopped"
            gate.opened.set()
            assert [event async for event in first][-1].data["state"] == "completed"
        assert len(one_slot.begun) == 1
        items = (await ben.get("/me/usage"))["items"]
        assert [each["used"] for each in items if each["quota"] == "tokens_per_day"] == [0]


async def test_switching_the_chronicle_off_ends_its_job(
    ada: Account, chat: str, server: Running, one_slot: OneSlotServer
) -> None:
    await occupy(one_slot, ada, chat)
    path = f"/chats/{chat}/settings"
    await ada.patch(path, {"chronicle_enabled": False})
    await one_slot.hung_up.wait()
    (job,) = await jobs(server)
    assert (job.state, job.error) == ("done", "chronicle-not-enabled")
    assert sum(map(is_background, one_slot.requests)) == 1


async def test_stopped_work_is_cancelled(
    ada: Account, chat: str, server: Running, one_slot: OneSlotServer
) -> None:
    async with server.account("Ben") as ben:
        await occupy(one_slot, ada, chat)
        running_jobs = await ada.get("/jobs", state="running")
        (job,) = (each for each in running_jobs["items"] if each["kind"] == TURN_JOB)
        problem(await ben.ask("POST", f"/jobs/{job['id']}/stop"), 404, "job-not-found")
        stopped = await ada.post(f"/jobs/{job['id']}/stop", status=202)
        assert (stopped["state"], stopped["error"]) == ("done", "stopped")
        await one_slot.hung_up.wait()
        assert one_slot.dropped == [each for each in one_slot.requests if is_background(each)]


@pytest.mark.parametrize("more", [{"openai_server": "vllm"}, {"openai_concurrency": 0}])
async def test_a_server_without_a_limit_is_shared(
    sqlite_url: str, tmp_path: Path, more: dict[str, Any]
) -> None:
    async with (
        OneSlotServer(slots=2) as model,
        playing(sqlite_url, tmp_path, model, **more) as (_, ada, chat),
    ):
        await occupy(model, ada, chat)
        events = await ada.turn(chat, text="Hello?")
        assert occupations(events) == []
        assert model.dropped == []
        assert model.most == 2
        assert all(request.path != "/slots" for request in model.requests)


async def test_the_number_of_slots_is_learned(sqlite_url: str, tmp_path: Path) -> None:
    async with (
        OneSlotServer(slots=2) as model,
        playing(sqlite_url, tmp_path, model) as (server, ada, chat),
    ):
        await opt_in(ada, chat)
        await ada.turn(chat, text="Is anyone there?")

        async def is_learned() -> bool:
            limit = server.parts.user_models.shared.find_limit(MODEL_ID)
            return limit is not None and limit.concurrency == 2

        await until(is_learned)
        await last_run(ada, chat)
        model.background.append(never_ending())
        await ada.turn(chat, text="Still there?")
        await is_asked(model, background=2)
        await ada.turn(chat, text="Hello?")
        assert model.dropped == []
        asked = [request.path for request in model.requests]
        assert asked.count("/slots") == 1


async def test_suggestions_wait_for_another_user_s_turn(
    ada: Account, chat: str, server: Running, one_slot: OneSlotServer
) -> None:
    lines = '{"lines": ["I go.", "I stay."]}'
    one_slot.background += [never_ending(), reply(lines)]
    async with server.account("Ben") as ben:
        asked = asyncio.create_task(
            ada.ask("POST", f"/chats/{chat}/suggestions", json={"count": 2})
        )
        await is_asked(one_slot, background=1)
        events = await ben.turn((await ben.new_chat())["id"], text="Hello?")
        assert occupations(events) == ["other", None]
        assert ok(await asked) == {"items": ["I go.", "I stay."], "dropped": 0}
        assert list(map(is_background, one_slot.begun)) == [True, False, True]


async def test_outdated_suggestions_are_cancelled(
    ada: Account, chat: str, one_slot: OneSlotServer
) -> None:
    one_slot.background.append(never_ending())
    asked = asyncio.create_task(ada.ask("POST", f"/chats/{chat}/suggestions"))
    await is_asked(one_slot, background=1)
    await ada.turn(chat, text="Hello?")
    problem(await asked, 409, "chat-changed")
    assert sum(map(is_background, one_slot.begun)) == 1


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ('{"lines": ["I go.", "{\\"type\\": \\"array\\"}", "", "I stay."]}', ["I go.", "I stay."]),
        ('{"lines": ["I go.\\n\\nI stay.", "I wait."]}', ["I wait."]),
    ],
)
async def test_invalid_suggestions_are_dropped_and_counted(
    ada: Account, chat: str, one_slot: OneSlotServer, said: str, shown: list[str]
) -> None:
    one_slot.background.append(reply(said))
    found = await ada.post(f"/chats/{chat}/suggestions", {"count": 4})
    assert found["items"] == shown
    assert found["dropped"] == said.count('", "') + 1 - len(shown)


@pytest.mark.parametrize(
    ("said", "slug", "words"),
    [
        ('{"lines": ["[\\"I go.\\"]"]}', "model-malformed-answer", "wrote JSON"),
        ('{"lines": ["", "\\n"]}', "model-empty-reply", "suggested nothing"),
    ],
)
async def test_no_valid_suggestion_is_an_error_with_advice(
    ada: Account, chat: str, one_slot: OneSlotServer, said: str, slug: str, words: str
) -> None:
    one_slot.background.append(reply(said))
    body = problem(await ada.ask("POST", f"/chats/{chat}/suggestions"), 502, slug)
    assert words in body["detail"]
    assert "task_models.suggestions" in body["detail"]


async def test_background_work_has_an_output_limit(
    ada: Account, chat: str, one_slot: OneSlotServer
) -> None:
    await opt_in(ada, chat)
    await ada.turn(chat, text="Is anyone there?")
    await last_run(ada, chat)
    limits = {is_background(each): each.body["max_tokens"] for each in one_slot.begun}
    assert limits == {False: 8_192, True: 1_024 + 4_096}


async def test_a_needed_summary_uses_the_slot_of_its_turn(
    ada: Account, server: Running, one_slot: OneSlotServer
) -> None:
    tick = "The clock in the hall went on and on, and nobody minded it, for it rained. " * 3
    async with server.account("Ben") as ben:
        body = {"name": "Seagate", "settings": {"tools": False}}
        campaign = await ada.post("/campaigns", body, 201)
        chat = (await ada.new_chat(campaign_id=campaign["id"]))["id"]
        other = (await ben.new_chat())["id"]
        path = f"/chats/{chat}/settings"
        await ada.patch(path, {"budgets": {"history": 300}})
        gate = Gate()
        one_slot.background.append(stream(chunk(content="A summary."), gate, chunk("stop"), DONE))
        turns = asyncio.create_task(_tell(ada, chat, [f"Round {n}. {tick}" for n in range(8)]))
        await is_asked(one_slot, background=1)
        async with turn_under_way(ben, other, text="And me?") as (_, events):
            while (event := await anext(events)).name != "model.busy":
                pass
            assert event.data == {"work": "turn"}
            gate.opened.set()
            assert text_of([event async for event in events]) == "The rain has stopped."
        assert await turns == ["The rain has stopped."] * 8
        assert one_slot.dropped == []
        assert one_slot.most == 1


async def _tell(account: Account, chat: str, lines: list[str]) -> list[str]:
    """Take turns one after the other; return the replies."""
    return [text_of(await account.turn(chat, text=line)) for line in lines]


@pytest.mark.postgres
async def test_two_processes_share_the_slot(
    postgres_url: str, tmp_path: Path, one_slot: OneSlotServer
) -> None:
    async with (
        playing(postgres_url, tmp_path, one_slot, job_workers=0) as (_, ada, chat),
        running(postgres_url, tmp_path / "other", **settings(one_slot)) as there,
    ):
        # The other process does the jobs.
        await occupy(one_slot, ada, chat)
        gate = Gate()
        one_slot.script(held_back(gate), reply("Mine."))
        second_chat = (await ada.new_chat())["id"]
        async with (
            there.signed_in("Ada") as same,
            turn_under_way(ada, chat, text="Hello?") as (_, first),
            turn_under_way(same, second_chat, text="And?") as (turn_id, second),
        ):
            while (event := await anext(second)).data != {"work": "turn"}:
                pass
            assert event.name == "model.busy"

            async def is_told_elsewhere() -> bool:
                view = await ada.get(f"/turns/{turn_id}")
                return bool(view["waits_for"] == "turn")

            await until(is_told_elsewhere)
            followed = asyncio.create_task(follow(ada.client, turn_id))
            gate.opened.set()
            assert text_of([event async for event in first]) == "Once upon a time."
            assert text_of([event async for event in second]) == "Mine."
            heard = await followed
        assert text_of(heard) == "Mine."
        assert "turn" in occupations(heard)
        assert list(map(is_background, one_slot.dropped)) == [True]
        assert one_slot.most == 1
