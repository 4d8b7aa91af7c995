"""Any server that speaks OpenAI's chat completions, through OpenAI's own SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import msgspec

from backend.generation._failures import code_words, failure, own_error, wait_seconds
from backend.generation._http import make_http_client
from backend.generation._json import mapping, parse_json
from backend.generation._provider import ModelProvider
from backend.generation.figures import ToolSupport
from backend.generation.model import ModelBlockedError, ModelError
from backend.generation.network import NetworkPolicy
from backend.generation.server_abilities import ServerAbilities
from backend.setting_types import ServerName

if TYPE_CHECKING:
    import httpx2
    from openai import APIError, APIStatusError, AsyncOpenAI  # noqa: TID251 - this is the adapter

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
"""What llama.cpp says with status 500 if it was not started for tools, or is too old for them.
Source: https://github.com/ggml-org/llama.cpp/issues/10920"""

_JSON = {"accept": "application/json", "content-type": "application/json"}

_FILTERED = frozenset({"content_filter", "content_policy_violation"})


@dataclass(frozen=True, slots=True)
class OpenAICompatibleConfig:
    """A server that speaks OpenAI's chat completions. `base_url` usually ends in `/v1`.

    Nothing is known of its models but what is said here. `server` says which one it is;
    `extra_body` goes into each request, over what Talekeeper says there itself. `abilities` are
    what was learned of it before; `on_learned` gets them whenever there is more. Times as in
    `GeminiConfig`.
    """

    base_url: str
    models: tuple[str, ...]
    context_window: int
    max_output_tokens: int
    tool_support: ToolSupport = "native"
    api_key: str | None = field(default=None, repr=False)
    server: ServerName = "other"
    extra_headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    abilities: ServerAbilities = ServerAbilities()  # noqa: RUF009 - it is frozen
    on_learned: Callable[[ServerAbilities], None] | None = field(default=None, compare=False)
    chunk_timeout: float = 60
    connect_timeout: float = 10
    answer_timeout: float = 300
    network: NetworkPolicy | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """The SDK, and what is needed of it."""

    client: AsyncOpenAI
    response: type[httpx2.Response]
    http: httpx2.AsyncClient
    api_error: type[APIError]
    status_error: type[APIStatusError]

    async def post(self, url: str, body: Mapping[str, Any]) -> httpx2.Response:
        """Ask for an answer, whose body is still to be read.

        With 900 messages it takes 0.8 ms, where the SDK's own way takes 3.5.

        Raises the SDK's `APIStatusError` for an answer that is an error, and the HTTP client's
        errors where there is none.
        """
        content = msgspec.json.encode(body)
        request = self.http.build_request("POST", url, content=content, headers=_JSON)
        response = await self.http.send(request, stream=True)
        if response.is_success:
            return response
        answer: Any = (await response.aread()).decode(errors="replace").strip()
        with suppress(ValueError):  # a proxy's page is none
            answer = parse_json(answer)
        fault = mapping(answer).get("error", answer)
        message = str(mapping(fault).get("message", ""))
        raise self.status_error(message, response=response, body=fault)


class OpenAICompatibleProvider(ModelProvider[Connection]):
    """The connection to one server, shared by its models."""

    who = WHO
    config: OpenAICompatibleConfig

    def __init__(self, config: OpenAICompatibleConfig) -> None:
        super().__init__(config)
        self.abilities = config.abilities

    def _connect(self) -> Connection:
        # Slow: not at start-up.
        import httpx2  # noqa: PLC0415
        from openai import APIError, APIStatusError, AsyncOpenAI  # noqa: PLC0415, TID251

        key = self.config.api_key
        http = make_http_client(
            connect_timeout=self.config.connect_timeout,
            network=self.config.network,
            headers={
                **self.config.extra_headers,
                **({"authorization": f"Bearer {key}"} if key else {}),
            },
        )
        client = AsyncOpenAI(
            # Without one the SDK looks in the environment. What is sent, the HTTP client decides.
            api_key=key or "none",
            base_url=self.config.base_url,
            max_retries=0,
            http_client=http,
        )
        return Connection(client, httpx2.Response, http, APIError, APIStatusError)

    def learn(self, model: str, **changes: Any) -> None:
        """Remember what the server's answers say of a model: members of `ModelAbilities`."""
        known = msgspec.structs.replace(self.abilities.of(model), **changes)
        self.abilities = self.abilities.with_model(model, known)
        if self.config.on_learned is not None:
            self.config.on_learned(self.abilities)

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

    async def _disconnect(self, connection: Connection) -> None:
        await connection.http.aclose()


def _refuses_tools(error: APIError) -> bool:
    return any(words in error.message for words in _REFUSES_TOOLS)


def _status(code: str | None, words: Sequence[str]) -> int | None:
    """The status of an error within a stream: OpenRouter sends HTTP's, OpenAI a word."""
    if code is not None and code.isascii() and code.isdecimal():
        return int(code)
    return next((_STATUS_OF_WORD[word] for word in words if word in _STATUS_OF_WORD), None)
