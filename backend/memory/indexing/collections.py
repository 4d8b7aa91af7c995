"""The collections of the index, and the moves of users' texts between them.

Each embedding model has a collection. A user's texts belong to that of the configured model, or to
that of the account's own model. If the model changes, they move in the background. During the move,
search uses the previous collection, and changes are written to both.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import bindparam, delete, exists, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.accounts.models import User
from backend.core.logs import get_logger
from backend.database.base import now, upsert
from backend.database.engine import Database
from backend.memory.embedding.protocol import (
    OWN_PREFIX,
    EmbedderError,
    EmbedderSpec,
    TextEmbedder,
)
from backend.memory.embedding.registry import UNKNOWN_SIZES, OwnModel, OwnModels, VectorSizes
from backend.memory.index.protocol import IndexUnavailableError, VectorIndex
from backend.memory.indexing.documents import VectorSource
from backend.memory.indexing.outbox import reindex_later
from backend.memory.models import GONE, IndexState
from backend.vault.sealing import Sealer

_OWN_NAME = re.compile(rf"{OWN_PREFIX}-[0-9]+-v[0-9]+")

FORMAT = 1
"""Increase it if the documents of rows change: all texts then move to new collections."""


def build_collection_name(spec: EmbedderSpec | None) -> str:
    """Return the name of a model's collection; without a model, of the one with terms alone."""
    return f"{spec.collection if spec else 'terms'}-v{FORMAT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The collections of a user's texts.

    Attributes:
        target: The collection that they belong to.
        searched: The collection that search uses. It differs from the target during a move.
        model: The account's own model of the vectors in the target (see `IndexState.model`); None
            for the installation's model.
        length: Length of that model's vectors before padding; None if it is unknown.
        is_moving: True during a move: vectors of the target's model find only a part or nothing.
    """

    target: str
    searched: str
    model: bytes | None = None
    length: int | None = None
    is_moving: bool = False

    @property
    def is_chosen(self) -> bool:
        """True if the target belongs to the account's own model."""
        return self.model is not None

    @property
    def sizes(self) -> VectorSizes:
        return VectorSizes(parse_dimension(self.target), self.length)


def is_own(name: str) -> bool:
    """True if a collection is for users' own models."""
    return _OWN_NAME.fullmatch(name) is not None


def parse_dimension(name: str) -> int | None:
    """Return the dimension in a collection's name; None for a collection without vectors."""
    *_, dimension, _ = f"-{name}".rsplit("-", 2)
    return int(dimension) if dimension.isdigit() else None


log = get_logger(__name__)

PLACEMENT_SECONDS = 15.0
EXPECTED_MOVE_SECONDS = 60.0
_MAX_CACHED_USERS = 10_000

Opener = Callable[[str, int | None], Awaitable[VectorIndex]]
"""Opens or creates a collection by name and dimension (None for terms alone)."""

Lister = Callable[[], Awaitable[set[str]]]


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
    """The collection of the configured model, and other collections with users' texts."""

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
        """Mark users who must be indexed. Return them with their collections.

        If the current collection is new, these are all of its users; otherwise users who joined
        before it existed. Users with their own models are included until they are ready. If such a
        collection does not open, only its users are affected.
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
            # The lock prevents deletions of users. The order prevents deadlocks between processes
            # that start at the same time.
            unknown = select(User.id).where(~is_known, User.deleted_at.is_(None))
            locked = unknown.order_by(User.id).with_for_update(key_share=True, read=True)
            ids = list(await session.scalars(locked))
            rows = [{"user_id": each, "collection": name, "state": "due"} for each in ids]
            if rows:
                await upsert(session, IndexState, rows, key=("user_id", "collection"))
            due = select(IndexState.user_id, IndexState.collection).where(
                (IndexState.collection == name) | chosen, IndexState.state == "due"
            )
            return [(user_id, each) for user_id, each in await session.execute(due)]

    async def place_to_search(self, user_id: UUID) -> tuple[VectorIndex, Placement]:
        """Return the collection in which search finds a user's texts, and their placement."""
        place = await self._place(user_id)
        if place.searched not in {self.current.name, *self._opened}:
            await self.open(place.searched)
            place = await self._place(user_id)  # opening it may have reported it as lost
        return await self.open(place.searched), place

    async def _place(self, user_id: UUID) -> Placement:
        at = time.monotonic()
        kept = self._searched.get(user_id)
        if kept is not None and at - kept[0] <= PLACEMENT_SECONDS:
            return kept[1]
        async with self._database.read() as session:
            place = await self.placement(session, user_id)
        if len(self._searched) > _MAX_CACHED_USERS:
            self._searched.clear()
        # A moving placement is not cached, because another process may complete the move.
        if not place.is_moving and at > self._expected.get(user_id, 0.0):
            self._expected.pop(user_id, None)
            self._searched[user_id] = at, place
        return place

    def expect_move(self, user_id: UUID) -> None:
        """Do not cache the user's placement for a while, because a job is about to move texts."""
        self._searched.pop(user_id, None)
        if len(self._expected) > _MAX_CACHED_USERS:
            self._expected.clear()
        self._expected[user_id] = time.monotonic() + EXPECTED_MOVE_SECONDS

    async def places_to_write(
        self, session: AsyncSession, user_id: UUID
    ) -> tuple[Placement, list[VectorIndex]]:
        """Return the collections that a user's changes are written to, the target first."""
        place = await self.placement(session, user_id)
        names = dict.fromkeys([place.target, place.searched])
        return place, [await self.open(name) for name in names]

    async def set_target(
        self,
        session: AsyncSession,
        user_id: UUID,
        collection: str | None = None,
        model: bytes | None = None,
        length: int | None = None,
    ) -> None:
        """Make a collection of the account's own model the target; None for the current one."""
        mine = update(IndexState).where(IndexState.user_id == user_id)
        await session.execute(mine.values(is_chosen=False))
        row = {
            "user_id": user_id,
            "collection": collection or self.current.name,
            "state": "due",
            "model": model,
            "vector_length": length,
            "is_chosen": collection is not None,
        }
        changed = ("state", "model", "vector_length", "is_chosen")
        await upsert(session, IndexState, row, key=("user_id", "collection"), update=changed)
        self._searched.pop(user_id, None)

    async def load_model(
        self, session: AsyncSession, user_id: UUID, collection: str
    ) -> tuple[bytes | None, int | None]:
        """Return the user's model of the vectors in a collection, and their length."""
        found = (await session.execute(_STATES, {"owner_id": user_id})).all()
        here = (each for each in found if each.collection == collection)
        return next(((each.model, each.vector_length) for each in here), (None, None))

    async def mark_model(self, session: AsyncSession, user_id: UUID, model: bytes) -> None:
        """Record the user's model of the vectors in the target."""
        mine = update(IndexState).where(
            IndexState.user_id == user_id, IndexState.is_chosen.is_(True)
        )
        await session.execute(mine.values(model=model))
        self._searched.pop(user_id, None)

    async def mark_ready(self, session: AsyncSession, user_id: UUID, collection: str) -> None:
        """Mark a collection as complete for search, unless it is no longer the target."""
        if (await self.placement(session, user_id)).target != collection:
            return
        await self._record_ready(session, user_id, collection, update=("state", "compared_at"))
        await session.execute(
            delete(IndexState).where(
                IndexState.user_id == user_id, IndexState.collection != collection
            )
        )
        self._searched.pop(user_id, None)

    def is_placed(self, user_id: UUID) -> bool:
        """True if this process knows that the user is in some collection."""
        return user_id in self._placed

    async def mark_ready_if_new(self, session: AsyncSession, user_id: UUID) -> None:
        if user_id in self._placed:
            return
        known = select(IndexState.id).where(IndexState.user_id == user_id).limit(1)
        if await session.scalar(known) is None:
            await self._record_ready(session, user_id, self.current.name)

    async def mark_due(self, session: AsyncSession) -> list[tuple[UUID, str]]:
        """Mark all users as due for indexing. Return them with their collections."""
        belongs = (IndexState.collection == self.current.name) | IndexState.is_chosen.is_(True)
        change = update(IndexState).where(belongs).values(state="due")
        columns = IndexState.is_chosen, IndexState.user_id, IndexState.collection
        due = sorted((await session.execute(change.returning(*columns))).all())
        return list({user_id: name for _, user_id, name in due}.items())

    async def load_users(self, name: str) -> set[UUID]:
        query = select(IndexState.user_id).where(IndexState.collection == name)
        async with self._database.read() as session:
            return set(await session.scalars(query))

    async def load_moved_users(self) -> set[UUID]:
        """Return users who have moved from the current collection to that of their own model."""
        here = exists().where(
            _HERE.user_id == IndexState.user_id, _HERE.collection == self.current.name
        )
        query = select(IndexState.user_id).where(IndexState.is_chosen.is_(True), ~here)
        async with self._database.read() as session:
            return set(await session.scalars(query))

    async def all_indexes(self, more: Sequence[str] = ()) -> list[VectorIndex]:
        """Open all known collections. Deletions must reach all of them."""
        return [await self.open(name) for name in await self.all_names(more)]

    async def all_names(self, more: Sequence[str] = ()) -> list[str]:
        """Return the names of all known collections.

        Those for users' own models also come from `more`, the database and the index. Raises
        `IndexUnavailableError`.
        """
        async with self._database.read() as session:
            named = set(await session.scalars(select(IndexState.collection).distinct()))
        named = {*filter(is_own, {*named, *more, *await self._lister()})}
        return sorted(self._known | {self.current.name} | named)

    async def open(self, name: str) -> VectorIndex:
        """Open or create the collection of that name.

        A collection for users' own models must respond when it is first opened. If it was lost and
        created again, its users are indexed again. Call it outside writing transactions.

        Raises `IndexUnavailableError`.
        """
        if name == self.current.name:
            return self.current
        if name in self._opened:
            return self._others[name]
        # The lock prevents opening a folder twice.
        async with self._opening:
            index = self._others.get(name)
            if index is None:
                index = self._others[name] = await self._opener(name, parse_dimension(name))
            if is_own(name) and name not in self._opened:
                await index.ping()
                if index.is_new:
                    await self._reindex_users(name)
                self._known.add(name)
            self._opened.add(name)
            return index

    async def _reindex_users(self, name: str) -> None:
        here = update(IndexState).where(IndexState.collection == name).values(state="due")
        async with self._database.write() as session:
            lost = list(await session.scalars(here.returning(IndexState.user_id)))
            for user_id in lost:
                await reindex_later(session, user_id, name)
        self._searched.clear()
        if lost:
            log.warning("memory.collection_lost", collection=name, count=len(lost))

    def switch_index(self, index: VectorIndex) -> None:
        """Make an open collection the current one. `prepare` returns the users who must move."""
        self._others[self.current.name] = self.current
        self._opened.add(self.current.name)
        self._others.pop(index.name, None)
        self._opened.discard(index.name)
        self._known.add(index.name)
        self._searched.clear()
        self._placed.clear()
        self.current = index

    async def aclose(self) -> None:
        for index in (self.current, *self._others.values()):
            await index.aclose()

    async def placement(self, session: AsyncSession, user_id: UUID) -> Placement:
        """Load the placement. During a move, search uses the latest ready collection."""
        states = (await session.execute(_STATES, {"owner_id": user_id})).all()
        chosen = next((each for each in states if each.is_chosen), None)
        target = chosen.collection if chosen else self.current.name
        here = next((each for each in states if each.collection == target), None)
        if any(each.state == "ready" for each in states):
            if len(self._placed) > _MAX_CACHED_USERS:
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
            model=chosen.model if chosen else None,
            length=chosen.vector_length if chosen else None,
            is_moving=searched != target or (chosen is not None and chosen.state == "due"),
        )

    async def _record_ready(
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


class UserEmbedders:
    """The embedders of users' texts: the installation's, or the one that an account has chosen."""

    def __init__(self, usual: TextEmbedder | None, own: OwnModels | None = None) -> None:
        self.usual = usual
        self._own = own

    async def load_own(self, sealer: Sealer, place: Placement | None = None) -> OwnModel | None:
        """Return the account's own model. Without a `place`, its vectors' length is requested."""
        sizes = place.sizes if place is not None and place.is_chosen else UNKNOWN_SIZES
        return await self._own.load(sealer, sizes) if self._own is not None else None

    async def find(self, sealer: Sealer, place: Placement) -> VectorSource:
        """Return the source of the vectors in the target.

        They are missed if the account has chosen another model since: `ModelMoves.follow` is due.
        """
        if not place.is_chosen:
            return VectorSource(self.usual)
        own = await self.load_own(sealer, place)
        if own is not None and own.mark == place.model:
            return VectorSource(own.embedder)
        return VectorSource(None, are_missed=True)


Write = Callable[[], AbstractAsyncContextManager[AsyncSession]]
"""Opens a transaction: a step of a job, or a separate one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A move of texts to the target of `place`, with the source of its vectors.

    `new_model` is the model that existing points in the target must be rebuilt with. It is recorded
    at the end, because search uses these points until then.
    """

    place: Placement
    vectors: VectorSource
    new_model: bytes | None = None

    @property
    def is_full(self) -> bool:
        return self.new_model is not None


class ModelMoves:
    """Moves a user's texts to the collection of the account's own model, and back."""

    def __init__(
        self, database: Database, collections: Collections, embedders: UserEmbedders
    ) -> None:
        self._database = database
        self._collections = collections
        self._embedders = embedders

    async def has_changed(self, sealer: Sealer, place: Placement) -> bool:
        """True if the target of a user's texts, or the model of their vectors, has changed."""
        by_now = await self._placement(sealer)
        return replace(by_now, is_moving=place.is_moving) != place

    async def follow(self, sealer: Sealer, write: Write) -> Move:
        """Make the collection of the account's embedding model the target of a user's texts.

        A model that does not respond is not used. If the target already has its vectors, cached
        vectors are used, and other points have terms alone until it responds.

        Raises `EmbedderError` if the length of another model's vectors is unknown, and
        `IndexUnavailableError`. In both cases the target does not change.
        """
        user_id, collections = sealer.user_id, self._collections
        place, own = await self._placement(sealer), await self._embedders.load_own(sealer)
        if own is None or own.embedder is None:
            if own is None and place.is_chosen:
                async with write() as session:
                    await collections.set_target(session, user_id)
            elif place.model not in {None, GONE}:
                async with write() as session:
                    await collections.mark_model(session, user_id, GONE)
            place = await self._placement(sealer)
            return Move(place=place, vectors=await self._embedders.find(sealer, place))
        try:
            spec = await own.embedder.ready()
        except EmbedderError:
            if own.mark != place.model:
                raise
            return Move(place=place, vectors=await self._embedders.find(sealer, place))
        vectors = VectorSource(own.embedder)
        name, length = build_collection_name(spec), spec.length
        if (name, own.mark, length) == (place.target, place.model, place.length):
            return Move(place=place, vectors=vectors)
        index = await collections.open(name)
        async with self._database.read() as session:
            is_other = await collections.load_model(session, user_id, name) != (own.mark, length)
        is_full = is_other and name == place.searched
        if is_other and not is_full:
            await index.delete_owner(user_id)  # leftovers of a previous model
        async with write() as session:
            mark = GONE if is_full else own.mark
            await collections.set_target(session, user_id, name, mark, length)
        place = await self._placement(sealer)
        return Move(place=place, vectors=vectors, new_model=own.mark if is_full else None)

    async def complete(self, session: AsyncSession, sealer: Sealer, move: Move) -> None:
        """Complete a move: search uses the target from now on."""
        now = await self._collections.placement(session, sealer.user_id)
        if now.target != move.place.target:
            return
        if now.is_chosen and move.new_model is not None:
            await self._collections.mark_model(session, sealer.user_id, move.new_model)
        await self._collections.mark_ready(session, sealer.user_id, now.target)

    async def _placement(self, sealer: Sealer) -> Placement:
        async with self._database.read() as session:
            return await self._collections.placement(session, sealer.user_id)
