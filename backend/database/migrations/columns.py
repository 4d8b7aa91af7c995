"""Shorthands for migrations: required columns, references, partial indexes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

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
