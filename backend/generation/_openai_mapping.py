"""Prompts, settings and tools in the form of OpenAI's chat completions, and its answers in ours.

Source: https://platform.openai.com/docs/api-reference/chat

Servers call themselves compatible and leave out what they like: whatever is read here is read as
JSON of any shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal, cast

from backend.generation._json import mapping, parse_json, sequence
from backend.generation._openai_calls import REASONING, CallFragments
from backend.generation._replies import Delta
from backend.generation._tool_calls import with_distinct_ids
from backend.generation.client import ServerError
from backend.generation.figures import MessageShape
from backend.generation.message_shapes import SEPARATOR
from backend.generation.model import (
    FinishReason,
    Prompt,
    TextPiece,
    ThinkingPiece,
    TokenUsage,
    Tool,
    ToolCall,
    ToolRound,
)
from backend.generation.provider_faults import code_words
from backend.generation.sampling import SAMPLING_FIELDS, Sampling, SamplingField

_FINISHES: Mapping[str, FinishReason] = {
    **dict.fromkeys(
        ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete", "completed"), "stop"
    ),
    **dict.fromkeys(
        ("length", "max_tokens", "model_length", "model_context_window_exceeded"), "length"
    ),
    **dict.fromkeys(
        ("content_filter", "safety", "sensitive", "refusal", "prohibited_content"), "safety"
    ),
    **dict.fromkeys(("tool_calls", "tool_call", "tool_use", "function_call"), "tool_calls"),
}
"""OpenAI's words, and those of vendors that translate other APIs, in lower case."""

_UNFINISHED = frozenset({"", "null"})
"""Words of chunks that are not the last. KoboldCpp sends null as a text."""

_FAILED = frozenset({"error", "abort", "aborted", "network_error", "insufficient_system_resource"})
"""Words for a reply that the server could not finish: OpenRouter's, vLLM's, Z.ai's, DeepSeek's."""

_NAMES: Mapping[SamplingField, str] = {
    # Deprecated by OpenAI in favour of max_completion_tokens, which few others know.
    "max_output_tokens": "max_tokens",
    "json_schema": "response_format",
}
"""The settings that go by another name in the API."""

_NOT_BY_NAME = frozenset({"start_reply_with", "json_schema"})
"""Settings in members of a request that hold other things, too: a refusal may be of those."""


def messages(
    prompt: Prompt, start: str | None, prefix: Mapping[str, Any], *, shape: MessageShape
) -> list[Any]:
    """Return the messages in order, then the rounds of tools, then the beginning of the reply.

    Args:
        prompt: In the shape that is sent.
        start: The beginning of the reply, if there is one.
        prefix: Members of that last message, if the server wants some.
        shape: In the strict shapes neighbours of one role are joined.
    """
    said: list[Any] = [
        {"role": message.role, "content": message.text} for message in prompt.messages
    ]
    for tool_round in with_distinct_ids(prompt.rounds):
        said += _round(tool_round)
    if start:
        said.append({"role": "assistant", "content": start, **prefix})
    return said if shape == "lenient" else _joined(said)


def _joined(said: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join neighbours of one role, for templates that want roles to alternate.

    A message with calls is the last one that is joined: its results follow.
    """
    joined: list[dict[str, Any]] = []
    for message in said:
        before = joined[-1] if joined else {}
        is_same = message["role"] == before.get("role") and message["role"] != "tool"
        if is_same and "tool_calls" not in before:
            texts = filter(None, (before["content"], message["content"]))
            joined[-1] = {**message, "content": SEPARATOR.join(texts)}
        else:
            joined.append(message)
    return joined


def _round(tool_round: ToolRound) -> list[Any]:
    asked: dict[str, Any] = {"role": "assistant", "content": tool_round.text or None}
    named = [_call(call) for call in tool_round.calls if call.name]
    if named:
        asked["tool_calls"] = named
        state = mapping(tool_round.calls[0].vendor_state)
        if REASONING in state:
            asked[REASONING] = state[REASONING]
    answered = [
        {"role": "tool", "tool_call_id": call.id, "content": _result(result)}
        # A call without a name would be refused: what is answered to it is said to the model.
        if call.name
        else {"role": "user", "content": _result(result)}
        for call, result in zip(tool_round.calls, tool_round.results, strict=True)
    ]
    return [*([asked] if tool_round.text or named else ()), *answered]


def _call(call: ToolCall) -> Any:
    """Return the call as the server sent it, with members that the standard does not name."""
    if "function" in (sent := mapping(call.vendor_state)):
        return {**{name: sent[name] for name in sent if name != REASONING}, "id": call.id}
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
    }


def _result(result: Any) -> str:
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def settings(sampling: Sampling, names: Mapping[SamplingField, str]) -> dict[str, Any]:
    """The sampling settings that are set, but for `start_reply_with`, under a server's names."""
    body: dict[str, Any] = {}
    for setting in sampling.set_fields():
        value = getattr(sampling, setting)
        if setting == "json_schema":
            body["response_format"] = response_format(parse_json(value))
        elif setting != "start_reply_with":
            outer, _, inner = wire_name(setting, names).partition(".")
            told = list(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else value
            body[outer] = {inner: told} if inner else told
    return body


def wire_name(setting: SamplingField, names: Mapping[SamplingField, str]) -> str:
    """What a setting is called in a request to a server with these `names` of its own."""
    return names.get(setting) or _NAMES.get(setting, setting)


def setting_names(names: Mapping[SamplingField, str]) -> dict[str, SamplingField]:
    """The settings by the members of a request that hold them."""
    return {
        wire_name(setting, names).partition(".")[0]: setting
        for setting in SAMPLING_FIELDS
        if setting not in _NOT_BY_NAME
    }


def declarations(tools: Sequence[Tool]) -> list[Any]:
    """The tools, with their JSON Schemas as they are."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for tool in tools
    ]


def response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Ask for JSON of `schema`.

    Not `strict`: that wants every property required and nothing additional, and is refused
    otherwise.
    """
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": dict(schema)}}


class ChunkReader:
    """Reads one answer of chat completions: its chunks, or all of it.

    `tool_names` are the tools that the model was offered.
    """

    def __init__(self, tool_names: Iterable[str] = ()) -> None:
        self._calls = CallFragments(tool_names)

    def read_event(self, event: Any) -> Delta:
        """See `AnswerReader`."""
        return _read(event, "delta", self._calls)

    def read_whole(self, answer: Any) -> Delta:
        """See `AnswerReader`."""
        return _read(answer, "message", self._calls)

    def close(self) -> Sequence[ToolCall]:
        """See `AnswerReader`. Some servers send no finish reason, or calls after it."""
        return self._calls.finish()


def _read(body: Any, part: Literal["delta", "message"], calls: CallFragments) -> Delta:
    choice = next(iter(_member(body, "choices") or ()), None)
    said = _member(choice, part)
    is_whole = part == "message"
    if said is None and _member(choice, "message") is not None:
        # A server that cannot stream sends all of the answer in one event.
        said, is_whole = _member(choice, "message"), True
    calls.add(said, is_whole=is_whole)
    # Two names are in use for thoughts: DeepSeek's and OpenRouter's. Some servers send both.
    thinking = _text(said, "reasoning_content") or _text(said, "reasoning")
    thinking = thinking or _parts(_member(said, "content"), "thinking")
    text = _text(said, "content") or _text(said, "refusal") or _parts(_member(said, "content"))
    word = _text(choice, "finish_reason")
    word = "" if word in _UNFINISHED else word
    if word.lower() in _FAILED:
        raise ServerError(HTTPStatus.OK, {"error": {"type": word}}, {}, in_stream=True)
    return Delta(
        pieces=(
            *([ThinkingPiece(thinking)] if thinking else ()),
            *([TextPiece(text)] if text else ()),
            # Fragments of several calls may be mixed: none is surely complete before the end.
            *(calls.finish() if word or is_whole else ()),
        ),
        usage=_find_usage(body, choice),
        finish=_FINISHES.get(word.lower(), "other") if word else None,
        reason=" ".join(code_words(word)),
    )


def _find_usage(body: Any, choice: Any) -> TokenUsage | None:
    """Return the usage of a chunk, which Moonshot puts into the choice and Groq into `x_groq`.

    Sources: https://platform.moonshot.ai/docs/api/chat, https://console.groq.com/docs/api-reference
    """
    places = (body, choice, _member(body, "x_groq"))
    return next(filter(None, (read_usage(_member(place, "usage")) for place in places)), None)


def read_usage(reported: Any) -> TokenUsage | None:
    """What was used, where the server says so: a prompt of no tokens says nothing."""
    if not (_number(reported, "prompt_tokens") or _number(reported, "completion_tokens")):
        return None
    return TokenUsage(
        prompt_tokens=_number(reported, "prompt_tokens"),
        completion_tokens=_number(reported, "completion_tokens"),
        # DeepSeek has a name of its own for them.
        cached_tokens=_number(_member(reported, "prompt_tokens_details"), "cached_tokens")
        or _number(reported, "prompt_cache_hit_tokens"),
        thinking_tokens=_number(_member(reported, "completion_tokens_details"), "reasoning_tokens"),
    )


def _member(value: Any, name: str) -> Any:
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


def _text(value: Any, name: str) -> str:
    member = _member(value, name)
    return member if isinstance(member, str) else ""


def _parts(content: Any, kind: str = "text") -> str:
    """Text out of a list of parts, in which Mistral's models that think answer."""
    members = (part.get(kind) for part in map(mapping, sequence(content)))
    return "".join(
        member if isinstance(member, str) else _parts(member) for member in members if member
    )


def _number(value: Any, name: str) -> int:
    member = _member(value, name)
    return member if isinstance(member, int) else 0
