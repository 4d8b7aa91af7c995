"""The models that each user can use: of their own providers, the installation and the environment.

The installation's providers and allowed addresses are reloaded every few seconds, because another
process may change them.

A user's providers are opened at their first use, and kept while the user is active. The revision in
the user's row shows if they are current. It is 0 if the user never had providers, and then nothing
is queried.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TypeVar
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.events import UserSignedOut
from backend.accounts.models import User
from backend.core.logs import get_logger
from backend.database.engine import Database
from backend.generation.catalogue import is_small_model
from backend.generation.client.network import AllowedAddress, NetworkPolicy
from backend.generation.client.provider import AnyProvider, ServerConfig
from backend.generation.registry import KINDS, KindName, ModelRegistry, OfferedProvider
from backend.generation.servers.abilities import ServerAbilities
from backend.llm.models import (
    InstallationProvider,
    Provider,
    ProviderAddress,
    ProviderConfig,
    index_by_name,
    open_provider,
    open_shared,
)
from backend.settings import Settings
from backend.vault.root import RootKeyError, RootKeys
from backend.vault.sealing import SealBrokenError, Sealer

log = get_logger(__name__)


RowT = TypeVar("RowT", Provider, InstallationProvider)

MAX_VIEWS = 1_000
"""Maximum number of users with open providers. The least recently active ones are dropped first."""

RETENTION_SECONDS = 300.0
"""Time that a user's providers stay open after their last use."""

RELOAD_SECONDS = 5.0
"""Interval at which the installation's providers and addresses are reloaded."""

_OWN = select(Provider).where(Provider.user_id == bindparam("owner_id")).order_by(Provider.id)
_SHARED = select(InstallationProvider).order_by(InstallationProvider.id)
_ALLOWED = select(ProviderAddress.host, ProviderAddress.port)


def choose_task_model(models: ModelRegistry, settings: Settings, reply_id: str) -> str:
    """Return the id of the model for background tasks of chats with this reply model.

    It is the server's setting, or else the first small model, or else the reply model. If the
    reply model belongs to the user's own provider, only that provider's models are considered. The
    user may not want other providers to read the story.
    """
    if settings.enrichment_model:
        return settings.enrichment_model
    home = models.providers.get(reply_id.partition("/")[0])
    asked = [home] if home is not None and home.is_own else models.providers.values()
    small = (
        f"{provider.slug}/{name}"
        for provider in asked
        for name in provider.model_names
        if is_small_model(name)
    )
    return next(small, reply_id)


@dataclass(frozen=True, slots=True)
class ProviderEmbedding:
    """An embedding model of a provider, and the configuration of its server."""

    kind: KindName
    config: ServerConfig = field(repr=False)
    model: str


@dataclass(slots=True)
class _View:
    revision: int
    shared: ModelRegistry
    registry: ModelRegistry
    own: Sequence[OfferedProvider]
    used_at: float


class UserModels(UserSignedOut):
    """One registry of models for each user with providers, and one for all other users.

    Args:
        settings: The timeout for silent models, and the allowed networks of providers.
        root: Opens the installation's providers.
        database: Stores learned abilities of servers. None stores nothing.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        settings: Settings,
        root: RootKeys,
        *,
        database: Database | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.environment = self.shared = registry
        self._silence = settings.model_silence_seconds
        self.network = NetworkPolicy.from_settings(settings)
        self._database = database
        self._clock = clock
        self._views: OrderedDict[UUID, _View] = OrderedDict()
        self._root = root
        self._shared_rows: list[tuple[UUID, datetime]] = []
        self._shared_own: Sequence[OfferedProvider] = ()
        self._shared_until = 0.0
        self._reads_begun = self._reads_done = 0
        self._closing: set[asyncio.Task[None]] = set()

    async def of(self, session: AsyncSession, user: User, sealer: Sealer) -> ModelRegistry:
        await self.refresh_shared(session)
        if not user.providers_revision:
            return self.shared
        view = self._views.get(user.id)
        if view is None or view.revision < user.providers_revision:
            rows = list(await session.scalars(_OWN, {"owner_id": user.id}))
            before = self._views.pop(user.id, None)
            own = self._open_providers(
                rows, partial(open_provider, sealer), before.own if before else ()
            )
            registry = self.shared.with_providers(own)
            view = _View(user.providers_revision, self.shared, registry, own, self._clock())
            self._views[user.id] = view
            if before is not None:
                self._retire(_collect_adapters(before.own) - _collect_adapters(own))
            self.sweep()
        elif view.shared is not self.shared:
            view.shared, view.registry = self.shared, self.shared.with_providers(view.own)
        view.used_at = self._clock()
        self._views.move_to_end(user.id)
        return view.registry

    async def refresh_shared(self, session: AsyncSession) -> None:
        if self._clock() >= self._shared_until:
            await self.read_shared(session)

    async def read_shared(self, session: AsyncSession) -> None:
        """Reload providers and addresses. Running replies of deleted providers continue."""
        self._reads_begun += 1
        mine = self._reads_begun
        if self._reads_done:  # others use the current ones during the read
            self._shared_until = self._clock() + RELOAD_SECONDS
        rows = list(await session.scalars(_SHARED))
        listed = [AllowedAddress(*each) for each in await session.execute(_ALLOWED)]
        if mine < self._reads_done:  # a read that began later has finished
            return
        self._reads_done = mine
        self._shared_until = self._clock() + RELOAD_SECONDS
        self.network.listed = frozenset(listed)
        stamps = [(row.id, row.updated_at) for row in rows]
        if stamps == self._shared_rows:
            return
        before = self._shared_own
        self._shared_own = self._open_providers(rows, partial(open_shared, self._root), before)
        self.shared = self.environment.with_providers(self._shared_own)
        self._shared_rows = stamps
        self._retire(_collect_adapters(before) - _collect_adapters(self._shared_own))

    async def find_shared_embedding(self, database: Database) -> ProviderEmbedding | None:
        if self._clock() >= self._shared_until:
            async with database.read() as session:
                await self.read_shared(session)
        for provider in self._shared_own:
            if provider.embedding_model and provider.can_embed:
                config = provider.adapter.config
                return ProviderEmbedding(provider.kind, config, provider.embedding_model)
        return None

    def make_provider(
        self, row: Provider | InstallationProvider, config: ProviderConfig, *kept: OfferedProvider
    ) -> OfferedProvider:
        """Make a provider for requests. It shares the adapter of an equal one of `kept`."""
        wanted = self._configure(row, config)
        alike = (
            each.adapter for each in kept if each.kind == row.kind and each.adapter.adopt(wanted)
        )
        adapter: AnyProvider | None = next(alike, None)
        return OfferedProvider(
            slug=row.slug,
            name=config.name,
            kind=row.kind,
            adapter=adapter or KINDS[row.kind].provider(wanted),
            chosen=index_by_name(config.models),
            listed=index_by_name(config.listed),
            is_own=isinstance(row, Provider),
            embedding_model=config.embedding_model,
            concurrency=config.concurrency,
        )

    def user_signed_out(self, user_id: UUID) -> None:
        if (view := self._views.pop(user_id, None)) is not None:
            self._retire(_collect_adapters(view.own))

    @property
    def kept(self) -> int:
        return len(self._views)

    def sweep(self) -> None:
        until = self._clock() - RETENTION_SECONDS
        while self._views:
            user_id, view = next(iter(self._views.items()))
            if view.used_at > until and len(self._views) <= MAX_VIEWS:
                return
            self.user_signed_out(user_id)

    async def settle(self) -> None:
        await asyncio.gather(*self._closing)

    async def aclose(self) -> None:
        """Close all connections. Running replies end."""
        for providers in (self._shared_own, *(view.own for view in self._views.values())):
            for provider in providers:
                await provider.adapter.aclose()
        self._views.clear()
        await asyncio.gather(*self._closing)
        await self.environment.aclose()

    def _open_providers(
        self,
        rows: Iterable[RowT],
        open_config: Callable[[RowT], ProviderConfig],
        kept: Sequence[OfferedProvider],
    ) -> list[OfferedProvider]:
        opened: list[OfferedProvider] = []
        for row in rows:
            try:
                config = open_config(row)
            except (SealBrokenError, RootKeyError):
                # Skipped, so that the others can be used and this one can be deleted.
                log.warning("provider.damaged", provider_id=row.id)
                continue
            opened.append(self.make_provider(row, config, *kept))
        return opened

    def _configure(
        self, row: Provider | InstallationProvider, config: ProviderConfig
    ) -> ServerConfig:
        return KINDS[row.kind].configure(
            config.preset,
            api_key=config.api_key,
            base_url=config.base_url,
            extra_headers=config.extra_headers,
            extra_body=config.extra_body,
            abilities=read_abilities(row),
            on_learned=partial(self._store_learned, type(row), row.id, row.revision),
            chunk_timeout=self._silence,
            network=self.network,
            is_own=isinstance(row, Provider),
            thought_tags=config.thought_tags,
            reads_thoughts=config.reads_thoughts,
        )

    def _store_learned(
        self,
        table: type[Provider | InstallationProvider],
        row_id: UUID,
        revision: int,
        abilities: ServerAbilities,
    ) -> None:
        if self._database is None:
            return
        task = asyncio.ensure_future(_keep(self._database, table, row_id, revision, abilities))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _retire(self, adapters: Iterable[AnyProvider]) -> None:
        for adapter in adapters:
            task = asyncio.ensure_future(_end(adapter))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def find_usual_concurrency(
    row: Provider | InstallationProvider, config: ProviderConfig
) -> int | None:
    """Return the concurrent requests that a server handles; None if unlimited."""
    server = KINDS[row.kind].configure(config.preset, base_url=config.base_url)
    return server.usual_concurrency(read_abilities(row))


def read_abilities(row: Provider | InstallationProvider) -> ServerAbilities:
    if row.abilities is None:
        return ServerAbilities()
    return msgspec.json.decode(row.abilities, type=ServerAbilities)


async def _keep(
    database: Database,
    table: type[Provider | InstallationProvider],
    row_id: UUID,
    revision: int,
    abilities: ServerAbilities,
) -> None:
    """Store abilities. No task awaits this, and the next reply can learn them again."""
    learned = msgspec.json.encode(abilities).decode()
    try:
        async with database.write() as session:
            await session.execute(
                update(table)
                .where(table.id == row_id, table.revision == revision)
                .values(abilities=learned)
            )
    except Exception as error:  # the reply does not depend on it
        log.warning("provider.abilities_not_stored", provider_id=row_id, exc_info=error)


async def _end(adapter: AnyProvider) -> None:
    """Close an adapter after its last reply. No task awaits this."""
    try:
        await adapter.retire()
    except Exception as error:  # its provider is no longer used
        log.warning("provider.not_closed", exc_info=error)


def _collect_adapters(providers: Iterable[OfferedProvider]) -> set[AnyProvider]:
    return {provider.adapter for provider in providers}
