"""Anthropic's Messages API, as far as Talekeeper speaks it, with answers out of a script.

    async with AnthropicServer() as server:
        server.script(reply("Well", " met."))
        model = ModelRegistry(anthropic=server.config()).get(MODEL_ID)

Formats: https://platform.claude.com/docs/en/api/messages, .../build-with-claude/streaming
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backend.generation.client.provider import ServerConfig
from tests.fakes.scripted_server import Answer, Event, Request, ScriptedServer

MODEL = "claude-sonnet-5-5"
MODEL_ID = f"anthropic/{MODEL}"
API_KEY = "sk-ant-fake-fake-fake-fake-fake"

_WORDS = {"stop": "end_turn", "length": "max_tokens"}


def usage(prompt: int, output: int, *, read: int = 0, kept: int = 0) -> dict[str, int]:
    """`prompt` excludes tokens that were read from the cache or written to it."""
    return {
        "input_tokens": prompt,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": kept,
        "output_tokens": output,
    }


def started(used: Mapping[str, int] | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    return {"type": "message_start", "message": {**message, "usage": used or usage(12, 0)}}


def delta(index: int, kind: str, **members: str) -> dict[str, Any]:
    return {
        "type": "content_block_delta",
        "index": index,
        "delta": {"type": f"{kind}_delta", **members},
    }


def block(index: int, begun: Mapping[str, Any], *fragments: Event) -> list[Event]:
    """All events of one block."""
    start = {"type": "content_block_start", "index": index, "content_block": dict(begun)}
    return [start, *fragments, {"type": "content_block_stop", "index": index}]


def ended(word: str = "end_turn", used: Mapping[str, int] | None = None) -> tuple[Event, ...]:
    return (
        {
            "type": "message_delta",
            "delta": {"stop_reason": word, "stop_sequence": None},
            "usage": dict(used or usage(12, 2)),
        },
        {"type": "message_stop"},
    )


def reply(*texts: str, finish: str = "stop", used: Mapping[str, int] | None = None) -> Answer:
    """A reply in as many fragments as texts; all of it in one body where no stream is asked for."""
    word, counted = _WORDS.get(finish, finish), used or usage(12, len(texts))
    fragments = [delta(0, "text", text=text) for text in texts]
    whole = [{"type": "text", "text": "".join(texts)}] if texts else []
    return Answer(
        body={"type": "message", "content": whole, "stop_reason": word, "usage": dict(counted)},
        events=[
            started(),
            {"type": "ping"},
            *block(0, {"type": "text", "text": ""}, *fragments),
            *ended(word, counted),
        ],
    )


def called(*calls: tuple[str, Any], text: str = "", size: int = 8) -> Answer:
    """A stream with calls, their arguments in fragments of `size` characters."""
    events: list[Event] = [started()]
    if text:
        events += block(0, {"type": "text", "text": ""}, delta(0, "text", text=text))
    for number, (name, arguments) in enumerate(calls):
        index = number + 1
        begun: dict[str, Any] = {
            "type": "tool_use",
            "id": f"call-{number}",
            "name": name,
            "input": {},
        }
        told = json.dumps(arguments)
        parts = [
            delta(index, "input_json", partial_json=told[at : at + size])
            for at in range(0, len(told), size)
        ]
        events += block(index, begun, *parts)
    return Answer(events=[*events, *ended("tool_use")])


def error(status: int, kind: str = "api_error", message: str = "") -> Answer:
    """An error before anything was streamed."""
    return Answer(status=status, body=error_body(kind, message))


def error_body(kind: str, message: str = "") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


class AnthropicServer(ScriptedServer):
    """Answers `/v1/messages`: unscripted, with a short reply."""

    usual_answer = reply("The rain", " has stopped.")

    def config(self, **changes: Any) -> ServerConfig:
        """A configuration that leads here, with short time-outs."""
        values: dict[str, Any] = {
            "base_url": self.url,
            "models": (MODEL,),
            "api_key": API_KEY,
            "chunk_timeout": 5,
            "connect_timeout": 5,
            "answer_timeout": 5,
        }
        return ServerConfig(**{**values, **changes})

    def wants_stream(self, request: Request) -> bool:
        return bool(request.body and request.body.get("stream"))
