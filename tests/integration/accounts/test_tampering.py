"""What somebody gains who can write to the database, but has no key."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from backend.accounts.models import DataKey, KeySlot, User
from backend.chats.models import Message
from tests.support.logs import Logged
from tests.support.server import PASSWORD, Account, Running, ok, problem

pytestmark = pytest.mark.anyio

ME = "/api/v1/me"


async def tamper(server: Running, table: Any, **values: Any) -> None:
    """Change every row of a table."""
    async with server.parts.database.write() as session:
        await session.execute(update(table).values(**values))


async def weaken_kdf(server: Running, **costs: int) -> None:
    async with server.parts.database.write() as session:
        for slot in await session.scalars(select(KeySlot).where(KeySlot.kind == "password")):
            slot.kdf = json.dumps({**json.loads(slot.kdf or b"{}"), **costs}).encode()


async def log_in(server: Running, password: str = PASSWORD) -> Any:
    async with server.browser() as client:
        body = {"username": "Ada", "password": password}
        return await client.post("/api/v1/sessions", json=body)


async def test_a_key_mode_that_other_hands_set_locks_the_account_until_it_is_put_back(
    server: Running, ada: Account
) -> None:
    made = ok(await ada.client.post("/api/v1/api-keys", json={"label": "script"}), 201)
    ok(await ada.client.patch(ME, json={"key_mode": "sealed"}))
    await tamper(server, User, key_mode="per_job")
    async with server.program(made["token"]) as script, server.browser() as client:
        recovery = {
            "username": "Ada",
            "recovery_code": ada.recovery_code,
            "new_password": "an even finer password",
        }
        for answer in (
            await ada.client.get(ME),
            await ada.client.patch(ME, json={"key_mode": "per_job"}),
            await script.get("/api/v1/chats"),
            await log_in(server),
            # It makes a new MAC, which would put the tampering under the owner's own seal.
            await client.post("/api/v1/recoveries", json=recovery),
        ):
            problem(answer, 403, "account-tampered")
    await tamper(server, User, key_mode="sealed")
    assert ok(await ada.client.get(ME))["key_mode"] == "sealed"
    ok(await log_in(server), 201)


async def test_a_generation_that_other_hands_set_locks_the_account(
    server: Running, ada: Account
) -> None:
    for generation in (0, 2):
        await tamper(server, User, key_generation=generation)
        for answer in (await ada.client.get(ME), await log_in(server)):
            problem(answer, 403, "account-tampered")
    await tamper(server, User, key_generation=1)
    ok(await ada.client.get(ME))


async def test_cheaper_passwords_are_noticed_and_the_operator_is_told(
    server: Running, ada: Account, logged: Logged
) -> None:
    await weaken_kdf(server, memory_kib=8)
    problem(await ada.client.get(ME), 403, "account-tampered")
    (line,) = logged.lines("account.tampered")
    assert (line["user_id"], line["level"]) == (ada.user["id"], "error")
    change = {"current_password": PASSWORD, "new_password": "an even finer password"}
    problem(await ada.client.post(f"{ME}/password", json=change), 403, "account-tampered")
    # Stretched otherwise, the password opens nothing: there is no key to check a MAC with.
    problem(await log_in(server), 401, "wrong-credentials")


async def test_costs_that_cannot_be_met_are_told_from_a_wrong_password(
    server: Running, ada: Account
) -> None:
    await weaken_kdf(server, memory_kib=1)
    problem(await log_in(server), 403, "account-tampered")
    await tamper(server, KeySlot, kdf=b"no json")
    problem(await log_in(server), 403, "account-tampered")


def id_of(account: Account) -> UUID:
    return UUID(account.user["id"])


async def test_a_session_that_is_moved_to_another_account_opens_nothing(
    server: Running, ada: Account
) -> None:
    async with server.account("Eve") as eve:
        async with server.parts.database.write() as session:
            await session.execute(
                update(KeySlot)
                .where(KeySlot.user_id == id_of(eve), KeySlot.kind == "session")
                .values(user_id=id_of(ada))
            )
        problem(await eve.client.get(ME), 401, "unauthenticated")


async def test_a_data_key_that_is_moved_to_another_account_does_not_open(
    server: Running, ada: Account, logged: Logged
) -> None:
    async with server.account("Eve") as eve:
        async with server.parts.database.write() as session:
            await session.execute(
                update(DataKey)
                .where(DataKey.user_id == id_of(ada))
                .values(user_id=id_of(eve), number=2)
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
            query = select(Message).where(Message.user_id == id_of(ada), Message.role == "user")
            stolen = (await session.scalars(query)).one()
            into = update(Message).where(Message.id == UUID(mine))
            await session.execute(into.values(sealed_content=stolen.sealed_content))
            stolen.user_id, stolen.chat_id = id_of(eve), UUID(chats[1])
        for path in (f"/api/v1/messages/{mine}", f"/api/v1/messages/{stolen.id}"):
            answer = await eve.client.get(path)
            problem(answer, 500, "seal-broken")
            assert "secret" not in answer.text
