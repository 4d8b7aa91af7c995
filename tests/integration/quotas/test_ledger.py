"""What users store is counted by triggers: whatever happens, the ledger is what the tables hold."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import func, insert, literal, select, text, update

from backend.chats.models import Message
from backend.database.engine import Database
from backend.database.stored_bytes import ROW_BYTES
from backend.quotas.ledgers import (
    MIN_ROWS_TO_FOLD,
    StorageLedger,
    count_stored_bytes,
    find_counted_tables,
    fold_ledger,
    recount,
)
from backend.vault.sealing import OVERHEAD
from tests.integration.characters.pictures import picture
from tests.integration.turns.seeding import seed
from tests.support.memory import new_book, new_entry, settled
from tests.support.server import Account, Running, ok

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

API = "/api/v1"
CARDS = Path(__file__).parents[2] / "fixtures" / "cards"


async def held(server: Running, ada: Account) -> int:
    """What the tables hold of a user's, added up row by row."""
    user_id, total = UUID(ada.user["id"]), 0
    async with server.parts.database.read() as session:
        for each in find_counted_tables():
            query = select(func.sum(each.size + literal(ROW_BYTES))).where(each.owner == user_id)
            total += await session.scalar(query) or 0
    return total


async def counted(server: Running, ada: Account) -> int:
    async with server.parts.database.read() as session:
        return await count_stored_bytes(session, UUID(ada.user["id"]))


async def agree(server: Running, ada: Account) -> int:
    await settled(server)
    found = await counted(server, ada)
    assert found == await held(server, ada)
    return found


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


async def test_playing_and_importing_and_deleting_are_counted(
    server: Running, ada: Account, chat: str
) -> None:
    client, sizes = ada.client, [await agree(server, ada)]
    events = await ada.turn(chat, text="Is anyone there?")
    sizes.append(await agree(server, ada))
    await ada.turn(chat, regenerate_of=events[0].data["reply_id"])
    await ada.turn(chat, impersonate=True)
    sizes.append(await agree(server, ada))
    book = await new_book(ada)
    entry = await new_entry(ada, book, keys=["inn"], content="An inn. " * 100)
    card = (CARDS / "syn_v3.charx").read_bytes()
    files = {"file": card}
    made = ok(await client.post(f"{API}/characters/import", files=files), 201)["character"]["id"]
    put = await client.put(
        f"{API}/characters/{made}/avatar",
        content=picture(),
        headers={"content-type": "image/png"},
    )
    assert put.status_code == 204
    sizes.append(await agree(server, ada))
    tip = (await ada.messages(chat))[-1]["id"]
    fork = ok(await client.post(f"{API}/chats/{chat}/fork", json={"message_id": tip}), 201)["id"]
    sizes.append(await agree(server, ada))
    assert sizes == sorted(set(sizes))

    path = f"{API}/lorebooks/{book}/entries/{entry}"
    ok(await client.patch(path, json={"content": "A small inn."}))
    assert await agree(server, ada) < sizes[-1]
    line = (await ada.messages(fork))[-2]["id"]
    ok(await client.patch(f"{API}/messages/{line}", json={"text": "Long. " * 1000}))
    await agree(server, ada)
    for gone in (
        f"lorebooks/{book}/entries/{entry}",
        f"lorebooks/{book}",
        f"characters/{made}",
        f"chats/{fork}",
        f"chats/{chat}",
    ):
        before = await counted(server, ada)
        assert (await client.delete(f"{API}/{gone}")).is_success
        assert await agree(server, ada) < before


async def test_a_text_counts_as_many_bytes_as_its_sealed_form_and_its_row(
    server: Running, ada: Account, chat: str
) -> None:
    before = await agree(server, ada)
    [line] = await seed(server, ada, chat, ["x" * 5000])
    grown = await agree(server, ada) - before
    assert grown == 5000 + len(ada.name) + 2 * OVERHEAD + ROW_BYTES
    # What is no text costs nothing, however often it changes.
    async with server.parts.database.write() as session:
        await session.execute(update(Message).where(Message.id == line.id).values(tokens=7))
    assert await agree(server, ada) == before + grown


async def test_parallel_writes_of_one_account_neither_wait_nor_get_lost(
    server: Running, ada: Account
) -> None:
    chats = [(await ada.new_chat())["id"] for _ in range(6)]
    before = await agree(server, ada)
    await asyncio.gather(*(ada.turn(each, text="At the same moment.") for each in chats))
    assert await agree(server, ada) > before


async def test_many_lines_are_folded_into_one_and_the_sum_stays(
    server: Running, ada: Account, chat: str
) -> None:
    await seed(server, ada, chat, [f"Line {number}" for number in range(MIN_ROWS_TO_FOLD)])
    user_id, database = UUID(ada.user["id"]), server.parts.database
    before = await agree(server, ada)
    await asyncio.gather(*(fold_ledger(database) for _ in range(3)))
    async with database.read() as session:
        query = select(func.count()).where(StorageLedger.user_id == user_id)
        lines = await session.scalar(query)
    assert lines is not None
    assert lines < MIN_ROWS_TO_FOLD / 2
    assert await agree(server, ada) == before


async def test_a_ledger_that_has_drifted_is_mended_and_a_right_one_left_alone(
    server: Running, ada: Account, chat: str
) -> None:
    await ada.turn(chat, text="Hello.")
    before, user_id = await agree(server, ada), UUID(ada.user["id"])
    assert await recount(server.parts.database, user_id) == 0
    async with server.parts.database.write() as session:
        await session.execute(insert(StorageLedger).values(user_id=user_id, bytes=-777))
    assert await recount(server.parts.database, user_id) == 777
    assert await agree(server, ada) == before
