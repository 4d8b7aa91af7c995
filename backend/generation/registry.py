"""Which models there are, and how to get one by its id."""

from __future__ import annotations

from collections.abc import Sequence

from backend.errors import ValidationError
from backend.generation.anthropic import ADAPTER_ACCEPTS as ANTHROPIC_ACCEPTS
from backend.generation.anthropic import AnthropicConfig, AnthropicModel, AnthropicProvider
from backend.generation.demo import DemoModel
from backend.generation.gemini import ADAPTER_ACCEPTS as GEMINI_ACCEPTS
from backend.generation.gemini import GeminiConfig, GeminiModel, GeminiProvider
from backend.generation.model import ChatModel, ModelSpec
from backend.generation.openai_compatible import ADAPTER_ACCEPTS as OPENAI_ACCEPTS
from backend.generation.openai_compatible import (
    OpenAICompatibleConfig,
    OpenAICompatibleModel,
    OpenAICompatibleProvider,
)
from backend.settings import Settings

_GEMINI_WINDOW = 1_048_576
_GEMINI_MAX_OUTPUT = 65_536
_GEMINI_TITLES = {
    "gemini-2.5-flash": "Gemini 2.5 Flash",
    "gemini-2.5-pro": "Gemini 2.5 Pro",
    "gemini-2.5-flash-lite": "Gemini 2.5 Flash-Lite",
}
_ANTHROPIC_WINDOW = 200_000
_ANTHROPIC_MAX_OUTPUT = 64_000
_PENALTIES = frozenset({"presence_penalty", "frequency_penalty"})
_TAKE_PENALTIES = "gemini-2.0-"
"""The only family that does: others answer every turn with 400 "Penalty is not enabled for this
model". Source: https://github.com/google-gemini/cookbook/issues/1290"""

_THINKS_UNASKED = frozenset({"gemini-2.5-flash", "gemini-2.5-pro"})
"""Flash-Lite thinks when it is given a budget; of other models nothing is known."""


class UnknownModelError(ValidationError):
    """No model has this id, or its provider is not configured; `models` lists the ids."""

    slug, title = "unknown-model", "There is no such model"


def _gemini_spec(name: str) -> ModelSpec:
    """What is known of the Gemini model `name`; one that is not known is taken for a 2.5.

    Source: https://ai.google.dev/gemini-api/docs/models
    """
    return ModelSpec(
        id=f"gemini/{name}",
        provider="gemini",
        name=name,
        title=_GEMINI_TITLES.get(name, name),
        context_window=_GEMINI_WINDOW,
        max_output_tokens=_GEMINI_MAX_OUTPUT,
        tokenizer="gemma3",
        accepts=GEMINI_ACCEPTS if name.startswith(_TAKE_PENALTIES) else GEMINI_ACCEPTS - _PENALTIES,
    )


def _openai_spec(name: str, config: OpenAICompatibleConfig) -> ModelSpec:
    return ModelSpec(
        id=f"openai/{name}",
        provider="openai",
        name=name,
        title=name,
        context_window=config.context_window,
        max_output_tokens=config.max_output_tokens,
        tokenizer="o200k_base",
        accepts=OPENAI_ACCEPTS,
        tool_support=config.tool_support,
    )


def _anthropic_spec(name: str) -> ModelSpec:
    """What is known of the Anthropic model `name`: what all of them have at least.

    Source: https://platform.claude.com/docs/en/about-claude/models/overview
    """
    return ModelSpec(
        id=f"anthropic/{name}",
        provider="anthropic",
        name=name,
        title=name.replace("-", " ").title(),
        context_window=_ANTHROPIC_WINDOW,
        max_output_tokens=_ANTHROPIC_MAX_OUTPUT,
        tokenizer="o200k_base",
        accepts=ANTHROPIC_ACCEPTS,
    )


class ModelRegistry:
    """The models of this installation.

    Making one is cheap: the vendors' SDKs are imported when a model of theirs is first spoken to.
    """

    def __init__(
        self,
        gemini: GeminiConfig | None = None,
        openai: OpenAICompatibleConfig | None = None,
        anthropic: AnthropicConfig | None = None,
        *,
        demo_tokens_per_second: float = 50,
        default: str = "",
    ) -> None:
        self._providers: list[GeminiProvider | OpenAICompatibleProvider | AnthropicProvider] = []
        models: list[ChatModel] = []
        if gemini is not None:
            google = GeminiProvider(gemini)
            self._providers.append(google)
            models += (
                GeminiModel(_gemini_spec(name), google, thinks=name in _THINKS_UNASKED)
                for name in gemini.models
            )
        if openai is not None:
            server = OpenAICompatibleProvider(openai)
            self._providers.append(server)
            models += (
                OpenAICompatibleModel(_openai_spec(name, openai), server) for name in openai.models
            )
        if anthropic is not None:
            maker = AnthropicProvider(anthropic)
            self._providers.append(maker)
            models += (AnthropicModel(_anthropic_spec(name), maker) for name in anthropic.models)
        models.append(DemoModel(demo_tokens_per_second))
        self._models = {model.spec.id: model for model in models}
        self._default = default

    def specs(self) -> Sequence[ModelSpec]:
        """Every model, in the order in which a client should offer them; the demo comes last."""
        return [model.spec for model in self._models.values()]

    @property
    def default_id(self) -> str:
        """Id of the model for those who chose none: the one that was set, else the first."""
        return self._default or next(iter(self._models))

    def spec(self, model_id: str) -> ModelSpec:
        """What is known of a model. Raises `UnknownModelError`."""
        return self.get(model_id).spec

    def get(self, model_id: str) -> ChatModel:
        """The model of that id. Raises `UnknownModelError`."""
        if (model := self._models.get(model_id)) is None:
            raise self._unknown(model_id)
        return model

    async def aclose(self) -> None:
        """Close the connections to the providers; replies under way break off."""
        for provider in self._providers:
            await provider.aclose()

    def _unknown(self, model_id: str) -> UnknownModelError:
        there_are = ", ".join(self._models)
        configured = {model.spec.provider for model in self._models.values()}
        reason = f"There is no model {model_id!r}; there are {there_are}."
        if model_id.startswith("gemini/") and "gemini" not in configured:
            reason += " Gemini is not configured: TALEKEEPER_GEMINI_API_KEY is missing."
        if model_id.startswith("openai/") and "openai" not in configured:
            reason += " No such server is configured: TALEKEEPER_OPENAI_BASE_URL is missing."
        if model_id.startswith("anthropic/") and "anthropic" not in configured:
            reason += " Anthropic is not configured: TALEKEEPER_ANTHROPIC_API_KEY is missing."
        return UnknownModelError(reason, extra={"models": list(self._models)})


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
            tool_support=settings.openai_tool_support,
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
    )
    registry.spec(registry.default_id)
    if settings.enrichment_model:
        registry.spec(settings.enrichment_model)
    return registry
