"""Writes that are sent again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.server import Account, ok, problem, running

pytestmark = pytest.mark.anyio
KEY = {"Idempotency-Key": "the-same"}


@pytest.fixture
async def ada(database_url: str, tmp_path: Path) -> AsyncIterator[Account]:
    async with running(database_url, tmp_path) as server, server.account() as account:
        yield account


async def test_a_write_that_is_sent_again_is_answered_as_before_and_done_once(
    ada: Account,
) -> None:
    first = await ada.client.post("/api/v1/chats", json={"title": "One"}, headers=KEY)
    again = await ada.client.post("/api/v1/chats", json={"title": "One"}, headers=KEY)
    assert ok(again, 201) == ok(first, 201)
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["content-type"] == first.headers["content-type"]
    assert len(ok(await ada.client.get("/api/v1/chats"))["items"]) == 1


@pytest.mark.every_database
async def test_two_at_once_do_it_once(ada: Account) -> None:
    answers = await asyncio.gather(
        *(ada.client.post("/api/v1/chats", json={"title": "One"}, headers=KEY) for _ in range(5))
    )
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert len(ok(await ada.client.get("/api/v1/chats"))["items"]) == 1


async def test_a_key_that_was_used_for_another_request_is_refused(ada: Account) -> None:
    ok(await ada.client.post("/api/v1/chats", json={"title": "One"}, headers=KEY), 201)
    other = await ada.client.post("/api/v1/chats", json={"title": "Two"}, headers=KEY)
    problem(other, 422, "idempotency-key-reused")


async def test_a_refusal_is_not_kept_for_nothing_was_done(ada: Account) -> None:
    body = {"character_ids": ["01a1fc34-0000-7000-8000-000000000000"]}
    for _ in range(2):
        answer = await ada.client.post("/api/v1/chats", json=body, headers=KEY)
        problem(answer, 404, "character-not-found")
        assert "idempotency-replayed" not in answer.headers


async def test_a_secret_that_is_shown_once_is_never_kept(ada: Account) -> None:
    answers = [
        ok(await ada.client.post("/api/v1/api-keys", json={"label": "a"}, headers=KEY), 201)
        for _ in range(2)
    ]
    assert answers[0]["token"] != answers[1]["token"]


async def test_another_key_of_the_same_account_gets_no_answer_that_it_was_not_given(
    ada: Account,
) -> None:
    made = ok(await ada.client.post("/api/v1/api-keys", json={"label": "r", "scope": "read"}), 201)
    ok(await ada.client.post("/api/v1/chats", json={"title": "One"}, headers=KEY), 201)
    async with httpx.AsyncClient(base_url=ada.client.base_url, trust_env=False) as reader:
        answer = await reader.post(
            "/api/v1/chats",
            json={"title": "One"},
            headers={**KEY, "Authorization": f"Bearer {made['token']}"},
        )
    problem(answer, 403, "scope-missing")


async def test_another_file_under_the_same_key_is_refused(ada: Account) -> None:
    url = "/api/v1/characters/import"
    cards = [f'{{"name": "{name}", "description": "d", "first_mes": "f"}}' for name in ("A", "B")]
    for card, status in ((cards[0], 201), (cards[0], 201), (cards[1], 422)):
        answer = await ada.client.post(url, files={"file": ("c.json", card)}, headers=KEY)
        assert answer.status_code == status, answer.text
    assert len(ok(await ada.client.get("/api/v1/characters"))["items"]) == 1


async def test_keys_belong_to_accounts(ada: Account, database_url: str, tmp_path: Path) -> None:
    ok(await ada.client.post("/api/v1/chats", json={"title": "Hers"}, headers=KEY), 201)
    async with (
        running(database_url, tmp_path / "other") as server,
        server.account("bob") as bob,
    ):
        made = ok(await bob.client.post("/api/v1/chats", json={"title": "His"}, headers=KEY), 201)
    assert made["title"] == "His"


async def test_a_stream_is_not_kept(ada: Account) -> None:
    chat = await ada.new_chat()
    url = f"/api/v1/chats/{chat['id']}/turns"
    for _ in range(2):
        answer = await ada.client.post(url, json={"text": "Hello."}, headers=KEY)
        assert "turn.completed" in answer.text
        assert "idempotency-replayed" not in answer.headers


@pytest.mark.parametrize("key", ["", "x" * 201])
async def test_a_key_of_no_sensible_length_is_refused(ada: Account, key: str) -> None:
    answer = await ada.client.post("/api/v1/chats", json={}, headers={"Idempotency-Key": key})
    problem(answer, 400, "bad-request")
