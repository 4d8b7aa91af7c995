"""Changes of a user's providers, and by administrators of the installation's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from msgspec.structs import replace
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.keys.slots import refuse_older_root
from backend.accounts.models import User
from backend.accounts.profile.service import EmbeddingChanged
from backend.accounts.repository import lock_accounts
from backend.core.logs import get_logger
from backend.database.base import RecordCreated, new_id, now, record_nothing
from backend.database.engine import Database
from backend.errors import ConflictError, ForbiddenError, NotFoundError, ValidationError
from backend.generation.client.network import AddressRefusedError
from backend.generation.registry import KINDS, KindName, OfferedProvider
from backend.http.schemas import check_revision, merge_patch, reject_unknown
from backend.llm.models import (
    InstallationProvider,
    Provider,
    ProviderConfig,
    ProviderFields,
    open_provider,
    open_shared,
    seal_provider,
    wrap_shared,
)
from backend.llm.providers.schemas import NewProvider, ProviderPreset, ProviderView, find_presets
from backend.llm.user_models import UserModels, find_usual_concurrency
from backend.vault.root import RootKeyError, RootKeys
from backend.vault.sealing import SealBrokenError

log = get_logger(__name__)

MAX_BODY_BYTES = 32_000
MAX_CONFIG_BYTES = 200_000
"""JSON bytes of all settings of one provider."""

MIN_HINTED_LENGTH = 16
"""Secrets of at least this length may show their last four characters."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_PRINTABLE = re.compile(r"[\x20-\x7e]*")
_KEY = re.compile(r"[\x21-\x7e]+")

_RESERVED_HEADERS = frozenset(
    {
        *("host", "authorization", "cookie"),
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"),
        *("content-type", "content-length", "content-encoding", "accept", "accept-encoding"),
    }
).union(*(kind.reserved_headers for kind in KINDS.values()))
"""Headers that the HTTP client or an adapter sets."""


MAX_PROVIDERS = 20
"""Per user, and for the installation."""

MAX_NAME_LENGTH = 100

ProviderRow = Provider | InstallationProvider


def check_config(row: ProviderRow, config: ProviderConfig) -> ProviderConfig:
    """Return the config to store. Raises `ValidationError` with the field's name."""
    key = (config.api_key or "").strip() or None
    url = (config.base_url or "").strip().rstrip("/") or None
    if key is not None and not _KEY.fullmatch(key):
        raise ValidationError(
            "api_key: it contains characters that keys cannot have. Copy it again."
        )
    if url is None and KINDS[row.kind].needs_address:
        raise ValidationError("base_url: required for this kind of provider.")
    if url is not None:
        _check_url(url)
    if config.embedding_model and KINDS[row.kind].embeddings is None:
        raise ValidationError(f"embedding_model: {KINDS[row.kind].title} has no embedding models.")
    _check_headers(config.extra_headers)
    names = [model.name for model in config.models]
    if len(set(names)) < len(names):
        raise ValidationError("models: each name must be unique.")
    if len(msgspec.json.encode(config.extra_body)) > MAX_BODY_BYTES:
        raise ValidationError(f"extra_body: at most {MAX_BODY_BYTES:,} bytes of JSON are allowed.")
    own = {name: getattr(config, name) for name in ProviderFields.__struct_fields__}
    if len(msgspec.json.encode(own)) > MAX_CONFIG_BYTES:
        raise ValidationError(f"A provider can have at most {MAX_CONFIG_BYTES:,} bytes of JSON.")
    return replace(config, name=config.name or row.slug, api_key=key, base_url=url)


def check_origin(before: ProviderConfig, after: ProviderConfig, given: Mapping[str, Any]) -> None:
    """Raise `ValidationError` if secrets would be sent to a server that they were not entered for.

    Otherwise someone who finds an open session could send them to their own server. `given` is the
    patch from `before` to `after`: its secrets were entered for the new address.
    """
    if _origin(before.base_url) == _origin(after.base_url):
        return
    if after.api_key is not None and "api_key" not in given:
        raise ValidationError(
            "api_key: the key was entered for another server's address. Enter "
            "the key again, or remove it."
        )
    kept = after.extra_headers.keys() - (given.get("extra_headers") or {}).keys()
    if kept:
        raise ValidationError(
            f"extra_headers: {min(kept)} was entered for another server's "
            "address. Enter it again, or remove it."
        )


def _origin(url: str | None) -> tuple[str, str | None, int | None] | None:
    if not url:
        return None
    parts = urlsplit(url.strip())
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, parts.port or usual


def mask_secret(secret: str | None) -> str | None:
    return secret[-4:] if secret and len(secret) >= MIN_HINTED_LENGTH else None


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        is_usable = False
    else:
        is_usable = is_usable and not (parts.query or parts.fragment) and "@" not in parts.netloc
    if not is_usable or not _KEY.fullmatch(url):
        raise ValidationError(
            "base_url: enter an address such as https://example.com/v1, without a user name, a "
            "password or a query."
        )


def _check_headers(headers: dict[str, str]) -> None:
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not _PRINTABLE.fullmatch(value):
            raise ValidationError("extra_headers: a name or a value contains invalid characters.")
        if name.lower() in _RESERVED_HEADERS or name.lower().startswith("proxy-"):
            raise ValidationError(f"extra_headers: {name} cannot be set.")
    if len({name.lower() for name in headers}) < len(headers):
        raise ValidationError("extra_headers: each name must be unique.")


class ProviderNotFoundError(NotFoundError):
    """The user has no provider with this id, nor an installation provider that they may change."""

    slug, title = "provider-not-found", "Provider not found"


class SlugTakenError(ConflictError):
    """Another provider of the same owner has this slug."""

    slug, title = "slug-taken", "Provider slug already in use"


class TooManyProvidersError(ConflictError):
    """The owner has the maximum number of providers."""

    slug, title = "too-many-providers", "Too many providers"


class ProviderService:
    """Providers of users and of the installation. No method returns a key."""

    def __init__(
        self,
        database: Database,
        root: RootKeys,
        user_models: UserModels,
        *,
        follow: EmbeddingChanged,
    ) -> None:
        self._embedding_changed = follow
        self._database = database
        self._root = root
        self._user_models = user_models

    async def list_all(self, identity: Identity) -> list[ProviderView]:
        """Return the user's providers, then the installation's, then the environment's."""
        is_administrator = identity.user.is_administrator
        async with self._database.read() as session:
            own = await session.scalars(
                select(Provider).where(Provider.user_id == identity.user_id).order_by(Provider.id)
            )
            shared = await session.scalars(
                select(InstallationProvider).order_by(InstallationProvider.id)
            )
            views = [self._view_or_shell(identity, row) for row in (*own, *shared)]
        environment = map(_make_environment_view, self._user_models.environment.providers.values())
        return [
            view if view.scope == "user" or is_administrator else _make_public_view(view)
            for view in (*views, *environment)
        ]

    async def get(self, identity: Identity, provider_id: UUID) -> ProviderView:
        async with self._database.read() as session:
            return self.view(identity, await find_provider(session, identity, provider_id))

    async def create(
        self,
        identity: Identity,
        new: NewProvider,
        *,
        may_lack_key: bool = False,
        record: RecordCreated = record_nothing,
    ) -> ProviderView:
        """Add a provider. No request is sent to its server.

        With `may_lack_key`, the user adds a required key later. Its models fail until then.
        """
        row = _new_row(identity, new)
        async with self._database.write() as session:
            await _lock_owner(session, row)
            config = await self._check_new(session, row, new, may_lack_key=may_lack_key)
            await self.seal(session, identity, row, config)
            session.add(row)
            await record(session, row.id)
            await self._follow_embedding(session, identity, row)
        await self.apply_change(identity, row)
        return self.view(identity, row)

    async def draft(
        self, identity: Identity, new: NewProvider
    ) -> tuple[ProviderRow, ProviderConfig]:
        """Return a checked provider that is not stored. Raises the errors of `create`."""
        row = _new_row(identity, new)
        async with self._database.read() as session:
            return row, await self._check_new(session, row, new)

    async def patch(
        self, identity: Identity, provider_id: UUID, patch: dict[str, Any], *, if_match: str | None
    ) -> ProviderView:
        """Merge a patch into a provider. Absent fields stay, and null removes a value."""
        reject_unknown(patch, ProviderFields)
        async with self._database.write() as session:
            row = await find_provider(session, identity, provider_id, lock=True)
            check_revision(if_match, row.revision)
            before = self.open(identity, row)
            config = merge_patch(before, patch)
            config = check_config(row, config)
            check_origin(before, config, patch)
            await self._check_address(session, config)
            await self.seal(session, identity, row, config)
            if (before.base_url, before.extra_body) != (config.base_url, config.extra_body):
                row.abilities = None
            row.revision += 1
            await self._follow_embedding(session, identity, row)
        await self.apply_change(identity, row)
        return self.view(identity, row)

    async def delete(self, identity: Identity, provider_id: UUID, *, if_match: str | None) -> None:
        """Delete a provider and its key. Running replies of its models continue."""
        async with self._database.write() as session:
            row = await find_provider(session, identity, provider_id, lock=True)
            check_revision(if_match, row.revision)
            await session.delete(row)
            await self._follow_embedding(session, identity, row)
        await self.apply_change(identity, row)
        await self._database.log.empty_now()

    def open(self, identity: Identity, row: ProviderRow) -> ProviderConfig:
        if isinstance(row, Provider):
            return open_provider(identity.sealer, row)
        return open_shared(self._root, row)

    def view(self, identity: Identity, row: ProviderRow) -> ProviderView:
        return _make_view(self.open(identity, row), row)

    async def apply_change(self, identity: Identity, row: ProviderRow) -> None:
        """Apply a change of an installation provider. A user's own are reloaded by revision."""
        if isinstance(row, InstallationProvider):
            log.info("provider.shared_changed", provider_id=row.id, user_id=identity.user_id)
            async with self._database.read() as session:
                await self._user_models.read_shared(session)

    async def _follow_embedding(
        self, session: AsyncSession, identity: Identity, row: ProviderRow
    ) -> None:
        """Start embedding the account's texts again if this provider embeds them."""
        named = identity.settings.task_models.embedding
        if named is not None and named.partition("/")[0] == row.slug:
            await self._embedding_changed(session, identity)

    async def seal(
        self, session: AsyncSession, identity: Identity, row: ProviderRow, config: ProviderConfig
    ) -> None:
        """Seal a config into its row. The transaction must hold the owner's lock."""
        if isinstance(row, Provider):
            seal_provider(identity.sealer, row, config)
        else:
            await refuse_older_root(session, self._root)
            wrap_shared(self._root, row, config)
        row.updated_at = now()

    async def _check_new(
        self,
        session: AsyncSession,
        row: ProviderRow,
        new: NewProvider,
        *,
        may_lack_key: bool = False,
    ) -> ProviderConfig:
        """Return the config of a new provider, and give its row a kind and a slug."""
        network = self._user_models.network
        row.kind, config = _apply_preset(new, find_presets(network), may_lack_key=may_lack_key)
        own = await _list_slugs(session, row)
        if len(own) >= MAX_PROVIDERS:
            raise TooManyProvidersError(f"The limit is {MAX_PROVIDERS}. Delete one first.")
        if new.slug in own:
            raise SlugTakenError(f"Another provider uses {new.slug!r}. Choose another slug.")
        usual = "server" if new.preset == "other" else new.preset or row.kind
        row.slug = new.slug or _find_free_slug(usual, {*own, *self._user_models.shared.providers})
        config = check_config(row, config)
        await self._check_address(session, config)
        return config

    async def _check_address(self, session: AsyncSession, config: ProviderConfig) -> None:
        if config.base_url is not None:
            await self._user_models.refresh_shared(session)
            try:
                self._user_models.network.check_url(config.base_url)
            except AddressRefusedError as error:
                error.disclose()  # to the user who has just entered it
                raise

    def _view_or_shell(self, identity: Identity, row: ProviderRow) -> ProviderView:
        """Return the view of a provider. A damaged one keeps its id, so that it can be deleted."""
        try:
            return self.view(identity, row)
        except (SealBrokenError, RootKeyError):
            return _make_view(ProviderConfig(name=row.slug), row)


def _new_row(identity: Identity, new: NewProvider) -> ProviderRow:
    """A row without a kind, a slug and a config. Raises `ForbiddenError`."""
    row: ProviderRow = Provider(user_id=identity.user_id)
    if new.scope == "installation":
        if not identity.user.is_administrator:
            raise ForbiddenError("Only an administrator can share a provider with all users.")
        row = InstallationProvider()
    row.id, row.revision = new_id(), 1
    row.created_at = row.updated_at = now()
    return row


def _apply_preset(
    new: NewProvider, presets: Mapping[str, ProviderPreset], *, may_lack_key: bool
) -> tuple[KindName, ProviderConfig]:
    """Return the kind and config of a new provider. Its preset fills the absent fields."""
    preset = presets.get(new.preset) if new.preset is not None else None
    if new.preset is not None and preset is None:
        raise ValidationError(f"preset: choose one of {', '.join(presets)}.")
    kind = new.kind or (preset.kind if preset else None)
    if kind is None:
        raise ValidationError("kind: required if there is no preset.")
    if KINDS[kind].needs_key and not new.api_key and not may_lack_key:
        raise ValidationError("api_key: required for this kind of provider.")
    fields = {name: getattr(new, name) for name in ProviderFields.__struct_fields__}
    config = ProviderConfig(**fields, preset=new.preset, failed_test=new.failed_test)
    if preset is not None:
        if kind != preset.kind:
            raise ValidationError(f"kind: {preset.name} has the kind {preset.kind}.")
        if preset.key == "required" and not config.api_key and not may_lack_key:
            raise ValidationError(
                f"api_key: required for {preset.title}. Get one at {preset.key_url}."
            )
        config = replace(
            config,
            name=config.name or (_find_host(new) if preset.name == "other" else preset.title),
            base_url=config.base_url or preset.base_url,
        )
    return kind, config


def _find_host(new: NewProvider) -> str:
    """Return the host of an unnamed server, or "" for the installation's.

    Users may not see the addresses of the installation's servers.
    """
    if new.scope == "installation" or not new.base_url:
        return ""
    return new.base_url.partition("//")[2].partition("/")[0][:MAX_NAME_LENGTH]


def _make_view(config: ProviderConfig, row: ProviderRow) -> ProviderView:
    return ProviderView(
        id=row.id,
        scope="user" if isinstance(row, Provider) else "installation",
        slug=row.slug,
        kind=row.kind,
        name=config.name,
        models=list(config.models),
        preset=config.preset,
        base_url=config.base_url,
        key_hint=mask_secret(config.api_key),
        embedding_model=config.embedding_model,
        extra_headers={name: mask_secret(value) for name, value in config.extra_headers.items()},
        extra_body=config.extra_body,
        thought_tags=list(config.thought_tags),
        reads_thoughts=config.reads_thoughts,
        concurrency=config.concurrency,
        usual_concurrency=find_usual_concurrency(row, config),
        can_embed=KINDS[row.kind].embeddings is not None,
        is_editable=True,
        failed_test=config.failed_test,
        listed_at=config.listed_at,
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def _make_environment_view(provider: OfferedProvider) -> ProviderView:
    config = provider.adapter.config
    return ProviderView(
        scope="environment",
        slug=provider.slug,
        kind=provider.kind,
        name=provider.name,
        models=list(provider.chosen.values()),
        base_url=config.base_url,
        key_hint=mask_secret(config.api_key),
        concurrency=provider.concurrency,
        usual_concurrency=provider.usual_concurrency,
        can_embed=provider.can_embed,
    )


def _make_public_view(view: ProviderView) -> ProviderView:
    return ProviderView(
        scope=view.scope,
        slug=view.slug,
        kind=view.kind,
        name=view.name,
        models=view.models,
        can_embed=view.can_embed,
    )


async def find_provider(
    session: AsyncSession, identity: Identity, provider_id: UUID, *, lock: bool = False
) -> ProviderRow:
    """Return a provider that the user may change. `lock` locks it until the transaction ends."""
    query = select(Provider).where(Provider.id == provider_id, Provider.user_id == identity.user_id)
    row: ProviderRow | None = await session.scalar(query)
    if row is None and identity.user.is_administrator:
        row = await session.get(InstallationProvider, provider_id)
    if row is None:
        raise ProviderNotFoundError
    if lock:
        await _lock_owner(session, row)
        await session.refresh(row, with_for_update=True)
    return row


async def _lock_owner(session: AsyncSession, row: ProviderRow) -> None:
    """Serialise the changes of an owner's providers. Increments a user's revision."""
    if isinstance(row, Provider):
        counted = {"providers_revision": User.providers_revision + 1}
        await session.execute(update(User).where(User.id == row.user_id).values(counted))
    else:
        await lock_accounts(session)


async def _list_slugs(session: AsyncSession, row: ProviderRow) -> Sequence[str]:
    query = select(type(row).slug)
    if isinstance(row, Provider):
        query = query.where(Provider.user_id == row.user_id)
    return list(await session.scalars(query))


def _find_free_slug(wanted: str, taken: set[str]) -> str:
    names = (wanted if number == 1 else f"{wanted}-{number}" for number in count(1))
    return next(name for name in names if name not in taken)
