"""Imports of uploads: their job, and its start, results, continuation and end."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid5
from weakref import WeakValueDictionary

import msgspec
from sqlalchemy import ColumnElement, and_, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity, make_job_identity
from backend.accounts.events import AccountDeleted
from backend.accounts.models import User
from backend.characters.errors import CharacterNotFoundError
from backend.characters.models import Character
from backend.core.cpu_pool import CpuPool
from backend.core.logs import get_logger
from backend.database.base import UNSYNCHRONIZED, new_id, now, split_chunks
from backend.database.engine import Database
from backend.errors import AppError, UnavailableError, ValidationError
from backend.http.schemas import AnyRequest, Page, make_page
from backend.jobs.claims import ENDED_VALUES
from backend.jobs.errors import LostLeaseError, RetryLaterError
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue, NewJob
from backend.jobs.running import JobKind, RunningJob
from backend.jobs.schemas import JobProgress
from backend.jobs.service import STOPPED_SLUG
from backend.quotas.limits import QUEUED_JOBS, STORED_BYTES
from backend.quotas.service import Quotas
from backend.settings import Settings
from backend.transfer.contracts import ImportOptions, ImportPlanner
from backend.transfer.errors import (
    ImportNotContinuableError,
    ImportNotFoundError,
    TransferFileError,
)
from backend.transfer.formats.registry import FORMATS, get_format
from backend.transfer.models import (
    IMPORT_OPTIONS,
    Import,
    ImportResult,
    ImportState,
    Outcome,
)
from backend.transfer.runner import ImportRunner, open_detail
from backend.transfer.schemas import ImportCounts, ImportResultView, ImportView
from backend.transfer.trees import SafeTree, SingleFileTree, open_file
from backend.transfer.uploads import ImportUpload, UploadStore
from backend.vault.sealing import SealBrokenError, Sealer

log = get_logger(__name__)

IMPORT_KIND = "transfer.import"
UPLOAD_RETENTION = timedelta(days=1)
"""Time for which the upload of an import that has not finished is kept."""
ELSEWHERE_RETRY_SECONDS = 3.0
"""Wait of a job if another process has its upload."""

UNEXPECTED = (
    "An unexpected error ended the import. Files with a result are not affected. The server's log "
    "has the place of the error."
)
EXPIRED = (
    "The upload was deleted after a day, or is missing since a backup was restored. Upload the "
    "file again: only what is new is imported."
)
DAMAGED = "The upload is damaged on the server's disk. Upload the file again."

ReportFiles = Callable[[int, int, Mapping[str, int]], None]
"""Called with the number of files that have a result, their total, and counts by outcome."""


def make_lane(user_id: UUID) -> UUID:
    """Return the lane of a user's imports. The lane of the user's id is that of the index."""
    return uuid5(user_id, IMPORT_KIND)


class StoredOptions(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The sealed part of an import: the name of the upload, and the request's options."""

    name: str
    copy: bool = False
    character_ids: list[UUID] = []
    chat_format: str | None = None
    secrets: list[str] = []

    @classmethod
    def from_options(cls, name: str, options: ImportOptions) -> StoredOptions:
        return cls(
            name=name,
            copy=options.copy,
            character_ids=list(options.character_ids),
            chat_format=options.chat_format,
            secrets=sorted(options.secrets),
        )

    def to_options(self) -> ImportOptions:
        return ImportOptions(
            copy=self.copy,
            character_ids=self.character_ids,
            chat_format=self.chat_format,
            secrets=frozenset(self.secrets),
        )


class ImportService(AccountDeleted):
    """Imports of all accounts.

    Args:
        planners: The kinds of trees. The first that matches is used; the last matches every tree.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        queue: JobQueue,
        pool: CpuPool,
        *,
        quotas: Quotas,
        planners: Sequence[ImportPlanner],
    ) -> None:
        self._database = database
        self._queue = queue
        self._pool = pool
        self._quotas = quotas
        self._is_alone = settings.embedded
        self._uploads = UploadStore(settings)
        self._runner = ImportRunner(database, pool, planners, self._check_room)
        self._running: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()

    @property
    def kinds(self) -> dict[str, JobKind]:
        return {IMPORT_KIND: JobKind(self._run_job, keep=True, stoppable=True)}

    async def accept(
        self, request: AnyRequest, identity: Identity, options: ImportOptions, *, name: str
    ) -> ImportView:
        """Store the file of a request, and queue its import. The options are checked first.

        Raises `ValidationError`, `CharacterNotFoundError`, `QuotaExceededError`, and the errors of
        `UploadStore.receive`.
        """
        _check_format(options.chat_format)
        await self._check_members(identity, options.character_ids)
        await self._quotas.check(QUEUED_JOBS, identity.user_id)
        upload = await self._receive(request, identity, name=name)
        return await self.start(identity, upload, options)

    async def _check_members(self, identity: Identity, character_ids: Sequence[UUID]) -> None:
        """Raise `CharacterNotFoundError` unless all characters are the user's."""
        wanted = Character.id.in_(character_ids), Character.user_id == identity.user_id
        async with self._database.read() as session:
            found = set(await session.scalars(select(Character.id).where(*wanted)))
        if not found.issuperset(character_ids):
            raise CharacterNotFoundError

    async def _receive(self, request: AnyRequest, identity: Identity, *, name: str) -> ImportUpload:
        """Store the body of a request. See `UploadStore.receive`."""

        async def check_room(pending: int) -> None:
            waiting = await self._count_waiting_bytes(identity.user_id)
            await self._check_room(identity.user_id, waiting + pending)

        return await self._uploads.receive(
            request, identity.sealer, name=name, check_room=check_room
        )

    async def start(
        self, identity: Identity, upload: ImportUpload, options: ImportOptions
    ) -> ImportView:
        """Queue the import of an upload."""
        row = self._make_row(identity, upload.id, upload.name, options, size=upload.size)
        try:
            async with self._database.write() as session:
                session.add(row)
                await session.flush()
                await self._enqueue(session, identity, row, is_continued=False)
        except BaseException:
            self._uploads.delete(upload.id)
            raise
        return await self.get(identity, row.id)

    async def list_page(
        self, identity: Identity, *, limit: int, after: UUID | None
    ) -> Page[ImportView]:
        """List imports, newest first."""
        wanted = [Import.user_id == identity.user_id]
        if after is not None:
            wanted.append(Import.id < after)
        async with self._database.read() as session:
            rows = await _load_rows(session, and_(*wanted), limit=limit + 1)
            page, following = make_page([row for row, _ in rows], limit)
            jobs = {row.id: job for row, job in rows}
            views = await self._make_views(session, identity, page, jobs)
        return Page(items=views, next=following)

    async def get(self, identity: Identity, import_id: UUID) -> ImportView:
        """Raises `ImportNotFoundError`."""
        async with self._database.read() as session:
            row, job = await _find_row(session, import_id, identity.user_id)
            [view] = await self._make_views(session, identity, [row], {row.id: job})
        return view

    async def list_results(
        self,
        identity: Identity,
        import_id: UUID,
        *,
        outcome: Outcome | None,
        limit: int,
        after: UUID | None,
    ) -> Page[ImportResultView]:
        """List the results of an import in their order. Raises `ImportNotFoundError`."""
        query = select(ImportResult).where(
            ImportResult.import_id == import_id, ImportResult.user_id == identity.user_id
        )
        if outcome is not None:
            query = query.where(ImportResult.outcome == outcome)
        if after is not None:
            query = query.where(ImportResult.id > after)
        async with self._database.read() as session:
            await _find_row(session, import_id, identity.user_id)
            found = await session.scalars(query.order_by(ImportResult.id).limit(limit + 1))
            rows, following = make_page(list(found), limit)
        views = await self._pool.run(
            identity.user_id,
            lambda: [_make_result_view(identity.sealer, row) for row in rows],
            size=sum(len(row.sealed_detail) for row in rows) // 10,
        )
        return Page(items=views, next=following)

    async def resume(self, identity: Identity, import_id: UUID) -> ImportView:
        """Continue an import that was stopped or has failed. Failed files are tried again.

        Raises `ImportNotFoundError`, `ImportNotContinuableError` and `QuotaExceededError`.
        """
        await self._quotas.check(QUEUED_JOBS, identity.user_id)
        async with self._database.write() as session:
            row, job = await _find_row(session, import_id, identity.user_id, lock=True)
            if not self._can_continue(row, job):
                raise ImportNotContinuableError(_explain_end(row, job))
            await session.execute(
                delete(ImportResult).where(
                    ImportResult.import_id == import_id, ImportResult.outcome == "failed"
                ),
                execution_options=UNSYNCHRONIZED,
            )
            row.state = "running"
            row.updated_at, row.expires_at = now(), now() + UPLOAD_RETENTION
            await self._enqueue(session, identity, row, is_continued=True)
        return await self.get(identity, import_id)

    async def delete(self, identity: Identity, import_id: UUID) -> None:
        """Stop an import, and delete its upload and results. The imported items are kept.

        Raises `ImportNotFoundError`.
        """
        async with self._database.write() as session:
            # The job is locked before the import, as its own steps do.
            row, job = await _find_row(session, import_id, identity.user_id)
            if job is not None and job.state not in {"done", "dead"}:
                ended = {**ENDED_VALUES, "state": "done", "error": STOPPED_SLUG}
                await session.execute(
                    update(Job).where(Job.id == job.id).values({**ended, "updated_at": now()}),
                    execution_options=UNSYNCHRONIZED,
                )
            await session.delete(row)
        self._uploads.delete(import_id)
        self._queue.wake()

    async def account_deleted(self, session: AsyncSession, user_id: UUID) -> None:
        """Delete the uploads of the account."""
        for import_id in await session.scalars(select(Import.id).where(Import.user_id == user_id)):
            await asyncio.to_thread(self._uploads.delete, import_id)

    async def sweep(self) -> None:
        """Delete uploads that have expired, or that no import needs."""
        stored = await asyncio.to_thread(self._uploads.list_ids)
        needed: set[UUID] = set()
        async with self._database.read() as session:
            for ids in split_chunks(stored):
                query = select(Import.id).where(
                    Import.id.in_(ids),
                    Import.state.in_(("running", "stopped")),
                    Import.expires_at > now(),
                )
                needed |= set(await session.scalars(query))
        for upload_id in stored:
            if upload_id not in needed:
                await asyncio.to_thread(self._uploads.delete, upload_id)
        await asyncio.to_thread(self._uploads.delete_broken)

    async def import_tree(
        self, identity: Identity, tree: SafeTree, options: ImportOptions, report: ReportFiles
    ) -> UUID:
        """Import a tree in this process, and return the id of the import.

        If the caller is cancelled, the import is stopped. A later one brings the rest.
        """
        row = self._make_row(identity, new_id(), tree.name, options, size=0)
        async with self._database.write() as session:
            session.add(row)
        state: ImportState = "stopped"
        control = _CommandControl(self._database, report)
        try:
            state = await self._run(row, identity, tree, options, control)
        finally:
            async with self._database.write() as session:
                await _store_state(session, row.id, state)
        return row.id

    def _make_row(
        self, identity: Identity, row_id: UUID, name: str, options: ImportOptions, *, size: int
    ) -> Import:
        data = msgspec.json.encode(StoredOptions.from_options(name, options))
        return Import(
            id=row_id,
            user_id=identity.user_id,
            state="running",
            sealed_options=identity.sealer.seal_bytes(IMPORT_OPTIONS, row_id, data),
            size=size,
            expires_at=now() + UPLOAD_RETENTION,
        )

    async def _enqueue(
        self, session: AsyncSession, identity: Identity, row: Import, *, is_continued: bool
    ) -> None:
        """Queue the job of an import. A user's imports run one after the other.

        Otherwise two of them could import the same file at the same time.
        """
        job = NewJob(
            kind=IMPORT_KIND,
            user_id=identity.user_id,
            lane=make_lane(identity.user_id),
            payload={"import_id": str(row.id), "is_continued": is_continued},
        )
        key = self._queue.grant(identity.sealer, identity.key_mode)
        row.job_id = await self._queue.enqueue(session, job, key=key)

    async def _run_job(self, job: RunningJob) -> None:
        import_id = UUID(job.payload["import_id"])
        lock = self._running.setdefault(import_id, asyncio.Lock())
        # A stopped job of the same import may still be in the middle of a file.
        async with lock:
            found = await self._load_for_job(job, import_id)
            if found is None:
                return
            row, identity = found
            state = await self._import_upload(row, identity, job)
            async with job.finish() as session:
                await _store_state(session, import_id, state)
        if state in {"finished", "failed"}:
            await asyncio.to_thread(self._uploads.delete, import_id)

    async def _load_for_job(
        self, job: RunningJob, import_id: UUID
    ) -> tuple[Import, Identity] | None:
        """Return the import and its user. None if it was deleted, or has another job."""
        async with self._database.read() as session:
            row = await session.get(Import, import_id)
            user = await session.get(User, job.user_id)
        if row is None or user is None or row.job_id != job.id:
            return None
        return row, make_job_identity(user, job.keys, job.id)

    async def _import_upload(self, row: Import, identity: Identity, job: RunningJob) -> ImportState:
        if not await asyncio.to_thread(self._uploads.has, row.id):
            if not self._is_alone and row.expires_at > now():
                raise RetryLaterError(after=ELSEWHERE_RETRY_SECONDS)
            return await self._fail(row, identity, job, EXPIRED)
        stored = _open_options(identity.sealer, row)
        open_again = partial(self._uploads.open, row.id, identity.sealer)
        work = partial(open_file, open_again, stored.name, row.size)
        try:
            tree = await self._pool.run(identity.user_id, work, is_job=True)
        except TransferFileError as error:
            return await self._fail(row, identity, job, error.detail)
        except (SealBrokenError, OSError):
            return await self._fail(row, identity, job, DAMAGED)
        try:
            return await self._run(row, identity, tree, stored.to_options(), _JobControl(job))
        finally:
            await asyncio.to_thread(tree.close)

    async def _run(
        self,
        row: Import,
        identity: Identity,
        tree: SafeTree,
        options: ImportOptions,
        control: _JobControl | _CommandControl,
    ) -> ImportState:
        try:
            return await self._runner.run(row, identity, tree, options, control)
        except (UnavailableError, LostLeaseError, RetryLaterError):
            raise
        except Exception as error:  # a retry would fail in the same way
            log.exception("import.failed", user_id=row.user_id, exc_info=error)
            detail = error.detail if isinstance(error, AppError) else UNEXPECTED
            await self._runner.record_failure(row, identity, tree, control, detail)
            return "failed"

    async def _fail(
        self, row: Import, identity: Identity, job: RunningJob, detail: str
    ) -> ImportState:
        """Record that the whole upload could not be imported."""
        name = _open_options(identity.sealer, row).name
        tree = SingleFileTree(name, row.size, _open_nothing)
        await self._runner.record_failure(row, identity, tree, _JobControl(job), detail)
        return "failed"

    def _can_continue(self, row: Import, job: Job | None) -> bool:
        has_ended = _find_state(row, job) in {"stopped", "failed"} and row.state != "failed"
        if not (has_ended and row.size and row.expires_at > now()):
            return False
        # With several processes, the upload may be on the disk of another one.
        return not self._is_alone or self._uploads.has(row.id)

    async def _make_views(
        self,
        session: AsyncSession,
        identity: Identity,
        rows: Sequence[Import],
        jobs: Mapping[UUID, Job | None],
    ) -> list[ImportView]:
        counts = await _count_results(session, [row.id for row in rows])
        single = [row.id for row in rows if counts[row.id].total() == 1]
        chats = await _find_chats(session, single)
        views: list[ImportView] = []
        for row in rows:
            job, done = jobs[row.id], counts[row.id].total()
            total = job.progress_total if job is not None else done
            views.append(
                ImportView(
                    id=row.id,
                    name=_open_options(identity.sealer, row).name,
                    size=row.size,
                    state=_find_state(row, job),
                    counts=ImportCounts(**counts[row.id]),
                    progress=JobProgress(done=done, total=max(total, done)),
                    can_continue=self._can_continue(row, job),
                    job_id=row.job_id,
                    chat_id=chats.get(row.id),
                    expires_at=row.expires_at,
                    created_at=row.created_at,
                    updated_at=row.updated_at,
                )
            )
        return views

    async def _check_room(self, user_id: UUID, size: int) -> None:
        await self._quotas.check(STORED_BYTES, user_id, adding=size)

    async def _count_waiting_bytes(self, user_id: UUID) -> int:
        """Return the bytes of the user's uploads on disk."""
        query = select(func.coalesce(func.sum(Import.size), 0)).where(
            Import.user_id == user_id,
            Import.state.in_(("running", "stopped")),
            Import.expires_at > now(),
        )
        async with self._database.read() as session:
            return int(await session.scalar(query) or 0)


class _JobControl:
    """Lets a job run an import."""

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        self.is_resumed: bool = job.payload["is_continued"] or "counts" in job.payload

    def step(self) -> AbstractAsyncContextManager[AsyncSession]:
        return self._job.step()

    async def note_progress(self, done: int, total: int, counts: Mapping[str, int]) -> None:
        self._job.checkpoint({**self._job.payload, "counts": dict(counts)})
        await self._job.progress(done, total)


class _CommandControl:
    """Lets a command run an import."""

    is_resumed = False

    def __init__(self, database: Database, report: ReportFiles) -> None:
        self._database = database
        self._report = report

    @asynccontextmanager
    async def step(self) -> AsyncGenerator[AsyncSession]:
        async with self._database.write() as session:
            yield session

    async def note_progress(self, done: int, total: int, counts: Mapping[str, int]) -> None:
        self._report(done, total, counts)


def _check_format(name: str | None) -> None:
    """Raise `ValidationError` if a format of chats is unknown."""
    if name is not None and get_format(name) is None:
        known = sorted(each.name for each in FORMATS)
        raise ValidationError(
            f"Unknown format. Known formats: {', '.join(known)}.", extra={"formats": known}
        )


def _open_nothing() -> Any:
    raise TransferFileError("The upload cannot be read.")


def _open_options(sealer: Sealer, row: Import) -> StoredOptions:
    data = sealer.open_bytes(IMPORT_OPTIONS, row.id, row.sealed_options)
    return msgspec.json.decode(data, type=StoredOptions)


def _find_state(row: Import, job: Job | None) -> ImportState:
    """Return the state of an import. One that is running was stopped if its job has ended."""
    if row.state != "running":
        return row.state
    if job is None or job.state == "done":
        return "stopped"
    return "failed" if job.state == "dead" else "running"


def _explain_end(row: Import, job: Job | None) -> str:
    match _find_state(row, job):
        case "running":
            return "The import is running."
        case "finished":
            return "The import has finished. To import the same files again, upload them again."
        case _:
            return EXPIRED


async def _load_rows(
    session: AsyncSession, condition: ColumnElement[bool], *, limit: int = 1, lock: bool = False
) -> list[tuple[Import, Job | None]]:
    query = select(Import).where(condition).order_by(Import.id.desc()).limit(limit)
    rows = list(await session.scalars(query.with_for_update() if lock else query))
    wanted = [row.job_id for row in rows if row.job_id is not None]
    jobs: dict[UUID, Job] = {}
    if wanted:
        found = await session.scalars(select(Job).where(Job.id.in_(wanted)))
        jobs = {job.id: job for job in found}
    return [(row, jobs.get(row.job_id) if row.job_id else None) for row in rows]


async def _find_row(
    session: AsyncSession, import_id: UUID, owner_id: UUID, *, lock: bool = False
) -> tuple[Import, Job | None]:
    """Return an import of the user and its job. Raises `ImportNotFoundError`."""
    owned = and_(Import.id == import_id, Import.user_id == owner_id)
    rows = await _load_rows(session, owned, lock=lock)
    if not rows:
        raise ImportNotFoundError
    return rows[0]


async def _store_state(session: AsyncSession, import_id: UUID, state: ImportState) -> None:
    values = {"state": state, "updated_at": now()}
    query = update(Import).where(Import.id == import_id).values(values)
    await session.execute(query, execution_options=UNSYNCHRONIZED)


async def _count_results(
    session: AsyncSession, import_ids: Sequence[UUID]
) -> dict[UUID, Counter[str]]:
    counts: dict[UUID, Counter[str]] = defaultdict(Counter)
    query = (
        select(ImportResult.import_id, ImportResult.outcome, func.count())
        .where(ImportResult.import_id.in_(import_ids))
        .group_by(ImportResult.import_id, ImportResult.outcome)
    )
    for import_id, outcome, count in await session.execute(query):
        counts[import_id][outcome] = count
    return counts


async def _find_chats(session: AsyncSession, import_ids: Sequence[UUID]) -> dict[UUID, UUID]:
    """Return the chats of imports that have one result."""
    query = select(ImportResult.import_id, ImportResult.item_id).where(
        ImportResult.import_id.in_(import_ids), ImportResult.kind == "chat"
    )
    rows = await session.execute(query)
    return {row.import_id: row.item_id for row in rows if row.item_id is not None}


def _make_result_view(sealer: Sealer, row: ImportResult) -> ImportResultView:
    detail = open_detail(sealer, row)
    return ImportResultView(
        id=row.id,
        path=detail.path,
        outcome=row.outcome,
        kind=row.kind,
        item_id=row.item_id,
        detail=detail.reason,
        warnings=detail.warnings,
        created_at=row.created_at,
    )
