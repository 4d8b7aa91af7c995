"""A model that tells a script, and writes what its lines change, as a server on a port.

It speaks OpenAI's chat completions. Replies are what `next_reply` says. Asked to compact, it calls
the updater tools for each sentence of the script among the new lines, and for nothing else; asked
for a summary, it repeats what it is shown; to all else it answers that there is nothing. Of what
is asked behind replies a share fails: answered with an error, cut off, or broken.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from scripts._campaign_script import Script
from scripts._campaign_story import summary_of
from scripts._campaign_truth import Update
from scripts._enrichment_model import FAILURES, failure, new_lines
from scripts._enrichment_wire import (
    Answer,
    call,
    kind_of,
    said,
    streamed,
    streamed_calls,
    tokens_of,
)

_WORLD = re.compile(r"<world>\n(.*?)\n?</world>", re.DOTALL)
_KNOWN = re.compile(r"^([A-Z]\d+) (.*)$", re.MULTILINE)


@dataclass
class Compactor:
    """What the model says, and what it has been asked so far.

    Args:
        failures: The share of calls behind replies that fail.
        think: Seconds that such a call takes.
    """

    script: Script
    failures: float = 0.0
    think: float = 0.0
    next_reply: str = "Nothing happens."
    asked: Counter[str] = field(default_factory=Counter[str])
    refused: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._draw = random.Random(1)

    async def respond(self, path: str, body: Any) -> Answer:
        """Answer a request."""
        if not path.endswith("/chat/completions"):
            return Answer(404, {"error": {"message": "no such path"}})
        messages: list[dict[str, Any]] = body["messages"]
        texts = [str(each["content"]) for each in messages]
        prompt = tokens_of(messages)
        task = re.match(r"Task: (.+)", texts[0])
        if task is None and kind_of(body) == "reply":
            self.asked["reply"] += 1
            return streamed(self.next_reply, prompt)
        kind = task[1] if task else "triage"
        self.asked[kind] += 1
        await asyncio.sleep(self.think)
        if self._draw.random() < self.failures:
            self.asked["failed"] += 1
            return failure(self._draw.choice(FAILURES))
        match kind:
            case "rolling summary":
                return streamed(summary_of(texts, self.script.updates.keys()), prompt)
            case "compaction":
                return self._compaction(messages, prompt)
            case _:
                return said(json.dumps(_nothing(_schema(body))), prompt)

    def _compaction(self, messages: Sequence[dict[str, Any]], prompt: int) -> Answer:
        answered = [str(each["content"]) for each in messages if each["role"] == "tool"]
        if answered:
            self.refused += [text for text in answered if "error" in text.casefold()]
            return streamed("That is all.", prompt)
        world = next(
            (found[1] for each in messages if (found := _WORLD.search(str(each["content"])))), ""
        )
        calls = [
            call(f"c{number}-{place}", update.tool, _arguments(update, number, world))
            for number, text in new_lines(messages)
            for place, update in enumerate(self._updates(text))
        ]
        self.asked["updates"] += len(calls)
        return streamed_calls(calls, prompt) if calls else streamed("Nothing has changed.", prompt)

    def _updates(self, line: str) -> Iterator[Update]:
        """What a line changes, in the order in which it says so."""
        told = [text for text in self.script.updates if text in line]
        for text in sorted(told, key=line.index):
            yield from self.script.updates[text]


def _arguments(update: Update, number: int, world: str) -> dict[str, Any]:
    """A call's arguments: whom the world shows by that name is named by the reference."""
    known = {text: reference for reference, text in _KNOWN.findall(world)}
    given = dict(update.set)
    if update.replaces:
        old = [reference for text, reference in known.items() if update.replaces in text]
        given |= {"supersedes": old[0]} if old else {}
    shown = [ref for text, ref in known.items() if text.startswith(f"{update.name} (")]
    about = {"ref": shown[0]} if update.name and len(shown) == 1 else {"name": update.name}
    members = {**about, "set": given, "add": dict(update.add), "remove": dict(update.remove)}
    return {
        **{name: value for name, value in members.items() if value},
        "because": "the story says so",
        "source_turns": [number],
    }


def _schema(body: dict[str, Any]) -> Mapping[str, Any]:
    """What an answer has to look like; any text where nothing is said of it."""
    found: Mapping[str, Any] = body.get("response_format", {}).get("json_schema", {})
    return cast("Mapping[str, Any]", found.get("schema", {}))


def _nothing(schema: Mapping[str, Any]) -> Any:
    """The least that a schema takes."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            properties = cast("dict[str, Any]", schema.get("properties") or {})
            return {name: _nothing(properties[name]) for name in schema.get("required", ())}
        case "array":
            return []
        case "boolean":
            return False
        case "integer" | "number":
            return schema.get("minimum", 0)
        case _:
            return "Nothing."
