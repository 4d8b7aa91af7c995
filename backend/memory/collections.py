"""Which collection of the index is whose: another embedding model has another one.

A user's texts move to the collection of the configured model behind the scenes. Until they are all
there, search goes on in the one that they were in, and what is written goes to both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from uuid import UUID

from sqlalchemy import bindparam, delete, exists, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.models import User
from backend.database.base import now, upsert
from backend.database.engine import Database
from backend.memory.embedding.protocol import EmbedderSpec
from backend.memory.index.protocol import VectorIndex
from backend.memory.models import IndexState

FORMAT = 1
"""Raised when what is indexed of a row changes: all texts move to a collection of that format."""

STATE_SECONDS = 15.0
_MOST_KEPT = 10_000
"""Users of whom is remembered where their texts are."""

Opener = Callable[[str, int | None], Awaitable[VectorIndex]]
"""Opens a collection by name and dimension (None: terms alone), making it where it is missing."""


def collection_name(spec: EmbedderSpec | None) -> str:
    """The collection for an embedding model's vectors; without a model, for terms alone."""
    return f"{spec.collection if spec else 'terms'}-v{FORMAT}"


_READY = (
    select(IndexState.collection)
    .where(IndexState.user_id == bindparam("owner_id"), IndexState.state == literal("ready"))
    .order_by(IndexState.created_at.desc())
)


class Collections:
    """The collection of the configured model, and those of others that users are still in."""

    def __init__(
        self, database: Database, current: VectorIndex, opener: Opener, *, known: set[str]
    ) -> None:
        self._database = database
        self._opener = opener
        self._known = known
        self._others: dict[str, VectorIndex] = {}
        self._opening = asyncio.Lock()
        self._searched: dict[UUID, tuple[float, str]] = {}
        self._placed: set[UUID] = set()
        self.current = current

    async def prepare(self) -> list[UUID]:
        """Note who has to be indexed in the current collection; gives back who.

        Everybody, where it was made just now; else those who were here before it was.
        """
        name = self.current.name
        async with self._database.write() as session:
            if self.current.is_new:
                await session.execute(delete(IndexState).where(IndexState.collection == name))
            is_known = exists().where(IndexState.user_id == User.id, IndexState.collection == name)
            unknown = list(await session.scalars(select(User.id).where(~is_known)))
            rows = [{"user_id": each, "collection": name, "state": "due"} for each in unknown]
            if rows:
                await session.execute(insert(IndexState), rows)
            due = select(IndexState.user_id).where(
                IndexState.collection == name, IndexState.state == "due"
            )
            return list(await session.scalars(due))

    async def index_to_search(self, user_id: UUID) -> VectorIndex:
        """Where a user's texts are found at this moment."""
        at = time.monotonic()
        kept = self._searched.get(user_id)
        if kept is None or at - kept[0] > STATE_SECONDS:
            async with self._database.read() as session:
                name = await self._ready(session, user_id)
            if len(self._searched) > _MOST_KEPT:
                self._searched.clear()
            kept = self._searched[user_id] = at, name
        return await self.open(kept[1])

    async def indexes_to_write(self, session: AsyncSession, user_id: UUID) -> list[VectorIndex]:
        """Where what is new of a user's goes: the current one first."""
        name = await self._ready(session, user_id)
        if name == self.current.name:
            return [self.current]
        return [self.current, await self.open(name)]

    async def mark_ready(self, session: AsyncSession, user_id: UUID) -> None:
        """All texts of a user's are in the current collection: from now on it is searched."""
        await self._note_ready(session, user_id, update=("state", "compared_at"))
        await session.execute(
            delete(IndexState).where(
                IndexState.user_id == user_id, IndexState.collection != self.current.name
            )
        )
        self._searched.pop(user_id, None)

    def is_placed(self, user_id: UUID) -> bool:
        """Whether it is known here that a user is in some collection: nothing has to be noted."""
        return user_id in self._placed

    async def mark_ready_if_new(self, session: AsyncSession, user_id: UUID) -> None:
        """Note a user who came after the current collection: nothing has to move."""
        if user_id in self._placed:
            return
        known = select(IndexState.id).where(IndexState.user_id == user_id).limit(1)
        if await session.scalar(known) is None:
            await self._note_ready(session, user_id)

    async def mark_due(self, session: AsyncSession) -> list[UUID]:
        """Have everything of all users indexed anew; gives back whose."""
        change = update(IndexState).where(IndexState.collection == self.current.name)
        due = await session.scalars(change.values(state="due").returning(IndexState.user_id))
        return list(due)

    async def users_of(self, name: str) -> set[UUID]:
        """Whose texts are found in a collection: who moved on is found there no more."""
        query = select(IndexState.user_id).where(IndexState.collection == name)
        async with self._database.read() as session:
            return set(await session.scalars(query))

    async def all_indexes(self) -> list[VectorIndex]:
        """Every collection that is known: what is forgotten is forgotten in all of them."""
        return [await self.open(name) for name in sorted(self._known | {self.current.name})]

    async def open(self, name: str) -> VectorIndex:
        """The collection of that name, made where it is missing."""
        if name == self.current.name:
            return self.current
        # One at a time: a folder that is open is not opened twice.
        async with self._opening:
            index = self._others.get(name)
            if index is None:
                index = self._others[name] = await self._opener(name, _dimension(name))
            return index

    def go_over(self, index: VectorIndex) -> None:
        """Have a collection that is open be the current one: another model is in use from now on.

        Users are moved by what `prepare` says then.
        """
        self._others[self.current.name] = self.current
        self._others.pop(index.name, None)
        self._known.add(index.name)
        self._searched.clear()
        self._placed.clear()
        self.current = index

    async def aclose(self) -> None:
        """Close all of them."""
        for index in (self.current, *self._others.values()):
            await index.aclose()

    async def _note_ready(
        self, session: AsyncSession, user_id: UUID, *, update: tuple[str, ...] = ()
    ) -> None:
        row = {
            "user_id": user_id,
            "collection": self.current.name,
            "state": "ready",
            "compared_at": now() if update else None,
        }
        await upsert(session, IndexState, row, key=("user_id", "collection"), update=update)

    async def _ready(self, session: AsyncSession, user_id: UUID) -> str:
        """The collection that a user is in: the current one, else the newest that is there."""
        names = list(await session.scalars(_READY, {"owner_id": user_id}))
        if names:
            if len(self._placed) > _MOST_KEPT:
                self._placed.clear()
            self._placed.add(user_id)
        if self.current.name in names:
            return self.current.name
        return next((name for name in names if name in self._known), self.current.name)


def _dimension(name: str) -> int | None:
    """The dimension that a collection's name tells."""
    *_, dimension, _ = f"-{name}".rsplit("-", 2)
    return int(dimension) if dimension.isdigit() else None
