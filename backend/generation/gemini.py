"""Gemini, through Google's own SDK. No other module imports it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from backend.generation import _gemini_mapping as wire
from backend.generation._failures import code_words, failure, own_error, wait_seconds
from backend.generation._http import make_http_client, noting_responses
from backend.generation._json import mapping, sequence
from backend.generation._provider import ModelProvider
from backend.generation._replies import Delta, parse_value, relay, said, tool_answer, whole
from backend.generation.model import (
    ModelError,
    ModelSpec,
    Piece,
    Prompt,
    StructuredAnswer,
    Tool,
    ToolAnswer,
)
from backend.generation.network import NetworkPolicy
from backend.generation.sampling import Sampling, SamplingField, check_taken

if TYPE_CHECKING:
    import httpx2
    from google.genai import Client  # noqa: TID251 - this is the adapter
    from google.genai.errors import APIError  # noqa: TID251 - this is the adapter
    from google.genai.types import (  # noqa: TID251 - this is the adapter
        GenerateContentConfigDict,
        GenerateContentResponse,
    )

WHO = "Gemini"
DEFAULT_BASE_URL = "https://generativelanguage.googleapis.com/"

ADAPTER_ACCEPTS: frozenset[SamplingField] = frozenset(
    {
        *("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "seed"),
        *("stop", "max_output_tokens", "safety", "thinking_budget"),
    }
)
"""What the API has a field for. A model may take less: see the registry."""


@dataclass(frozen=True, slots=True)
class GeminiConfig:
    """Gemini, through Google AI's API.

    Times are in seconds. `chunk_timeout` is the longest silence within a streamed reply,
    `answer_timeout` the longest wait for one that comes as a whole. `network` says where it may
    connect; None for a server that the operator named.
    """

    api_key: str = field(repr=False)
    models: tuple[str, ...] = ()  # an embedder needs none
    base_url: str | None = None
    extra_headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    chunk_timeout: float = 60
    connect_timeout: float = 10
    answer_timeout: float = 300
    network: NetworkPolicy | None = None


@dataclass(frozen=True, slots=True)
class _Connection:
    client: Client
    http: httpx2.AsyncClient
    api_error: type[APIError]


class GeminiProvider(ModelProvider[_Connection]):
    """One key's connection to Gemini, shared by its models."""

    who = WHO
    config: GeminiConfig

    def _connect(self) -> _Connection:
        from google import genai  # noqa: PLC0415, TID251 - takes a second: not at start-up
        from google.genai.client import DebugConfig  # noqa: PLC0415, TID251 - likewise
        from google.genai.errors import APIError  # noqa: PLC0415, TID251 - likewise

        http = make_http_client(
            connect_timeout=self.config.connect_timeout,
            network=self.config.network,
            headers={**self.config.extra_headers, "x-goog-api-key": self.config.api_key},
        )
        client = genai.Client(
            api_key=self.config.api_key,
            # What is left out here, the SDK takes from the environment.
            vertexai=False,
            debug_config=DebugConfig(client_mode=None, replays_directory=None, replay_id=None),
            http_options=genai.types.HttpOptions(
                base_url=self.config.base_url or DEFAULT_BASE_URL,
                # The stable v1 lacks some of the models' names and has lacked fields.
                api_version="v1beta",
                httpx_async_client=http,
            ),
        )
        return _Connection(client, http, APIError)

    def failure(self, error: Exception) -> ModelError:
        """`error` of the SDK's as a `ModelError`, without its text: that may quote the prompt."""
        if (own := own_error(error)) is not None:
            return own
        connection = self._connection.made
        if connection is None or not isinstance(error, connection.api_error):
            return failure(WHO, status=None, words=(type(error).__name__,))
        headers: object = getattr(cast("object", error.response), "headers", None)
        details = _details(cast("object", error.details))
        words = code_words(error.status, *_words(details), secret=self.config.api_key)
        waits = [
            *(detail.get("retryDelay") for detail in details),
            mapping(headers).get("retry-after"),
        ]
        return failure(
            WHO,
            # Google answers 400 to a key that it does not know.
            status=401 if "API_KEY_INVALID" in words else error.code,
            words=words,
            retry_after=next(filter(None, map(wait_seconds, waits)), None),
        )

    async def _disconnect(self, connection: _Connection) -> None:
        connection.client.close()
        await connection.http.aclose()


class GeminiModel:
    """A `ChatModel` of Gemini's.

    `thinks`: it thinks unless told otherwise.
    """

    def __init__(self, spec: ModelSpec, provider: GeminiProvider, *, thinks: bool) -> None:
        self.spec = spec
        self._provider = provider
        self._thinks = thinks

    async def stream(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Piece, None]:
        """See `ChatModel`."""
        body = self._body(prompt, sampling, tools=tools, schema=schema, show_thoughts=True)
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
        return tool_answer(wire.read(await self._whole(body)), who=WHO)

    async def structured(
        self, prompt: Prompt, schema: Mapping[str, Any], sampling: Sampling
    ) -> StructuredAnswer:
        """See `ChatModel`."""
        body = self._body(prompt, sampling, schema=schema)
        answer = wire.read(await self._whole(body))
        text, finish = said(answer, who=WHO)
        return StructuredAnswer(parse_value(text, who=WHO, finish=finish), answer.usage)

    def _body(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
        show_thoughts: bool = False,
    ) -> dict[str, Any]:
        check_taken(sampling, accepts=self.spec.accepts, model_id=self.spec.id)
        body = wire.body(prompt, sampling, thinks=self._thinks, show_thoughts=show_thoughts)
        if tools:
            body["tools"] = wire.declarations(tools)
        if schema is not None:
            body["generationConfig"] |= wire.response_format(schema)
        return {**body, **self._provider.config.extra_body}

    def _arguments(self, body: dict[str, Any]) -> dict[str, Any]:
        """The arguments of the SDK's `generate_content`.

        The body goes past the SDK's own types, as `extra_body`: it takes 3 ms in place of 220 to
        send 1,000 messages, in which the event loop does nothing else.
        """
        config: GenerateContentConfigDict = {
            "automatic_function_calling": {"disable": True},
            # Else the SDK asks again, and again, when a stream breaks off.
            "automatic_continuation": False,
            "http_options": {"extra_body": body},
        }
        return {"model": self.spec.name, "contents": "replaced by extra_body", "config": config}

    async def _deltas(
        self, connection: _Connection, body: dict[str, Any]
    ) -> AsyncGenerator[Delta, None]:
        models = connection.client.aio.models
        opened: list[httpx2.Response] = []
        try:
            with noting_responses(opened):
                chunks = await models.generate_content_stream(**self._arguments(body))
                chunk = await anext(chunks, None)
            while chunk is not None:
                yield wire.read(chunk, answers_calls="tools" in body)
                chunk = await anext(chunks, None)
        except Exception as error:  # noqa: BLE001 - the SDK raises ValueError, TypeError, what not
            raise self._provider.failure(error) from None
        finally:
            for response in opened:
                await response.aclose()

    async def _whole(self, body: dict[str, Any]) -> GenerateContentResponse:
        async with self._provider.connected() as connection:
            return await whole(
                connection.client.aio.models.generate_content(**self._arguments(body)),
                who=WHO,
                answer_timeout=self._provider.config.answer_timeout,
                failure=self._provider.failure,
            )


def _details(body: object) -> Sequence[Mapping[str, Any]]:
    """The `google.rpc` details of an error body, of whatever shape that is."""
    error = mapping(mapping(body).get("error", body))
    return [mapping(detail) for detail in sequence(error.get("details"))]


def _words(details: Sequence[Mapping[str, Any]]) -> Iterator[object]:
    """Code words in `google.rpc.ErrorInfo` (reason) and `google.rpc.BadRequest` (field)."""
    for detail in details:
        yield detail.get("reason")
        for violation in sequence(detail.get("fieldViolations")):
            yield mapping(violation).get("field")
