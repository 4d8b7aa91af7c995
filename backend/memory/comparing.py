"""What of a container the index lacks, and what it has too much of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from backend.memory.index.protocol import Kind, VectorIndex
from backend.memory.sources import Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Rows without points, or with `stale` ones; rows that have points and are `gone`."""

    missing: list[UUID]
    stale: set[UUID]
    gone: list[UUID]


async def differences(
    index: VectorIndex, owner_id: UUID, container_id: UUID, kind: Kind, stored: Sequence[Stored]
) -> Differences:
    """Hold a container's points against its rows. Opens no text; asks for no vectors."""
    found: defaultdict[UUID, set[int]] = defaultdict(set)
    async for page in index.scan(owner_id, container_id=container_id):
        for _, payload in page:
            if payload.kind == kind:
                found[payload.source_id].add(payload.version)
    missing = [row.source_id for row in stored if found.get(row.source_id) != {row.version}]
    kept = {row.source_id for row in stored}
    return Differences(
        missing=missing,
        stale={source_id for source_id in missing if source_id in found},
        gone=[source_id for source_id in found if source_id not in kept],
    )
