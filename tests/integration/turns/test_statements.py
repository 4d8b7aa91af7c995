"""What a chat without a chronicle and without summaries asks of the database: nothing of them."""

from __future__ import annotations

import re

import pytest

from tests.integration.turns.seeding import seed
from tests.support.memory import new_book, new_entry, preview, settled
from tests.support.server import Account, Running
from tests.support.statements import Statement, record_statements

pytestmark = pytest.mark.anyio

API = "/api/v1"
OF_ENRICHMENT = re.compile(r"\b(chat_summaries|chronicle_event\w*|enrichment_\w+)\b")


def find_tables(statements: list[Statement]) -> set[str]:
    """Return the tables of chronicles, runs and summaries that statements name."""
    assert statements
    return {table for each in statements for table in OF_ENRICHMENT.findall(each.text)}


async def test_a_chat_without_a_chronicle_and_summaries_pays_for_neither(
    server: Running, ada: Account, chat: str
) -> None:
    book = await new_book(ada)
    await new_entry(ada, book, title="The lamp", keys=["lamp"], content="It never goes out.")
    await ada.put(f"/chats/{chat}/lorebooks/{book}", {"state": "linked"})
    await seed(server, ada, chat, [f"{number}: the lamp burns." for number in range(30)])
    await ada.turn(chat, text="Is the lamp lit?")
    await settled(server)
    with record_statements() as statements:
        await preview(ada, chat, "The lamp?")
    assert find_tables(statements) == set()

    chronicle = (await ada.post("/chronicles", {"name": "Ours"}, 201))["id"]
    settings = {"chronicle_id": chronicle, "summary": {"enabled": True}}
    await ada.patch(f"/chats/{chat}/settings", settings)
    with record_statements() as statements:
        await preview(ada, chat, "The lamp?")
    assert {"chat_summaries", "chronicle_events"} <= find_tables(statements)
