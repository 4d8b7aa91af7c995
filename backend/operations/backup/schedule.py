"""Scheduled backups: the server makes them in a separate process with low priority."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec
from prometheus_client import Counter, Gauge

from backend.core.logs import get_logger
from backend.core.operating_system import (
    end_with_parent,
    helper_command,
    helper_options,
    ignore_stop_signals,
    keep_files_private,
    lower_priority,
)
from backend.database.base import now
from backend.operations.backup.backup_file import BackupError, open_backup
from backend.operations.backup.writer import (
    BackupSource,
    delete_old_backups,
    explain_faults,
    find_database,
    list_backups,
    name_backup,
    read_installation_id,
    write_backup,
)
from backend.settings import Settings

log = get_logger(__name__)

LAST_SUCCESS = Gauge(
    "talekeeper_backup_last_success_timestamp_seconds", "Time of the last good scheduled backup"
)
LAST_BYTES = Gauge("talekeeper_backup_bytes", "Size of the last good scheduled backup")
BACKUPS = Counter("talekeeper_backups", "Scheduled backups", ["state"])

RETRY = timedelta(minutes=15)
"""Pause after a backup that failed."""

LOOK_SECONDS = 60.0
"""Longest pause between two looks at the clock, which may be set, or stop while a
machine sleeps."""

_NICENESS = 19
_PROGRAM = "backend.operations.backup.schedule"


class BackupOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The order for the process that makes a backup, as JSON on its standard input."""

    database: str
    data_folder: str
    backup_folder: str
    keep: int


class BackupOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of that process on its standard output. `problem` is the slug of an error."""

    problem: str | None = None
    size: int = 0
    deleted: int = 0


class BackupSchedule:
    """Makes a backup every few hours while the server runs, if the settings name a folder.

    The time of the last backup is that of the newest file in the folder, so that a restart does
    not change the schedule.
    """

    def __init__(self, settings: Settings, clock: Callable[[], datetime] = now) -> None:
        self._settings = settings
        self._clock = clock

    async def run(self) -> None:
        """Make the backups until cancelled."""
        folder = self._settings.backup_folder
        if folder is None:
            return
        due = await asyncio.to_thread(self.find_due, folder)
        while True:
            at = self._clock()
            due = min(due, at + self._interval)  # the clock may have been set back
            if due > at:
                await asyncio.sleep(min((due - at).total_seconds(), LOOK_SECONDS))
                continue
            outcome = await self._back_up(folder)
            due = at + (self._interval if outcome.problem is None else min(RETRY, self._interval))

    @property
    def _interval(self) -> timedelta:
        return timedelta(hours=self._settings.backup_hours)

    def find_due(self, folder: Path) -> datetime:
        """Return the time of the next backup, and note the last one in the metrics."""
        installation = read_installation_id(self._settings.data_dir, create=False)
        for each in list_backups(folder, installation) if installation else ():
            if each.manifest is not None:
                with contextlib.suppress(OSError):
                    LAST_BYTES.set(each.path.stat().st_size)
                LAST_SUCCESS.set(each.manifest.created_at.timestamp())
                return each.manifest.created_at + self._interval
        return self._clock()

    def _make_order(self, folder: Path) -> BackupOrder:
        return BackupOrder(
            database=str(find_database(self._settings).absolute()),
            data_folder=str(self._settings.data_dir.absolute()),
            backup_folder=str(folder.absolute()),
            keep=self._settings.backup_keep,
        )

    async def _back_up(self, folder: Path) -> BackupOutcome:
        began = time.monotonic()
        outcome = await _run_process(self._make_order(folder))
        duration_ms = round(1000 * (time.monotonic() - began))
        if outcome.problem is None:
            BACKUPS.labels("done").inc()
            LAST_SUCCESS.set(self._clock().timestamp())
            LAST_BYTES.set(outcome.size)
            log.info(
                "backup.done", bytes=outcome.size, count=outcome.deleted, duration_ms=duration_ms
            )
        else:
            BACKUPS.labels("failed").inc()
            log.error("backup.failed", problem=outcome.problem, duration_ms=duration_ms)
        return outcome


async def _run_process(order: BackupOrder) -> BackupOutcome:
    """Run the process to its end. It is killed if this call is cancelled."""
    try:
        process = await asyncio.create_subprocess_exec(
            *helper_command(_PROGRAM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            **helper_options(),
        )
    except OSError as error:
        log.warning("backup.not_started", exc_info=error)
        return BackupOutcome(problem="backup-process")
    try:
        answer, _ = await process.communicate(msgspec.json.encode(order))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        return msgspec.json.decode(answer, type=BackupOutcome)
    except msgspec.DecodeError:
        log.warning("backup.process_ended", exit_code=process.returncode)
        return BackupOutcome(problem="backup-process")


def main() -> None:
    """Make the backup of the order on standard input, and delete the oldest ones after it."""
    ignore_stop_signals()
    end_with_parent()
    keep_files_private()
    lower_priority(_NICENESS)
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=BackupOrder)
    try:
        outcome = _carry_out(order)
    except BackupError as error:
        outcome = BackupOutcome(problem=error.slug)
    sys.stdout.buffer.write(msgspec.json.encode(outcome))


def _carry_out(order: BackupOrder) -> BackupOutcome:
    folder, data = Path(order.backup_folder), Path(order.data_folder)
    target = folder / name_backup(now())
    source = BackupSource(database=Path(order.database), folder=data)
    manifest = write_backup(source, target, lambda _, __: None)
    with explain_faults(folder, source.database):
        deleted = delete_old_backups(folder, manifest.installation, keep=order.keep, newest=target)
        return BackupOutcome(size=target.stat().st_size, deleted=deleted)


BackupStateName = Literal["off", "absent", "none", "late", "damaged", "good"]


class BackupState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the scheduled backups. `late` ones are older than two intervals."""

    name: BackupStateName
    path: Path | None = None
    age: timedelta = timedelta()


def examine_backups(settings: Settings) -> BackupState:
    """Read the newest scheduled backup completely, and return the state of the schedule."""
    folder = settings.backup_folder
    if folder is None:
        return BackupState(name="off")
    if not folder.is_dir():
        return BackupState(name="absent")
    installation = read_installation_id(settings.data_dir, create=False)
    found = list_backups(folder, installation)
    if not found:
        return BackupState(name="none")
    newest = found[0]
    try:
        with open_backup(newest.path) as backup:
            backup.check(lambda _: None)
    except BackupError:
        return BackupState(name="damaged", path=newest.path)
    age = now() - backup.manifest.created_at
    is_late = age > 2 * timedelta(hours=settings.backup_hours)
    return BackupState(name="late" if is_late else "good", path=newest.path, age=age)
