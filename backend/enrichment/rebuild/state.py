"""How far a rebuild is: what its job's payload says, from one attempt to the next."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec


class RebuildCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a rebuild has written so far, and how much of the old it has replaced."""

    events: int = 0
    entries: int = 0
    replaced: int = 0


class RebuildState(msgspec.Struct, frozen=True, kw_only=True):
    """A rebuild from the outside: ids and numbers, for the payload is not sealed.

    `next` is the position at which the next batch begins; everything before it is done. `done` and
    `total` count messages, `failures` how often the next batch has failed.
    """

    chat_id: UUID
    chronicle_id: UUID
    next: int
    to_position: int
    done: int = 0
    total: int = 0
    failures: int = 0
    counts: RebuildCounts = RebuildCounts()

    def to_payload(self) -> dict[str, Any]:
        """As a job's payload."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built

    @classmethod
    def of(cls, payload: dict[str, Any]) -> RebuildState:
        """Out of a job's payload."""
        return msgspec.convert(payload, cls)
