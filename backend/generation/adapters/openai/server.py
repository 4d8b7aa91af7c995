"""A server that speaks OpenAI's chat completions: how it is reached, and what it refuses."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import structs

from backend.generation.adapters.openai.dialects import OPENAI_SERVERS, build_route_url
from backend.generation.adapters.openai.probes import (
    MISSING_ROUTE_STATUSES,
    REQUEST_SECONDS,
    ask_windows,
    can_be_asked,
)
from backend.generation.client.client import ModelClient, ServerError
from backend.generation.client.provider import ModelProvider, ServerConfig
from backend.generation.model import ModelError
from backend.generation.servers.abilities import count_slots
from backend.settings import ServerName

WHO = "The OpenAI-compatible server"

SLOTS_SECONDS = 600.0
"""Time until a server is asked again how many slots it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAICompatibleConfig(ServerConfig):
    """How such a server is reached. `base_url` usually ends in `/v1`.

    Attributes:
        context_window: Tokens of models whose window is not known.
        max_output_tokens: The longest reply of models of which it is not known.
        server: Which program or service it is.
    """

    base_url: str = field()
    context_window: int = 32_768
    max_output_tokens: int = 8_192
    server: ServerName = "other"


class OpenAICompatibleProvider(ModelProvider[OpenAICompatibleConfig, ModelClient]):
    """The connection to one server, shared by its models."""

    who = WHO
    config: OpenAICompatibleConfig

    def _connect(self) -> ModelClient:
        key = self.config.api_key
        return self._make_client({"authorization": f"Bearer {key}"} if key else {})

    def __init__(self, config: OpenAICompatibleConfig) -> None:
        super().__init__(config)
        self._asked: set[str] = set()
        self._asking: set[asyncio.Task[None]] = set()
        self._slots_asked_at = -math.inf

    async def learn_windows(self, models: Sequence[str]) -> None:
        self._asked.update(models)
        config = self.config
        if not models or not can_be_asked(config.server):
            return
        try:
            async with self.connected() as client:
                reports = await ask_windows(client, config.base_url, config.server, models)
        except ModelError:  # no client can be made
            return
        for name, report in reports.items():
            window = report.window
            if window is None and report.largest is not None:
                # The window in force is unknown, but it is no larger than that.
                known = self.abilities.of(name).window or config.context_window
                window = report.largest if report.largest < known else None
            if window not in (None, self.abilities.of(name).window):
                self.learn(name, window=window)

    def learn_window_later(self, model: str) -> None:
        """Ask for a model's window in the background, once for as long as this object lives."""
        if model in self._asked:
            return
        task = asyncio.create_task(self.learn_windows([model]))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def refresh_slots(self) -> None:
        """Learn how many requests the server answers at the same time, if it has a route for that.

        Asks once in ten minutes, since the server may be started again with another number. Never
        raises.
        """
        path = OPENAI_SERVERS[self.config.server].slots
        if not path or time.monotonic() < self._slots_asked_at + SLOTS_SECONDS:
            return
        self._slots_asked_at = time.monotonic()
        try:
            async with asyncio.timeout(REQUEST_SECONDS), self.connected() as client:
                answer = await client.get(build_route_url(self.config.base_url, path))
        except ServerError as error:
            if error.status not in MISSING_ROUTE_STATUSES:
                return
            answer = None
        except Exception:  # noqa: BLE001 - the next time may be better
            return
        slots = count_slots(answer)
        if slots != self.abilities.slots:
            self._remember(structs.replace(self.abilities, slots=slots))

    async def aclose(self) -> None:
        """See `ModelProvider`."""
        asking = list(self._asking)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await super().aclose()

    async def _disconnect(self, connection: ModelClient) -> None:
        await connection.aclose()
