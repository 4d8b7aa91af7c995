"""A server that speaks OpenAI's chat completions: how it is reached, and what it refuses."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from msgspec import structs

from backend.generation._failures import code_words, failure, own_error, wait_seconds
from backend.generation._openai_counts import NO_SUCH_ROUTE, TIMEOUT, address_beside
from backend.generation._provider import ModelProvider, ServerConfig
from backend.generation.client import ModelClient, ServerError
from backend.generation.figures import ToolSupport
from backend.generation.model import ModelBlockedError, ModelError
from backend.generation.openai_servers import OPENAI_SERVERS
from backend.generation.server_limits import count_slots
from backend.setting_types import ServerName

WHO = "The OpenAI-compatible server"

_STATUS_OF_WORD = {
    **dict.fromkeys(("rate_limit_error", "rate_limit_exceeded", "insufficient_quota"), 429),
    **dict.fromkeys(("invalid_api_key", "authentication_error"), 401),
    **dict.fromkeys(("permission_error", "permission_denied"), 403),
    **dict.fromkeys(("model_not_found", "not_found_error"), 404),
    **dict.fromkeys(("invalid_request_error", "context_length_exceeded"), 400),
}
"""Statuses of errors within a stream, where HTTP's own has already been sent."""

_REFUSES_TOOLS = ("tools param requires", "Unsupported param: tools")
"""The words of llama.cpp with status 500 if it was not started for tools, or is too old for them.
Source: https://github.com/ggml-org/llama.cpp/issues/10920"""

SLOTS_SECONDS = 600.0
"""How long the number of a server's slots is taken to be as it was."""

_FILTERED = frozenset({"content_filter", "content_policy_violation"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAICompatibleConfig(ServerConfig):
    """How such a server is reached. `base_url` usually ends in `/v1`.

    Attributes:
        context_window: Tokens of models whose window is not known.
        max_output_tokens: The longest reply of models of which it is not known.
        tool_support: How its models call tools, until its answers show another way.
        server: Which program or service it is.
    """

    base_url: str
    context_window: int = 32_768
    max_output_tokens: int = 8_192
    tool_support: ToolSupport = "native"
    server: ServerName = "other"


class OpenAICompatibleProvider(ModelProvider[OpenAICompatibleConfig, ModelClient]):
    """The connection to one server, shared by its models."""

    who = WHO

    def __init__(self, config: OpenAICompatibleConfig) -> None:
        super().__init__(config)
        self._slots_asked_at = -math.inf

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
            async with asyncio.timeout(TIMEOUT), self.connected() as client:
                answer = await client.get(address_beside(self.config.base_url, path))
        except ServerError as error:
            if error.status not in NO_SUCH_ROUTE:
                return
            answer = None
        except Exception:  # noqa: BLE001 - the next time may be better
            return
        slots = count_slots(answer)
        if slots != self.abilities.slots:
            self._remember(structs.replace(self.abilities, slots=slots))

    def _connect(self) -> ModelClient:
        key = self.config.api_key
        return self._make_client({"authorization": f"Bearer {key}"} if key else {})

    async def _disconnect(self, connection: ModelClient) -> None:
        await connection.aclose()

    def failure(self, error: Exception) -> ModelError:
        """See `ModelProvider`."""
        if (own := own_error(error)) is not None:
            return own
        if not isinstance(error, ServerError):
            return failure(WHO, status=None, words=(type(error).__name__,))
        fault = error.fault
        codes = [fault.get(name) for name in ("code", "type", "param")]
        words = code_words(*codes, secret=self.config.api_key)
        if filtered := _FILTERED.intersection(words):
            reason = min(filtered)
            return ModelBlockedError(
                f"{WHO}'s filter refused the prompt ({reason}).", reason=reason
            )
        status: int | None = error.status
        if status == HTTPStatus.OK:
            status = _status(fault.get("code"), words)
        if status == HTTPStatus.INTERNAL_SERVER_ERROR and any(
            words in error.text for words in _REFUSES_TOOLS
        ):
            status = HTTPStatus.BAD_REQUEST
        return failure(
            WHO,
            status=status,
            words=words or (type(error).__name__,),
            retry_after=wait_seconds(error.headers.get("retry-after")),
        )


def _status(code: object, words: Sequence[str]) -> int | None:
    """Return the status of an error within a stream: OpenRouter sends HTTP's, OpenAI a word."""
    text = str(code)
    if text.isascii() and text.isdecimal():
        return int(text)
    return next((_STATUS_OF_WORD[word] for word in words if word in _STATUS_OF_WORD), None)
