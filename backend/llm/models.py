"""Tables of model providers, and their sealed configurations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from sqlalchemy import Index, String, UniqueConstraint, true
from sqlalchemy.orm import Mapped, mapped_column

from backend.accounts.keys.rotation import make_provider_context
from backend.database.base import (
    Base,
    CreatedAt,
    ListedOwnerId,
    OwnerId,
    PrimaryId,
    UpdatedAt,
    get_table,
)
from backend.database.processes import Leases
from backend.generation.catalogue import ListedModel, Name
from backend.generation.registry import KindName
from backend.generation.servers.abilities import MAX_CONCURRENCY
from backend.generation.thoughts import ThoughtTags
from backend.llm.slot_rules import SlotUse
from backend.vault.root import RootKeys, Wrapped
from backend.vault.sealing import Column, Sealer

MAX_CHOSEN_MODELS = 500

HeaderName = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
HeaderValue = Annotated[str, msgspec.Meta(max_length=2_000)]


class ProviderFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a provider.

    `models` chooses from the models that the server lists. If it is empty, all are available. A
    value of a model's entry takes precedence over the server's value and Talekeeper's table. An
    installation provider's `embedding_model` embeds the texts of all users. `thought_tags` are
    searched for in addition to the known ones. `reads_thoughts` can switch the search off.
    `concurrency` is the number of requests that the server handles at the same time, 0 for any
    number. If it is None, the preset and the server decide.
    """

    name: Annotated[str, msgspec.Meta(max_length=100)] = ""
    base_url: Annotated[str, msgspec.Meta(max_length=500)] | None = None
    api_key: Annotated[str, msgspec.Meta(max_length=4_000)] | None = None
    extra_headers: Annotated[dict[HeaderName, HeaderValue], msgspec.Meta(max_length=20)] = {}
    extra_body: dict[str, Any] = {}
    models: Annotated[tuple[ListedModel, ...], msgspec.Meta(max_length=MAX_CHOSEN_MODELS)] = ()
    embedding_model: Name | None = None
    thought_tags: Annotated[tuple[ThoughtTags, ...], msgspec.Meta(max_length=10)] = ()
    reads_thoughts: bool = True
    concurrency: Annotated[int, msgspec.Meta(ge=0, le=MAX_CONCURRENCY)] | None = None

    def __repr__(self) -> str:
        """Leave out the key and all other values, because they are private."""
        return f"{type(self).__name__}(...)"


class ProviderConfig(ProviderFields, frozen=True, kw_only=True, omit_defaults=True):
    """The sealed part of a provider: its settings, and results from its server.

    `preset` is the service that it was made for. `listed` are the models that the server listed at
    `listed_at`. `is_cut` is true if it lists more. `failed_test` is true if the provider was saved
    after a failed test.
    """

    preset: str | None = None
    listed: tuple[ListedModel, ...] = ()
    listed_at: datetime | None = None
    is_cut: bool = False
    failed_test: bool = False

    __repr__ = ProviderFields.__repr__


class _ProviderColumns:
    """The columns of both tables.

    `abilities` is learned from an OpenAI-compatible server. It is unencrypted JSON with names of
    models and of settings, because no key is available when it is learned. Turns contain the names
    of models as well.
    """

    id: Mapped[PrimaryId]
    slug: Mapped[str]
    kind: Mapped[KindName] = mapped_column(String)
    abilities: Mapped[str | None]
    revision: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


class Provider(_ProviderColumns, Base):
    """A user's provider. Its slug begins the ids of its models, which turns store unencrypted."""

    __tablename__ = "providers"
    __table_args__ = (UniqueConstraint("user_id", "slug"),)

    user_id: Mapped[ListedOwnerId]
    sealed_config: Mapped[bytes]


class InstallationProvider(_ProviderColumns, Base):
    """A provider for all users, under the root key, because workers have to read it too."""

    __tablename__ = "installation_providers"

    slug: Mapped[str] = mapped_column(unique=True)
    root_version: Mapped[int]
    wrapped_config: Mapped[bytes]


class SlotClaim(Base):
    """A claim to a server with limited concurrency. It waits, or was granted.

    The process that made it, `lease_owner`, renews `lease_until`. A claim with an expired lease
    does not count, because its process has ended. `server_id` is a keyed hash. `rank` and `use` are
    those of `slot_rules`. A row is deleted when its work is over.
    """

    __tablename__ = "slot_claims"
    __table_args__ = (Index(None, "server_id"),)

    id: Mapped[PrimaryId]
    server_id: Mapped[UUID]
    user_id: Mapped[OwnerId]
    chat_id: Mapped[UUID]
    use: Mapped[SlotUse] = mapped_column(String)
    rank: Mapped[int]
    is_granted: Mapped[bool]
    lease_owner: Mapped[UUID | None]
    lease_until: Mapped[datetime]


SLOT_LEASES = Leases(get_table(SlotClaim), true())


class ProviderAddress(Base):
    """A host and port that administrators allow for providers of the whole installation."""

    __tablename__ = "provider_addresses"
    __table_args__ = (UniqueConstraint("host", "port"),)

    id: Mapped[PrimaryId]
    host: Mapped[str]
    port: Mapped[int]
    created_at: Mapped[CreatedAt]


PROVIDER_CONFIG = Column("providers", "sealed_config")


def open_provider(sealer: Sealer, row: Provider) -> ProviderConfig:
    """Decrypt the config of a user's provider. Raises `SealBrokenError`."""
    data = sealer.open_bytes(PROVIDER_CONFIG, row.id, row.sealed_config)
    return msgspec.json.decode(data, type=ProviderConfig)


def seal_provider(sealer: Sealer, row: Provider, config: ProviderConfig) -> None:
    data = msgspec.json.encode(config)
    row.sealed_config = sealer.seal_bytes(PROVIDER_CONFIG, row.id, data)


def open_shared(root: RootKeys, row: InstallationProvider) -> ProviderConfig:
    """Decrypt the config of an installation provider. Raises `RootKeyError`."""
    wrapped = Wrapped(row.root_version, row.wrapped_config)
    return msgspec.json.decode(
        root.unwrap(wrapped, context=make_provider_context(row.id)), type=ProviderConfig
    )


def wrap_shared(root: RootKeys, row: InstallationProvider, config: ProviderConfig) -> None:
    data = msgspec.json.encode(config)
    row.root_version, row.wrapped_config = root.wrap(data, context=make_provider_context(row.id))


def index_by_name(models: Sequence[ListedModel]) -> dict[str, ListedModel]:
    return {model.name: model for model in models}
