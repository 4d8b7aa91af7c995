"""Usage and cost: `GET /chats/{id}/usage` and `GET /usage/month`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from backend.chats.models import Chat
from backend.database.base import new_id, now
from backend.enrichment.models import EnrichmentRun
from backend.generation.catalogue import ListedModel, Price
from backend.generation.registry import ModelRegistry
from backend.turns.models import Turn
from backend.turns.run import registry as runs
from tests.fakes.openai_server import (
    DONE,
    MODEL_ID,
    OpenAIServer,
    chunk,
    reply,
    stream,
    usage,
    usage_chunk,
)
from tests.fakes.scripted_server import Gate
from tests.support.server import Account, Running, problem, running
from tests.support.shared import vendor as model
from tests.support.waiting import until

__all__ = ["model"]

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: OpenAIServer
) -> AsyncGenerator[Running]:
    told = {MODEL_ID: ListedModel(name=MODEL_ID, price=Price(input=2, output=8, cached_input=0.5))}
    registry = ModelRegistry(
        demo_tokens_per_second=0, openai=model.config(), default=MODEL_ID, figures=told
    )
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        # When progress is stored, a turn whose chat is gone stops before its usage is known.
        patch.setattr(runs, "STORE_SECONDS", 3600)
        async with running(shared_url, folder, registry=registry) as server:
            yield server


async def read_usage(ada: Account, chat: str, **query: Any) -> dict[str, Any]:
    return await ada.get(f"/chats/{chat}/usage", **query)


async def test_cached_tokens_have_their_own_price_and_models_are_added_up(
    server: Running, ada: Account, model: OpenAIServer
) -> None:
    chat = str((await ada.new_chat())["id"])
    assert await read_usage(ada, chat) == {
        **dict.fromkeys(("turns", "runs", "prompt_tokens", "cached_tokens"), 0),
        **dict.fromkeys(("unreported", "completion_tokens", "thinking_tokens"), 0),
        "cost": None,
        "by_model": [],
    }
    model.script(reply("Yes.", used=usage(1000, 100, cached=600, reasoning=40)))
    first = (await ada.turn(chat, text="Is it so?"))[0].data["reply_id"]
    model.script(reply("No.", used=usage(1200, 50)))
    await ada.turn(chat, text="Still?")
    async with server.parts.database.write() as session:
        run = EnrichmentRun(
            user_id=(await session.get_one(Chat, UUID(chat))).user_id,
            chat_id=UUID(chat),
            kind="summary",
            state="done",
            model="gone/long-ago",
            from_position=0,
            to_position=1,
            calls=2,
            prompt_tokens=90,
            completion_tokens=9,
            triage_model="gone/small",
            triage_prompt_tokens=20,
            triage_completion_tokens=2,
        )
        session.add(run)

    seen = await read_usage(ada, chat)

    gone, small, known = seen["by_model"]
    assert (gone["model"], gone["runs"], gone["turns"]) == ("gone/long-ago", 1, 0)
    assert (gone["prompt_tokens"], gone["completion_tokens"]) == (70, 7)
    assert (small["model"], small["runs"], small["prompt_tokens"]) == ("gone/small", 0, 20)
    assert (gone["cost"], small["cost"]) == (None, None)
    assert (known["model"], known["runs"], known["turns"]) == (MODEL_ID, 0, 2)
    cost = (2 * (400 + 1200) + 0.5 * 600 + 8 * 150) / 1e6
    assert known["cost"] == {"amount": pytest.approx(cost), "currency": "USD"}
    assert seen["cost"] == known["cost"]
    assert (seen["prompt_tokens"], seen["cached_tokens"]) == (2290, 600)
    assert (seen["completion_tokens"], seen["thinking_tokens"]) == (159, 40)
    one = await read_usage(ada, chat, reply_id=first)
    assert (one["turns"], one["runs"], one["prompt_tokens"]) == (1, 0, 1000)
    assert one["cost"]["amount"] == pytest.approx((2 * 400 + 0.5 * 600 + 8 * 100) / 1e6)


async def test_a_reply_without_usage_is_unreported(ada: Account, model: OpenAIServer) -> None:
    chat = str((await ada.new_chat())["id"])
    model.script(stream(chunk(content="Yes."), chunk("stop"), DONE))
    reply_id = (await ada.turn(chat, text="Is it so?"))[0].data["reply_id"]
    for query in ({}, {"reply_id": reply_id}):
        seen = await read_usage(ada, chat, **query)
        assert (seen["turns"], seen["unreported"], seen["prompt_tokens"]) == (0, 1, 0)
    model.script(reply("No.", used=usage(100, 10)))
    await ada.turn(chat, regenerate_of=reply_id)
    seen = await read_usage(ada, chat)
    assert (seen["turns"], seen["unreported"], seen["prompt_tokens"]) == (1, 1, 100)


async def test_usage_is_private(server: Running, ada: Account) -> None:
    chat = str((await ada.new_chat())["id"])
    async with server.account() as bob:
        path = f"/chats/{chat}/usage"
        problem(await bob.ask("GET", path), 404, "chat-not-found")
        own = str((await bob.new_chat())["id"])
        assert (await read_usage(bob, own, reply_id=str(new_id())))["turns"] == 0


async def test_suggestions_have_costs_but_no_quota(ada: Account, model: OpenAIServer) -> None:
    chat = str((await ada.new_chat())["id"])
    path = f"/chats/{chat}"
    model.script(reply('{"lines": ["I run."]}', used=usage(900, 30)))
    assert (await ada.post(f"{path}/suggestions", {}))["items"] == ["I run."]
    seen = await read_usage(ada, chat)
    assert (seen["turns"], seen["runs"], seen["prompt_tokens"]) == (0, 1, 900)
    assert seen["cost"]["amount"] == pytest.approx((900 * 2 + 30 * 8) / 1_000_000)
    work = await ada.get(f"{path}/enrichment")
    (run,) = work["items"]
    assert (work["tokens_today"], run["kind"], run["can_undo"]) == (0, "suggestions", False)
    undone = await ada.ask("POST", f"/enrichment/runs/{run['id']}/undo")
    problem(undone, 409, "nothing-to-undo")


async def test_suggestions_of_a_deleted_chat_are_paid_for(
    ada: Account, model: OpenAIServer
) -> None:
    chat, gate = str((await ada.new_chat())["id"]), Gate()
    lines = chunk(content='{"lines": ["I run."]}')
    model.script(stream(lines, gate, usage_chunk(usage(900, 30)), DONE))
    before = len(model.requests)
    asked = asyncio.create_task(ada.ask("POST", f"/chats/{chat}/suggestions", json={}))

    async def is_asked() -> bool:
        return len(model.requests) > before

    await until(is_asked)
    await ada.delete(f"/chats/{chat}")
    gate.opened.set()
    problem(await asked, 404, "chat-not-found")
    items = (await ada.get("/me/usage"))["items"]
    assert [each["used"] for each in items if each["quota"] == "tokens_per_day"] == [930]
    (spent,) = (await ada.get("/usage/month"))["by_model"]
    assert (spent["model"], spent["turns"], spent["runs"]) == (MODEL_ID, 0, 1)
    assert (spent["prompt_tokens"], spent["completion_tokens"]) == (900, 30)


async def test_the_month_counts_turns_and_runs_of_one_account_since_its_first_day(
    server: Running, ada: Account, model: OpenAIServer
) -> None:
    chat = str((await ada.new_chat())["id"])
    model.script(reply("Yes.", used=usage(1000, 100)), reply("No.", used=usage(500, 50)))
    await ada.turn(chat, text="Is it so?")
    await ada.turn(chat, text="Still?")
    async with server.parts.database.write() as session:
        old = (await session.scalars(select(Turn).where(Turn.chat_id == UUID(chat)))).first()
        assert old is not None
        owner, old.created_at = old.user_id, datetime(2020, 1, 31, 23, 59, tzinfo=UTC)
        session.add(
            EnrichmentRun(
                user_id=owner,
                chat_id=UUID(chat),
                kind="summary",
                state="done",
                model=MODEL_ID,
                from_position=0,
                to_position=1,
                calls=1,
                prompt_tokens=90,
                completion_tokens=9,
            )
        )

    month = await ada.get("/usage/month")

    assert (month["month"], month["since"]) == (f"{now():%Y-%m}", f"{now():%Y-%m}-01T00:00:00Z")
    assert (month["turns"], month["runs"]) == (1, 1)
    (one,) = month["by_model"]
    counted = {(1000 + 90, 100 + 9), (500 + 90, 50 + 9)}  # one of the turns is old
    assert (one["prompt_tokens"], one["completion_tokens"]) in counted
    cost = (2 * one["prompt_tokens"] + 8 * one["completion_tokens"]) / 1e6
    assert month["cost"]["amount"] == pytest.approx(cost)
    await ada.delete(f"/chats/{chat}")
    assert await ada.get("/usage/month") == month
    async with server.account("bob-of-the-month") as bob:
        assert (await bob.get("/usage/month"))["by_model"] == []


async def test_the_month_keeps_the_runs_of_a_deleted_chronicle(
    server: Running, ada: Account
) -> None:
    chat = str((await ada.new_chat())["id"])
    kept, deleted = [
        (await ada.post("/chronicles", {"name": "A tale"}, 201))["id"] for _ in range(2)
    ]
    async with server.parts.database.write() as session:
        owner = await session.scalar(select(Chat.user_id).where(Chat.id == UUID(chat)))
        assert owner is not None
        for chronicle, tokens in ((deleted, 90), (kept, 7)):
            run = EnrichmentRun(
                user_id=owner,
                chat_id=UUID(chat),
                chronicle_id=UUID(chronicle),
                kind="turn",
                state="done",
                model=MODEL_ID,
                triage_model="triage-model",
                triage_prompt_tokens=1,
                from_position=0,
                to_position=1,
                calls=2,
                prompt_tokens=tokens,
            )
            session.add(run)
    month = await ada.get("/usage/month")
    assert [each["prompt_tokens"] for each in month["by_model"]] == [89 + 6, 2]

    await ada.delete(f"/chronicles/{deleted}")

    assert await ada.get("/usage/month") == month
    assert (await ada.get(f"/chats/{chat}/usage"))["prompt_tokens"] == 7


async def test_the_month_counts_what_no_chat_lists(ada: Account, model: OpenAIServer) -> None:
    token = (await ada.post("/api-keys", {"label": "An app", "scope": "chat"}, 201))["token"]
    plain: Any = {"model": MODEL_ID, "messages": [{"role": "user", "content": "Hello."}]}
    model.script(reply("Hi.", used=usage(300, 20, cached=100)))
    bearer = {"Authorization": f"Bearer {token}"}
    answer = await ada.client.post("/v1/chat/completions", json=plain, headers=bearer)
    assert answer.status_code == 200, answer.text
    chat, gate = str((await ada.new_chat())["id"]), Gate()
    model.script(stream(chunk(content="Yes."), gate, usage_chunk(usage(1000, 100)), DONE))
    before = len(model.requests)
    asking = asyncio.create_task(ada.turn(chat, text="Is it so?"))

    async def is_asked() -> bool:
        return len(model.requests) > before

    await until(is_asked)
    await ada.delete(f"/chats/{chat}")
    gate.opened.set()
    await asking
    (spent,) = (await ada.get("/usage/month"))["by_model"]
    assert (spent["turns"], spent["runs"], spent["cached_tokens"]) == (2, 0, 100)
    assert (spent["prompt_tokens"], spent["completion_tokens"]) == (1300, 120)


async def test_a_turn_that_fails_after_its_chat_was_deleted_counts_as_one_with_a_chat(
    ada: Account, model: OpenAIServer
) -> None:
    for deletes in (False, True):
        chat, gate = str((await ada.new_chat())["id"]), Gate()
        model.script(stream(chunk(content="Yes."), gate, {"error": {"message": "Too hot."}}))
        before = len(model.requests)
        asking = asyncio.create_task(ada.turn(chat, text="Is it so?"))

        async def is_asked(before: int = before) -> bool:
            return len(model.requests) > before

        await until(is_asked)
        if deletes:
            await ada.delete(f"/chats/{chat}")
        gate.opened.set()
        await asking
        assert (await ada.get("/usage/month"))["by_model"] == []
