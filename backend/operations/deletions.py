"""Deletion of accounts, chats, campaigns, chronicles and lorebooks in many short transactions.

Each is hidden first, in a transaction that also queues a job. The request then deletes the rows of
small accounts and chats itself. The job does the rest, also after a crash.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from uuid import UUID

from sqlalchemy import Delete, Select, Update, delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.events import AccountClosed, AccountDeleted
from backend.accounts.models import User
from backend.campaigns.models import Campaign
from backend.chats.deletion import (
    ABANDONED_AFTER,
    LEAVES_FIRST,
    delete_hidden_chat,
)
from backend.chats.events import ChatClosed, ChatDeleted
from backend.chats.models import Chat, Message
from backend.chronicles.models import Chronicle
from backend.chronicles.service import ChronicleDeleted
from backend.core.logs import get_logger
from backend.database.base import UNSYNCHRONIZED, get_table, now
from backend.database.batches import (
    Batches,
    ClaimEndedError,
    OnBatch,
    OutOfBatchesError,
    find_references,
)
from backend.database.engine import Database
from backend.jobs.deletions import (
    CONTAINER_DELETE_KIND,
    DELETE_KIND,
    Root,
    name_deletion,
    queue_deletion,
)
from backend.jobs.models import JOBS
from backend.jobs.queue import JobQueue
from backend.jobs.running import JobKind, RunningJob
from backend.lorebooks.models import Lorebook
from backend.lorebooks.repository import find_book, hide_book
from backend.quotas.models import StorageLedger
from backend.turns.models import IS_OPEN, Turn

log = get_logger(__name__)

MAX_INLINE_BATCHES = 60
"""Transactions of a request that deletes. That is enough for a chat of some thousand messages."""

JOB_DELAY = timedelta(seconds=15)
"""The job begins after this time, unless the request ends before it with rows left."""

Container = Campaign | Chronicle | Lorebook

CONTAINERS: dict[Root, type[Container]] = {
    "campaign": Campaign,
    "chronicle": Chronicle,
    "lorebook": Lorebook,
}


class Deletions(AccountClosed, AccountDeleted, ChatClosed, ChatDeleted, ChronicleDeleted):
    """Deletes rows that were hidden."""

    def __init__(self, database: Database, queue: JobQueue) -> None:
        self._database = database
        self._queue = queue

    @property
    def kinds(self) -> dict[str, JobKind]:
        deletion = JobKind(self.run, needs_key=False)
        return {DELETE_KIND: deletion, CONTAINER_DELETE_KIND: deletion}

    async def account_deleted(self, session: AsyncSession, user_id: UUID) -> None:
        """End the account's turns, and queue the deletion of its rows."""
        await session.execute(delete(Turn).where(Turn.user_id == user_id, IS_OPEN))
        await queue_deletion(session, "account", user_id, run_after=now() + JOB_DELAY)

    async def account_closed(self, user_id: UUID) -> None:
        await self._begin("account", user_id)

    async def chat_deleted(
        self,
        session: AsyncSession,
        identity: Identity,  # noqa: ARG002  # the chat is the owner's
        chat: Chat,
    ) -> None:
        """End the chat's turn, and queue the deletion of its rows."""
        await session.execute(delete(Turn).where(Turn.chat_id == chat.id, IS_OPEN))
        await queue_deletion(session, "chat", chat.id, run_after=now() + JOB_DELAY)

    async def chat_closed(self, chat_id: UUID) -> None:
        await self._begin("chat", chat_id)

    async def chronicle_deleted(
        self, session: AsyncSession, identity: Identity, chronicle_id: UUID
    ) -> None:
        """Hide the chronicle's lorebook, and detach its campaigns."""
        book = await find_book(
            session, Lorebook.chronicle_id == chronicle_id, owner_id=identity.user_id, lock=True
        )
        if book is not None:
            await hide_book(session, book)
        told = Campaign.chronicle_id == chronicle_id, Campaign.user_id == identity.user_id
        await session.execute(update(Campaign).where(*told).values(chronicle_id=None))

    async def schedule(self) -> None:
        """Queue jobs for everything that was hidden 15 minutes ago or earlier.

        That includes the chats of killed imports.
        """
        before = now() - ABANDONED_AFTER
        hidden: dict[Root, Select[UUID]] = {
            "account": select(User.id).where(User.deleted_at < before),
            "chat": select(Chat.id).where(~Chat.is_ready, Chat.updated_at < before),
        }
        for root, model in CONTAINERS.items():
            hidden[root] = select(model.id).where(model.deleted_at < before)
        async with self._database.read() as session:
            found: dict[Root, list[UUID]] = {
                root: list(await session.scalars(query)) for root, query in hidden.items()
            }
        if not any(found.values()):
            return
        async with self._database.write() as session:
            for root, row_ids in found.items():
                for row_id in row_ids:
                    await queue_deletion(session, root, row_id)
        self._queue.wake()

    async def run(self, job: RunningJob) -> None:
        root, row_id = job.payload["root"], UUID(job.payload["id"])

        async def report(count: int) -> None:
            await job.progress(count, count + 1)

        await DELETIONS[root](self._database, row_id, on_batch=report)

    async def _begin(self, root: Root, row_id: UUID) -> None:
        """Delete the rows now, or leave the rest to the job."""
        this = JOBS.c.dedupe_key == name_deletion(root, row_id), JOBS.c.state == "queued"
        change: Delete | Update = delete(JOBS).where(*this)
        try:
            await DELETIONS[root](self._database, row_id, max_batches=MAX_INLINE_BATCHES)
        except OutOfBatchesError:
            change = update(JOBS).where(*this).values(run_after=now())
        except Exception as error:  # the job tries again
            log.warning("deletion.not_finished", exc_info=error)
            return
        async with self._database.write() as session:
            await session.execute(change, execution_options=UNSYNCHRONIZED)
        self._queue.wake()


async def delete_closed_account(
    database: Database,
    user_id: UUID,
    *,
    max_batches: int | None = None,
    on_batch: OnBatch | None = None,
) -> None:
    """Delete the rows of an account without keys. It can be interrupted and repeated.

    Raises `OutOfBatchesError` if it needs more than `max_batches` transactions.
    """
    is_it = User.id == user_id, User.deleted_at.is_not(None)
    batches = Batches(
        database,
        claim=select(User.id).where(*is_it).with_for_update(),
        max_batches=max_batches,
        on_batch=on_batch,
    )
    users, ledger = get_table(User), get_table(StorageLedger)
    # Each of the other tables adds rows to the ledger while its rows are deleted.
    references = sorted(find_references(users), key=lambda each: each.table is ledger)
    try:
        for each in references:
            if each.table is get_table(Message):
                await _delete_messages(batches, user_id)
            else:
                await batches.delete(each.table, each.column == user_id)
        await batches.delete(users, *is_it)
    except ClaimEndedError:
        return
    log.info("account.deletion_finished", user_id=user_id)


async def _delete_messages(batches: Batches, user_id: UUID) -> None:
    chats = select(Chat.id).where(Chat.user_id == user_id).order_by(Chat.id)
    async with batches.database.read() as session:
        chat_ids = list(await session.scalars(chats))
    for chat_id in chat_ids:
        in_chat = get_table(Message).c.chat_id == chat_id
        await batches.delete(get_table(Message), in_chat, order_by=LEAVES_FIRST)


async def delete_hidden_container(
    database: Database,
    row_id: UUID,
    *,
    model: type[Container],
    max_batches: int | None = None,
    on_batch: OnBatch | None = None,
) -> None:
    """Delete a hidden campaign, chronicle or lorebook, as `delete_hidden_chat` does with a chat."""
    table = get_table(model)
    is_open = model.user_id.in_(select(User.id).where(User.deleted_at.is_(None)))
    is_it = model.id == row_id, model.deleted_at.is_not(None), is_open
    batches = Batches(
        database,
        claim=select(model.id).where(*is_it).with_for_update(),
        max_batches=max_batches,
        on_batch=on_batch,
    )
    with contextlib.suppress(ClaimEndedError):
        await batches.delete_dependents(table, row_id, last={})
        await batches.delete(table, *is_it)


_Delete = Callable[..., Awaitable[None]]

DELETIONS: dict[Root, _Delete] = {
    "account": delete_closed_account,
    "chat": delete_hidden_chat,
    **{root: partial(delete_hidden_container, model=model) for root, model in CONTAINERS.items()},
}
