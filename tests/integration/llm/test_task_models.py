"""Tests of models for each task: the choice, its refusals, and jobs by a provider for everybody."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from backend.generation.client.provider import ServerConfig
from backend.generation.registry import ModelRegistry
from backend.jobs.models import Job
from tests.fakes.openai_server import API_KEY, MODEL, OpenAIServer, reply
from tests.integration.llm.test_installation_providers import SHARED, provider
from tests.integration.llm.test_providers import OWN, PROVIDERS, add
from tests.integration.turns.seeding import seed
from tests.support.chronicling import opt_in
from tests.support.memory import API
from tests.support.server import Account, Running, ok, problem, running
from tests.support.studying import Vendor, studying, vendor
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

SETTINGS = "/api/v1/me/settings"
NO_JSON = [reply("no JSON")] * 4


@pytest.fixture
async def agent() -> AsyncGenerator[Vendor]:
    async with vendor("openai") as agent:
        yield agent


async def test_an_unknown_model_of_a_task_is_refused_by_name_and_changes_nothing(
    ada: Account,
) -> None:
    chat = await ada.new_chat()
    for path in (SETTINGS, f"/api/v1/chats/{chat['id']}/settings"):
        before = ok(await ada.client.get(path))
        wanted = {"agent": "demo", "summary": "theirs/large"}
        refused = await ada.client.patch(path, json={"task_models": wanted})
        assert "theirs/large" in problem(refused, 422, "unknown-model")["detail"]
        assert ok(await ada.client.get(path)) == before


async def test_a_model_says_which_one_works_beside_it_where_nothing_is_chosen(
    sqlite_url: str, tmp_path: Path, model: OpenAIServer
) -> None:
    async def read_task_models(account: Account) -> dict[str, str]:
        items = ok(await account.client.get("/api/v1/models"))["items"]
        return {each["id"]: each["task_model"] for each in items}

    google = ServerConfig(api_key="AIza", models=("gemini-2.5-pro", "gemini-2.5-flash-lite"))
    registry = ModelRegistry(demo_tokens_per_second=0, gemini=google)
    small = "gemini/gemini-2.5-flash-lite"
    async with (
        running(sqlite_url, tmp_path, registry=registry) as server,
        server.account("Ada") as ada,
    ):
        await add(ada, model)
        shown = await read_task_models(ada)
        # Texts of local models are not sent to other servers.
        assert shown == {OWN: OWN, "gemini/gemini-2.5-pro": small, small: small, "demo": small}
    async with (
        running(sqlite_url, tmp_path, enrichment_model="demo") as server,
        server.account("Ben") as ben,
    ):
        await add(ben, model)
        assert set((await read_task_models(ben)).values()) == {"demo"}


async def test_suggestions_come_from_their_own_model_the_chats_before_the_accounts(
    ada: Account, model: OpenAIServer
) -> None:
    await add(ada, model)
    wanted = {"model": "demo", "task_models": {"suggestions": OWN}}
    ok(await ada.client.patch(SETTINGS, json=wanted))
    chat = await ada.new_chat()
    path = f"/api/v1/chats/{chat['id']}"
    await ada.turn(chat["id"], text="Hello.")
    assert model.requests == []  # the demo replies
    model.script(reply(json.dumps({"lines": ["I run."]})))
    suggested = ok(await ada.client.post(f"{path}/suggestions", json={"count": 2}))
    assert suggested["items"] == ["I run."]
    assert [request.body["model"] for request in model.requests] == [MODEL]
    ok(await ada.client.patch(f"{path}/settings", json={"task_models": {"suggestions": "demo"}}))
    ok(await ada.client.post(f"{path}/suggestions", json={"count": 2}))
    assert len(model.requests) == 1


async def test_errors_of_a_task_s_model_name_the_setting(ada: Account, model: OpenAIServer) -> None:
    made = await add(ada, model)
    chat = await ada.new_chat()
    path = f"/api/v1/chats/{chat['id']}"
    ok(await ada.client.patch(f"{path}/settings", json={"task_models": {"suggestions": OWN}}))
    model.script(*NO_JSON)
    failed = await ada.client.post(f"{path}/suggestions", json={"count": 2})
    assert "task_models.suggestions" in problem(failed, 502, "model-writes-no-json")["detail"]
    assert (await ada.client.delete(f"{PROVIDERS}/{made['id']}")).status_code == 204
    gone = await ada.client.post(f"{path}/suggestions", json={"count": 2})
    assert OWN in problem(gone, 422, "unknown-model")["detail"]
    # A deleted model stays set, and does not prevent changes of other settings.
    ok(await ada.client.patch(f"{path}/settings", json={"system_prompt": "Be brief."}))


async def test_a_model_that_is_gone_keeps_nothing_else_from_being_set_or_opened(
    ada: Account, model: OpenAIServer
) -> None:
    made = await add(ada, model)
    chat = await ada.new_chat()
    path = f"/api/v1/chats/{chat['id']}"
    for place in (SETTINGS, f"{path}/settings"):
        ok(await ada.client.patch(place, json={"model": OWN}))
    assert (await ada.client.delete(f"{PROVIDERS}/{made['id']}")).status_code == 204

    for place in (SETTINGS, f"{path}/settings"):
        kept = ok(await ada.client.patch(place, json={"system_prompt": "Be brief."}))
        assert (kept["model"], kept["system_prompt"]) == (OWN, "Be brief.")
    other = await ada.new_chat()
    # Requests to the deleted model fail, and so do settings with it.
    for refused in (
        await ada.client.post(f"/api/v1/chats/{other['id']}/turns", json={"text": "Hello."}),
        await ada.client.patch(SETTINGS, json={"sampling": {"temperature": 0.5}}),
    ):
        assert OWN in problem(refused, 422, "unknown-model")["detail"]
    ok(await ada.client.patch(SETTINGS, json={"model": None}))
    assert (await ada.turn(other["id"], text="Hello."))[-1].name == "turn.completed"


async def test_triage_and_the_agent_may_have_different_models(
    sqlite_url: str, tmp_path: Path, agent: Vendor, model: OpenAIServer
) -> None:
    async with studying(sqlite_url, tmp_path, agent) as study:
        await add(study.account, model)
        path = f"/api/v1/chats/{study.chat_id}/settings"
        ok(await study.account.client.patch(path, json={"task_models": {"triage": OWN}}))
        await study.tell("I kill the king.", "The king is dead.")
        model.script(*NO_JSON)
        await study.read()
        run, detail = (await study.runs())[-1]
        assert (run.error, agent.server.requests) == ("model-writes-no-json", [])
        assert f"{OWN} did not return JSON" in detail.note
        assert "task_models.triage" in detail.note
        decision = {"why": "A death.", "significant": True, "kinds": ["event"]}
        model.script(reply(json.dumps(decision)))
        agent.script(agent.says("Nothing to write."))
        await study.try_again()
        assert len(agent.server.requests) == 1
        run = (await study.runs())[-1][0]
        assert (run.state, run.calls, run.triage_model) == ("done", 2, OWN)
        # Each request counts its own tokens.
        took = ok(await study.account.client.get(f"/api/v1/chats/{study.chat_id}/usage"))
        asked = {each["model"]: each["prompt_tokens"] for each in took["by_model"] if each["runs"]}
        small = {each["model"]: each["prompt_tokens"] for each in took["by_model"]}[OWN]
        assert small >= run.triage_prompt_tokens > 0
        assert asked[run.model] > 0


@pytest.mark.parametrize("mode", ["managed", "per_job", "sealed"])
async def test_a_job_asks_the_installation_s_model_as_its_key_mode_allows(
    sqlite_url: str, tmp_path: Path, mode: str
) -> None:
    async with OpenAIServer() as model:
        decision: dict[str, Any] = {"why": "Nothing new.", "significant": False, "kinds": []}
        model.script(*[reply(json.dumps(decision))] * 4)
        async with (
            running(sqlite_url, tmp_path, job_workers=0) as server,
            server.account("Ada") as ada,
        ):
            ok(await ada.client.post(PROVIDERS, json=provider(model, scope="installation")), 201)
            async with server.account("Ben") as ben:
                ok(await ben.client.patch(f"{API}/me", json={"key_mode": mode}))
                tasks = {"task_models": {"agent": SHARED, "triage": SHARED}}
                ok(await ben.client.patch(f"{API}/me/settings", json=tasks))
                chat = str((await ben.new_chat())["id"])
                chronicle = await opt_in(ben, chat)
                await seed(server, ben, chat, ["I light the lamp.", "The lamp shines."])
                path = f"{API}/chronicles/{chronicle}/rebuild"
                job = UUID(ok(await ben.client.post(path, json={"chat_id": chat}), 202)["id"])
                ok(await ben.client.delete(f"{API}/sessions/current"), 204)
        assert model.requests == []
        async with running(sqlite_url, tmp_path) as server:
            if mode == "sealed":
                await until(lambda: has_state(server, job, "waiting_key"))
                assert model.requests == []
                async with server.signed_in("Ben") as ben:
                    ok(await ben.client.get(f"{API}/me"))
                    await until(lambda: has_state(server, job, "done"))
            else:
                await until(lambda: has_state(server, job, "done"))
        told = {(each.headers["authorization"], each.body["model"]) for each in model.requests}
        assert told == {(f"Bearer {API_KEY}", MODEL)}


async def has_state(server: Running, job_id: UUID, state: str) -> bool:
    async with server.parts.database.read() as session:
        return (await session.get_one(Job, job_id)).state == state
