"""Gemini, through Google AI's API. Embeddings use Google's SDK, which no other module imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from backend.generation import _gemini_mapping as wire
from backend.generation._json import mapping
from backend.generation._provider import ModelProvider, ServerConfig
from backend.generation.client import ModelClient, ServerError
from backend.generation.model import ModelError, ModelSpec
from backend.generation.sampling import SamplingField
from backend.generation.server_model import AnswerReader, ModelRequest, ServerModel

if TYPE_CHECKING:
    from google.genai import Client  # noqa: TID251 - this is the adapter
    from google.genai.errors import APIError  # noqa: TID251 - this is the adapter

WHO = "Gemini"
DEFAULT_BASE_URL = "https://generativelanguage.googleapis.com/"
API_VERSION = "v1beta"
"""The stable v1 lacks some of the models' names and has lacked fields."""

ADAPTER_ACCEPTS: frozenset[SamplingField] = frozenset(
    {
        *("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "seed"),
        *("stop", "max_output_tokens", "safety", "thinking_budget"),
    }
)
"""What the API has a field for. A model may take less: see the registry."""


_SETTING_NAMES: Mapping[str, Sequence[SamplingField]] = {
    "stopSequences": ("stop",),
    "stop_sequences": ("stop",),
    "safety_settings": ("safety",),
    "thinking_budget": ("thinking_budget",),
    "thinkingBudget": ("thinking_budget",),
    "thinking_config": ("thinking_budget",),
    "max_output_tokens": ("max_output_tokens",),
    "temperature": ("temperature",),
    "topP": ("top_p",),
    "top_p": ("top_p",),
    "topK": ("top_k",),
    "top_k": ("top_k",),
    "seed": ("seed",),
    **dict.fromkeys(
        ("presencePenalty", "frequencyPenalty", "presence_penalty", "frequency_penalty"),
        ("presence_penalty", "frequency_penalty"),
    ),
}

_BY_WORDS: Mapping[str, Sequence[SamplingField]] = {
    "Penalty is not enabled": ("presence_penalty", "frequency_penalty"),
    "hinking budget": ("thinking_budget",),
    "budget 0 is invalid": ("thinking_budget",),
    "hinking is not enabled": ("thinking_budget",),
}
"""Settings that a refusal names in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeminiConfig(ServerConfig):
    """How Google AI's API is reached."""

    api_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class GeminiConnection:
    """Google's SDK, which the embeddings use, over the client that the models use."""

    sdk: Client
    client: ModelClient
    api_error: type[APIError]


class GeminiProvider(ModelProvider[GeminiConfig, GeminiConnection]):
    """One key's connection to Gemini, shared by its models."""

    who, vendor_url = WHO, DEFAULT_BASE_URL

    def _connect(self) -> GeminiConnection:
        from google import genai  # noqa: PLC0415, TID251 - takes a second: not at start-up
        from google.genai.client import DebugConfig  # noqa: PLC0415, TID251 - likewise
        from google.genai.errors import APIError  # noqa: PLC0415, TID251 - likewise

        client = self._make_client({"x-goog-api-key": self.config.api_key})
        sdk = genai.Client(
            api_key=self.config.api_key,
            # The SDK takes from the environment what is absent here.
            vertexai=False,
            debug_config=DebugConfig(client_mode=None, replays_directory=None, replay_id=None),
            http_options=genai.types.HttpOptions(
                base_url=self.config.base_url or DEFAULT_BASE_URL,
                api_version=API_VERSION,
                httpx_async_client=client.http,
            ),
        )
        return GeminiConnection(sdk, client, APIError)

    def failure(self, error: Exception) -> ModelError:
        """See `ModelProvider`. Embeddings raise errors of the SDK."""
        connection = self._connection.made
        if connection is not None and isinstance(error, connection.api_error):
            headers = mapping(getattr(cast("object", error.response), "headers", None))
            error = ServerError(error.code, cast("object", error.details), headers)
        return super().failure(error)

    async def _disconnect(self, connection: GeminiConnection) -> None:
        connection.sdk.close()
        await connection.client.aclose()


class GeminiModel(ServerModel[GeminiProvider]):
    """A `ChatModel` of Gemini's.

    `thinks`: it thinks unless a setting says otherwise.
    """

    def __init__(self, spec: ModelSpec, provider: GeminiProvider, *, thinks: bool) -> None:
        super().__init__(spec, provider)
        self._thinks = thinks

    def _client(self, connection: GeminiConnection) -> ModelClient:
        return connection.client

    def _address(self, *, stream: bool) -> str:
        base = (self._provider.config.base_url or DEFAULT_BASE_URL).rstrip("/")
        name = self.spec.name if "/" in self.spec.name else f"models/{self.spec.name}"
        method = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return f"{base}/{API_VERSION}/{name}:{method}"

    def _body(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:
        body = wire.body(
            request.shaped_prompt, request.sampling, thinks=self._thinks, show_thoughts=stream
        )
        if request.tools:
            body["tools"] = wire.declarations(request.tools)
        if request.schema is not None:
            body["generationConfig"] |= wire.response_format(request.schema)
        return body

    def _reader(self, request: ModelRequest) -> AnswerReader:
        return wire.ResponseReader(answers_calls=bool(request.tools))

    def _setting_names(
        self,
        request: ModelRequest,  # noqa: ARG002 - the same for all
    ) -> Mapping[str, Sequence[SamplingField]]:
        return _SETTING_NAMES

    def _adapt(self, request: ModelRequest, error: ServerError) -> ModelRequest:
        """See `ServerModel`. Some refusals name a setting in a sentence alone."""
        for words, settings in _BY_WORDS.items():
            set_by_user = request.sampling.set_fields()
            found: list[SamplingField] = [each for each in settings if each in set_by_user]
            if error.status == HTTPStatus.BAD_REQUEST and found and words in error.text:
                if "not enabled" in error.text or "not supported" in error.text:
                    self._remember_refused(*found)
                return request.without(*found)
        return super()._adapt(request, error)
