"""Shorthands for migrations: required columns, references, partial and large indexes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from backend.database.types import Id


def required(name: str, kind: Any, *args: Any, **options: Any) -> sa.Column[Any]:
    """Return a column that is never null."""
    return sa.Column(name, kind, *args, nullable=False, **options)


def reference(name: str, target: str, *, ondelete: str = "CASCADE", **options: Any) -> Any:
    """Return a foreign key to `table.column`. Not null by default."""
    options.setdefault("nullable", False)
    return sa.Column(name, Id(), sa.ForeignKey(target, ondelete=ondelete), **options)


def where(condition: str, *, postgresql: str | None = None) -> dict[str, Any]:
    """Return the options of a partial index."""
    return {
        "sqlite_where": sa.text(condition),
        "postgresql_where": sa.text(postgresql or condition),
    }


def create_large_index(name: str, table: str, columns: list[str], **options: Any) -> None:
    """Create an index on a table that grows without end, without holding up its writers.

    PostgreSQL builds it outside a transaction. So it comes first in a migration, which can then be
    repeated if the build was interrupted.
    """
    context = op.get_context()
    if context.dialect.name != "postgresql":
        op.create_index(name, table, columns, **options)
        return
    drop_large_index(name, table)  # an interrupted build leaves an invalid index
    with context.autocommit_block():
        op.create_index(name, table, columns, postgresql_concurrently=True, **options)


def drop_large_index(name: str, table: str) -> None:
    """Drop an index in the same way.

    In a transaction it would lock the whole table, and could wait for turns that wait for another
    table of the migration.
    """
    context = op.get_context()
    if context.dialect.name != "postgresql":
        op.drop_index(name, table)
        return
    with context.autocommit_block():
        op.drop_index(name, table, if_exists=True, postgresql_concurrently=True)
