"""What revisions write often: columns that are always filled, references, partial indexes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from backend.database.types import Id


def required(name: str, kind: Any, *args: Any, **options: Any) -> sa.Column[Any]:
    """A column that is never null."""
    return sa.Column(name, kind, *args, nullable=False, **options)


def reference(name: str, target: str, *, ondelete: str = "CASCADE", **options: Any) -> Any:
    """A column that names a row of another table (`table.column`), never null unless said."""
    options.setdefault("nullable", False)
    return sa.Column(name, Id(), sa.ForeignKey(target, ondelete=ondelete), **options)


def where(condition: str, *, postgresql: str | None = None) -> dict[str, Any]:
    """Options of an index of some rows alone."""
    return {
        "sqlite_where": sa.text(condition),
        "postgresql_where": sa.text(postgresql or condition),
    }
