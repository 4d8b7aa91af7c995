"""The file of a backup: a zip with the database, perhaps the root key, and a manifest of digests.

A digest finds damage. It does not prove who made the file, so only trusted files are restored.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import zipfile
from collections.abc import Callable, Generator, Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from backend.core.zip_files import DAMAGED_ZIP_ERRORS
from backend.database.migrate import HEAD, is_known
from backend.errors import AppError
from backend.settings import DATABASE_NAME, ROOT_KEY_NAME
from backend.vault.root import Wrapped

FORMAT = "talekeeper-backup"
FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
JOURNAL_NAME = "restore.json"
"""The file in the data folder that exists while a restore replaces files."""

CHUNK_BYTES = 1024 * 1024
MAX_MANIFEST_BYTES = 64 * 1024

FULL_CHECK_BYTES = 256 * 1024 * 1024
"""Size up to which a database's indexes are compared with its tables, too: a few seconds."""

_CHECK_STEPS = 100_000
"""Steps of SQLite's machine between two calls that can stop a check: some milliseconds."""

_ALLOWED = frozenset({DATABASE_NAME, ROOT_KEY_NAME})

ReportProgress = Callable[[int, int], None]
"""Receives the bytes that are done and the total. It may raise an exception to stop the work."""


class BackupProgress:
    """The progress of work in several phases. Only `finish` reports the end."""

    def __init__(self, report: ReportProgress) -> None:
        self._report = report
        self._done, self.total = 0, 1

    def reach(self, done: int) -> None:
        self._done = min(done, self.total - 1)
        self.repeat()

    def repeat(self) -> None:
        """Report the same place again, so that the receiver can stop the work."""
        self._report(self._done, self.total)

    def finish(self) -> None:
        self._report(self.total, self.total)


class BackupError(AppError):
    """A backup or a restore that cannot be made. It has changed nothing."""

    slug, title = "backup", "The backup cannot be made or restored"


class BackupDamagedError(BackupError):
    """The file of the backup, or the database in it, is damaged."""

    slug, title = "backup-damaged", "The backup is damaged"


class BackupStorageError(BackupError):
    """The disk is full or faulty, or a folder cannot be used."""

    slug, title = "backup-storage", "The disk cannot be used for the backup"


class BackupBusyError(BackupError):
    """Another backup or a restore of the same installation is running."""

    slug, title = "backup-busy", "Another backup is running"


class BackupEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a backup. `sha256` is in hexadecimal digits."""

    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a backup.

    Attributes:
        talekeeper: Version of the program that made it.
        revision: Revision of the tables.
        installation: Random id of the data folder that it was made of.
        root_key_version: Version of the root key that opens it; None for an unused database.
    """

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    talekeeper: str
    revision: str
    created_at: datetime
    installation: str | None
    root_key_version: int | None
    files: list[BackupEntry]

    @property
    def size(self) -> int:
        return sum(each.size for each in self.files)

    @property
    def has_root_key(self) -> bool:
        return any(each.name == ROOT_KEY_NAME for each in self.files)


class DatabaseState(msgspec.Struct, frozen=True, kw_only=True):
    """The revision of a database file, and its installation's key under the root key.

    `is_usable` is true if this version can use the tables.
    """

    revision: str
    is_usable: bool
    instance_key: Wrapped | None


class BackupReader:
    """An open backup. `open_backup` makes it. Its methods raise `BackupDamagedError`."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self._archive = archive
        self.manifest = self._read_manifest()

    def read(self, entry: BackupEntry) -> Iterator[bytes]:
        """Yield the content in chunks. Raise after the last one if the digest differs."""
        digest, left = hashlib.sha256(), entry.size
        with _explain_damage(self.path), self._archive.open(entry.name) as file:
            while chunk := file.read(CHUNK_BYTES):
                left -= len(chunk)
                if left < 0:
                    break  # a forged zip may expand to more than it declares
                digest.update(chunk)
                yield chunk
        if left or digest.hexdigest() != entry.sha256:
            raise make_damaged_error(self.path)

    def check(self, report: Callable[[int], None]) -> None:
        """Read everything and compare the digests. `report` receives the bytes that are done."""
        done = 0
        for entry in self.manifest.files:
            for chunk in self.read(entry):
                done += len(chunk)
                report(done)

    def _read_manifest(self) -> Manifest:
        with _explain_damage(self.path), self._archive.open(MANIFEST_NAME) as file:
            manifest = msgspec.json.decode(file.read(MAX_MANIFEST_BYTES), type=Manifest)
        if manifest.format != FORMAT:
            raise make_damaged_error(self.path)
        if manifest.format_version > FORMAT_VERSION:
            raise BackupError(
                f"{self.path} was made by Talekeeper {manifest.talekeeper}, which is newer than "
                "this one. Install that version, or a later one."
            )
        names = [each.name for each in manifest.files]
        stored = self._archive.namelist()
        if (
            DATABASE_NAME not in names
            or not _ALLOWED.issuperset(names)
            or sorted([*names, MANIFEST_NAME]) != sorted(stored)
        ):
            raise make_damaged_error(self.path)
        return manifest


@contextlib.contextmanager
def open_backup(path: Path) -> Generator[BackupReader]:
    """Open a backup and read its manifest.

    Raises `BackupDamagedError`, `BackupStorageError`, and `BackupError` for a newer format.
    """
    try:
        file: BinaryIO = path.open("rb")
    except OSError as error:
        raise BackupStorageError(f"{path} cannot be read ({error.strerror}).") from error
    with file:
        with _explain_damage(path):
            archive = zipfile.ZipFile(file)
        with archive:
            yield BackupReader(path, archive)


def make_damaged_error(path: Path) -> BackupDamagedError:
    return BackupDamagedError(
        f"{path} is damaged, or is not a backup of Talekeeper. Use another backup."
    )


def make_broken_error(place: Path) -> BackupDamagedError:
    return BackupDamagedError(
        f"The database {place} is damaged, or is not Talekeeper's. Restore an earlier backup."
    )


@contextlib.contextmanager
def _explain_damage(path: Path) -> Generator[None]:
    try:
        yield
    except (*DAMAGED_ZIP_ERRORS, KeyError, msgspec.DecodeError) as error:
        raise make_damaged_error(path) from error
    except OSError as error:
        raise BackupStorageError(f"{path} cannot be read ({error.strerror}).") from error


def check_database(path: Path, place: Path, report: Callable[[], None]) -> DatabaseState:
    """Check a database file that no one else uses, and return its state.

    Args:
        path: The file. It becomes a single file, without a write-ahead log.
        place: The file to name in errors.
        report: Called every few milliseconds. It may raise an exception to stop the check.

    Raises `BackupDamagedError`.
    """
    stops: list[BaseException] = []

    def is_stopped() -> bool:
        try:
            report()
        except BaseException as error:  # noqa: BLE001  # SQLite would drop it
            stops.append(error)
        return bool(stops)

    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.set_progress_handler(is_stopped, _CHECK_STEPS)
        try:
            # A file from elsewhere may contain triggers and views that call functions.
            database.execute("PRAGMA trusted_schema=OFF")
            database.execute("PRAGMA journal_mode=DELETE").fetchone()
            is_small = path.stat().st_size <= FULL_CHECK_BYTES
            check = "integrity_check" if is_small else "quick_check"
            found = database.execute(f"PRAGMA {check}(1)").fetchone()
            state = _read_state(database) if found == ("ok",) else None
        except sqlite3.DatabaseError as error:
            if stops:
                raise stops[0] from None
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_DISK:
                raise
            raise make_broken_error(place) from error
    if state is None:
        raise make_broken_error(place)
    return state


_OF_DISK = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
"""Primary result codes of a disk that is full or faulty."""


def _read_state(database: sqlite3.Connection) -> DatabaseState | None:
    """Return the state; None if the tables are not Talekeeper's."""
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    if "alembic_version" not in tables:
        return None
    revision = database.execute("SELECT version_num FROM alembic_version").fetchone()
    if revision is None:
        return None
    key = None
    if "instance_keys" in tables:
        key = database.execute("SELECT root_version, wrapped FROM instance_keys").fetchone()
    is_usable = is_known(revision[0])
    if not is_usable and "compatible_revisions" in tables:
        own = "SELECT 1 FROM compatible_revisions WHERE revision = ?"
        is_usable = database.execute(own, (HEAD,)).fetchone() is not None
    instance_key = Wrapped(*key) if key else None
    return DatabaseState(revision=revision[0], is_usable=is_usable, instance_key=instance_key)
