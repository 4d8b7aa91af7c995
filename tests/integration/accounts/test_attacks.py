"""Tests of attacks: floods, pages of other sites, and tampering with the database."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import func, select, update

from backend.accounts.auth import credentials
from backend.accounts.auth.middleware import CSRF_COOKIE, CSRF_HEADER, PLAIN_COOKIE
from backend.accounts.auth.throttle import ACCOUNT_ALLOWANCE
from backend.accounts.keys.rotation import request_new_data_keys
from backend.accounts.models import DataKey, InstanceKey, KeySlot, User
from backend.chats.models import Message
from backend.vault.root import RootKeyError
from tests.support.clock import Clock
from tests.support.factors import sign_in
from tests.support.logs import Logged
from tests.support.server import PASSWORD, Account, Running, ok, problem, running

pytestmark = pytest.mark.anyio

ACCOUNTS = "/api/v1/accounts"
API_KEYS = "/api/v1/api-keys"
CHATS = "/api/v1/chats"
ME = "/api/v1/me"
RECOVERIES = "/api/v1/recoveries"
SESSIONS = "/api/v1/sessions"
NEW = "an even finer password"
WRONG = "not the password"
ELSEWHERE = "https://elsewhere.example"


async def send(server: Running, path: str, body: Any, **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    async with server.browser() as client:
        return await client.post(path, json=body, headers=names)


async def make_key(account: Account, scope: str = "manage") -> str:
    body = {"label": "script", "scope": scope}
    token: str = ok(await account.client.post(API_KEYS, json=body), 201)["token"]
    return token


async def test_an_address_that_looks_for_names_that_are_taken_has_to_wait(
    server: Running, ada: Account, clock: Clock, stretches: list[tuple[int, int, int]]
) -> None:
    stretches.clear()
    taken = {"username": "Ada", "password": PASSWORD}
    free = {"username": "Ben", "password": PASSWORD}
    for _ in range(5):
        answer = await send(server, ACCOUNTS, taken, X_Forwarded_For="198.51.100.1")
        problem(answer, 409, "name-taken")
    assert stretches == []  # no password is stretched for a name that is refused
    refused = await send(server, ACCOUNTS, free, X_Forwarded_For="198.51.100.1")
    problem(refused, 429, "too-many-attempts")
    ok(await send(server, ACCOUNTS, free, X_Forwarded_For="198.51.100.2"), 201)


async def test_people_who_sign_up_from_one_address_one_after_the_other_do_not_wait(
    server: Running, clock: Clock
) -> None:
    for n in range(8):
        body = {"username": f"person{n}", "password": PASSWORD}
        ok(await send(server, ACCOUNTS, body), 201)


async def test_a_sign_in_is_refused_if_too_many_wait(
    server: Running, ada: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "MAX_WAITING_PASSWORDS", 0)
    answer = await sign_in(server)
    body = problem(answer, 503, "busy")
    assert int(answer.headers["retry-after"]) == body["retry_after"] > 0
    monkeypatch.undo()
    ok(await sign_in(server), 201)


async def test_guesses_from_one_address_do_not_lock_the_owner_out_elsewhere(
    server: Running, ada: Account, clock: Clock
) -> None:
    for _ in range(5):
        problem(await sign_in(server, password=WRONG), 401, "wrong-credentials")
    delay = 1
    for _ in range(12):  # renewing the delay for as long as one likes
        problem(await sign_in(server, password=WRONG), 429, "too-many-attempts")
        clock.forward(seconds=delay)
        delay = min(2 * delay, 900)
        problem(await sign_in(server, password=WRONG), 401, "wrong-credentials")
    problem(await sign_in(server), 429, "too-many-attempts")
    ok(await sign_in(server, address="203.0.113.1"), 201)


async def test_guesses_from_many_addresses_make_the_account_wait_in_the_end(
    server: Running, ada: Account, clock: Clock
) -> None:
    for n in range(ACCOUNT_ALLOWANCE.free):
        answer = await sign_in(server, password=WRONG, address=f"198.51.100.{n}")
        problem(answer, 401, "wrong-credentials")
    problem(await sign_in(server, address="203.0.113.1"), 429, "too-many-attempts")
    clock.forward(seconds=1)
    ok(await sign_in(server, address="203.0.113.1"), 201)


@pytest.mark.parametrize("path", [ACCOUNTS, SESSIONS, RECOVERIES])
async def test_long_bodies_without_sign_in_are_refused(server: Running, path: str) -> None:
    body = {"username": "Ada", "password": "x" * 20_000}
    problem(await send(server, path, body), 413, "too-large")


async def test_the_first_account_is_not_made_under_another_sites_name(server: Running) -> None:
    """A domain that points at this machine would make its pages same-origin."""
    body = {"username": "Eve", "password": PASSWORD}
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000"):
        for headers in ({}, {"Origin": f"http://{host}"}, {"Authorization": "Bearer x"}):
            answer = await send(server, ACCOUNTS, body, Host=host, **headers)
            detail = problem(answer, 403, "unknown-host")["detail"]
            assert "TALEKEEPER_PUBLIC_ORIGIN" in detail
            assert "TALEKEEPER_ALLOWED_HOSTS" in detail
    made = await send(server, ACCOUNTS, body, Host="LOCALHOST:8000")
    assert ok(made, 201)["user"]["is_administrator"] is True


async def test_texts_are_not_read_under_another_sites_name_either(
    server: Running, ada: Account
) -> None:
    token = await make_key(ada)
    async with server.program(token) as script:
        for client in (ada.client, script):
            answer = await client.get(ME, headers={"Host": "evil.example"})
            problem(answer, 403, "unknown-host")
        for host in ("localhost", "127.0.0.1:1", "[::1]:8000", "192.168.1.4", "[2001:db8::1]"):
            ok(await script.get(ME, headers={"Host": host}))
        ok(await script.get("/health", headers={"Host": "anything.internal"}))


async def test_the_public_name_is_the_servers_own(sqlite_url: str, tmp_path: Path) -> None:
    async with (
        running(sqlite_url, tmp_path, public_origin="https://Tales.example:8443/") as server,
        server.account("Ada") as ada,
    ):
        ok(await ada.client.get(ME, headers={"Host": "tales.example"}))
        problem(await ada.client.get(ME, headers={"Host": "x.tales.example"}), 403, "unknown-host")


async def test_a_key_that_may_be_none_does_not_excuse_another_sites_page(
    server: Running, ada: Account
) -> None:
    body = {"username": "Eve", "password": PASSWORD}
    answer = await send(server, ACCOUNTS, body, Origin=ELSEWHERE, Authorization="Bearer x")
    problem(answer, 403, "cross-site-request")
    async with server.program(await make_key(ada)) as script:
        answer = await script.post(CHATS, json={}, headers={"Sec-Fetch-Site": "cross-site"})
        problem(answer, 403, "cross-site-request")
        ok(await script.post(CHATS, json={}), 201)


async def test_a_token_of_no_letters_or_strange_ones_is_refused_before_the_upload_is_read(
    server: Running, ada: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    ada.client.event_hooks = {}
    for token in (b"", "é".encode(), b"\xe9" * 128):
        answer = await ada.client.post(
            "/api/v1/characters/import",
            files={"file": b"x" * 3_000_000},
            headers=[(CSRF_HEADER.encode(), token)],
        )
        problem(answer, 403, "cross-site-request")


async def test_a_cookie_of_strange_letters_is_no_token(server: Running, ada: Account) -> None:
    session = ada.client.cookies[PLAIN_COOKIE]
    cookies = f"{PLAIN_COOKIE}={session}; {CSRF_COOKIE}=".encode() + b"\xe9" * 128
    async with server.browser() as client:
        answer = await client.post(
            CHATS, json={}, headers=[(b"cookie", cookies), (CSRF_HEADER.encode(), b"e" * 128)]
        )
    problem(answer, 403, "cross-site-request")


async def test_an_api_key_makes_no_other_that_would_outlive_it(
    server: Running, ada: Account
) -> None:
    async with server.program(await make_key(ada)) as script:
        answer = await script.post(API_KEYS, json={"label": "another"})
        assert "Sign in" in problem(answer, 403, "forbidden")["detail"]
        assert len(ok(await script.get(API_KEYS))["items"]) == 1


async def data_keys(server: Running) -> list[int]:
    async with server.parts.database.read() as session:
        return list(await session.scalars(select(DataKey.number).order_by(DataKey.number)))


async def test_a_data_key_that_is_due_is_created_at_the_next_sign_in(either: Running) -> None:
    async with either.account("Ada") as ada:
        old = await ada.new_chat(title="The lighthouse")
        assert await request_new_data_keys(either.parts.database) == 1
        await ada.new_chat(title="The cellar")  # no log-in
        assert await data_keys(either) == [1]
        async with either.signed_in("Ada") as other:
            assert await data_keys(either) == [1, 2]
            new = await other.new_chat(title="The attic")
            # Each session reads texts under the old key and the new one.
            for client in (ada.client, other.client):
                for chat in (old, new):
                    shown = ok(await client.get(f"{CHATS}/{chat['id']}"))
                    assert shown["title"] == chat["title"]
            labels = [each["label"] for each in ok(await other.client.get(SESSIONS))["items"]]
            assert all(label.startswith("python-httpx") for label in labels)
        ok(await sign_in(either), 201)
        assert await data_keys(either) == [1, 2]


async def test_two_sign_ins_at_the_same_time_create_one_data_key(either: Running) -> None:
    async with either.account("Ada"):
        await request_new_data_keys(either.parts.database)
        for answer in await asyncio.gather(sign_in(either), sign_in(either)):
            ok(answer, 201)
        assert await data_keys(either) == [1, 2]


async def test_a_server_with_an_older_root_key_wraps_nothing_under_it(
    either: Running, logged: Logged
) -> None:
    async with either.account("Ada") as ada:
        async with either.parts.database.write() as session:
            await session.execute(update(InstanceKey).values(root_version=2))
        change = {"current_password": PASSWORD, "new_password": NEW}
        recovery = {"username": "Ada", "recovery_code": ada.recovery_code, "new_password": NEW}
        for path, body in (
            (ACCOUNTS, {"username": "Ben", "password": PASSWORD}),
            (RECOVERIES, recovery),
            (f"{ME}/password", change),
            (f"{ME}/rotate-key", {"password": PASSWORD}),
            (f"{ME}/recovery-code", {"password": PASSWORD}),
            ("/api/v1/api-keys", {"label": "script"}),
            ("/api/v1/sessions", {"username": "Ada", "password": PASSWORD}),
        ):
            answer = await ada.client.post(path, json=body)
            problem(answer, 500, "root-key")
        async with either.parts.database.read() as session:
            assert await session.scalar(select(func.count()).select_from(User)) == 1


async def test_a_client_gets_the_id_of_a_crash_but_not_its_details(
    server: Running, ada: Account, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise RootKeyError("Put it into /srv/keys/root.key.", extra={"path": "/srv/keys"})

    monkeypatch.setattr(server.parts.chats, "list_chats", fail)
    answer = await ada.client.get(CHATS)
    body = problem(answer, 500, "root-key")
    assert set(body) == {"type", "title", "status", "detail", "error_id"}
    assert "/srv" not in answer.text
    (line,) = logged.lines("request.crashed")
    assert (line["error_id"], line["problem"]) == (body["error_id"], "root-key")


async def test_a_host_of_the_settings_is_allowed(database_url: str, tmp_path: Path) -> None:
    async with (
        running(database_url, tmp_path, allowed_hosts=("tales.lan",)) as server,
        server.account() as ada,
    ):
        made = ok(await ada.client.post(API_KEYS, json={"label": "script"}), 201)
        # A program's: over plain http only this machine's own names have sessions.
        async with server.program(made["token"]) as script:
            for host, status in (("tales.lan", 200), ("evil.example", 403)):
                answer = await script.get(ME, headers={"Host": host})
                assert answer.status_code == status, answer.text
        problem(await ada.client.get(ME, headers={"Host": "tales.lan"}), 401, "unauthenticated")


async def tamper(server: Running, table: Any, **values: Any) -> None:
    async with server.parts.database.write() as session:
        await session.execute(update(table).values(**values))


async def weaken_kdf(server: Running, **costs: int) -> None:
    async with server.parts.database.write() as session:
        for slot in await session.scalars(select(KeySlot).where(KeySlot.kind == "password")):
            slot.kdf = json.dumps({**json.loads(slot.kdf or b"{}"), **costs}).encode()


async def test_a_key_mode_that_other_hands_set_locks_the_account_until_it_is_put_back(
    server: Running, ada: Account
) -> None:
    made = ok(await ada.client.post("/api/v1/api-keys", json={"label": "script"}), 201)
    ok(await ada.client.patch(ME, json={"key_mode": "sealed"}))
    await tamper(server, User, key_mode="per_job")
    async with server.program(made["token"]) as script, server.browser() as client:
        recovery = {"username": "Ada", "recovery_code": ada.recovery_code, "new_password": NEW}
        for answer in (
            await ada.client.get(ME),
            await ada.client.patch(ME, json={"key_mode": "per_job"}),
            await script.get(CHATS),
            await sign_in(server),
            # A recovery writes a new MAC, which would authenticate the tampered row.
            await client.post("/api/v1/recoveries", json=recovery),
        ):
            problem(answer, 403, "account-tampered")
    await tamper(server, User, key_mode="sealed")
    assert ok(await ada.client.get(ME))["key_mode"] == "sealed"
    ok(await sign_in(server), 201)


async def test_a_generation_that_other_hands_set_locks_the_account(
    server: Running, ada: Account
) -> None:
    for generation in (0, 2):
        await tamper(server, User, key_generation=generation)
        for answer in (await ada.client.get(ME), await sign_in(server)):
            problem(answer, 403, "account-tampered")
    await tamper(server, User, key_generation=1)
    ok(await ada.client.get(ME))


async def test_cheaper_password_costs_are_noticed_and_logged(
    server: Running, ada: Account, logged: Logged
) -> None:
    await weaken_kdf(server, memory_kib=8)
    problem(await ada.client.get(ME), 403, "account-tampered")
    (line,) = logged.lines("account.tampered")
    assert (line["user_id"], line["level"]) == (ada.user["id"], "error")
    change = {"current_password": PASSWORD, "new_password": NEW}
    problem(await ada.client.post(f"{ME}/password", json=change), 403, "account-tampered")
    # With other costs the password opens nothing, so there is no key to check the MAC.
    problem(await sign_in(server), 401, "wrong-credentials")


async def test_impossible_costs_differ_from_a_wrong_password(server: Running, ada: Account) -> None:
    await weaken_kdf(server, memory_kib=1)
    problem(await sign_in(server), 403, "account-tampered")
    await tamper(server, KeySlot, kdf=b"no json")
    problem(await sign_in(server), 403, "account-tampered")


@pytest.mark.parametrize(
    "costs", [{"memory_kib": 2**20 + 1}, {"passes": 17}, {"lanes": 17}, {"passes": 0}]
)
async def test_costs_that_would_eat_all_memory_are_not_tried(
    server: Running, ada: Account, costs: dict[str, int], stretches: list[tuple[int, int, int]]
) -> None:
    stretches.clear()
    await weaken_kdf(server, **costs)
    problem(await sign_in(server), 403, "account-tampered")
    assert stretches == []


async def test_a_session_that_is_moved_to_another_account_opens_nothing(
    server: Running, ada: Account
) -> None:
    async with server.account("Eve") as eve:
        async with server.parts.database.write() as session:
            await session.execute(
                update(KeySlot)
                .where(KeySlot.user_id == UUID(eve.user["id"]), KeySlot.kind == "session")
                .values(user_id=UUID(ada.user["id"]))
            )
        problem(await eve.client.get(ME), 401, "unauthenticated")


async def test_a_data_key_that_is_moved_to_another_account_does_not_open(
    server: Running, ada: Account, logged: Logged
) -> None:
    async with server.account("Eve") as eve:
        async with server.parts.database.write() as session:
            await session.execute(
                update(DataKey)
                .where(DataKey.user_id == UUID(ada.user["id"]))
                .values(user_id=UUID(eve.user["id"]), number=2)
            )
        problem(await eve.client.get(ME), 403, "account-tampered")


async def test_a_text_that_is_moved_to_another_account_does_not_open(
    server: Running, ada: Account, logged: Logged
) -> None:
    async with server.account("Eve") as eve:
        chats = [(await person.new_chat())["id"] for person in (ada, eve)]
        for person, chat, text in zip((ada, eve), chats, ("My secret.", "Mine!"), strict=True):
            await person.turn(chat, text=text)
        mine = (await eve.messages(chats[1]))[0]["id"]
        async with server.parts.database.write() as session:
            query = select(Message).where(
                Message.user_id == UUID(ada.user["id"]), Message.role == "user"
            )
            stolen = (await session.scalars(query)).one()
            into = update(Message).where(Message.id == UUID(mine))
            await session.execute(into.values(sealed_content=stolen.sealed_content))
            stolen.user_id, stolen.chat_id = UUID(eve.user["id"]), UUID(chats[1])
        for path in (f"/api/v1/messages/{mine}", f"/api/v1/messages/{stolen.id}"):
            answer = await eve.client.get(path)
            problem(answer, 500, "seal-broken")
            assert "secret" not in answer.text
