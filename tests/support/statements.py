"""Statements compiled once a process.

SQLAlchemy keeps what it compiled for each engine, and tests make thousands of engines: compiling
the same statements again and again took a fifth of their time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.util import LRUCache

DIALECTS = (SQLiteDialect_aiosqlite, PGDialect_asyncpg)
ENOUGH_STATEMENTS = 5000


@pytest.fixture(scope="session", autouse=True)
def shared_statements() -> Generator[None]:
    """Let all engines of a kind of database keep them in one place."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in DIALECTS:
            statements: LRUCache[Any, Any] = LRUCache(ENOUGH_STATEMENTS)

            def share(engine: Engine, statements: LRUCache[Any, Any] = statements) -> None:
                engine._compiled_cache = statements

            # What is compiled is found by its dialect, of which each engine has its own.
            patch.setattr(kind, "__hash__", _hash_of_kind)
            patch.setattr(kind, "__eq__", _is_of_kind)
            patch.setattr(kind, "engine_created", share)
        yield


def _hash_of_kind(self: object) -> int:
    return hash(type(self))


def _is_of_kind(self: object, other: object) -> bool:
    return type(self) is type(other)
