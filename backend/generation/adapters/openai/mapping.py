"""Prompts, settings and tools in the form of OpenAI's chat completions, and its answers in ours.

Source: https://platform.openai.com/docs/api-reference/chat

Servers call themselves compatible and leave out what they like: whatever is read here is read as
JSON of any shape.
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
    TextPiece,
    ThinkingPiece,
    TokenUsage,
    Tool,
    ToolCall,
    ToolRound,
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
    make_ids_distinct,
    read_calls,
    serialize_arguments,
)

REASONING = "reasoning_content"
"""Thoughts that DeepSeek and Moonshot AI want back with the calls that followed from them. Without
them they refuse the next request. They are kept with the first call."""

_STANDARD = frozenset({"index", "id", "type", "function", *NAMES, *ARGUMENTS})

_MAX_INDEX_DIGITS = 9

MAX_MEMBERS = 20
"""Members of a call that the standard does not name. They are sent back with it."""


@dataclass(frozen=True, slots=True)
class _Fragment:
    """A part of a call, or a whole one. `members` are those that the standard does not name."""

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
    """A call of which fragments have arrived. `is_kept`: it is one of the first `MAX_CALLS`."""

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
        """True if a fragment under this call's index or id begins another call.

        A call has one name, and one value as its arguments. So a fragment without a name continues
        this call. One with a name begins another call if

        - its id is another one,
        - its name is another one, and not the rest of a name of which only a part has arrived, or
        - it has arguments although those of this call are complete. Servers that repeat the name
          in each fragment send no more of them then.
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
        """Return the call, or the calls that its arguments are of. Each has a `vendor_state`."""
        text = clean_text("".join(self.arguments))
        calls = read_calls(self.name, text, call_id=self.id)
        # The model's own text if it is JSON, since providers that keep a prompt compare it.
        # Servers parse it: a text that is not JSON makes them refuse the next request.
        own = text if len(calls) == 1 and not calls[0].problem and _is_object(text) else ""
        members = mapping(_cleaned(self.members))
        return [replace(each, vendor_state=_state(each, own, members)) for each in calls]


def _state(call: ToolCall, text: str, members: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call as it is sent back, without its id."""
    function = {"name": call.name, "arguments": text or json.dumps(dict(call.arguments))}
    return {**members, "type": "function", "function": function}


class CallFragments:
    """The calls of one reply, in the order in which they began.

    `names` are those of the tools that the model was offered: some servers send a name in parts.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(names)
        self._calls: list[_PartialCall] = []
        self._by_index: dict[int, _PartialCall] = {}
        self._by_id: dict[str, _PartialCall] = {}
        self._last: _PartialCall | None = None
        self._reasoning: list[str] = []

    def add(self, message: object, *, is_whole: bool = False) -> None:
        """Take the calls, or parts of calls, in a message or in the delta of a chunk.

        Args:
            message: JSON of any shape.
            is_whole: Each entry is one call.
        """
        members = mapping(message)
        if isinstance(reasoning := members.get(REASONING), str):
            self._reasoning.append(reasoning)
        given = members.get("tool_calls")
        entries: Sequence[Any] = [mapping(given)] if mapping(given) else sequence(given)
        if not entries and mapping(members.get("function_call")):
            # The form before tool calls. Some servers send a call in both.
            entries = [{"function": members["function_call"]}]
        for entry in entries:
            fragment = _Fragment.read(entry)
            call = None if is_whole else self._find(fragment)
            self._last = call = call or self._begin(fragment)
            call.add(fragment)
            if call.is_kept and fragment.id and fragment.id == call.id:
                self._by_id[call.id] = call

    def finish(self) -> list[ToolCall]:
        """Return the calls, now that no further fragment comes."""
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
    """Return a number, or a text of digits, as a number."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= _MAX_INDEX_DIGITS:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read_id(value: object) -> str:
    """Return a text or a number as a text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return clean_text(value) if isinstance(value, str) else ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _cleaned(value: object) -> Any:
    """Return a JSON value that can be sent, None if it is nested too deeply."""
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
    for tool_round in make_ids_distinct(prompt.rounds):
        said += _round(tool_round)
    if start:
        said.append({"role": "assistant", "content": start, **prefix})
    return said if shape == "lenient" else _join_texts(said)


def _join_texts(said: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
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
        reason=" ".join(find_code_words(word)),
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
