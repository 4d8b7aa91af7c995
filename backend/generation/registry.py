"""The provider kinds, and the registry of available models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from msgspec import structs

from backend.errors import ValidationError
from backend.generation.adapters.anthropic import ANTHROPIC
from backend.generation.adapters.demo import DemoModel
from backend.generation.adapters.gemini import GEMINI
from backend.generation.adapters.openai.model import OPENAI_COMPATIBLE
from backend.generation.catalogue import (
    NOTHING,
    Figures,
    ImageSupport,
    ListedModel,
    Price,
    combine_figures,
)
from backend.generation.client.provider import (
    AnyProvider,
    EnvironmentProvider,
    ProviderKind,
    ServerConfig,
)
from backend.generation.model import ChatModel, Fixable, ModelSpec
from backend.generation.servers.abilities import ServerLimit, identify_server
from backend.settings import Settings

KindName = Literal["gemini", "openai", "anthropic"]

KINDS: Mapping[KindName, ProviderKind] = {
    "gemini": GEMINI,
    "openai": OPENAI_COMPATIBLE,
    "anthropic": ANTHROPIC,
}
"""All provider kinds. The first one in the environment provides the default model."""

_NO_TEXT_PARTS = ("embed", "rerank", "bge-", "minilm", "whisper", "tts-", "dall-e", "moderation")
"""Parts of the names of listed models that write no text."""

MAX_SHOWN = 100
"""Maximum number of ids in an error, because a provider may list thousands."""


class UnknownModelError(ValidationError):
    """No model has this id, or its provider is not configured."""

    slug, title = "unknown-model", "Model not found"


class NoEmbeddingsError(ValidationError):
    """The provider has no embedding models. Choose another provider."""

    slug, title = "no-embeddings", "The provider has no embedding models"


def _writes_no_text(name: str) -> bool:
    return any(part in name.lower() for part in _NO_TEXT_PARTS)


@dataclass(slots=True, kw_only=True)
class OfferedProvider:
    """A provider of one user, and its models, which are created at first use.

    Attributes:
        slug: The prefix of its models' ids.
        name: Its name on the page.
        chosen: The user's figures of models. If there are any, only those models are available.
        listed: The models in the server's last list.
        is_own: True if it belongs to the user.
        embedding_model: The name of its embedding model, if it has one.
        concurrency: Maximum number of concurrent requests, set by the user. 0 is unlimited; None
            uses the number of the server or its kind.
    """

    slug: str
    name: str
    kind: KindName
    adapter: AnyProvider
    chosen: Mapping[str, ListedModel] = field(default_factory=dict[str, ListedModel])
    listed: Mapping[str, ListedModel] = field(default_factory=dict[str, ListedModel])
    is_own: bool = False
    embedding_model: str | None = None
    concurrency: int | None = None
    _made: dict[str, ChatModel] = field(default_factory=dict[str, ChatModel])
    _shown: dict[str, tuple[int | None, ImageSupport | None]] = field(
        default_factory=dict[str, "tuple[int | None, ImageSupport | None]"]
    )

    @property
    def can_embed(self) -> bool:
        return KINDS[self.kind].embeddings is not None

    @property
    def usual_concurrency(self) -> int | None:
        """Concurrent requests if the user sets no number; None if unlimited."""
        config: ServerConfig = self.adapter.config
        return config.usual_concurrency(self.adapter.abilities)

    @property
    def limit(self) -> ServerLimit | None:
        """The limit of its server; None if unlimited."""
        usual = self.usual_concurrency
        concurrency = usual if self.concurrency is None else self.concurrency
        if not concurrency:
            return None
        config = self.adapter.config
        server = identify_server(config.base_url, config.api_key, config.extra_headers)
        refresh = self.adapter.refresh_slots if self.concurrency is None else None
        return ServerLimit(concurrency, server, refresh=refresh)

    @property
    def model_names(self) -> Iterable[str]:
        """The available models, the default first.

        Listed models that write no text, judging by their names, come last.
        """
        return self.chosen or sorted(self.listed, key=_writes_no_text)

    def get(self, name: str) -> ChatModel | None:
        """Return an available model with the facts that its server has shown by now."""
        if name not in self._made and name in (self.chosen or self.listed):
            self._made[name] = KINDS[self.kind].model(self._make_spec(name), self.adapter)
        model, known = self._made.get(name), self.adapter.abilities.find(name)
        if model is not None and self._shown.get(name) != (known.window, known.images):
            self._shown[name] = known.window, known.images
            model.spec = replace(model.spec, **self._find_facts(name))
        return model

    def learn_window(self, name: str, window: int) -> None:
        """Remember a context window that the server has shown, in tokens."""
        self.adapter.learn(name, window=window)

    def _find_figures(self, name: str) -> Figures:
        known = self.adapter.abilities.find(name)
        return combine_figures(
            name,
            chosen=self.chosen.get(name, NOTHING),
            learned_window=known.window,
            learned_images=known.images,
            listed=self.listed.get(name, NOTHING),
            default=self.adapter.default_figures,
        )

    def _find_facts(self, name: str) -> dict[str, Any]:
        """Return the fields of `ModelSpec` that depend on the learned window and images."""
        figures = self._find_figures(name)
        return {
            "context_window": figures.context_window,
            "max_output_tokens": figures.max_output_tokens,
            "figures_from": figures.figures_from,
            "learned_window": self.adapter.abilities.find(name).window,
            "abilities": figures.abilities,
            "image_support": figures.image_support,
        }

    def _make_spec(self, name: str) -> ModelSpec:
        """Combine a model's facts. User settings precede learned facts, and those the defaults."""
        chosen, known = self.chosen.get(name, NOTHING), self.adapter.abilities.find(name)
        traits = self.adapter.find_traits(name)
        set_by_user: Mapping[Fixable, object] = {
            "tool_support": chosen.tool_support,
            "shape": chosen.message_shape,
        }
        figures = self._find_figures(name)
        return ModelSpec(
            id=f"{self.slug}/{name}",
            provider=self.slug,
            name=name,
            title=figures.title,
            tokenizer=KINDS[self.kind].tokenizer,
            accepts=traits.accepts.difference(known.refused),
            refused=traits.accepts.intersection(known.refused),
            tool_support=chosen.tool_support or known.tools or "native",
            excludes=traits.excludes,
            shape=chosen.message_shape or known.shape or traits.shape,
            fixed=frozenset(name for name, value in set_by_user.items() if value is not None),
            provider_name=self.name,
            price=figures.price,
            is_own=self.is_own,
            **self._find_facts(name),
        )


class ModelRegistry:
    """The available models of providers, and the built-in demo model.

    Models are created without importing slow libraries; those are imported at the first request.

    Args:
        demo_tokens_per_second: The speed of the demo model.
        default: The id of the default model; "" for the first one.
        built_in: Replaces the demo model.
        figures: Figures of models from the settings, by id.
        concurrency: As in `OfferedProvider`, by kind.
        configs: The servers of the environment, by kind.
    """

    def __init__(
        self,
        *,
        demo_tokens_per_second: float = 50,
        default: str = "",
        built_in: ChatModel | None = None,
        figures: Mapping[str, ListedModel] | None = None,
        concurrency: Mapping[KindName, int | None] | None = None,
        **configs: ServerConfig | None,
    ) -> None:
        self.providers: Mapping[str, OfferedProvider] = {
            name: OfferedProvider(
                slug=name,
                name=kind.title,
                kind=name,
                adapter=kind.provider(config),
                chosen={
                    model: (figures or {}).get(f"{name}/{model}") or ListedModel(name=model)
                    for model in config.models
                },
                concurrency=(concurrency or {}).get(name),
            )
            for name, kind in KINDS.items()
            if (config := configs.pop(name, None)) is not None
        }
        if configs:
            raise TypeError(f"There are no such provider kinds: {', '.join(configs)}.")
        self._built_in = built_in or DemoModel(demo_tokens_per_second)
        self._default = default

    def with_providers(self, providers: Iterable[OfferedProvider]) -> ModelRegistry:
        """Return a registry with these providers first. They replace those with the same slug."""
        made = copy(self)
        added = {provider.slug: provider for provider in providers}
        made.providers = added | {
            slug: each for slug, each in self.providers.items() if slug not in added
        }
        return made

    def ids(self) -> list[str]:
        """Return all ids in the order to offer them. The demo model is last."""
        named = [
            f"{slug}/{name}" for slug, each in self.providers.items() for name in each.model_names
        ]
        return [*named, self._built_in.spec.id]

    def specs(self) -> Sequence[ModelSpec]:
        return list(map(self.spec, self.ids()))

    @property
    def default_id(self) -> str:
        """The model of users who have chosen none: that of the settings, or else the first."""
        if self._default:
            return self._default
        first = (
            f"{slug}/{name}" for slug, each in self.providers.items() for name in each.model_names
        )
        return next(first, self._built_in.spec.id)

    def spec(self, model_id: str) -> ModelSpec:
        """Return the facts of a model. Raises `UnknownModelError`."""
        return self.get(model_id).spec

    def find_limit(self, model_id: str) -> ServerLimit | None:
        provider = self.providers.get(model_id.partition("/")[0])
        return provider.limit if provider else None

    def price(self, model_id: str) -> Price | None:
        """Return the price of a model; None if it is unknown or the model is not available."""
        try:
            return self.spec(model_id).price
        except UnknownModelError:
            return None

    def get(self, model_id: str) -> ChatModel:
        """Return a model. Raises `UnknownModelError`."""
        if model_id == self._built_in.spec.id:
            return self._built_in
        slug, _, name = model_id.partition("/")
        provider = self.providers.get(slug)
        if provider is None or (model := provider.get(name)) is None:
            raise self._make_unknown_error(model_id, slug)
        return model

    def learn_window(self, model_id: str, window: int) -> None:
        """Remember a context window that the server has shown, in tokens."""
        slug, _, name = model_id.partition("/")
        if (provider := self.providers.get(slug)) is not None:
            provider.learn_window(name, window)

    def find_embedding(self, model_id: str) -> tuple[OfferedProvider, str]:
        """Return the provider and the name of an embedding model.

        The name is not checked, because many servers do not list their embedding models. Raises
        `UnknownModelError`, `NoEmbeddingsError`.
        """
        slug, _, name = model_id.partition("/")
        provider = self.providers.get(slug)
        able = [each for each, it in self.providers.items() if it.can_embed]
        named = ", ".join(able[:MAX_SHOWN]) or "none"
        if provider is None or not name:
            raise UnknownModelError(
                f"{model_id!r} is not an embedding model. Use <provider>/<model>. Providers that "
                f"can embed: {named}."
            )
        if not provider.can_embed:
            raise NoEmbeddingsError(
                f"{provider.name} has no embedding models. Providers that can embed: {named}."
            )
        return provider, name

    async def aclose(self) -> None:
        """Close all connections. Running replies are interrupted."""
        for provider in self.providers.values():
            await provider.adapter.aclose()

    def _make_unknown_error(self, model_id: str, slug: str) -> UnknownModelError:
        ids = self.ids()
        shown = ", ".join(ids[:MAX_SHOWN]) + (" and more" if len(ids) > MAX_SHOWN else "")
        reason = f"There is no model {model_id!r}. Available models: {shown}."
        kind = KINDS.get(cast("KindName", slug))
        if slug not in self.providers and kind is not None:
            reason += f" {kind.title} is not configured: {kind.variables[0]} is missing."
        return UnknownModelError(reason, extra={"models": ids[:MAX_SHOWN]})


def build_registry(settings: Settings) -> ModelRegistry:
    """Return the models of the settings. Raises `UnknownModelError` for an unknown default."""
    environment: dict[KindName, EnvironmentProvider] = {
        name: provider
        for name, kind in KINDS.items()
        if (provider := kind.read_settings(settings)) is not None
    }
    figures = {
        f"{kind}/{model.name}": model
        for kind, provider in environment.items()
        for model in provider.models
    }
    for model_id, (read, written, *cached) in settings.model_prices.items():
        price = Price(input=read, output=written, cached_input=next(iter(cached), None))
        name = model_id.partition("/")[2] or model_id
        known = figures.get(model_id, ListedModel(name=name))
        figures[model_id] = structs.replace(known, price=price)
    concurrency: dict[KindName, int | None] = {
        kind: provider.concurrency for kind, provider in environment.items()
    }
    configs: dict[str, Any] = {kind: provider.config for kind, provider in environment.items()}
    registry = ModelRegistry(
        demo_tokens_per_second=settings.demo_tokens_per_second,
        default=settings.default_model,
        figures=figures,
        concurrency=concurrency,
        **configs,
    )
    registry.spec(registry.default_id)
    if settings.enrichment_model:
        registry.spec(settings.enrichment_model)
    return registry
