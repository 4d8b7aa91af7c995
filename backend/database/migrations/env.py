"""Alembic's entry: the connection comes from `backend.database.migrate`, which owns the engine."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context

from backend.database.base import Base
from backend.database.types import Id, UtcTime


def render_type(kind: str, value: Any, _: Any) -> str | Literal[False]:
    """Write our column types into a new revision by the names that its template imports."""
    if kind == "type" and isinstance(value, Id | UtcTime):
        return f"{type(value).__name__}()"
    return False


connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    compare_type=True,
    compare_server_default=True,
    render_as_batch=True,
    render_item=render_type,
    # So that an index can be built outside a transaction. On SQLite, all are in the caller's.
    transaction_per_migration=True,
    on_version_apply=context.config.attributes["on_version_apply"],
)
with context.begin_transaction():
    context.run_migrations()
