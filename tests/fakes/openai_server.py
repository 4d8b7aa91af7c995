"""An OpenAI-compatible server, as far as Talekeeper speaks to one, with answers out of a script.

    async with OpenAIServer() as server:
        server.script(reply("Well", " met."))
        model = ModelRegistry(openai=server.config()).get(MODEL_ID)

Formats: https://platform.openai.com/docs/api-reference/chat, .../embeddings
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from backend.generation.adapters.openai.model import OpenAICompatibleConfig
from tests.fakes.scripted_server import Answer, Event, Request, ScriptedServer
from tests.fakes.word_vectors import word_vector

MODEL = "local-model"
MODEL_ID = f"openai/{MODEL}"
API_KEY = "sk-fake-fake-fake-fake-fake"
DONE = "[DONE]"


def usage(prompt: int, completion: int, *, reasoning: int = 0, cached: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """One `chat.completion.chunk`."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def usage_chunk(used: Mapping[str, Any]) -> dict[str, Any]:
    """The chunk without choices that `stream_options.include_usage` asks for."""
    return {**chunk(), "choices": [], "usage": used}


def tool_call(name: str, arguments: Any, *, call_id: str, **more: Any) -> dict[str, Any]:
    """`arguments` may be a text, where they are to be no JSON."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": text},
        **more,
    }


def completion(
    content: str | None,
    *,
    finish: str = "stop",
    used: Mapping[str, Any] | None = None,
    calls: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """One `chat.completion`."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = list(calls)
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": used or usage(12, 2),
    }


def reply(*texts: str, finish: str = "stop", used: Mapping[str, Any] | None = None) -> Answer:
    """A reply in as many chunks as texts; all of it in one body where no stream is asked for."""
    return Answer(
        body=completion("".join(texts), finish=finish, used=used or usage(12, len(texts))),
        events=[
            chunk(role="assistant", content=""),
            *(chunk(content=text) for text in texts),
            chunk(finish),
            usage_chunk(used or usage(12, len(texts))),
            DONE,
        ],
    )


def call_delta(index: int, **function: str) -> dict[str, Any]:
    """A fragment of a call in a chunk."""
    return chunk(tool_calls=[{"index": index, "function": function}])


def called(*calls: tuple[str, Any], text: str = "", size: int = 8) -> Answer:
    """A stream with calls, their arguments in fragments of `size` characters."""
    events: list[Event] = [chunk(role="assistant", content=text or None)]
    for index, (name, arguments) in enumerate(calls):
        begun = tool_call(name, "", call_id=f"call-{index}", index=index)
        told = tool_call(name, arguments, call_id="")["function"]["arguments"]
        events.append(chunk(tool_calls=[begun]))
        events += (
            call_delta(index, arguments=told[at : at + size]) for at in range(0, len(told), size)
        )
    return Answer(events=[*events, chunk("tool_calls"), usage_chunk(usage(12, 2)), DONE])


def stream(*events: Event) -> Answer:
    """A stream of exactly these events."""
    return Answer(events=events)


def error(
    status: int,
    *,
    message: str = "",
    code: str | None = None,
    kind: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """An error before anything was streamed."""
    return Answer(
        status=status, headers=headers or {}, body=error_body(message, code=code, kind=kind)
    )


def error_body(
    message: str = "", *, code: str | int | None = None, kind: str | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


WINDOW_ROUTES = (
    *("/props", "/api/v0/models", "/api/ps", "/api/show", "/v1/model"),
    "/api/extra/true_max_context_length",
)

OWN_DIMENSION = 256
"""Of the vectors where no other one is asked for."""


def embeddings(*vectors: Any) -> Answer:
    """A list of `embedding` objects, each a list of numbers or a base64 text."""
    data = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(vectors)
    ]
    used = {"prompt_tokens": 8, "total_tokens": 8}
    return Answer(body={"object": "list", "data": data, "model": MODEL, "usage": used})


def embedded(request: Request, *, common: float = 0.0) -> Answer:
    """What `/embeddings` answers: vectors of words, in the form that was asked for."""
    asked = request.body
    texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
    dimension = asked.get("dimensions", OWN_DIMENSION)
    vectors = [word_vector(text, dimension, common=common) for text in texts]
    if asked.get("encoding_format") == "base64":
        return embeddings(
            *(base64.b64encode(each.astype("<f4").tobytes()).decode() for each in vectors)
        )
    return embeddings(*(each.tolist() for each in vectors))


class OpenAIServer(ScriptedServer):
    """Answers `/v1/chat/completions` and `/v1/embeddings`.

    Unscripted, with a short reply, and with vectors made from the texts' words. Of the routes by
    which servers tell their windows it has those that a test puts into `aside`.
    """

    usual_answer = reply("The rain", " has stopped.")
    common = 0.0
    """What all of its vectors share."""

    def __init__(self) -> None:
        super().__init__()
        self.aside = dict.fromkeys(WINDOW_ROUTES, Answer(404, body={"detail": "Not Found"}))

    @property
    def url(self) -> str:
        return f"{super().url}/v1"

    def config(self, **changes: Any) -> OpenAICompatibleConfig:
        """A configuration that leads here, with short time-outs."""
        values: dict[str, Any] = {
            "base_url": self.url,
            "models": (MODEL,),
            "context_window": 32_768,
            "max_output_tokens": 8_192,
            "api_key": API_KEY,
            "chunk_timeout": 5,
            "connect_timeout": 5,
            "answer_timeout": 5,
        }
        return OpenAICompatibleConfig(**{**values, **changes})

    def wants_stream(self, request: Request) -> bool:
        if request.path.endswith("/embeddings"):
            return True  # an answer in events is one that does not come to its end
        return bool(request.body and request.body.get("stream"))

    def usual(self, request: Request) -> Answer:
        if request.path.endswith("/embeddings"):
            return embedded(request, common=self.common)
        return super().usual(request)
