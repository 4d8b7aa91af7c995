"""The adapter for Google AI's Gemini API. Only embeddings use Google's SDK."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import chain, groupby, takewhile
from typing import TYPE_CHECKING, Any, cast

from msgspec import structs

from backend.generation.catalogue import ListedModel
from backend.generation.client.client import ModelClient, ServerError
from backend.generation.client.provider import (
    EmbeddingKind,
    EmbeddingProvider,
    EmbeddingRequest,
    EnvironmentProvider,
    ModelTraits,
    ProviderKind,
    ServerConfig,
    ServicePreset,
    Vector,
)
from backend.generation.images import encode_base64
from backend.generation.json_text import mapping, sequence
from backend.generation.model import (
    FinishReason,
    ModelError,
    ModelSpec,
    Prompt,
    PromptMessage,
    TextPiece,
    ThinkingPiece,
    TokenUsage,
    Tool,
    ToolCall,
    ToolChoice,
)
from backend.generation.sampling import HarmCategory, SafetyThreshold, Sampling, SamplingField
from backend.generation.servers.model import AnswerReader, ModelRequest, ServerModel
from backend.generation.servers.replies import Delta
from backend.generation.tools.calls import (
    build_round_message,
    make_unreadable_call,
    pair_results,
    read_calls,
    render_result,
)
from backend.settings import Settings

if TYPE_CHECKING:
    from google.genai import Client  # noqa: TID251 - this is the adapter
    from google.genai.errors import APIError  # noqa: TID251 - this is the adapter

_OPENING = "[Start]"
"""The user's message before a greeting, because Gemini requires that the user begins."""

_THRESHOLDS: dict[SafetyThreshold, str] = {
    "off": "OFF",
    "none": "BLOCK_NONE",
    "high": "BLOCK_ONLY_HIGH",
    "medium": "BLOCK_MEDIUM_AND_ABOVE",
    "low": "BLOCK_LOW_AND_ABOVE",
}

_CATEGORIES: dict[HarmCategory, str] = {
    "harassment": "HARM_CATEGORY_HARASSMENT",
    "hate_speech": "HARM_CATEGORY_HATE_SPEECH",
    "sexually_explicit": "HARM_CATEGORY_SEXUALLY_EXPLICIT",
    "dangerous_content": "HARM_CATEGORY_DANGEROUS_CONTENT",
}

_FINISHES: dict[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    **dict.fromkeys(
        (
            *("SAFETY", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "RECITATION", "ESCALATION"),
            *("PUP_LIMITED_DISABLED", "MODEL_ARMOR"),
        ),
        "safety",
    ),
}
_SIGNING_MODELS = "gemini-3"
_NO_SIGNATURE = "skip_thought_signature_validator"
"""The signature of a call that another model, or a client, has written.
Source: https://ai.google.dev/gemini-api/docs/thought-signatures"""

_CALL_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY", "named": "ANY"}

_MALFORMED_CALLS = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"})
"""Finish reasons of replies with a malformed call."""


def build_request_body(
    prompt: Prompt, sampling: Sampling, *, thinks: bool, show_thoughts: bool
) -> dict[str, Any]:
    """Build the body of a request. Empty messages are omitted, because Gemini refuses them.

    Args:
        prompt: The shaped prompt.
        sampling: The user's settings.
        thinks: The model thinks by default.
        show_thoughts: Request the thoughts.
    """
    messages = [
        message
        for message in _remove_shared_ids(prompt)
        if message.text.strip() or message.images or message.calls
    ]
    leading = list(takewhile(lambda message: message.role == "system", messages))
    conversation = messages[len(leading) :]
    members: dict[str, Any] = {
        "contents": _build_contents(conversation),
        "generationConfig": _map_settings(sampling, thinks=thinks, show_thoughts=show_thoughts),
    }
    if leading:
        members["systemInstruction"] = {"parts": [{"text": _join_texts(leading)}]}
    if sampling.safety is not None:
        members["safetySettings"] = [
            {"category": _CATEGORIES[category], "threshold": _THRESHOLDS[threshold]}
            for category, threshold in sampling.safety.items()
        ]
    return members


def _build_contents(messages: Sequence[PromptMessage]) -> list[Any]:
    """Build the turns of the conversation.

    Gemini requires that user and model alternate, the user first. Later system messages become the
    user's, and consecutive messages of one role become one turn.
    """
    turns: list[Any] = []
    for (role, has_calls), neighbours in groupby(messages, key=_map_role):
        if has_calls:
            for message in neighbours:
                turns += _build_call_turns(message)
        else:
            turns.append(_build_turn(role, list(_build_parts(neighbours))))
    joined = [*_join_call_turns(turns)]
    if not joined or joined[0]["role"] == "model":
        joined.insert(0, _build_turn("user", [{"text": _OPENING}]))
    return joined


def _join_call_turns(turns: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Join the model's text with its calls, because a turn of the user must precede the calls."""
    for role, neighbours in groupby(turns, key=lambda turn: turn["role"]):
        if role == "model":
            yield _build_turn(role, [part for turn in neighbours for part in turn["parts"]])
        else:
            yield from neighbours


def _build_parts(messages: Iterable[PromptMessage]) -> Iterator[dict[str, Any]]:
    """Yield the texts of consecutive messages as one part, divided only by images."""
    texts: list[str] = []
    for message in messages:
        texts += [message.text] if message.text.strip() else []
        if message.images:
            if texts:
                yield {"text": "\n\n".join(texts)}
            texts = []
            for image in message.images:
                yield {"inlineData": {"mimeType": image.media_type, "data": encode_base64(image)}}
    if texts:
        yield {"text": "\n\n".join(texts)}


def _remove_shared_ids(prompt: Prompt) -> list[PromptMessage]:
    """Return the messages and rounds without ids that several calls share.

    Results are then matched by their order.
    """
    messages = [*prompt.messages, *map(build_round_message, prompt.rounds)]
    states = [mapping(call.vendor_state) for each in messages for call in each.calls]
    counts = Counter(state["id"] for state in states if "id" in state)

    def alone(call: ToolCall) -> ToolCall:
        state = dict(mapping(call.vendor_state))
        if counts[state.get("id")] > 1:
            del state["id"]
        return replace(call, vendor_state=state or None)

    return [
        structs.replace(each, calls=tuple(map(alone, each.calls))) if each.calls else each
        for each in messages
    ]


def sign_calls(prompt: Prompt) -> Prompt:
    """Add the signature of other origin to calls of messages that have none.

    Calls that a client sends back have lost theirs, and models that sign calls refuse them.
    """
    state = {"thought_signature": _NO_SIGNATURE}
    messages = [
        structs.replace(each, calls=(replace(each.calls[0], vendor_state=state), *each.calls[1:]))
        if each.calls and not each.calls[0].vendor_state
        else each
        for each in prompt.messages
    ]
    return replace(prompt, messages=messages)


def _join_texts(messages: Iterable[PromptMessage]) -> str:
    return "\n\n".join(message.text for message in messages)


def _map_role(message: PromptMessage) -> tuple[str, bool]:
    """Return the role of a message, and True if it has calls."""
    return "model" if message.role == "assistant" else "user", bool(message.calls)


def _build_turn(role: str, parts: list[Any]) -> dict[str, Any]:
    return {"role": role, "parts": parts}


def _build_call_turns(message: PromptMessage) -> list[Any]:
    said = [{"text": message.text}] if message.text else []
    asked = [_build_call_part(call) for call in message.calls if call.name]
    answered = [_build_result_part(call, result) for call, result in pair_results(message)]
    turns = _build_turn("model", said + asked), _build_turn("user", answered)
    return [turn for turn in turns if turn["parts"]]


def _build_call_part(call: ToolCall) -> dict[str, Any]:
    state = mapping(call.vendor_state)
    part: dict[str, Any] = {"functionCall": {"name": call.name, "args": dict(call.arguments)}}
    if identifier := state.get("id"):
        part["functionCall"]["id"] = identifier
    if signature := state.get("thought_signature"):
        part["thoughtSignature"] = signature
    return part


def _build_result_part(call: ToolCall, result: Any) -> dict[str, Any]:
    if not call.name:  # would be refused
        return {"text": render_result(result)}
    response = mapping(result) or {"output": result}
    answer: dict[str, Any] = {"name": call.name, "response": response}
    if identifier := mapping(call.vendor_state).get("id"):
        answer["id"] = identifier
    return {"functionResponse": answer}


def _map_settings(sampling: Sampling, *, thinks: bool, show_thoughts: bool) -> dict[str, Any]:
    values = {
        "temperature": sampling.temperature,
        "topP": sampling.top_p,
        "topK": sampling.top_k,
        "presencePenalty": sampling.presence_penalty,
        "frequencyPenalty": sampling.frequency_penalty,
        "seed": sampling.seed,
        "stopSequences": None if sampling.stop is None else list(sampling.stop),
        "maxOutputTokens": sampling.max_output_tokens,
    }
    config: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    budget = sampling.thinking_budget
    if budget is not None:
        config["thinkingConfig"] = {"thinkingBudget": budget}
    # Requesting thoughts of a model that does not think is an error.
    if show_thoughts and (thinks if budget is None else budget != 0):
        config.setdefault("thinkingConfig", {})["includeThoughts"] = True
    return config


def build_tool_config(choice: ToolChoice) -> dict[str, Any]:
    config: dict[str, Any] = {"mode": _CALL_MODES[choice.mode]}
    if choice.mode == "named":
        config["allowedFunctionNames"] = [choice.name]
    return {"functionCallingConfig": config}


def declare_tools(tools: Sequence[Tool]) -> list[Any]:
    functions = [
        {
            "name": tool.name,
            "description": tool.description,
            "parametersJsonSchema": dict(tool.parameters),
        }
        for tool in tools
    ]
    return [{"functionDeclarations": functions}]


def build_response_format(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the members of `generationConfig` that request JSON, of a schema if there is one."""
    members: dict[str, Any] = {"responseMimeType": "application/json"}
    return members if schema is None else {**members, "responseJsonSchema": dict(schema)}


class ResponseReader:
    """Reads the responses of `generateContent` and `streamGenerateContent`.

    With `answers_calls`, a call that Gemini could not read becomes a call with a problem.
    """

    def __init__(self, *, answers_calls: bool = False) -> None:
        self._answers_calls = answers_calls

    def read_whole(self, answer: Any) -> Delta:
        """See `AnswerReader`. Without `alt=sse`, Gemini sends the chunks as a list."""
        chunks = [self.read_event(each) for each in sequence(answer) or [answer]]
        last = next((each for each in reversed(chunks) if each.finish), Delta())
        return Delta(
            pieces=tuple(chain.from_iterable(each.pieces for each in chunks)),
            usage=next((each.usage for each in reversed(chunks) if each.usage), None),
            finish=last.finish,
            reason=last.reason,
        )

    def read_event(self, event: Any) -> Delta:
        response = mapping(event)
        usage = read_usage(mapping(response.get("usageMetadata")))
        if blocked := _get_word(mapping(response.get("promptFeedback")), "blockReason"):
            return Delta(usage=usage, finish="safety", reason=blocked)
        candidate = mapping(next(iter(sequence(response.get("candidates"))), None))
        parts = sequence(mapping(candidate.get("content")).get("parts"))
        word = _get_word(candidate, "finishReason")
        pieces = list(chain.from_iterable(_read_part(mapping(each)) for each in parts))
        if self._answers_calls and word in _MALFORMED_CALLS:
            pieces.append(make_unreadable_call(f"The call could not be read: {word}."))
        return Delta(
            pieces=tuple(pieces),
            usage=usage,
            finish=_FINISHES.get(word, "other") if word else None,
            reason=word,
        )

    def close(self) -> Sequence[ToolCall]:
        """See `AnswerReader`. Gemini sends no partial calls."""
        return ()


def _read_part(part: Mapping[str, Any]) -> Iterator[TextPiece | ThinkingPiece | ToolCall]:
    if text := _get_text(part, "text"):
        yield ThinkingPiece(text) if part.get("thought") is True else TextPiece(text)
    if call := mapping(part.get("functionCall")):
        call_id, signature = _get_text(call, "id"), _get_text(part, "thoughtSignature")
        state: dict[str, str] = {}
        if call_id:
            state["id"] = call_id
        if signature:
            state["thought_signature"] = signature
        yield from read_calls(
            _get_text(call, "name"),
            call.get("args"),
            call_id=call_id,
            vendor_state=state or None,
        )


def read_usage(reported: Mapping[str, Any]) -> TokenUsage | None:
    """Return the usage. Gemini counts thoughts separately, `TokenUsage` as a part of the reply."""
    if "promptTokenCount" not in reported:
        return None
    thinking = _get_number(reported, "thoughtsTokenCount")
    return TokenUsage(
        prompt_tokens=_get_number(reported, "promptTokenCount")
        + _get_number(reported, "toolUsePromptTokenCount"),
        completion_tokens=_get_number(reported, "candidatesTokenCount") + thinking,
        cached_tokens=_get_number(reported, "cachedContentTokenCount"),
        thinking_tokens=thinking,
    )


def _get_text(value: Mapping[str, Any], name: str) -> str:
    member = value.get(name)
    return member if isinstance(member, str) else ""


def _get_word(value: Mapping[str, Any], name: str) -> str:
    """Return a value of an enumeration; "" if it is unspecified."""
    word = _get_text(value, name)
    return "" if word.endswith("_UNSPECIFIED") else word


def _get_number(value: Mapping[str, Any], name: str) -> int:
    member = value.get(name)
    return member if isinstance(member, int) else 0


WHO = "Gemini"
KEY_HEADER = "x-goog-api-key"
DEFAULT_BASE_URL = "https://generativelanguage.googleapis.com/"
API_VERSION = "v1beta"
"""The stable v1 lacks some models and fields."""

ADAPTER_ACCEPTS: frozenset[SamplingField] = frozenset(
    {
        *("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "seed"),
        *("stop", "max_output_tokens", "safety", "thinking_budget"),
    }
)
"""The settings that the API has fields for."""

_PENALTIES = frozenset({"presence_penalty", "frequency_penalty"})
_PENALTY_MODELS = "gemini-2.0-"
"""The only models with penalties. Others refuse them in every turn: 400 "Penalty is not enabled for
this model". Source: https://github.com/google-gemini/cookbook/issues/1290"""

_THINKING_MODELS = frozenset({"gemini-2.5-flash", "gemini-2.5-pro"})
"""Models that think by default. Flash-Lite thinks only if it gets a budget; others are unknown."""

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
"""Settings of refusals that do not contain their names."""


@dataclass(frozen=True, slots=True)
class GeminiConnection:
    """Google's SDK for embeddings, and the HTTP client below it for models."""

    sdk: Client
    client: ModelClient
    api_error: type[APIError]


class GeminiProvider(EmbeddingProvider[ServerConfig, GeminiConnection]):
    who, vendor_url = WHO, DEFAULT_BASE_URL

    @property
    def list_url(self) -> str:
        return f"{self.base_url}/{API_VERSION}/models?pageSize=1000"

    @property
    def default_figures(self) -> ListedModel:
        # Source: https://ai.google.dev/gemini-api/docs/models
        return ListedModel(name="-", context_window=1_048_576, max_output_tokens=65_536)

    def find_traits(self, model: str) -> ModelTraits:
        has_penalties = model.startswith(_PENALTY_MODELS)
        return ModelTraits(
            accepts=ADAPTER_ACCEPTS if has_penalties else ADAPTER_ACCEPTS - _PENALTIES
        )

    def get_client(self, connection: GeminiConnection) -> ModelClient:
        return connection.client

    def _connect(self) -> GeminiConnection:
        from google import genai  # noqa: PLC0415, TID251 - takes a second
        from google.genai.client import DebugConfig  # noqa: PLC0415, TID251 - takes a second
        from google.genai.errors import APIError  # noqa: PLC0415, TID251 - takes a second

        client = self._make_client({KEY_HEADER: self.config.api_key or ""})
        sdk = genai.Client(
            api_key=self.config.api_key,
            # Without these arguments, the SDK reads environment variables.
            vertexai=False,
            debug_config=DebugConfig(client_mode=None, replays_directory=None, replay_id=None),
            http_options=genai.types.HttpOptions(
                base_url=self.config.base_url or DEFAULT_BASE_URL,
                api_version=API_VERSION,
                httpx_async_client=client.http,
            ),
        )
        return GeminiConnection(sdk, client, APIError)

    async def embed(
        self, connection: GeminiConnection, request: EmbeddingRequest
    ) -> Sequence[Vector]:
        # The SDK would merge plain strings into one content for models that it considers
        # multimodal, and return one vector.
        contents: Any = [{"parts": [{"text": text}]} for text in request.texts]
        response = await connection.sdk.aio.models.embed_content(
            model=request.model,
            contents=contents,
            config={
                "task_type": f"RETRIEVAL_{request.task.upper()}",
                "output_dimensionality": request.dimension,
            },
        )
        return [each.values or [] for each in response.embeddings or ()]

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
    def __init__(self, spec: ModelSpec, provider: GeminiProvider) -> None:
        super().__init__(spec, provider)
        self._thinks = spec.name in _THINKING_MODELS

    def _address(self, *, stream: bool) -> str:
        name = self.spec.name if "/" in self.spec.name else f"models/{self.spec.name}"
        method = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return f"{self._provider.base_url}/{API_VERSION}/{name}:{method}"

    def _body(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:
        prompt = request.shaped_prompt
        if self.spec.name.startswith(_SIGNING_MODELS):
            prompt = sign_calls(prompt)
        body = build_request_body(
            prompt, request.sampling, thinks=self._thinks, show_thoughts=stream
        )
        if request.tools:
            body["tools"] = declare_tools(request.tools)
            if (choice := request.options.tool_choice).mode != "auto":
                body["toolConfig"] = build_tool_config(choice)
        if request.schema is not None or request.options.form is not None:
            body["generationConfig"] |= build_response_format(request.schema_of_text)
        return body

    def _reader(self, request: ModelRequest) -> AnswerReader:
        return ResponseReader(answers_calls=bool(request.tools))

    def _setting_names(
        self,
        request: ModelRequest,  # noqa: ARG002 - the same for all
    ) -> Mapping[str, Sequence[SamplingField]]:
        return _SETTING_NAMES

    def _adapt(self, request: ModelRequest, error: ServerError) -> ModelRequest:
        """See `ServerModel`. Also recognises refusals without the name of a setting."""
        for words, settings in _BY_WORDS.items():
            set_by_user = request.sampling.set_fields()
            found: list[SamplingField] = [each for each in settings if each in set_by_user]
            if error.status == HTTPStatus.BAD_REQUEST and found and words in error.text:
                if "not enabled" in error.text or "not supported" in error.text:
                    self._remember_refused(*found)
                return request.without(*found)
        return super()._adapt(request, error)


def _read_config(settings: Settings) -> ServerConfig:
    key = settings.gemini_api_key
    return ServerConfig(
        api_key=key.get_secret_value() if key else None,
        models=settings.gemini_models,
        base_url=settings.gemini_base_url or None,
        chunk_timeout=settings.model_silence_seconds,
    )


def _read_settings(settings: Settings) -> EnvironmentProvider | None:
    if settings.gemini_api_key is None:
        return None
    return EnvironmentProvider(config=_read_config(settings))


GEMINI = ProviderKind(
    title="Gemini",
    variables=("TALEKEEPER_GEMINI_API_KEY",),
    read_settings=_read_settings,
    provider=GeminiProvider,
    model=GeminiModel,
    presets=(
        ServicePreset(
            name="google-ai-studio",
            title="Google AI Studio",
            key_url="https://aistudio.google.com/apikey",
        ),
    ),
    tokenizer="gemma3",
    reserved_headers=frozenset({KEY_HEADER}),
    embeddings=EmbeddingKind(
        label=WHO,
        read_settings=_read_config,
        default_model="gemini-embedding-001",
        # Vectors of fewer than 3,072 numbers are truncated, and not scaled.
        default_dimension=768,
        # Source: https://ai.google.dev/api/embeddings#method:-models.batchembedcontents
        max_batch=100,
    ),
)
