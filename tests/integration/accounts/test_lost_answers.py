"""A process that dies after a write, and before its answer is kept: nothing is done twice."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator
from datetime import timedelta
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
from tests.support.server import Account, Running, ok, problem

pytestmark = pytest.mark.anyio

KEY = {"Idempotency-Key": "the-same"}
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
async def ada(either: Running) -> Any:
    async with either.account("Ada") as account:
        yield account


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Answers are not kept: as if the process had died before it could."""

    async def keep(*_: object) -> None:
        """Die."""

    monkeypatch.setattr(IdempotencyMiddleware, "_store", keep)
    return monkeypatch


async def import_file(ada: Account, path: str, file: dict[str, Any]) -> httpx.Response:
    files = {"file": ("file.json", json.dumps(file).encode())}
    return await ada.client.post(f"{path}/import", files=files, headers=KEY)


async def give_up(server: Running) -> None:
    """As if the time had passed after which a request that was never answered may come again."""
    async with server.parts.database.write() as session:
        before = now() - CLAIM_TIMEOUT - timedelta(seconds=1)
        await session.execute(update(IdempotentRequest).values(created_at=before))


@pytest.mark.parametrize(
    ("path", "file", "member"),
    [("/api/v1/characters", CARD, "character"), ("/api/v1/lorebooks", BOOK, "lorebook")],
)
async def test_an_import_that_was_not_answered_is_answered_with_what_it_made(
    ada: Account,
    dying: pytest.MonkeyPatch,
    path: str,
    file: dict[str, Any],
    member: str,
) -> None:
    first = ok(await import_file(ada, path, file), 201)
    dying.undo()
    for _ in range(2):  # made anew, and as it was kept
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
async def test_what_died_before_it_did_anything_is_done_when_it_comes_again(
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
async def test_what_was_done_before_the_connection_to_the_database_broke_is_not_done_again(
    ada: Account, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], status: int
) -> None:
    """The database committed; the news of it got lost."""
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


async def test_a_request_that_fails_may_come_again(either: Running, ada: Account) -> None:
    path = "/api/v1/personas"
    for _ in range(2):
        refused = await ada.client.post(path, json={"name": ""}, headers=KEY)
        assert refused.status_code == 422
    assert ok(await ada.client.get(path))["items"] == []


async def test_an_answer_that_cannot_be_kept_is_given_all_the_same(
    ada: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keep(*_: object) -> None:
        raise DatabaseUnavailableError("The connection is gone.")

    monkeypatch.setattr(IdempotencyMiddleware, "_store", keep)
    path = "/api/v1/characters"
    made = ok(await ada.client.post(path, json={"name": "Mara"}, headers=KEY), 201)
    assert ok(await ada.client.get(path))["items"][0]["id"] == made["id"]
