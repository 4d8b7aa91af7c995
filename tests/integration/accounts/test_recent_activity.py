"""Tests of the list of recent activity."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import select, text

from backend.accounts.models import ActivityEntry
from backend.accounts.profile import activity
from backend.accounts.profile.activity import describe_client
from backend.operations.pruning import prune
from tests.support.clock import Clock
from tests.support.routes import routes_of
from tests.support.server import PASSWORD, Account, Running, ok, problem, read_pages

pytestmark = pytest.mark.anyio

ACTIVITY = "/api/v1/me/activity"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
EDGE = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/140.0.0.0 Safari/537.36 Edg/140.0.0.0"
)
SAFARI = (
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) AppleWebKit/605.1.15 "
    "(KHTML, like Gecko) Version/18.6 Mobile/15E148 Safari/604.1"
)
ELSEWHERE = {"User-Agent": FIREFOX, "X-Forwarded-For": "198.51.100.7"}


async def entries(account: Account, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(await account.client.get(ACTIVITY, params=query))["items"]
    return found


def kinds(listed: list[dict[str, Any]]) -> list[str]:
    return [each["kind"] for each in listed]


async def sign_in_elsewhere(server: Running, name: str = "Ada") -> httpx.Response:
    async with server.browser() as client:
        body = {"username": name, "password": PASSWORD}
        return await client.post("/api/v1/sessions", json=body, headers=ELSEWHERE)


async def rows(server: Running) -> list[ActivityEntry]:
    async with server.parts.database.read() as session:
        return list(await session.scalars(select(ActivityEntry).order_by(ActivityEntry.id)))


@pytest.mark.every_database
async def test_sign_ins_are_listed_with_time_address_and_client(
    either: Running, clock: Clock
) -> None:
    async with either.account("Ada") as ada:
        clock.forward(hours=3)
        ok(await sign_in_elsewhere(either), 201)
        newest, first = await entries(ada)
        assert first["kind"] == "signed_up"
        assert newest["kind"] == "signed_in"
        assert newest["client"] == "Firefox on Linux"
        assert newest["address"] == "198.51.100.7"
        assert newest["via"] is None
        assert newest["at"] == clock.at.isoformat().replace("+00:00", "Z")
        assert newest["count"] == 1


async def test_changes_of_what_guards_the_account_are_listed(server: Running, ada: Account) -> None:
    client, me = ada.client, "/api/v1/me"
    made = ok(await client.post("/api/v1/api-keys", json={"label": "A script"}), 201)
    ok(await client.delete(f"/api/v1/api-keys/{made['key']['id']}"), 204)
    ok(await client.patch(me, json={"key_mode": "managed"}))
    ok(await client.patch(me, json={"key_mode": "managed"}))  # it is already
    ok(await client.post(f"{me}/recovery-code", json={"password": PASSWORD}), 201)
    new = "an even finer password"
    change = {"current_password": PASSWORD, "new_password": new}
    ok(await client.post(f"{me}/password", json=change), 204)
    problem(await client.post(f"{me}/password", json=change), 401, "wrong-credentials")

    listed = await entries(ada)

    assert kinds(listed) == [
        "password_changed",
        "recovery_code_made",
        "key_mode_changed",
        "api_key_ended",
        "api_key_made",
        "signed_up",
    ]
    assert [each["detail"] for each in listed][2:5] == ["managed", "", "A script (chat)"]
    assert {each["via"] for each in listed[:5]} == {"session"}


async def test_a_recovery_is_listed(server: Running, ada: Account) -> None:
    body = {
        "username": "Ada",
        "recovery_code": ada.recovery_code,
        "new_password": "an even finer password",
    }
    ok(await ada.client.post("/api/v1/recoveries", json=body), 201)
    assert kinds(await entries(ada)) == ["recovered", "signed_up"]


@pytest.mark.every_database
async def test_exports_are_listed_and_those_of_an_hour_are_counted_in_one_entry(
    either: Running, clock: Clock
) -> None:
    async with either.account("Ada") as ada:
        token = ok(await ada.client.post("/api/v1/api-keys", json={"label": "s"}), 201)["token"]
        character = (await ada.new_character())["id"]
        book = ok(await ada.client.post("/api/v1/lorebooks", json={"name": "Tides"}), 201)["id"]
        paths = (f"/api/v1/characters/{character}/export", f"/api/v1/lorebooks/{book}/export")
        for path in paths:
            answers = await asyncio.gather(*(ada.client.get(path) for _ in range(3)))
            assert {answer.status_code for answer in answers} == {200}
        async with either.program(token) as script:
            assert (await script.get(paths[0])).status_code == 200
        problem(await ada.client.get(paths[0].replace(character, book)), 404, "character-not-found")
        clock.forward(hours=1, seconds=1)
        assert (await ada.client.get(paths[0])).status_code == 200

        listed = [each for each in await entries(ada) if each["kind"] == "exported"]

    assert sum(each["count"] for each in listed) == 8
    assert {(each["detail"], each["via"]) for each in listed} == {
        ("character", "session"),
        ("lorebook", "session"),
        ("character", "api_key"),
    }
    assert listed[0]["count"] == 1


async def test_no_route_exports_without_an_entry(server: Running, ada: Account) -> None:
    exports = [route for route in routes_of(server.app) if route.path.endswith("/export")]
    for kind, body in (
        ("character", {"name": "Mara"}),
        ("lorebook", {"name": "Tides"}),
        ("chronicle", {"name": "The winter"}),
        ("campaign", {"name": "Seagate"}),
        ("preset", {"name": "Terse"}),
        ("chat", {"title": "By the sea"}),
    ):
        made = ok(await ada.client.post(f"/api/v1/{kind}s", json=body), 201)
        (route,) = [each for each in exports if f"{{{kind}_id}}" in each.path]
        exports.remove(route)
        assert (await ada.client.get(route.filled({f"{kind}_id": made["id"]}))).is_success
        assert (await entries(ada))[0]["detail"] == kind
    (several,) = [each for each in exports if each.path == "/api/v1/characters/export"]
    exports.remove(several)
    ids = [each["id"] for each in (await ada.get("/characters"))["items"]]
    before = sum(each["count"] for each in await entries(ada))
    assert (await ada.client.post(several.path, json={"character_ids": ids})).is_success
    assert sum(each["count"] for each in await entries(ada)) == before + 1
    assert exports == [], "let them leave an entry, and this test know them"


async def test_an_export_that_cannot_be_recorded_does_not_go_out(
    server: Running, ada: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    character = (await ada.new_character())["id"]

    async def fail(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(server.parts.activity, "note", fail)
    answer = await ada.client.get(f"/api/v1/characters/{character}/export?format=json")
    problem(answer, 500, "internal")
    assert "Mara" not in answer.text


async def test_nothing_of_an_entry_can_be_read_without_the_users_key(
    server: Running, ada: Account
) -> None:
    ok(await sign_in_elsewhere(server), 201)
    for row in await rows(server):
        for blob in (row.sealed_entry, row.sealed_address or b""):
            for word in (b"Firefox", b"signed", b"198.51"):
                assert word not in blob


@pytest.mark.every_database
async def test_addresses_go_after_thirty_days_and_entries_after_a_year(
    either: Running, clock: Clock
) -> None:
    database = either.parts.database
    async with either.account("Ada") as ada:
        clock.forward(days=29, hours=23)
        await prune(database, either.parts.settings, at=clock.at)
        assert (await entries(ada))[0]["address"] == "127.0.0.1"

        clock.forward(hours=1)
        # The address is hidden before the sweep deletes it.
        assert (await entries(ada))[0]["address"] is None
        assert [row.sealed_address is None for row in await rows(either)] == [False]
        await prune(database, either.parts.settings, at=clock.at)
        assert [row.sealed_address for row in await rows(either)] == [None]
        assert kinds(await entries(ada)) == ["signed_up"]

        clock.forward(days=335)
        ok(await sign_in_elsewhere(either), 201)
        await prune(database, either.parts.settings, at=clock.at)
        assert len(await rows(either)) == 1


async def test_the_sweep_of_addresses_goes_by_their_own_index(server: Running) -> None:
    query = (
        "EXPLAIN QUERY PLAN UPDATE account_activity SET sealed_address = NULL "
        "WHERE created_at <= '2026-01-01' AND sealed_address IS NOT NULL"
    )
    async with server.parts.database.read() as session:
        plan = " ".join(str(row) for row in await session.execute(text(query)))
    assert "ix_account_activity_addressed" in plan


async def test_the_oldest_entries_make_room_for_new_ones_of_the_same_account_alone(
    either: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "MAX_ENTRIES", 3)
    async with either.account("Ada") as ada, either.account("Ben") as ben:
        for number in range(4):
            body = {"label": f"key {number}"}
            ok(await ada.client.post("/api/v1/api-keys", json=body), 201)
        listed = await entries(ada)
        assert [each["detail"] for each in listed] == [f"key {n} (chat)" for n in (3, 2, 1)]
        assert kinds(await entries(ben)) == ["signed_up"]


async def test_the_list_comes_in_pages(server: Running, ada: Account) -> None:
    for number in range(4):
        ok(await ada.client.post("/api/v1/api-keys", json={"label": f"key {number}"}), 201)
    pages = await read_pages(ada.client.get, ACTIVITY, limit=2)
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [each for page in pages for each in page] == await entries(ada)


async def test_activity_of_other_accounts_is_hidden(server: Running, ada: Account) -> None:
    async with server.account("Ben") as ben:
        theirs = (await entries(ben))[0]["id"]
        assert len(await entries(ada)) == 1
        assert [each["id"] for each in await entries(ada, after=theirs)] != [theirs]
        async with server.parts.database.write() as session:
            row = await session.get_one(ActivityEntry, UUID(theirs))
            row.user_id = UUID(ada.user["id"])
        problem(await ada.client.get(ACTIVITY), 500, "seal-broken")


@pytest.mark.parametrize(
    ("user_agent", "client"),
    [
        (FIREFOX, "Firefox on Linux"),
        (EDGE, "Edge on Windows"),
        (SAFARI, "Safari on iPhone"),
        ("python-httpx/0.28.1", "python-httpx"),
        ("", ""),
        ("\x00<script>", ""),
    ],
)
async def test_a_client_is_described_without_its_version(user_agent: str, client: str) -> None:
    assert describe_client(user_agent) == client
