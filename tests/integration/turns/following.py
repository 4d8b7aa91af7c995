"""Helpers for streams: wait, follow, and check every row of a chat."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.models import Chat, Message
from backend.database.engine import Database, DatabaseUnavailableError
from backend.turns.models import Turn
from tests.support.server import Account, Event, Running, read_events, text_of

TURN = "/api/v1/turns"


@contextlib.asynccontextmanager
async def turn_under_way(
    ada: Account, chat: str, **body: Any
) -> AsyncGenerator[tuple[str, AsyncGenerator[Event]]]:
    """Begin a turn; yield its id and its later events."""
    async with ada.stream("POST", f"/chats/{chat}/turns", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async with contextlib.aclosing(read_events(response)) as events:
            yield (await anext(events)).data["turn_id"], events


async def take_words(events: AsyncGenerator[Event], count: int) -> list[Event]:
    """Return the next events, up to this number of words."""
    taken: list[Event] = []
    while len(text_of(taken).split()) < count:
        taken.append(await anext(events))
    return taken


async def follow(client: httpx.AsyncClient, turn_id: str, *, last_id: int = 0) -> list[Event]:
    """Return the events of a turn after `last_id`."""
    headers = {"Last-Event-ID": str(last_id)} if last_id else {}
    async with client.stream("GET", f"{TURN}/{turn_id}/events", headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        return [event async for event in read_events(response)]


async def is_over(ada: Account, turn_id: str) -> bool:
    return bool((await ada.get(f"/turns/{turn_id}"))["state"] != "running")


def said(events: list[Event]) -> list[tuple[str, str]]:
    """Return the kinds and texts of deltas; join neighbours of one kind."""
    runs: list[tuple[str, str]] = []
    for event in events:
        if event.name.endswith(".delta"):
            before = runs.pop()[1] if runs and runs[-1][0] == event.name else ""
            runs.append((event.name, before + event.data["text"]))
    return runs


def others(events: list[Event]) -> list[tuple[str, Any]]:
    """Return the names and data of all other events."""
    return [(event.name, event.data) for event in events if not event.name.endswith(".delta")]


class Outage:
    """A database that refuses the writes of one process while `is_on`."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_on = False
        self._under_way = 0
        write = database.write

        @contextlib.asynccontextmanager
        async def write_if_up() -> AsyncGenerator[AsyncSession]:
            if self.is_on:
                raise DatabaseUnavailableError("Try again in a moment.")
            self._under_way += 1
            try:
                async with write() as session:
                    yield session
            finally:
                self._under_way -= 1

        monkeypatch.setattr(database, "write", write_if_up)

    async def start(self) -> None:
        """Refuse writes from now on; wait for those that have begun."""
        self.is_on = True
        while self._under_way:
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def same_browser(ada: Account, server: Running) -> AsyncGenerator[Account]:
    """Yield the same session at another process, as with a load balancer."""
    async with server.browser() as client:
        client.cookies.update(ada.client.cookies)
        yield Account(client, ada.name, ada.recovery_code, ada.user)


async def lapse(database: Database, turn_id: str) -> None:
    """Make the lease of a turn expire."""
    async with database.write() as session:
        turn = await session.get_one(Turn, UUID(turn_id))
        turn.lease_until = turn.created_at


async def check_tree(database: Database, chat_id: str) -> list[Message]:
    """Raise unless the rows of a chat are a valid tree; return them."""
    async with database.read() as session:
        chat = await session.get_one(Chat, UUID(chat_id))
        rows = list(await session.scalars(select(Message).where(Message.chat_id == chat.id)))
    by_id = {row.id: row for row in rows}
    path: list[UUID] = []
    leaf = chat.leaf_id
    while leaf is not None:
        path.append(leaf)
        leaf = by_id[leaf].parent_id
    assert {row.id for row in rows if row.is_active} == set(path)
    selected = Counter(row.parent_id for row in rows if row.is_selected)
    assert set(selected.values()) <= {1}
    for row in rows:
        parent = by_id[row.parent_id] if row.parent_id else None
        assert row.position == (parent.position + 1 if parent else 0)
        own = 0 if row.hidden else row.tokens
        assert row.path_tokens == (parent.path_tokens if parent else 0) + own
    return rows
