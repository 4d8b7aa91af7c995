"""The adapter for Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import Any

from backend.generation.catalogue import ListedModel
from backend.generation.client.client import ModelClient
from backend.generation.client.provider import (
    EnvironmentProvider,
    ModelProvider,
    ModelTraits,
    ProviderKind,
    ServerConfig,
    ServicePreset,
)
from backend.generation.failures.failures import Refusal
from backend.generation.images import encode_base64
from backend.generation.json_text import clean_text, mapping, sequence
from backend.generation.model import (
    FinishReason,
    Prompt,
    PromptImage,
    PromptMessage,
    TextPiece,
    ThinkingPiece,
    TokenUsage,
    Tool,
    ToolCall,
    ToolChoice,
)
from backend.generation.sampling import Sampling, SamplingField
from backend.generation.servers.model import AnswerReader, ModelRequest, ServerModel
from backend.generation.servers.replies import Delta
from backend.generation.tools.calls import (
    MAX_ARGUMENTS,
    list_messages,
    pair_results,
    read_calls,
    render_result,
    serialize_arguments,
)
from backend.settings import Settings

DEFAULT_REPLY_TOKENS = 8_192
"""Output limit if the user sets none, because the API requires one."""

MIN_THINKING_TOKENS = 1_024
"""Minimum thinking budget of the API."""

MIN_THINKING_TOP_P = 0.95
"""Minimum `top_p` of the API while the model thinks."""

_NO_THINKING = {"type": "disabled"}
_ADAPTIVE_THINKING = {"type": "adaptive", "display": "summarized"}

_SCHEMA_MEMBERS = (
    *("type", "description", "title", "enum", "const", "default", "format", "required", "$ref"),
)

_OPENING = "[Start]"
"""The user's message before a greeting, because the API requires that the user begins."""

_ANY_OBJECT = "Answer with one JSON object and nothing else."
"""The API has no format for objects without a schema."""

_CACHED = {"cache_control": {"type": "ephemeral"}}
"""Marks a block up to which the API caches the prompt for later requests."""

MAX_BLOCKS = 1_000
"""Maximum number of blocks of one answer. Calls and signatures of further ones are ignored."""

MAX_SIGNATURE_CHARACTERS = 2**20
"""Maximum length of a block's signature, which contains the encrypted thoughts."""

_THOUGHTS = "thoughts"
"""The member of a call's state that contains thoughts."""

_FINISHES: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "safety",
}

_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}


def build_request_body(
    prompt: Prompt,
    sampling: Sampling,
    *,
    start: str,
    max_output_tokens: int,
    is_adaptive: bool,
) -> dict[str, Any]:
    """Build the body of a request. Empty messages are omitted, because the API refuses them.

    The API caches the system blocks and the messages up to the last stable one.

    Args:
        prompt: The shaped prompt.
        sampling: The user's settings, without conflicting ones.
        start: The beginning of the reply, without spaces at its end.
        max_output_tokens: The model's output limit, including thoughts.
        is_adaptive: The model chooses its own thinking budget.
    """
    messages = [*list_messages(prompt), *([PromptMessage("assistant", start)] if start else ())]
    spoken = [
        (message, place + 1 == prompt.stable)
        for place, message in enumerate(messages)
        if message.text.strip() or message.images or message.calls
    ]
    leading = list(takewhile(lambda each: each[0].role == "system", spoken))
    members: dict[str, Any] = {
        "messages": _build_turns(spoken[len(leading) :]),
        **_map_settings(sampling, max_output_tokens, is_adaptive=is_adaptive),
    }
    if leading:
        blocks = [_build_text_block(message.text) for message, _ in leading]
        members["system"] = [*blocks[:-1], blocks[-1] | (_CACHED if prompt.stable else {})]
    return members


def find_conflicts(sampling: Sampling) -> list[SamplingField]:
    """Return the settings that the API refuses in combination with the others.

    Thinking excludes other temperatures than 1, `top_k`, a `top_p` below 0.95, and the beginning of
    a reply. Without thinking, recent models refuse `top_p` together with a temperature.
    Source: https://platform.claude.com/docs/en/build-with-claude/extended-thinking
    """
    found: list[SamplingField] = []
    if (_choose_thinking(sampling) or _NO_THINKING)["type"] != "disabled":
        if sampling.temperature not in (None, 1):
            found.append("temperature")
        if sampling.top_k is not None:
            found.append("top_k")
        if sampling.top_p is not None and sampling.top_p < MIN_THINKING_TOP_P:
            found.append("top_p")
        if sampling.start_reply_with:
            found.append("start_reply_with")
    keeps_both = not {"temperature", "top_p"}.intersection(found)
    if keeps_both and sampling.temperature is not None and sampling.top_p is not None:
        found.append("top_p")
    return found


def find_thinking(sampling: Sampling) -> list[SamplingField]:
    """Return the settings that make the model think."""
    if (_choose_thinking(sampling) or _NO_THINKING)["type"] == "disabled":
        return []
    names: tuple[SamplingField, ...] = ("thinking_budget", "reasoning_effort")
    return [name for name in names if getattr(sampling, name) is not None]


def _forbids_thinking(request: ModelRequest) -> bool:
    """True if the API refuses thinking for a request.

    It refuses a forced call, and results of calls without the thoughts before them, which clients
    do not send back.
    Source: https://platform.claude.com/docs/en/build-with-claude/extended-thinking
    """
    last = request.prompt.messages[-1] if request.prompt.messages else None
    is_unsigned = last is not None and bool(last.calls) and not last.calls[0].vendor_state
    return is_unsigned or request.options.tool_choice.mode in {"required", "named"}


def _build_turns(spoken: Sequence[tuple[PromptMessage, bool]]) -> list[Any]:
    """Build the turns of the conversation. Later system messages become the user's."""
    turns: list[Any] = []
    for message, is_last_stable in spoken:
        for role, blocks in _build_parts(message):
            if not turns and role == "assistant":
                turns.append(_build_turn("user", [_build_text_block(_OPENING)]))
            if turns and turns[-1]["role"] == role:
                turns[-1]["content"] += blocks
            else:
                turns.append(_build_turn(role, blocks))
        if is_last_stable and turns:
            turns[-1]["content"][-1] |= _CACHED
    if not turns:
        turns.append(_build_turn("user", [_build_text_block(_OPENING)]))
    if turns[-1]["role"] == "assistant":
        # The API refuses spaces at the end of the reply's beginning.
        last = turns[-1]["content"][-1]
        last["text"] = last["text"].rstrip()
    return turns


def _build_parts(message: PromptMessage) -> Iterator[tuple[str, list[Any]]]:
    """Yield roles and blocks: one, or the model's calls and their results."""
    if message.calls:
        yield from _build_call_parts(message)
        return
    text = [_build_text_block(message.text)] if message.text.strip() else []
    role = "assistant" if message.role == "assistant" else "user"
    yield role, [*map(_build_image_block, message.images), *text]


def _build_call_parts(message: PromptMessage) -> Iterator[tuple[str, list[Any]]]:
    """Yield the model's calls with the thoughts before them, and the results."""
    named = [call for call in message.calls if call.name]
    thought = [*mapping(named[0].vendor_state).get(_THOUGHTS, ())] if named else []
    said = [_build_text_block(message.text.rstrip())] if message.text.strip() else []
    asked = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
        for call in named
    ]
    if said or asked:
        yield "assistant", [*thought, *said, *asked]
    yield (
        "user",
        [
            {"type": "tool_result", "tool_use_id": call.id, "content": render_result(result)}
            # Calls without a name would be refused, so their results are texts.
            if call.name
            else _build_text_block(render_result(result))
            for call, result in pair_results(message)
        ],
    )


def _build_image_block(image: PromptImage) -> dict[str, Any]:
    if not image.data:
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    data = encode_base64(image)
    source = {"type": "base64", "media_type": image.media_type, "data": data}
    return {"type": "image", "source": source}


def _build_turn(role: str, content: list[Any]) -> dict[str, Any]:
    return {"role": role, "content": content}


def _build_text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _map_settings(
    sampling: Sampling, max_output_tokens: int, *, is_adaptive: bool
) -> dict[str, Any]:
    """Map the settings to the API's names. The thinking budget is added to the output limit."""
    reply = min(sampling.max_output_tokens or DEFAULT_REPLY_TOKENS, max_output_tokens)
    thinking, effort = _choose_thinking(sampling), _EFFORTS.get(sampling.reasoning_effort or "")
    if thinking and thinking["type"] == "enabled" and is_adaptive:
        thinking = _ADAPTIVE_THINKING
    tokens = reply
    if thinking and thinking["type"] == "enabled":
        # The API requires a budget below the limit. The reply's tokens are reserved, but at most
        # half of the limit if the budget needs it.
        most = max(max_output_tokens - reply, max_output_tokens // 2)
        budget = min(int(thinking["budget_tokens"]), most)
        thinking = {**thinking, "budget_tokens": budget}
        tokens = min(reply + budget, max_output_tokens)
    values = {
        "max_tokens": tokens,
        # The API's maximum is 1.
        "temperature": None if sampling.temperature is None else min(sampling.temperature, 1.0),
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop_sequences": None if sampling.stop is None else list(sampling.stop),
        "thinking": thinking,
        "output_config": {"effort": effort} if effort else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _choose_thinking(sampling: Sampling) -> dict[str, Any] | None:
    """Return the thinking mode; None uses the default. A budget of -1 is adaptive."""
    budget = sampling.thinking_budget
    if budget == 0 or (budget is None and sampling.reasoning_effort == "none"):
        return _NO_THINKING
    if budget is not None and budget > 0:
        return {"type": "enabled", "budget_tokens": max(budget, MIN_THINKING_TOKENS)}
    if budget is None and sampling.reasoning_effort is None:
        return None
    return _ADAPTIVE_THINKING


def simplify_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a JSON Schema that the API supports.

    Objects are closed. Limits of numbers, lists and texts are omitted, and the caller checks them.
    Source: https://platform.claude.com/docs/en/build-with-claude/structured-outputs
    """
    plain: dict[str, Any] = {name: schema[name] for name in _SCHEMA_MEMBERS if name in schema}
    for name in ("items", "additionalItems"):
        if isinstance(schema.get(name), Mapping):
            plain[name] = simplify_schema(schema[name])
    for name in ("properties", "$defs", "definitions"):
        if name in schema:
            plain[name] = {key: simplify_schema(each) for key, each in schema[name].items()}
    for name in ("anyOf", "allOf", "oneOf"):
        if name in schema:
            plain["anyOf" if name == "oneOf" else name] = list(map(simplify_schema, schema[name]))
    if schema.get("type") == "object":
        plain["additionalProperties"] = False
    return plain


def build_tool_choice(choice: ToolChoice) -> dict[str, Any]:
    if choice.mode == "named":
        return {"type": "tool", "name": choice.name}
    return {"type": "any" if choice.mode == "required" else choice.mode}


def declare_tools(tools: Sequence[Tool]) -> list[Any]:
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "input_schema": dict(tool.parameters),
        }
        for tool in tools
    ]


@dataclass(slots=True)
class _Block:
    """An incomplete block. `begun` is the JSON of its start event."""

    begun: Mapping[str, Any]
    arguments: list[str] = field(default_factory=list[str])
    length: int = 0
    thoughts: list[str] = field(default_factory=list[str])
    signature: list[str] = field(default_factory=list[str])
    signed: int = 0


class MessageReader:
    """Reads one answer, event by event or as a whole.

    Thoughts are stored with the first call, because the API requires them with its result.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._begun = 0
        self._thoughts: list[Mapping[str, Any]] = []
        self._usage: dict[str, Any] = {}
        self._has_ended = False

    def read_event(self, event: Any) -> Delta:
        """Read one event of a stream. Unknown events are ignored.

        A block ends with its end event, with another block of the same index, or with the answer,
        because some imitations of the API use one index for all blocks or send no end events.
        """
        members = mapping(event)
        index = _get_number(members, "index")
        match members.get("type"):
            case "message_start":
                self._usage |= mapping(mapping(members.get("message")).get("usage"))
            case "content_block_start":
                calls = self._close(index)
                block = self._begin(index, mapping(members.get("content_block")))
                return Delta((*calls, *_read_pieces(block.begun)))
            case "content_block_delta":
                block = self._blocks.get(index) or self._begin(index, {})
                return Delta(self._extend(block, mapping(members.get("delta"))))
            case "content_block_stop":
                return Delta(self._close(index))
            case "message_delta":
                self._usage |= mapping(members.get("usage"))
                end = self._end(mapping(members.get("delta")))
                return replace(end, pieces=self.close()) if end.finish else end
            case "message_stop" if not self._has_ended:
                return Delta(self.close(), finish="stop", reason="message_stop")
            case _:
                pass
        return Delta()

    def read_whole(self, answer: Any) -> Delta:
        members = mapping(answer)
        self._usage |= mapping(members.get("usage"))
        pieces: list[TextPiece | ThinkingPiece | ToolCall] = []
        for each in sequence(members.get("content")):
            block = mapping(each)
            pieces += (*_read_pieces(block), *self._find_calls(_Block(block)))
        end = self._end(members)
        return Delta(tuple(pieces), end.usage, end.finish, end.reason)

    def _extend(
        self, block: _Block, delta: Mapping[str, Any]
    ) -> tuple[TextPiece | ThinkingPiece, ...]:
        if block.length <= MAX_ARGUMENTS:
            block.arguments.append(serialize_arguments(delta.get("partial_json")))
            block.length += len(block.arguments[-1])
        block.thoughts.append(_get_text(delta, "thinking"))
        if block.signed <= MAX_SIGNATURE_CHARACTERS:
            block.signature.append(_get_text(delta, "signature"))
            block.signed += len(block.signature[-1])
        return _read_pieces(delta)

    def close(self) -> tuple[ToolCall, ...]:
        return tuple(chain.from_iterable(map(self._close, list(self._blocks))))

    def _begin(self, index: int, begun: Mapping[str, Any]) -> _Block:
        """Begin a block. It is not stored if there are too many."""
        block = _Block(begun)
        self._begun += 1
        if self._begun <= MAX_BLOCKS:
            self._blocks[index] = block
        return block

    def _close(self, index: int) -> tuple[ToolCall, ...]:
        """End the open block of an index and return its calls."""
        block = self._blocks.pop(index, None)
        return () if block is None else self._find_calls(block)

    def _find_calls(self, block: _Block) -> tuple[ToolCall, ...]:
        """Return the calls of a complete block. Store its thoughts for the next call."""
        begun = block.begun
        match begun.get("type"):
            case "thinking":
                thought = "".join((_get_text(begun, "thinking"), *block.thoughts))
                signature = "".join((_get_text(begun, "signature"), *block.signature))
                self._thoughts.append({**begun, "thinking": thought, "signature": signature})
            case "redacted_thinking":
                self._thoughts.append(begun)
            case "tool_use":
                state = {_THOUGHTS: self._thoughts} if self._thoughts else None
                self._thoughts = []
                return tuple(
                    read_calls(
                        _get_text(begun, "name"),
                        "".join(block.arguments) or begun.get("input"),
                        call_id=_get_text(begun, "id"),
                        vendor_state=state,
                    )
                )
            case _:
                pass
        return ()

    def _end(self, members: Mapping[str, Any]) -> Delta:
        word = _get_text(members, "stop_reason")
        self._has_ended = self._has_ended or bool(word)
        return Delta(
            usage=read_usage(self._usage),
            finish=_FINISHES.get(word, "other") if word else None,
            reason=word,
        )


def _read_pieces(block: Mapping[str, Any]) -> tuple[TextPiece | ThinkingPiece, ...]:
    """Return the text and thoughts in a block or in a fragment of one."""
    # Lone surrogates are unchanged, because the other half may be in the next fragment.
    thought, said = block.get("thinking"), block.get("text")
    return (
        *([ThinkingPiece(thought)] if isinstance(thought, str) and thought else ()),
        *([TextPiece(said)] if isinstance(said, str) and said else ()),
    )


def read_usage(reported: Mapping[str, Any]) -> TokenUsage | None:
    """Return the usage. The API's input tokens exclude the cached ones."""
    if not reported:
        return None
    cached = _get_number(reported, "cache_read_input_tokens")
    kept = _get_number(reported, "cache_creation_input_tokens")
    details = mapping(reported.get("output_tokens_details"))
    return TokenUsage(
        prompt_tokens=_get_number(reported, "input_tokens") + cached + kept,
        completion_tokens=_get_number(reported, "output_tokens"),
        cached_tokens=cached,
        thinking_tokens=_get_number(details, "thinking_tokens"),
    )


def _get_text(value: Mapping[str, Any], name: str) -> str:
    member = value.get(name)
    return clean_text(member) if isinstance(member, str) else ""


def _get_number(value: Mapping[str, Any], name: str) -> int:
    member = value.get(name)
    return member if isinstance(member, int) else 0


WHO = "Anthropic"
DEFAULT_BASE_URL = "https://api.anthropic.com"
KEY_HEADER = "x-api-key"
VERSION_HEADER, VERSION = "anthropic-version", "2023-06-01"
MESSAGES = "/v1/messages"

ADAPTER_ACCEPTS: frozenset[SamplingField] = frozenset(
    {
        *("temperature", "top_p", "top_k", "stop", "max_output_tokens"),
        *("thinking_budget", "reasoning_effort", "start_reply_with"),
    }
)
"""The settings that the API has fields for. Some models refuse some of them."""

EXCLUDES: Mapping[SamplingField, Sequence[SamplingField]] = {
    **dict.fromkeys(
        ("thinking_budget", "reasoning_effort"),
        ("temperature", "top_k", "top_p", "start_reply_with"),
    ),
    "temperature": ("top_p",),
}
"""Settings that may be omitted if another one is set: see `find_conflicts`."""

ADAPTIVE = "adaptive_thinking"
"""Stored in `ModelAbilities.without` of models that refuse a thinking budget."""

_SETTING_NAMES: Mapping[str, Sequence[SamplingField]] = {
    # If a refusal names several, the last one is omitted, so the preferred one comes first.
    "effort": ("reasoning_effort",),
    "thinking": ("thinking_budget", "reasoning_effort"),
    "budget_tokens": ("thinking_budget",),
    "stop_sequences": ("stop",),
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "top_k": ("top_k",),
}


class AnthropicProvider(ModelProvider[ServerConfig, ModelClient]):
    who, vendor_url = WHO, DEFAULT_BASE_URL

    @property
    def list_url(self) -> str:
        return f"{self.base_url}/v1/models?limit=1000"

    @property
    def default_figures(self) -> ListedModel:
        # Source: https://platform.claude.com/docs/en/about-claude/models/overview
        return ListedModel(name="-", context_window=200_000, max_output_tokens=64_000)

    def find_traits(self, model: str) -> ModelTraits:  # noqa: ARG002 - the same for all
        return ModelTraits(accepts=ADAPTER_ACCEPTS, excludes=EXCLUDES)

    def get_client(self, connection: ModelClient) -> ModelClient:
        return connection

    def _connect(self) -> ModelClient:
        return self._make_client({KEY_HEADER: self.config.api_key or "", VERSION_HEADER: VERSION})

    async def _disconnect(self, connection: ModelClient) -> None:
        await connection.aclose()


class AnthropicModel(ServerModel[AnthropicProvider]):
    @property
    def _reads_addresses(self) -> bool:
        return True

    def _address(self, *, stream: bool) -> str:  # noqa: ARG002 - one address for both
        return self._provider.base_url + MESSAGES

    def _body(self, request: ModelRequest, *, stream: bool) -> dict[str, Any]:
        body = build_request_body(
            request.shaped_prompt,
            request.sampling,
            start=request.start,
            max_output_tokens=self.spec.max_output_tokens,
            is_adaptive=ADAPTIVE in self._provider.abilities.find(self.spec.name).without,
        )
        body["model"] = self.spec.name
        if request.tools:
            body["tools"] = declare_tools(request.tools)
            if (choice := request.options.tool_choice).mode != "auto":
                body["tool_choice"] = build_tool_choice(choice)
        if (schema := request.schema_of_text) is not None:
            wanted = {"type": "json_schema", "schema": simplify_schema(schema)}
            body["output_config"] = {**body.get("output_config", {}), "format": wanted}
        elif request.options.form is not None:
            body["system"] = [*body.get("system", ()), _build_text_block(_ANY_OBJECT)]
        return {**body, **({"stream": True} if stream else {})}

    def _reader(self, request: ModelRequest) -> AnswerReader:  # noqa: ARG002 - the same for all
        return MessageReader()

    def _setting_names(
        self,
        request: ModelRequest,  # noqa: ARG002 - the same for all
    ) -> Mapping[str, Sequence[SamplingField]]:
        return _SETTING_NAMES

    def _fit_settings(self, request: ModelRequest) -> ModelRequest:
        """See `ServerModel`. The API refuses spaces at the end of the reply's beginning."""
        fitted = request
        if _forbids_thinking(request) and (thinking := find_thinking(request.sampling)):
            fitted = request.without(*thinking)
        conflicts = find_conflicts(fitted.sampling)
        fitted = fitted.without(*conflicts) if conflicts else fitted
        return fitted.with_start(fitted.start.rstrip())

    def _leave_out(
        self,
        request: ModelRequest,
        refusal: Refusal,
        names: Mapping[str, Sequence[SamplingField]],
        text: str,
    ) -> ModelRequest | None:
        """See `ServerModel`. Models that refuse a thinking budget use adaptive thinking."""
        known = self._provider.abilities.find(self.spec.name).without
        is_budget = "thinking_budget" in names[refusal.member]
        if is_budget and "adaptive" in text and ADAPTIVE not in known:
            self._provider.learn(self.spec.name, without=(*known, ADAPTIVE))
            return request
        return super()._leave_out(request, refusal, names, text)


def _read_settings(settings: Settings) -> EnvironmentProvider | None:
    if settings.anthropic_api_key is None:
        return None
    config = ServerConfig(
        api_key=settings.anthropic_api_key.get_secret_value(),
        models=settings.anthropic_models,
        base_url=settings.anthropic_base_url or None,
        chunk_timeout=settings.model_silence_seconds,
    )
    return EnvironmentProvider(config=config)


ANTHROPIC = ProviderKind(
    title="Anthropic",
    variables=("TALEKEEPER_ANTHROPIC_API_KEY",),
    read_settings=_read_settings,
    provider=AnthropicProvider,
    model=AnthropicModel,
    presets=(
        ServicePreset(
            name="anthropic",
            title="Anthropic",
            key_url="https://console.anthropic.com/settings/keys",
        ),
    ),
    reserved_headers=frozenset({KEY_HEADER, VERSION_HEADER}),
)
