"""Tests of writes to several tables in one statement."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import inspect, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.models import LoginFailures, User
from backend.chats.models import Chat
from backend.database.base import new_id, now
from backend.database.engine import Database, OvertakenError
from backend.database.writes import MAX_JOINED_ROWS, Upsert, upsert_all, write_out
from backend.llm.token_ratios import TokenRatio
from backend.quotas.models import TokenLedger
from backend.turns.models import Turn
from tests.integration.chats.trees import sign_up
from tests.support.statements import record_statements

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]


@pytest.fixture
async def ada(database: Database) -> Identity:
    return await sign_up(database)


def make_chat(ada: Identity) -> Chat:
    return Chat(id=new_id(), user_id=ada.user_id, sealed_title=b"title", count_unit="o200k")


def make_turn(chat: Chat) -> Turn:
    return Turn(
        id=new_id(),
        user_id=chat.user_id,
        chat_id=chat.id,
        kind="reply",
        state="running",
        model="demo/storyteller",
        request_digest=b"",
    )


def spend(ada: Identity, tokens: int, *, rows: int = 1) -> Upsert:
    row = {"user_id": ada.user_id, "day": now().date(), "tokens": tokens}
    return Upsert(TokenLedger, [{**row, "id": new_id()} for _ in range(rows)])


async def list_spent(session: AsyncSession) -> list[int]:
    return list(await session.scalars(select(TokenLedger.tokens).order_by(TokenLedger.tokens)))


async def test_rows_that_refer_to_each_other_are_written_together(
    database: Database, ada: Identity
) -> None:
    chat = make_chat(ada)
    turn = make_turn(chat)
    async with database.write() as session:
        owner = await session.get_one(User, ada.user_id)
        owner.key_mode = "managed"
        session.add_all([turn, chat])
        with record_statements() as statements:
            await write_out(session, [spend(ada, 7)])
        assert inspect(turn).session is inspect(owner).session is None
    assert len(statements) == (4 if database.is_sqlite else 1)
    async with database.read() as session:
        stored = await session.get_one(Turn, turn.id)
        assert (stored.chat_id, stored.state, stored.usage) == (chat.id, "running", None)
        # The defaults are those of the object.
        assert (stored.segments, stored.stop_requested) == (turn.segments, turn.stop_requested)
        assert stored.created_at == turn.created_at
        assert (await session.get_one(User, ada.user_id)).key_mode == "managed"
        assert await list_spent(session) == [7]


async def test_only_changed_columns_of_a_row_are_written(database: Database, ada: Identity) -> None:
    chat = make_chat(ada)
    async with database.write() as session:
        session.add(chat)
        await write_out(session)
    async with database.write() as session:
        mine = await session.get_one(Chat, chat.id)
        mine.sealed_title, mine.count_unit = b"another", mine.count_unit
        with record_statements() as statements:
            await write_out(session)
    assert "sealed_title" in statements[0].text
    assert "count_unit" not in statements[0].text
    async with database.write() as session:
        await session.get_one(Chat, chat.id)
        with record_statements() as statements:
            await write_out(session)
    assert not statements


async def test_the_orm_writes_expressions_deletions_other_keys_and_many_rows(
    database: Database, ada: Identity
) -> None:
    kept, gone = make_chat(ada), make_chat(ada)
    async with database.write() as session:
        session.add_all([kept, gone])
        await write_out(session)
    count = MAX_JOINED_ROWS + 1
    async with database.write() as session:
        (await session.get_one(Chat, kept.id)).revision = Chat.revision + 5
        await write_out(session)
    async with database.write() as session:
        await session.delete(await session.get_one(Chat, gone.id))
        await write_out(session, [spend(ada, 1)])
    async with database.write() as session:
        session.add_all([make_chat(ada) for _ in range(count)])
        await write_out(session, [spend(ada, 2, rows=count)])
    failures = LoginFailures(key=b"key", failures=1, last_at=now())
    async with database.write() as session:
        session.add(failures)
        await write_out(session)
    async with database.write() as session:
        (await session.get_one(LoginFailures, b"key")).failures = 2
        await write_out(session)
    async with database.read() as session:
        chats = {chat.id: chat.revision for chat in await session.scalars(select(Chat))}
        assert len(chats) == 1 + count
        assert chats[kept.id] == kept.revision + 5
        assert (await session.get_one(LoginFailures, b"key")).failures == failures.failures + 1
        assert await list_spent(session) == [1] + count * [2]


async def test_upserts_insert_and_update(database: Database, ada: Identity) -> None:
    row = {"user_id": ada.user_id, "model": "demo", "ratio": 1.0, "samples": 1}
    key, update = ("user_id", "model"), ("ratio",)
    rows = [row, {**row, "model": "other"}]
    for upserts in (
        [Upsert(TokenRatio, rows, key=key, update=update)],
        [Upsert(TokenRatio, [], key=key, update=update)],
        [
            spend(ada, 3, rows=2),
            Upsert(TokenRatio, [{**row, "ratio": 2.0, "samples": 9}], key=key, update=update),
        ],
        [Upsert(TokenRatio, [{**row, "model": "other", "ratio": 3.0}], key=key)],
    ):
        async with database.write() as session:
            await upsert_all(session, upserts)
    async with database.read() as session:
        found = await session.scalars(select(TokenRatio).order_by(TokenRatio.model))
        assert [(each.ratio, each.samples) for each in found] == [(2.0, 1), (1.0, 1)]
        assert await list_spent(session) == [3, 3]


async def test_a_second_open_turn_changes_nothing(database: Database, ada: Identity) -> None:
    chat = make_chat(ada)
    async with database.write() as session:
        session.add_all([chat, make_turn(chat)])
        await write_out(session)
    with pytest.raises(OvertakenError):
        async with database.write() as session:
            (await session.get_one(Chat, chat.id)).sealed_title = b"another"
            session.add(make_turn(chat))
            await write_out(session, [spend(ada, 1)])
    async with database.read() as session:
        assert (await session.get_one(Chat, chat.id)).sealed_title == b"title"
        assert not await list_spent(session)


async def is_in_transaction(session: AsyncSession) -> bool:
    await session.execute(select(1))
    connection: Any = await (await session.connection()).get_raw_connection()
    driver = connection.driver_connection
    return bool(getattr(driver, "in_transaction", None) or driver.is_in_transaction())


async def test_a_single_read_needs_no_transaction(database: Database, ada: Identity) -> None:
    await database.ping()  # finds out that there is no pooler
    async with database.read_once() as session:
        assert await session.scalar(select(User.id)) == ada.user_id
        # One connection of SQLite reads in a transaction of its own.
        assert await is_in_transaction(session) is database.is_sqlite
    async with database.write() as session:
        assert await is_in_transaction(session)
