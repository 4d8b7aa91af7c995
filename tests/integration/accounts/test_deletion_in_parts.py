"""Tests of the deletion of accounts and chats that take many transactions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, insert, select, update

from backend.accounts.models import KeySlot, User
from backend.chats.deletion import ABANDONED_AFTER, delete_hidden_chat
from backend.chats.models import Chat, Message
from backend.database import batches
from backend.database.base import Base, get_table, new_id, now
from backend.database.batches import OutOfBatchesError
from backend.jobs.deletions import DELETE_KIND
from backend.jobs.models import Job
from backend.operations import deletions
from backend.operations.deletions import delete_closed_account
from tests.integration.accounts.test_deletion import (
    delete_me,
    has_rows,
    keep_a_campaign,
    keep_a_file,
    keep_a_request,
    keep_a_vector,
    live,
    rows,
)
from tests.support.memory import forgotten, settled
from tests.support.server import PASSWORD, Account, Running, ok, problem, running
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

MESSAGES = 300
LAST = "The lamp is out again, I fear."


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a request do little, and a transaction take few rows."""
    monkeypatch.setattr(deletions, "MAX_INLINE_BATCHES", 3)
    monkeypatch.setattr(batches, "MAX_ROWS", 20)
    monkeypatch.setattr(batches, "PAGE_ROWS", 50)


@pytest.fixture
async def either(database_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(database_url, tmp_path) as server:
        yield server


async def stop_jobs(server: Running) -> None:
    """Let no job run, as if the process were killed after the request."""
    await server.parts.worker.aclose()


async def lengthen(server: Running, chat_id: str) -> None:
    """Add a long branch of messages to a chat, below its last message."""
    async with server.parts.database.write() as session:
        messages = get_table(Message)
        query = select(messages).where(messages.c.chat_id == UUID(chat_id))
        rows = await session.execute(query.order_by(messages.c.position.desc()).limit(1))
        last = dict(rows.mappings().one())
        off_path = {"is_active": False, "is_selected": False}
        parent, added = last["id"], list[dict[str, Any]]()
        for number in range(1, MESSAGES + 1):
            own = {"id": new_id(), "parent_id": parent, "position": last["position"] + number}
            added.append({**last, **own, **off_path})
            parent = own["id"]
        await session.execute(insert(Message), added)


async def count(server: Running, model: type[Base], *where: Any) -> int:
    async with server.parts.database.read() as session:
        query = select(func.count()).select_from(model).where(*where)
        return await session.scalar(query) or 0


async def count_jobs(server: Running) -> int:
    return await count(server, Job, Job.kind == DELETE_KIND)


async def test_a_job_deletes_the_rest_of_an_account(either: Running) -> None:
    async with either.account("Ada") as ada:
        await live(ada)
        await settled(either)
        before = await rows(either)
        async with either.account("Cleo") as cleo:
            chat_id = await live(cleo)
            await keep_a_campaign(either, cleo, chat_id)
            await keep_a_vector(either, cleo)
            await keep_a_file(either, cleo)
            await keep_a_request(either, cleo, chat_id)
            await lengthen(either, chat_id)
            await settled(either)
            assert (await delete_me(cleo)).status_code == 204

        async def is_gone() -> bool:
            return not await count(either, User, User.deleted_at.is_not(None))

        await until(is_gone)
        await settled(either)
        await forgotten(either)
        await until(lambda: has_rows(either, before))


async def test_a_deleted_account_is_out_of_reach_before_its_rows_are(either: Running) -> None:
    async with either.account("Ada") as ada:
        async with either.account("Cleo") as cleo, either.signed_in("Cleo") as other:
            path = f"/api/v1/admin/users/{cleo.user['id']}"
            ok(await ada.client.patch(path, json={"is_administrator": True}))
            chat_id = await live(cleo)
            await lengthen(either, chat_id)
            body = {"label": "script", "scope": "chat"}
            token = ok(await cleo.client.post("/api/v1/api-keys", json=body), 201)["token"]
            await stop_jobs(either)
            assert (await delete_me(cleo)).status_code == 204
            user_id = UUID(cleo.user["id"])
            assert await count(either, Message, Message.user_id == user_id) >= MESSAGES
            assert await count(either, KeySlot, KeySlot.user_id == user_id) == 0
            problem(await other.client.get("/api/v1/me"), 401, "unauthenticated")
            async with either.program(token) as program:
                problem(await program.get("/api/v1/me"), 401, "unauthenticated")
            body = {"username": "Cleo", "password": PASSWORD}
            problem(
                await other.client.post("/api/v1/sessions", json=body), 401, "wrong-credentials"
            )
        listed = ok(await ada.client.get("/api/v1/admin/users"))["items"]
        assert [each["username"] for each in listed] == ["Ada"]
        change = {"is_disabled": False}
        problem(await ada.client.patch(path, json=change), 404, "user-not-found")
        # She is not an administrator any more, so Ada is the last one.
        async with either.account("Ben"):
            problem(await delete_me(ada), 409, "last-administrator")
        # The name is free again, although the rows are still there.
        async with either.account("Cleo") as new:
            assert ok(await new.client.get("/api/v1/chats"))["items"] == []
            assert new.user["is_administrator"] is False


async def test_the_first_account_after_a_deleted_one_administers(either: Running) -> None:
    async with either.account("Ada") as ada:
        await live(ada)
        await stop_jobs(either)
        assert (await delete_me(ada)).status_code == 204
    assert await count(either, User) == 1
    async with either.account("Ben") as ben:
        assert ben.user["is_administrator"] is True


async def test_an_interrupted_deletion_goes_on_where_it_was(either: Running) -> None:
    database = either.parts.database
    async with either.account("Ada") as ada, either.account("Cleo") as cleo:
        del ada
        await lengthen(either, await live(cleo))
        await stop_jobs(either)
        user_id = UUID(cleo.user["id"])
        assert (await delete_me(cleo)).status_code == 204
        mine = Message.user_id == user_id
        left, times = await count(either, Message, mine), 0
        while await count(either, User, User.id == user_id):
            with_rest = True
            try:
                await delete_closed_account(database, user_id, max_batches=5)
            except OutOfBatchesError:
                with_rest = False
            now_left, times = await count(either, Message, mine), times + 1
            assert now_left <= left
            assert with_rest == (await count(either, User, User.id == user_id) == 0)
            left = now_left
        assert times > 5
        await delete_closed_account(database, user_id)  # a second worker finds nothing
        assert await count(either, User) == 1


async def test_an_account_that_is_not_deleted_loses_nothing(either: Running) -> None:
    async with either.account("Ada") as ada:
        chat_id = await live(ada)
        await settled(either)
        before = await rows(either)
        await delete_closed_account(either.parts.database, UUID(ada.user["id"]))
        await delete_hidden_chat(either.parts.database, UUID(chat_id))
        assert await rows(either) == before


async def test_a_deleted_chat_is_out_of_reach_before_its_rows_are(either: Running) -> None:
    async with either.account("Ada") as ada:
        character = (await ada.new_character())["id"]
        empty = await rows(either)
        chat = (await ada.new_chat(character_ids=[character], title="The lighthouse"))["id"]
        reply = (await ada.turn(chat, text=LAST))[0].data["reply_id"]
        await lengthen(either, chat)
        await settled(either)
        month = await ada.get("/usage/month")
        assert month["turns"] == 1
        await stop_jobs(either)
        await ada.delete(f"/chats/{chat}")

        assert await count(either, Message) > 100
        problem(await ada.ask("GET", f"/chats/{chat}"), 404, "chat-not-found")
        problem(await ada.ask("GET", f"/messages/{reply}/context"), 404, "message-not-found")
        problem(await ada.ask("DELETE", f"/chats/{chat}"), 404, "chat-not-found")
        assert (await ada.get("/chats"))["items"] == []
        assert (await ada.get("/chats", character_id=character))["items"] == []
        found = await ada.get("/search", q="lamp out again", kinds="message")
        assert found["items"] == []
        assert await ada.get("/usage/month") == month

        while await count(either, Chat):
            with contextlib.suppress(OutOfBatchesError):
                await delete_hidden_chat(either.parts.database, UUID(chat), max_batches=4)
        assert await ada.get("/usage/month") == month
        left = await rows(either)
        own = {"token_ledger", "jobs", "index_changes", "index_states", "storage_ledger"}
        assert {name for name in left if left[name] != empty[name]} <= own


async def test_a_job_deletes_the_rest_of_a_chat(either: Running) -> None:
    async with either.account("Ada") as ada:
        chat = (await ada.new_chat())["id"]
        await ada.turn(chat, text=LAST)
        await lengthen(either, chat)
        await ada.delete(f"/chats/{chat}")

        async def is_done() -> bool:
            left = [await count(either, each) for each in (Message, Chat)]
            return not any([*left, await count_jobs(either)])

        await until(is_done)


async def test_a_forgotten_deletion_gets_another_job(either: Running) -> None:
    parts = either.parts
    async with either.account("Ada") as ada, either.account("Cleo") as cleo:
        chat = (await ada.new_chat())["id"]
        kept = (await ada.new_chat())["id"]
        for account, lengthened in ((ada, chat), (cleo, (await cleo.new_chat())["id"])):
            await account.turn(lengthened, text=LAST)
            await lengthen(either, lengthened)
        await settled(either)
        await stop_jobs(either)
        await ada.delete(f"/chats/{chat}")
        assert (await delete_me(cleo)).status_code == 204
        assert await count_jobs(either) == 2
        async with parts.database.write() as session:
            await session.execute(get_table(Job).delete().where(Job.kind == DELETE_KIND))
        await parts.deletions.schedule()
        assert await count_jobs(either) == 0  # it may still be going on
        past = now() - 2 * ABANDONED_AFTER
        async with parts.database.write() as session:
            await session.execute(update(Chat).where(~Chat.is_ready).values(updated_at=past))
            gone = update(User).where(User.deleted_at.is_not(None))
            await session.execute(gone.values(deleted_at=past))
        await parts.deletions.schedule()
        await parts.deletions.schedule()
        assert await count_jobs(either) == 2
        assert [each["id"] for each in (await ada.get("/chats"))["items"]] == [kept]


async def test_lore_and_events_of_a_deleted_chat_count_all_the_time(either: Running) -> None:
    async with either.account("Ada") as ada:
        await live(ada)
        chats = (await ada.get("/chats"))["items"]
        await settled(either)
        before = await read_events(ada)
        assert any(before.values())
        await stop_jobs(either)
        for each in chats:
            await ada.delete(f"/chats/{each['id']}")
            assert await read_events(ada) == before
            while await count(either, Chat, Chat.id == UUID(each["id"])):
                with contextlib.suppress(OutOfBatchesError):
                    await delete_hidden_chat(either.parts.database, UUID(each["id"]), max_batches=1)
                assert await read_events(ada) == before


async def read_events(account: Account) -> dict[str, list[str]]:
    """Return the ids of the active events of all chronicles."""
    found: dict[str, list[str]] = {}
    for chronicle in (await account.get("/chronicles"))["items"]:
        items = (await account.get(f"/chronicles/{chronicle['id']}/events"))["items"]
        found[chronicle["id"]] = sorted(each["id"] for each in items)
    return found
