"""Vectors of texts that were embedded before, sealed, by a keyed hash of the text.

A hash names the model, the task and the text under a key of the user's: it tells a reader of the
table nothing, and no two users share one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

import numpy as np
from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from backend.database.base import chunks, new_id, now, table_of
from backend.memory.embedding.protocol import EmbedderSpec, Floats, Task
from backend.memory.models import EMBEDDING_VECTOR, Embedding
from backend.vault.sealing import SealBrokenError, Sealer, digest

_STORED = np.dtype("<f2")
"""Half precision: half the room, and cosines stay the same to six digits."""

_CHUNK = 500
"""Rows a statement: well below 32,766 parameters, SQLite's limit and the lower one of the two."""

_RENEWED_EVERY = timedelta(days=1)


def digests(sealer: Sealer, spec: EmbedderSpec, task: Task, texts: Sequence[str]) -> list[bytes]:
    """The keyed hash of each text, 32 bytes, for one model and task."""
    key = sealer.derived("embeddings")
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


_ROW = table_of(Embedding).c
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
    for some in chunks(wanted, _CHUNK):
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
    for some in chunks(rows, _CHUNK):
        await session.execute(statement, some)


@cache
def _insert(dialect: str) -> Any:
    """Vectors, but for those of texts that have one."""
    insert = (postgresql if dialect == "postgresql" else sqlite).insert
    statement = insert(table_of(Embedding))
    return statement.on_conflict_do_nothing(index_elements=["user_id", "digest"])


async def tidy(session: AsyncSession, sealer: Sealer, found: CachedVectors) -> None:
    """Renew and remove what `lookup` found to be stale and broken."""
    mine = Embedding.user_id == sealer.user_id
    for some in chunks(found.stale, _CHUNK):
        renewed = update(Embedding).where(mine, Embedding.id.in_(some))
        await session.execute(renewed.values(used_at=now()))
    for some in chunks(found.broken, _CHUNK):
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
