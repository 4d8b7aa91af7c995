"""Tests of the administration of accounts, and of the last administrator."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from backend.accounts.auth import sessions
from backend.turns.api import streaming
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Gate
from tests.support.models import asking, held_back
from tests.support.server import Account, Running, ok, problem, running
from tests.support.waiting import until_true

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

USERS = "/api/v1/admin/users"
ME = "/api/v1/me"


async def test_administrators_see_names_and_make_others_administrators(
    server: Running, ada: Account
) -> None:
    async with server.account("Ben") as ben:
        listed = ok(await ada.client.get(USERS))["items"]
        assert [(each["username"], each["is_administrator"]) for each in listed] == [
            ("Ada", True),
            ("Ben", False),
        ]
        path = f"{USERS}/{ben.user['id']}"
        changed = ok(await ada.client.patch(path, json={"is_administrator": True}))
        assert changed["is_administrator"] is True
        assert len(ok(await ben.client.get(USERS))["items"]) == 2
    problem(await ada.client.patch(f"{USERS}/{uuid4()}", json={}), 404, "user-not-found")


async def test_a_disabled_account_is_out_at_once_with_its_keys_and_streams(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(streaming, "BEAT_SECONDS", 0.02)
    async with (
        OpenAIServer() as model,
        running(sqlite_url, tmp_path, **asking(model)) as server,
        server.account("Ada") as ada,
        server.account("Ben") as ben,
    ):
        made = ok(await ben.client.post("/api/v1/api-keys", json={"label": "script"}), 201)
        async with server.program(made["token"]) as script:
            people = [ben, Account(script, "Ben", "", ben.user)]
            chats = [(await ben.new_chat())["id"] for _ in people]
            model.script(*(held_back(Gate()) for _ in people))
            streams = [
                asyncio.create_task(person.turn(chat, text="Tell me."))
                for person, chat in zip(people, chats, strict=True)
            ]
            await until_true(lambda: server.parts.watch.stream_count >= len(streams))
            path = f"{USERS}/{ben.user['id']}"
            ok(await ada.client.patch(path, json={"is_disabled": True}))
            for events in await asyncio.gather(*streams):
                assert not {event.name for event in events} & {"turn.completed", "turn.failed"}
            for person in people:
                problem(await person.client.get(ME), 401, "unauthenticated")
            ok(await ada.client.patch(path, json={"is_disabled": False}))
            problem(await ben.client.get(ME), 401, "unauthenticated")
            ok(await script.get(ME))
        async with server.signed_in("Ben") as back:
            ok(await back.client.get(ME))


async def test_null_is_neither_true_nor_false_and_changes_nothing(
    server: Running, ada: Account
) -> None:
    async with server.account("Ben") as ben:
        path = f"{USERS}/{ben.user['id']}"
        ok(await ada.client.patch(path, json={"is_administrator": True}))
        for member in ("is_administrator", "is_disabled"):
            found = problem(
                await ada.client.patch(path, json={member: None}), 422, "validation-failed"
            )
            assert "bool" in str(found["errors"])
        assert ok(await ben.client.get(ME))["is_administrator"] is True


async def test_the_last_administrator_stays_one(server: Running, ada: Account) -> None:
    async with server.account("Ben") as ben, server.account("Cleo") as cleo:
        own = f"{USERS}/{ada.user['id']}"
        for change in ({"is_administrator": False}, {"is_disabled": True}):
            problem(await ada.client.patch(own, json=change), 409, "last-administrator")
        # A disabled account does not count as an administrator.
        other = f"{USERS}/{ben.user['id']}"
        ok(await ada.client.patch(other, json={"is_administrator": True, "is_disabled": True}))
        problem(
            await ada.client.patch(own, json={"is_administrator": False}), 409, "last-administrator"
        )

        ok(await ada.client.patch(f"{USERS}/{cleo.user['id']}", json={"is_administrator": True}))
        ok(await ada.client.patch(own, json={"is_administrator": False}))
        problem(await ada.client.get(USERS), 403, "forbidden")


async def test_two_administrators_who_dismiss_each_other_at_once_leave_one(either: Running) -> None:
    async with either.account("Ada") as ada, either.account("Ben") as ben:
        paths = [f"{USERS}/{each.user['id']}" for each in (ada, ben)]
        ok(await ada.client.patch(paths[1], json={"is_administrator": True}))
        answers = await asyncio.gather(
            ada.client.patch(paths[1], json={"is_administrator": False}),
            ben.client.patch(paths[0], json={"is_administrator": False}),
        )
        # The second request comes from a dismissed administrator, or would dismiss the last one.
        first, second = sorted(answer.status_code for answer in answers)
        assert first == 200
        assert second in {403, 409}
        left = [ok(await each.client.get(ME))["is_administrator"] for each in (ada, ben)]
        assert sorted(left) == [False, True]
