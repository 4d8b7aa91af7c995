"""Memory, put together: the index, what fills it, and what searches it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID

from sqlalchemy import select

from backend.accounts.events import UserSignedOut
from backend.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.jobs.queue import JobQueue
from backend.jobs.running import JobKind
from backend.logs import get_logger
from backend.memory.collections import Collections, Opener, collection_name
from backend.memory.embedding.cached import CachedEmbedder
from backend.memory.embedding.registry import build_cached_embedder
from backend.memory.index.edge import open_edge
from backend.memory.index.protocol import IndexUnavailableError
from backend.memory.indexer import Indexer
from backend.memory.models import IndexState
from backend.memory.outbox import IndexOutbox
from backend.memory.points import Blinders, PointMaker
from backend.memory.reconciler import Reconciler
from backend.memory.search import MemorySearch
from backend.memory.sources import Source
from backend.settings import Settings

log = get_logger(__name__)


@dataclass(slots=True)
class MemoryRuntime(UserSignedOut):
    """The parts of memory in one process."""

    database: Database
    outbox: IndexOutbox
    collections: Collections
    indexer: Indexer
    reconciler: Reconciler
    search: MemorySearch
    blinders: Blinders
    embedder: CachedEmbedder | None
    is_prepared: bool = False

    @property
    def kinds(self) -> dict[str, JobKind]:
        """What is done for each kind of job."""
        return {**self.indexer.kinds, **self.reconciler.kinds}

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
        for user_id in await self.collections.prepare():
            async with self.database.write() as session:
                await self.outbox.reindex(session, user_id, self.collections.current.name)
        await self.reconciler.schedule()
        self.is_prepared = True

    def user_signed_out(self, user_id: UUID) -> None:
        """Drop what is kept in the clear of a user who leaves."""
        self.blinders.forget(user_id)
        if self.embedder is not None:
            self.embedder.forget(user_id)
        # Names of a story are looked for with patterns, and `re` keeps the last ones.
        re.purge()

    async def aclose(self) -> None:
        """Close the index, and let go of the embedder."""
        await self.collections.aclose()
        if self.embedder is not None:
            await self.embedder.aclose()


async def open_memory(
    settings: Settings,
    database: Database,
    queue: JobQueue,
    outbox: IndexOutbox,
    sources: Sequence[Source],
    pool: CpuPool,
) -> MemoryRuntime:
    """Open the index that the settings name.

    Raises:
        IndexUnavailableError: Another process has the folder of Qdrant Edge open.
        EmbedderError: The embedding model does not say how long its vectors are.
    """
    embedder = build_cached_embedder(settings, database)
    spec = await embedder.ready() if embedder else None
    opener, known = await _index(settings, database)
    name = collection_name(spec)
    current = await opener(name, spec.dimension if spec else None)
    collections = Collections(database, current, opener, known=known | {name})
    blinders = Blinders()
    indexer = Indexer(
        database,
        collections,
        sources,
        maker=PointMaker(embedder, blinders=blinders, pool=pool),
        pool=pool,
    )
    search = MemorySearch(collections, sources, embedder=embedder, blinders=blinders, pool=pool)
    return MemoryRuntime(
        database=database,
        outbox=outbox,
        collections=collections,
        indexer=indexer,
        reconciler=Reconciler(database, queue, outbox, collections, sources, blinders=blinders),
        search=search,
        blinders=blinders,
        embedder=embedder,
    )


async def _index(settings: Settings, database: Database) -> tuple[Opener, set[str]]:
    """How collections are opened, and those that there are."""
    if settings.qdrant_url:
        from backend.memory.index.server import open_server  # noqa: PLC0415  # seldom needed

        async with database.read() as session:
            known = set(await session.scalars(select(IndexState.collection).distinct()))
        return partial(open_server, settings), known
    folder = index_folder(settings)

    # One folder a collection, named after it and the format of the folder.
    known = {path.stem for path in folder.glob("*.[0-9]*") if path.is_dir()}
    return partial(open_edge, folder), known


def index_folder(settings: Settings) -> Path:
    """Where Qdrant Edge keeps its collections."""
    return settings.data_dir / "index"
