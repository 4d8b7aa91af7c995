"""Gemini's REST API, as far as Talekeeper speaks it, with answers out of a script.

    async with GeminiServer() as server:
        server.script(reply("Well", " met."))
        model = ModelRegistry(gemini=server.config()).get(MODEL_ID)

Formats: https://ai.google.dev/api/generate-content, https://ai.google.dev/api/embeddings
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.generation.client.provider import ServerConfig
from tests.fakes.scripted_server import Answer, Event, Request, ScriptedServer
from tests.fakes.word_vectors import word_vector

MODEL_ID = "gemini/gemini-2.5-flash"
API_KEY = "AIzaFakeFakeFakeFakeFakeFakeFakeFake"


def text_part(text: str) -> dict[str, Any]:
    return {"text": text}


def thought_part(text: str) -> dict[str, Any]:
    return {"text": text, "thought": True}


def call_part(
    name: str, args: Mapping[str, Any], *, call_id: str | None = None, signature: str | None = None
) -> dict[str, Any]:
    call = {"name": name, "args": args, **({"id": call_id} if call_id else {})}
    return {"functionCall": call, **({"thoughtSignature": signature} if signature else {})}


def usage(prompt: int, candidates: int, *, thoughts: int = 0, cached: int = 0) -> dict[str, Any]:
    return {
        "promptTokenCount": prompt,
        "candidatesTokenCount": candidates,
        "totalTokenCount": prompt + candidates + thoughts,
        **({"thoughtsTokenCount": thoughts} if thoughts else {}),
        **({"cachedContentTokenCount": cached} if cached else {}),
    }


def chunk(
    *parts: Mapping[str, Any], finish: str | None = None, used: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """One `GenerateContentResponse`."""
    candidate: dict[str, Any] = {"index": 0}
    if parts:
        candidate["content"] = {"role": "model", "parts": list(parts)}
    if finish is not None:
        candidate["finishReason"] = finish
    body: dict[str, Any] = {"candidates": [candidate], "modelVersion": "gemini-2.5-flash"}
    if used is not None:
        body["usageMetadata"] = used
    return body


def blocked_prompt(reason: str) -> Answer:
    """The prompt was blocked: no candidate at all."""
    body = {"promptFeedback": {"blockReason": reason}, "usageMetadata": {"promptTokenCount": 12}}
    return Answer(body=body, events=[body])


def reply(*texts: str, finish: str = "STOP", used: Mapping[str, Any] | None = None) -> Answer:
    """A reply in as many chunks as texts; all of it in one body where no stream is asked for."""
    last = chunk(finish=finish, used=used or usage(12, len(texts)))
    whole = chunk(*map(text_part, texts), finish=finish, used=used or usage(12, len(texts)))
    return Answer(body=whole, events=[*(chunk(text_part(text)) for text in texts), last])


def called(
    *calls: tuple[str, Mapping[str, Any]], text: str = "", signature: str = "c2lnbmF0dXJl"
) -> Answer:
    """A stream of calls, one in each chunk. The first has a signature, as in Gemini."""
    parts = [
        call_part(name, args, call_id=f"call-{index}", signature=None if index else signature)
        for index, (name, args) in enumerate(calls)
    ]
    said = [chunk(text_part(text))] if text else []
    return Answer(events=[*said, *map(chunk, parts), chunk(finish="STOP", used=usage(12, 2))])


def stream(*events: Event) -> Answer:
    """A stream of exactly these events."""
    return Answer(events=events)


def error(
    status: int,
    word: str,
    message: str = "",
    *,
    details: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """An error in the form of `google.rpc.Status`."""
    return Answer(
        status=status,
        headers=headers or {},
        body=error_body(status, word, message, details=details),
    )


def error_body(
    status: int, word: str, message: str = "", *, details: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    return {"error": {"code": status, "message": message, "status": word, "details": list(details)}}


MOST_EMBEDDED = 100
FULL_DIMENSION = 3072


def embeddings(*vectors: Sequence[Any]) -> Answer:
    """A `BatchEmbedContentsResponse`."""
    return Answer(body={"embeddings": [{"values": list(vector)} for vector in vectors]})


def embedded(request: Request) -> Answer:
    """Answer `batchEmbedContents` with word vectors. Shortened vectors are not normalised."""
    asked = request.body["requests"]
    if len(asked) > MOST_EMBEDDED:
        return error(400, "INVALID_ARGUMENT", "at most 100 requests can be in one batch")
    vectors: list[list[float]] = []
    for each in asked:
        text = "".join(part["text"] for part in each["content"]["parts"])
        vector = 3 * word_vector(text, each.get("outputDimensionality", FULL_DIMENSION))
        vectors.append(vector.tolist())
    return embeddings(*vectors)


class GeminiServer(ScriptedServer):
    """Answers `generateContent`, `streamGenerateContent` and `batchEmbedContents`.

    Unscripted, with a short reply, and with vectors made from the texts' words.
    """

    usual_answer = reply("The rain", " has stopped.")

    def config(self, **changes: Any) -> ServerConfig:
        """A configuration that leads here, with short time-outs."""
        values: dict[str, Any] = {
            "api_key": API_KEY,
            "models": ("gemini-2.5-flash", "gemini-2.5-pro", "gemini-2.5-flash-lite"),
            "base_url": self.url,
            "chunk_timeout": 5,
            "connect_timeout": 5,
            "answer_timeout": 5,
        }
        return ServerConfig(**{**values, **changes})

    def wants_stream(self, request: Request) -> bool:
        return request.path.endswith((":streamGenerateContent", ":batchEmbedContents"))

    def usual(self, request: Request) -> Answer:
        if request.path.endswith(":batchEmbedContents"):
            return embedded(request)
        return super().usual(request)
