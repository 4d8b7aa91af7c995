"""An embedder as the rest of Talekeeper uses it: with a memory, and with patience that ends."""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, TypeVar
from uuid import UUID

import numpy as np
from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.base import get_table, new_id, now, split_chunks
from backend.database.engine import Database
from backend.memory.embedding.protocol import (
    MINILM,
    Embedder,
    EmbedderError,
    EmbedderSpec,
    Floats,
    ModelCosines,
    Task,
    cosines_of,
    measured_cosines,
)
from backend.memory.models import EMBEDDING_VECTOR, Embedding
from backend.vault.sealing import SealBrokenError, Sealer, digest

_STORED = np.dtype("<f2")
"""Half precision: half the room, and cosines stay the same to six digits."""

_CHUNK = 500
"""Rows a statement: well below 32,766 parameters, SQLite's limit and the lower one of the two."""

_RENEWED_EVERY = timedelta(days=1)


def digests(sealer: Sealer, spec: EmbedderSpec, task: Task, texts: Sequence[str]) -> list[bytes]:
    """The keyed hash of each text, 32 bytes, for one model and task."""
    key = sealer.derive_key("embeddings")
    model = spec.identity.encode()
    return [
        digest(key, model, task.encode(), text.encode(errors="surrogatepass")) for text in texts
    ]


def halved(vectors: Floats) -> Floats:
    """Unit vectors as they come back out of the cache: a text has one vector, stored or not."""
    rounded = vectors.astype(_STORED).astype(np.float32)
    rows: Floats = rounded / np.linalg.norm(rounded, axis=1, keepdims=True)
    return rows


@dataclass(frozen=True, slots=True)
class CachedVectors:
    """What the cache holds: vectors by hash, and the rows that are to be renewed or removed.

    `stale` were last used a day ago or earlier; `broken` do not open.
    """

    vectors: Mapping[bytes, Floats]
    stale: Sequence[UUID]
    broken: Sequence[UUID]


_ROW = get_table(Embedding).c
_STORED_VECTORS = select(_ROW.id, _ROW.digest, _ROW.sealed_vector, _ROW.used_at).where(
    _ROW.user_id == bindparam("owner_id"), _ROW.digest.in_(bindparam("digests", expanding=True))
)
"""Built once: building it costs more than running it."""


async def lookup(
    session: AsyncSession, sealer: Sealer, spec: EmbedderSpec, wanted: Sequence[bytes]
) -> CachedVectors:
    """The vectors of those of `wanted` (see `digests`) that are stored, each of shape (d,)."""
    vectors: dict[bytes, Floats] = {}
    stale: list[UUID] = []
    broken: list[UUID] = []
    old = now() - _RENEWED_EVERY
    for some in split_chunks(wanted, _CHUNK):
        asked = {"owner_id": sealer.user_id, "digests": some}
        for row_id, key, blob, used_at in await session.execute(_STORED_VECTORS, asked):
            vector = _open(sealer, row_id, blob)
            if vector is None or len(vector) != spec.dimension:
                broken.append(row_id)
                continue
            vectors[key] = vector
            if used_at < old:
                stale.append(row_id)
    return CachedVectors(vectors, stale, broken)


async def store(session: AsyncSession, sealer: Sealer, vectors: Mapping[bytes, Floats]) -> None:
    """Keep vectors by their hashes. One that is there already stays."""
    if not vectors:
        return
    rows = [_row(sealer, key, vector) for key, vector in vectors.items()]
    statement = _insert(session.get_bind().dialect.name)
    for some in split_chunks(rows, _CHUNK):
        await session.execute(statement, some)


@cache
def _insert(dialect: str) -> Any:
    """Vectors, but for those of texts that have one."""
    insert = (postgresql if dialect == "postgresql" else sqlite).insert
    statement = insert(get_table(Embedding))
    return statement.on_conflict_do_nothing(index_elements=["user_id", "digest"])


async def tidy(session: AsyncSession, sealer: Sealer, found: CachedVectors) -> None:
    """Renew and remove what `lookup` found to be stale and broken."""
    mine = Embedding.user_id == sealer.user_id
    for some in split_chunks(found.stale, _CHUNK):
        renewed = update(Embedding).where(mine, Embedding.id.in_(some))
        await session.execute(renewed.values(used_at=now()))
    for some in split_chunks(found.broken, _CHUNK):
        await session.execute(delete(Embedding).where(mine, Embedding.id.in_(some)))


async def forget_unused(session: AsyncSession, before: datetime, *, most: int = 1000) -> int:
    """Remove up to `most` vectors, of any user, that were last used before then.

    Returns how many that were; fewer than `most` means that there are no more.
    """
    unused = select(Embedding.id).where(Embedding.used_at < before).limit(most)
    removed = await session.scalars(
        delete(Embedding).where(Embedding.id.in_(unused)).returning(Embedding.id)
    )
    return len(removed.all())


def _row(sealer: Sealer, key: bytes, vector: Floats) -> dict[str, Any]:
    row_id = new_id()
    return {
        "id": row_id,
        "user_id": sealer.user_id,
        "digest": key,
        "sealed_vector": sealer.seal_bytes(
            EMBEDDING_VECTOR, row_id, vector.astype(_STORED).tobytes()
        ),
        "used_at": now(),
    }


def _open(sealer: Sealer, row_id: UUID, blob: bytes) -> Floats | None:
    """The vector of a row, of unit length; None when it can't be read any more."""
    try:
        content = sealer.open_bytes(EMBEDDING_VECTOR, row_id, blob)
        stored = np.frombuffer(content, _STORED).astype(np.float32)
    except (SealBrokenError, ValueError):
        return None
    return halved(stored[np.newaxis])[0] if stored.any() else None


T = TypeVar("T")
Clock = Callable[[], float]
_LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Further attempts at a request that was not answered.

    They are for a connection that broke or a server that stumbled. A limit that the provider named
    is never waited for: the error says how long it lasts, and a caller with time comes back.

    Attributes:
        attempts: How many there are, the first one included.
        first_wait: Seconds before the second one at most; it doubles from one to the next.
        within: Seconds after which no further attempt begins.
        draw: A number in [0, 1), which spreads those who failed together.
    """

    attempts: int = 3
    first_wait: float = 0.5
    within: float = 30.0
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Clock = time.monotonic
    draw: Callable[[], float] = random.random

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """What `attempt` comes to. Raises the last attempt's `EmbedderError`."""
        until = self.clock() + self.within
        for past in range(self.attempts - 1):
            try:
                return await attempt()
            except EmbedderError as error:
                if not error.retryable or error.retry_after is not None:
                    raise
                seconds = self.draw() * self.first_wait * 2**past
                if self.clock() + seconds >= until:
                    raise
            await self.wait(seconds)
        return await attempt()


class Breaker:
    """Refuses at once what has just failed several times in a row.

    After `pause` seconds one attempt is let through: it closes the breaker or opens it anew. A
    limit that the provider named opens it at once, for as long as was named and a minute at most.
    """

    def __init__(
        self, *, failures: int = 3, pause: float = 15.0, clock: Clock = time.monotonic
    ) -> None:
        self._limit = failures
        self._pause = pause
        self._clock = clock
        self._failures = 0
        self._until = 0.0

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt was not answered."""
        return self._failures > 0

    def check(self) -> None:
        """Raises `EmbedderError` when it is no use to try."""
        if self._failures < self._limit:
            return
        left = self._until - self._clock()
        if left > 0:
            raise EmbedderError(
                "The embedding model failed recently and is not called for a moment.",
                retry_after=left,
                retryable=True,
            )
        # Others are refused until this attempt is over, or for as long again.
        self._until = self._clock() + self._pause

    def succeeded(self) -> None:
        """An attempt was answered."""
        self._failures = 0

    def failed(self, error: EmbedderError) -> None:
        """An attempt was not."""
        self._failures += 1
        pause = self._pause
        if error.retry_after is not None:
            self._failures = max(self._failures, self._limit)
            pause = min(error.retry_after, _LONGEST_PAUSE)
        self._until = self._clock() + pause


QUERIES_KEPT = 512
"""Vectors of queries in memory: 1.5 MB at 768 dimensions."""


class CachedEmbedder:
    """Embeds documents once each, and queries quickly or not at all.

    Documents are embedded and stored `batch` at a time, with retries. A query gets one attempt, of
    `query_timeout` seconds, behind a breaker. `known_cosines` were given or found out.
    """

    def __init__(
        self,
        database: Database,
        embedder: Embedder,
        *,
        batch: int = 100,
        query_timeout: float = 5.0,
        queries_kept: int = QUERIES_KEPT,
        retries: Retries | None = None,
        cosines: ModelCosines | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._database = database
        self._embedder = embedder
        self._batch = batch
        self._query_timeout = query_timeout
        self._queries_kept = queries_kept
        self._retries = retries or Retries()
        self._breaker = Breaker(clock=clock)
        self.known_cosines = cosines
        self._queries: OrderedDict[tuple[UUID, bytes], Floats] = OrderedDict()

    @property
    def spec(self) -> EmbedderSpec:
        """See `Embedder`: known once it is `ready`."""
        return self._embedder.spec

    @property
    def is_failing(self) -> bool:
        """Whether the last query was not answered, in this process."""
        return self._breaker.is_failing

    async def ready(self) -> EmbedderSpec:
        """See `Embedder`: which model this is. May ask a server."""
        return await self._retries.run(self._embedder.ready)

    async def cosines(self) -> ModelCosines:
        """What the model's cosines say: as the table has it, else measured, once in a process.

        While the model does not answer they are taken to be MiniLM's.
        """
        if self.known_cosines is None:
            self.known_cosines = cosines_of(self.spec.model)
        if self.known_cosines is None:
            try:
                async with asyncio.timeout(self._query_timeout):
                    self.known_cosines = await measured_cosines(self._embedder.embed)
            except (EmbedderError, TimeoutError):
                return MINILM
        return self.known_cosines

    async def embed_documents(self, sealer: Sealer, texts: Sequence[str]) -> Floats:
        """Vectors of a user's texts, shape (n, d), each row of unit length.

        Equal texts are embedded once. What was made before an error is stored, and costs nothing
        when the rest is tried again. Call it outside of any transaction.

        Raises:
            EmbedderError: `retry_after` says when to come back, where the provider did.
        """
        spec = await self.ready()
        if not texts:
            return np.empty((0, spec.dimension), np.float32)
        keys = digests(sealer, spec, "document", texts)
        wanted = dict(zip(keys, texts, strict=True))
        async with self._database.read() as session:
            found = await lookup(session, sealer, spec, [*wanted])
        if found.stale or found.broken:
            async with self._database.write() as session:
                await tidy(session, sealer, found)
        vectors = dict(found.vectors)
        for batch in split_chunks([key for key in wanted if key not in vectors], self._batch):
            texts = [wanted[key] for key in batch]
            made = await self._retries.run(partial(self._embedder.embed, texts, "document"))
            some = dict(zip(batch, halved(made), strict=True))
            async with self._database.write() as session:
                await store(session, sealer, some)
            vectors |= some
        return np.stack([vectors[key] for key in keys])

    async def embed_query(self, sealer: Sealer, text: str) -> Floats:
        """The vector of what a user looks for, shape (d,), of unit length. Call `ready` before.

        The last few hundred are remembered, in this process alone.

        Raises:
            EmbedderError: The model failed or took too long; or it did so a moment ago several
                times, and is not asked. Search can go on without.
        """
        key = sealer.user_id, digests(sealer, self.spec, "query", [text])[0]
        if key in self._queries:
            self._queries.move_to_end(key)
            return self._queries[key]
        self._breaker.check()
        try:
            async with asyncio.timeout(self._query_timeout):
                vector: Floats = (await self._embedder.embed([text], "query"))[0]
        except TimeoutError:
            error = EmbedderError(
                f"The embedding model did not answer within {self._query_timeout:g} seconds.",
                retryable=True,
            )
            self._breaker.failed(error)
            raise error from None
        except EmbedderError as error:
            self._breaker.failed(error)
            raise
        self._breaker.succeeded()
        self._queries[key] = vector
        if len(self._queries) > self._queries_kept:
            self._queries.popitem(last=False)
        return vector

    def forget(self, user_id: UUID) -> None:
        """Drop the vectors of a user's queries: what was asked can be guessed from them."""
        for key in [each for each in self._queries if each[0] == user_id]:
            del self._queries[key]

    async def aclose(self) -> None:
        """Let go of the embedder."""
        await self._embedder.aclose()
