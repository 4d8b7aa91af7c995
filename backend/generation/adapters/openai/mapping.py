"""Conversion of prompts, settings, tools and answers to and from OpenAI's chat completions.

Answers are read as JSON of any shape, because compatible servers omit or change members.

Source: https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from itertools import islice
from typing import Any, Literal, cast

from backend.generation.catalogue import MessageShape
from backend.generation.client.client import ServerError
from backend.generation.failures.provider_faults import find_code_words
from backend.generation.images import encode_base64
from backend.generation.json_text import (
    ValueProgress,
    clean,
    clean_text,
    mapping,
    parse_json,
    sequence,
)
from backend.generation.message_shapes import SEPARATOR
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
from backend.generation.sampling import SAMPLING_FIELDS, Sampling, SamplingField
from backend.generation.servers.replies import Delta
from backend.generation.tools.calls import (
    ARGUMENTS,
    MAX_ARGUMENTS,
    MAX_CALLS,
    NAMES,
    assign_distinct_ids,
    find_name_and_arguments,
    list_messages,
    pair_results,
    read_calls,
    render_result,
    serialize_arguments,
)

REASONING = "reasoning_content"
"""Thoughts before tool calls. DeepSeek and Moonshot AI refuse the next request without them. They
are stored with the first call."""

_STANDARD = frozenset({"index", "id", "type", "function", *NAMES, *ARGUMENTS})

_MAX_INDEX_DIGITS = 9

MAX_MEMBERS = 20
"""Maximum number of nonstandard members of a call, which are sent back with it."""


@dataclass(frozen=True, slots=True)
class _Fragment:
    """A call or a part of one. `members` are the nonstandard ones."""

    index: int | None
    id: str
    name: str
    arguments: str
    members: Mapping[str, Any]

    @classmethod
    def read(cls, value: object) -> _Fragment:
        fragment = mapping(value)
        name, arguments = find_name_and_arguments(fragment)
        return cls(
            index=_read_index(fragment.get("index")),
            id=_read_id(fragment.get("id")),
            name=name,
            arguments=serialize_arguments(arguments),
            members={name: fragment[name] for name in fragment if name not in _STANDARD},
        )


@dataclass(slots=True)
class _PartialCall:
    """An incomplete call. `is_kept` is true for the first `MAX_CALLS`."""

    is_kept: bool
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    length: int = 0
    progress: ValueProgress = field(default_factory=ValueProgress)
    members: dict[str, Any] = field(default_factory=dict[str, Any])

    def add(self, fragment: _Fragment) -> None:
        self.id = self.id or fragment.id
        if not self.name:
            self.name = fragment.name
        elif fragment.name != self.name and not self.length:
            self.name += fragment.name
        if len(self.members) <= MAX_MEMBERS:
            self.members |= fragment.members
        if self.length <= MAX_ARGUMENTS:
            self.arguments.append(fragment.arguments)
            self.length += len(fragment.arguments)
            self.progress.feed(fragment.arguments)

    def ends_before(self, fragment: _Fragment, names: Collection[str]) -> bool:
        """True if a fragment with this call's index or id begins another call.

        A fragment without a name continues this call. A fragment with a name begins a call if

        - it has another id,
        - it has another name, which does not complete this call's name, or
        - it has arguments, and this call's arguments are complete. Some servers repeat the name in
          each fragment.
        """
        if not fragment.name or not self.name:
            return False
        if fragment.id and self.id and fragment.id != self.id:
            return True
        if fragment.name != self.name:
            whole = self.name + fragment.name
            return bool(self.length) or not any(name.startswith(whole) for name in names)
        return self.progress.is_complete and bool(fragment.arguments.strip())

    def finish(self) -> list[ToolCall]:
        """Return the calls that the arguments contain, each with a `vendor_state`."""
        text = clean_text("".join(self.arguments))
        calls = read_calls(self.name, text, call_id=self.id)
        # The model's own text is sent back, because providers with a prompt cache compare it. It
        # must be JSON, because servers refuse requests with other texts.
        own = text if len(calls) == 1 and not calls[0].problem and _is_object(text) else ""
        members = mapping(_clean_or_none(self.members))
        return [replace(each, vendor_state=_build_state(each, own, members)) for each in calls]


def _build_state(call: ToolCall, text: str, members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON to send back for a call, without its id."""
    function = {"name": call.name, "arguments": text or json.dumps(dict(call.arguments))}
    return {**members, "type": "function", "function": function}


class CallFragments:
    """Assembles the calls of one reply, in the order of their beginnings.

    `names` are the names of the available tools, because some servers send a name in parts.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(names)
        self._calls: list[_PartialCall] = []
        self._by_index: dict[int, _PartialCall] = {}
        self._by_id: dict[str, _PartialCall] = {}
        self._last: _PartialCall | None = None
        self._reasoning: list[str] = []

    def add(self, message: object, *, is_whole: bool = False) -> None:
        """Add the calls, or parts of calls, in a message or a delta.

        Args:
            message: JSON of any shape.
            is_whole: Each entry is a complete call.
        """
        members = mapping(message)
        if isinstance(reasoning := members.get(REASONING), str):
            self._reasoning.append(reasoning)
        given = members.get("tool_calls")
        entries: Sequence[Any] = [mapping(given)] if mapping(given) else sequence(given)
        if not entries and mapping(members.get("function_call")):
            # The form before tool calls. Some servers send both.
            entries = [{"function": members["function_call"]}]
        for entry in entries:
            fragment = _Fragment.read(entry)
            call = None if is_whole else self._find(fragment)
            self._last = call = call or self._begin(fragment)
            call.add(fragment)
            if call.is_kept and fragment.id and fragment.id == call.id:
                self._by_id[call.id] = call

    def finish(self) -> list[ToolCall]:
        """Return the complete calls after the last fragment."""
        partial, self._calls, self._last = self._calls, [], None
        self._by_index.clear()
        self._by_id.clear()
        if partial and self._reasoning:
            partial[0].members[REASONING] = "".join(self._reasoning)
        calls = assign_distinct_ids(call for each in partial for call in each.finish())
        return [
            replace(each, vendor_state={**each.vendor_state, "id": each.id})
            for each in islice(calls, MAX_CALLS)
        ]

    def _find(self, fragment: _Fragment) -> _PartialCall | None:
        known = self._by_id.get(fragment.id)
        if fragment.index is None:
            call = known or self._last
        elif (call := self._by_index.get(fragment.index)) is not None:
            call = known if known and fragment.id != call.id else call
        elif fragment.name or (fragment.id and not known) or len(self._calls) == MAX_CALLS:
            return None
        else:
            call = known or self._last
        return None if call is None or call.ends_before(fragment, self._names) else call

    def _begin(self, fragment: _Fragment) -> _PartialCall:
        call = _PartialCall(is_kept=len(self._calls) < MAX_CALLS)
        if call.is_kept:
            self._calls.append(call)
            if fragment.index is not None:
                self._by_index[fragment.index] = call
        return call


def _read_index(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) <= _MAX_INDEX_DIGITS:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read_id(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return clean_text(value) if isinstance(value, str) else ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _clean_or_none(value: object) -> Any:
    """Return a valid JSON value; None if it is nested too deeply."""
    try:
        return clean(value)
    except ValueError:
        return None


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
"""Finish reasons of OpenAI, and of vendors that translate other APIs, in lower case."""

_UNFINISHED = frozenset({"", "null"})
"""Finish reasons of chunks before the last. KoboldCpp sends null as a text."""

_FAILED = frozenset({"error", "abort", "aborted", "network_error", "insufficient_system_resource"})
"""Finish reasons of failed replies, from OpenRouter, vLLM, Z.ai and DeepSeek."""

_NAMES: Mapping[SamplingField, str] = {
    # Deprecated by OpenAI in favour of max_completion_tokens, which few other servers accept.
    "max_output_tokens": "max_tokens",
    "json_schema": "response_format",
}
"""Settings with another name in the API."""

_SHARED_MEMBER_SETTINGS = frozenset({"start_reply_with", "json_schema"})
"""Settings in members that also have another purpose, so a refusal may not be about them."""


def build_messages(
    prompt: Prompt, start: str | None, prefix: Mapping[str, Any], *, shape: MessageShape
) -> list[Any]:
    """Return the messages, the rounds of tools, and the beginning of the reply.

    Args:
        prompt: The shaped prompt.
        start: The beginning of the reply, if there is one.
        prefix: Members that the server requires in that last message.
        shape: In strict shapes, consecutive messages of one role are joined.
    """
    said: list[Any] = []
    for message in list_messages(prompt):
        said += _build_call_messages(message) if message.calls else [_build_message(message)]
    if start:
        said.append({"role": "assistant", "content": start, **prefix})
    return said if shape == "lenient" else _join_neighbours(said)


def _build_message(message: PromptMessage) -> dict[str, Any]:
    built: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.images:
        text = [{"type": "text", "text": message.text}] if message.text.strip() else []
        built["content"] = [*text, *map(_build_image_part, message.images)]
    if message.name:
        built["name"] = message.name
    return built


def _build_image_part(image: PromptImage) -> dict[str, Any]:
    url = f"data:{image.media_type};base64,{encode_base64(image)}" if image.data else image.url
    return {"type": "image_url", "image_url": {"url": url}}


def _join_neighbours(said: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join consecutive messages of one role, for templates that require alternating roles.

    Nothing is joined to a message with calls, because its results follow.
    """
    joined: list[dict[str, Any]] = []
    for message in said:
        before = joined[-1] if joined else {}
        is_same = message["role"] == before.get("role") and message["role"] != "tool"
        if is_same and "tool_calls" not in before:
            content = _join_contents(before["content"], message["content"])
            joined[-1] = {**message, "content": content}
        else:
            joined.append(message)
    return joined


def _join_contents(first: Any, second: Any) -> Any:
    """Join texts, or the parts of messages with images."""
    if isinstance(first, str) and isinstance(second, str):
        return SEPARATOR.join(filter(None, (first, second)))
    return [*_list_parts(first), *_list_parts(second)]


def _list_parts(content: Any) -> Sequence[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else sequence(content)


def _build_call_messages(message: PromptMessage) -> list[Any]:
    """Return a message with calls, and the messages with their results."""
    asked: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    named = [_build_call(call) for call in message.calls if call.name]
    if named:
        asked["tool_calls"] = named
        state = mapping(message.calls[0].vendor_state)
        if REASONING in state:
            asked[REASONING] = state[REASONING]
    answered = [
        {"role": "tool", "tool_call_id": call.id, "content": render_result(result)}
        # Calls without a name would be refused, so their results are user messages.
        if call.name
        else {"role": "user", "content": render_result(result)}
        for call, result in pair_results(message)
    ]
    return [*([asked] if message.text or named else ()), *answered]


def _build_call(call: ToolCall) -> Any:
    """Return the call as the server sent it, with nonstandard members."""
    if "function" in (sent := mapping(call.vendor_state)):
        return {**{name: sent[name] for name in sent if name != REASONING}, "id": call.id}
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
    }


def map_settings(sampling: Sampling, names: Mapping[SamplingField, str]) -> dict[str, Any]:
    """Map the settings to a server's names. `start_reply_with` is omitted."""
    body: dict[str, Any] = {}
    for setting in sampling.set_fields():
        value = getattr(sampling, setting)
        if setting == "json_schema":
            body["response_format"] = build_response_format(parse_json(value))
        elif setting != "start_reply_with":
            outer, _, inner = find_wire_name(setting, names).partition(".")
            told = list(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else value
            body[outer] = {inner: told} if inner else told
    return body


def find_wire_name(setting: SamplingField, names: Mapping[SamplingField, str]) -> str:
    """Return a setting's name in requests. The server's `names` take precedence."""
    return names.get(setting) or _NAMES.get(setting, setting)


def map_setting_names(names: Mapping[SamplingField, str]) -> dict[str, SamplingField]:
    """Return the settings by their members of a request."""
    return {
        find_wire_name(setting, names).partition(".")[0]: setting
        for setting in SAMPLING_FIELDS
        if setting not in _SHARED_MEMBER_SETTINGS
    }


def declare_tools(tools: Sequence[Tool]) -> list[Any]:
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


def build_tool_choice(choice: ToolChoice) -> Any:
    if choice.mode == "named":
        return {"type": "function", "function": {"name": choice.name}}
    return choice.mode


def build_response_format(
    schema: Mapping[str, Any], *, name: str = "answer", strict: bool = False
) -> dict[str, Any]:
    """Return the member that requests JSON of a schema.

    Talekeeper's own schemas are not `strict`, because then all properties would have to be
    required.
    """
    wanted: dict[str, Any] = {"name": name, "schema": dict(schema)}
    return {"type": "json_schema", "json_schema": wanted | ({"strict": True} if strict else {})}


class ChunkReader:
    """Reads one answer of chat completions. `tool_names` are the available tools."""

    def __init__(self, tool_names: Iterable[str] = ()) -> None:
        self._calls = CallFragments(tool_names)

    def read_event(self, event: Any) -> Delta:
        return _read_choice(event, "delta", self._calls)

    def read_whole(self, answer: Any) -> Delta:
        return _read_choice(answer, "message", self._calls)

    def close(self) -> Sequence[ToolCall]:
        """See `AnswerReader`. Some servers send no finish reason, or calls after it."""
        return self._calls.finish()


def _read_choice(body: Any, part: Literal["delta", "message"], calls: CallFragments) -> Delta:
    choice = next(iter(_get_member(body, "choices") or ()), None)
    said = _get_member(choice, part)
    is_whole = part == "message"
    if said is None and _get_member(choice, "message") is not None:
        # Servers that cannot stream send the whole answer in one event.
        said, is_whole = _get_member(choice, "message"), True
    calls.add(said, is_whole=is_whole)
    # DeepSeek and OpenRouter have different names for thoughts. Some servers send both.
    thinking = _get_text(said, "reasoning_content") or _get_text(said, "reasoning")
    text = _get_text(said, "content") or _get_text(said, "refusal")
    if parts := sequence(_get_member(said, "content")):
        thinking, text = thinking or _join_parts(parts, "thinking"), text or _join_parts(parts)
    word = _get_text(choice, "finish_reason")
    word = "" if word in _UNFINISHED else word
    if word.lower() in _FAILED:
        raise ServerError(HTTPStatus.OK, {"error": {"type": word}}, {}, in_stream=True)
    return Delta(
        pieces=(
            *([ThinkingPiece(thinking)] if thinking else ()),
            *([TextPiece(text)] if text else ()),
            # Fragments of calls may be interleaved, so no call is complete before the end.
            *(calls.finish() if word or is_whole else ()),
        ),
        usage=_find_usage(body, choice),
        finish=_FINISHES.get(word.lower(), "other") if word else None,
        reason=" ".join(find_code_words(word)) if word else "",
    )


def _find_usage(body: Any, choice: Any) -> TokenUsage | None:
    """Return the usage of a chunk. Moonshot sends it in the choice, Groq in `x_groq`.

    Sources: https://platform.moonshot.ai/docs/api/chat, https://console.groq.com/docs/api-reference
    """
    places = (body, choice, _get_member(body, "x_groq"))
    reports = filter(None, (_get_member(place, "usage") for place in places))
    return next(filter(None, map(read_usage, reports)), None)


def read_usage(reported: Any) -> TokenUsage | None:
    """Return the reported usage; None if all numbers are zero."""
    if not (_get_number(reported, "prompt_tokens") or _get_number(reported, "completion_tokens")):
        return None
    return TokenUsage(
        prompt_tokens=_get_number(reported, "prompt_tokens"),
        completion_tokens=_get_number(reported, "completion_tokens"),
        # DeepSeek uses another name.
        cached_tokens=_get_number(_get_member(reported, "prompt_tokens_details"), "cached_tokens")
        or _get_number(reported, "prompt_cache_hit_tokens"),
        thinking_tokens=_get_number(
            _get_member(reported, "completion_tokens_details"), "reasoning_tokens"
        ),
    )


def _get_member(value: Any, name: str) -> Any:
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


def _get_text(value: Any, name: str) -> str:
    member = _get_member(value, name)
    return member if isinstance(member, str) else ""


def _join_parts(content: Any, kind: str = "text") -> str:
    """Join the texts in a list of parts, as sent by Mistral's thinking models."""
    members = (part.get(kind) for part in map(mapping, sequence(content)))
    return "".join(
        member if isinstance(member, str) else _join_parts(member) for member in members if member
    )


def _get_number(value: Any, name: str) -> int:
    member = _get_member(value, name)
    return member if isinstance(member, int) else 0
