"""Anthropic's models, through its own SDK. No other module imports it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from backend.generation import _anthropic_mapping as wire
from backend.generation._failures import code_words, failure, own_error, wait_seconds
from backend.generation._http import make_http_client
from backend.generation._json import mapping
from backend.generation._provider import ModelProvider
from backend.generation._replies import Delta, parse_value, relay, said, tool_answer, whole
from backend.generation._server_sent import EventReader, parse_event
from backend.generation._thinking import ThinkReader
from backend.generation.model import (
    ModelError,
    ModelSettingRefusedError,
    ModelSpec,
    Piece,
    Prompt,
    PromptMessage,
    StructuredAnswer,
    Tool,
    ToolAnswer,
)
from backend.generation.network import NetworkPolicy
from backend.generation.sampling import Sampling, SamplingField, check_taken

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx2
    from anthropic import (  # noqa: TID251 - this is the adapter
        APIError,
        APIStatusError,
        AsyncAnthropic,
        AsyncStream,
    )

WHO = "Anthropic"
DEFAULT_BASE_URL = "https://api.anthropic.com"
VERSION = "2023-06-01"
MESSAGES = "/v1/messages"
"""Called without the SDK's own types, as OpenAI's completions are: they cost more than the rest."""

ADAPTER_ACCEPTS: frozenset[SamplingField] = frozenset(
    {
        *("temperature", "top_p", "top_k", "stop", "max_output_tokens"),
        *("thinking_budget", "reasoning_effort", "start_reply_with"),
    }
)
"""What the API has a field for. A model may take less, and says so with 400."""

_STATUS_OF_TYPE = {
    "invalid_request_error": HTTPStatus.BAD_REQUEST,
    "authentication_error": HTTPStatus.UNAUTHORIZED,
    "billing_error": HTTPStatus.PAYMENT_REQUIRED,
    "permission_error": HTTPStatus.FORBIDDEN,
    "not_found_error": HTTPStatus.NOT_FOUND,
    "request_too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "rate_limit_error": HTTPStatus.TOO_MANY_REQUESTS,
}
"""Statuses of errors within a stream, where HTTP's own has already been sent.

Source: https://platform.claude.com/docs/en/api/errors
"""


@dataclass(frozen=True, slots=True)
class AnthropicConfig:
    """Anthropic's API. Times as in `GeminiConfig`."""

    api_key: str = field(repr=False)
    models: tuple[str, ...]
    base_url: str | None = None
    extra_headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    chunk_timeout: float = 60
    connect_timeout: float = 10
    answer_timeout: float = 300
    network: NetworkPolicy | None = None


@dataclass(frozen=True, slots=True)
class _Connection:
    client: AsyncAnthropic
    stream: type[AsyncStream[object]]
    response: type[httpx2.Response]
    http: httpx2.AsyncClient
    api_error: type[APIError]
    status_error: type[APIStatusError]
    bare_schema: Callable[[Any], Mapping[str, Any]]


class AnthropicProvider(ModelProvider[_Connection]):
    """One key's connection to Anthropic, shared by its models."""

    who = WHO
    config: AnthropicConfig

    def _connect(self) -> _Connection:
        # Slow: not at start-up.
        import httpx2  # noqa: PLC0415
        from anthropic import (  # noqa: PLC0415, TID251
            APIError,
            APIStatusError,
            AsyncAnthropic,
            AsyncStream,
            transform_schema,
        )

        http = make_http_client(
            connect_timeout=self.config.connect_timeout,
            network=self.config.network,
            headers={
                **self.config.extra_headers,
                "x-api-key": self.config.api_key,
                "anthropic-version": VERSION,
            },
        )
        client = AsyncAnthropic(
            api_key=self.config.api_key,
            # What is left out here, the SDK takes from the environment.
            base_url=self.config.base_url or DEFAULT_BASE_URL,
            max_retries=0,
            open_telemetry=False,
            http_client=http,
        )
        return _Connection(
            client=client,
            stream=AsyncStream[object],
            response=httpx2.Response,
            http=http,
            api_error=APIError,
            status_error=APIStatusError,
            bare_schema=transform_schema,
        )

    def failure(self, error: Exception) -> ModelError:
        """`error` of the SDK's as a `ModelError`, without its text: that may quote the prompt."""
        if (own := own_error(error)) is not None:
            return own
        connection = self._connection.made
        if connection is None or not isinstance(error, connection.api_error):
            return failure(WHO, status=None, words=(type(error).__name__,))
        kind = mapping(mapping(error.body).get("error", error.body)).get("type")
        words = code_words(kind, secret=self.config.api_key)
        response = cast("httpx2.Response | None", getattr(error, "response", None))
        status = response.status_code if response is not None else None
        if status == HTTPStatus.OK:
            status = _STATUS_OF_TYPE.get(str(kind), HTTPStatus.INTERNAL_SERVER_ERROR)
        headers = mapping(response.headers if response is not None else None)
        return failure(
            WHO,
            status=status,
            words=words or (type(error).__name__,),
            retry_after=wait_seconds(headers.get("retry-after")),
        )

    async def _disconnect(self, connection: _Connection) -> None:
        await connection.http.aclose()


class AnthropicModel:
    """A `ChatModel` of Anthropic's."""

    def __init__(self, spec: ModelSpec, provider: AnthropicProvider) -> None:
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
        timeout = self._provider.config.chunk_timeout
        is_plain = not (tools or schema or prompt.rounds)
        # The API refuses spaces at the end of what a reply is to begin with.
        start = (sampling.start_reply_with or "").rstrip() if is_plain else ""
        if start:
            began = PromptMessage("assistant", start)
            prompt = replace(prompt, messages=[*prompt.messages, began])
        async with self._provider.connected() as connection:
            body = self._body(connection, prompt, sampling, tools=tools, schema=schema)
            deltas = self._deltas(connection, {**body, "stream": True}, start)
            async with aclosing(relay(deltas, who=WHO, chunk_timeout=timeout)) as pieces:
                async for piece in pieces:
                    yield piece

    async def call_tools(
        self, prompt: Prompt, tools: Sequence[Tool], sampling: Sampling
    ) -> ToolAnswer:
        """See `ChatModel`."""
        return tool_answer(await self._whole(prompt, sampling, tools=tools), who=WHO)

    async def structured(
        self, prompt: Prompt, schema: Mapping[str, Any], sampling: Sampling
    ) -> StructuredAnswer:
        """See `ChatModel`."""
        answer = await self._whole(prompt, sampling, schema=schema)
        text, finish = said(answer, who=WHO)
        return StructuredAnswer(parse_value(text, who=WHO, finish=finish), answer.usage)

    def _body(
        self,
        connection: _Connection,
        prompt: Prompt,
        sampling: Sampling,
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        check_taken(sampling, accepts=self.spec.accepts, model_id=self.spec.id)
        settings = wire.body(prompt, sampling, max_output_tokens=self.spec.max_output_tokens)
        body: dict[str, Any] = {"model": self.spec.name, **settings}
        if tools:
            body["tools"] = wire.declarations(tools)
        if schema is not None:
            # Of a JSON Schema the API takes a part, which the SDK knows.
            wanted = {"type": "json_schema", "schema": connection.bare_schema(dict(schema))}
            body["output_config"] = {**body.get("output_config", {}), "format": wanted}
        return {**body, **self._provider.config.extra_body}

    async def _deltas(
        self, connection: _Connection, body: dict[str, Any], start: str
    ) -> AsyncGenerator[Delta, None]:
        answer, events = wire.AnswerReader(), EventReader()
        reader = ThinkReader(start) if start else None
        try:
            asked = connection.client.post(
                MESSAGES,
                cast_to=connection.response,
                body=body,
                stream=True,
                stream_cls=connection.stream,
            )
            response = cast("httpx2.Response", await asked)
            async with aclosing(response):
                async for part in response.aiter_bytes():
                    for data in events.feed(part):
                        delta = answer.read_event(_event(connection, response, data))
                        yield reader.read(delta) if reader else delta
        except Exception as error:  # noqa: BLE001 - a server may answer anything
            if start and _refuses_start(error):
                raise self._refusal() from None
            raise self._provider.failure(error) from None

    def _refusal(self) -> ModelSettingRefusedError:
        """What is said of a model that does not go on from a started reply."""
        setting: SamplingField = "start_reply_with"
        self.spec = replace(
            self.spec,
            accepts=self.spec.accepts - {setting},
            refused=self.spec.refused | {setting},
        )
        return ModelSettingRefusedError(
            f"{WHO} does not take {setting} for {self.spec.id}: change it in the settings.",
            extra={"refused": [setting], "model": self.spec.id},
        )

    async def _whole(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        tools: Sequence[Tool] = (),
        schema: Mapping[str, Any] | None = None,
    ) -> Delta:
        async with self._provider.connected() as connection:
            body = self._body(connection, prompt, sampling, tools=tools, schema=schema)
            answer = await whole(
                connection.client.post(MESSAGES, cast_to=object, body=body),
                who=WHO,
                answer_timeout=self._provider.config.answer_timeout,
                failure=self._provider.failure,
            )
        return wire.AnswerReader().read_whole(answer)


def _refuses_start(error: Exception) -> bool:
    """Whether a model says that it takes no started reply: its newer ones do, as all that think."""
    return getattr(error, "status_code", None) == HTTPStatus.BAD_REQUEST and any(
        word in str(error) for word in ("prefill", "final `assistant` message")
    )


def _event(connection: _Connection, response: httpx2.Response, data: bytes) -> Any:
    """An event of a stream. Raises the SDK's `APIError` where it is an error."""
    event = parse_event(data)
    if mapping(event).get("type") == "error":
        raise connection.status_error("", response=response, body=event)
    return event
