"""One unusual answer of a server, and its expected result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.generation.catalogue import MessageShape
from backend.generation.model import FinishReason
from backend.generation.sampling import SamplingField
from tests.fakes.oddities.wire_formats import End, FormatName, Part, Wire, WireFormat
from tests.fakes.scripted_server import Answer, Request

EVERY: Sequence[FormatName] = ("openai", "anthropic", "gemini")
OPENAI: Sequence[FormatName] = ("openai",)
ANTHROPIC: Sequence[FormatName] = ("anthropic",)
GEMINI: Sequence[FormatName] = ("gemini",)
LOCAL: Sequence[FormatName] = ("openai", "anthropic")
"""Formats of local servers: llama.cpp, LM Studio, vLLM and Ollama have both."""


@dataclass(frozen=True)
class Asked:
    """A request, in terms of no format.

    Attributes:
        roles: The roles of the prompt, as a chat template gets them.
        settings: The part of the request that holds the settings.
        body: All of it.
    """

    roles: Sequence[str]
    settings: Mapping[str, Any]
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Refusal:
    """An error in the format's usual form."""

    message: str
    status: int = 400
    kind: str = "invalid_request_error"


Refuse = Callable[[Asked], Refusal | Answer | None]
"""Returns the refusal of a request; None for one that is accepted."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The expected result of a reply.

    Attributes:
        text: The reply, without what was taken back.
        thinking: Its thoughts, likewise.
        finish: Why it ended; not looked at if it failed.
        error: The slug of its error; empty if it completed.
        says: A part of the error's title and detail.
        usage: Tokens of the prompt and of the reply, if it is about them. Empty if there is none.
        calls: Names and arguments of the tool calls.
        value: The value, if one was asked for.
        shape: The message shape that was sent in the end.
        left_out: Settings that were left out.
        learned: Members of `ModelAbilities` that were learned.
    """

    text: str = ""
    thinking: str = ""
    finish: FinishReason = "stop"
    error: str = ""
    says: str = ""
    usage: Sequence[int] | None = None
    calls: Sequence[tuple[str, Any]] = ()
    value: Any = None
    shape: MessageShape = "lenient"
    left_out: Sequence[SamplingField] = ()
    learned: Mapping[str, Any] = field(default_factory=dict[str, Any])


FRAMED = Wire()
HELLO = Result(text="Hello there.")
NODS = Result(text="Mags nods.")


@dataclass(frozen=True)
class Oddity:
    """One row: adding one is all that a new oddity needs.

    Attributes:
        name: What is odd. It is the name of the model, too.
        server: Which server does it, with its version if that is known.
        parts: The reply, without its end.
        result: What is to become of it.
        formats: The wire formats in which a server may do it.
        wire: How the events become bytes.
        end: The end of the reply.
        is_closed: False if the stream lacks the format's last marker.
        is_whole: The reply is one JSON value instead of a stream.
        answer: The whole answer, if it is not a reply.
        refuse: Refuses some requests.
        sampling: Settings of the user.
        continues: The prompt ends with a message of the model's.
    """

    name: str
    server: str
    parts: Sequence[Part] = ("Hello ", "there.")
    result: Result = HELLO
    formats: Sequence[FormatName] = EVERY
    wire: Wire = FRAMED
    end: Sequence[Part] = (End("stop"),)
    is_closed: bool = True
    is_whole: bool = False
    answer: Answer | None = None
    refuse: Refuse | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    continues: bool = False

    def respond(self, request: Request, form: WireFormat) -> Answer:
        """Return the answer to a request for a reply."""
        body = request.body
        asked = Asked(form.roles(body), form.settings(body), body)
        refused = self.refuse(asked) if self.refuse else None
        if isinstance(refused, Refusal):
            return form.refusal(refused.status, refused.message, refused.kind)
        if refused is not None:
            return refused
        if self.answer is not None:
            return self.answer
        parts = [*self.parts, *self.end]
        if form.has_results(body):
            parts = ["Mags nods.", End("stop")]
        headers = {"content-type": self.wire.content_type}
        whole = form.whole(parts)
        if self.is_whole:
            return Answer(body=whole, headers=headers)
        events = list(self.wire.send(form.events(parts, is_closed=self.is_closed)))
        return Answer(body=whole, events=events, headers=headers)
