"""The models that the environment names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from backend.generation.adapters.anthropic import AnthropicConfig
from backend.generation.adapters.gemini import GeminiConfig
from backend.generation.adapters.openai.model import OpenAICompatibleConfig
from backend.generation.catalogue import ListedModel, Price
from backend.generation.registry import ModelRegistry
from backend.settings import Settings


def build_registry(settings: Settings) -> ModelRegistry:
    """The models that the settings name.

    Raises `UnknownModelError` where they name one by default that they do not offer.
    """
    gemini = openai = anthropic = None
    if settings.gemini_api_key is not None:
        gemini = GeminiConfig(
            api_key=settings.gemini_api_key.get_secret_value(),
            models=settings.gemini_models,
            base_url=settings.gemini_base_url or None,
            chunk_timeout=settings.model_silence_seconds,
        )
    if settings.openai_base_url:
        openai = OpenAICompatibleConfig(
            base_url=settings.openai_base_url,
            api_key=(
                settings.openai_api_key.get_secret_value() if settings.openai_api_key else None
            ),
            models=settings.openai_models,
            context_window=settings.openai_context_window,
            max_output_tokens=settings.openai_max_output_tokens,
            server=settings.openai_server,
            chunk_timeout=settings.model_silence_seconds,
        )
    if settings.anthropic_api_key is not None:
        anthropic = AnthropicConfig(
            api_key=settings.anthropic_api_key.get_secret_value(),
            models=settings.anthropic_models,
            base_url=settings.anthropic_base_url or None,
            chunk_timeout=settings.model_silence_seconds,
        )
    registry = ModelRegistry(
        gemini,
        openai,
        anthropic,
        demo_tokens_per_second=settings.demo_tokens_per_second,
        default=settings.default_model,
        told=_told(settings),
        openai_concurrency=settings.openai_concurrency,
    )
    registry.spec(registry.default_id)
    if settings.enrichment_model:
        registry.spec(settings.enrichment_model)
    return registry


def _told(settings: Settings) -> Mapping[str, ListedModel]:
    """Return the figures of models in the settings, by their ids. Sizes count if they were set."""
    sizes: dict[str, Any] = {
        "context_window": settings.openai_context_window,
        "max_output_tokens": settings.openai_max_output_tokens,
    }
    told = {
        f"openai/{name}": ListedModel(
            name=name,
            tool_support=settings.openai_tool_support or None,
            **{
                size: tokens
                for size, tokens in sizes.items()
                if f"openai_{size}" in settings.model_fields_set
            },
        )
        for name in settings.openai_models
    }
    for model, (read, written, *cached) in settings.model_prices.items():
        price = Price(input=read, output=written, cached_input=next(iter(cached), None))
        before = told.get(model, ListedModel(name=model.partition("/")[2] or model))
        told[model] = replace(before, price=price)
    return told
