"""Users' texts on their way to the collection of an embedding model of their own, and back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.engine import Database
from backend.memory.embedding.own_models import OwnModels
from backend.memory.embedding.protocol import EmbedderError
from backend.memory.indexing.collections import Collections, Placement, collection_name
from backend.memory.indexing.points import PointMaker, Vectors
from backend.memory.models import GONE
from backend.vault.sealing import Sealer

Write = Callable[[], AbstractAsyncContextManager[AsyncSession]]
"""A transaction: a step of the job that moves, or one of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Where a user's texts have to be.

    Attributes:
        place: The collection, and where the texts are until then.
        vectors: What gives points their vectors there.
        mark: Of the user's own model; None for the installation's.
        is_anew: Whether points that are there already have to be made again.
    """

    place: Placement
    vectors: Vectors
    mark: bytes | None = None
    is_anew: bool = False


class ModelMoves:
    """Knows which model the vectors of a user's texts are of, and what follows from another one."""

    def __init__(
        self, database: Database, collections: Collections, own: OwnModels, *, maker: PointMaker
    ) -> None:
        self._database = database
        self._collections = collections
        self._own = own
        self._maker = maker

    async def vectors(self, sealer: Sealer, place: Placement) -> tuple[Vectors, bool]:
        """What gives new points their vectors where they belong; whether `follow` has to come.

        Where the account names another model by now, they are found by words until it did.
        """
        if not place.is_chosen:
            return Vectors(self._maker.embedder), False
        own = await self._own.of(sealer, place)
        if own is not None and own.mark == place.model:
            return Vectors(own.embedder), False
        return Vectors(None, are_missed=True), True

    async def is_elsewhere(self, sealer: Sealer, place: Placement) -> bool:
        """Whether a user's texts belong elsewhere by now, or their vectors are of another model."""
        by_now = await self._placement(sealer)
        return replace(by_now, is_moving=place.is_moving) != place

    async def follow(self, sealer: Sealer, write: Write) -> Move:
        """Have a user's texts belong where the account's settings say.

        A model that does not answer is not gone over to. Where its vectors are already, those that
        are kept come from the cache, and the rest is found by words until it answers.

        Raises `EmbedderError` while it is not known how long the vectors of another model are, and
        `IndexUnavailableError`; where the texts belong does not change then.
        """
        user_id, collections = sealer.user_id, self._collections
        place, own = await self._placement(sealer), await self._own.of(sealer)
        if own is None:
            if place.is_chosen:
                async with write() as session:
                    await collections.leave(session, user_id)
            return Move(place=await self._placement(sealer), vectors=Vectors(self._maker.embedder))
        if own.embedder is None:
            if not place.is_chosen:
                return Move(place=place, vectors=Vectors(self._maker.embedder))
            if place.model != GONE:
                async with write() as session:
                    await collections.mark_model(session, user_id, GONE)
            return Move(place=await self._placement(sealer), vectors=Vectors(None), mark=GONE)
        try:
            spec = await own.embedder.ready()
        except EmbedderError:
            if not place.is_chosen or own.mark != place.model:
                raise
            vectors, _ = await self.vectors(sealer, place)
            return Move(place=place, vectors=vectors, mark=own.mark)
        vectors = Vectors(own.embedder)
        name, length = collection_name(spec), spec.length
        there = place.target, place.model, place.length
        if place.is_chosen and (name, own.mark, length) == there:
            return Move(place=place, vectors=vectors, mark=own.mark)
        index = await collections.open(name)
        async with self._database.read() as session:
            is_other = await collections.model_in(session, user_id, name) != (own.mark, length)
        is_anew = is_other and name == place.searched
        if is_other and not is_anew:
            await index.delete_owner(user_id)  # leftovers of a model that was given up
        async with write() as session:
            # Where they are searched meanwhile the model is noted at the end, and till then none.
            mark = GONE if is_anew else own.mark
            await collections.choose(session, user_id, name, (mark, length))
        place = await self._placement(sealer)
        return Move(place=place, vectors=vectors, mark=own.mark, is_anew=is_anew)

    async def arrived(self, session: AsyncSession, sealer: Sealer, move: Move) -> None:
        """All texts of a user's are where they belong: from now on they are searched there."""
        now = await self._collections.placement(session, sealer.user_id)
        if now.target != move.place.target:
            return
        if now.is_chosen and move.mark is not None:
            await self._collections.mark_model(session, sealer.user_id, move.mark)
        await self._collections.mark_ready(session, sealer.user_id, now.target)

    async def _placement(self, sealer: Sealer) -> Placement:
        async with self._database.read() as session:
            return await self._collections.placement(session, sealer.user_id)
