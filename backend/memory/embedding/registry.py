"""The choice of the installation's embedder, and the construction of embedders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from backend.database.engine import Database
from backend.generation.adapters.gemini import GeminiConfig
from backend.generation.adapters.openai.model import OpenAICompatibleConfig
from backend.llm.user_models import ProviderEmbedding
from backend.memory.embedding.cache import CachedEmbedder
from backend.memory.embedding.catalogue import find_model_in_use
from backend.memory.embedding.local import LocalEmbedder, is_installed
from backend.memory.embedding.protocol import Embedder
from backend.memory.embedding.remote import (
    GEMINI_DIMENSION,
    GEMINI_MODEL,
    GeminiEmbedder,
    OpenAICompatibleEmbedder,
    RemoteEmbedder,
)
from backend.settings import Settings

EmbedderChoice = Literal["none", "gemini", "openai", "local"]

_REQUEST_SECONDS = 60.0
"""Time limit of a request for vectors of documents. No turn waits for them."""


def choose_embedder(settings: Settings) -> EmbedderChoice:
    """Return the kind of embedder in the settings, with `auto` resolved."""
    if settings.embedder != "auto":
        return settings.embedder
    if settings.gemini_api_key is not None:
        return "gemini"
    if is_installed() and (settings.embedding_model_path or find_model_in_use(settings.models_dir)):
        return "local"
    return "none"


def find_local_model(settings: Settings) -> tuple[str, Path] | None:
    """Return the name and folder of the downloaded model, if it is the embedder."""
    if settings.embedding_model_path is not None or choose_embedder(settings) != "local":
        return None
    return find_model_in_use(settings.models_dir)


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
        case "gemini":
            return _build_gemini(settings)
        case "openai":
            return _build_openai(settings)
        case "local":
            return _build_local(settings)
        case "none":
            return None


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

    Vectors of Gemini's models have 768 numbers. Other models use their own length. If `length` is
    given, vectors of another length are an error.
    """
    model, batch = shared.model, settings.embedding_batch
    match shared.config:
        case GeminiConfig() as config:
            config = replace(config, answer_timeout=_REQUEST_SECONDS)
            return GeminiEmbedder(config, model=model, batch=batch)
        case OpenAICompatibleConfig() as config:
            config = replace(config, answer_timeout=_REQUEST_SECONDS)
            return OpenAICompatibleEmbedder(config, model=model, length=length, batch=batch)
        case _:
            raise TypeError(f"{type(shared.config).__name__} has no embeddings.")


def _build_gemini(settings: Settings) -> GeminiEmbedder:
    key = settings.gemini_api_key
    config = GeminiConfig(
        api_key=key.get_secret_value() if key else "",
        base_url=settings.gemini_base_url or None,
        answer_timeout=_REQUEST_SECONDS,
    )
    return GeminiEmbedder(
        config,
        model=settings.embedding_model or GEMINI_MODEL,
        dimension=settings.embedding_dimension or GEMINI_DIMENSION,
        batch=settings.embedding_batch,
    )


def _build_openai(settings: Settings) -> OpenAICompatibleEmbedder:
    key = settings.embedding_api_key
    if key is None and not settings.embedding_base_url:
        # A key must be sent only to the server that it belongs to.
        key = settings.openai_api_key
    config = OpenAICompatibleConfig(
        base_url=settings.embedding_base_url or settings.openai_base_url,
        api_key=key.get_secret_value() if key else None,
        models=(),
        context_window=settings.openai_context_window,
        max_output_tokens=settings.openai_max_output_tokens,
        answer_timeout=_REQUEST_SECONDS,
    )
    return OpenAICompatibleEmbedder(
        config,
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
