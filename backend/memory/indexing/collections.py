"""Which collection of the index is whose: another embedding model has another one.

A user's texts move in the background to the collection of the configured model, or to that of the
model that their account names. Until they are all there, search goes on in the one that they were
in, and what is written goes to both.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import bindparam, delete, exists, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.accounts.models import User
from backend.core.logs import get_logger
from backend.database.base import now, upsert
from backend.database.engine import Database
from backend.memory.embedding.protocol import OWN, EmbedderSpec
from backend.memory.index.protocol import IndexUnavailableError, VectorIndex
from backend.memory.indexing.outbox import reindex_later
from backend.memory.models import IndexState

_OWN_NAME = re.compile(rf"{OWN}-[0-9]+-v[0-9]+")

FORMAT = 1
"""Raised when what is indexed of a row changes: all texts move to a collection of that format."""


def collection_name(spec: EmbedderSpec | None) -> str:
    """The collection for an embedding model's vectors; without a model, for terms alone."""
    return f"{spec.collection if spec else 'terms'}-v{FORMAT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a user's texts are in the index.

    Attributes:
        target: The collection that they belong to.
        searched: The one that they are found in: another one until all of them have moved.
        is_chosen: Whether the target is that of a model which the account names.
        model: Of which model of the user's own the target's vectors are: see `IndexState`.
        length: How many numbers that model gave; None where that was not noted.
        is_moving: Whether they are on their way, so that vectors of the target's model find
            nothing yet, or not all.
    """

    target: str
    searched: str
    is_chosen: bool = False
    model: bytes | None = None
    length: int | None = None
    is_moving: bool = False


def is_own(name: str) -> bool:
    """Whether a collection is one of users' own models."""
    return _OWN_NAME.fullmatch(name) is not None


def dimension_of(name: str) -> int | None:
    """The dimension that a collection's name tells; None for one without vectors."""
    *_, dimension, _ = f"-{name}".rsplit("-", 2)
    return int(dimension) if dimension.isdigit() else None


log = get_logger(__name__)

STATE_SECONDS = 15.0
EXPECTED_SECONDS = 60.0
_MOST_KEPT = 10_000
"""Users of whom is remembered where their texts are."""

Opener = Callable[[str, int | None], Awaitable[VectorIndex]]
"""Opens a collection by name and dimension (None: terms alone), making it where it is missing."""

Lister = Callable[[], Awaitable[set[str]]]
"""The names of all collections that the index has."""


_HERE = aliased(IndexState)
_STATES = (
    select(
        IndexState.collection,
        IndexState.state,
        IndexState.model,
        IndexState.vector_length,
        IndexState.is_chosen,
    )
    .where(IndexState.user_id == bindparam("owner_id"))
    .order_by(IndexState.created_at.desc())
)


class Collections:
    """The collection of the configured model, and those of others that users are still in."""

    def __init__(
        self,
        database: Database,
        current: VectorIndex,
        opener: Opener,
        *,
        known: set[str],
        lister: Lister,
    ) -> None:
        self._database = database
        self._opener, self._lister = opener, lister
        self._known = known
        self._others: dict[str, VectorIndex] = {}
        self._opening = asyncio.Lock()
        self._opened: set[str] = set()
        self._expected: dict[UUID, float] = {}
        self._searched: dict[UUID, tuple[float, Placement]] = {}
        self._placed: set[UUID] = set()
        self.current = current

    async def prepare(self) -> list[tuple[UUID, str]]:
        """Note who has to be indexed; gives back who, and in which collection.

        In the current collection everybody, where it was made just now; else those who were here
        before it was. In those of users' own models whoever belongs there and is not there yet;
        one that does not open is its users' trouble alone.
        """
        name, chosen = self.current.name, IndexState.is_chosen.is_(True)
        async with self._database.read() as session:
            names = select(IndexState.collection).where(chosen).distinct()
            used = list(await session.scalars(names))
        for each in used:
            try:
                await self.open(each)
            except IndexUnavailableError as error:
                log.warning("memory.not_opened", collection=each, problem=error.slug)
        async with self._database.write() as session:
            if self.current.is_new:
                await session.execute(delete(IndexState).where(IndexState.collection == name))
            mine = IndexState.user_id == User.id
            is_known = exists().where(mine, (IndexState.collection == name) | chosen)
            # Locked, so that no user is deleted meanwhile, and in one order, so that processes that
            # start together do not lock each other out.
            unknown = select(User.id).where(~is_known).order_by(User.id)
            locked = unknown.with_for_update(key_share=True, read=True)
            ids = list(await session.scalars(locked))
            rows = [{"user_id": each, "collection": name, "state": "due"} for each in ids]
            if rows:
                await upsert(session, IndexState, rows, key=("user_id", "collection"))
            due = select(IndexState.user_id, IndexState.collection).where(
                (IndexState.collection == name) | chosen, IndexState.state == "due"
            )
            return [(user_id, each) for user_id, each in await session.execute(due)]

    async def place_to_search(self, user_id: UUID) -> tuple[VectorIndex, Placement]:
        """Where a user's texts are found at this moment."""
        place = await self._place(user_id)
        if place.searched not in {self.current.name, *self._opened}:
            await self.open(place.searched)
            place = await self._place(user_id)  # it may have been lost
        return await self.open(place.searched), place

    async def _place(self, user_id: UUID) -> Placement:
        at = time.monotonic()
        kept = self._searched.get(user_id)
        if kept is not None and at - kept[0] <= STATE_SECONDS:
            return kept[1]
        async with self._database.read() as session:
            place = await self.placement(session, user_id)
        if len(self._searched) > _MOST_KEPT:
            self._searched.clear()
        # Another process may be the one that moves the texts: it does not say when it is done.
        if not place.is_moving and at > self._expected.get(user_id, 0.0):
            self._expected.pop(user_id, None)
            self._searched[user_id] = at, place
        return place

    def expect_move(self, user_id: UUID) -> None:
        """A job of some process is about to move a user's texts: remember no place for now."""
        self._searched.pop(user_id, None)
        if len(self._expected) > _MOST_KEPT:
            self._expected.clear()
        self._expected[user_id] = time.monotonic() + EXPECTED_SECONDS

    async def places_to_write(
        self, session: AsyncSession, user_id: UUID
    ) -> tuple[Placement, list[VectorIndex]]:
        """Where what is new of a user's goes: where it belongs first."""
        place = await self.placement(session, user_id)
        names = dict.fromkeys([place.target, place.searched])
        return place, [await self.open(name) for name in names]

    async def choose(
        self, session: AsyncSession, user_id: UUID, collection: str, of: tuple[bytes, int | None]
    ) -> None:
        """Have a user's texts belong to a collection: they have to move. `of`: see `model_in`."""
        mine = update(IndexState).where(IndexState.user_id == user_id)
        await session.execute(mine.values(is_chosen=False))
        row = {
            "user_id": user_id,
            "collection": collection,
            "state": "due",
            "model": of[0],
            "vector_length": of[1],
            "is_chosen": True,
        }
        changed = ("state", "model", "vector_length", "is_chosen")
        await upsert(session, IndexState, row, key=("user_id", "collection"), update=changed)
        self._searched.pop(user_id, None)

    async def leave(self, session: AsyncSession, user_id: UUID) -> None:
        """Have a user's texts belong to the current collection, like everybody's."""
        mine = update(IndexState).where(IndexState.user_id == user_id)
        await session.execute(mine.values(is_chosen=False))
        row = {"user_id": user_id, "collection": self.current.name, "state": "due"}
        key = ("user_id", "collection")
        await upsert(session, IndexState, row, key=key, update=("state",))
        self._searched.pop(user_id, None)

    async def model_in(
        self, session: AsyncSession, user_id: UUID, collection: str
    ) -> tuple[bytes | None, int | None]:
        """Of which model of the user's own the vectors in a collection are, and their length."""
        found = (await session.execute(_STATES, {"owner_id": user_id})).all()
        here = (each for each in found if each.collection == collection)
        return next(((each.model, each.vector_length) for each in here), (None, None))

    async def mark_model(self, session: AsyncSession, user_id: UUID, model: bytes) -> None:
        """Note of which model of the user's own the vectors are, where the texts belong."""
        mine = update(IndexState).where(
            IndexState.user_id == user_id, IndexState.is_chosen.is_(True)
        )
        await session.execute(mine.values(model=model))
        self._searched.pop(user_id, None)

    async def mark_ready(self, session: AsyncSession, user_id: UUID, collection: str) -> None:
        """All texts of a user's are in a collection: from now on it is searched.

        Does nothing where they belong to another one by now.
        """
        if (await self.placement(session, user_id)).target != collection:
            return
        await self._note_ready(session, user_id, collection, update=("state", "compared_at"))
        await session.execute(
            delete(IndexState).where(
                IndexState.user_id == user_id, IndexState.collection != collection
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
            await self._note_ready(session, user_id, self.current.name)

    async def mark_due(self, session: AsyncSession) -> list[tuple[UUID, str]]:
        """Have everything of all users indexed anew; gives back whose, and where."""
        belongs = (IndexState.collection == self.current.name) | IndexState.is_chosen.is_(True)
        change = update(IndexState).where(belongs).values(state="due")
        columns = IndexState.is_chosen, IndexState.user_id, IndexState.collection
        due = sorted((await session.execute(change.returning(*columns))).all())
        return list({user_id: name for _, user_id, name in due}.items())

    async def users_of(self, name: str) -> set[UUID]:
        """Whose texts are found in a collection: who moved on is found there no more."""
        query = select(IndexState.user_id).where(IndexState.collection == name)
        async with self._database.read() as session:
            return set(await session.scalars(query))

    async def moved_away(self) -> set[UUID]:
        """Who has moved from the current collection to that of a model of their own."""
        here = exists().where(
            _HERE.user_id == IndexState.user_id, _HERE.collection == self.current.name
        )
        query = select(IndexState.user_id).where(IndexState.is_chosen.is_(True), ~here)
        async with self._database.read() as session:
            return set(await session.scalars(query))

    async def all_indexes(self, more: Sequence[str] = ()) -> list[VectorIndex]:
        """Every collection that is known: what is forgotten is forgotten in all of them."""
        return [await self.open(name) for name in await self.all_names(more)]

    async def all_names(self, more: Sequence[str] = ()) -> list[str]:
        """Those of the collections that are known.

        Of those of users' own models others may know more: what `more` names, where the database
        says that users are, and what the index has. Raises `IndexUnavailableError`.
        """
        async with self._database.read() as session:
            named = set(await session.scalars(select(IndexState.collection).distinct()))
        named = {*filter(is_own, {*named, *more, *await self._lister()})}
        return sorted(self._known | {self.current.name} | named)

    async def open(self, name: str) -> VectorIndex:
        """The collection of that name, made where it is missing.

        One of users' own models has to answer the first time: where it was lost, and made just
        now, whoever was in it is indexed again. Call it outside of any writing transaction.

        Raises `IndexUnavailableError`.
        """
        if name == self.current.name:
            return self.current
        if name in self._opened:
            return self._others[name]
        # One at a time: a folder that is open is not opened twice.
        async with self._opening:
            index = self._others.get(name)
            if index is None:
                index = self._others[name] = await self._opener(name, dimension_of(name))
            if is_own(name) and name not in self._opened:
                await index.ping()
                if index.is_new:
                    await self._fill_again(name)
                self._known.add(name)
            self._opened.add(name)
            return index

    async def _fill_again(self, name: str) -> None:
        here = update(IndexState).where(IndexState.collection == name).values(state="due")
        async with self._database.write() as session:
            lost = list(await session.scalars(here.returning(IndexState.user_id)))
            for user_id in lost:
                await reindex_later(session, user_id, name)
        self._searched.clear()
        if lost:
            log.warning("memory.collection_lost", collection=name, count=len(lost))

    def go_over(self, index: VectorIndex) -> None:
        """Have a collection that is open be the current one: another model is in use from now on.

        Users are moved by what `prepare` says then.
        """
        self._others[self.current.name] = self.current
        self._opened.add(self.current.name)
        self._others.pop(index.name, None)
        self._opened.discard(index.name)
        self._known.add(index.name)
        self._searched.clear()
        self._placed.clear()
        self.current = index

    async def aclose(self) -> None:
        """Close all of them."""
        for index in (self.current, *self._others.values()):
            await index.aclose()

    async def placement(self, session: AsyncSession, user_id: UUID) -> Placement:
        """Where a user's texts belong, and where they are found until they are all there.

        Of others that is the newest one that is there.
        """
        states = (await session.execute(_STATES, {"owner_id": user_id})).all()
        chosen = next((each for each in states if each.is_chosen), None)
        target = chosen.collection if chosen else self.current.name
        here = next((each for each in states if each.collection == target), None)
        if any(each.state == "ready" for each in states):
            if len(self._placed) > _MOST_KEPT:
                self._placed.clear()
            self._placed.add(user_id)
        searched = target
        if here is None or here.state == "due":
            ready = [each.collection for each in states if each.state == "ready"]
            there = (name for name in ready if is_own(name) or name in self._known)
            searched = next(there, target)
        return Placement(
            target=target,
            searched=searched,
            is_chosen=chosen is not None,
            model=chosen.model if chosen else None,
            length=chosen.vector_length if chosen else None,
            is_moving=searched != target or (chosen is not None and chosen.state == "due"),
        )

    async def _note_ready(
        self,
        session: AsyncSession,
        user_id: UUID,
        collection: str,
        *,
        update: tuple[str, ...] = (),
    ) -> None:
        row = {
            "user_id": user_id,
            "collection": collection,
            "state": "ready",
            "compared_at": now() if update else None,
        }
        await upsert(session, IndexState, row, key=("user_id", "collection"), update=update)
