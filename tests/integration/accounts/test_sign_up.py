"""Tests of sign-up, of the instance's answer without sign-in, and of administration."""

from __future__ import annotations

import asyncio
import re
import unicodedata
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

import backend
from backend.accounts.auth import sessions
from backend.turns.api import streaming
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Gate
from tests.support.clock import Clock
from tests.support.models import asking, held_back
from tests.support.server import PASSWORD, Account, Running, ok, problem, running
from tests.support.waiting import until_true

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

ACCOUNTS = "/api/v1/accounts"
ELSEWHERE = (f"203.0.113.{n}" for n in count(1))
"""Addresses, each used once. The server trusts the tests as a proxy."""


async def sign_up(
    server: Running, name: str, password: str = PASSWORD, **more: Any
) -> httpx.Response:
    headers = {"X-Forwarded-For": next(ELSEWHERE)}
    async with server.browser() as client:
        body = {"username": name, "password": password, **more}
        return await client.post(ACCOUNTS, json=body, headers=headers)


async def invite(ada: Account, **body: Any) -> str:
    code: str = ok(await ada.client.post("/api/v1/admin/invitations", json=body), 201)["code"]
    return code


async def test_the_first_account_administers_and_later_ones_do_not(server: Running) -> None:
    assert ok(await sign_up(server, "Ada"), 201)["user"]["is_administrator"] is True
    assert ok(await sign_up(server, "Ben"), 201)["user"]["is_administrator"] is False


async def test_one_of_several_first_accounts_is_an_administrator(either: Running) -> None:
    answers = await asyncio.gather(*(sign_up(either, f"person{n}") for n in range(5)))
    users = [ok(answer, 201)["user"] for answer in answers]
    assert sorted(user["is_administrator"] for user in users) == [False] * 4 + [True]


async def test_one_of_several_first_sign_ups_succeeds_without_invitation(
    database_url: str, tmp_path: Path
) -> None:
    async with running(database_url, tmp_path, registration="invitation") as server:
        answers = await asyncio.gather(*(sign_up(server, f"person{n}") for n in range(4)))
        assert sorted(answer.status_code for answer in answers) == [201, 403, 403, 403]


async def test_signing_up_signs_in_and_shows_the_recovery_code_this_once(server: Running) -> None:
    async with server.browser() as client:
        made = ok(await client.post(ACCOUNTS, json={"username": "Ada", "password": PASSWORD}), 201)
        me = ok(await client.get("/api/v1/me"))
    assert re.fullmatch(r"([A-Z2-7]{4}-){12}[A-Z2-7]{4}", made["recovery_code"])
    assert me == made["user"]
    assert me["username"] == "Ada"


async def test_a_name_is_taken_in_every_form_of_writing(server: Running) -> None:
    ok(await sign_up(server, "Zoë"), 201)
    for form in ("zoë", "ZOË", "  Zoë ", unicodedata.normalize("NFD", "Zoë"), "ＺＯË"):
        problem(await sign_up(server, form), 409, "name-taken")
    ok(await sign_up(server, "Zoe"), 201)


async def test_one_of_two_sign_ups_gets_a_name(either: Running) -> None:
    ok(await sign_up(either, "Ada"), 201)
    answers = await asyncio.gather(sign_up(either, "Ben"), sign_up(either, "BEN"))
    assert sorted(answer.status_code for answer in answers) == [201, 409]


async def test_a_name_has_to_be_one_that_can_be_shown(server: Running) -> None:
    for name in ("", "   ", "a" * 65, "a\nb", "a\u200bb", "a\u0000", "\u202eada"):
        problem(await sign_up(server, name), 422, "validation-failed")


async def test_a_password_that_is_short_common_the_name_or_endless_is_refused(
    server: Running,
) -> None:
    for password in ("seven c", "password1", "Ada Lovelace", "long " * 60):
        body = problem(await sign_up(server, "Ada Lovelace", password), 422, "weak-password")
        assert body["detail"]
    ok(await sign_up(server, "Ada Lovelace"), 201)


async def test_a_password_opens_on_a_keyboard_that_composes_letters_another_way(
    server: Running,
) -> None:
    password = "schön und lang"
    ok(await sign_up(server, "Ada", password), 201)
    async with server.signed_in("Ada", unicodedata.normalize("NFD", password)) as ada:
        ok(await ada.client.get("/api/v1/me"))


async def test_closed_registration_stretches_no_password(
    sqlite_url: str, tmp_path: Path, stretches: list[tuple[int, int, int]]
) -> None:
    async with (
        running(sqlite_url, tmp_path, registration="closed") as server,
        server.account() as ada,
    ):
        code = await invite(ada)
        stretches.clear()
        problem(await sign_up(server, "Ben"), 403, "registration-closed")
        problem(await sign_up(server, "Ben", invitation=code), 403, "registration-closed")
        assert stretches == []


async def test_an_invitation_is_valid_for_one_account(
    database_url: str, tmp_path: Path, stretches: list[tuple[int, int, int]]
) -> None:
    async with (
        running(database_url, tmp_path, registration="invitation") as server,
        server.account("Ada") as ada,
    ):
        code = await invite(ada)
        problem(await sign_up(server, "Ben"), 403, "registration-closed")
        for refused in (
            await sign_up(server, "Ben", "short", invitation=code),
            await sign_up(server, "ADA", invitation=code),
        ):
            assert refused.status_code in {409, 422}
        both = await asyncio.gather(
            *(sign_up(server, name, invitation=f" {code} ") for name in ("Ben", "Cleo"))
        )
        assert sorted(answer.status_code for answer in both) == [201, 403]
        stretches.clear()
        problem(await sign_up(server, "Dan", invitation=code), 403, "invitation-not-valid")
        assert stretches == []


async def test_an_invalid_invitation_is_refused(
    sqlite_url: str, tmp_path: Path, clock: Clock
) -> None:
    async with (
        running(sqlite_url, tmp_path, registration="invitation") as server,
        server.account() as ada,
    ):
        invitations = "/api/v1/admin/invitations"
        withdrawn, expiring = await invite(ada), await invite(ada, days=7)
        listed = ok(await ada.client.get(invitations))["items"]
        assert [each["code"] for each in listed] == [None, None]
        gone = await ada.client.delete(f"{invitations}/{listed[-1]['id']}")
        assert gone.status_code == 204
        for code in ("", "nonsense", "inv_" + "A" * 43, withdrawn):
            answer = await sign_up(server, "Ben", invitation=code)
            problem(answer, 403, "invitation-not-valid")
        clock.forward(days=7)
        problem(await sign_up(server, "Ben", invitation=expiring), 403, "invitation-not-valid")


async def instance(client: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = ok(await client.get("/api/v1/instance"))
    return found


@pytest.mark.parametrize("registration", ["open", "invitation", "closed"])
async def test_the_first_sign_up_is_open_and_later_ones_follow_the_settings(
    sqlite_url: str, tmp_path: Path, registration: str
) -> None:
    async with (
        running(sqlite_url, tmp_path, registration=registration) as server,
        server.browser() as client,
    ):
        before = await instance(client)
        assert before == {"version": backend.__version__, "sign_up": "first", "user": None}
        async with server.account("Ada"):
            assert (await instance(client))["sign_up"] == registration


async def test_the_instance_names_the_signed_in_user(ada: Account) -> None:
    assert (await instance(ada.client))["user"] == ok(await ada.client.get("/api/v1/me"))


async def test_an_ended_session_has_no_user(server: Running, ada: Account) -> None:
    token = ada.client.cookies["talekeeper_session"]
    ok(await ada.client.delete("/api/v1/sessions/current"), 204)
    async with server.browser() as client:
        client.cookies.set("talekeeper_session", token)
        assert (await instance(client))["user"] is None


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
