"""What followed from lines that come back."""

from __future__ import annotations

import pytest

from backend.campaigns.scenes.scenes import find_consequences
from backend.core.audience import GM
from backend.database.base import new_id
from backend.database.engine import Database
from tests.integration.chats.trees import sign_up
from tests.support.statements import record_statements

pytestmark = pytest.mark.anyio


async def test_lines_are_looked_up_by_their_ids_however_many(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    try:
        sealer = (await sign_up(database)).sealer
        async with database.read() as session:
            lines = [new_id() for _ in range(150)]
            with record_statements() as statements:
                assert await find_consequences(session, sealer, lines, viewpoint=GM) == {}
            connection = await session.connection()
            [(statement, values)] = [
                each for each in statements if "campaign_change_sources" in each.text
            ]
            plan = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
            steps = [step for *_, step in plan if " messages " in step]
    finally:
        await database.dispose()
    # Not among all of a user's: SQLite would read 10,000 of them for a hundred lines.
    assert [step.partition("(")[2] for step in steps] == ["id=?)", "parent_id=?)"]
