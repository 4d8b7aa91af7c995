"""Which embedder this installation has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from backend.database.engine import Database
from backend.generation.adapters.gemini import GeminiConfig
from backend.generation.adapters.openai.server import OpenAICompatibleConfig
from backend.llm.user_models import ProviderEmbedding
from backend.memory.embedding.cached import CachedEmbedder
from backend.memory.embedding.catalogue import chosen_model
from backend.memory.embedding.gemini import DEFAULT_DIMENSION, DEFAULT_MODEL, GeminiEmbedder
from backend.memory.embedding.local import LocalEmbedder, is_installed
from backend.memory.embedding.openai_compatible import OpenAICompatibleEmbedder
from backend.memory.embedding.protocol import Embedder
from backend.settings import Settings

Choice = Literal["none", "gemini", "openai", "local"]

_ANSWER_SECONDS = 60.0
"""The longest wait for one request's vectors, where no turn waits for them."""


def choose(settings: Settings) -> Choice:
    """The embedder that the settings name, or what `auto` comes to with them."""
    if settings.embedder != "auto":
        return settings.embedder
    if settings.gemini_api_key is not None:
        return "gemini"
    if is_installed() and (settings.embedding_model_path or chosen_model(settings.models_dir)):
        return "local"
    return "none"


def fetched_model(settings: Settings) -> tuple[str, Path] | None:
    """The fetched model that embeds, and its folder; None where something else does, or nothing."""
    if settings.embedding_model_path is not None or choose(settings) != "local":
        return None
    return chosen_model(settings.models_dir)


def may_be_shared(settings: Settings) -> bool:
    """Whether a provider of the installation's may embed: not where the settings name a model."""
    return settings.embedder == "auto" and settings.embedding_model_path is None


def build_embedder(settings: Settings, shared: ProviderEmbedding | None = None) -> Embedder | None:
    """The embedder of a provider, else the one that the settings name; None where there is none.

    Speaks to nobody and loads no model. Raises `EmbedderError` when a model's folder is no such.
    """
    if shared is not None:
        return provider_embedder(shared, settings)
    match choose(settings):
        case "gemini":
            return _gemini(settings)
        case "openai":
            return _openai(settings)
        case "local":
            return _local(settings)
        case "none":
            return None


def build_cached_embedder(
    settings: Settings, database: Database, shared: ProviderEmbedding | None = None
) -> CachedEmbedder | None:
    """The same, as the rest of Talekeeper uses it."""
    embedder = build_embedder(settings, shared)
    return None if embedder is None else with_cache(embedder, settings, database)


def with_cache(embedder: Embedder, settings: Settings, database: Database) -> CachedEmbedder:
    """An embedder as the rest of Talekeeper uses it."""
    return CachedEmbedder(
        database,
        embedder,
        batch=settings.embedding_batch,
        query_timeout=settings.embedding_timeout_seconds,
    )


def provider_embedder(
    shared: ProviderEmbedding, settings: Settings, *, length: int | None = None
) -> GeminiEmbedder | OpenAICompatibleEmbedder:
    """The embedder of a provider.

    Vectors of Gemini's models have 768 numbers, those of others are as long as the model's own, or
    refused where they are not of that `length`.
    """
    model, batch = shared.model, settings.embedding_batch
    match shared.config:
        case GeminiConfig() as config:
            config = replace(config, answer_timeout=_ANSWER_SECONDS)
            return GeminiEmbedder(config, model=model, batch=batch)
        case OpenAICompatibleConfig() as config:
            config = replace(config, answer_timeout=_ANSWER_SECONDS)
            return OpenAICompatibleEmbedder(config, model=model, length=length, batch=batch)
        case _:
            raise TypeError(f"{type(shared.config).__name__} can't embed.")


def _gemini(settings: Settings) -> GeminiEmbedder:
    key = settings.gemini_api_key
    config = GeminiConfig(
        api_key=key.get_secret_value() if key else "",
        base_url=settings.gemini_base_url or None,
        answer_timeout=_ANSWER_SECONDS,
    )
    return GeminiEmbedder(
        config,
        model=settings.embedding_model or DEFAULT_MODEL,
        dimension=settings.embedding_dimension or DEFAULT_DIMENSION,
        batch=settings.embedding_batch,
    )


def _openai(settings: Settings) -> OpenAICompatibleEmbedder:
    key = settings.embedding_api_key
    if key is None and not settings.embedding_base_url:
        # A key goes to the server that it was given for, and to no other.
        key = settings.openai_api_key
    config = OpenAICompatibleConfig(
        base_url=settings.embedding_base_url or settings.openai_base_url,
        api_key=key.get_secret_value() if key else None,
        models=(),
        context_window=settings.openai_context_window,
        max_output_tokens=settings.openai_max_output_tokens,
        answer_timeout=_ANSWER_SECONDS,
    )
    return OpenAICompatibleEmbedder(
        config,
        model=settings.embedding_model,
        dimension=settings.embedding_dimension,
        batch=settings.embedding_batch,
    )


def _local(settings: Settings) -> LocalEmbedder:
    workers = settings.embedding_threads
    if (fetched := fetched_model(settings)) is not None:
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
