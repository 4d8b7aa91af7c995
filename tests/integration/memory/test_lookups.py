"""Rows that the index names are looked up by their ids, and not among all of a user's."""

from __future__ import annotations

import re

import pytest

from tests.support.memory import link, new_book, settled, take_turn, tell, texts_found
from tests.support.server import Account, Running
from tests.support.statements import record_statements

pytestmark = pytest.mark.anyio

_TABLES = ("messages", "lore_entries", "chronicle_events", "campaign_items")


async def test_what_was_found_is_looked_up_by_its_ids(
    server: Running, ada: Account, chat: str
) -> None:
    database = server.parts.database
    if not database.is_sqlite:
        pytest.skip("PostgreSQL chooses by its statistics, and reads tables of a page whole")
    await link(ada, chat, await new_book(ada, {"keys": ["oak"], "content": "A heron in the oak."}))
    with record_statements() as statements:
        await tell(server, ada, chat, ["A heron sat in the oak.", "Did it sing?"])
        found = await texts_found(ada, "heron oak")
        assert {"A heron sat in the oak.", "A heron in the oak."} <= set(found)
        await take_turn(ada, chat, text="Where is the heron?")
        await settled(server)
    asked = [each for each in statements if re.match(r"SELECT\b.*\.id IN \(", each.text, re.DOTALL)]
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
