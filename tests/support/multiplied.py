"""Copies of all rows of a PostgreSQL database, as if many other accounts had done the same."""

from __future__ import annotations

from sqlalchemy import Index, LargeBinary, PrimaryKeyConstraint, Table, UniqueConstraint, text

from backend.database.base import Base
from backend.database.engine import Database
from backend.database.types import Id

SINGLE = frozenset({"compatible_revisions", "instance_keys", "processes"})
"""Tables of the installation and its processes."""


async def multiply(database: Database, copies: int) -> None:
    """Copy the rows of all users `copies` times, and analyse the tables.

    The ids of a copy end in its number, so that copies refer to each other as the originals do.
    """
    async with database.write() as session:
        # Without triggers, which check foreign keys and count bytes.
        await session.execute(text("SET LOCAL session_replication_role = replica"))
        for table in Base.metadata.sorted_tables:
            if table.name not in SINGLE:
                await session.execute(text(_make_copies(table, copies)))
    async with database.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("ANALYZE"))


def _make_copies(table: Table, copies: int) -> str:
    unique = {
        column.name
        for each in (*table.constraints, *(index for index in table.indexes if index.unique))
        if isinstance(each, Index | UniqueConstraint | PrimaryKeyConstraint)
        for column in each.columns
    }
    values: dict[str, str] = {}
    for column in table.columns:
        value = f'original."{column.name}"'
        if isinstance(column.type, Id):
            value = f"(left({value}::text, 28) || lpad(to_hex(copies.n), 8, '0'))::uuid"
        elif isinstance(column.type, LargeBinary) and column.name in unique:
            value = f"{value} || int4send(copies.n)"
        if column is not table.autoincrement_column or isinstance(column.type, Id):
            values[f'"{column.name}"'] = value
    return (
        f"INSERT INTO {table.name} ({', '.join(values)}) SELECT {', '.join(values.values())} "
        f"FROM {table.name} AS original, generate_series(1, {copies}) AS copies(n)"
        f"{' WHERE user_id IS NOT NULL' if 'user_id' in table.columns else ''}"
    )
