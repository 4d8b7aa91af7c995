"""Models and embedders of a campaign: OpenAI-compatible servers on one port.

At `/v1` is the installation's server; at `/own/NAME/v1` are those of users' own, as many as are
asked for. All of them have the models of `LISTED`; vectors of two servers, or of two models, have
nothing in common.

Each reply begins with a mark that no other reply has, and the model keeps what it said, so that a
stored reply can be held against it. `Faults` says what goes wrong with the answers, if anything.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from scripts.model_server import (
    CUT,
    MODEL,
    Answer,
    CutError,
    estimate_tokens,
    find_new_lines,
    get_kind,
    make_answer,
    make_call,
    make_chunk,
    make_usage,
)
from scripts.torture.playing import table_calls

DIMENSION = 64
EMBEDDERS = ("narrow-64", "other-64", "wide-300")
"""Models of users' own that embed; the number is how long their vectors are. Two fit into the same
collection."""
LISTED = (MODEL, *EMBEDDERS)
OWN_PATH = re.compile(r"/own/([\w.]+)/v1")
USER_MARK = re.compile(r"\[L\d{7}\]")
REPLY_MARK = re.compile(r"\[R\d{7}\]")
FLOOD = "x"
"""A text that a broken model repeats ten million times. No word of `WORDS` ends with it."""
LINE_MARK = re.compile(r"\[[LR]\d{7}\]")

Fault = Literal[
    "none",
    "429",
    "429 with retry-after",
    "500",
    "hang-up before",
    "hang-up midway",
    "silence",
    "silence midway",
    "garbage",
    "10 MB at once",
    "slow drip",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)[1:]

WORDS = [
    "and",
    "then",
    "the",
    "rain",
    "came",
    "down",
    "on",
    "the",
    "old",
    "harbour",
    "while",
    "the",
    "lamps",
    "burned",
    "low",
    "and",
    "a",
    "door",
]


@dataclass
class TaggedModel:
    """Replies, triage, tools and embeddings.

    `outputs` holds every reply that was begun, whole, by its mark. `heard` are the marks of users'
    lines that a server was sent, by its name (the installation's has none). `pace` is the longest
    pause between two pieces of a reply, in seconds. `literal` replaces the text of a reply, and is
    repeated if `is_endless`; `listed` are the models that servers name.
    """

    canary: str
    seed: int = 1
    pace: float = 0.02
    fault: Fault = "none"
    embedding_fault: Fault = "none"
    literal: str | None = None
    is_endless: bool = False
    listed: Sequence[str] = LISTED
    outputs: dict[str, str] = field(default_factory=dict[str, str])
    asked: Counter[str] = field(default_factory=Counter[str])
    heard: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    async def respond(self, path: str, body: Any) -> Answer:
        server = get_server(path)
        if body is not None:
            self.heard[server].update(USER_MARK.findall(json.dumps(body)))
        if path.endswith("/models"):
            self.asked["models"] += 1
            return await _broken(self.fault) or _list(self.listed)
        if path.endswith("/embeddings"):
            self.asked["embedding"] += 1
            return await self._embedded(body, server)
        if not path.endswith("/chat/completions"):
            return Answer(404, {"error": {"message": "no such path"}})
        return await self._said(body)

    async def _said(self, body: Any) -> Answer:
        kind = get_kind(body)
        self.asked[kind] += 1
        if broken := await _broken(self.fault):
            return broken
        if kind == "reply":
            says, calls = table_calls(body, self._draw)
            return Answer(pieces=self._reply(estimate_tokens(body["messages"]), calls, says=says))
        if kind == "triage":
            value = {"why": "Something happens.", "significant": True, "kinds": ["event"]}
            return make_answer(json.dumps(value), estimate_tokens(body["messages"]))
        return _step(body)

    async def _embedded(self, body: Any, server: str) -> Answer:
        if self.embedding_fault == "10 MB at once":
            return Answer(body=b"[" + b"0," * 5_000_000 + b"0]")
        return await _broken(self.embedding_fault) or embeddings(body, server)

    async def _reply(
        self, prompt_tokens: int, calls: Sequence[Any] = (), *, says: bool = True
    ) -> AsyncIterator[str]:
        """A reply as it is streamed, its calls last, with the fault of the moment in it."""
        fault, text = self.fault, self._text() if says else ""
        pieces = [text] if self.literal is not None else _pieces(text, self._draw)
        if fault == "10 MB at once":
            # One piece. It may lead to a truncated reply or to a failure, but not to a crash.
            yield json.dumps(make_chunk({"content": FLOOD * 10_000_000}))
        for number, piece in enumerate(itertools.cycle(pieces) if self.is_endless else pieces):
            yield json.dumps(make_chunk({"role": "assistant", "content": piece}))
            if number == len(pieces) // 2:
                if fault == "hang-up midway":
                    raise CutError
                if fault == "silence midway":
                    await asyncio.sleep(3600)
            if self.pace:
                slow = 20 if fault == "slow drip" else 1
                await asyncio.sleep(self._draw.uniform(0, self.pace * slow))
        for index, each in enumerate(calls):
            yield json.dumps(make_chunk({"tool_calls": [{**each, "index": index}]}))
        yield json.dumps(make_chunk({}, finish="tool_calls" if calls else "stop"))
        counts = make_usage(prompt_tokens, estimate_tokens(text))
        yield json.dumps({**make_chunk({}), "choices": [], "usage": counts})
        yield "[DONE]"

    def _text(self) -> str:
        if self.literal is not None:
            return self.literal
        mark = f"[R{len(self.outputs):07d}]"
        words = " ".join(self._draw.choices(WORDS, k=self._draw.randint(8, 40)))
        self.outputs[mark] = f"{mark} {self.canary} {words}."
        return self.outputs[mark]


def _pieces(text: str, draw: random.Random) -> list[str]:
    """The mark whole, then some words at a time."""
    words = re.findall(r"\S+\s*", text)
    pieces: list[str] = []
    while words:
        size = draw.randint(1, 5)
        pieces.append("".join(words[:size]))
        del words[:size]
    return pieces


async def _broken(fault: Fault) -> Answer | None:
    """Return the answer of a fault, or None if the fault concerns only a part of an answer."""
    error = {"error": {"message": "slow down", "type": "rate_limit_error", "code": None}}
    match fault:
        case "429":
            return Answer(429, error)
        case "429 with retry-after":
            return Answer(429, error, headers={"retry-after": "1"})
        case "500":
            return Answer(500, {"error": {"message": "oops", "type": "server_error"}})
        case "hang-up before":
            return Answer(CUT)
        case "silence":
            await asyncio.sleep(3600)
        case "garbage":
            return Answer(body=b'{"id": "x", "choices": [{"index": 0, "mess\xff\xfe')
        case _:
            pass
    return None


def _step(body: Any) -> Answer:
    """One event for each new line with a mark, all at once; then nothing more."""
    messages: Sequence[Any] = body["messages"]
    prompt = estimate_tokens(messages)
    if any(message["role"] == "assistant" for message in messages):
        return make_answer(None, prompt, [make_call("f0", "finish", {})])
    calls: list[Any] = []
    for number, text in find_new_lines(messages):
        if found := LINE_MARK.search(text):
            digest = hashlib.blake2b(found[0].encode(), digest_size=9).hexdigest()
            words = " ".join(digest[at : at + 6] for at in range(0, 18, 6))
            arguments = {
                "summary": f"Event of {found[0]}: {words}.",
                "kind": "event",
                "keywords": words.split(),
                "significance": 3,
                "source_messages": [f"#{number}"],
            }
            calls.append(make_call(f"n{number}", "create_chronicle_event", arguments))
    return make_answer(None, prompt, calls[:8] or [make_call("f0", "finish", {})])


def get_server(url: str) -> str:
    """The name of a user's own server, by an address of it; empty for the installation's."""
    found = OWN_PATH.search(url)
    return found[1] if found else ""


def _list(names: Sequence[str]) -> Answer:
    """Models, as `GET /models` has them."""
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "x"} for name in names]
    return Answer(body={"object": "list", "data": models})


def embeddings(body: Any, server: str = "") -> Answer:
    """Unit vectors that follow from server, model and text alone."""
    texts: list[str] = [body["input"]] if isinstance(body["input"], str) else body["input"]
    name: str = body["model"]
    size = int(body.get("dimensions") or get_dimension(name))
    vectors = [make_vector(text, server, name, size) for text in texts]
    data = [
        {"object": "embedding", "index": index, "embedding": _sent(vector, body)}
        for index, vector in enumerate(vectors)
    ]
    counts = {"prompt_tokens": 8, "total_tokens": 8}
    return Answer(body={"object": "list", "data": data, "model": name, "usage": counts})


def get_dimension(name: str) -> int:
    """Return the dimension of a model's vectors."""
    return int(name.rpartition("-")[2]) if name in EMBEDDERS else DIMENSION


def make_vector(text: str, server: str, name: str, size: int) -> NDArray[np.float32]:
    """The vector of a text, shape (size,), of unit length."""
    digest = hashlib.blake2b(f"{server} {name} {text}".encode(), digest_size=8).digest()
    drawn = np.random.default_rng(int.from_bytes(digest, "big")).standard_normal(size)
    return (drawn / np.linalg.norm(drawn)).astype("<f4")


def _sent(vector: NDArray[np.float32], body: Any) -> Any:
    if body.get("encoding_format") == "base64":
        return base64.b64encode(vector.tobytes()).decode()
    return vector.tolist()
