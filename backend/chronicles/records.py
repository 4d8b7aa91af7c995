"""What is sealed in the rows of chronicles: JSON, one blob a column."""

from __future__ import annotations

from uuid import UUID

import msgspec

from backend.chronicles.events import ChronicleFields, EventFields
from backend.chronicles.models import CHRONICLE, EVENT, Chronicle, ChronicleEvent
from backend.vault.sealing import Sealer

_CHRONICLE = msgspec.json.Decoder(ChronicleFields)
_EVENT = msgspec.json.Decoder(EventFields)


def sealed_chronicle(sealer: Sealer, chronicle_id: UUID, fields: ChronicleFields) -> bytes:
    """What a chronicle says of itself, for its row."""
    return sealer.seal_bytes(CHRONICLE, chronicle_id, msgspec.json.encode(fields))


def open_chronicle(sealer: Sealer, row: Chronicle) -> ChronicleFields:
    """What a chronicle says of itself."""
    return _CHRONICLE.decode(sealer.open_bytes(CHRONICLE, row.id, row.sealed_chronicle))


def sealed_event(sealer: Sealer, event_id: UUID, fields: EventFields) -> bytes:
    """What an event says, for its row."""
    return sealer.seal_bytes(EVENT, event_id, msgspec.json.encode(fields))


def open_event(sealer: Sealer, row: ChronicleEvent) -> EventFields:
    """What an event says."""
    return read_event(sealer, row.id, row.sealed_event)


def read_event(sealer: Sealer, event_id: UUID, blob: bytes) -> EventFields:
    """What the event with this id says."""
    return _EVENT.decode(sealer.open_bytes(EVENT, event_id, blob))
