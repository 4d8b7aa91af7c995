"""Any server that speaks OpenAI's chat completions, through OpenAI's own SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from backend.generation import _openai_mapping as wire
from backend.generation._failures import code_words, failure, own_error, wait_seconds
from backend.generation._http import make_http_client
from backend.generation._json import mapping
from backend.generation._openai_calls import CallFragments
from backend.generation._provider import ModelProvider
from backend.generation._replies import Delta, parse_value, relay, said, tool_answer, whole
from backend.generation._server_sent import EventReader, parse_event
from backend.generation.model import (
    ModelBlockedError,
    ModelError,
    ModelSpec,
    Piece,
    Prompt,
    StructuredAnswer,
    Tool,
    ToolAnswer,
    ToolSupport,
)
from backend.generation.network import NetworkPolicy
from backend.generation.sampling import Sampling, SamplingField, check_taken

if TYPE_CHECKING:
    import httpx2
    from openai import APIError, AsyncOpenAI, AsyncStream  # noqa: TID251 - this is the adapter

WHO = "The OpenAI-compatible server"

COMPLETIONS = "/chat/completions"
"""Called without the SDK's own types: with them, 1,000 messages take 150 ms to be sent, and each
token 0.2 ms to be read, in which the event loop does nothing else. Its stream of events costs a
third of what is left, and is not used either."""

END = b"[DONE]"

END_TIMEOUT = 0.1
"""Seconds for a server to end its answer after it has said so. One that does not loses its
connection."""

ADAPTER_ACCEPTS: frozenset[SamplingField] = frozenset(
    {
        *("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop"),
        *("max_output_tokens", "reasoning_effort"),
    }
)
"""What the API has a field for."""

_STATUS_OF_WORD = {
    **dict.fromkeys(("rate_limit_error", "rate_limit_exceeded", "insufficient_quota"), 429),
    **dict.fromkeys(("invalid_api_key", "authentication_error"), 401),
    **dict.fromkeys(("permission_error", "permission_denied"), 403),
    **dict.fromkeys(("model_not_found", "not_found_error"), 404),
    **dict.fromkeys(("invalid_request_error", "context_length_exceeded"), 400),
}
"""Statuses of errors within a stream, where HTTP's own has already been sent."""

_REFUSES_TOOLS = ("tools param requires", "Unsupported param: tools")
"""What llama.cpp says with status 500 if it was not started for tools, or is too old for them.
Source: https://github.com/ggml-org/llama.cpp/issues/10920"""

_FILTERED = frozenset({"content_filter", "content_policy_violation"})


@dataclass(frozen=True, slots=True)
class OpenAICompatibleConfig:
    """A server that speaks OpenAI's chat completions. `base_url` usually ends in `/v1`.

    Nothing is known of its models but what is said here. Times as in `GeminiConfig`.
    """

    base_url: str
    models: tuple[str, ...]
    context_window: int
    max_output_tokens: int
    tool_support: ToolSupport = "native"
    api_key: str | None = field(default=None, repr=False)
    chunk_timeout: float = 60
    connect_timeout: float = 10
    answer_timeout: float = 300
    network: NetworkPolicy | None = None


@dataclass(frozen=True, slots=True)
class _Connection:
    client: AsyncOpenAI
    stream: type[AsyncStream[object]]
    response: type[httpx2.Response]
    http: httpx2.AsyncClient
    api_error: type[APIError]


class OpenAICompatibleProvider(ModelProvider[_Connection]):
    """The connection to one server, shared by its models."""

    who = WHO
    config: OpenAICompatibleConfig

    def _connect(self) -> _Connection:
        # Slow: not at start-up.
        import httpx2  # noqa: PLC0415
        from openai import APIError, AsyncOpenAI, AsyncStream  # noqa: PLC0415, TID251

        key = self.config.api_key
        http = make_http_client(
            connect_timeout=self.config.connect_timeout,
            network=self.config.network,
            headers={"authorization": f"Bearer {key}"} if key else {},
        )
        client = AsyncOpenAI(
            # Without one the SDK looks in the environment. What is sent, the HTTP client decides.
            api_key=key or "none",
            base_url=self.config.base_url,
            max_retries=0,
            http_client=http,
        )
        return _Connection(client, AsyncStream[object], httpx2.Response, http, APIError)

    def failure(self, error: Exception) -> ModelError:
        """`error` of the SDK's as a `ModelError`, without its text: that may quote the prompt."""
        if (own := own_error(error)) is not None:
            return own
        connection = self._connection.made
        if connection is None or not isinstance(error, connection.api_error):
            return failure(WHO, status=None, words=(type(error).__name__,))
        codes = (error.code, error.type, error.param)
        words = code_words(*codes, secret=self.config.api_key)
        if filtered := _FILTERED.intersection(words):
            reason = min(filtered)
            return ModelBlockedError(
                f"{WHO}'s filter refused the prompt ({reason}).", reason=reason
            )
        response = cast("httpx2.Response | None", getattr(error, "response", None))
        headers = mapping(response.headers if response is not None else None)
        status = response.status_code if response is not None else _status(error.code, words)
        if status == HTTPStatus.INTERNAL_SERVER_ERROR and _refuses_tools(error):
            status = HTTPStatus.BAD_REQUEST
        return failure(
            WHO,
            status=status,
            words=words or (type(error).__name__,),
            retry_after=wait_seconds(headers.get("retry-after")),
        )

    async def _disconnect(self, connection: _Connection) -> None:
        await connection.http.aclose()


class OpenAICompatibleModel:
    """A `ChatModel` on an OpenAI-compatible server."""

    def __init__(self, spec: ModelSpec, provider: OpenAICompatibleProvider) -> None:
        self.spec = spec
        self._provider = provider

    async def stream(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Piece, None]:
        """See `ChatModel`."""
        body = self._body(prompt, sampling, tools=tools, schema=schema)
        body["stream_options"] = {"include_usage": True}
        timeout = self._provider.config.chunk_timeout
        async with self._provider.connected() as connection:
            deltas = self._deltas(connection, body)
            async with aclosing(relay(deltas, who=WHO, chunk_timeout=timeout)) as pieces:
                async for piece in pieces:
                    yield piece

    async def call_tools(
        self, prompt: Prompt, tools: Sequence[Tool], sampling: Sampling
    ) -> ToolAnswer:
        """See `ChatModel`."""
        body = self._body(prompt, sampling, tools=tools)
        return tool_answer(wire.read_answer(await self._whole(body)), who=WHO)

    async def structured(
        self, prompt: Prompt, schema: Mapping[str, Any], sampling: Sampling
    ) -> StructuredAnswer:
        """See `ChatModel`."""
        body = self._body(prompt, sampling, schema=schema)
        answer = wire.read_answer(await self._whole(body))
        text, finish = said(answer, who=WHO)
        return StructuredAnswer(parse_value(text, who=WHO, finish=finish), answer.usage)

    def _body(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The request's body."""
        check_taken(sampling, accepts=self.spec.accepts, model_id=self.spec.id)
        messages, settings = wire.messages(prompt), wire.settings(sampling)
        body: dict[str, Any] = {"model": self.spec.name, "messages": messages, **settings}
        if tools:
            body["tools"] = wire.declarations(tools)
        if schema is not None:
            body["response_format"] = wire.response_format(schema)
        return body

    async def _deltas(
        self, connection: _Connection, body: dict[str, Any]
    ) -> AsyncGenerator[Delta, None]:
        calls, events = CallFragments(), EventReader()
        try:
            asked = connection.client.post(
                COMPLETIONS,
                cast_to=connection.response,
                body={**body, "stream": True},
                stream=True,
                stream_cls=connection.stream,
            )
            response = cast("httpx2.Response", await asked)
            async with aclosing(response):
                received = response.aiter_bytes()
                async for part in received:
                    for data in events.feed(part):
                        if data.startswith(END):
                            await _read_up(received)
                            return
                        yield wire.read_chunk(_chunk(connection, response, data), calls)
        except Exception as error:  # noqa: BLE001 - a server may answer anything
            raise self._provider.failure(error) from None

    async def _whole(self, body: dict[str, Any]) -> Any:
        async with self._provider.connected() as connection:
            return await whole(
                connection.client.post(COMPLETIONS, cast_to=object, body=body),
                who=WHO,
                answer_timeout=self._provider.config.answer_timeout,
                failure=self._provider.failure,
            )


def _chunk(connection: _Connection, response: httpx2.Response, data: bytes) -> Any:
    """What an event of a stream says. Raises the SDK's `APIError` where it is an error."""
    chunk = parse_event(data)
    if fault := mapping(chunk).get("error"):
        message = str(mapping(fault).get("message", ""))
        raise connection.api_error(message, response.request, body=fault)
    return chunk


async def _read_up(received: AsyncIterator[bytes]) -> None:
    """Read what follows the end of a reply, so that its connection can be used again."""
    with suppress(TimeoutError):
        async with asyncio.timeout(END_TIMEOUT):
            async for _ in received:
                pass


def _refuses_tools(error: APIError) -> bool:
    return any(words in error.message for words in _REFUSES_TOOLS)


def _status(code: str | None, words: Sequence[str]) -> int | None:
    """The status of an error within a stream: OpenRouter sends HTTP's, OpenAI a word."""
    if code is not None and code.isascii() and code.isdecimal():
        return int(code)
    return next((_STATUS_OF_WORD[word] for word in words if word in _STATUS_OF_WORD), None)
