"""`INSERT ... ON CONFLICT`, spelt for the database at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.base import Base


async def upsert(
    session: AsyncSession,
    table: type[Base],
    values: dict[str, Any],
    *,
    key: Sequence[str],
    update: dict[str, Any],
) -> None:
    """Insert a row, or, where its `key` is taken, apply `update` to the row that has it.

    An empty `update` leaves the row that is there alone.
    """
    dialect = session.get_bind().dialect.name
    module = postgresql if dialect == "postgresql" else sqlite
    statement = module.insert(table).values(**values)
    if update:
        await session.execute(statement.on_conflict_do_update(index_elements=key, set_=update))
    else:
        await session.execute(statement.on_conflict_do_nothing(index_elements=key))
