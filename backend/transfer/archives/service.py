"""Makes, streams and deletes the archives of accounts."""

from __future__ import annotations

import asyncio
import errno
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

import msgspec
from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity, make_job_identity
from backend.accounts.events import AccountDeleted
from backend.accounts.repository import get_user
from backend.core.cpu_pool import CpuPool, background_work
from backend.core.logs import get_logger
from backend.core.operating_system import sync_folder
from backend.database.base import UNSYNCHRONIZED, new_id, now
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import JobKind, RunningJob
from backend.jobs.schemas import JobView
from backend.transfer.archives.content import AccountReader
from backend.transfer.archives.schemas import ArchiveState, ArchiveView
from backend.transfer.archives.unreadable import Salvage
from backend.transfer.archives.writer import ArchiveWriter
from backend.transfer.errors import ArchiveNotFoundError
from backend.transfer.models import Archive
from backend.vault.sealed_files import BLOCK_BYTES, SealedFileReader, SealedFileWriter
from backend.vault.sealing import Column, SealBrokenError, Sealer

log = get_logger(__name__)

MAKE_ARCHIVE = "transfer.make_archive"
EXPIRE_ARCHIVE = "transfer.expire_archive"

ARCHIVE_LIFETIME = timedelta(days=1)
ARCHIVE_CONTENT = Column("archives", "content")
DISK_FULL_SLUG = "disk-full"

ReportFiles = Callable[[int, int], Awaitable[None]]
"""Called with the number of finished files, and an estimate of their total."""

_UNFINISHED = ("queued", "running", "waiting_key")


@dataclass(frozen=True, slots=True)
class ArchiveDownload:
    """An open archive. `chunks` closes it."""

    size: int
    name: str
    chunks: AsyncGenerator[bytes]


class ArchiveService(AccountDeleted):
    """The archives of accounts. Each is a sealed file in `folder`, named by its row's id.

    All processes that run jobs or serve the API must share the folder.
    """

    def __init__(
        self, queue: JobQueue, reader: AccountReader, pool: CpuPool, *, folder: Path
    ) -> None:
        self._queue = queue
        self._database = queue.database
        self._reader = reader
        self._pool = pool
        self._folder = folder

    @property
    def kinds(self) -> dict[str, JobKind]:
        return {
            MAKE_ARCHIVE: JobKind(self.make, keep=True, stoppable=True),
            EXPIRE_ARCHIVE: JobKind(self.expire, needs_key=False),
        }

    async def begin(self, identity: Identity) -> ArchiveView:
        """Queue a new archive, or return the one that is being made.

        A finished one stays available until the new one is complete.
        """
        owner_id, archive_id, at = identity.user_id, new_id(), now()
        async with self._database.write() as session:
            await get_user(session, owner_id, lock=True)
            newest = await _find_newest(session, owner_id)
            if newest is not None and newest[1] is not None and newest[1].state in _UNFINISHED:
                return _make_view(*newest)
            making = NewJob(
                kind=MAKE_ARCHIVE,
                user_id=owner_id,
                lane=archive_id,
                payload=_make_payload(archive_id),
            )
            key = self._queue.grant(identity.sealer, identity.key_mode)
            job_id = await self._queue.enqueue(session, making, key=key)
            archive = Archive(
                id=archive_id,
                user_id=owner_id,
                job_id=job_id,
                size=0,
                unreadable=0,
                expires_at=at + ARCHIVE_LIFETIME,
                created_at=at,
            )
            session.add(archive)
            await session.flush()
            await self._queue.enqueue(session, _make_expiry(archive))
            return _make_view(archive, await session.get(Job, job_id))

    async def read_status(self, identity: Identity) -> ArchiveView:
        """Raises `ArchiveNotFoundError`, also if the file is missing since a restore."""
        async with self._database.read() as session:
            newest = await _find_newest(session, identity.user_id)
        if newest is None:
            raise ArchiveNotFoundError
        path = self._find_path(newest[0].id)
        if newest[0].size and not await asyncio.to_thread(path.exists):
            raise ArchiveNotFoundError
        return _make_view(*newest)

    async def open(self, identity: Identity) -> ArchiveDownload:
        """Open the newest finished archive. Raises `ArchiveNotFoundError`."""
        query = (
            select(Archive)
            .where(
                Archive.user_id == identity.user_id, Archive.size > 0, Archive.expires_at > now()
            )
            .order_by(Archive.id.desc())
            .limit(1)
        )
        async with self._database.read() as session:
            archive = await session.scalar(query)
        if archive is None:
            raise ArchiveNotFoundError("There is no finished archive. Make one first.")
        path = self._find_path(archive.id)
        try:
            reader = await asyncio.to_thread(open_archive, path, identity.sealer, archive.id)
        except (FileNotFoundError, SealBrokenError) as error:
            raise ArchiveNotFoundError(
                "The archive is no longer readable, for example because the account's data key "
                "was replaced, or a backup was restored. Make a new one."
            ) from error
        name = f"talekeeper-{archive.created_at:%Y-%m-%d}.zip"
        return ArchiveDownload(reader.size, name, _read_chunks(reader))

    async def delete(self, identity: Identity) -> None:
        """Delete all archives, also one that is being made. Raises `ArchiveNotFoundError`."""
        owner_id = identity.user_id
        async with self._database.write() as session:
            query = delete(Archive).where(Archive.user_id == owner_id)
            rows = (await session.execute(query.returning(Archive.id, Archive.job_id))).all()
            if not rows:
                raise ArchiveNotFoundError
            await self._queue.stop_running(
                session,
                owner_id,
                lanes=[row.id for row in rows],
                kinds=[MAKE_ARCHIVE],
                payload={},
                error="stopped",
            )
            jobs = [row.job_id for row in rows if row.job_id is not None]
            waiting = delete(Job).where(
                Job.id.in_(jobs), Job.user_id == owner_id, Job.state.in_(("queued", "waiting_key"))
            )
            await session.execute(waiting)
        await self._remove_files([row.id for row in rows])

    async def make(self, job: RunningJob) -> None:
        """Write the archive of a job. A killed or stopped attempt leaves no archive."""
        archive_id = UUID(job.payload["archive_id"])
        sealer = job.keys
        async with self._database.read() as session:
            archive = await session.get(Archive, archive_id)
            if archive is None:  # deleted since it was queued
                return
            user = await get_user(session, sealer.user_id)
        identity = make_job_identity(user, sealer, job.id)
        await self._remove_files([archive_id])
        part = self._folder / f"{archive_id}-{secrets.token_hex(8)}.part"
        salvage = Salvage(sealer)
        try:
            with background_work():
                archive.size = await self._write(
                    identity, salvage, archive.id, part, archive.created_at, job.progress
                )
            archive.unreadable = len(salvage.items)
            await self._publish(job, archive, part)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            failed = update(Job).where(Job.id == job.id).values(error=DISK_FULL_SLUG)
            async with job.finish() as session:
                await session.execute(failed, execution_options=UNSYNCHRONIZED)
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)

    async def expire(self, job: RunningJob) -> None:
        """Delete an archive a day after it was requested, even if its account is deleted."""
        archive_id = UUID(job.payload["archive_id"])
        await self._remove_files([archive_id])
        async with job.finish() as session:
            await session.execute(delete(Archive).where(Archive.id == archive_id))

    async def account_deleted(self, session: AsyncSession, user_id: UUID) -> None:
        """Run the jobs that delete the files now instead of a day later."""
        ids = await session.scalars(select(Archive.id).where(Archive.user_id == user_id))
        payloads = [msgspec.json.encode(_make_payload(each)).decode() for each in ids]
        await session.execute(
            update(Job)
            .where(Job.kind == EXPIRE_ARCHIVE, Job.payload.in_(payloads))
            .values(run_after=now()),
            execution_options=UNSYNCHRONIZED,
        )

    @asynccontextmanager
    async def write_temporary(
        self, identity: Identity, report: ReportFiles
    ) -> AsyncGenerator[SealedFileReader]:
        """Write an archive for the duration of the block, and open it."""
        archive_id = new_id()
        part = self._folder / f"{archive_id}-{secrets.token_hex(8)}.part"
        try:
            salvage = Salvage(identity.sealer)
            await self._write(identity, salvage, archive_id, part, now(), report)
            reader = await asyncio.to_thread(open_archive, part, identity.sealer, archive_id)
            with reader:
                yield reader
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)

    async def _write(
        self,
        identity: Identity,
        salvage: Salvage,
        archive_id: UUID,
        part: Path,
        created_at: datetime,
        report: ReportFiles,
    ) -> int:
        """Write the sealed zip. Return its size without the sealing."""
        run = partial(self._pool.run, identity.user_id, is_job=True)
        with await asyncio.to_thread(
            SealedFileWriter, part, identity.sealer, ARCHIVE_CONTENT, archive_id
        ) as target:
            writer = ArchiveWriter(target, created_at)
            total, done = await self._reader.count(identity), 0
            await report(done, total)
            async for file in self._reader.read(identity, salvage):
                await run(partial(writer.add, file))
                done += 1
                await report(done, max(total, done + 1))
            for kind, count in salvage.count_kinds().items():
                log.warning("archive.unreadable", source=kind, count=count)

            def finish() -> int:
                writer.finish(salvage.items)
                return target.finish()

            return await run(finish)

    async def _publish(self, job: RunningJob, archive: Archive, part: Path) -> None:
        """Replace older archives, in the transaction that ends the job."""
        older = Archive.user_id == archive.user_id, Archive.id < archive.id
        await job.progress(1, 1)
        async with job.finish() as session:
            stored = update(Archive).where(Archive.id == archive.id)
            stored = stored.values(size=archive.size, unreadable=archive.unreadable)
            found = await session.scalar(
                stored.returning(Archive.id).execution_options(**UNSYNCHRONIZED)
            )
            if found is None:  # deleted while it was made
                return
            replaced = list(
                await session.scalars(delete(Archive).where(*older).returning(Archive.id))
            )
            await asyncio.to_thread(_move, part, self._find_path(archive.id))
        await self._remove_files(replaced)

    def _find_path(self, archive_id: UUID) -> Path:
        return self._folder / f"{archive_id}.archive"

    async def _remove_files(self, archive_ids: Iterable[UUID]) -> None:
        """Delete the files of archives, and those that killed attempts have left."""

        def remove() -> None:
            for archive_id in archive_ids:
                for path in self._folder.glob(f"{archive_id}*"):
                    path.unlink(missing_ok=True)

        await asyncio.to_thread(remove)


def open_archive(path: Path, sealer: Sealer, archive_id: UUID) -> SealedFileReader:
    """Raises `FileNotFoundError`, `SealBrokenError`."""
    return SealedFileReader(path, sealer, ARCHIVE_CONTENT, archive_id)


async def _read_chunks(reader: SealedFileReader) -> AsyncGenerator[bytes]:
    try:
        while chunk := await asyncio.to_thread(reader.read, BLOCK_BYTES):
            yield chunk
    finally:
        reader.close()


def _move(part: Path, path: Path) -> None:
    part.replace(path)
    sync_folder(path.parent)


async def _find_newest(session: AsyncSession, owner_id: UUID) -> tuple[Archive, Job | None] | None:
    query = select(Archive).where(Archive.user_id == owner_id, Archive.expires_at > now())
    archive = await session.scalar(query.order_by(Archive.id.desc()).limit(1))
    if archive is None:
        return None
    return archive, await session.get(Job, archive.job_id) if archive.job_id else None


def _make_view(archive: Archive, job: Job | None) -> ArchiveView:
    return ArchiveView(
        state=_find_state(archive, job),
        size=archive.size,
        unreadable=archive.unreadable,
        created_at=archive.created_at,
        expires_at=archive.expires_at,
        job=JobView.from_row(job) if job is not None else None,
    )


def _find_state(archive: Archive, job: Job | None) -> ArchiveState:
    if archive.size:
        return "ready"
    if job is not None and job.state in _UNFINISHED:
        return "making"
    return "stopped" if job is not None and job.error == "stopped" else "failed"


def _make_payload(archive_id: UUID) -> dict[str, str]:
    return {"archive_id": str(archive_id)}


def _make_expiry(archive: Archive) -> NewJob:
    return NewJob(
        kind=EXPIRE_ARCHIVE,
        payload=_make_payload(archive.id),
        run_after=archive.expires_at,
    )
