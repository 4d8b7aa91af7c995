"""Tests of the storage ledger and of `/me/usage`."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import exists, func, insert, literal, select, text, update

from backend.accounts.models import User
from backend.chats.models import Message
from backend.database.base import now
from backend.database.engine import Database
from backend.database.stored_bytes import ROW_BYTES
from backend.jobs.deletions import CONTAINER_DELETE_KIND, DELETE_KIND
from backend.jobs.models import Job
from backend.quotas.ledgers import (
    MIN_ROWS_TO_FOLD,
    RECOUNT_KIND,
    LedgerFolder,
    count_stored_bytes,
    find_counted_tables,
    recount,
)
from backend.quotas.limits import QUOTAS
from backend.quotas.models import StorageLedger
from backend.vault.sealing import OVERHEAD
from tests.integration.characters.pictures import picture
from tests.integration.turns.seeding import seed
from tests.support.chronicling import last_run, opt_in
from tests.support.memory import new_book, new_entry, settled
from tests.support.server import Account, Running, ok, problem, running
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

API = "/api/v1"
CARDS = Path(__file__).parents[2] / "fixtures" / "cards"


async def sum_rows(server: Running, ada: Account) -> int:
    user_id, total = UUID(ada.user["id"]), 0
    async with server.parts.database.read() as session:
        for each in find_counted_tables():
            query = select(func.sum(each.size + literal(ROW_BYTES))).where(each.owner == user_id)
            total += await session.scalar(query) or 0
    return total


async def count_bytes(server: Running, ada: Account) -> int:
    async with server.parts.database.read() as session:
        return await count_stored_bytes(session, UUID(ada.user["id"]))


async def check_count(server: Running, ada: Account) -> int:
    await settled(server)
    found = await count_bytes(server, ada)
    assert found == await sum_rows(server, ada)
    return found


@pytest.mark.every_database
async def test_every_table_of_texts_is_counted_by_all_of_its_sealed_columns(
    database: Database,
) -> None:
    if database.is_sqlite:
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    else:
        query = "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal"
    async with database.read() as session:
        found = {row[0]: row[1] for row in await session.execute(text(query))}
        if not database.is_sqlite:
            bodies = await session.execute(text("SELECT proname, prosrc FROM pg_proc"))
            found |= {name: body for name, body in bodies if name.endswith("_stored")}
    for each in find_counted_tables():
        name = each.table.name
        for trigger in ("insert", "update", "delete"):
            assert f"{name}_stored_{trigger}" in found, f"{name}: its rows are not counted"
        told = found[f"{name}_stored_update"] + found.get(f"{name}_stored", "")
        for column in each.columns:
            assert column.name in told, f"{name}.{column.name} is not counted"


@pytest.mark.every_database
async def test_playing_and_importing_and_deleting_are_counted(
    server: Running, ada: Account, chat: str
) -> None:
    async def are_deleted() -> bool:
        async with server.parts.database.read() as session:
            waiting = exists().where(Job.kind.in_((DELETE_KIND, CONTAINER_DELETE_KIND)))
            return not await session.scalar(select(waiting))

    client, sizes = ada.client, [await check_count(server, ada)]
    events = await ada.turn(chat, text="Is anyone there?")
    sizes.append(await check_count(server, ada))
    await ada.turn(chat, regenerate_of=events[0].data["reply_id"])
    await ada.turn(chat, impersonate=True)
    sizes.append(await check_count(server, ada))
    book = await new_book(ada)
    entry = await new_entry(ada, book, keys=["inn"], content="An inn. " * 100)
    card = (CARDS / "syn_v3.charx").read_bytes()
    files = {"file": card}
    made = ok(await client.post(f"{API}/characters/import", files=files), 201)["character"]["id"]
    put = await client.put(
        f"{API}/characters/{made}/avatar", content=picture(), headers={"content-type": "image/png"}
    )
    assert put.status_code == 204
    sizes.append(await check_count(server, ada))
    tip = (await ada.messages(chat))[-1]["id"]
    fork = ok(await client.post(f"{API}/chats/{chat}/fork", json={"message_id": tip}), 201)["id"]
    sizes.append(await check_count(server, ada))
    assert sizes == sorted(set(sizes))

    path = f"{API}/lorebooks/{book}/entries/{entry}"
    ok(await client.patch(path, json={"content": "A small inn."}))
    assert await check_count(server, ada) < sizes[-1]
    line = (await ada.messages(fork))[-2]["id"]
    ok(await client.patch(f"{API}/messages/{line}", json={"text": "Long. " * 1000}))
    await check_count(server, ada)
    for gone in (
        f"lorebooks/{book}/entries/{entry}",
        f"lorebooks/{book}",
        f"characters/{made}",
        f"chats/{fork}",
        f"chats/{chat}",
    ):
        before = await count_bytes(server, ada)
        assert (await client.delete(f"{API}/{gone}")).is_success
        await until(are_deleted)
        assert await check_count(server, ada) < before


@pytest.mark.every_database
async def test_a_text_counts_as_many_bytes_as_its_sealed_form_and_its_row(
    server: Running, ada: Account, chat: str
) -> None:
    before = await check_count(server, ada)
    [line] = await seed(server, ada, chat, ["x" * 5000])
    grown = await check_count(server, ada) - before
    assert grown == 5000 + len(ada.name) + 2 * OVERHEAD + ROW_BYTES
    # Changes of columns without text cost nothing.
    async with server.parts.database.write() as session:
        await session.execute(update(Message).where(Message.id == line.id).values(tokens=7))
    assert await check_count(server, ada) == before + grown


@pytest.mark.every_database
async def test_parallel_writes_of_one_account_neither_wait_nor_get_lost(
    server: Running, ada: Account
) -> None:
    chats = [(await ada.new_chat())["id"] for _ in range(6)]
    before = await check_count(server, ada)
    await asyncio.gather(*(ada.turn(each, text="At the same moment.") for each in chats))
    assert await check_count(server, ada) > before


@pytest.mark.every_database
async def test_many_lines_are_folded_into_one_and_the_sum_stays(
    server: Running, ada: Account, chat: str
) -> None:
    user_id, database = UUID(ada.user["id"]), server.parts.database
    folders = [LedgerFolder(database) for _ in range(3)]
    await folders[0].fold()
    await seed(server, ada, chat, [f"Line {number}" for number in range(MIN_ROWS_TO_FOLD)])
    before = await check_count(server, ada)
    await asyncio.gather(*(each.fold() for each in folders))
    async with database.read() as session:
        query = select(func.count()).where(StorageLedger.user_id == user_id)
        lines = await session.scalar(query)
    assert lines is not None
    assert lines < MIN_ROWS_TO_FOLD / 2
    assert await check_count(server, ada) == before


async def test_rows_with_the_ids_of_folded_ones_are_folded_too(
    server: Running, ada: Account, chat: str
) -> None:
    user_id, database = UUID(ada.user["id"]), server.parts.database
    folder, row = LedgerFolder(database), insert(StorageLedger).values(user_id=user_id, bytes=1)
    before = await check_count(server, ada)
    for _ in range(3):
        async with database.write() as session:
            for _ in range(MIN_ROWS_TO_FOLD):
                await session.execute(row)
        await folder.fold()
        async with database.read() as session:
            query = select(func.count()).where(StorageLedger.user_id == user_id)
            assert await session.scalar(query) == 1
    assert await count_bytes(server, ada) == before + 3 * MIN_ROWS_TO_FOLD


@pytest.mark.every_database
async def test_a_ledger_that_has_drifted_is_mended_and_a_right_one_left_alone(
    server: Running, ada: Account, chat: str
) -> None:
    await ada.turn(chat, text="Hello.")
    before, user_id = await check_count(server, ada), UUID(ada.user["id"])
    assert await recount(server.parts.database, user_id) == 0
    async with server.parts.database.write() as session:
        await session.execute(insert(StorageLedger).values(user_id=user_id, bytes=-777))
    assert await recount(server.parts.database, user_id) == 777
    assert await check_count(server, ada) == before


@pytest.mark.every_database
async def test_the_ledger_of_an_account_that_is_being_deleted_is_left_alone(
    server: Running, ada: Account
) -> None:
    before, user_id = await check_count(server, ada), UUID(ada.user["id"])
    drift = insert(StorageLedger).values(user_id=user_id, bytes=-777)
    closed = update(User).where(User.id == user_id).values(deleted_at=now())
    async with server.parts.database.write() as session:
        await session.execute(drift)
        await session.execute(closed)
    assert await recount(server.parts.database, user_id) == 0
    assert await count_bytes(server, ada) == before - 777


@pytest.mark.every_database
async def test_at_night_the_accounts_are_mended_that_changed_since_the_last_night(
    server: Running, ada: Account, chat: str
) -> None:
    database, user_id = server.parts.database, UUID(ada.user["id"])
    await ada.turn(chat, text="Hello.")
    before = await check_count(server, ada)

    async def is_mended() -> bool:
        return await count_bytes(server, ada) == before

    async def is_planned() -> bool:
        planned = Job.kind == RECOUNT_KIND, Job.state == "queued", Job.run_after > now()
        async with database.read() as session:
            return bool(await session.scalar(select(exists().where(*planned))))

    tonight = update(Job).where(Job.kind == RECOUNT_KIND).values(run_after=now())
    drift = insert(StorageLedger).values(user_id=user_id, bytes=-777)
    for _ in range(2):
        async with database.write() as session:
            await session.execute(drift)
            await session.execute(tonight)
        server.parts.queue.note_news()
        await until(is_mended)
        await until(is_planned)

    async def newest_is_known() -> bool:
        async with database.read() as session:
            newest = await session.scalar(select(func.max(StorageLedger.id)))
            payload = await session.scalar(select(Job.payload).where(Job.kind == RECOUNT_KIND))
        # The row of the mend came after the job had begun.
        known: int | None = json.loads(payload or "{}").get("newest")
        return known == (newest or 0) - 1

    await until(newest_is_known)


async def usage(account: Account, path: str = "me/usage") -> dict[str, dict[str, Any]]:
    items = ok(await account.client.get(f"{API}/{path}"))["items"]
    return {each["quota"]: each for each in items}


async def test_an_account_sees_every_quota_with_what_it_uses(
    server: Running, ada: Account, chat: str
) -> None:
    before = await usage(ada)
    assert list(before) == [quota.name for quota in QUOTAS]
    await new_entry(ada, await new_book(ada), keys=["inn"], content="An inn.")
    [usage_event] = [
        event.data for event in await ada.turn(chat, text="Hello.") if event.name == "usage"
    ]
    await settled(server)
    after = await usage(ada)
    settings = server.parts.settings
    for quota in QUOTAS:
        told = after[quota.name]
        assert told["unit"] == quota.unit
        assert told["limit"] == (quota.get_limit(settings) or None)
    grown = {name: after[name]["used"] - before[name]["used"] for name in after}
    assert grown["stored_bytes"] > 1000
    assert (grown["chats"], grown["lorebook_entries"], after["chats"]["used"]) == (0, 1, 1)
    spent = usage_event["prompt_tokens"] + usage_event["completion_tokens"]
    assert grown["tokens_per_day"] == spent
    assert datetime.fromisoformat(after["tokens_per_day"]["frees_at"]) > now()
    assert after["stored_bytes"]["frees_at"] is None


async def test_tokens_of_the_agent_count_for_the_day(
    server: Running, ada: Account, chat: str
) -> None:
    await opt_in(ada, chat)
    [usage_event] = [
        event.data for event in await ada.turn(chat, text="Hello.") if event.name == "usage"
    ]
    run = await last_run(ada, chat)
    await settled(server)
    spent = usage_event["prompt_tokens"] + usage_event["completion_tokens"]
    spent += run["prompt_tokens"] + run["completion_tokens"]
    assert (await usage(ada))["tokens_per_day"]["used"] == spent


async def test_administrators_see_the_numbers_of_each_account_and_others_do_not(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        running(database_url, tmp_path) as server,
        server.account("Ada") as boss,
        server.account("Ben") as ben,
    ):
        await ben.new_chat(title="Of nobody's business")
        path = f"admin/users/{ben.user['id']}/usage"
        problem(await ben.client.get(f"{API}/{path}"), 403, "forbidden")
        told, own = await usage(boss, path), await usage(ben)
        for name in ("stored_bytes", "chats", "lorebook_entries"):
            assert told[name] == own[name]
        assert told["chats"]["used"] == 1
        assert set(told["chats"]) == {"quota", "used", "limit", "unit", "frees_at"}
        missing = await boss.client.get(f"{API}/admin/users/{uuid4()}/usage")
        problem(missing, 404, "user-not-found")
