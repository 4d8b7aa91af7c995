"""What lies beside a point's vectors: short names, ids as text, numbers, and no text at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from backend.memory.index.protocol import IndexUnavailableError, Payload

OWNER, KIND, CONTAINER, SOURCE, POSITION = "o", "k", "c", "s", "p"
"""What points are found by: each has a payload index."""

_NAMES = {
    OWNER: "owner_id",
    KIND: "kind",
    CONTAINER: "container_id",
    SOURCE: "source_id",
    POSITION: "position",
    "e": "scene_id",
    "h": "chunk",
    "v": "version",
    "t": "said_at",
    "a": "speaker",
    "w": "words",
    "q": "is_question",
}
"""The engine's names, and `Payload`'s."""


def encode(payload: Payload) -> dict[str, str | int | bool]:
    """The payload as the engine keeps it; what is zero or absent is left out."""
    fields: dict[str, str | int | bool] = {
        OWNER: str(payload.owner_id),
        KIND: payload.kind,
        CONTAINER: str(payload.container_id),
        SOURCE: str(payload.source_id),
        POSITION: payload.position,
    }
    if payload.scene_id is not None:
        fields["e"] = str(payload.scene_id)
    if payload.is_question:
        fields["q"] = True
    numbers = {
        "h": payload.chunk,
        "v": payload.version,
        "t": payload.said_at,
        "a": payload.speaker,
        "w": payload.words,
    }
    fields.update((name, number) for name, number in numbers.items() if number)
    return fields


def decode(fields: Mapping[str, Any] | None) -> Payload:
    """What `encode` was given. Raises `IndexUnavailableError` for what is none of ours."""
    try:
        # A search reads hundreds: msgspec takes a third of the time of `UUID` and `Payload`.
        return msgspec.convert(
            {_NAMES[name]: value for name, value in (fields or {}).items()}, Payload
        )
    except (KeyError, msgspec.ValidationError) as error:
        raise IndexUnavailableError(
            "A point in the index has a payload that is none of Talekeeper's. Rebuild the index "
            "with `talekeeper reindex`."
        ) from error
