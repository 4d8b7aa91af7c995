"""The models that each user may ask: of their own providers, the installation's, the environment's.

A user's providers are opened when they are first needed, and kept while the user is here. The
revision on the user's row says whether what is kept still holds; it is 0 where there never were
any, and nothing is looked up then.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.events import UserSignedOut
from backend.accounts.models import User
from backend.generation.anthropic import AnthropicConfig
from backend.generation.gemini import GeminiConfig
from backend.generation.network import NetworkPolicy
from backend.generation.openai_compatible import OpenAICompatibleConfig
from backend.generation.openai_servers import OPENAI_SERVERS
from backend.generation.registry import (
    Adapter,
    Config,
    ModelRegistry,
    OfferedProvider,
    ProviderKind,
    adapter_of,
)
from backend.llm.models import (
    InstallationProvider,
    Provider,
    ProviderConfig,
    by_name,
    open_provider,
)
from backend.logs import get_logger
from backend.setting_types import ServerName
from backend.settings import Settings
from backend.vault.sealing import SealBrokenError, Sealer

log = get_logger(__name__)

MOST_VIEWS = 1_000
"""Users whose providers are kept open; of more, the ones who were here longest ago go."""

KEPT_SECONDS = 300.0
"""How long they are kept after they were last needed."""

UNKNOWN_WINDOW, UNKNOWN_OUTPUT = 32_768, 8_192
"""Tokens, of models of a server of which nobody says how large they are."""

_OWN = select(Provider).where(Provider.user_id == bindparam("owner_id")).order_by(Provider.id)


@dataclass(slots=True)
class _View:
    revision: int
    registry: ModelRegistry
    own: Sequence[OfferedProvider]
    used_at: float


class UserModels(UserSignedOut):
    """Registries of models, one for each user who has providers, and one for all others.

    Args:
        registry: The environment's models.
        settings: How long a silence is borne, and where providers may be.
        clock: Seconds that only go up.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.environment = self.shared = registry
        self._silence = settings.model_silence_seconds
        self.network = NetworkPolicy.from_settings(settings)
        self._clock = clock
        self._views: OrderedDict[UUID, _View] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    async def of(self, session: AsyncSession, user: User, sealer: Sealer) -> ModelRegistry:
        """The models of a user, whose row says which providers it has."""
        if not user.providers_revision:
            return self.shared
        view = self._views.get(user.id)
        if view is None or view.revision < user.providers_revision:
            rows = list(await session.scalars(_OWN, {"owner_id": user.id}))
            before = self._views.pop(user.id, None)
            own = self._opened(sealer, rows, before.own if before else ())
            view = _View(
                user.providers_revision, self.shared.with_providers(own), own, self._clock()
            )
            self._views[user.id] = view
            if before is not None:
                self._retire(_adapters(before.own) - _adapters(own))
            self.sweep()
        view.used_at = self._clock()
        self._views.move_to_end(user.id)
        return view.registry

    async def changed(self, row: Provider | InstallationProvider) -> None:
        """A provider was made, changed or deleted. A user's own are seen by their revision."""

    def offered(
        self, row: Provider | InstallationProvider, config: ProviderConfig, *kept: OfferedProvider
    ) -> OfferedProvider:
        """A provider as it is asked; by the adapter of one of `kept` if that is set up the same."""
        wanted = self._connection(row.kind, config)
        alike = (each.adapter for each in kept if each.adapter.config == wanted)
        return OfferedProvider(
            slug=row.slug,
            name=config.name,
            adapter=next(alike, None) or adapter_of(wanted),
            chosen=by_name(config.models),
            listed=by_name(config.listed),
            is_own=isinstance(row, Provider),
        )

    def user_signed_out(self, user_id: UUID) -> None:
        """Forget a user's providers. Replies that are under way go on."""
        if (view := self._views.pop(user_id, None)) is not None:
            self._retire(_adapters(view.own))

    @property
    def kept(self) -> int:
        """Users whose providers are open."""
        return len(self._views)

    def sweep(self) -> None:
        """Forget the providers of users who were not here for a while."""
        until = self._clock() - KEPT_SECONDS
        while self._views:
            user_id, view = next(iter(self._views.items()))
            if view.used_at > until and len(self._views) <= MOST_VIEWS:
                return
            self.user_signed_out(user_id)

    async def aclose(self) -> None:
        """Close all connections; replies under way break off."""
        for view in self._views.values():
            for provider in view.own:
                await provider.adapter.aclose()
        self._views.clear()
        await asyncio.gather(*self._closing)
        await self.shared.aclose()

    def _opened(
        self, sealer: Sealer, rows: Iterable[Provider], kept: Sequence[OfferedProvider]
    ) -> list[OfferedProvider]:
        opened: list[OfferedProvider] = []
        for row in rows:
            try:
                config = open_provider(sealer, row)
            except SealBrokenError:
                # Without it, so that the others can be used, and this one be deleted.
                log.warning("provider.damaged", provider_id=row.id, user_id=row.user_id)
                continue
            opened.append(self.offered(row, config, *kept))
        return opened

    def _connection(self, kind: ProviderKind, config: ProviderConfig) -> Config:
        silence = self._silence
        key, url = config.api_key, config.base_url
        match kind:
            case "gemini":
                return GeminiConfig(
                    api_key=key or "",
                    base_url=url,
                    extra_headers=config.extra_headers,
                    extra_body=config.extra_body,
                    chunk_timeout=silence,
                    network=self.network,
                )
            case "openai":
                known = config.preset if config.preset in OPENAI_SERVERS else "other"
                return OpenAICompatibleConfig(
                    base_url=url or "",
                    models=(),
                    context_window=UNKNOWN_WINDOW,
                    max_output_tokens=UNKNOWN_OUTPUT,
                    api_key=key,
                    server=cast("ServerName", known),
                    extra_headers=config.extra_headers,
                    extra_body=config.extra_body,
                    chunk_timeout=silence,
                    network=self.network,
                )
            case "anthropic":
                return AnthropicConfig(
                    api_key=key or "",
                    models=(),
                    base_url=url,
                    extra_headers=config.extra_headers,
                    extra_body=config.extra_body,
                    chunk_timeout=silence,
                    network=self.network,
                )

    def _retire(self, adapters: Iterable[Adapter]) -> None:
        for adapter in adapters:
            task = asyncio.ensure_future(adapter.retire())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def kind_of(config: Config) -> ProviderKind:
    """The wire format of a configuration."""
    match config:
        case GeminiConfig():
            return "gemini"
        case OpenAICompatibleConfig():
            return "openai"
        case AnthropicConfig():
            return "anthropic"


def _adapters(providers: Iterable[OfferedProvider]) -> set[Adapter]:
    return {provider.adapter for provider in providers}
