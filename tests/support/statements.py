"""SQL statements: compiled once for all engines of a process, and recorded for assertions."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.util import LRUCache

DIALECTS = (SQLiteDialect_aiosqlite, PGDialect_asyncpg)
ENOUGH_STATEMENTS = 5000


@pytest.fixture(scope="session", autouse=True)
def shared_statements() -> Generator[None]:
    """Share compiled statements between all engines of a dialect.

    SQLAlchemy compiles statements for each engine. Tests make thousands of engines, and compiling
    took a fifth of their time.
    """
    with pytest.MonkeyPatch.context() as patch:
        for kind in DIALECTS:
            statements: LRUCache[Any, Any] = LRUCache(ENOUGH_STATEMENTS)

            def share(engine: Engine, statements: LRUCache[Any, Any] = statements) -> None:
                engine._compiled_cache = statements

            # The cache key includes the dialect, and each engine has a dialect object of its own.
            patch.setattr(kind, "__hash__", _hash_of_kind)
            patch.setattr(kind, "__eq__", _is_of_kind)
            patch.setattr(kind, "engine_created", share)
        yield


class Statement(NamedTuple):
    text: str
    values: Any

    @property
    def is_batch(self) -> bool:
        """True if the statement is executed for each element of `values`."""
        return isinstance(self.values, list)


@contextmanager
def record_statements() -> Generator[list[Statement]]:
    """Yield a list of the statements that all engines execute until the block ends."""
    statements: list[Statement] = []

    def record(_connection: Any, _cursor: Any, text: str, values: Any, *_: Any) -> None:
        statements.append(Statement(text, values))

    event.listen(Engine, "before_cursor_execute", record)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", record)


def _hash_of_kind(self: object) -> int:
    return hash(type(self))


def _is_of_kind(self: object, other: object) -> bool:
    return type(self) is type(other)
