"""Sessions: where they are seen, what ends them, and what ends with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select

from backend.accounts import watch
from backend.accounts.door import PLAIN_COOKIE
from backend.accounts.models import KeySlot
from backend.turns import controller as turns_controller
from tests.support.clock import Clock
from tests.support.server import PASSWORD, Account, Event, Running, ok, problem, read_events, running

pytestmark = pytest.mark.anyio

SESSIONS = "/api/v1/sessions"
ME = "/api/v1/me"
NEW_PASSWORD = "an even finer password"


async def sessions_of(account: Account) -> list[dict[str, object]]:
    items: list[dict[str, object]] = ok(await account.client.get(SESSIONS))["items"]
    return items


async def test_sessions_are_listed_with_their_browser_and_ended_one_by_one(
    server: Running, ada: Account
) -> None:
    async with server.browser() as phone:
        phone.headers["User-Agent"] = "A phone"
        ok(await phone.post(SESSIONS, json={"username": "Ada", "password": PASSWORD}), 201)
        newest, oldest = await sessions_of(ada)
        assert (newest["label"], newest["is_current"]) == ("A phone", False)
        assert oldest["is_current"] is True

        ended = await ada.client.delete(f"{SESSIONS}/{newest['id']}")
        assert ended.status_code == 204
        problem(await phone.get(ME), 401, "unauthenticated")
        again = await ada.client.delete(f"{SESSIONS}/{newest['id']}")
        problem(again, 404, "session-not-found")
    assert len(await sessions_of(ada)) == 1


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


async def test_a_session_that_nobody_uses_for_a_month_has_ended(
    server: Running, ada: Account, clock: Clock
) -> None:
    clock.forward(days=29)
    ok(await ada.client.get(ME))
    clock.forward(days=29)
    ok(await ada.client.get(ME))
    clock.forward(days=30, seconds=1)
    problem(await ada.client.get(ME), 401, "unauthenticated")


async def test_a_session_that_is_used_every_day_ends_after_half_a_year(
    server: Running, ada: Account, clock: Clock
) -> None:
    for _ in range(9):
        clock.forward(days=19)
        ok(await ada.client.get(ME))
    clock.forward(days=9, seconds=1)
    problem(await ada.client.get(ME), 401, "unauthenticated")


async def test_what_has_run_out_is_not_listed_and_cleared_away_at_the_next_log_in(
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
            assert len(await sessions_of(third)) == 2
            assert await rows() == 2


@asynccontextmanager
async def slow_turn(account: Account, client: httpx.AsyncClient) -> AsyncGenerator[SlowTurn]:
    """A turn that takes a few seconds, in a chat of the account's, followed by `client`."""
    chat_id = (await account.new_chat())["id"]
    async with client.stream(
        "POST", f"/api/v1/chats/{chat_id}/turns", json={"text": "/demo long 40"}
    ) as response:
        events = read_events(response)
        first = await anext(events)
        yield SlowTurn(chat_id, first, events)


class SlowTurn:
    """A turn that somebody is listening to."""

    def __init__(
        self, chat_id: str, started: Event, events: AsyncGenerator[Event] | object
    ) -> None:
        self.chat_id = chat_id
        self.started = started
        self._events = events

    async def rest(self) -> list[str]:
        """What came until the stream closed, by the events' names."""
        return [event.name async for event in self._events]  # type: ignore[attr-defined]


async def end_the_session(ada: Account, other: Account) -> None:
    current = next(each for each in await sessions_of(other) if each["is_current"])
    ok(await ada.client.delete(f"{SESSIONS}/{current['id']}"), 204)


async def change_the_password(ada: Account, other: Account) -> None:
    change = {"current_password": PASSWORD, "new_password": NEW_PASSWORD}
    ok(await ada.client.post(f"{ME}/password", json=change), 204)


async def log_out(ada: Account, other: Account) -> None:
    ok(await other.client.delete(f"{SESSIONS}/current"), 204)


@pytest.fixture
async def at_a_slow_pace(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Running]:
    """A model that takes two seconds, and streams that look around often."""
    monkeypatch.setattr(watch, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(turns_controller, "BEAT_SECONDS", 0.05)
    async with running(database_url, tmp_path, demo_tokens_per_second=20) as server:
        yield server


def test_streams_look_around_often_enough_to_close_within_five_seconds() -> None:
    assert watch.LOOK_EVERY + turns_controller.BEAT_SECONDS < 5


@pytest.mark.parametrize("how", [end_the_session, change_the_password, log_out])
async def test_a_stream_closes_when_its_session_ends_and_the_turn_goes_on(
    at_a_slow_pace: Running, how: Callable[[Account, Account], Awaitable[None]]
) -> None:
    server = at_a_slow_pace
    async with (
        server.account("Ada") as ada,
        server.signed_in("Ada") as other,
        slow_turn(ada, other.client) as turn,
    ):
        await how(ada, other)
        names = await turn.rest()
        assert "turn.completed" not in names
        assert "turn.failed" not in names
        problem(await other.client.get(ME), 401, "unauthenticated")
        while (line := (await ada.messages(turn.chat_id))[-1])["status"] == "streaming":
            await asyncio.sleep(0.05)
        assert line["status"] == "complete"
        assert len(line["text"].split()) == 40
