"""The connection to a server of models: shared by its models, made late, closed when unused."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import structs

from backend.generation.client.client import ModelClient, make_http_client
from backend.generation.client.network import NetworkPolicy
from backend.generation.failures.failures import FailureSource, find_failure
from backend.generation.model import ModelError
from backend.generation.servers.abilities import ServerAbilities
from backend.generation.thoughts import ThoughtTags

ConnectionT = TypeVar("ConnectionT")
ConfigT = TypeVar("ConfigT", bound="ServerConfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The address, key, limits and known abilities of a server.

    Attributes:
        api_key: The key that is sent, if there is one.
        models: The names of its models that are on offer.
        base_url: Its address; None for the vendor's own.
        extra_headers: Headers that each request gets.
        extra_body: Members that each request gets. They replace those of Talekeeper.
        abilities: What the server's answers have shown so far.
        on_learned: Is called with all abilities when there is a new one.
        chunk_timeout: The longest silence in a streamed reply, in seconds.
        connect_timeout: The longest wait for a connection, in seconds.
        answer_timeout: The longest wait for an answer that is not streamed, in seconds.
        network: Where it may connect; None for a server that the operator named.
        is_own: It belongs to the user who asks it, who may see its address and its own words.
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


class Lazy(Generic[ConnectionT]):
    """A connection that `make` makes in a thread, once, when it is first needed."""

    def __init__(self, make: Callable[[], ConnectionT]) -> None:
        self._make = make
        self._making = asyncio.Lock()
        self.made: ConnectionT | None = None

    async def get(self) -> ConnectionT:
        """Make it, or wait until another task has made it. If `make` raises, try again later."""
        async with self._making:
            if self.made is None:
                self.made = await asyncio.to_thread(self._make)
            return self.made


class ModelProvider(ABC, Generic[ConfigT, ConnectionT]):
    """The connection to one server under one key, shared by its models.

    HTTP libraries and SDKs are imported at first use, because they take a second. `config` is the
    adapter's own. `abilities` begin with those of the configuration and grow by `learn`.
    `who` is its name in error texts, `vendor_url` the vendor's own address.
    """

    who: ClassVar[str]
    vendor_url: ClassVar[str] = ""

    def __init__(self, config: ConfigT) -> None:
        self.config: ConfigT = config
        self.abilities = config.abilities
        self._connection = Lazy(self._connect)
        self._uses = 0
        self._is_retired = False

    @abstractmethod
    def _connect(self) -> ConnectionT:
        """Make the client. Runs in a thread."""

    @abstractmethod
    async def _disconnect(self, connection: ConnectionT) -> None:
        """Close the client's connections."""

    @property
    def source(self) -> FailureSource:
        """The provider as its errors describe it."""
        config = self.config
        return FailureSource(
            who=self.who,
            base_url=config.base_url or self.vendor_url,
            secrets=tuple(filter(None, (config.api_key, *config.extra_headers.values()))),
            is_own=config.is_own,
        )

    def failure(self, error: Exception) -> ModelError:
        """Return the error of a request as the `ModelError` that names its cause."""
        return find_failure(error, self.source)

    def _make_client(self, headers: Mapping[str, str]) -> ModelClient:
        """Make a client of this configuration that sends `headers` and the user's own."""
        http = make_http_client(
            connect_timeout=self.config.connect_timeout,
            network=self.config.network,
            headers={**self.config.extra_headers, **headers},
        )
        return ModelClient(http)

    def learn(self, model: str, **changes: Any) -> None:
        """Remember what the server's answers show of a model: members of `ModelAbilities`."""
        known = structs.replace(self.abilities.of(model), **changes)
        self._remember(self.abilities.with_model(model, known))

    def _remember(self, abilities: ServerAbilities) -> None:
        self.abilities = abilities
        if self.config.on_learned is not None:
            self.config.on_learned(abilities)

    def adopt(self, config: ServerConfig) -> bool:
        """Go on with `config` if it differs in `on_learned` alone.

        Return False if the connection is set up in another way, or has learned something else.
        """
        current = replace(self.config, abilities=self.abilities)
        if not isinstance(config, type(current)) or current != config:
            return False
        self.config = replace(current, on_learned=config.on_learned)
        return True

    async def learn_windows(self, models: Sequence[str]) -> None:
        """Ask the server for the context windows of models, and remember those that it reports.

        Takes some seconds at most. Failures change nothing. Most servers have no route for it.
        """

    async def connect(self) -> ConnectionT:
        """Return the client. Raise `ModelUnavailableError` if it cannot be made."""
        try:
            return await self._connection.get()
        except Exception as error:  # noqa: BLE001 - whatever a configuration makes the SDK raise
            raise self.failure(error) from None

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[ConnectionT, None]:
        """Return the client for the length of a reply; `retire` waits for its end."""
        self._uses += 1
        try:
            yield await self.connect()
        finally:
            self._uses -= 1
            await self._close_if_resting()

    async def retire(self) -> None:
        """Close the connections as soon as no reply uses them, now and after each further one."""
        self._is_retired = True
        await self._close_if_resting()

    async def aclose(self) -> None:
        """Close the connections; replies in progress are interrupted."""
        connection, self._connection.made = self._connection.made, None
        if connection is not None:
            await self._disconnect(connection)

    async def _close_if_resting(self) -> None:
        if self._is_retired and not self._uses:
            await self.aclose()
