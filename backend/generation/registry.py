"""Which models there are, and how to get one by its id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from msgspec import structs

from backend.errors import ValidationError
from backend.generation.adapters.anthropic import ADAPTER_ACCEPTS as ANTHROPIC_ACCEPTS
from backend.generation.adapters.anthropic import EXCLUDES as ANTHROPIC_EXCLUDES
from backend.generation.adapters.anthropic import AnthropicConfig, AnthropicModel, AnthropicProvider
from backend.generation.adapters.demo import DemoModel
from backend.generation.adapters.gemini import ADAPTER_ACCEPTS as GEMINI_ACCEPTS
from backend.generation.adapters.gemini import GeminiConfig, GeminiModel, GeminiProvider
from backend.generation.adapters.openai.dialects import OPENAI_SERVERS, usual_concurrency
from backend.generation.adapters.openai.model import (
    OpenAICompatibleConfig,
    OpenAICompatibleModel,
    OpenAICompatibleProvider,
)
from backend.generation.catalogue import (
    NOTHING,
    Figures,
    ListedModel,
    MessageShape,
    Price,
    figures_of,
)
from backend.generation.model import ChatModel, Fixable, ModelSpec
from backend.generation.sampling import SamplingField
from backend.generation.servers.abilities import ServerLimit, identify_server
from backend.settings import Settings

ProviderKind = Literal["gemini", "openai", "anthropic"]
"""In which wire format a provider is asked."""

Adapter = GeminiProvider | OpenAICompatibleProvider | AnthropicProvider
Config = GeminiConfig | OpenAICompatibleConfig | AnthropicConfig

_PENALTIES = frozenset({"presence_penalty", "frequency_penalty"})
_TAKE_PENALTIES = "gemini-2.0-"
"""The only family that does: others answer every turn with 400 "Penalty is not enabled for this
model". Source: https://github.com/google-gemini/cookbook/issues/1290"""

_THINKS_UNASKED = frozenset({"gemini-2.5-flash", "gemini-2.5-pro"})
"""Flash-Lite thinks when it is given a budget; of other models nothing is known."""

_NAMES: Mapping[ProviderKind, str] = {
    "gemini": "Gemini",
    "openai": "OpenAI-compatible server",
    "anthropic": "Anthropic",
}
_NOT_CONFIGURED = {
    "gemini": "Gemini is not configured: TALEKEEPER_GEMINI_API_KEY is missing.",
    "openai": "No such server is configured: TALEKEEPER_OPENAI_BASE_URL is missing.",
    "anthropic": "Anthropic is not configured: TALEKEEPER_ANTHROPIC_API_KEY is missing.",
}


_WRITE_NO_TEXT = ("embed", "rerank", "bge-", "minilm", "whisper", "tts-", "dall-e", "moderation")
"""Parts of names of models that servers list beside those that write."""

MOST_SHOWN = 100
"""Ids in an error: a provider may list thousands."""


class UnknownModelError(ValidationError):
    """No model has this id, or its provider is not configured."""

    slug, title = "unknown-model", "Model not found"


class NoEmbeddingsError(ValidationError):
    """The provider of this model has no embeddings."""

    slug, title = "no-embeddings", "The provider has no embedding models"


def adapter_of(config: Config) -> Adapter:
    """What speaks to the server of a configuration. Nothing is connected yet."""
    match config:
        case GeminiConfig():
            return GeminiProvider(config)
        case OpenAICompatibleConfig():
            return OpenAICompatibleProvider(config)
        case AnthropicConfig():
            return AnthropicProvider(config)


def _defaults(config: Config) -> ListedModel:
    """What a model is taken for of which nobody knows more: what a server's models have at least.

    Sources: https://ai.google.dev/gemini-api/docs/models,
    https://platform.claude.com/docs/en/about-claude/models/overview
    """
    match config:
        case GeminiConfig():
            return ListedModel(name="-", context_window=1_048_576, max_output_tokens=65_536)
        case OpenAICompatibleConfig():
            return ListedModel(
                name="-",
                context_window=config.context_window,
                max_output_tokens=config.max_output_tokens,
            )
        case AnthropicConfig():
            return ListedModel(name="-", context_window=200_000, max_output_tokens=64_000)


def _writes_no_text(name: str) -> bool:
    return any(part in name.lower() for part in _WRITE_NO_TEXT)


@dataclass(slots=True, kw_only=True)
class OfferedProvider:
    """A provider as one user sees it, and its models, which are made when they are asked for.

    Attributes:
        slug: What the ids of its models begin with.
        name: What people call it.
        chosen: What its user says of its models; those alone are on offer, unless there are none.
        listed: What its server listed last.
        is_own: Whether it is the user's own.
        embedding_model: Which of its models embeds, where it has one.
        concurrency: Requests that its server answers at the same time, as its user says: 0 for any
            number, None to leave it to the server and to its kind.
    """

    slug: str
    name: str
    adapter: Adapter
    chosen: Mapping[str, ListedModel] = field(default_factory=dict[str, ListedModel])
    listed: Mapping[str, ListedModel] = field(default_factory=dict[str, ListedModel])
    is_own: bool = False
    embedding_model: str | None = None
    concurrency: int | None = None
    _made: dict[str, ChatModel] = field(default_factory=dict[str, ChatModel])

    @property
    def can_embed(self) -> bool:
        """Whether its wire format has embeddings."""
        return not isinstance(self.adapter, AnthropicProvider)

    @property
    def usual_concurrency(self) -> int | None:
        """Requests at the same time if its user sets nothing; None for any number."""
        if not isinstance(self.adapter, OpenAICompatibleProvider):
            return None
        return usual_concurrency(self.adapter.config.server, self.adapter.abilities)

    @property
    def limit(self) -> ServerLimit | None:
        """The limit of its server; None if that answers any number of requests at a time."""
        usual = self.usual_concurrency
        concurrency = usual if self.concurrency is None else self.concurrency
        if not concurrency:
            return None
        adapter, config = self.adapter, self.adapter.config
        server = identify_server(config.base_url, config.api_key, config.extra_headers)
        if self.concurrency is None and isinstance(adapter, OpenAICompatibleProvider):
            return ServerLimit(concurrency, server, refresh=adapter.refresh_slots)
        return ServerLimit(concurrency, server)

    @property
    def model_names(self) -> Iterable[str]:
        """The models on offer, in the order in which to offer them.

        Of those that a server listed, models that by their names write no text come last: the
        first model is the default.
        """
        return self.chosen or sorted(self.listed, key=_writes_no_text)

    def get(self, name: str) -> ChatModel | None:
        """The model of that name, if it is on offer, with the window that is known by now."""
        if name not in self._made and name in (self.chosen or self.listed):
            self._made[name] = self._make(name)
        model, learned = self._made.get(name), self.adapter.abilities.of(name).window
        if model is not None and model.spec.learned_window != learned:
            model.spec = replace(model.spec, **self._sizes(name))
        return model

    def learn_window(self, name: str, window: int) -> None:
        """Remember the context window that a model's server has shown, in tokens."""
        self.adapter.learn(name, window=window)

    def _figures(self, name: str) -> Figures:
        return figures_of(
            name,
            chosen=self.chosen.get(name, NOTHING),
            learned_window=self.adapter.abilities.of(name).window,
            listed=self.listed.get(name, NOTHING),
            default=_defaults(self.adapter.config),
        )

    def _sizes(self, name: str) -> dict[str, Any]:
        """Return the members of a model's spec that depend on its window."""
        figures = self._figures(name)
        return {
            "context_window": figures.context_window,
            "max_output_tokens": figures.max_output_tokens,
            "figures_from": figures.figures_from,
            "learned_window": self.adapter.abilities.of(name).window,
        }

    def _make(self, name: str) -> ChatModel:
        match self.adapter:
            case GeminiProvider() as google:
                takes_all = name.startswith(_TAKE_PENALTIES)
                accepts = GEMINI_ACCEPTS if takes_all else GEMINI_ACCEPTS - _PENALTIES
                spec = self._spec(name, accepts=accepts, tokenizer="gemma3")
                return GeminiModel(spec, google, thinks=name in _THINKS_UNASKED)
            case OpenAICompatibleProvider() as server:
                kind = OPENAI_SERVERS[server.config.server]
                spec = self._spec(name, accepts=kind.accepts, shape=kind.shape)
                return OpenAICompatibleModel(spec, server)
            case AnthropicProvider() as maker:
                spec = self._spec(name, accepts=ANTHROPIC_ACCEPTS, excludes=ANTHROPIC_EXCLUDES)
                return AnthropicModel(spec, maker)

    def _spec(
        self,
        name: str,
        *,
        accepts: frozenset[SamplingField],
        tokenizer: str = "o200k_base",
        shape: MessageShape = "lenient",
        excludes: Mapping[SamplingField, Sequence[SamplingField]] | None = None,
    ) -> ModelSpec:
        """Return a spec with each fact as the user set it, else as learned, else the default.

        `shape` is the default of the model's preset.
        """
        chosen, known = self.chosen.get(name, NOTHING), self.adapter.abilities.of(name)
        set_by_user: Mapping[Fixable, object] = {
            "tool_support": chosen.tool_support,
            "shape": chosen.message_shape,
        }
        figures = self._figures(name)
        return ModelSpec(
            id=f"{self.slug}/{name}",
            provider=self.slug,
            name=name,
            title=figures.title,
            tokenizer=tokenizer,
            accepts=accepts.difference(known.refused),
            refused=accepts.intersection(known.refused),
            tool_support=chosen.tool_support or known.tools or "native",
            excludes=excludes or {},
            shape=chosen.message_shape or known.shape or shape,
            fixed=frozenset(name for name, value in set_by_user.items() if value is not None),
            provider_name=self.name,
            price=figures.price,
            abilities=figures.abilities,
            **self._sizes(name),
        )


class ModelRegistry:
    """The models that somebody may ask: those of providers, and the demo.

    Making one is cheap: slow libraries are imported when a model is first asked.
    The models of the environment's providers are here from the start; `with_providers` gives a
    registry with others in front of them. `built_in` is there without a provider: the demo.
    `told` is what the settings say of models, by their ids; `openai_concurrency` is as
    `OfferedProvider.concurrency`.
    """

    def __init__(
        self,
        gemini: GeminiConfig | None = None,
        openai: OpenAICompatibleConfig | None = None,
        anthropic: AnthropicConfig | None = None,
        *,
        demo_tokens_per_second: float = 50,
        default: str = "",
        built_in: ChatModel | None = None,
        told: Mapping[str, ListedModel] | None = None,
        openai_concurrency: int | None = None,
    ) -> None:
        configured: dict[ProviderKind, Config | None] = {
            "gemini": gemini,
            "openai": openai,
            "anthropic": anthropic,
        }
        self.providers: Mapping[str, OfferedProvider] = {
            kind: OfferedProvider(
                slug=kind,
                name=_NAMES[kind],
                adapter=adapter_of(config),
                chosen={
                    name: (told or {}).get(f"{kind}/{name}") or ListedModel(name=name)
                    for name in config.models
                },
                concurrency=openai_concurrency if kind == "openai" else None,
            )
            for kind, config in configured.items()
            if config is not None
        }
        self._built_in = built_in or DemoModel(demo_tokens_per_second)
        self._default = default

    def with_providers(self, providers: Iterable[OfferedProvider]) -> ModelRegistry:
        """These providers, then those that are here already and of another slug."""
        made = copy(self)
        added = {provider.slug: provider for provider in providers}
        made.providers = added | {
            slug: each for slug, each in self.providers.items() if slug not in added
        }
        return made

    def ids(self) -> list[str]:
        """Every model's id, in the order in which a client should offer them; the demo is last."""
        named = [
            f"{slug}/{name}" for slug, each in self.providers.items() for name in each.model_names
        ]
        return [*named, self._built_in.spec.id]

    def specs(self) -> Sequence[ModelSpec]:
        """Every model, in the order of their ids."""
        return list(map(self.spec, self.ids()))

    @property
    def default_id(self) -> str:
        """Id of the model for those who chose none: the one that was set, else the first."""
        if self._default:
            return self._default
        first = (
            f"{slug}/{name}" for slug, each in self.providers.items() for name in each.model_names
        )
        return next(first, self._built_in.spec.id)

    def spec(self, model_id: str) -> ModelSpec:
        """What is known of a model. Raises `UnknownModelError`."""
        return self.get(model_id).spec

    def find_limit(self, model_id: str) -> ServerLimit | None:
        provider = self.providers.get(model_id.partition("/")[0])
        return provider.limit if provider else None

    def price(self, model_id: str) -> Price | None:
        """What a model costs; None as well where it is on offer no longer."""
        try:
            return self.spec(model_id).price
        except UnknownModelError:
            return None

    def get(self, model_id: str) -> ChatModel:
        """The model of that id. Raises `UnknownModelError`."""
        if model_id == self._built_in.spec.id:
            return self._built_in
        slug, _, name = model_id.partition("/")
        provider = self.providers.get(slug)
        if provider is None or (model := provider.get(name)) is None:
            raise self._unknown(model_id, slug)
        return model

    def learn_window(self, model_id: str, window: int) -> None:
        """Remember the context window that a model's server has shown, in tokens."""
        slug, _, name = model_id.partition("/")
        if (provider := self.providers.get(slug)) is not None:
            provider.learn_window(name, window)

    def embedding_server(self, model_id: str) -> tuple[Config, str]:
        """The server of an embedding model, and the model's name there.

        Any name will do: many servers list their embedding models nowhere. Raises
        `UnknownModelError` where there is no such provider, `NoEmbeddingsError`.
        """
        slug, _, name = model_id.partition("/")
        provider = self.providers.get(slug)
        able = [each for each, it in self.providers.items() if it.can_embed]
        named = ", ".join(able[:MOST_SHOWN]) or "none"
        if provider is None or not name:
            raise UnknownModelError(
                f"{model_id!r} is not an embedding model. Use <provider>/<model>. Providers that "
                f"can embed: {named}."
            )
        if not provider.can_embed:
            raise NoEmbeddingsError(
                f"{provider.name} has no embedding models. Providers that can embed: {named}."
            )
        return provider.adapter.config, name

    async def aclose(self) -> None:
        """Close the connections to the providers; replies under way break off."""
        for provider in self.providers.values():
            await provider.adapter.aclose()

    def _unknown(self, model_id: str, slug: str) -> UnknownModelError:
        ids = self.ids()
        shown = ", ".join(ids[:MOST_SHOWN]) + (" and more" if len(ids) > MOST_SHOWN else "")
        reason = f"There is no model {model_id!r}; there are {shown}."
        if slug not in self.providers and slug in _NOT_CONFIGURED:
            reason += f" {_NOT_CONFIGURED[slug]}"
        return UnknownModelError(reason, extra={"models": ids[:MOST_SHOWN]})


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
        told[model] = structs.replace(before, price=price)
    return told
