"""Work behind the reply by a provider for everybody: the key mode says when, not its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from backend.jobs.models import Job
from tests.fakes.openai_server import API_KEY, MODEL, OpenAIServer, reply
from tests.integration.llm.test_installation_providers import PROVIDERS, SHARED, fields
from tests.integration.turns.seeding import seed
from tests.support.chronicling import opt_in
from tests.support.memory import API
from tests.support.server import Running, ok, running
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


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
            ok(await ada.client.post(PROVIDERS, json=fields(model, scope="installation")), 201)
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
                await until(lambda: is_in(server, job, "waiting_key"))
                assert model.requests == []
                async with server.signed_in("Ben") as ben:
                    ok(await ben.client.get(f"{API}/me"))
                    await until(lambda: is_in(server, job, "done"))
            else:
                await until(lambda: is_in(server, job, "done"))
        told = {(each.headers["authorization"], each.body["model"]) for each in model.requests}
        assert told == {(f"Bearer {API_KEY}", MODEL)}


async def is_in(server: Running, job_id: UUID, state: str) -> bool:
    async with server.parts.database.read() as session:
        return (await session.get_one(Job, job_id)).state == state
