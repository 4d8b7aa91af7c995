"""Restoring a backup, so that a crash leaves the old installation or the new one.

1. The new files are written and checked next to the old ones, under names that end with
   `.restoring`. Until the journal is written, nothing has changed.
2. The journal names the files to put in place, and the old ones to move away. It is written
   atomically. From now on the restore is completed, by this process or a later one.
3. Every step of `complete_restore` can be repeated. Old files are deleted after the new ones are
   in place, then the journal.
4. The next start changes the restored tables (`settle_restored`), after it has migrated them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import msgspec
from sqlalchemy import delete, update

import backend
from backend.accounts.auth.names import INSTANCE_CONTEXT
from backend.accounts.models import KeySlot
from backend.core.files import replace_private
from backend.core.operating_system import sync_folder
from backend.database.base import now
from backend.database.engine import Database, find_place
from backend.database.migrate import HEAD
from backend.jobs.models import JOBS
from backend.memory.indexing.outbox import RECONCILE
from backend.memory.models import IndexState
from backend.memory.runtime import index_folder
from backend.operations.backup.backup_file import (
    JOURNAL_NAME,
    BackupDamagedError,
    BackupError,
    BackupProgress,
    BackupReader,
    BackupStorageError,
    DatabaseState,
    Manifest,
    ReportProgress,
    check_database,
    open_backup,
)
from backend.operations.backup.writer import explain_faults, find_database, lock_backups
from backend.settings import ROOT_KEY_NAME, Settings
from backend.vault.root import RootKeyError, RootKeys, Wrapped, load_root_keys, parse_root_keys

MARKER_NAME = "restored"
"""The file in the data folder that makes the next start change the restored tables."""

_STAGED = ".restoring"
_SIDE_FILES = ("-wal", "-shm", "-journal")
"""Suffixes of files that SQLite keeps next to a database."""


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """A file to put in place. The earlier one is deleted at the end unless `keeps_old`."""

    path: str
    keeps_old: bool = False


class RestoreJournal(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a restore. Earlier files get the suffix `.replaced-` and `stamp`.

    `obsolete` are files and folders of the old installation that have no successor.
    """

    stamp: str
    new: list[Replacement]
    obsolete: list[str]

    def name_old(self, path: Path) -> Path:
        return path.with_name(f"{path.name}.replaced-{self.stamp}")


class RestoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """A completed restore. `old_key` is the place of a root key that was replaced."""

    manifest: Manifest
    old_key: Path | None


def restore_backup(
    settings: Settings,
    file: Path,
    *,
    replace: bool,
    root_key_file: Path | None,
    report: ReportProgress,
) -> RestoreResult:
    """Put the installation of a backup in place. Call it while no server runs.

    Args:
        settings: They name the data folder, the database and the root key.
        file: The backup.
        replace: Replace an installation that exists.
        root_key_file: The root key of the backup, if it is neither in it nor in place.
        report: Receives progress. It may raise an exception to stop the restore.

    Raises:
        BackupDamagedError: The backup is damaged.
        BackupStorageError: The disk is full, or a folder cannot be used.
        BackupBusyError: A backup is running.
        BackupError: There is an installation, or the backup is of a newer version.
        RootKeyError: The root key is missing, or does not open the backup.
    """
    database = find_database(settings)
    with explain_faults(settings.data_dir, database), lock_backups(settings.data_dir):
        complete_restore(settings)
        if database.exists() and not replace:
            raise BackupError(
                f"{database} exists, so there is an installation already. To replace it, add "
                "--replace. Make a backup of it first, because it is deleted."
            )
        try:
            with open_backup(file) as backup:
                _check_room(database.parent, backup.manifest)
                staged = _Staging(settings, database, backup, report)
                journal = staged.write(root_key_file)
            _sync_folders(Path(each.path) for each in journal.new)
            replace_private(settings.data_dir / JOURNAL_NAME, msgspec.json.encode(journal).decode())
        except BaseException:
            _delete_staged(settings)
            raise
        old_key = journal.name_old(settings.resolved_root_key_file)
        complete_restore(settings)
        BackupProgress(report).finish()
    return RestoreResult(manifest=backup.manifest, old_key=old_key if old_key.exists() else None)


def describe_restore(file: Path, result: RestoreResult) -> str:
    """Return the message of the command line about a completed restore."""
    manifest = result.manifest
    made_at = f"{manifest.created_at:%Y-%m-%d %H:%M} UTC"
    lines = [
        f"{file} was restored. It was made at {made_at}, and has revision {manifest.revision}.",
        "At the next start, all sessions end, and the search index is rebuilt.",
        "Everything else is as it was then. Delete again what had to go since, such as API keys.",
    ]
    if result.old_key is not None:
        lines.append(
            f"The earlier root key is now {result.old_key}. Backups of the earlier installation "
            "need it."
        )
    return "\n".join(lines)


class _Staging:
    """The new files next to the old ones."""

    def __init__(
        self, settings: Settings, database: Path, backup: BackupReader, report: ReportProgress
    ) -> None:
        self._settings, self._database = settings, database
        self._backup, self._progress = backup, BackupProgress(report)
        self._own_key: str | None = None

    def write(self, root_key_file: Path | None) -> RestoreJournal:
        """Write and check the new files. Return the journal that puts them in place."""
        settings, database = self._settings, self._database
        staged = stage(database)
        self._extract(staged)
        state = check_database(staged, self._backup.path, self._progress.repeat)
        if not state.is_usable:
            raise BackupError(
                f"{self._backup.path} was made by Talekeeper {self._backup.manifest.talekeeper} "
                f"with revision {state.revision}, which this version ({backend.__version__}) does "
                f"not know (its newest is {HEAD}). Install that version, or a later one."
            )
        new = [Replacement(path=str(database.absolute()))]
        if key := self._choose_key(state, root_key_file):
            path = settings.resolved_root_key_file.absolute()
            replace_private(stage(path), key)
            new.append(Replacement(path=str(path), keeps_old=True))
        marker = settings.data_dir.absolute() / MARKER_NAME
        replace_private(stage(marker), self._backup.manifest.revision)
        new.append(Replacement(path=str(marker)))
        with staged.open("rb+") as written:
            os.fsync(written.fileno())
        sides = [database.with_name(database.name + suffix) for suffix in _SIDE_FILES]
        obsolete = [*sides, index_folder(settings), settings.transfers_dir]
        return RestoreJournal(
            stamp=_stamp(now()), new=new, obsolete=[str(each.absolute()) for each in obsolete]
        )

    def _extract(self, staged: Path) -> None:
        done, self._progress.total = 0, self._backup.manifest.size
        descriptor = os.open(
            staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600
        )
        with os.fdopen(descriptor, "wb") as target:
            for entry in self._backup.manifest.files:
                if entry.name == ROOT_KEY_NAME:
                    self._own_key = b"".join(self._backup.read(entry)).decode(errors="replace")
                    continue
                for chunk in self._backup.read(entry):
                    target.write(chunk)
                    done += len(chunk)
                    self._progress.reach(done)

    def _choose_key(self, state: DatabaseState, given: Path | None) -> str | None:
        """Return the root key to put in place; None if the one in place opens the backup.

        A given file comes first, then the backup's own key. Raises `RootKeyError`.
        """
        settings, text, needed = self._settings, self._own_key, state.instance_key
        path, value = settings.resolved_root_key_file, settings.root_key_text
        if value is not None:
            text = None
            if given is not None:
                raise RootKeyError(
                    "TALEKEEPER_ROOT_KEY is set and takes precedence over --root-key-file. Use "
                    "one of them."
                )
        elif given is not None:
            load_root_keys(given)  # raises an error that names the file
            text = given.read_text(encoding="utf-8")
        if text is not None:
            keys = parse_root_keys(text)
        elif needed is None:
            return None
        elif value is None and not path.exists():
            raise RootKeyError(
                f"The backup needs its root key (version {needed.root_version}), which is not in "
                f"it. Name your copy with --root-key-file, or put it at {path}."
            )
        else:
            keys = load_root_keys(path, value=value)
        _check_key(keys, needed)
        is_in_place = path.exists() and path.read_text(encoding="utf-8") == text
        return None if is_in_place else text


def _check_key(keys: RootKeys, needed: Wrapped | None) -> None:
    if needed is None:
        return
    try:
        keys.unwrap(needed, context=INSTANCE_CONTEXT)
    except RootKeyError as error:
        raise RootKeyError(
            f"The root key does not open the backup, which needs version {needed.root_version} of "
            "its time. Name your copy of that key with --root-key-file."
        ) from error


def stage(path: Path) -> Path:
    """Return the name of a new file until it is put in place."""
    return path.with_name(path.name + _STAGED)


def complete_restore(settings: Settings) -> bool:
    """Complete a restore that was interrupted. Return True if files were put in place.

    Call it while no server runs. Without a journal, it deletes files that were not put in place.
    Raises `BackupStorageError`.
    """
    place = settings.data_dir / JOURNAL_NAME
    if not place.exists():
        _delete_staged(settings)
        return False
    journal = _read_journal(place)
    with explain_faults(settings.data_dir, place):
        for path in map(Path, journal.obsolete):
            if os.path.lexists(path):
                path.replace(journal.name_old(path))
        for each in journal.new:
            final = Path(each.path)
            staged = stage(final)
            if staged.exists():
                if final.exists():
                    final.replace(journal.name_old(final))
                staged.replace(final)
        _sync_folders(Path(each.path) for each in journal.new)
        removed = [Path(each.path) for each in journal.new if not each.keeps_old]
        for path in (*removed, *map(Path, journal.obsolete)):
            _delete(journal.name_old(path))
        place.unlink()
        sync_folder(place.parent)
    return True


async def settle_restored(database: Database, folder: Path) -> bool:
    """Change the tables of a restored installation. Return True if it was restored.

    - Sessions end, because some may have been ended after the backup was made.
    - All texts are compared with the index, because a Qdrant server may have points of later rows.

    Jobs and turns that ran continue as after a crash. The tables must be migrated.
    """
    marker = folder / MARKER_NAME
    if not marker.exists():
        return False
    async with database.write() as session:
        await session.execute(delete(KeySlot).where(KeySlot.kind == "session"))
        await session.execute(update(IndexState).values(state="due"))
        compare = update(JOBS).where(JOBS.c.kind == RECONCILE, JOBS.c.state == "queued")
        await session.execute(compare.values(run_after=now()))
    marker.unlink()
    sync_folder(folder)
    return True


def _read_journal(path: Path) -> RestoreJournal:
    try:
        return msgspec.json.decode(path.read_bytes(), type=RestoreJournal)
    except msgspec.DecodeError as error:
        raise BackupDamagedError(
            f"{path} describes an interrupted restore and is damaged. Move it away, and run "
            "`talekeeper restore --replace` again."
        ) from error


def _delete_staged(settings: Settings) -> None:
    """Delete new files that were not put in place."""
    database = stage(Path(find_place(settings.resolved_database_url)))
    sides = [database.with_name(database.name + suffix) for suffix in _SIDE_FILES]
    others = stage(settings.resolved_root_key_file), stage(settings.data_dir / MARKER_NAME)
    scratch = [each.with_name(f"{each.name}.new") for each in others]  # of `replace_private`
    for each in (database, *sides, *others, *scratch):
        each.unlink(missing_ok=True)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _check_room(folder: Path, manifest: Manifest) -> None:
    free = shutil.disk_usage(folder).free
    if free < manifest.size:
        raise BackupStorageError(
            f"{folder} has {free:,} bytes of free space. The backup needs {manifest.size:,}. Free "
            "some space first."
        )


def _sync_folders(paths: Iterable[Path]) -> None:
    for folder in {each.parent for each in paths}:
        sync_folder(folder)


def _stamp(at: datetime) -> str:
    return f"{at:%Y%m%dT%H%M%SZ}"
