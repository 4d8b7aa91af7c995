"""Runs the plan of an import step by step, and records the result of each file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, cast
from uuid import UUID

import msgspec
from sqlalchemy import exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.core.cpu_pool import CpuPool, WorkTimeoutError
from backend.core.logs import get_logger
from backend.database.base import new_id, split_chunks, stream_rows
from backend.database.engine import Database, OvertakenError
from backend.errors import AppError, UnavailableError
from backend.jobs.errors import LostLeaseError, RetryLaterError
from backend.quotas.limits import STORED_BYTES
from backend.transfer.contracts import (
    FileTree,
    ImportContext,
    ImportOptions,
    ImportPlanner,
    ImportStep,
    StepResult,
)
from backend.transfer.errors import TransferFileError
from backend.transfer.models import (
    RESULT_DETAIL,
    Import,
    ImportedFile,
    ImportResult,
    ImportState,
    ItemKind,
)
from backend.transfer.trees import SafeTree
from backend.vault.sealing import Sealer, digest

log = get_logger(__name__)

UNEXPECTED = (
    "An unexpected error stopped the import of this file. Nothing of it was stored. The server's "
    "log has the place of the error."
)
MAX_WARNINGS = 50
MAX_DETAIL_CHARACTERS = 2_000
REFUSALS_PER_STEP = 200
MESSAGES = "messages"
"""Name of the count of stored messages."""

CheckRoom = Callable[[UUID, int], Awaitable[None]]
"""Raises `StorageQuotaExceededError` if a user has no room for this many bytes."""


class ResultDetail(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The sealed part of a result."""

    path: str
    reason: str = ""
    warnings: list[str] = []


class ImportControl(Protocol):
    """The job, or the command, that an import runs in."""

    @property
    def is_resumed(self) -> bool:
        """True if an earlier run of the import may have been killed in the middle of a step."""
        ...

    def step(self) -> AbstractAsyncContextManager[AsyncSession]:
        """Begin a transaction for a result. Raises `LostLeaseError` if the import was stopped."""
        ...

    async def note_progress(self, done: int, total: int, counts: Mapping[str, int]) -> None:
        """Show the progress. Within `step`, it is stored with its transaction."""
        ...


@dataclass(frozen=True, slots=True)
class _Earlier:
    """A result of an earlier run of the same import."""

    outcome: str
    kind: ItemKind | None
    item_id: UUID | None


class _AccountFullError(Exception):
    """Ends a run, because the account has no room for more. Its cause is the quota's error."""


class ImportRunner:
    """Runs imports with the first planner that knows their tree."""

    def __init__(
        self,
        database: Database,
        pool: CpuPool,
        planners: Sequence[ImportPlanner],
        check_room: CheckRoom,
    ) -> None:
        self._database = database
        self._pool = pool
        self._planners = planners
        self.check_room = check_room

    async def run(
        self,
        row: Import,
        identity: Identity,
        tree: SafeTree,
        options: ImportOptions,
        control: ImportControl,
    ) -> ImportState:
        """Import the files of a tree that have no result yet. Return the state of the import.

        A full account stops it. Raises `UnavailableError` and `LostLeaseError`.
        """
        run = _Run(self, row, identity, tree, options, control)
        try:
            await run.load_results()
            await run.begin()
            await run.record_refused()
            await run.do_steps()
        except _AccountFullError:
            return "stopped"
        except TransferFileError as error:
            await run.record(
                tree.name, StepResult(outcome="failed", detail=error.detail or error.title)
            )
            return "failed"
        return "finished"

    async def record_failure(
        self, row: Import, identity: Identity, tree: SafeTree, control: ImportControl, detail: str
    ) -> None:
        """Record that the whole tree could not be imported."""
        run = _Run(self, row, identity, tree, ImportOptions(), control)
        await run.load_results()
        await run.record(tree.name, StepResult(outcome="failed", detail=detail))

    async def choose_planner(self, identity: Identity, tree: FileTree) -> ImportPlanner:
        def choose() -> ImportPlanner:
            return next(each for each in self._planners if each.matches(tree))

        return await self._pool.run(identity.user_id, choose, is_job=True)

    async def count(self, identity: Identity, planner: ImportPlanner, tree: FileTree) -> int:
        return await self._pool.run(identity.user_id, partial(planner.count, tree), is_job=True)

    async def load_results(self, import_id: UUID) -> dict[bytes, _Earlier]:
        """Return the results of earlier runs by path digest."""
        query = select(
            ImportResult.path_digest,
            ImportResult.outcome,
            ImportResult.kind,
            ImportResult.item_id,
        ).where(ImportResult.import_id == import_id)
        async with self._database.read() as session:
            return {
                row.path_digest: _Earlier(row.outcome, row.kind, row.item_id)
                async for row in stream_rows(session, query)
            }

    async def is_new_item(self, row: Import, result: StepResult) -> bool:
        """True if the item of a result was recorded after the import began."""
        query = select(
            exists().where(
                ImportedFile.item_id == result.item_id,
                ImportedFile.user_id == row.user_id,
                ImportedFile.created_at >= row.created_at,
            )
        )
        async with self._database.read() as session:
            return bool(await session.scalar(query))


class _Run:
    """One run of an import."""

    def __init__(
        self,
        runner: ImportRunner,
        row: Import,
        identity: Identity,
        tree: SafeTree,
        options: ImportOptions,
        control: ImportControl,
    ) -> None:
        self._runner = runner
        self._row = row
        self._tree = tree
        self._control = control
        self._sealer = identity.sealer
        self._context = ImportContext(
            identity=identity, tree=tree, options=options, report=self._report
        )
        self._earlier: dict[bytes, _Earlier] = {}
        self._counts: Counter[str] = Counter()
        self._messages = 0
        self._done = self._total = 0
        self._is_first = True

    async def load_results(self) -> None:
        """Load the results of earlier runs of the import."""
        self._earlier = await self._runner.load_results(self._row.id)
        self._counts.update(each.outcome for each in self._earlier.values())

    async def begin(self) -> None:
        """Choose the planner and count the steps."""
        identity = self._context.identity
        self._planner = await self._runner.choose_planner(identity, self._tree)
        steps = await self._runner.count(identity, self._planner, self._tree)
        self._total = steps + len(self._tree.refused)
        async with self._control.step():
            await self._note_progress()

    async def record_refused(self) -> None:
        """Record the entries of the tree that cannot be read."""
        for refusals in split_chunks(self._tree.refused, REFUSALS_PER_STEP):
            async with self._control.step() as session:
                for each in refusals:
                    result = StepResult(outcome="failed", detail=each.reason)
                    self._add(session, each.path, result)
                self._done += len(refusals)
                await self._note_progress()

    async def do_steps(self) -> None:
        async with aclosing(cast("Any", self._planner.plan(self._context))) as steps:
            async for step in steps:
                earlier = self._earlier.get(_digest_path(self._sealer, step.path))
                self._total = max(self._total, self._done + 1)
                if earlier is None:
                    await self._do_step(step)
                else:
                    self._note_item(step.path, earlier.kind, earlier.item_id)
                    self._done += 1

    async def _do_step(self, step: ImportStep) -> None:
        self._messages = 0
        full: AppError | None = None
        try:
            result = await self._attempt(step)
        except WorkTimeoutError as error:
            result = StepResult(outcome="failed", detail=error.detail)
        except (UnavailableError, LostLeaseError, RetryLaterError):
            raise
        except AppError as error:
            full = error if error.extra.get("quota") == STORED_BYTES.name else None
            result = StepResult(outcome="failed", detail=error.detail or error.title)
        except Exception as error:  # the other files are imported
            log.exception("import.step_failed", user_id=self._row.user_id, exc_info=error)
            result = StepResult(outcome="failed", detail=UNEXPECTED)
        # An earlier run may have ended between the step's transaction and that of its result.
        if self._is_first and self._control.is_resumed and result.outcome == "already_there":
            made_here = await self._runner.is_new_item(self._row, result)
            result = replace(result, outcome="imported") if made_here else result
        self._is_first = False
        self._counts[MESSAGES] += self._messages
        self._messages = 0
        await self.record(step.path, result)
        if full is not None:
            raise _AccountFullError from full

    async def _attempt(self, step: ImportStep) -> StepResult:
        """Run a step. Raises the errors that end the run, and those that the file is to blame for.

        A step that another request came before is run once more.
        """
        await self._runner.check_room(self._row.user_id, self._tree.get_size(step.path))
        try:
            return await step.run(self._context)
        except OvertakenError:
            return await step.run(self._context)

    async def record(self, path: str, result: StepResult) -> None:
        """Store a result, unless the path has one."""
        if _digest_path(self._sealer, path) in self._earlier:
            return
        async with self._control.step() as session:
            self._add(session, path, result)
            self._done += 1
            await self._note_progress()

    def _add(self, session: AsyncSession, path: str, result: StepResult) -> None:
        path_digest = _digest_path(self._sealer, path)
        if path_digest in self._earlier:
            return
        self._earlier[path_digest] = _Earlier(result.outcome, result.kind, result.item_id)
        self._note_item(path, result.kind, result.item_id)
        self._counts[result.outcome] += 1
        row_id = new_id()
        detail = ResultDetail(
            path=path,
            reason=result.detail[:MAX_DETAIL_CHARACTERS],
            warnings=[each[:MAX_DETAIL_CHARACTERS] for each in result.warnings[:MAX_WARNINGS]],
        )
        session.add(
            ImportResult(
                id=row_id,
                user_id=self._row.user_id,
                import_id=self._row.id,
                path_digest=path_digest,
                outcome=result.outcome,
                kind=result.kind,
                item_id=result.item_id,
                sealed_detail=self._sealer.seal_bytes(
                    RESULT_DETAIL, row_id, msgspec.json.encode(detail)
                ),
            )
        )

    def _note_item(self, path: str, kind: ItemKind | None, item_id: UUID | None) -> None:
        if kind is not None and item_id is not None:
            self._context.found.setdefault((kind, path), item_id)

    async def _report(self, messages: int) -> None:
        self._messages = messages
        await self._note_progress()

    async def _note_progress(self) -> None:
        counts = self._counts + Counter({MESSAGES: self._messages})
        await self._control.note_progress(self._done, self._total, counts)


def _digest_path(sealer: Sealer, path: str) -> bytes:
    return digest(sealer.derive_key("import-paths"), path.encode())


def open_detail(sealer: Sealer, result: ImportResult) -> ResultDetail:
    data = sealer.open_bytes(RESULT_DETAIL, result.id, result.sealed_detail)
    return msgspec.json.decode(data, type=ResultDetail)
