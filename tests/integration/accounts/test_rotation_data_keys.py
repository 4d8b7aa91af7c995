"""Tests of the rotation of an account's data key."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import LargeBinary, insert, select, text, update

from backend.accounts.errors import UserNotFoundError
from backend.accounts.keys import sealed_tables
from backend.accounts.keys.rotation import (
    DataKeyRotation,
    ensure_data_key,
    request_new_data_keys,
    rotate_data_key,
)
from backend.accounts.keys.sealed_tables import (
    BATCH_BYTES,
    BATCH_ROWS,
    SealedTable,
    find_model_tables,
    split_batches,
)
from backend.accounts.models import User
from backend.chats.models import CHAT_TITLE, MESSAGE_CONTENT, Chat, Message
from backend.database.base import Base, new_id
from backend.database.engine import Database
from backend.database.types import Id
from backend.vault.root import RootKeys
from backend.vault.sealing import Column, SealBrokenError, Sealer, key_number
from tests.integration.accounts.rotation_account import (
    MODELS,
    Account,
    PowerCutError,
    Progress,
    sign_up,
)

pytestmark = pytest.mark.anyio

ROOT = RootKeys({1: b"r" * 32})
AT_ONCE = timedelta(0)


@pytest.fixture
async def account(database: Database) -> Account:
    """An account with two rows in every table with sealed columns."""
    account = await sign_up(database, "Edith", ROOT)
    await account.fill(2)
    return account


async def rotate(account: Account, *, grace: timedelta = AT_ONCE) -> DataKeyRotation:
    return await rotate_data_key(
        account.database, account.user_id, account.user_key, Progress(), grace=grace
    )


async def numbers_in_use(account: Account) -> set[int]:
    return {key_number(blob) for blob in (await account.blobs()).values()}


def test_every_sealed_column_keeps_the_rule_by_which_rotation_finds_it() -> None:
    for table in Base.metadata.tables.values():
        for column in table.columns:
            if not column.name.startswith("sealed_"):
                continue
            assert isinstance(column.type, LargeBinary), column
            (key,) = table.primary_key.columns
            assert key.name == "id", table
            assert isinstance(key.type, Id), table
            if table.name == "users":
                continue
            assert not table.c.user_id.nullable, table
            (owner,) = table.c.user_id.foreign_keys
            assert (owner.target_fullname, owner.ondelete) == ("users.id", "CASCADE"), table


def test_the_columns_that_texts_are_sealed_for_are_those_that_rotation_finds() -> None:
    named = {
        value for module in MODELS for value in vars(module).values() if isinstance(value, Column)
    }
    found = {sealed.place(each) for sealed in find_model_tables() for each in sealed.columns}
    assert named == found


def test_binary_columns_that_are_not_sealed_contain_no_text() -> None:
    binary = {
        f"{table.name}.{column.name}"
        for table in Base.metadata.tables.values()
        for column in table.columns
        if isinstance(column.type, LargeBinary) and not column.name.startswith("sealed_")
    }

    assert binary == {
        "client_requests.instruction_digest",
        "client_rules.instruction_digest",
        "context_texts.digest",
        "data_keys.wrapped",
        "embeddings.digest",
        "idempotent_requests.key_digest",
        "idempotent_requests.request_digest",
        "import_results.path_digest",
        "imported_files.digest",
        "index_states.model",
        "installation_providers.wrapped_config",
        "instance_keys.wrapped",
        "invitations.lookup",
        "jobs.wrapped_key",
        "key_slots.kdf",
        "key_slots.lookup",
        "key_slots.wrapped",
        "known_addresses.key",
        "login_failures.key",
        "messages.text_digest",
        "stored_files.digest",
        "turns.request_digest",
        "users.factors_digest",
        "users.name_lookup",
        "users.settings_mac",
        "users.wrapped_derivation_key",
        "users.wrapped_name",
    }


async def test_every_text_comes_under_the_new_key_and_the_old_key_goes(account: Account) -> None:
    texts = await account.texts()
    rotation = await rotate(account)
    assert rotation.number == 2
    assert (rotation.damaged, rotation.kept) == (0, ())
    assert await account.key_numbers() == [2]
    assert await numbers_in_use(account) == {2}
    assert await account.texts() == texts
    assert {table for table, _, _ in texts} == {each.table.name for each in find_model_tables()}


async def test_nothing_but_the_seals_changes(account: Account) -> None:
    def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {name: value for name, value in row.items() if not name.startswith("sealed_")}
            for row in rows
        ]

    before = [plain(await account.rows(sealed)) for sealed in find_model_tables()]
    await rotate(account)

    assert [plain(await account.rows(sealed)) for sealed in find_model_tables()] == before


async def test_other_accounts_are_left_alone(account: Account) -> None:
    other = await sign_up(account.database, "Agnes", ROOT)
    await other.fill()
    blobs = await other.blobs()
    await rotate(account)
    assert await other.blobs() == blobs
    assert await other.key_numbers() == [1]


async def test_an_account_without_texts_gets_a_new_key_too(database: Database) -> None:
    account = await sign_up(database, "Edith", ROOT)
    progress = Progress()
    rotation = await rotate_data_key(
        database, account.user_id, account.user_key, progress, grace=AT_ONCE
    )
    assert rotation == DataKeyRotation(number=2, resealed=0, damaged=0, kept=())
    assert progress.steps == [(0, 0)]
    assert await account.key_numbers() == [2]


async def test_progress_is_reported_from_0_to_the_total(account: Account) -> None:
    rows = sum([len(await account.rows(sealed)) for sealed in find_model_tables()])
    # The password slot and the recovery slot contain no text.
    total, progress = rows - 2, Progress()
    await rotate_data_key(account.database, account.user_id, account.user_key, progress)
    assert progress.steps[0] == (0, total)
    assert progress.steps[-1] == (total, total)
    assert all(one[0] <= next_one[0] for one, next_one in pairwise(progress.steps))


async def test_the_old_key_stays_for_as_long_as_a_running_turn_may_still_write_with_it(
    account: Account,
) -> None:
    in_a_running_turn = await account.sealer()
    rotation = await rotate(account, grace=timedelta(days=1))
    assert rotation.kept == (1,)
    assert await account.key_numbers() == [1, 2]
    await edit(account, await a_message(account), in_a_running_turn, "A late reply")
    again = await rotate(account, grace=AT_ONCE)
    assert (again.number, again.resealed, again.kept) == (2, 1, ())
    assert await account.key_numbers() == [2]
    assert "A late reply" in (await account.texts()).values()


@pytest.mark.parametrize("cut_at", [0, 1, 7, 21])
async def test_a_rotation_that_was_cut_off_is_finished_with_the_same_key(
    account: Account, monkeypatch: pytest.MonkeyPatch, cut_at: int
) -> None:
    monkeypatch.setattr(sealed_tables, "BATCH_ROWS", 1)
    texts = await account.texts()
    with pytest.raises(PowerCutError):
        await rotate_data_key(
            account.database, account.user_id, account.user_key, Progress(cut_at=cut_at)
        )
    assert await account.key_numbers() == [1, 2]
    assert await account.texts() == texts
    rotation = await rotate(account)
    assert (rotation.number, rotation.kept) == (2, ())
    assert await numbers_in_use(account) == {2}
    assert await account.texts() == texts


async def test_an_unfinished_rotation_is_finished_before_another_begins(account: Account) -> None:
    await rotate(account, grace=timedelta(days=1))
    again = await rotate(account, grace=timedelta(days=1))
    assert (again.number, again.resealed) == (2, 0)
    assert await account.key_numbers() == [1, 2]


async def test_a_key_that_is_due_is_made_even_while_a_rotation_is_unfinished(
    account: Account,
) -> None:
    texts = await account.texts()
    await rotate(account, grace=timedelta(days=1))
    await request_new_data_keys(account.database)
    rotation = await rotate(account)
    assert rotation.number == 3
    assert await account.key_numbers() == [3]
    assert await account.texts() == texts


@pytest.mark.parametrize("page", [1, sealed_tables.PAGE_ROWS])
async def test_a_damaged_text_holds_up_none_of_the_others(
    account: Account, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(sealed_tables, "PAGE_ROWS", page)
    texts = await account.texts()
    message = await a_message(account)
    async with account.database.write() as session:
        row = await session.get_one(Message, message)
        *rest, last = row.sealed_content
        row.sealed_content = damaged = bytes([*rest, last ^ 1])
    rotation = await rotate(account)
    assert (rotation.damaged, rotation.kept) == (1, (1,))
    blobs = await account.blobs()
    assert blobs.pop(("messages", "sealed_content", message)) == damaged
    assert {key_number(blob) for blob in blobs.values()} == {2}
    assert len(blobs) == len(texts) - 1


async def test_a_text_that_was_moved_here_from_another_row_stays_unreadable(
    account: Account,
) -> None:
    one, other = [row["id"] for row in await account.rows(find_table(Message))]
    async with account.database.write() as session:
        rows = {each: await session.get_one(Message, each) for each in (one, other)}
        rows[one].sealed_content = rows[other].sealed_content
    rotation = await rotate(account)
    assert rotation.damaged == 1
    with pytest.raises(SealBrokenError):
        await account.texts()


async def test_with_a_wrong_user_key_nothing_happens(account: Account) -> None:
    before = await account.blobs()
    with pytest.raises(SealBrokenError):
        await rotate_data_key(account.database, account.user_id, b"x" * 32, Progress())
    assert await account.blobs() == before
    assert await account.key_numbers() == [1]


async def test_an_account_that_is_not_there_is_named_as_such(database: Database) -> None:
    with pytest.raises(UserNotFoundError):
        await rotate_data_key(database, new_id(), b"x" * 32, Progress())


async def test_a_table_that_no_model_describes_stops_the_rotation_before_it_begins(
    account: Account,
) -> None:
    kind = "BLOB" if account.database.is_sqlite else "BYTEA"
    async with account.database.write() as session:
        await session.execute(text(f"CREATE TABLE notes (id INTEGER, sealed_note {kind})"))
    with pytest.raises(RuntimeError, match=r"notes\.sealed_note"):
        await rotate(account)
    assert await account.key_numbers() == [1]


async def test_edits_made_while_it_runs_are_not_lost(account: Account) -> None:
    await account.fill(100)
    messages = [row["id"] for row in await account.rows(find_table(Message))]
    written: dict[UUID, str] = {}

    is_over = asyncio.Event()

    async def keep_editing() -> None:
        for number, message in enumerate(messages * 3):
            if is_over.is_set():
                return
            await edit(account, message, await account.sealer(), f"edit {number}")
            written[message] = f"edit {number}"

    editing = asyncio.create_task(keep_editing())
    await rotate(account, grace=timedelta(days=1))
    is_over.set()
    await editing

    texts = await account.texts()
    assert written
    assert {each: texts["messages", "sealed_content", each] for each in written} == written


@pytest.mark.postgres
async def test_a_locked_row_is_rotated_the_next_time(postgres_url: str) -> None:
    database = Database(postgres_url)
    account = await sign_up(database, "Edith", ROOT)
    await account.fill(2)
    message, sealer = await a_message(account), await account.sealer()
    async with database.write() as session:
        row = await session.get_one(Message, message, with_for_update=True)
        first = await rotate(account)
        row.sealed_content = sealer.seal(MESSAGE_CONTENT, message, "Written meanwhile")
    second = await rotate(account)

    assert first.kept == (1,)
    assert (second.resealed, second.kept) == (1, ())
    texts = await account.texts()
    assert texts["messages", "sealed_content", message] == "Written meanwhile"
    await database.dispose()


@pytest.mark.slow
async def test_ten_thousand_messages_are_resealed(database: Database) -> None:
    account = await sign_up(database, "Edith", ROOT)
    sealer, chat = await account.sealer(), new_id()
    ids = [new_id() for _ in range(10_000)]
    title = sealer.seal(CHAT_TITLE, chat, "A long night")
    rows = [
        {
            "id": each,
            "user_id": account.user_id,
            "chat_id": chat,
            "position": number,
            "role": "user",
            "tokens": 500,
            "path_tokens": 500 * number,
            "sealed_author": sealer.seal(Column("messages", "sealed_author"), each, "Edith"),
            "sealed_content": sealer.seal(MESSAGE_CONTENT, each, f"{number} " * 400),
        }
        for number, each in enumerate(ids)
    ]
    async with database.write() as session:
        session.add(
            Chat(id=chat, user_id=account.user_id, sealed_title=title, count_unit="o200k_base")
        )
        await session.flush()
        await session.execute(insert(Message), rows)
    progress = Progress()

    rotation = await rotate_data_key(
        database, account.user_id, account.user_key, progress, grace=AT_ONCE
    )

    assert (rotation.resealed, rotation.kept) == (10_001, ())
    assert len(progress.steps) > 10_000 / BATCH_ROWS
    texts = await account.texts()
    assert all(
        texts["messages", "sealed_content", each] == f"{number} " * 400
        for number, each in enumerate(ids)
    )


sizes = st.lists(st.integers(0, 2 * BATCH_BYTES), max_size=3 * BATCH_ROWS)


@settings(deadline=None, database=None)
@given(sizes)
def test_batches_leave_out_nothing_and_are_never_too_heavy(sizes: list[int]) -> None:
    page = [(UUID(int=number), size) for number, size in enumerate(sizes)]
    found = list(split_batches(page))
    assert [each for ids in found for each in ids] == [each for each, _ in page]
    for ids in found:
        assert 1 <= len(ids) <= BATCH_ROWS
        assert len(ids) == 1 or sum(sizes[each.int] for each in ids) <= BATCH_BYTES


async def test_a_key_that_is_due_is_made_at_the_next_log_in_and_only_once(account: Account) -> None:
    texts = await account.texts()
    assert await request_new_data_keys(account.database) == 1
    assert await request_new_data_keys(account.database) == 0
    made = await asyncio.gather(*(arrive(account) for _ in range(4)))
    assert sorted(made) == [False, False, False, True]
    assert await account.key_numbers() == [1, 2]
    assert await account.texts() == texts
    assert (await account.sealer()).current_key == 2
    assert await arrive(account) is False


async def test_a_sign_in_creates_no_unneeded_key(account: Account) -> None:
    assert await arrive(account) is False
    assert await account.key_numbers() == [1]


async def test_a_wrong_user_key_is_never_given_a_new_data_key(account: Account) -> None:
    await request_new_data_keys(account.database)
    with pytest.raises(SealBrokenError):
        await arrive(replace(account, user_key=b"x" * 32))
    assert await account.key_numbers() == [1]
    assert await arrive(account) is True


async def test_every_account_is_due_until_its_next_sign_in(database: Database) -> None:
    edith, agnes = [await sign_up(database, name, ROOT) for name in ("Edith", "Agnes")]
    assert await request_new_data_keys(database) == 2
    await arrive(edith)
    query = select(User.id).where(User.new_data_key_due)
    async with database.read() as session:
        assert list(await session.scalars(query)) == [agnes.user_id]


async def arrive(account: Account) -> bool:
    """Create the data key that is due, as a sign-in does."""
    async with account.database.write() as session:
        user = await session.get_one(User, account.user_id)
        return await ensure_data_key(session, user, account.user_key)


def find_table(model: type[Base]) -> SealedTable:
    (found,) = (each for each in find_model_tables() if each.table is model.__table__)
    return found


async def a_message(account: Account) -> UUID:
    found: UUID = (await account.rows(find_table(Message)))[0]["id"]
    return found


async def edit(account: Account, message: UUID, sealer: Sealer, words: str) -> None:
    sealed = sealer.seal(MESSAGE_CONTENT, message, words)
    async with account.database.write() as session:
        await session.execute(
            update(Message).where(Message.id == message).values(sealed_content=sealed)
        )
