"""The embedder that the rest of Talekeeper uses: with a cache, retries and a circuit breaker."""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
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
    find_cosines,
    measure_cosines,
)
from backend.memory.models import EMBEDDING_VECTOR, Embedding
from backend.vault.sealing import SealBrokenError, Sealer, digest

_STORED_TYPE = np.dtype("<f2")
"""Half precision takes half the space and changes cosines only after the sixth digit."""

_ROWS_PER_STATEMENT = 500
"""The limit is 32,766 parameters, that of SQLite, which is lower than that of PostgreSQL."""

_RENEWAL_INTERVAL = timedelta(days=1)


def compute_digests(
    sealer: Sealer, spec: EmbedderSpec, task: Task, texts: Sequence[str]
) -> list[bytes]:
    """Return a keyed hash of 32 bytes of each text, for one model and task."""
    key = sealer.derive_key("embeddings")
    model = spec.identity.encode()
    return [
        digest(key, model, task.encode(), text.encode(errors="surrogatepass")) for text in texts
    ]


def round_to_half_precision(vectors: Floats) -> Floats:
    """Round unit vectors as the cache does, so that a text has one vector, cached or not."""
    rounded = vectors.astype(_STORED_TYPE).astype(np.float32)
    rows: Floats = rounded / np.linalg.norm(rounded, axis=1, keepdims=True)
    return rows


@dataclass(frozen=True, slots=True)
class CachedVectors:
    """Cached vectors by hash. `stale` ones were not used for a day, `broken` ones are invalid."""

    vectors: Mapping[bytes, Floats]
    stale: Sequence[UUID]
    broken: Sequence[UUID]


_ROW = get_table(Embedding).c
_STORED_VECTORS = select(_ROW.id, _ROW.digest, _ROW.sealed_vector, _ROW.used_at).where(
    _ROW.user_id == bindparam("owner_id"), _ROW.digest.in_(bindparam("digests", expanding=True))
)
"""Built once because building it takes longer than executing it."""


async def lookup(
    session: AsyncSession, sealer: Sealer, spec: EmbedderSpec, wanted: Sequence[bytes]
) -> CachedVectors:
    """Return the cached vectors, shape (d,), of the hashes `wanted` (see `compute_digests`)."""
    vectors: dict[bytes, Floats] = {}
    stale: list[UUID] = []
    broken: list[UUID] = []
    old = now() - _RENEWAL_INTERVAL
    for some in split_chunks(wanted, _ROWS_PER_STATEMENT):
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
    """Cache vectors by their hashes. Existing ones are kept."""
    if not vectors:
        return
    rows = [_build_row(sealer, key, vector) for key, vector in vectors.items()]
    statement = _build_insert(session.get_bind().dialect.name)
    for some in split_chunks(rows, _ROWS_PER_STATEMENT):
        await session.execute(statement, some)


@cache
def _build_insert(dialect: str) -> Any:
    insert = (postgresql if dialect == "postgresql" else sqlite).insert
    statement = insert(get_table(Embedding))
    return statement.on_conflict_do_nothing(index_elements=["user_id", "digest"])


async def tidy(session: AsyncSession, sealer: Sealer, found: CachedVectors) -> None:
    """Renew the stale rows and delete the broken rows that `lookup` has found."""
    mine = Embedding.user_id == sealer.user_id
    for some in split_chunks(found.stale, _ROWS_PER_STATEMENT):
        renewed = update(Embedding).where(mine, Embedding.id.in_(some))
        await session.execute(renewed.values(used_at=now()))
    for some in split_chunks(found.broken, _ROWS_PER_STATEMENT):
        await session.execute(delete(Embedding).where(mine, Embedding.id.in_(some)))


def _build_row(sealer: Sealer, key: bytes, vector: Floats) -> dict[str, Any]:
    row_id = new_id()
    return {
        "id": row_id,
        "user_id": sealer.user_id,
        "digest": key,
        "sealed_vector": sealer.seal_bytes(
            EMBEDDING_VECTOR, row_id, vector.astype(_STORED_TYPE).tobytes()
        ),
        "used_at": now(),
    }


def _open(sealer: Sealer, row_id: UUID, blob: bytes) -> Floats | None:
    """Return the vector of a row, of unit length; None if it can't be decrypted."""
    try:
        content = sealer.open_bytes(EMBEDDING_VECTOR, row_id, blob)
        stored = np.frombuffer(content, _STORED_TYPE).astype(np.float32)
    except (SealBrokenError, ValueError):
        return None
    return round_to_half_precision(stored[np.newaxis])[0] if stored.any() else None


T = TypeVar("T")
Clock = Callable[[], float]
_MAX_PAUSE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Retries of a request, for lost connections and temporary server errors.

    It does not wait for a rate limit. The error contains the time, and the caller decides.

    Attributes:
        first_wait: Maximum seconds before the second attempt. It doubles with each attempt.
        within: Seconds after which no attempt is started.
        draw: Returns a number in [0, 1) that spreads concurrent retries.
    """

    attempts: int = 3
    first_wait: float = 0.5
    within: float = 30.0
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Clock = time.monotonic
    draw: Callable[[], float] = random.random

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `attempt`. Raises the `EmbedderError` of the last attempt."""
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


class CircuitBreaker:
    """Refuses requests after several failures in a row.

    After `pause` seconds it allows one attempt, which closes or reopens it. A rate limit opens it
    immediately, for the time that the provider gives, but at most a minute.
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
        return self._failures > 0

    def check(self) -> None:
        if self._failures < self._limit:
            return
        left = self._until - self._clock()
        if left > 0:
            raise EmbedderError(
                "The embedding model failed recently and is not called for a moment.",
                retry_after=left,
                retryable=True,
            )
        # Refuse other attempts until this one has ended, or for another pause.
        self._until = self._clock() + self._pause

    def record_success(self) -> None:
        self._failures = 0

    def record_failure(self, error: EmbedderError) -> None:
        """Count a failure, and open the breaker at the limit."""
        self._failures += 1
        pause = self._pause
        if error.retry_after is not None:
            self._failures = max(self._failures, self._limit)
            pause = min(error.retry_after, _MAX_PAUSE_SECONDS)
        self._until = self._clock() + pause


MAX_CACHED_QUERIES = 512
"""Query vectors in memory: 1.5 MB at 768 dimensions."""


class CachedEmbedder:
    """Embeds each document once, and each query within a time limit.

    Documents are embedded and stored in batches, with retries. A query has one attempt of
    `query_timeout` seconds and a circuit breaker. `known_cosines` are None until they are needed.
    """

    def __init__(
        self,
        database: Database,
        embedder: Embedder,
        *,
        batch: int = 100,
        query_timeout: float = 5.0,
        queries_kept: int = MAX_CACHED_QUERIES,
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
        self._breaker = CircuitBreaker(clock=clock)
        self.known_cosines = cosines
        self._queries: OrderedDict[tuple[UUID, bytes], Floats] = OrderedDict()

    @property
    def spec(self) -> EmbedderSpec:
        """See `Embedder`. It is known after `ready`."""
        return self._embedder.spec

    @property
    def uncached(self) -> Embedder:
        """The model itself, for texts that must not be stored."""
        return self._embedder

    @property
    def is_failing(self) -> bool:
        """True if the last query failed in this process."""
        return self._breaker.is_failing

    async def ready(self) -> EmbedderSpec:
        """See `Embedder`. It may send a request."""
        return await self._retries.run(self._embedder.ready)

    async def cosines(self) -> ModelCosines:
        """Return the model's scale: from the table, or else measured once, or else MiniLM's."""
        if self.known_cosines is None:
            self.known_cosines = find_cosines(self.spec.model)
        if self.known_cosines is None:
            try:
                async with asyncio.timeout(self._query_timeout):
                    self.known_cosines = await measure_cosines(self._embedder.embed)
            except (EmbedderError, TimeoutError):
                return MINILM
        return self.known_cosines

    async def embed_documents(self, sealer: Sealer, texts: Sequence[str]) -> Floats:
        """Return vectors of a user's texts, shape (n, d), each row of unit length.

        Equal texts are embedded once. Batches are stored before an `EmbedderError`, so a retry only
        embeds the rest. Call it outside transactions.
        """
        spec = await self.ready()
        if not texts:
            return np.empty((0, spec.dimension), np.float32)
        keys = compute_digests(sealer, spec, "document", texts)
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
            some = dict(zip(batch, round_to_half_precision(made), strict=True))
            async with self._database.write() as session:
                await store(session, sealer, some)
            vectors |= some
        return np.stack([vectors[key] for key in keys])

    async def embed_query(self, sealer: Sealer, text: str) -> Floats:
        """Return the vector of a user's query, shape (d,), of unit length. Call `ready` first.

        The last few hundred vectors are cached in this process. Raises `EmbedderError` if the model
        failed or took too long, or if the circuit breaker is open.
        """
        key = sealer.user_id, compute_digests(sealer, self.spec, "query", [text])[0]
        if key in self._queries:
            self._queries.move_to_end(key)
            return self._queries[key]
        self._breaker.check()
        try:
            async with asyncio.timeout(self._query_timeout):
                vector: Floats = (await self._embedder.embed([text], "query"))[0]
        except TimeoutError:
            error = EmbedderError(
                f"The embedding model did not respond within {self._query_timeout:g} seconds.",
                retryable=True,
            )
            self._breaker.record_failure(error)
            raise error from None
        except EmbedderError as error:
            self._breaker.record_failure(error)
            raise
        self._breaker.record_success()
        self._queries[key] = vector
        if len(self._queries) > self._queries_kept:
            self._queries.popitem(last=False)
        return vector

    def forget(self, user_id: UUID) -> None:
        """Delete the vectors of a user's queries, because the queries can be guessed from them."""
        for key in [each for each in self._queries if each[0] == user_id]:
            del self._queries[key]

    async def aclose(self) -> None:
        await self._embedder.aclose()
