"""What the adapters' providers share: a connection that is made late, and closed when it rests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Generic, TypeVar

from backend.generation._failures import failure
from backend.generation._http import Lazy
from backend.generation.model import ModelError

ConnectionT = TypeVar("ConnectionT")


class ModelProvider(ABC, Generic[ConnectionT]):
    """The connection to one server under one key, shared by its models.

    The SDK is imported at first use. `config` is the adapter's own.
    """

    who: ClassVar[str]

    def __init__(self, config: Any) -> None:
        self.config = config
        self._connection = Lazy(self._connect)
        self._uses = 0
        self._is_retired = False

    @abstractmethod
    def _connect(self) -> ConnectionT:
        """Make the SDK's client. It runs in a thread."""

    @abstractmethod
    async def _disconnect(self, connection: ConnectionT) -> None:
        """Close the client's connections."""

    @abstractmethod
    def failure(self, error: Exception) -> ModelError:
        """`error` of the SDK's as a `ModelError`, without its text: that may quote the prompt."""

    async def connect(self) -> ConnectionT:
        """The SDK, ready to be called. Raises `ModelUnavailableError` when it can't be set up."""
        try:
            return await self._connection.get()
        except Exception as error:  # noqa: BLE001 - whatever a configuration makes the SDK raise
            raise failure(self.who, status=None, words=(type(error).__name__,)) from None

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[ConnectionT, None]:
        """`connect`, for the length of a reply: until then `retire` waits."""
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
        """Close the connections; replies under way break off."""
        connection, self._connection.made = self._connection.made, None
        if connection is not None:
            await self._disconnect(connection)

    async def _close_if_resting(self) -> None:
        if self._is_retired and not self._uses:
            await self.aclose()
