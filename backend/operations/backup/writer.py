"""Making a backup. A server may run at the same time."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import sqlite3
import zipfile
from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

import backend
from backend.core.files import create_private
from backend.core.operating_system import FileLockedError, lock_file, sync_folder
from backend.database.base import now
from backend.database.engine import find_place
from backend.database.migrate import HEAD
from backend.operations.backup.backup_file import (
    CHUNK_BYTES,
    JOURNAL_NAME,
    MANIFEST_NAME,
    BackupBusyError,
    BackupDamagedError,
    BackupEntry,
    BackupError,
    BackupProgress,
    BackupStorageError,
    DatabaseState,
    Manifest,
    ReportProgress,
    check_database,
    make_broken_error,
    make_damaged_error,
    open_backup,
)
from backend.settings import DATABASE_NAME, ROOT_KEY_NAME, Settings
from backend.vault.root import load_root_keys

_PAGES_PER_STEP = 1024
"""Pages that are copied before progress is reported: 4 MB."""

_COMPRESSION_LEVEL = 1
"""Sealed texts do not get smaller. The rest does, and the lowest level is enough for it."""

_BUSY_SECONDS = 30.0
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_COPIES = 2
"""The copy of the database and the zip exist at the same time."""

_PHASES = 3
"""Copy, pack, read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSource:
    """The installation to back up.

    Attributes:
        database: The SQLite file.
        folder: The data folder.
        root_key: Text of the root key, if the backup is to contain it.
    """

    database: Path
    folder: Path
    root_key: str | None = None


def find_source(settings: Settings, *, with_root_key: bool = False) -> BackupSource:
    """Return the source of an embedded installation. Raises `BackupError` and `RootKeyError`."""
    database = find_database(settings)
    key = None
    if with_root_key:
        path, value = settings.resolved_root_key_file, settings.root_key_text
        load_root_keys(path, value=value)  # raises an error that explains the fault
        key = path.read_text(encoding="utf-8") if value is None else value
    return BackupSource(database=database, folder=settings.data_dir, root_key=key)


def find_database(settings: Settings) -> Path:
    """Return the path of the SQLite file. Raises `BackupError` if there is none."""
    if not settings.embedded:
        raise BackupError(
            "This command is for SQLite. The database is PostgreSQL: back it up with "
            "`pg_dump --format=custom` and restore it with `pg_restore`, while no server runs. "
            "Keep a copy of the root key in another place."
        )
    place = find_place(settings.resolved_database_url)
    if place == ":memory:":
        raise BackupError("The database is only in memory. There is nothing to back up.")
    return Path(place)


def write_backup(source: BackupSource, target: Path, report: ReportProgress) -> Manifest:
    """Write a backup to `target`, check it, and return its manifest.

    The copy is a consistent view of the moment at which it began. It blocks no writer. An earlier
    backup at `target` is replaced at the end, another file never. Nothing is left after a failure.

    Raises:
        BackupBusyError: Another backup or a restore is running.
        BackupDamagedError: The database, or the file that was written, is damaged.
        BackupStorageError: A folder cannot be used, or the disk is full.
        BackupError: There is no installation, or a restore has to be completed first.
    """
    journal = source.folder / JOURNAL_NAME
    if not source.database.is_file() and not journal.exists():
        raise BackupError(f"There is no database {source.database}. Check --data-dir.")
    _check_target(target)
    with (
        explain_faults(target.parent, source.database),
        lock_backups(source.folder),
        _open_scratch(source.folder, target.parent) as scratch,
    ):
        if journal.exists():
            raise BackupError(
                f"A restore of {source.folder} was interrupted. Start the server, or run "
                "`talekeeper restore` again, to complete it."
            )
        work = _BackupRun(source, target, scratch, report)
        manifest = work.write()
        work.file.replace(target)
        sync_folder(target.parent)
    return manifest


def describe_backup(settings: Settings, target: Path, manifest: Manifest) -> str:
    """Return the message of the command line about a backup that was made."""
    size = target.stat().st_size
    lines = [f"{target} was written and checked: {size:,} bytes, revision {manifest.revision}."]
    if manifest.has_root_key:
        lines.append(
            "It contains the root key. Anyone who has the file can read account names, and guess "
            "passwords. Keep it like a password."
        )
    elif manifest.root_key_version is not None:
        place = (
            "in TALEKEEPER_ROOT_KEY"
            if settings.root_key_text is not None
            else f"at {settings.resolved_root_key_file.absolute()}"
        )
        lines.append(
            f"It cannot be read without the root key (version {manifest.root_key_version}), which "
            f"is not in it. The key is {place}. Keep a copy of it in another place than the "
            "backup."
        )
    lines.append(
        "Texts in it are encrypted. Metadata are not: times, numbers and lengths of messages, and "
        "names of models."
    )
    return "\n".join(lines)


class _BackupRun:
    """One backup on its way to `file`, in a private folder next to the target."""

    def __init__(
        self, source: BackupSource, target: Path, scratch: Path, report: ReportProgress
    ) -> None:
        self.file = scratch / "backup.zip"
        self._source, self._target = source, target
        self._copy = scratch / DATABASE_NAME
        self._progress = BackupProgress(report)
        self._size = 0

    def write(self) -> Manifest:
        """Copy the database, check the copy, pack it, and read the zip again."""
        self._copy_database()
        state = check_database(self._copy, self._source.database, self._progress.repeat)
        if not state.is_usable:
            raise BackupError(
                f"The database has revision {state.revision}, which Talekeeper "
                f"{backend.__version__} does not know (its newest is {HEAD}). Use the version "
                "that wrote it."
            )
        with open(self.file, "xb", opener=_open_private) as file:
            manifest = self._pack(file, state)
            file.flush()
            os.fsync(file.fileno())
        self._copy.unlink()
        with open_backup(self.file) as backup:
            if backup.manifest != manifest:
                raise make_damaged_error(self._target)
            backup.check(lambda done: self._progress.reach(2 * self._size + done))
        self._progress.finish()
        return manifest

    def _copy_database(self) -> None:
        """Copy the pages of one read transaction, so that writers and the copy do not meet.

        Without the transaction, each write of another process would begin the copy again.
        """
        # A connection that cannot write does not empty or delete the write-ahead log when it
        # closes.
        place = f"{self._source.database.absolute().as_uri()}?mode=ro"
        with (
            contextlib.closing(
                sqlite3.connect(place, uri=True, isolation_level=None, timeout=_BUSY_SECONDS)
            ) as reader,
            contextlib.closing(sqlite3.connect(self._copy, isolation_level=None)) as writer,
        ):
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
            pages = reader.execute("PRAGMA page_count").fetchone()[0]
            page_bytes = reader.execute("PRAGMA page_size").fetchone()[0]
            self._size = pages * page_bytes
            self._progress.total = max(1, _PHASES * self._size)
            self._check_room()
            # The copy is temporary: a crash may damage it.
            writer.execute("PRAGMA synchronous=OFF")
            writer.execute("PRAGMA journal_mode=OFF")

            def progress(_: int, remaining: int, total: int) -> None:
                self._progress.reach((total - remaining) * page_bytes)

            reader.backup(writer, pages=_PAGES_PER_STEP, progress=progress)

    def _check_room(self) -> None:
        folder = self._target.parent
        free, needed = shutil.disk_usage(folder).free, _COPIES * self._size
        if free < needed:
            raise BackupStorageError(
                f"{folder} has {free:,} bytes of free space. The backup needs {needed:,} while it "
                "is made. Free some space, or choose another folder."
            )

    def _pack(self, file: BinaryIO, state: DatabaseState) -> Manifest:
        key, text = state.instance_key, self._source.root_key
        with zipfile.ZipFile(
            file, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION_LEVEL
        ) as archive:
            files = [self._pack_database(archive)]
            if text is not None:
                data = text.encode()
                archive.writestr(ROOT_KEY_NAME, data)
                digest = hashlib.sha256(data).hexdigest()
                files.append(BackupEntry(name=ROOT_KEY_NAME, size=len(data), sha256=digest))
            manifest = Manifest(
                talekeeper=backend.__version__,
                revision=state.revision,
                created_at=now(),
                installation=read_installation_id(self._source.folder),
                root_key_version=None if key is None else key.root_version,
                files=files,
            )
            archive.writestr(MANIFEST_NAME, msgspec.json.encode(manifest))
        return manifest

    def _pack_database(self, archive: zipfile.ZipFile) -> BackupEntry:
        digest, size = hashlib.sha256(), 0
        with (
            self._copy.open("rb") as content,
            archive.open(DATABASE_NAME, "w", force_zip64=True) as packed,
        ):
            while chunk := content.read(CHUNK_BYTES):
                digest.update(chunk)
                packed.write(chunk)
                size += len(chunk)
                self._progress.reach(self._size + size)
        return BackupEntry(name=DATABASE_NAME, size=size, sha256=digest.hexdigest())


def _check_target(target: Path) -> None:
    """Refuse a target that is not a file, or a file that is not a backup."""
    if not target.parent.is_dir():
        raise BackupStorageError(f"There is no folder {target.parent}. Create it first.")
    if not target.exists():
        return
    with contextlib.suppress(BackupDamagedError, BackupStorageError), open_backup(target):
        return
    raise BackupError(
        f"{target} exists and is not a readable backup. Choose another name, or delete it first."
    )


def _open_private(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_BINARY", 0), 0o600)


@contextlib.contextmanager
def lock_backups(folder: Path) -> Generator[None]:
    """Let one backup or restore of a data folder run at a time. Raises `BackupBusyError`.

    The server's own lock does not help, because it is held as long as the server runs.
    """
    try:
        lock = lock_file(folder / "backup.lock")
    except FileLockedError:
        raise BackupBusyError(
            f"Another backup or a restore of {folder} is running. Wait until it has finished."
        ) from None
    with lock:
        yield


def read_installation_id(folder: Path, *, create: bool = True) -> str | None:
    """Return the random id of a data folder. With `create`, the first call makes one.

    Several installations may keep their backups in one folder. The id distinguishes them.
    """
    path = folder / "backup.id"
    if not path.exists():
        if not create:
            return None
        create_private(path, secrets.token_hex(16))
    return path.read_text(encoding="utf-8").strip()


@contextlib.contextmanager
def _open_scratch(data: Path, folder: Path) -> Generator[Path]:
    """Make a private folder in `folder`. Delete it at the end, and those of killed backups now."""
    prefix = f".talekeeper-backup-{read_installation_id(data)}"
    for leftover in folder.glob(f"{prefix}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    scratch = folder / f"{prefix}-{secrets.token_hex(8)}"
    scratch.mkdir(mode=0o700)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def explain_faults(folder: Path, database: Path) -> Generator[None]:
    """Raise errors of the disk and of SQLite as `BackupError`, with the next step."""
    try:
        yield
    except OSError as error:
        place = error.filename or folder
        if error.errno in _NO_ROOM:
            raise _make_full_error(place) from error
        raise BackupStorageError(f"{place} cannot be used ({error.strerror}).") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}:
            raise _make_full_error(folder) from error
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise make_broken_error(database) from error
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            raise BackupBusyError(
                f"The database {database} is locked by another program. Close that program first."
            ) from error
        raise BackupStorageError(
            f"The database {database} cannot be opened. Run this command as the user that runs "
            "the server."
        ) from error


def _make_full_error(place: object) -> BackupStorageError:
    return BackupStorageError(
        f"{place} cannot be written: the disk is full or faulty. Free some space and try again."
    )


def name_backup(at: datetime) -> str:
    """Return the file name of a scheduled backup. Names sort by time."""
    return f"talekeeper-{at:%Y%m%dT%H%M%SZ}.zip"


@dataclass(frozen=True, slots=True)
class StoredBackup:
    """A scheduled backup in its folder. `manifest` is None if the file is damaged."""

    path: Path
    manifest: Manifest | None


def list_backups(folder: Path, installation: str | None) -> list[StoredBackup]:
    """Return an installation's scheduled backups, newest first, and all damaged ones."""
    found: list[StoredBackup] = []
    for path in sorted(folder.glob("talekeeper-*T*Z.zip"), reverse=True):
        manifest: Manifest | None = None
        with contextlib.suppress(BackupError), open_backup(path) as backup:
            manifest = backup.manifest
        if manifest is None or manifest.installation == installation:
            found.append(StoredBackup(path, manifest))
    return found


def delete_old_backups(folder: Path, installation: str | None, *, keep: int, newest: Path) -> int:
    """Delete all readable scheduled backups except the last `keep`. Return their number.

    `newest` is never deleted, even if the clock was set back.
    """
    readable = [
        each.path
        for each in list_backups(folder, installation)
        if each.manifest is not None and each.path != newest
    ]
    old = readable[keep - 1 :]
    for path in old:
        path.unlink(missing_ok=True)
    return len(old)
