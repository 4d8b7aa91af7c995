"""Request and response bodies of the providers' routes, and the known services."""

from datetime import datetime
from typing import Annotated, Literal
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from backend.generation.catalogue import ListedModel, Name
from backend.generation.client.network import NetworkPolicy
from backend.generation.client.provider import ServicePreset
from backend.generation.registry import KINDS, KindName
from backend.generation.thoughts import ThoughtTags
from backend.llm.models import ProviderFields

ProviderScope = Literal["user", "installation", "environment"]
Slug = Annotated[str, msgspec.Meta(pattern="^[a-z0-9][a-z0-9-]{0,39}$")]


class ProviderPreset(ServicePreset, frozen=True, kw_only=True):
    """A service or a program that a provider can be added for.

    `key` says if it needs a key, and `key_url` where to get one. `is_local` is true if it runs on
    this machine. `taken_port` is the program's usual port if Talekeeper itself listens on it. In
    that case `base_url` has the next port.
    """

    kind: KindName
    taken_port: int | None = None


def find_presets(network: NetworkPolicy) -> dict[str, ProviderPreset]:
    """Return all presets by name: services first, then local programs, then any other server.

    Local programs have addresses that work from this process.
    """
    presets = [
        _adapt(ProviderPreset(kind=name, **msgspec.structs.asdict(preset)), network)
        for name, kind in KINDS.items()
        for preset in kind.presets
    ]
    presets.sort(key=lambda preset: (preset.key != "required", not preset.is_local))
    return {preset.name: preset for preset in presets}


def _adapt(preset: ProviderPreset, network: NetworkPolicy) -> ProviderPreset:
    if not preset.is_local or preset.base_url is None:
        return preset
    url, own_port = urlsplit(preset.base_url), network.own_port
    is_taken = url.port == own_port
    port = own_port + 1 if is_taken else url.port
    return msgspec.structs.replace(
        preset,
        base_url=url._replace(netloc=f"{network.machine_host}:{port}").geturl(),
        taken_port=own_port if is_taken else None,
    )


class NewProvider(ProviderFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A provider to add. Absent fields come from its preset. `other` uses its host as its name.

    `slug` begins the ids of its models, which turns store unencrypted. It cannot be changed. The
    scope `installation` is for all users, and only administrators can add such a provider.
    `failed_test` marks it until a test succeeds.
    """

    kind: KindName | None = None
    preset: str | None = None
    slug: Slug | None = None
    scope: Literal["user", "installation"] = "user"
    failed_test: bool = False


class ProviderView(msgspec.Struct, kw_only=True):
    """A provider.

    `key_hint` and the values of `extra_headers` are the last four characters of long secrets. Users
    see only `slug`, `kind`, `name`, `models` and `can_embed` of providers that are not their own.
    Providers of the environment have no `id`, because environment variables define them.
    `usual_concurrency` is used if `concurrency` is null: the number of requests that the server
    handles at the same time, null for any number. `failed_test` is true if it was saved after a
    failed test, and no test has succeeded since.
    """

    id: UUID | None = None
    scope: ProviderScope
    slug: str
    kind: KindName
    name: str
    models: list[ListedModel]
    preset: str | None = None
    base_url: str | None = None
    key_hint: str | None = None
    embedding_model: Name | None = None
    extra_headers: dict[str, str | None] = {}
    extra_body: dict[str, object] = {}
    thought_tags: list[ThoughtTags] = []
    reads_thoughts: bool | None = None
    concurrency: int | None = None
    usual_concurrency: int | None = None
    can_embed: bool = False
    is_editable: bool = False
    failed_test: bool = False
    listed_at: datetime | None = None
    revision: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
