"""Accounts that write with their own models only, and are then deleted."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import httpx
from sqlalchemy import func, select

from backend.accounts.models import User
from backend.database.base import Base
from backend.database.engine import Database
from scripts.model_server import MODEL
from scripts.torture.client import PASSWORD, Client, sign_up
from scripts.torture.history import History
from scripts.torture.installation import Installation
from scripts.torture.ledger import Ledger
from scripts.torture.model import EMBEDDERS, USER_MARK, TaggedModel
from scripts.torture.own_models import SETTINGS, OwnModels
from scripts.torture.worker import Action, Worker

LOOKS = 200
"""Checks for the visitor's own model before it continues without."""

UNAUTHORIZED = 401
MOST_LINES = 6


@dataclass
class Visitor:
    """A visitor that returns with a new account each time.

    `gone` are the accounts whose deletion was acknowledged, `private` the marks of lines that
    were written once account and embedding had models of their own.
    """

    name: str
    made: Installation
    history: History
    model: TaggedModel
    servers: Sequence[str]
    draw: random.Random
    numbers: itertools.count[int]
    gone: set[UUID] = field(default_factory=set[UUID])
    private: set[str] = field(default_factory=set[str])
    pending: list[Action] = field(default_factory=list[Action])
    client: Client | None = None
    is_busy: bool = False

    async def play(self, may_act: asyncio.Event, is_over: asyncio.Event) -> None:
        """One visit after the other, a step at a time, while it may."""
        while not is_over.is_set():
            async for _ in self._visit():
                self.is_busy = False
                await asyncio.sleep(self.draw.uniform(0, 0.2))
                await may_act.wait()
                self.is_busy = True

    async def leave(self) -> bool:
        """Have the account deleted; whether that is known to have happened."""
        client = self.client
        if client is None:
            return True
        body = {"password": PASSWORD}
        answer = await client.ask(self.name, "delete account", "DELETE", "/me", json=body)
        # The key of an account that is gone opens nothing: an earlier request was carried out.
        if answer.outcome != "ok" and answer.status != UNAUTHORIZED:
            return False
        self.gone.add(client.user_id)
        self.client = None
        await client.aclose()
        return True

    async def _visit(self) -> AsyncIterator[None]:
        yield
        await self._arrive()
        if self.client is None:
            return
        worker = Worker(
            self.name,
            self.client,
            Ledger(numbers=self.numbers),
            self.model,
            self.draw,
            self.servers,
        )
        async for _ in self._write(worker):
            yield
        while not await self.leave():
            yield

    async def _arrive(self) -> None:
        urls = self.made.urls()
        if not urls:
            return
        try:
            self.client = await sign_up(
                self.draw.choice(urls), "visitor", self.history, self.made.urls, self.draw
            )
        except (httpx.HTTPError, KeyError):
            # The server was killed before the answer: the account stays without a client.
            self.client = None

    async def _write(self, worker: Worker) -> AsyncIterator[None]:
        """Choose models, and write once they are in use."""
        thing = await OwnModels(worker).add(is_live=True)
        yield
        while worker.pending:
            await worker.pending.pop(0)()
            yield
        if not thing.slug:
            return
        path = f"/providers/{thing.id}/models"
        listed = await worker.ask("provider's models", "GET", path)
        yield
        chosen = {
            "model": f"{thing.slug}/{MODEL}",
            "task_models": {"embedding": f"{thing.slug}/{self.draw.choice(EMBEDDERS)}"},
        }
        answer = await worker.ask("settings", "PATCH", SETTINGS, json=chosen)
        if listed.outcome != "ok" or answer.outcome != "ok":
            return
        for _ in range(LOOKS):
            yield
            status = await worker.ask("memory", "GET", "/memory")
            if status.outcome == "ok" and (status.body["model"] or {}).get("is_own"):
                break
        else:
            return
        title = worker.unique("chat")
        chat = await worker.ask("make chat", "POST", "/chats", json={"title": title})
        if chat.outcome != "ok":
            return
        for _ in range(self.draw.randint(1, MOST_LINES)):
            yield
            text = worker.text()
            self.private.update(USER_MARK.findall(text))
            await worker.client.turn(self.name, chat.body["id"], {"text": text})
        params = {"q": "harbour"}
        await worker.ask("search", "GET", "/search", params=params)


async def check_gone(database: Database, gone: set[UUID]) -> list[str]:
    """Return rows that deleted accounts have left."""
    found: list[str] = []
    async with database.read() as session:
        for table in Base.metadata.sorted_tables:
            owner = User.__table__.c.id if table is User.__table__ else table.c.get("user_id")
            if owner is None:
                continue
            query = select(func.count()).select_from(table).where(owner.in_(gone))
            if count := await session.scalar(query):
                found.append(f"back: {count} rows of deleted accounts in {table.name}")
    return found


def check_private(model: TaggedModel, private: set[str]) -> list[str]:
    """Lines for models of a user's own that the installation's server was sent."""
    leaked = private & model.heard[""]
    return [f"another's: the installation's model read {mark}" for mark in sorted(leaked)]
