"""Request and response bodies of the providers' routes, and the known services."""

from datetime import datetime
from typing import Annotated, Literal
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from backend.generation.catalogue import ListedModel, Name
from backend.generation.client.network import NetworkPolicy
from backend.generation.registry import ProviderKind
from backend.generation.thoughts import ThoughtTags
from backend.llm.models import ProviderFields

ProviderScope = Literal["user", "installation", "environment"]
Slug = Annotated[str, msgspec.Meta(pattern="^[a-z0-9][a-z0-9-]{0,39}$")]


class ProviderPreset(msgspec.Struct, frozen=True, kw_only=True):
    """A service or a program that a provider can be made for.

    `key` says if it needs a key, and `key_url` where to get one. `is_local` is true if it runs on
    this machine. `taken_port` is the program's usual port if Talekeeper itself listens on it. In
    that case `base_url` has the next port.
    """

    name: str
    title: str
    kind: ProviderKind = "openai"
    base_url: str | None = None
    key: Literal["required", "optional", "none"] = "required"
    key_url: str | None = None
    is_local: bool = False
    taken_port: int | None = None


def _local(name: str, title: str, port: int, *, path: str = "/v1") -> ProviderPreset:
    url = f"http://127.0.0.1:{port}{path}"
    return ProviderPreset(name=name, title=title, base_url=url, key="optional", is_local=True)


PRESETS: tuple[ProviderPreset, ...] = (
    ProviderPreset(
        name="google-ai-studio",
        title="Google AI Studio",
        kind="gemini",
        key_url="https://aistudio.google.com/apikey",
    ),
    ProviderPreset(
        name="openrouter",
        title="OpenRouter",
        base_url="https://openrouter.ai/api/v1",
        key_url="https://openrouter.ai/keys",
    ),
    ProviderPreset(
        name="openai",
        title="OpenAI",
        base_url="https://api.openai.com/v1",
        key_url="https://platform.openai.com/api-keys",
    ),
    ProviderPreset(
        name="anthropic",
        title="Anthropic",
        kind="anthropic",
        key_url="https://console.anthropic.com/settings/keys",
    ),
    ProviderPreset(
        name="deepseek",
        title="DeepSeek",
        base_url="https://api.deepseek.com/v1",
        key_url="https://platform.deepseek.com/api_keys",
    ),
    ProviderPreset(
        name="mistral",
        title="Mistral",
        base_url="https://api.mistral.ai/v1",
        key_url="https://console.mistral.ai/api-keys",
    ),
    _local("ollama", "Ollama", 11434),
    _local("llama-cpp", "llama.cpp", 8080),
    _local("koboldcpp", "KoboldCpp", 5001),
    _local("lm-studio", "LM Studio", 1234),
    _local("vllm", "vLLM", 8000),
    _local("tabbyapi", "TabbyAPI", 5000),
    ProviderPreset(name="other", title="Another OpenAI-compatible server", key="optional"),
)


def find_presets(network: NetworkPolicy) -> dict[str, ProviderPreset]:
    """Return all presets by name. Local programs have addresses that work from this process."""
    return {preset.name: _adapt(preset, network) for preset in PRESETS}


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

    kind: ProviderKind | None = None
    preset: str | None = None
    slug: Slug | None = None
    scope: Literal["user", "installation"] = "user"
    failed_test: bool = False


class ProviderView(msgspec.Struct, kw_only=True):
    """A provider.

    `key_hint` and the values of `extra_headers` are the last four characters of long secrets. Users
    see only `slug`, `kind`, `name` and `models` of providers that are not their own. Providers of
    the environment have no `id`, because environment variables define them. `usual_concurrency` is
    used if `concurrency` is null: the number of requests that the server handles at the same time,
    null for any number. `failed_test` is true if it was saved after a failed test, and no test has
    succeeded since.
    """

    id: UUID | None = None
    scope: ProviderScope
    slug: str
    kind: ProviderKind
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
    is_editable: bool = False
    failed_test: bool = False
    listed_at: datetime | None = None
    revision: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
