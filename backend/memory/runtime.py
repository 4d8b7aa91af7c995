"""Memory, put together: the index, what fills it, and what searches it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.events import UserSignedOut
from backend.core.cpu_pool import CpuPool
from backend.core.logs import get_logger
from backend.database.engine import Database
from backend.jobs.queue import JobQueue
from backend.jobs.running import JobKind, RunningJob
from backend.llm.user_models import ProviderEmbedding, UserModels
from backend.memory.embedding.cached import CachedEmbedder
from backend.memory.embedding.own_models import OwnModel, OwnModels
from backend.memory.embedding.protocol import EmbedderError
from backend.memory.embedding.registry import (
    build_cached_embedder,
    build_embedder,
    fetched_model,
    may_be_shared,
    with_cache,
)
from backend.memory.index.edge import folders_in, open_edge
from backend.memory.index.protocol import IndexUnavailableError
from backend.memory.indexing.collections import Collections, Opener, Placement, collection_name
from backend.memory.indexing.indexer import Indexer
from backend.memory.indexing.moves import ModelMoves
from backend.memory.indexing.outbox import IndexOutbox, KeyHolder
from backend.memory.indexing.points import Blinders, DocumentEmbedder, PointMaker
from backend.memory.indexing.reconciler import Reconciler
from backend.memory.indexing.sources import Source
from backend.memory.models import IndexState
from backend.memory.search.search import MemorySearch
from backend.settings import Settings
from backend.vault.sealing import Sealer

log = get_logger(__name__)

START_SECONDS = 10.0
"""How long the start waits for a provider's embedding model: it is gone over to later, too."""

Chosen = ProviderEmbedding | tuple[str, Path] | None
"""What an administrator chose: a provider's embedding model, else the one that was fetched."""


@dataclass(slots=True, kw_only=True)
class MemoryRuntime(UserSignedOut):
    """The parts of memory in one process. `chosen` is the chosen model that is in use."""

    settings: Settings
    database: Database
    user_models: UserModels
    outbox: IndexOutbox
    collections: Collections
    maker: PointMaker
    indexer: Indexer
    reconciler: Reconciler
    search: MemorySearch
    blinders: Blinders
    own: OwnModels
    embedder: CachedEmbedder | None
    chosen: Chosen
    is_prepared: bool = False
    switching: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def kinds(self) -> dict[str, JobKind]:
        """What is done for each kind of job."""
        indexing = {name: self._following(kind) for name, kind in self.indexer.kinds.items()}
        return {**indexing, **self.reconciler.kinds}

    async def follow_model(self) -> None:
        """Go over to the model that was chosen since, whichever process was told so.

        It was fetched, or an administrator named a provider's; where that is taken back, it is what
        the settings come to. A model that does not work is not gone over to; it is tried again the
        next time. Search goes on by words until a user's texts have moved.
        """
        async with self.switching:
            chosen = await _choice(self.settings, self.database, self.user_models)
            was_shared = isinstance(self.chosen, ProviderEmbedding)
            if chosen == self.chosen or (chosen is None and not was_shared):
                return
            try:
                await self._go_over(chosen)
            except (EmbedderError, IndexUnavailableError) as error:
                log.warning("memory.model_not_used", problem=error.slug, exc_info=error)
                return
        await self.prepare()

    async def _go_over(self, chosen: Chosen) -> None:
        shared = chosen if isinstance(chosen, ProviderEmbedding) else None
        embedder = build_embedder(self.settings, shared)
        if embedder is not None:
            try:
                # It loads now, and not when the first search has no time for it.
                await embedder.embed(["A line to embed."], "query")
            except EmbedderError:
                await embedder.aclose()
                raise
        spec = embedder.spec if embedder else None
        index = await self.collections.open(collection_name(spec))
        before = self.embedder
        self.embedder = with_cache(embedder, self.settings, self.database) if embedder else None
        # All at once: nothing is awaited in between.
        self.maker.embedder = self.search.embedder = self.embedder
        self.collections.go_over(index)
        self.chosen, self.is_prepared = chosen, False
        log.info("memory.model_in_use", model=spec.model if spec else None)
        if before is not None:
            await before.aclose()

    def _following(self, kind: JobKind) -> JobKind:
        """Work on the index, done with the model that is in use when it begins."""

        async def handle(job: RunningJob) -> None:
            await self.follow_model()
            await kind.handler(job)

        return replace(kind, handler=handle)

    async def prepare(self) -> None:
        """Have users indexed that are not yet, and both sides compared.

        Work that needs a user's key waits until the user is here. Once is enough; while the index
        does not answer it does nothing, and has to be called again.
        """
        if self.is_prepared:
            return
        try:
            await self.collections.current.ping()
        except IndexUnavailableError as error:
            log.warning("memory.not_ready", problem=error.slug)
            return
        for user_id, name in await self.collections.prepare():
            async with self.database.write() as session:
                await self.outbox.reindex(session, user_id, name)
        await self.reconciler.schedule()
        self.is_prepared = True

    async def follow_account(self, session: AsyncSession, holder: KeyHolder) -> None:
        """Have all texts of a user's belong where the account's embedding model says."""
        await self.outbox.follow(session, holder)
        self.collections.expect_move(holder.sealer.user_id)

    async def own_model(self, sealer: Sealer) -> tuple[Placement, OwnModel | None]:
        """Where a user's texts belong, and the embedding model that the account names."""
        async with self.database.read() as session:
            place = await self.collections.placement(session, sealer.user_id)
        return place, await self.own.of(sealer, place if place.is_chosen else None)

    async def embedder_of(self, sealer: Sealer) -> DocumentEmbedder | None:
        """What compares a user's texts by meaning: the model that they are embedded by."""
        _, place = await self.collections.place_to_search(sealer.user_id)
        if not place.is_chosen:
            return self.embedder
        own = await self.own.of(sealer, place)
        return own.embedder if own else None

    def user_signed_out(self, user_id: UUID) -> None:
        """Drop what is kept in the clear of a user who leaves."""
        self.blinders.forget(user_id)
        self.own.user_signed_out(user_id)
        self.search.user_signed_out(user_id)
        if self.embedder is not None:
            self.embedder.forget(user_id)
        # Names of a story are looked for with patterns, and `re` keeps the last ones.
        re.purge()

    async def aclose(self) -> None:
        """Close the index, and let go of the embedder."""
        await self.collections.aclose()
        await self.own.aclose()
        if self.embedder is not None:
            await self.embedder.aclose()


async def open_memory(
    settings: Settings,
    database: Database,
    queue: JobQueue,
    outbox: IndexOutbox,
    sources: Sequence[Source],
    pool: CpuPool,
    user_models: UserModels,
) -> MemoryRuntime:
    """Open the index that the settings name.

    Raises:
        IndexUnavailableError: Another process has the folder of Qdrant Edge open.
        EmbedderError: The embedding model does not say how long its vectors are.
    """
    chosen = await _choice(settings, database, user_models)
    opener, known = await _index(settings, database)
    embedder = await _of_provider(settings, database, chosen)
    if embedder is None:
        chosen = fetched_model(settings)
        embedder = build_cached_embedder(settings, database)
    spec = await embedder.ready() if embedder else None
    name = collection_name(spec)
    current = await opener(name, spec.dimension if spec else None)
    collections = Collections(
        database, current, opener, known=known | {name}, lister=partial(collections_of, settings)
    )
    blinders = Blinders()
    maker = PointMaker(embedder, blinders=blinders, pool=pool)
    own = OwnModels(database, user_models, settings)
    moves = ModelMoves(database, collections, own, maker=maker)
    indexer = Indexer(
        database, collections, sources, maker=maker, moves=moves, outbox=outbox, pool=pool
    )
    search = MemorySearch(
        collections, sources, embedder=embedder, blinders=blinders, pool=pool, own=own
    )
    return MemoryRuntime(
        settings=settings,
        database=database,
        user_models=user_models,
        outbox=outbox,
        collections=collections,
        maker=maker,
        indexer=indexer,
        reconciler=Reconciler(database, queue, outbox, collections, sources, blinders=blinders),
        search=search,
        blinders=blinders,
        own=own,
        embedder=embedder,
        chosen=chosen,
    )


async def _choice(settings: Settings, database: Database, user_models: UserModels) -> Chosen:
    if may_be_shared(settings) and (shared := await user_models.find_shared_embedding(database)):
        return shared
    return fetched_model(settings)


async def _of_provider(
    settings: Settings, database: Database, chosen: Chosen
) -> CachedEmbedder | None:
    """A provider's embedder; None where none was chosen, or while its server does not answer."""
    if not isinstance(chosen, ProviderEmbedding):
        return None
    embedder = build_cached_embedder(settings, database, chosen)
    if embedder is not None:
        try:
            async with asyncio.timeout(START_SECONDS):
                await embedder.ready()
        except (EmbedderError, TimeoutError) as error:
            log.warning("memory.model_not_used", exc_info=error)
            await embedder.aclose()
            return None
    return embedder


async def _index(settings: Settings, database: Database) -> tuple[Opener, set[str]]:
    """How collections are opened, and those that there are."""
    if settings.qdrant_url:
        from backend.memory.index.server import open_server  # noqa: PLC0415  # seldom needed

        async with database.read() as session:
            known = set(await session.scalars(select(IndexState.collection).distinct()))
        return partial(open_server, settings), known
    return partial(open_edge, index_folder(settings)), folders_in(index_folder(settings))


async def collections_of(settings: Settings) -> set[str]:
    """The collections that the index has. Raises `IndexUnavailableError`."""
    if settings.qdrant_url:
        from backend.memory.index.server import server_collections  # noqa: PLC0415  # seldom needed

        return await server_collections(settings)
    return folders_in(index_folder(settings))


def index_folder(settings: Settings) -> Path:
    """Where Qdrant Edge keeps its collections."""
    return settings.data_dir / "index"
