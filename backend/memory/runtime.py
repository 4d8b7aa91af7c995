"""The services of memory in one process: embedder, index, indexer, reconciler and search."""

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
from backend.memory.embedding.cache import CachedEmbedder
from backend.memory.embedding.protocol import DocumentEmbedder, EmbedderError
from backend.memory.embedding.registry import (
    OwnModel,
    OwnModels,
    add_cache,
    allows_provider,
    build_cached_embedder,
    build_embedder,
    find_local_model,
)
from backend.memory.index.edge import list_collections, open_edge
from backend.memory.index.protocol import IndexUnavailableError
from backend.memory.indexing.collections import (
    Collections,
    Opener,
    Placement,
    UserEmbedders,
    build_collection_name,
)
from backend.memory.indexing.documents import Blinders, PointMaker
from backend.memory.indexing.indexer import Indexer, Reconciler
from backend.memory.indexing.outbox import IndexOutbox, KeyHolder
from backend.memory.indexing.sources import Source
from backend.memory.models import IndexState
from backend.memory.search.search import MemorySearch
from backend.settings import Settings
from backend.vault.sealing import Sealer

log = get_logger(__name__)

START_SECONDS = 10.0
"""Time that the start waits for a provider's embedding model. It can be switched to later."""

ModelChoice = ProviderEmbedding | tuple[str, Path] | None
"""An administrator's choice: the embedding model of a provider, or else a downloaded model."""


@dataclass(slots=True, kw_only=True)
class MemoryRuntime(UserSignedOut):
    """The services of memory in one process. `chosen` is the administrator's choice in use."""

    settings: Settings
    database: Database
    user_models: UserModels
    outbox: IndexOutbox
    collections: Collections
    indexer: Indexer
    reconciler: Reconciler
    search: MemorySearch
    blinders: Blinders
    own: OwnModels
    embedders: UserEmbedders
    embedder: CachedEmbedder | None
    chosen: ModelChoice
    is_prepared: bool = False
    switching: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def kinds(self) -> dict[str, JobKind]:
        indexing = {name: self._after_follow(kind) for name, kind in self.indexer.kinds.items()}
        return {**indexing, **self.reconciler.kinds}

    async def follow_model(self) -> None:
        """Switch to the model that an administrator has chosen since, in this or another process.

        If the choice of a provider was removed, the settings decide. A model that fails is not
        used; the next call tries it again. Search uses words alone until a user's texts have moved.
        """
        async with self.switching:
            chosen = await _load_choice(self.settings, self.database, self.user_models)
            was_shared = isinstance(self.chosen, ProviderEmbedding)
            if chosen == self.chosen or (chosen is None and not was_shared):
                return
            try:
                await self._switch_model(chosen)
            except (EmbedderError, IndexUnavailableError) as error:
                log.warning("memory.model_not_used", problem=error.slug, exc_info=error)
                return
        await self.prepare()

    async def _switch_model(self, chosen: ModelChoice) -> None:
        shared = chosen if isinstance(chosen, ProviderEmbedding) else None
        embedder = build_embedder(self.settings, shared)
        if embedder is not None:
            try:
                # This loads the model, because the first search has no time for it.
                await embedder.embed(["A line to embed."], "query")
            except EmbedderError:
                await embedder.aclose()
                raise
        spec = embedder.spec if embedder else None
        index = await self.collections.open(build_collection_name(spec))
        before = self.embedder
        self.embedder = add_cache(embedder, self.settings, self.database) if embedder else None
        # Nothing is awaited here, so that no other task sees half of the change.
        self.embedders.usual = self.embedder
        self.collections.switch_index(index)
        self.chosen, self.is_prepared = chosen, False
        log.info("memory.model_in_use", model=spec.model if spec else None)
        if before is not None:
            await before.aclose()

    def _after_follow(self, kind: JobKind) -> JobKind:
        async def handle(job: RunningJob) -> None:
            await self.follow_model()
            await kind.handler(job)

        return replace(kind, handler=handle)

    async def prepare(self) -> None:
        """Queue missing index jobs and the nightly comparison between SQL and the index.

        Jobs that need a user's key wait until the user signs in. The call does nothing if it has
        succeeded before, or while the index does not respond. In the second case, call it again.
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
        """Queue the move of a user's texts to the collection of the account's embedding model."""
        await self.outbox.follow(session, holder)
        self.collections.expect_move(holder.sealer.user_id)

    async def own_model(self, sealer: Sealer) -> tuple[Placement, OwnModel | None]:
        """Return the placement of a user's texts and the account's own embedding model, if any."""
        async with self.database.read() as session:
            place = await self.collections.placement(session, sealer.user_id)
        return place, await self.embedders.load_own(sealer, place)

    async def get_embedder(self, sealer: Sealer) -> DocumentEmbedder | None:
        """Return the model that the user's texts are embedded with; None if there is none."""
        _, place = await self.collections.place_to_search(sealer.user_id)
        return (await self.embedders.find(sealer, place)).embedder

    def user_signed_out(self, user_id: UUID) -> None:
        """Delete everything of the user that is cached in plain text."""
        self.blinders.forget(user_id)
        self.own.user_signed_out(user_id)
        self.search.user_signed_out(user_id)
        if self.embedder is not None:
            self.embedder.forget(user_id)
        # `re` caches the last patterns, and they contain names of the user's stories.
        re.purge()

    async def aclose(self) -> None:
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
    """Open the index and build the services of memory.

    Raises:
        IndexUnavailableError: Another process has the folder of Qdrant Edge open.
        EmbedderError: The length of the embedding model's vectors is unknown.
    """
    chosen = await _load_choice(settings, database, user_models)
    opener, known = await _prepare_index(settings, database)
    embedder = await _open_provider_embedder(settings, database, chosen)
    if embedder is None:
        chosen = find_local_model(settings)
        embedder = build_cached_embedder(settings, database)
    spec = await embedder.ready() if embedder else None
    name = build_collection_name(spec)
    current = await opener(name, spec.dimension if spec else None)
    collections = Collections(
        database,
        current,
        opener,
        known=known | {name},
        lister=partial(list_index_collections, settings),
    )
    blinders = Blinders()
    own = OwnModels(database, user_models, settings)
    embedders = UserEmbedders(embedder, own)
    indexer = Indexer(
        database,
        collections,
        sources,
        embedders=embedders,
        maker=PointMaker(blinders=blinders, pool=pool),
        outbox=outbox,
        pool=pool,
    )
    search = MemorySearch(collections, sources, embedders=embedders, blinders=blinders, pool=pool)
    return MemoryRuntime(
        settings=settings,
        database=database,
        user_models=user_models,
        outbox=outbox,
        collections=collections,
        indexer=indexer,
        reconciler=Reconciler(database, queue, outbox, collections, sources, blinders=blinders),
        search=search,
        blinders=blinders,
        own=own,
        embedders=embedders,
        embedder=embedder,
        chosen=chosen,
    )


async def _load_choice(
    settings: Settings, database: Database, user_models: UserModels
) -> ModelChoice:
    if allows_provider(settings) and (shared := await user_models.find_shared_embedding(database)):
        return shared
    return find_local_model(settings)


async def _open_provider_embedder(
    settings: Settings, database: Database, chosen: ModelChoice
) -> CachedEmbedder | None:
    """Return the chosen provider's embedder; None if none is chosen or its server fails."""
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


async def _prepare_index(settings: Settings, database: Database) -> tuple[Opener, set[str]]:
    """Return a function that opens collections, and the names of existing ones."""
    if settings.qdrant_url:
        from backend.memory.index.server import open_server  # noqa: PLC0415  # seldom needed

        async with database.read() as session:
            known = set(await session.scalars(select(IndexState.collection).distinct()))
        return partial(open_server, settings), known
    return partial(open_edge, index_folder(settings)), list_collections(index_folder(settings))


async def list_index_collections(settings: Settings) -> set[str]:
    """Return the names of the collections in the index. Raises `IndexUnavailableError`."""
    if settings.qdrant_url:
        from backend.memory.index.server import list_server_collections  # noqa: PLC0415  # seldom needed

        return await list_server_collections(settings)
    return list_collections(index_folder(settings))


def index_folder(settings: Settings) -> Path:
    return settings.data_dir / "index"
