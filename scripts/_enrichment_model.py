"""A model that follows a script, as a server in a process of its own.

    python -m scripts._enrichment_model DATA_DIR --seed N --failures SHARE --think SECONDS

It says its port, and answers `POST /v1/chat/completions` as an OpenAI-compatible server does:
replies are the lines that follow in the transcripts; what asks for a schema is the triage; what
offers the agent's tools is its loop. `GET /stats` tells what it was asked and what it told.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from scripts._enrichment_facts import (
    DOUBT,
    Fact,
    fact_of,
    in_other_words,
    is_eventful,
    is_obstinate,
    is_repetitive,
)
from scripts._enrichment_wire import CUT, Answer, call, kind_of, listen, said, streamed, tokens_of

SHORTEST, LONGEST = 8, 150
"""Words of a line."""
SEARCHES = 3
"""Of so many stretches with something to tell the model searches first in one."""

_NEW_LINES = re.compile(r"<new_lines>\n(.*?)\n?</new_lines>", re.DOTALL)
_LINE = re.compile(r"^#(\d+) ([^:\n]*): (.*(?:\n    .*)*)", re.MULTILINE)
_EVENT_MARK = re.compile(r"\bE\d+\b")
FAILURES = ("rate limit", "server error", "cut", "broken")


@dataclass(frozen=True)
class Told:
    """A call that the model made to create an event: what it comes from, and where."""

    call_id: str
    key: str
    summary: str
    is_repetition: bool
    mark: int


@dataclass
class Script:
    """What the model says, and what it has been asked so far."""

    lines: Sequence[str]
    seed: int
    failures: float
    think: float
    follows: dict[str, str] = field(default_factory=dict[str, str])
    known: dict[int, Fact] = field(default_factory=dict[int, Fact])
    told: dict[tuple[str, str], Told] = field(default_factory=dict[tuple[str, str], Told])
    results: dict[str, str] = field(default_factory=dict[str, str])
    asked: Counter[str] = field(default_factory=Counter[str])
    tokens: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        self.follows = dict(zip(self.lines, self.lines[1:], strict=False))
        self._draw = random.Random(self.seed)

    async def respond(self, path: str, body: Any) -> Answer:
        """Answer a request."""
        if path == "/stats":
            return Answer(body=self.stats())
        if not path.endswith("/chat/completions"):
            return Answer(404, {"error": {"message": "no such path"}})
        prompt = tokens_of(body["messages"])
        kind: str = kind_of(body)
        self.asked[kind] += 1
        if kind == "reply":
            return streamed(self._reply(body["messages"]), prompt)
        if self.think:
            await asyncio.sleep(self.think * self._draw.uniform(0.5, 1.5))
        if self._draw.random() < self.failures:
            kind = self._draw.choice(FAILURES)
            self.asked[f"failed: {kind}"] += 1
            return failure(kind)
        answer = self._step(body, prompt) if kind == "step" else self._triage(body, prompt)
        self.tokens["prompt"] += answer.body["usage"]["prompt_tokens"]
        self.tokens["completion"] += answer.body["usage"]["completion_tokens"]
        return answer

    def stats(self) -> dict[str, Any]:
        """What `GET /stats` answers."""
        return {
            "asked": dict(self.asked),
            "tokens": dict(self.tokens),
            "told": [asdict(each) for each in self.told.values()],
            "results": self.results,
        }

    def _reply(self, messages: Sequence[Any]) -> str:
        """The line behind the last one that is known."""
        for message in reversed(messages):
            if message["role"] == "user" and (found := self.follows.get(message["content"])):
                return found
        return "Nobody says anything."

    def _triage(self, body: Any, prompt: int) -> Answer:
        lines = new_lines(body["messages"])
        found = any(is_eventful(text) for _, text in lines)
        why = "Somebody tells something." if found else "Nothing happens."
        value = {"why": why, "significant": found, "kinds": ["event"] if found else []}
        return said(json.dumps(value), prompt)

    def _step(self, body: Any, prompt: int) -> Answer:
        """Search at times, tell everything at once, answer what is in doubt, finish."""
        messages = body["messages"]
        answered = [
            (message["tool_call_id"], message["content"])
            for message in messages
            if message["role"] == "tool"
        ]
        self.results.update(answered)
        lines = [line for line in new_lines(messages) if is_eventful(line[1])]
        steps = sum(1 for message in messages if message["role"] == "assistant")
        searches = bool(lines) and lines[0][0] % SEARCHES == 0
        if searches and not steps:
            fact = fact_of(lines[0][1])
            query = " ".join(fact.keywords) if fact else "anything"
            return said(None, prompt, [call("s0", "search_knowledge_base", {"query": query})])
        if steps == int(searches) and lines:
            return said(None, prompt, [each for line in lines for each in self._creations(*line)])
        if steps == int(searches) + 1 and (again := self._insisting(messages, answered)):
            return said(None, prompt, again)
        return said(None, prompt, [call("f0", "finish", {})])

    def _insisting(self, messages: Sequence[Any], answered: Sequence[tuple[str, str]]) -> list[Any]:
        """The events that it was asked about, told again where it takes them for news.

        It knows its own news, and sees most of its repetitions when they are shown to it.
        """
        arguments: dict[str, dict[str, Any]] = {
            each["id"]: json.loads(each["function"]["arguments"])
            for message in messages
            for each in message.get("tool_calls") or ()
        }
        again: list[Any] = []
        for call_id, content in answered:
            if DOUBT not in content:
                continue
            wanted = arguments[call_id]
            told = self.told[call_id, wanted["summary"]]
            if told.is_repetition and not is_obstinate(wanted["summary"]):
                continue
            marks = list(dict.fromkeys(_EVENT_MARK.findall(content)))
            retold = Told(f"a{call_id}", told.key, told.summary, told.is_repetition, told.mark)
            self.told[retold.call_id, told.summary] = retold
            again.append(
                call(retold.call_id, "create_chronicle_event", {**wanted, "differs_from": marks})
            )
        return again

    def _creations(self, mark: int, text: str) -> list[Any]:
        """What is told of one line, and, at times, what was told of another one before."""
        fact = fact_of(text)
        if fact is None:
            return []
        self.known[mark] = fact
        made = [self._creation(f"n{mark}", fact, mark, is_repetition=False)]
        earlier = [each for each in self.known if each < mark]
        if earlier and is_repetitive(text):
            draw = random.Random(f"{self.seed}/{text}")
            again = in_other_words(self.known[draw.choice(sorted(earlier))], text)
            made.append(self._creation(f"r{mark}", again, mark, is_repetition=True))
        return made

    def _creation(self, call_id: str, fact: Fact, mark: int, *, is_repetition: bool) -> Any:
        told = Told(call_id, fact.key, fact.summary, is_repetition, mark)
        self.told[call_id, fact.summary] = told
        arguments = {
            "summary": fact.summary,
            "kind": "event",
            "who": [fact.who],
            "keywords": list(fact.keywords),
            "significance": 3,
            "source_messages": [f"#{mark}"],
        }
        return call(call_id, "create_chronicle_event", arguments)


def failure(kind: str) -> Answer:
    """How a call fails: one of `FAILURES`."""
    if kind == "rate limit":
        error = {"message": "slow down", "type": "rate_limit_error", "code": None}
        return Answer(429, {"error": error}, headers={"retry-after": "0.2"})
    if kind == "server error":
        return Answer(500, {"error": {"message": "oops", "type": "server_error"}})
    if kind == "cut":
        return Answer(CUT)
    return Answer(body=b'{"id": "chatcmpl-1", "choices": [{"index": 0, "mess')


def new_lines(messages: Sequence[Any]) -> list[tuple[int, str]]:
    """(mark, text) of the lines that are new, as the agent's prompt shows them."""
    for message in messages:
        content = message.get("content")
        if isinstance(content, str) and (section := _NEW_LINES.search(content)):
            found = _LINE.finditer(section[1])
            return [(int(line[1]), line[3].replace("\n    ", "\n")) for line in found]
    return []


def transcript(folder: Path) -> list[str]:
    """What user and model say in turn: the distinct lines of the transcripts, `Speaker: text`.

    Those are left out that are very short or very long.
    """
    from scripts._bench import utterances  # noqa: PLC0415  # it imports the whole server

    spoken = (f"{speaker.title()}: {text}" for speaker, text in utterances(folder))
    return list(dict.fromkeys(line for line in spoken if SHORTEST <= len(line.split()) <= LONGEST))


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--failures", type=float, default=0.0)
    parser.add_argument("--think", type=float, default=0.0)
    options = parser.parse_args()
    script = Script(transcript(options.data), options.seed, options.failures, options.think)
    server, port = await listen(script.respond)
    print(port, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
