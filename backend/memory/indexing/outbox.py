"""The outbox of the index: notes and jobs, written in the transaction of a change."""

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
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import get_table, now, split_chunks
from backend.jobs.models import JOBS
from backend.jobs.queue import JobKey, JobQueue, NewJob, insert_job
from backend.memory.index.protocol import Kind
from backend.memory.models import IndexChange, IndexState
from backend.vault.sealing import Sealer

INDEX = "memory.index"
INDEX_IMPORTED = "memory.index_imported"
REINDEX = "memory.reindex"
RECONCILE = "memory.reconcile"
FORGET = "memory.forget"


SECOND_DELETE_DELAY = timedelta(minutes=5)
"""Longer than a worker continues a job whose lease it has lost."""

IMPORT_PAUSE = timedelta(seconds=3)
"""Imported containers are indexed when none has followed for this long, because both import and
indexing use the processor."""

MAX_NOTED_ROWS = 500
"""If more rows change, one note makes the indexer compare the whole container."""

_FOLLOW_PAYLOAD = {"collection": None}

_INSERT_NOTE = get_table(IndexChange).insert()
_NOTED = (
    select(IndexChange.source_id)
    .where(
        IndexChange.container_id == bindparam("container_id"),
        IndexChange.user_id == bindparam("owner_id"),
    )
    .distinct()
)
_DEAD_JOBS = select(JOBS.c.id, JOBS.c.payload).where(
    JOBS.c.user_id == bindparam("owner_id"),
    JOBS.c.kind == bindparam("kind"),
    JOBS.c.state == "dead",
)
_POSTPONE = (
    JOBS.update()
    .where(JOBS.c.dedupe_key == bindparam("key"), JOBS.c.state.in_(("queued", "waiting_key")))
    .values(run_after=bindparam("later"))
)
_DELETE_DEAD = JOBS.delete().where(
    JOBS.c.id.in_(bindparam("ids", expanding=True)), JOBS.c.state == "dead"
)


class KeyHolder(Protocol):
    @property
    def sealer(self) -> Sealer: ...

    @property
    def key_mode(self) -> KeyMode: ...


class IndexOutbox(AccountDeleted):
    """Records changes of rows for the index.

    Args:
        queue: Gets the jobs.
        delay: Time after which new lines of a chat are indexed, so that one job indexes several.
    """

    def __init__(self, queue: JobQueue, *, delay: timedelta = timedelta(0)) -> None:
        self._queue = queue
        self._delay = delay

    async def changed(
        self,
        session: AsyncSession,
        holder: KeyHolder,
        *,
        kind: Kind,
        container_id: UUID,
        source_ids: Sequence[UUID] | None = None,
    ) -> UUID | None:
        """Record that rows of a container were created, changed or deleted; None means all rows.

        Return the id of the job that indexes them; None if one is already waiting.
        """
        sources = [None] if source_ids is None else list(dict.fromkeys(source_ids))
        if not sources:
            return None
        key = self._queue.grant(holder.sealer, holder.key_mode)
        return await self._note(session, holder.sealer.user_id, kind, container_id, sources, key)

    async def record_lines(
        self,
        session: AsyncSession,
        holder: KeyHolder,
        *,
        chat_id: UUID,
        message_ids: Sequence[UUID],
    ) -> None:
        """Record new messages of a turn. They are indexed after the delay.

        They are in the history of their chat meanwhile. Other changes of the chat in this time are
        indexed with them.
        """
        if message_ids:
            owner_id, key = holder.sealer.user_id, self._queue.grant(holder.sealer, holder.key_mode)
            await self._note(
                session, owner_id, "message", chat_id, message_ids, key, delay=self._delay
            )

    async def record_import(
        self, session: AsyncSession, holder: KeyHolder, *, kind: Kind, container_id: UUID
    ) -> None:
        """Record that a whole container was imported.

        One job at a time indexes all imported containers of a user, so that it leaves the other
        workers to changes. A change in one of them indexes that container at once.
        """
        user_id = holder.sealer.user_id
        await _insert_notes(session, user_id, kind, container_id, [None])
        job = NewJob(
            kind=INDEX_IMPORTED,
            user_id=user_id,
            lane=user_id,
            dedupe_key=f"{INDEX_IMPORTED}/{user_id}",
            run_after=now() + IMPORT_PAUSE,
        )
        key = self._queue.grant(holder.sealer, holder.key_mode)
        if await self._queue.enqueue(session, job, key=key) is None:
            await session.execute(_POSTPONE, {"key": job.dedupe_key, "later": job.run_after})

    async def record_unkeyed(
        self,
        session: AsyncSession,
        user_id: UUID,
        *,
        kind: Kind,
        container_id: UUID,
        source_ids: Sequence[UUID],
    ) -> None:
        """Record changes without the user's key. The job waits until the user signs in."""
        if source_ids:
            await self._note(session, user_id, kind, container_id, source_ids)

    async def record_missing(
        self,
        session: AsyncSession,
        user_id: UUID,
        *,
        kind: Kind,
        container_id: UUID,
        source_ids: Sequence[UUID],
    ) -> None:
        """Do the same as `record_unkeyed` for rows of which some may be noted already.

        Their notes are not repeated: otherwise each night would add one for every row of a user who
        does not sign in. The job is always queued, because that of the older notes may be dead.
        """
        values = {"container_id": container_id, "owner_id": user_id}
        rows = await session.scalars(_NOTED, values)
        noted = {each async for each in iterate_in_slices(rows)}
        # A note of the whole container makes the indexer find these rows as well.
        new = [] if None in noted else [each for each in source_ids if each not in noted]
        if source_ids:
            await self._note(session, user_id, kind, container_id, new)

    async def reindex(self, session: AsyncSession, user_id: UUID, collection: str) -> None:
        """Queue the indexing of all texts of a user in a collection, after the next sign-in."""
        await self._queue.enqueue(session, _build_reindex_job(user_id, {"collection": collection}))

    async def follow(self, session: AsyncSession, holder: KeyHolder) -> None:
        """Queue the move of a user's texts to the collection of the account's model."""
        key = self._queue.grant(holder.sealer, holder.key_mode)
        await self._queue.enqueue(
            session, _build_reindex_job(holder.sealer.user_id, _FOLLOW_PAYLOAD), key=key
        )

    async def follow_later(self, session: AsyncSession, user_id: UUID) -> None:
        """Queue the same move without the user's key. The job waits until the user signs in."""
        await self._queue.enqueue(session, _build_reindex_job(user_id, _FOLLOW_PAYLOAD))

    async def rebuild(self, session: AsyncSession, holder: KeyHolder) -> None:
        """Queue a rebuild of all points of a user.

        Index jobs that have failed permanently are queued again, because their notes still exist.
        """
        user_id = holder.sealer.user_id
        job = _build_reindex_job(user_id, {**_FOLLOW_PAYLOAD, "anew": True})
        key = self._queue.grant(holder.sealer, holder.key_mode)
        await self._queue.enqueue(session, job, key=key)
        gave_up = (await session.execute(_DEAD_JOBS, {"owner_id": user_id, "kind": INDEX})).all()
        for row in gave_up:
            place = msgspec.json.decode(row.payload)
            again = _build_index_job(user_id, place["kind"], UUID(place["container_id"]))
            await self._queue.enqueue(session, again, key=key)
        await _delete_jobs(session, [row.id for row in gave_up])

    async def delete_failed(self, session: AsyncSession, user_id: UUID, *, is_full: bool) -> None:
        """Delete a user's failed jobs that the completed one has made unnecessary.

        Failed rebuilds are kept unless the completed job was a rebuild (`is_full`).
        """
        rows = (await session.execute(_DEAD_JOBS, {"owner_id": user_id, "kind": REINDEX})).all()
        done = [
            each for each in rows if is_full or not msgspec.json.decode(each.payload).get("anew")
        ]
        await _delete_jobs(session, [row.id for row in done])

    async def account_deleted(self, session: AsyncSession, user_id: UUID) -> None:
        """Queue the deletion of all points of a user, whose account this transaction deletes.

        A second job does it again later, because a running job may still store points until it
        notices that it was deleted.
        """
        named = select(IndexState.collection).where(IndexState.user_id == user_id)
        payload = {"owner_id": str(user_id), "collections": list(await session.scalars(named))}
        job = NewJob(kind=FORGET, payload=payload, dedupe_key=f"{FORGET}/{user_id}")
        await self._queue.enqueue(session, job)
        later = now() + SECOND_DELETE_DELAY
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
        *,
        delay: timedelta = timedelta(0),
    ) -> UUID | None:
        job = await _insert_notes(session, user_id, kind, container_id, sources)
        if delay:
            job = replace(job, run_after=now() + delay)
        return await self._queue.enqueue(session, job, key=key)


def _build_reindex_job(user_id: UUID, payload: dict[str, Any]) -> NewJob:
    wanted = "/".join(map(str, payload.values()))
    return NewJob(
        kind=REINDEX,
        user_id=user_id,
        lane=user_id,
        payload=payload,
        dedupe_key=f"{REINDEX}/{user_id}/{wanted}",
    )


async def _delete_jobs(session: AsyncSession, ids: Sequence[UUID]) -> None:
    for some in split_chunks(ids):
        await session.execute(_DELETE_DEAD, {"ids": some})


async def reindex_later(session: AsyncSession, user_id: UUID, collection: str) -> None:
    """Do the same as `IndexOutbox.reindex`, for code without an outbox."""
    await insert_job(session, _build_reindex_job(user_id, {"collection": collection}))


async def note_change(
    session: AsyncSession,
    user_id: UUID,
    *,
    kind: Kind,
    container_id: UUID,
    source_ids: Sequence[UUID] | None,
) -> None:
    """Do the same as `IndexOutbox.record_unkeyed`, for code without an outbox.

    None, or too many rows, means all rows of the container.
    """
    is_whole = source_ids is None or len(source_ids) > MAX_NOTED_ROWS
    sources = [None] if is_whole else list(dict.fromkeys(source_ids or ()))
    if sources:
        await insert_job(
            session, await _insert_notes(session, user_id, kind, container_id, sources)
        )


async def _insert_notes(
    session: AsyncSession,
    user_id: UUID,
    kind: Kind,
    container_id: UUID,
    sources: Sequence[UUID | None],
) -> NewJob:
    row = {"user_id": user_id, "kind": kind, "container_id": container_id}
    if sources:
        await session.execute(_INSERT_NOTE, [{**row, "source_id": each} for each in sources])
    return _build_index_job(user_id, kind, container_id)


def _build_index_job(user_id: UUID, kind: Kind, container_id: UUID) -> NewJob:
    return NewJob(
        kind=INDEX,
        user_id=user_id,
        lane=container_id,
        payload={"kind": kind, "container_id": str(container_id)},
        dedupe_key=f"{INDEX}/{container_id}",
    )
