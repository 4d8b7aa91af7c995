"""Telling the index of changes, in the transaction that makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.events import AccountDeleted
from backend.accounts.models import KeyMode
from backend.database.base import get_table, now, split_chunks
from backend.jobs.models import JOBS
from backend.jobs.queue import JobKey, JobQueue, NewJob, insert_job
from backend.memory.index.protocol import Kind
from backend.memory.models import IndexChange, IndexState
from backend.vault.sealing import Sealer

INDEX = "memory.index"
REINDEX = "memory.reindex"
RECONCILE = "memory.reconcile"
FORGET = "memory.forget"


FORGOTTEN_AGAIN = timedelta(minutes=5)
"""Longer than a worker goes on with a job that it has lost."""

MOST_NOTED = 500
"""Rows that are noted one by one: of more the index compares the whole container."""

_FOLLOW = {"collection": None}
"""Of a job that finds out by itself which collection it is."""

_NOTE = get_table(IndexChange).insert()
_GAVE_UP = select(JOBS.c.id, JOBS.c.payload).where(
    JOBS.c.user_id == bindparam("owner_id"),
    JOBS.c.kind == bindparam("kind"),
    JOBS.c.state == "dead",
)
_FORGET_DEAD = JOBS.delete().where(
    JOBS.c.id.in_(bindparam("ids", expanding=True)), JOBS.c.state == "dead"
)


class KeyHolder(Protocol):
    """What has a user's key at hand: a request's identity, a running turn."""

    @property
    def sealer(self) -> Sealer:
        """Seals and opens the user's texts."""
        ...

    @property
    def key_mode(self) -> KeyMode:
        """How work behind the user's back comes by the key."""
        ...


class IndexOutbox(AccountDeleted):
    """Notes what the index does not show yet, and sees to it that somebody mends that."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue

    async def changed(
        self,
        session: AsyncSession,
        holder: KeyHolder,
        *,
        kind: Kind,
        container_id: UUID,
        source_ids: Sequence[UUID] | None = None,
    ) -> UUID | None:
        """Rows of a container were made, changed or deleted; None stands for all of it.

        Returns the id of the job that follows it up; None when one waits already.
        """
        sources = [None] if source_ids is None else list(dict.fromkeys(source_ids))
        if not sources:
            return None
        key = self._queue.grant(holder.sealer, holder.key_mode)
        return await self._note(session, holder.sealer.user_id, kind, container_id, sources, key)

    async def left(
        self,
        session: AsyncSession,
        user_id: UUID,
        *,
        kind: Kind,
        container_id: UUID,
        source_ids: Sequence[UUID],
    ) -> None:
        """The same where nobody has the user's key at hand: it waits until they are seen."""
        if source_ids:
            await self._note(session, user_id, kind, container_id, source_ids)

    async def reindex(self, session: AsyncSession, user_id: UUID, collection: str) -> None:
        """Have all texts of a user's indexed in a collection, once they are seen."""
        await self._queue.enqueue(session, _reindexing(user_id, {"collection": collection}))

    async def follow(self, session: AsyncSession, holder: KeyHolder) -> None:
        """Have all texts of a user's belong where the account's embedding model says."""
        key = self._queue.grant(holder.sealer, holder.key_mode)
        await self._queue.enqueue(session, _reindexing(holder.sealer.user_id, _FOLLOW), key=key)

    async def follow_later(self, session: AsyncSession, user_id: UUID) -> None:
        """The same once the user is seen."""
        await self._queue.enqueue(session, _reindexing(user_id, _FOLLOW))

    async def rebuild(self, session: AsyncSession, holder: KeyHolder) -> None:
        """Have all points of a user's made again, where the account's settings say.

        What gave up following changes is tried again: notes of these changes are left.
        """
        user_id = holder.sealer.user_id
        job = _reindexing(user_id, {**_FOLLOW, "anew": True})
        key = self._queue.grant(holder.sealer, holder.key_mode)
        await self._queue.enqueue(session, job, key=key)
        gave_up = (await session.execute(_GAVE_UP, {"owner_id": user_id, "kind": INDEX})).all()
        for row in gave_up:
            place = msgspec.json.decode(row.payload)
            again = _following(user_id, place["kind"], UUID(place["container_id"]))
            await self._queue.enqueue(session, again, key=key)
        await _forget(session, [row.id for row in gave_up])

    async def reindexed(self, session: AsyncSession, user_id: UUID, *, anew: bool) -> None:
        """Forget earlier jobs of a user's that gave up what was done now.

        One that was to make all points again stays, where that was not done `anew`.
        """
        rows = (await session.execute(_GAVE_UP, {"owner_id": user_id, "kind": REINDEX})).all()
        done = [each for each in rows if anew or not msgspec.json.decode(each.payload).get("anew")]
        await _forget(session, [row.id for row in done])

    async def account_deleted(self, session: AsyncSession, user_id: UUID) -> None:
        """Have every point of a user's deleted: the account goes in this transaction.

        Once more later: work that is under way puts points back until it hears that its job is
        gone.
        """
        named = select(IndexState.collection).where(IndexState.user_id == user_id)
        payload = {"owner_id": str(user_id), "collections": list(await session.scalars(named))}
        job = NewJob(kind=FORGET, payload=payload, dedupe_key=f"{FORGET}/{user_id}")
        await self._queue.enqueue(session, job)
        later = now() + FORGOTTEN_AGAIN
        again = replace(job, dedupe_key=f"{job.dedupe_key}/again", run_after=later)
        await self._queue.enqueue(session, again)

    async def _note(
        self,
        session: AsyncSession,
        user_id: UUID,
        kind: Kind,
        container_id: UUID,
        sources: Sequence[UUID | None],
        key: JobKey | None = None,
    ) -> UUID | None:
        """Write down what changed, and enqueue the job that follows it up."""
        job = await _noted(session, user_id, kind, container_id, sources)
        return await self._queue.enqueue(session, job, key=key)


def _reindexing(user_id: UUID, payload: dict[str, Any]) -> NewJob:
    wanted = "/".join(map(str, payload.values()))
    return NewJob(
        kind=REINDEX,
        user_id=user_id,
        lane=user_id,
        payload=payload,
        dedupe_key=f"{REINDEX}/{user_id}/{wanted}",
    )


async def _forget(session: AsyncSession, ids: Sequence[UUID]) -> None:
    """Delete jobs that gave up."""
    for some in split_chunks(ids):
        await session.execute(_FORGET_DEAD, {"ids": some})


async def reindex_later(session: AsyncSession, user_id: UUID, collection: str) -> None:
    """What `IndexOutbox.reindex` does, for code that has no outbox."""
    await insert_job(session, _reindexing(user_id, {"collection": collection}))


async def note_change(
    session: AsyncSession,
    user_id: UUID,
    *,
    kind: Kind,
    container_id: UUID,
    source_ids: Sequence[UUID] | None,
) -> None:
    """What `IndexOutbox.left` does, for code that has no outbox: workers find the job later.

    None stands for all rows of the container, and so do very many.
    """
    is_whole = source_ids is None or len(source_ids) > MOST_NOTED
    sources = [None] if is_whole else list(dict.fromkeys(source_ids or ()))
    if sources:
        await insert_job(session, await _noted(session, user_id, kind, container_id, sources))


async def _noted(
    session: AsyncSession,
    user_id: UUID,
    kind: Kind,
    container_id: UUID,
    sources: Sequence[UUID | None],
) -> NewJob:
    """Write down what changed; the job that follows it up."""
    row = {"user_id": user_id, "kind": kind, "container_id": container_id}
    await session.execute(_NOTE, [{**row, "source_id": each} for each in sources])
    return _following(user_id, kind, container_id)


def _following(user_id: UUID, kind: Kind, container_id: UUID) -> NewJob:
    return NewJob(
        kind=INDEX,
        user_id=user_id,
        lane=container_id,
        payload={"kind": kind, "container_id": str(container_id)},
        dedupe_key=f"{INDEX}/{container_id}",
    )
