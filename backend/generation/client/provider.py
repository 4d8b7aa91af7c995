"""Connections to model servers, and the specification of a provider kind."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

import msgspec
from msgspec import structs

from backend.generation.catalogue import ListedModel, MessageShape
from backend.generation.client.client import ModelClient, make_http_client
from backend.generation.client.network import NetworkPolicy
from backend.generation.failures.failures import FailureSource, find_failure
from backend.generation.model import ChatModel, ModelError, ModelSpec
from backend.generation.sampling import SamplingField
from backend.generation.servers.abilities import ServerAbilities
from backend.generation.thoughts import ThoughtTags
from backend.settings import Settings

ConnectionT = TypeVar("ConnectionT")
ConfigT = TypeVar("ConfigT", bound="ServerConfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The address, key, limits and known abilities of a server.

    Attributes:
        models: The names of the available models.
        base_url: None for the vendor's address.
        extra_headers: Added to each request.
        extra_body: Members added to each request. They replace Talekeeper's.
        abilities: The abilities known at the start.
        on_learned: Called with all abilities after each change.
        chunk_timeout: Maximum silence in a streamed reply, in seconds.
        connect_timeout: Seconds.
        answer_timeout: Maximum time of an answer that is not streamed, in seconds.
        network: The allowed addresses; None allows all, for servers that the operator configured.
        is_own: True if it belongs to the user, who may see its address and its error texts.
        thought_tags: Tags around thoughts in the text, in addition to the known ones.
        reads_thoughts: Look for thoughts in the text.
    """

    api_key: str | None = field(default=None, repr=False)
    models: tuple[str, ...] = ()
    base_url: str | None = None
    extra_headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    abilities: ServerAbilities = field(default=ServerAbilities(), hash=False)
    on_learned: Callable[[ServerAbilities], None] | None = field(default=None, compare=False)
    chunk_timeout: float = 60
    connect_timeout: float = 10
    answer_timeout: float = 300
    network: NetworkPolicy | None = None
    is_own: bool = False
    thought_tags: tuple[ThoughtTags, ...] = ()
    reads_thoughts: bool = True

    def usual_concurrency(self, abilities: ServerAbilities) -> int | None:  # noqa: ARG002
        """Return the number of requests that the server handles at once; None if unlimited."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTraits:
    """Facts about a model that its kind knows by its name. See `ModelSpec`."""

    accepts: frozenset[SamplingField]
    excludes: Mapping[SamplingField, Sequence[SamplingField]] = field(
        default_factory=dict[SamplingField, Sequence[SamplingField]]
    )
    shape: MessageShape = "lenient"


class Lazy(Generic[ConnectionT]):
    """A connection that is made in a thread at its first use."""

    def __init__(self, make: Callable[[], ConnectionT]) -> None:
        self._make = make
        self._making = asyncio.Lock()
        self.made: ConnectionT | None = None

    async def get(self) -> ConnectionT:
        """Return the connection. If `make` raises, the next call tries again."""
        async with self._making:
            if self.made is None:
                self.made = await asyncio.to_thread(self._make)
            return self.made


class ModelProvider(ABC, Generic[ConfigT, ConnectionT]):
    """The connection to one server with one key, shared by its models.

    HTTP libraries and SDKs are imported at first use, because that takes a second.

    Attributes:
        who: Its name in error texts.
        vendor_url: The address if the configuration has none.
        abilities: The configuration's abilities, and those learned since.
    """

    who: ClassVar[str]
    vendor_url: ClassVar[str] = ""

    def __init__(self, config: ConfigT) -> None:
        self.config: ConfigT = config
        self.abilities = config.abilities
        self._connection = Lazy(self._connect)
        self._uses = 0
        self._is_retired = False

    @property
    def base_url(self) -> str:
        return (self.config.base_url or self.vendor_url).rstrip("/")

    @property
    @abstractmethod
    def list_url(self) -> str:
        """The address of the model list."""

    @property
    @abstractmethod
    def default_figures(self) -> ListedModel:
        """The context window and output limit of models with unknown figures."""

    @abstractmethod
    def find_traits(self, model: str) -> ModelTraits:
        """Return what is known of a model by its name."""

    @abstractmethod
    def get_client(self, connection: ConnectionT) -> ModelClient: ...

    @abstractmethod
    def _connect(self) -> ConnectionT:
        """Return a new connection. Runs in a thread."""

    @abstractmethod
    async def _disconnect(self, connection: ConnectionT) -> None:
        """Close a connection."""

    @property
    def source(self) -> FailureSource:
        config = self.config
        return FailureSource(
            who=self.who,
            base_url=config.base_url or self.vendor_url,
            secrets=tuple(filter(None, (config.api_key, *config.extra_headers.values()))),
            is_own=config.is_own,
        )

    def failure(self, error: Exception) -> ModelError:
        """Convert the error of a request into a `ModelError`."""
        return find_failure(error, self.source)

    def _make_client(self, headers: Mapping[str, str]) -> ModelClient:
        """Make a client that sends `headers` and those of the configuration."""
        http = make_http_client(
            connect_timeout=self.config.connect_timeout,
            network=self.config.network,
            headers={**self.config.extra_headers, **headers},
        )
        return ModelClient(http)

    def learn(self, model: str, **changes: Any) -> None:
        """Remember members of `ModelAbilities` that the server's answers have shown."""
        known = structs.replace(self.abilities.find(model), **changes)
        self._remember(self.abilities.with_model(model, known))

    def _remember(self, abilities: ServerAbilities) -> None:
        self.abilities = abilities
        if self.config.on_learned is not None:
            self.config.on_learned(abilities)

    def adopt(self, config: ServerConfig) -> bool:
        """Use `config` if it differs only in `on_learned`. Return False otherwise.

        Different abilities are a difference.
        """
        current = replace(self.config, abilities=self.abilities)
        if not isinstance(config, type(current)) or current != config:
            return False
        self.config = replace(current, on_learned=config.on_learned)
        return True

    async def learn_windows(self, models: Sequence[str]) -> None:
        """Ask the server for the context windows of models and remember them.

        It takes a few seconds at most, and failures change nothing. Most servers cannot be asked.
        """

    async def refresh_slots(self) -> None:
        """Update the number of concurrent requests if the server reports it. Never raises."""

    async def connect(self) -> ConnectionT:
        """Return the client. Raises `ModelUnavailableError`."""
        try:
            return await self._connection.get()
        except Exception as error:  # noqa: BLE001 - an SDK raises anything
            raise self.failure(error) from None

    @asynccontextmanager
    async def open_connection(self) -> AsyncGenerator[ConnectionT, None]:
        """Yield the client for one reply. `retire` waits until the reply ends."""
        self._uses += 1
        try:
            yield await self.connect()
        finally:
            self._uses -= 1
            await self._close_if_unused()

    async def retire(self) -> None:
        """Close the connections as soon as no reply uses them. A later reply opens new ones."""
        self._is_retired = True
        await self._close_if_unused()

    async def aclose(self) -> None:
        """Close the connections; replies in progress are interrupted."""
        connection, self._connection.made = self._connection.made, None
        if connection is not None:
            await self._disconnect(connection)

    async def _close_if_unused(self) -> None:
        if self._is_retired and not self._uses:
            await self.aclose()


AnyProvider = ModelProvider[Any, Any]

Vector = bytes | Sequence[float]
"""An embedding. Bytes are little-endian float32 numbers."""


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A batch of texts to embed. `dimension` is None if the model decides it."""

    model: str
    texts: Sequence[str]
    task: Literal["document", "query"]
    dimension: int | None


class EmbeddingProvider(ModelProvider[ConfigT, ConnectionT]):
    @abstractmethod
    async def embed(self, connection: ConnectionT, request: EmbeddingRequest) -> Sequence[Vector]:
        """Return one vector for each text, as received. Any exception may be raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingKind:
    """The embeddings of a provider kind.

    Attributes:
        label: The name of the server in error texts.
        read_settings: Returns the server of `TALEKEEPER_EMBEDDER`.
        default_model: The model if the settings name none; "" if they have to.
        default_dimension: The dimension to request if the settings name none.
        max_batch: Maximum number of texts in a request.
    """

    label: str
    read_settings: Callable[[Settings], ServerConfig]
    default_model: str = ""
    default_dimension: int | None = None
    max_batch: int | None = None


class ServicePreset(msgspec.Struct, frozen=True, kw_only=True):
    """A service or a program that a provider can be added for.

    `key_url` is the page where users get a key. `is_local` is true if it runs on this machine.
    """

    name: str
    title: str
    base_url: str | None = None
    key: Literal["required", "optional", "none"] = "required"
    key_url: str | None = None
    is_local: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentProvider:
    """A provider that environment variables configure.

    `models` are figures that they set. `concurrency` is as in `OfferedProvider`.
    """

    config: ServerConfig
    models: Sequence[ListedModel] = ()
    concurrency: int | None = None


def _configure(preset: str | None, **fields: Any) -> ServerConfig:  # noqa: ARG001
    return ServerConfig(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderKind:
    """The specification of one wire format. The rest of the backend knows a kind only by this.

    Attributes:
        title: Its name in texts.
        variables: The environment variables that `read_settings` requires.
        read_settings: Returns the provider of the environment, if there is one.
        configure: Makes a configuration from a preset's name and the fields of `ServerConfig`.
        provider: The class of its connections.
        model: The class of its models.
        presets: The services that the page offers.
        tokenizer: The closest vocabulary in `generation.tokens`.
        needs_address: Providers must have a `base_url`.
        needs_key: Providers must have an `api_key`.
        reserved_headers: Lowercase names of the headers that the adapter sets.
        embeddings: None if it has no embedding models.
    """

    title: str
    variables: tuple[str, ...]
    read_settings: Callable[[Settings], EnvironmentProvider | None]
    configure: Callable[..., ServerConfig] = _configure
    provider: Callable[[Any], AnyProvider]
    model: Callable[[ModelSpec, Any], ChatModel]
    presets: tuple[ServicePreset, ...]
    tokenizer: str = "o200k_base"
    needs_address: bool = False
    needs_key: bool = True
    reserved_headers: frozenset[str] = frozenset()
    embeddings: EmbeddingKind | None = None
