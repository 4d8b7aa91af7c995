"""Rows that the index names are looked up by their ids, and not among all of a user's."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event

from tests.support.memory import link, new_book, settled, take_turn, tell, texts_found
from tests.support.server import Account, Running

pytestmark = pytest.mark.anyio

_TABLES = ("messages", "lore_entries", "chronicle_events", "campaign_items")


async def test_what_was_found_is_looked_up_by_its_ids(
    server: Running, ada: Account, chat: str
) -> None:
    database = server.parts.database
    if not database.is_sqlite:
        pytest.skip("PostgreSQL chooses by its statistics, and reads tables of a page whole")
    await link(ada, chat, await new_book(ada, {"keys": ["oak"], "content": "A heron in the oak."}))
    asked: list[tuple[str, Any]] = []

    def remember(_c: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if ".id IN (" in statement and statement.startswith("SELECT"):
            asked.append((statement, values))

    event.listen(database._reader.sync_engine, "before_cursor_execute", remember)
    try:
        await tell(server, ada, chat, ["A heron sat in the oak.", "Did it sing?"])
        found = await texts_found(ada, "heron oak")
        assert {"A heron sat in the oak.", "A heron in the oak."} <= set(found)
        await take_turn(ada, chat, text="Where is the heron?")
        await settled(server)
    finally:
        event.remove(database._reader.sync_engine, "before_cursor_execute", remember)
    plans: dict[str, str] = {}
    async with database.read() as session:
        connection = await session.connection()
        for statement, values in asked:
            plan = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
            for *_, step in plan:
                if any(f" {table} " in step for table in _TABLES):
                    plans[statement] = step
    assert len(plans) >= 3
    assert [step for step in plans.values() if "(id=?)" not in step] == []
