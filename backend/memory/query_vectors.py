"""What a search embeds its query with: only the model that the texts there were embedded by."""

from __future__ import annotations

from backend.logs import get_logger
from backend.memory.embedding.protocol import EmbedderError, Floats, QueryEmbedder
from backend.memory.own_models import OwnModels
from backend.memory.placement import Placement
from backend.vault.sealing import Sealer

log = get_logger(__name__)


async def query_embedder(
    usual: QueryEmbedder | None,
    own: OwnModels | None,
    sealer: Sealer,
    place: Placement,
    notes: list[str],
) -> QueryEmbedder | None:
    """The model whose vectors are in `place`; None, and a note, where a search goes by words.

    `usual` is the installation's model, `own` those of users.
    """
    if place.is_moving:
        notes.append("memory is moving to another embedding model: searched by words only")
        return None
    if not place.is_chosen or own is None:
        return usual
    model = await own.of(sealer, place)
    if model is None or model.embedder is None or model.mark != place.model:
        notes.append("searched by words only: the account's embedding model does not exist")
        return None
    return model.embedder


async def embedded(
    embedder: QueryEmbedder | None, sealer: Sealer, meaning: str, notes: list[str]
) -> Floats | None:
    """The vector of a query, shape (d,); None, and a note, where the model does not answer."""
    if embedder is None:
        return None
    try:
        return await embedder.embed_query(sealer, meaning)
    except EmbedderError as error:
        notes.append("searched by words only: the embedding model did not respond")
        log.warning("memory.not_embedded", problem=error.slug)
        return None
