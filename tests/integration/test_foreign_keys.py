"""Tests of the class of faults that a deletion reads a whole table."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from backend.database.engine import Database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

WITHOUT_INDEX = text("""
    SELECT child.relname || '.' || string_agg(columns.attname, ', ')
    FROM pg_constraint AS key
    JOIN pg_class AS child ON child.oid = key.conrelid
    JOIN pg_attribute AS columns
        ON columns.attrelid = key.conrelid AND columns.attnum = ANY(key.conkey)
    WHERE key.contype = 'f' AND key.connamespace = current_schema()::regnamespace
    AND NOT EXISTS (
        SELECT 1 FROM pg_index AS found
        WHERE found.indrelid = key.conrelid AND found.indisvalid AND found.indpred IS NULL
        AND (found.indkey::int2[])[0:cardinality(key.conkey) - 1] @> key.conkey
    )
    GROUP BY key.oid, child.relname
""")
"""Foreign keys whose columns are not the first ones of an index of the whole table."""

KNOWN: dict[str, str] = {}
"""Foreign keys that need no index, with the reason."""


async def test_every_foreign_key_has_an_index(postgres_url: str) -> None:
    database = Database(postgres_url)
    async with database.trial() as session:  # rolled back
        assert set(await session.scalars(WITHOUT_INDEX)) == set(KNOWN)
        await session.execute(text("DROP INDEX ix_lore_entries_source_chat_id"))
        found = set(await session.scalars(WITHOUT_INDEX))
        assert found == {"lore_entries.source_chat_id", *KNOWN}
    await database.dispose()
