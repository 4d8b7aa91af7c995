"""Tests of the settings of a chat, and of the model and sampling of its turns."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from backend.generation.registry import ModelRegistry
from tests.fakes.gemini_server import MODEL_ID as GEMINI
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.openai_server import MODEL_ID as OPENAI
from tests.fakes.openai_server import OpenAIServer
from tests.support.server import Account, ok, problem, running

pytestmark = pytest.mark.anyio

UNSET: dict[str, Any] = {
    "sampling": {},
    "budgets": {},
    "authors_note": {},
    "lore": {},
    "memory": {},
    "enrichment": {},
    "group": {},
    "task_models": {},
    "summary": {},
}


async def read(ada: Account, chat: str) -> dict[str, Any]:
    return ok(await ada.client.get(f"/api/v1/chats/{chat}/settings"))  # type: ignore[no-any-return]


async def patch(ada: Account, chat: str, **body: Any) -> dict[str, Any]:
    return ok(  # type: ignore[no-any-return]
        await ada.client.patch(f"/api/v1/chats/{chat}/settings", json=body)
    )


async def test_absent_settings_stay_and_null_resets_them(ada: Account, chat: str) -> None:
    assert await read(ada, chat) == UNSET
    await patch(
        ada,
        chat,
        sampling={"temperature": 0.5, "top_k": 40, "stop": ["END"]},
        budgets={"total": 9000, "history": 0},
        system_prompt="",
        authors_note={"text": "It rains.", "depth": 0, "role": "user"},
        memory_placement="before_history",
        names=False,
    )
    await patch(ada, chat, sampling={"temperature": None, "seed": 0}, budgets={"retrieval": 5})
    assert await read(ada, chat) == {
        "sampling": {"top_k": 40, "stop": ["END"], "seed": 0},
        "budgets": {"total": 9000, "history": 0, "retrieval": 5},
        "system_prompt": "",
        "authors_note": {"text": "It rains.", "depth": 0, "role": "user"},
        "memory_placement": "before_history",
        "names": False,
        "lore": {},
        "memory": {},
        "enrichment": {},
        "group": {},
        "task_models": {},
        "summary": {},
    }
    assert await patch(ada, chat) == await read(ada, chat)
    await patch(ada, chat, sampling=None, budgets=None, authors_note={"depth": None, "role": None})
    assert await read(ada, chat) == {
        **UNSET,
        "system_prompt": "",
        "authors_note": {"text": "It rains."},
        "memory_placement": "before_history",
        "names": False,
    }
    await patch(ada, chat, system_prompt=None, authors_note=None, memory_placement=None, names=None)
    assert await read(ada, chat) == UNSET


@pytest.mark.parametrize(
    ("body", "member"),
    [
        ({"sampling": {"temprature": 1}}, "temprature"),
        ({"budget": {}}, "budget"),
        ({"sampling": {"temperature": "hot"}}, "sampling.temperature"),
        ({"sampling": {"temperature": 2.5}}, "sampling.temperature"),
        ({"sampling": {"stop": "END"}}, "sampling.stop"),
        ({"sampling": {"stop": ["a", 1]}}, "sampling.stop"),
        ({"sampling": {"safety": {"harassment": "some"}}}, "sampling.safety"),
        ({"sampling": []}, "sampling"),
        ({"budgets": {"total": 100}}, "budgets.total"),
        ({"budgets": {"total": 9000.5}}, "budgets.total"),
        ({"budgets": {"history": True}}, "budgets.history"),
        ({"authors_note": {"depth": -1}}, "authors_note.depth"),
        ({"authors_note": {"role": "narrator"}}, "authors_note.role"),
        ({"authors_note": "It rains."}, "authors_note"),
        ({"memory_placement": "nowhere"}, "memory_placement"),
        ({"names": "yes"}, "names"),
        ({"system_prompt": "x" * 200_001}, "system_prompt"),
        ({"model": 5}, "model"),
    ],
)
async def test_a_wrong_setting_is_named_and_nothing_is_set(
    ada: Account, chat: str, body: dict[str, Any], member: str
) -> None:
    await patch(ada, chat, sampling={"top_k": 7})
    before = await ada.client.get(f"/api/v1/chats/{chat}/settings")
    answer = await ada.client.patch(
        f"/api/v1/chats/{chat}/settings", json={**body, "post_history_instructions": "Be brief."}
    )
    assert member in problem(answer, 422, "validation-failed")["detail"]
    after = await ada.client.get(f"/api/v1/chats/{chat}/settings")
    assert (after.json(), after.headers["etag"]) == (before.json(), before.headers["etag"])


async def test_a_change_on_top_of_an_old_revision_is_refused(ada: Account, chat: str) -> None:
    url = f"/api/v1/chats/{chat}/settings"
    tag = (await ada.client.get(url)).headers["etag"]
    first = await ada.client.patch(url, json={"names": True}, headers={"If-Match": tag})
    assert first.headers["etag"] != tag
    second = await ada.client.patch(url, json={"names": False}, headers={"If-Match": tag})
    problem(second, 412, "revision-mismatch")
    assert (await read(ada, chat))["names"] is True
    third = await ada.client.patch(
        url, json={"names": False}, headers={"If-Match": first.headers["etag"]}
    )
    assert ok(third)["names"] is False


async def test_a_model_that_does_not_exist_is_refused_with_those_that_do(
    ada: Account, chat: str
) -> None:
    answer = await ada.client.patch(f"/api/v1/chats/{chat}/settings", json={"model": "gemini/none"})
    assert problem(answer, 422, "unknown-model")["models"] == ["demo"]


class TestSampling:
    @pytest.fixture
    async def vendor(self) -> AsyncGenerator[OpenAIServer]:
        async with OpenAIServer() as server:
            yield server

    @pytest.fixture
    async def ada(
        self, vendor: OpenAIServer, sqlite_url: str, tmp_path: Path
    ) -> AsyncGenerator[Account]:
        async with GeminiServer() as gemini:
            registry = ModelRegistry(
                demo_tokens_per_second=0,
                gemini=gemini.config(),
                openai=vendor.config(),
                default="demo",
            )
            async with (
                running(sqlite_url, tmp_path, registry=registry) as server,
                server.account() as ada,
            ):
                yield ada

    async def test_a_setting_that_the_model_refuses_cannot_be_set(
        self, ada: Account, chat: str
    ) -> None:
        await patch(ada, chat, model=OPENAI)
        answer = await ada.client.patch(
            f"/api/v1/chats/{chat}/settings",
            json={"sampling": {"thinking_budget": 40, "temperature": 1}},
        )
        refused = problem(answer, 422, "setting-not-taken")
        assert (refused["refused"], refused["model"]) == (["thinking_budget"], OPENAI)
        assert "temperature" in refused["accepts"]
        assert await read(ada, chat) == {**UNSET, "model": OPENAI}

    async def test_a_model_is_refused_that_does_not_take_what_is_set(
        self, ada: Account, chat: str
    ) -> None:
        await patch(ada, chat, sampling={"thinking_budget": 40})
        answer = await ada.client.patch(f"/api/v1/chats/{chat}/settings", json={"model": OPENAI})
        problem(answer, 422, "setting-not-taken")
        await patch(ada, chat, model=GEMINI)
        await patch(ada, chat, model=OPENAI, sampling={"thinking_budget": None})

    async def test_the_account_s_sampling_goes_with_the_account_s_model(
        self, ada: Account, chat: str, vendor: OpenAIServer
    ) -> None:
        account = {"model": OPENAI, "sampling": {"temperature": 0.5, "seed": 3}}
        ok(await ada.client.patch("/api/v1/me/settings", json=account))
        await ada.turn(chat, text="One.")
        await patch(ada, chat, sampling={"seed": 4, "top_p": 0.5})
        await ada.turn(chat, text="Two.")
        await patch(ada, chat, model=OPENAI)
        await ada.turn(chat, text="Three.")
        sent = [request.body for request in vendor.requests]
        names = ("temperature", "seed", "top_p")
        assert [[body.get(name) for name in names] for body in sent] == [
            [0.5, 3, None],
            [0.5, 4, 0.5],
            [None, 4, 0.5],
        ]

    async def test_a_chat_with_a_model_of_its_own_is_left_alone_by_the_account_s_sampling(
        self, ada: Account, chat: str
    ) -> None:
        ok(await ada.client.patch("/api/v1/me/settings", json={"sampling": {"top_k": 40}}))
        await patch(ada, chat, model=OPENAI)
        events = await ada.turn(chat, text="Hello.")
        assert events[-1].name == "turn.completed"
