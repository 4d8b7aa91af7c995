"""Sentences about the faults that end a start: the cause and the next step."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from backend.database.engine import (
    DatabaseDamagedError,
    DatabaseUnavailableError,
    OvertakenError,
    find_place,
)
from backend.errors import AppError
from backend.memory.runtime import index_folder
from backend.settings import Settings
from backend.vault.root import RootKeyError

MIN_FREE_BYTES = 32 * 1024 * 1024
"""Minimum free disk space for a start."""

_ANOTHER_FOLDER = "or choose another folder with --data-dir"
_ROOM = "Free some space and start again."

_OPENING = (
    "cannot be opened for writing. The file and its folder must be writable by the user that "
    "runs Talekeeper, on a disk with free space."
)

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_ACCESS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_WRONG_KIND = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR})

_SQLITE = {
    sqlite3.SQLITE_FULL: f"cannot be written: the disk is full. {_ROOM}",
    sqlite3.SQLITE_IOERR: (
        f"cannot be read or written: the disk is full or faulty. {_ROOM} If there is space, check "
        "the disk for errors."
    ),
    sqlite3.SQLITE_CANTOPEN: _OPENING,
    sqlite3.SQLITE_READONLY: _OPENING,
    sqlite3.SQLITE_BUSY: "is locked by another program. Close that program first.",
    sqlite3.SQLITE_LOCKED: "is locked by another program. Close that program first.",
}
"""Explanations of SQLite's primary result codes."""

_POSTGRES = {
    "28": "rejected the user or the password. Correct TALEKEEPER_DATABASE_URL.",
    "3D": "does not exist on that server. Create it, or correct TALEKEEPER_DATABASE_URL.",
    "40": "cancelled the transaction, because another process needs the same rows. Start again.",
    "53": ("has no free connection, memory or disk space left. Give it more, and start again."),
    "55P03": "waited too long for a lock. Stop the process that holds it, and start again.",
    "57": "is starting or stopping, or cancelled the query. Start again once it is up.",
    "58": "cannot read or write its files. Check its log and its disk.",
    "42501": "does not grant the permissions that Talekeeper needs. Make the user its owner.",
}
"""Explanations of PostgreSQL's SQLSTATEs, by their first characters."""

_OVERTAKEN = "was changed by another process at the same time. Start again."

_OF_DATABASES = (DatabaseDamagedError, DatabaseUnavailableError, OvertakenError, DBAPIError)


def explain(error: BaseException, settings: Settings) -> str | None:
    """Return the cause and the next step in plain words; None for an unexpected error."""
    if isinstance(error, _OF_DATABASES):
        return _explain_database(error, find_place(settings.resolved_database_url))
    fault = error.__cause__ if isinstance(error, RootKeyError) else error
    if isinstance(fault, OSError):
        return _explain_file(fault, settings)
    return str(error) if isinstance(error, AppError) else None


def _explain_file(error: OSError, settings: Settings) -> str | None:
    # Writing to an open file raises an error without its name.
    path = error.filename or (settings.data_dir if error.errno in _NO_ROOM else None)
    return _explain_path(error.errno or 0, path) if path else None


def _explain_path(number: int, path: Path | str) -> str:
    words = os.strerror(number)
    if number in _NO_ROOM:
        return f"{path} cannot be written: the disk is full. {_ROOM}"
    if number in _NO_ACCESS:
        return (
            f"{path} cannot be used ({words}). Give the user that runs Talekeeper permission to "
            f"read and write it, {_ANOTHER_FOLDER}."
        )
    if number in _WRONG_KIND:
        return (
            f"{path} cannot be used ({words}): a file is where a folder has to be, or a folder "
            f"where a file has to be. Move it away, {_ANOTHER_FOLDER}."
        )
    return f"{path} cannot be used ({words}). Check the disk, {_ANOTHER_FOLDER}."


def find_folder_fault(folder: Path) -> str | None:
    """Return the reason why a folder cannot be used; None if it can, or does not exist yet."""
    if not folder.exists():
        # The first start makes it, unless a folder above it is a file.
        above = next(each for each in folder.absolute().parents if each.exists())
        return None if above.is_dir() else _explain_path(errno.ENOTDIR, above)
    if not folder.is_dir():
        return _explain_path(errno.ENOTDIR, folder)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return _explain_path(errno.EACCES, folder)
    if shutil.disk_usage(folder).free < MIN_FREE_BYTES:
        return _explain_path(errno.ENOSPC, folder)
    return None


def find_index_fault(settings: Settings) -> str | None:
    """Return the reason why the index folder cannot be used; None if it can."""
    if settings.qdrant_url:
        return None
    fault = find_folder_fault(index_folder(settings))
    return fault and f"{fault} Until then the server runs, but search cannot use the index."


def _explain_database(error: AppError | DBAPIError, place: str) -> str | None:
    if isinstance(error, DatabaseDamagedError):
        return (
            f"The database {place} is damaged, or is not a database. Move it away and restore your "
            "backup."
        )
    words = next(filter(None, map(_find_words, _causes(error))), None)
    if words is None and isinstance(error, OvertakenError):
        words = _OVERTAKEN
    if words is None and isinstance(error, DatabaseUnavailableError):
        words = "does not respond. Start it, or correct TALEKEEPER_DATABASE_URL."
    return words and f"The database at {place} {words}"


def _find_words(error: BaseException) -> str | None:
    """Return the explanation of a driver's error; None for other errors."""
    fault = error.orig if isinstance(error, DBAPIError) else None
    state = getattr(fault, "sqlstate", None) or ""
    refusals = (words for code, words in _POSTGRES.items() if state.startswith(code))
    return _SQLITE.get(getattr(fault, "sqlite_errorcode", 0) & 0xFF) or next(refusals, None)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, the innermost last."""
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__
