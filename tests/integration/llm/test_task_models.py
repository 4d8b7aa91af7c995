"""`task_models`: a model for each task beside the reply."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from itertools import count
from pathlib import Path

import pytest

from backend.generation.client.provider import ServerConfig
from backend.generation.registry import ModelRegistry
from tests.fakes.openai_server import MODEL, OpenAIServer, reply
from tests.integration.llm.test_providers import OWN, PROVIDERS, add
from tests.support.server import Account, Running, ok, problem, running
from tests.support.shared import server
from tests.support.studying import Vendor, studying, vendor

__all__ = ["server"]

pytestmark = pytest.mark.anyio

SETTINGS = "/api/v1/me/settings"
NO_JSON = [reply("no JSON")] * 4
_names = count(1)


@pytest.fixture
async def ada(server: Running) -> AsyncGenerator[Account]:
    async with server.account(f"Ada {next(_names)}") as ada:
        yield ada


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
    async def beside(account: Account) -> dict[str, str]:
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
        shown = await beside(ada)
        # Who plays at home has nothing sent elsewhere.
        assert shown == {OWN: OWN, "gemini/gemini-2.5-pro": small, small: small, "demo": small}
    async with (
        running(sqlite_url, tmp_path, enrichment_model="demo") as server,
        server.account("Ben") as ben,
    ):
        await add(ben, model)
        assert set((await beside(ben)).values()) == {"demo"}


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


async def test_what_goes_wrong_with_a_tasks_model_is_told_with_its_setting(
    ada: Account, model: OpenAIServer
) -> None:
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
    # What is gone stays where nobody touches it: it does not keep other settings from changing.
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
    # What asks the model says that it is gone, and so does what is set of it.
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
        # Each is paid for what it took itself.
        took = ok(await study.account.client.get(f"/api/v1/chats/{study.chat_id}/usage"))
        asked = {each["model"]: each["prompt_tokens"] for each in took["by_model"] if each["runs"]}
        small = {each["model"]: each["prompt_tokens"] for each in took["by_model"]}[OWN]
        assert small >= run.triage_prompt_tokens > 0
        assert asked[run.model] > 0
