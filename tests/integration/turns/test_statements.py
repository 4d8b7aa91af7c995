"""What a chat without a chronicle and without summaries asks of the database: nothing of them."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from backend.database.engine import Database
from tests.integration.turns.seeding import seed
from tests.support.memory import new_book, new_entry, preview, settled
from tests.support.server import Account, Running, ok

pytestmark = pytest.mark.anyio

API = "/api/v1"
OF_ENRICHMENT = re.compile(r"\b(chat_summaries|chronicle_event\w*|enrichment_\w+)\b")


@contextmanager
def tables_named(database: Database) -> Generator[set[str]]:
    """The tables of chronicles, runs and summaries that statements name meanwhile."""
    named: set[str] = set()

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        named.update(OF_ENRICHMENT.findall(statement))
        named.add("any")

    engines = [database._reader.sync_engine, database._writer.sync_engine]
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield named
    finally:
        for engine in engines:
            event.remove(engine, "before_cursor_execute", note)


async def test_a_chat_without_a_chronicle_and_summaries_pays_for_neither(
    server: Running, ada: Account, chat: str
) -> None:
    book = await new_book(ada)
    await new_entry(ada, book, title="The lamp", keys=["lamp"], content="It never goes out.")
    ok(await ada.client.put(f"{API}/chats/{chat}/lorebooks/{book}", json={"state": "linked"}))
    await seed(server, ada, chat, [f"{number}: the lamp burns." for number in range(30)])
    await ada.turn(chat, text="Is the lamp lit?")
    await settled(server)
    with tables_named(server.parts.database) as named:
        await preview(ada, chat, "The lamp?")
    assert named == {"any"}

    chronicle = ok(await ada.client.post(f"{API}/chronicles", json={"name": "Ours"}), 201)["id"]
    settings = {"chronicle_id": chronicle, "summary": {"enabled": True}}
    ok(await ada.client.patch(f"{API}/chats/{chat}/settings", json=settings))
    with tables_named(server.parts.database) as named:
        await preview(ada, chat, "The lamp?")
    assert {"chat_summaries", "chronicle_events"} <= named
