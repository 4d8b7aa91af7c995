"""Tests of slots at servers with few concurrent requests, shared by two processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import delete, event, select, update

from backend.accounts.auth.names import InstanceKeys
from backend.accounts.models import User
from backend.database.base import now
from backend.database.engine import Database
from backend.generation.servers.abilities import ServerLimit
from backend.llm.models import SLOT_LEASES, SlotClaim
from backend.llm.server_slots import ModelBusyError, ModelSlots, SlotTakenError
from backend.llm.slot_rules import Occupation, Rank, SlotUse, SlotWork
from tests.integration.jobs.working import new_person
from tests.support.lost_processes import took_over
from tests.support.waiting import until, until_true

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

SERVER = ServerLimit(1, ("http://127.0.0.1:8080", ""))
CHAT = UUID(int=7)


@contextlib.asynccontextmanager
async def open_slots(database: Database) -> AsyncGenerator[ModelSlots]:
    slots = ModelSlots(database, InstanceKeys(b"i" * 32))
    try:
        yield slots
    finally:
        await slots.aclose()


@pytest.fixture
async def here(database: Database) -> AsyncGenerator[ModelSlots]:
    async with open_slots(database) as slots:
        yield slots


@pytest.fixture
async def there(database: Database) -> AsyncGenerator[ModelSlots]:
    """The slots of another process."""
    async with open_slots(database) as slots:
        yield slots


@pytest.fixture
async def ada(database: Database) -> UUID:
    return (await new_person(database, "Ada")).id


@pytest.fixture
async def ben(database: Database) -> UUID:
    return (await new_person(database, "Ben")).id


class Worker:
    """Work in a task that runs until it is ended or cancelled."""

    def __init__(
        self,
        slots: ModelSlots,
        user_id: UUID,
        rank: Rank = Rank.TURN,
        use: SlotUse = "turn",
        *,
        limit: ServerLimit | None = SERVER,
        chat_id: UUID = CHAT,
        patience: float | None = None,
    ) -> None:
        self.work = SlotWork(use=use, rank=rank, user_id=user_id, chat_id=chat_id)
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.heard: list[Occupation | None] = []
        self.task = asyncio.create_task(self._run(slots, limit, patience))

    async def _run(
        self, slots: ModelSlots, limit: ServerLimit | None, patience: float | None
    ) -> None:
        hold = slots.hold([limit], self.work, on_wait=self.heard.append, patience=patience)
        async with hold:
            self.begun.set()
            await self.may_end.wait()

    async def waits_for(self, occupation: Occupation) -> None:
        await until_true(lambda: self.heard[-1:] == [occupation])

    async def end(self) -> None:
        self.may_end.set()
        await self.task


def background(slots: ModelSlots, user_id: UUID, use: SlotUse = "chronicle") -> Worker:
    return Worker(slots, user_id, Rank.BACKGROUND, use)


async def claims(database: Database) -> list[SlotClaim]:
    async with database.read() as session:
        return list(await session.scalars(select(SlotClaim).order_by(SlotClaim.id)))


async def test_turns_of_two_processes_have_the_server_one_after_the_other(
    here: ModelSlots, there: ModelSlots, ada: UUID, ben: UUID
) -> None:
    first = Worker(here, ada)
    await first.begun.wait()
    second = Worker(there, ben)
    await second.waits_for("turn")
    third = Worker(here, ada)
    await third.waits_for("turn")
    await first.end()
    await second.begun.wait()
    assert not third.begun.is_set()
    await second.end()
    await third.begun.wait()
    await third.end()
    assert second.heard == ["turn", None]


async def test_background_work_is_cut_off_for_a_turn_in_another_process(
    here: ModelSlots, there: ModelSlots, ada: UUID
) -> None:
    work = background(here, ada)
    await work.begun.wait()
    turn = Worker(there, ada)
    await turn.begun.wait()
    with pytest.raises(SlotTakenError):
        await work.task
    assert turn.heard == ["chronicle", None]
    await turn.end()


async def test_a_turn_learns_nothing_about_other_accounts_work(
    here: ModelSlots, there: ModelSlots, ada: UUID, ben: UUID
) -> None:
    work = background(here, ben)
    await work.begun.wait()
    turn = Worker(there, ada)
    await turn.begun.wait()
    assert turn.heard == ["other", None]
    await turn.end()
    with pytest.raises(SlotTakenError):
        await work.task


async def test_background_work_begins_once_no_turn_waits(
    here: ModelSlots, there: ModelSlots, ada: UUID, ben: UUID
) -> None:
    first = Worker(here, ada)
    await first.begun.wait()
    work = background(there, ada)
    await work.waits_for("turn")
    second = Worker(here, ben)
    await second.waits_for("turn")
    await first.end()
    await second.begun.wait()
    assert not work.begun.is_set()
    await second.end()
    await work.begun.wait()
    await work.end()


async def test_work_that_waits_for_too_long_is_not_begun(
    here: ModelSlots, database: Database, ada: UUID
) -> None:
    turn = Worker(here, ada)
    await turn.begun.wait()
    work = Worker(here, ada, Rank.BACKGROUND, "chronicle", patience=0.05)
    with pytest.raises(ModelBusyError):
        await work.task
    await turn.end()

    async def is_tidy() -> bool:
        return not await claims(database)

    await until(is_tidy)


async def test_a_turn_that_is_stopped_while_it_waits_leaves_its_place_in_the_line(
    here: ModelSlots, there: ModelSlots, ada: UUID, ben: UUID
) -> None:
    first = Worker(here, ada)
    await first.begun.wait()
    stopped = Worker(here, ada)
    await stopped.waits_for("turn")
    last = Worker(there, ben)
    await last.waits_for("turn")
    stopped.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopped.task
    await first.end()
    await last.begun.wait()
    await last.end()


async def test_the_place_of_a_process_that_crashed_is_free_once_its_lease_is_over(
    here: ModelSlots, database: Database, ada: UUID, ben: UUID
) -> None:
    crashed = ModelSlots(database, InstanceKeys(b"i" * 32))
    turn = Worker(crashed, ada)
    await turn.begun.wait()
    # A kill leaves a row that is not renewed.
    assert crashed._keeper is not None
    crashed._keeper.cancel()
    other = Worker(here, ben)
    await other.waits_for("turn")
    async with database.write() as session:
        over = update(SlotClaim).where(SlotClaim.user_id == ada)
        await session.execute(over.values(lease_until=now() - timedelta(seconds=1)))
    await other.begun.wait()
    assert [claim.user_id for claim in await claims(database)] == [ben]
    await other.end()
    await turn.end()
    await crashed.aclose()


async def test_a_claim_whose_owner_was_deleted_holds_up_no_other(
    here: ModelSlots, database: Database, ada: UUID, ben: UUID
) -> None:
    first = Worker(here, ben)
    await first.begun.wait()
    deleted = Worker(here, ada)
    await deleted.waits_for("turn")
    last = Worker(here, ben)
    await last.waits_for("turn")
    async with database.write() as session:
        await session.execute(delete(User).where(User.id == ada))
    await first.end()
    await last.begun.wait()
    assert not deleted.begun.is_set()
    await last.end()
    deleted.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deleted.task


async def test_the_place_of_a_lost_process_is_free(
    there: ModelSlots, database: Database, database_url: str, ada: UUID, ben: UUID
) -> None:
    crashed = Database(database_url)
    slots = ModelSlots(crashed, InstanceKeys(b"i" * 32))
    turn = Worker(slots, ada)
    await turn.begun.wait()
    async with database.write() as session:
        await session.execute(update(SlotClaim).values(lease_until=now() + timedelta(hours=1)))
    async with took_over(database, SLOT_LEASES, lost=crashed.process_id):
        other = Worker(there, ben)
        await other.begun.wait()
        await other.end()
    await turn.end()
    await slots.aclose()
    await crashed.dispose()


async def test_a_server_with_two_slots_takes_two(
    here: ModelSlots, there: ModelSlots, ada: UUID, ben: UUID
) -> None:
    two = ServerLimit(2, SERVER.server)
    work = Worker(here, ada, Rank.BACKGROUND, "chronicle", limit=two)
    turn = Worker(there, ada, limit=two)
    await asyncio.gather(work.begun.wait(), turn.begun.wait())
    another = Worker(here, ben, limit=two)
    await another.begun.wait()
    with pytest.raises(SlotTakenError):
        await work.task
    await asyncio.gather(turn.end(), another.end())


async def test_servers_with_other_addresses_or_keys_are_not_waited_for(
    here: ModelSlots, ada: UUID
) -> None:
    limits = (SERVER, ServerLimit(1, ("http://127.0.0.1:8080", "key")), None, None)
    turns = [Worker(here, ada, limit=limit) for limit in limits]
    await asyncio.gather(*(turn.begun.wait() for turn in turns))
    await asyncio.gather(*(turn.end() for turn in turns))


async def test_a_summary_that_a_turn_needs_is_written_on_the_turn_s_place(
    here: ModelSlots, there: ModelSlots, ada: UUID, ben: UUID
) -> None:
    needed = Worker(here, ada, Rank.TURN, "summary")
    await needed.begun.wait()
    other = Worker(there, ben)
    await other.waits_for("turn")
    summary = background(there, ada, "summary")
    await summary.begun.wait()
    await summary.end()
    assert not other.begun.is_set()
    await needed.end()
    await other.begun.wait()
    await other.end()


async def test_work_without_a_limit_asks_the_database_for_nothing(
    here: ModelSlots, database: Database, ada: UUID
) -> None:
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(database.engine.sync_engine, "before_cursor_execute", note)
    turn = Worker(here, ada, limit=None)
    await turn.begun.wait()
    await turn.end()
    assert statements == []
    limited = Worker(here, ada)
    await limited.begun.wait()
    await limited.end()
    assert statements


async def test_the_table_has_neither_addresses_nor_keys(
    here: ModelSlots, database: Database, ada: UUID
) -> None:
    secret = ServerLimit(1, ("http://moonlight.example:8080", "sk-moonlight"))
    turn = Worker(here, ada, limit=secret)
    await turn.begun.wait()
    (claim,) = await claims(database)
    assert "moonlight" not in str(vars(claim))
    await turn.end()
