"""The choice of the installation's embedder, and the construction of embedders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

from backend.database.engine import Database
from backend.generation.registry import KINDS, KindName
from backend.llm.user_models import ProviderEmbedding
from backend.memory.embedding.cache import CachedEmbedder
from backend.memory.embedding.catalogue import find_model_in_use
from backend.memory.embedding.local import LocalEmbedder, is_installed
from backend.memory.embedding.protocol import Embedder
from backend.memory.embedding.remote import RemoteEmbedder
from backend.settings import EmbedderName, Settings

_REQUEST_SECONDS = 60.0
"""Time limit of a request for vectors of documents. No turn waits for them."""


def choose_embedder(settings: Settings) -> EmbedderName:
    """Return the kind of embedder in the settings, with `auto` resolved."""
    if settings.embedder != "auto":
        return settings.embedder
    if (kind := find_configured_kind(settings)) is not None:
        return cast("EmbedderName", kind)
    if is_installed() and (settings.embedding_model_path or find_model_in_use(settings.models_dir)):
        return "local"
    return "none"


def find_configured_kind(settings: Settings) -> KindName | None:
    """Return the first provider kind in the environment that has a default embedding model."""
    able: Iterator[KindName] = (
        name
        for name, kind in KINDS.items()
        if kind.embeddings and kind.embeddings.default_model and kind.read_settings(settings)
    )
    return next(able, None)


def find_local_model(settings: Settings) -> tuple[str, Path] | None:
    """Return the name and folder of the downloaded model, if it is the embedder."""
    if settings.embedding_model_path is not None or choose_embedder(settings) != "local":
        return None
    return find_model_in_use(settings.models_dir)


def uses_downloaded_model(settings: Settings) -> bool:
    """True if a downloaded model becomes the embedder, unless an administrator chose a provider."""
    return allows_provider(settings) and find_configured_kind(settings) is None


def allows_provider(settings: Settings) -> bool:
    """True if an administrator may choose a provider's model: the settings must not name one."""
    return settings.embedder == "auto" and settings.embedding_model_path is None


def build_embedder(settings: Settings, shared: ProviderEmbedding | None = None) -> Embedder | None:
    """Build the embedder of a provider, or else that of the settings; None if there is none.

    It sends no requests and loads no model. Raises `EmbedderError` if the folder of a model is
    invalid.
    """
    if shared is not None:
        return build_provider_embedder(shared, settings)
    match choose_embedder(settings):
        case "none":
            return None
        case "local":
            return _build_local(settings)
        case kind:
            return _build_remote(kind, settings)


def build_cached_embedder(
    settings: Settings, database: Database, shared: ProviderEmbedding | None = None
) -> CachedEmbedder | None:
    embedder = build_embedder(settings, shared)
    return None if embedder is None else add_cache(embedder, settings, database)


def add_cache(embedder: Embedder, settings: Settings, database: Database) -> CachedEmbedder:
    """Wrap an embedder with the cache, retries and circuit breaker."""
    return CachedEmbedder(
        database,
        embedder,
        batch=settings.embedding_batch,
        query_timeout=settings.embedding_timeout_seconds,
    )


def build_provider_embedder(
    shared: ProviderEmbedding, settings: Settings, *, length: int | None = None
) -> RemoteEmbedder:
    """Build the embedder of a provider.

    Vectors have the kind's default dimension, or else the model's. If `length` is given, vectors of
    another length are an error.
    """
    return RemoteEmbedder(
        shared.kind,
        replace(shared.config, answer_timeout=_REQUEST_SECONDS),
        model=shared.model,
        length=length,
        batch=settings.embedding_batch,
    )


def _build_remote(kind: KindName, settings: Settings) -> RemoteEmbedder:
    embeddings = KINDS[kind].embeddings
    if embeddings is None:
        raise ValueError(f"{KINDS[kind].title} has no embeddings.")
    return RemoteEmbedder(
        kind,
        replace(embeddings.read_settings(settings), answer_timeout=_REQUEST_SECONDS),
        model=settings.embedding_model,
        dimension=settings.embedding_dimension,
        batch=settings.embedding_batch,
    )


def _build_local(settings: Settings) -> LocalEmbedder:
    workers = settings.embedding_threads
    if (fetched := find_local_model(settings)) is not None:
        name, folder = fetched
        return LocalEmbedder(folder, model=name, workers=workers)
    if settings.embedding_model_path is None:
        raise ValueError("A local embedder needs a folder.")
    return LocalEmbedder(
        settings.embedding_model_path,
        model=settings.embedding_model,
        dimension=settings.embedding_dimension,
        workers=workers,
    )
