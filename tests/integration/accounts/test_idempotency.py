"""Tests of idempotency keys, also if the process dies before the answer is stored."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.idempotency import CLAIM_TIMEOUT, IdempotencyMiddleware
from backend.accounts.models import IdempotentRequest
from backend.characters.models import Character, Persona
from backend.database.base import now
from backend.database.engine import Database, DatabaseUnavailableError
from tests.support.server import Account, Running, ok, problem, running

pytestmark = pytest.mark.anyio

KEY = {"Idempotency-Key": "the-same"}
NO_ID = "01a1fc34-0000-7000-8000-000000000000"


@pytest.fixture
async def ada(either: Running) -> AsyncGenerator[Account]:
    async with either.account("Ada") as account:
        yield account


async def test_a_write_that_is_sent_again_is_answered_as_before_and_done_once(ada: Account) -> None:
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


@pytest.mark.parametrize(
    ("path", "body", "status", "slug"),
    [
        ("chats", {"character_ids": [NO_ID]}, 404, "character-not-found"),
        ("personas", {"name": ""}, 422, "validation-failed"),
    ],
)
async def test_a_refusal_is_not_kept_for_nothing_was_done(
    ada: Account, path: str, body: dict[str, Any], status: int, slug: str
) -> None:
    for _ in range(2):
        answer = await ada.client.post(f"/api/v1/{path}", json=body, headers=KEY)
        problem(answer, status, slug)
        assert "idempotency-replayed" not in answer.headers
    assert ok(await ada.client.get(f"/api/v1/{path}"))["items"] == []


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
    async with running(database_url, tmp_path / "other") as server, server.account("bob") as bob:
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


CARD = {
    "spec": "chara_card_v3",
    "spec_version": "3.0",
    "data": {
        "name": "Mara",
        "first_mes": "Hm?",
        "character_book": {"entries": [{"keys": ["lamp"], "content": "Lit.", "enabled": True}]},
    },
}

BOOK = {"name": "The coast", "entries": {"0": {"uid": 0, "key": ["lamp"], "content": "Lit."}}}


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Store no answers, as if the process had died before."""

    async def keep(*_: object) -> None:
        """Die."""

    monkeypatch.setattr(IdempotencyMiddleware, "_store", keep)
    return monkeypatch


async def import_file(ada: Account, path: str, file: dict[str, Any]) -> httpx.Response:
    files = {"file": ("file.json", json.dumps(file).encode())}
    return await ada.client.post(f"{path}/import", files=files, headers=KEY)


async def give_up(server: Running) -> None:
    """Make unanswered requests old enough to be repeated."""
    async with server.parts.database.write() as session:
        before = now() - CLAIM_TIMEOUT - timedelta(seconds=1)
        await session.execute(update(IdempotentRequest).values(created_at=before))


@pytest.mark.parametrize(
    ("path", "file", "member"),
    [("/api/v1/characters", CARD, "character"), ("/api/v1/lorebooks", BOOK, "lorebook")],
)
async def test_an_import_that_was_not_answered_is_answered_with_what_it_made(
    ada: Account, dying: pytest.MonkeyPatch, path: str, file: dict[str, Any], member: str
) -> None:
    first = ok(await import_file(ada, path, file), 201)
    dying.undo()
    for _ in range(2):  # first the new answer, then the stored one
        again = ok(await import_file(ada, path, file), 201)
        assert again[member]["id"] == first[member]["id"]
        assert again.get("lorebook") == first.get("lorebook")
    (only,) = ok(await ada.client.get(path))["items"]
    assert only["id"] == first[member]["id"]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/api/v1/personas", {"name": "Wanderer"}), ("/api/v1/chats", {"title": "Mine"})],
)
async def test_another_write_that_was_not_answered_is_not_done_again(
    either: Running, ada: Account, dying: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    ok(await ada.client.post(path, json=body, headers=KEY), 201)
    dying.undo()
    again = await ada.client.post(path, json=body, headers=KEY)
    problem(again, 409, "request-in-progress")
    await give_up(either)
    again = await ada.client.post(path, json=body, headers=KEY)
    problem(again, 409, "request-interrupted")
    assert len(ok(await ada.client.get(path))["items"]) == 1


@pytest.mark.every_database
async def test_a_request_without_effect_runs_again_after_a_crash(
    either: Running, ada: Account, dying: pytest.MonkeyPatch
) -> None:
    path = "/api/v1/personas"
    refused = await ada.client.post(path, json={"name": ""}, headers=KEY)
    assert refused.status_code == 422
    dying.undo()
    await give_up(either)
    again = await ada.client.post(path, json={"name": ""}, headers=KEY)
    assert again.status_code == 422


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/v1/personas", {"json": {"name": "Wanderer"}}, 409),
        ("/api/v1/characters/import", {"files": {"file": json.dumps(CARD).encode()}}, 201),
    ],
)
@pytest.mark.every_database
async def test_a_write_is_not_repeated_after_its_connection_broke(
    ada: Account, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], status: int
) -> None:
    """The connection breaks after the commit."""
    broken: list[bool] = []
    write = Database.write

    @contextlib.asynccontextmanager
    async def breaking(self: Database) -> AsyncGenerator[AsyncSession]:
        async with write(self) as session:
            yield session
            written = [*session.new, *session.identity_map.values()]
            breaks = any(isinstance(each, (Persona, Character)) for each in written)
        if breaks and not broken:
            broken.append(True)
            raise DatabaseUnavailableError("The connection is gone.")

    monkeypatch.setattr(Database, "write", breaking)
    problem(await ada.client.post(path, **body, headers=KEY), 503, "database-unavailable")
    for _ in range(2):
        again = await ada.client.post(path, **body, headers=KEY)
        assert again.status_code == status, again.text
        if status == 409:
            problem(again, 409, "request-interrupted")
    kind = path.removesuffix("/import")
    assert len(ok(await ada.client.get(kind))["items"]) == 1


async def test_an_answer_that_cannot_be_kept_is_given_all_the_same(
    ada: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keep(*_: object) -> None:
        raise DatabaseUnavailableError("The connection is gone.")

    monkeypatch.setattr(IdempotencyMiddleware, "_store", keep)
    path = "/api/v1/characters"
    made = ok(await ada.client.post(path, json={"name": "Mara"}, headers=KEY), 201)
    assert ok(await ada.client.get(path))["items"][0]["id"] == made["id"]
