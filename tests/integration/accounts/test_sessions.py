"""Tests of sessions and API keys: listing, expiry, and their end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from sqlalchemy import func, select

from backend.accounts.auth import sessions
from backend.accounts.auth.identity import Identity, TokenKind
from backend.accounts.auth.middleware import MAX_CONCURRENT_AUTHENTICATIONS, PLAIN_COOKIE
from backend.accounts.auth.sessions import SessionService
from backend.accounts.models import KeySlot
from backend.turns.api import streaming
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Gate
from tests.support.clock import Clock
from tests.support.models import asking, held_back
from tests.support.server import PASSWORD, Account, Running, ok, problem, read_events, running
from tests.support.waiting import until_true

pytestmark = pytest.mark.anyio

SESSIONS = "/api/v1/sessions"
ME = "/api/v1/me"


async def list_sessions(account: Account) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = ok(await account.client.get(SESSIONS))["items"]
    return items


async def test_sessions_are_listed_with_their_browser_and_ended_one_by_one(
    server: Running, ada: Account
) -> None:
    async with server.browser() as phone:
        phone.headers["User-Agent"] = "A phone"
        ok(await phone.post(SESSIONS, json={"username": "Ada", "password": PASSWORD}), 201)
        newest, oldest = await list_sessions(ada)
        assert (newest["label"], newest["is_current"]) == ("A phone", False)
        assert oldest["is_current"] is True
        ended = await ada.client.delete(f"{SESSIONS}/{newest['id']}")
        assert ended.status_code == 204
        problem(await phone.get(ME), 401, "unauthenticated")
        again = await ada.client.delete(f"{SESSIONS}/{newest['id']}")
        problem(again, 404, "session-not-found")
    assert len(await list_sessions(ada)) == 1


async def test_logging_out_ends_the_session_and_not_only_the_cookie(
    server: Running, ada: Account
) -> None:
    token = ada.client.cookies[PLAIN_COOKIE]
    out = await ada.client.delete(f"{SESSIONS}/current")
    assert out.status_code == 204
    assert dict(ada.client.cookies) == {}
    async with server.browser() as thief:
        thief.cookies.set(PLAIN_COOKIE, token, domain="127.0.0.1")
        problem(await thief.get(ME), 401, "unauthenticated")


@pytest.mark.every_database
async def test_a_session_outlives_a_restart_of_the_server(
    database_url: str, tmp_path: Path
) -> None:
    async with running(database_url, tmp_path) as server, server.account("Ada") as ada:
        await ada.new_chat(title="The lighthouse")
        cookies = httpx.Cookies(ada.client.cookies)
    async with running(database_url, tmp_path) as server, server.browser() as client:
        client.cookies = cookies
        chats = ok(await client.get("/api/v1/chats"))["items"]
        assert [chat["title"] for chat in chats] == ["The lighthouse"]
        ok(await client.post("/api/v1/chats", json={}), 201)


@pytest.mark.parametrize(
    ("uses", "pause", "last_pause"), [(2, 29, 30), (9, 19, 9)], ids=["unused", "too old"]
)
async def test_a_session_ends_after_a_month_without_use_or_half_a_year(
    server: Running, ada: Account, clock: Clock, uses: int, pause: int, last_pause: int
) -> None:
    for _ in range(uses):
        clock.forward(days=pause)
        ok(await ada.client.get(ME))
    clock.forward(days=last_pause, seconds=1)
    problem(await ada.client.get(ME), 401, "unauthenticated")


async def test_expired_sessions_are_hidden_and_deleted_at_the_next_sign_in(
    server: Running, ada: Account, clock: Clock
) -> None:
    async def rows() -> int | None:
        async with server.parts.database.read() as session:
            query = select(func.count()).where(KeySlot.kind == "session")
            return await session.scalar(query)

    clock.forward(days=20)
    async with server.signed_in("Ada"):
        clock.forward(days=20)
        async with server.signed_in("Ada") as third:
            assert len(await list_sessions(third)) == 2
            assert await rows() == 2


async def follow(client: httpx.AsyncClient, turn_id: str) -> set[str]:
    async with client.stream("GET", f"/api/v1/turns/{turn_id}/events") as response:
        return {event.name async for event in read_events(response)}


def test_streams_look_around_often_enough_to_close_within_five_seconds() -> None:
    assert sessions.CHECK_SECONDS + streaming.BEAT_SECONDS < 5


async def test_streams_close_when_their_session_ends_and_the_turn_goes_on(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(streaming, "BEAT_SECONDS", 0.02)
    gate = Gate()
    async with (
        OpenAIServer() as model,
        running(sqlite_url, tmp_path, **asking(model)) as server,
        server.account("Ada") as ada,
        server.signed_in("Ada") as phone,
        server.signed_in("Ada") as laptop,
        server.signed_in("Ada") as tablet,
    ):
        key = ok(await ada.client.post("/api/v1/api-keys", json={"label": "script"}), 201)
        chat_id, turn_id = (await ada.new_chat())["id"], str(uuid4())
        model.script(held_back(gate))
        async with server.program(key["token"]) as script:
            own = asyncio.create_task(ada.turn(chat_id, text="Tell me.", turn_id=turn_id))
            await until_true(lambda: server.parts.turns.runs.get(UUID(turn_id)) is not None)
            clients = (phone.client, laptop.client, tablet.client, script)
            others = [asyncio.create_task(follow(client, turn_id)) for client in clients]
            await until_true(lambda: server.parts.watch.stream_count >= len(clients) + 1)

            current = next(each for each in await list_sessions(phone) if each["is_current"])
            ok(await ada.client.delete(f"{SESSIONS}/{current['id']}"), 204)
            ok(await laptop.client.delete(f"{SESSIONS}/current"), 204)
            ok(await ada.client.delete(f"/api/v1/api-keys/{key['key']['id']}"), 204)
            change = {"current_password": PASSWORD, "new_password": "an even finer password"}
            ok(await ada.client.post(f"{ME}/password", json=change), 204)

            for names in await asyncio.gather(*others):
                assert not names & {"turn.completed", "turn.failed"}
            assert not own.done()
            gate.opened.set()
            assert (await own)[-1].name == "turn.completed"
        line = (await ada.messages(chat_id))[-1]
        assert (line["status"], line["text"]) == ("complete", "Once upon a time.")


async def test_a_turn_whose_only_listener_was_shut_out_is_stored_all_the_same(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(streaming, "BEAT_SECONDS", 0.02)
    gate = Gate()
    async with (
        OpenAIServer() as model,
        running(sqlite_url, tmp_path, **asking(model)) as server,
        server.account("Ada") as ada,
        server.signed_in("Ada") as phone,
    ):
        chat_id = (await ada.new_chat())["id"]
        model.script(held_back(gate))
        stream = asyncio.create_task(phone.turn(chat_id, text="Tell me."))
        runs = server.parts.turns.runs
        await until_true(lambda: len(runs))
        change = {"current_password": PASSWORD, "new_password": "an even finer password"}
        ok(await ada.client.post(f"{ME}/password", json=change), 204)
        assert "turn.completed" not in {event.name for event in await stream}
        gate.opened.set()
        await until_true(lambda: not len(runs))
        line = (await ada.messages(chat_id))[-1]
        assert (line["status"], line["text"]) == ("complete", "Once upon a time.")


async def test_many_requests_with_one_session_leave_room_for_others(
    server: Running, ada: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside: list[str] = []
    most_of_ada = 0
    may_pass = asyncio.Event()
    authenticate = SessionService.authenticate
    own = ada.client.cookies[PLAIN_COOKIE]

    async def held(service: SessionService, token: str, kind: TokenKind) -> Identity | None:
        nonlocal most_of_ada
        inside.append(token)
        most_of_ada = max(most_of_ada, inside.count(own))
        if token == own:
            await may_pass.wait()
        inside.remove(token)
        return await authenticate(service, token, kind)

    async with server.account("Bea") as bea:
        monkeypatch.setattr(SessionService, "authenticate", held)
        requests = [asyncio.create_task(ada.client.get(ME)) for _ in range(20)]
        await until_true(lambda: len(inside) >= MAX_CONCURRENT_AUTHENTICATIONS)
        ok(await bea.client.get(ME))
        assert inside == [own] * MAX_CONCURRENT_AUTHENTICATIONS
        may_pass.set()
        for answer in await asyncio.gather(*requests):
            ok(answer)
    assert (most_of_ada, inside) == (MAX_CONCURRENT_AUTHENTICATIONS, [])


KEYS = "/api/v1/api-keys"


async def make_key(account: Account, **body: Any) -> dict[str, Any]:
    made: dict[str, Any] = ok(
        await account.client.post(KEYS, json={"label": "script", **body}), 201
    )
    return made


async def test_a_token_is_shown_once_and_opens_the_account(server: Running, ada: Account) -> None:
    made = await make_key(ada, label="My script")
    assert made["token"].startswith("tk_")
    (listed,) = ok(await ada.client.get(KEYS))["items"]
    assert listed == made["key"]
    assert (listed["label"], listed["scope"], listed["last_used_at"]) == ("My script", "chat", None)
    async with server.program(made["token"]) as script:
        assert ok(await script.get(ME))["username"] == "Ada"
    (used,) = ok(await ada.client.get(KEYS))["items"]
    assert used["last_used_at"] is not None


async def test_a_key_that_was_ended_opens_nothing(server: Running, ada: Account) -> None:
    made = await make_key(ada)
    async with server.program(made["token"]) as script:
        ok(await script.get(ME))
        ended = await ada.client.delete(f"{KEYS}/{made['key']['id']}")
        assert ended.status_code == 204
        problem(await script.get(ME), 401, "unauthenticated")
    again = await ada.client.delete(f"{KEYS}/{made['key']['id']}")
    problem(again, 404, "api-key-not-found")


async def test_a_key_works_until_it_expires(server: Running, ada: Account, clock: Clock) -> None:
    made = await make_key(ada, expires_at=(clock.at + timedelta(days=1)).isoformat())
    lasting = await make_key(ada)
    async with server.program(made["token"]) as script, server.program(lasting["token"]) as other:
        ok(await script.get(ME))
        clock.forward(days=1)
        problem(await script.get(ME), 401, "unauthenticated")
        clock.forward(days=20)
        ok(await other.get(ME))
    assert len(ok(await ada.client.get(KEYS))["items"]) == 1


async def test_an_expiry_that_cannot_be_is_refused(ada: Account) -> None:
    for at, status, slug in (
        ("2999-01-01T00:00:00", 400, "bad-request"),
        ("2020-01-01T00:00:00Z", 422, "validation-failed"),
        ("9999-12-31T23:59:59-01:00", 422, "validation-failed"),
        ("0001-01-01T00:00:00+01:00", 422, "validation-failed"),
        ("tomorrow", 422, "validation-failed"),
    ):
        answer = await ada.client.post(KEYS, json={"label": "script", "expires_at": at})
        problem(answer, status, slug)
    assert ok(await ada.client.get(KEYS))["items"] == []


async def test_keys_and_sessions_do_not_pass_for_each_other(server: Running, ada: Account) -> None:
    key = (await make_key(ada, scope="manage"))["token"]
    session = ada.client.cookies[PLAIN_COOKIE]
    async with server.program(session) as client:
        problem(await client.get(ME), 401, "unauthenticated")
    async with server.browser() as client:
        client.cookies.set(PLAIN_COOKIE, key, domain="127.0.0.1")
        problem(await client.get(ME), 401, "unauthenticated")


async def test_a_key_that_opens_nothing_is_not_helped_by_a_cookie(ada: Account) -> None:
    answer = await ada.client.get(ME, headers={"Authorization": "Bearer tk_" + "A" * 43})
    problem(answer, 401, "unauthenticated")


async def test_a_key_has_no_session_to_end(server: Running, ada: Account) -> None:
    made = await make_key(ada, scope="manage")
    async with server.program(made["token"]) as script:
        for each in ("current", made["key"]["id"], "no id"):
            problem(await script.delete(f"/api/v1/sessions/{each}"), 404, "session-not-found")
        ok(await script.get(ME))
