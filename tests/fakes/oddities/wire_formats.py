"""The wire formats of models: the events of a reply in each format.

A reply is written once, as a sequence of parts, and each format translates it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Literal

from tests.fakes import anthropic_server, gemini_server, openai_server
from tests.fakes.scripted_server import Answer, Break, Event, Request

FormatName = Literal["openai", "anthropic", "gemini"]


@dataclass(frozen=True)
class Thought:
    """A piece of thoughts, in the member that the format has for them."""

    text: str


@dataclass(frozen=True)
class Call:
    """A whole tool call."""

    name: str
    arguments: Any


@dataclass(frozen=True)
class End:
    """The end of the model's reply.

    `stop`, `length`, `safety` and `tool_calls` are translated. Any other word is sent as it is.
    """

    reason: str


@dataclass(frozen=True)
class Fault:
    """An error inside the stream."""

    message: str
    kind: str
    status: int


Part = str | bytes | Mapping[str, Any] | Thought | Call | End | Fault | Break
"""A text is a piece of the reply. Bytes, and JSON objects of one format, are sent as they are."""


def frame(event: Mapping[str, Any] | str, *, is_ascii: bool = True) -> bytes:
    """Return the bytes of one event. Lone surrogates of undecodable bytes become those bytes."""
    text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=is_ascii)
    name = event.get("type") if isinstance(event, Mapping) else None
    line = f"event: {name}\n" if isinstance(name, str) else ""
    return f"{line}data: {text}\n\n".encode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Wire:
    """The encoding of events as bytes.

    Attributes:
        change: Changes the bytes of the whole stream.
        size: Bytes in one chunk of the HTTP body. With 0 each event is a chunk.
        is_ascii: Escape characters outside ASCII.
        content_type: The header.
    """

    change: Callable[[bytes], bytes] | None = None
    size: int = 0
    is_ascii: bool = True
    content_type: str = "text/event-stream"

    def send(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the events as bytes. Gates and breaks stay."""
        sent = [
            frame(event, is_ascii=self.is_ascii) if isinstance(event, Mapping | str) else event
            for event in events
        ]
        for is_bytes, run in groupby(sent, key=lambda each: isinstance(each, bytes)):
            if not is_bytes or not (self.change or self.size):
                yield from run
                continue
            data = b"".join(each for each in run if isinstance(each, bytes))
            data = self.change(data) if self.change else data
            size = self.size or len(data)
            yield from (data[at : at + size] for at in range(0, len(data), size))


class WireFormat(ABC):
    """One wire format, and the adapter that speaks it."""

    name: ClassVar[FormatName]
    path: ClassVar[str]
    """The end of the path of requests for a reply."""
    words: ClassVar[Mapping[str, str]]
    """The format's words for the reasons of an end."""

    def is_reply(self, request: Request) -> bool:
        """True if a request is for a reply."""
        return request.path.endswith(self.path)

    @abstractmethod
    def events(self, parts: Iterable[Part], *, is_closed: bool) -> Iterator[Event]:
        """Yield the events of a stream. Without `is_closed`, the last marker is missing."""

    @abstractmethod
    def whole(self, parts: Sequence[Part]) -> Any:
        """Return the body of an answer that is not streamed."""

    @abstractmethod
    def refusal(self, status: int, message: str, kind: str) -> Answer:
        """Return an error in the format's form."""

    @abstractmethod
    def model_of(self, request: Request) -> str:
        """Return the name of the model that is asked."""

    @abstractmethod
    def roles(self, body: Mapping[str, Any]) -> list[str]:
        """Return the roles of a prompt, as its chat template gets them."""

    @abstractmethod
    def has_results(self, body: Mapping[str, Any]) -> bool:
        """True if a request ends with the results of tool calls."""

    @abstractmethod
    def settings(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the part of a request that holds the settings."""

    def _word(self, end: End) -> str:
        return self.words.get(end.reason, end.reason)


def _joined(parts: Iterable[Part], kind: type[str | Thought]) -> str:
    texts = (part for part in parts if isinstance(part, kind))
    return "".join(each if isinstance(each, str) else each.text for each in texts)


def _calls(parts: Iterable[Part]) -> list[Call]:
    return [part for part in parts if isinstance(part, Call)]


def _end(parts: Iterable[Part]) -> End:
    return next((part for part in parts if isinstance(part, End)), End("stop"))


class OpenAIFormat(WireFormat):
    """Chat completions."""

    name = "openai"
    path = "/chat/completions"
    words: ClassVar[Mapping[str, str]] = {"safety": "content_filter"}

    def events(self, parts: Iterable[Part], *, is_closed: bool) -> Iterator[Event]:
        """See `WireFormat`."""
        calls = 0
        yield openai_server.chunk(role="assistant", content="")
        for part in parts:
            match part:
                case str():
                    yield openai_server.chunk(content=part)
                case Thought(text):
                    yield openai_server.chunk(reasoning_content=text)
                case Call(name, arguments):
                    call = openai_server.tool_call(
                        name, arguments, call_id=f"call-{calls}", index=calls
                    )
                    yield openai_server.chunk(tool_calls=[call])
                    calls += 1
                case End():
                    yield openai_server.chunk(self._word(part))
                    yield openai_server.usage_chunk(openai_server.usage(12, 2))
                case Fault(message, kind, status):
                    yield openai_server.error_body(message, code=status, kind=kind)
                case _:
                    yield part
        if is_closed:
            yield openai_server.DONE

    def whole(self, parts: Sequence[Part]) -> Any:
        """See `WireFormat`."""
        calls = [
            openai_server.tool_call(call.name, call.arguments, call_id=f"call-{place}")
            for place, call in enumerate(_calls(parts))
        ]
        finish = self._word(_end(parts))
        body = openai_server.completion(_joined(parts, str), finish=finish, calls=calls)
        if thought := _joined(parts, Thought):
            body["choices"][0]["message"]["reasoning_content"] = thought
        return body

    def refusal(self, status: int, message: str, kind: str) -> Answer:
        """See `WireFormat`."""
        return openai_server.error(status, message=message, kind=kind)

    def model_of(self, request: Request) -> str:
        """See `WireFormat`."""
        return str(request.body["model"])

    def roles(self, body: Mapping[str, Any]) -> list[str]:
        """See `WireFormat`."""
        return [each["role"] for each in body["messages"]]

    def has_results(self, body: Mapping[str, Any]) -> bool:
        """See `WireFormat`."""
        return "tool" in self.roles(body)

    def settings(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `WireFormat`."""
        return body


class AnthropicFormat(WireFormat):
    """Anthropic's messages."""

    name = "anthropic"
    path = "/messages"
    words: ClassVar[Mapping[str, str]] = {
        "stop": "end_turn",
        "length": "max_tokens",
        "safety": "refusal",
        "tool_calls": "tool_use",
    }

    def events(self, parts: Iterable[Part], *, is_closed: bool) -> Iterator[Event]:
        """See `WireFormat`. Neighbours of one kind share a block."""
        yield anthropic_server.started()
        yield {"type": "ping"}
        for place, (kind, run) in enumerate(groupby(parts, key=type)):
            yield from self._run(place, kind, list(run))
        if is_closed:
            yield {"type": "message_stop"}

    def _run(self, place: int, kind: type[Part], run: Sequence[Part]) -> Iterator[Event]:
        delta, block = anthropic_server.delta, anthropic_server.block
        if kind is str:
            pieces = [delta(place, "text", text=_joined([each], str)) for each in run]
            yield from block(place, {"type": "text", "text": ""}, *pieces)
            return
        if kind is Thought:
            pieces = [delta(place, "thinking", thinking=_joined([each], Thought)) for each in run]
            yield from block(place, {"type": "thinking", "thinking": ""}, *pieces)
            return
        for index, part in enumerate(run, place):
            match part:
                case Call(name, arguments):
                    call_id = f"call-{index}"
                    begun: dict[str, Any] = {
                        "type": "tool_use",
                        "id": call_id,
                        "name": name,
                        "input": {},
                    }
                    sent = arguments if isinstance(arguments, str) else json.dumps(arguments)
                    yield from block(index, begun, delta(index, "input_json", partial_json=sent))
                case End():
                    yield anthropic_server.ended(self._word(part))[0]
                case Fault(message, fault, _):
                    yield anthropic_server.error_body(fault, message)
                case _:
                    yield part  # type: ignore[misc] # the other kinds are events

    def whole(self, parts: Sequence[Part]) -> Any:
        """See `WireFormat`."""
        content: list[dict[str, Any]] = []
        if thought := _joined(parts, Thought):
            content.append({"type": "thinking", "thinking": thought, "signature": "c2ln"})
        if text := _joined(parts, str):
            content.append({"type": "text", "text": text})
        content += (
            {"type": "tool_use", "id": f"call-{at}", "name": call.name, "input": call.arguments}
            for at, call in enumerate(_calls(parts))
        )
        used = anthropic_server.usage(12, 2)
        word = self._word(_end(parts))
        return {"type": "message", "content": content, "stop_reason": word, "usage": used}

    def refusal(self, status: int, message: str, kind: str) -> Answer:
        """See `WireFormat`."""
        return anthropic_server.error(status, kind, message)

    def model_of(self, request: Request) -> str:
        """See `WireFormat`."""
        return str(request.body["model"])

    def roles(self, body: Mapping[str, Any]) -> list[str]:
        """See `WireFormat`."""
        system = ["system"] if body.get("system") else []
        return [*system, *(each["role"] for each in body["messages"])]

    def has_results(self, body: Mapping[str, Any]) -> bool:
        """See `WireFormat`."""
        return "tool_result" in json.dumps(body["messages"])

    def settings(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `WireFormat`."""
        return body


class GeminiFormat(WireFormat):
    """Gemini's `generateContent`. A stream has no last marker."""

    name = "gemini"
    path = "enerateContent"
    words: ClassVar[Mapping[str, str]] = {
        "stop": "STOP",
        "length": "MAX_TOKENS",
        "safety": "SAFETY",
        "tool_calls": "STOP",
    }

    def events(self, parts: Iterable[Part], *, is_closed: bool) -> Iterator[Event]:  # noqa: ARG002 - see the class
        """See `WireFormat`."""
        for part in parts:
            match part:
                case str() | Thought() | Call():
                    yield gemini_server.chunk(self._part(part))
                case End():
                    used = gemini_server.usage(12, 2)
                    yield gemini_server.chunk(finish=self._word(part), used=used)
                case Fault(message, kind, status):
                    yield gemini_server.error_body(status, kind, message)
                case _:
                    yield part

    def _part(self, part: str | Thought | Call) -> Mapping[str, Any]:
        match part:
            case str():
                return gemini_server.text_part(part)
            case Thought(text):
                return gemini_server.thought_part(text)
            case Call(name, arguments):
                return gemini_server.call_part(name, arguments)

    def whole(self, parts: Sequence[Part]) -> Any:
        """See `WireFormat`."""
        said = [self._part(part) for part in parts if isinstance(part, str | Thought | Call)]
        used = gemini_server.usage(12, 2)
        return gemini_server.chunk(*said, finish=self._word(_end(parts)), used=used)

    def refusal(self, status: int, message: str, kind: str) -> Answer:  # noqa: ARG002 - words of its own
        """See `WireFormat`."""
        return gemini_server.error(status, "INVALID_ARGUMENT", message)

    def model_of(self, request: Request) -> str:
        """See `WireFormat`."""
        return request.path.rpartition("/")[2].partition(":")[0]

    def roles(self, body: Mapping[str, Any]) -> list[str]:
        """See `WireFormat`."""
        system = ["system"] if body.get("systemInstruction") else []
        roles = (str(each["role"]) for each in body["contents"])
        return [*system, *("assistant" if role == "model" else role for role in roles)]

    def has_results(self, body: Mapping[str, Any]) -> bool:
        """See `WireFormat`."""
        return "functionResponse" in json.dumps(body["contents"])

    def settings(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `WireFormat`."""
        settings: Mapping[str, Any] = body.get("generationConfig", {})
        return settings


FORMATS: Mapping[FormatName, WireFormat] = {
    each.name: each for each in (OpenAIFormat(), AnthropicFormat(), GeminiFormat())
}
