"""A model server that repeats every secret of its prompts in its answers.

    async with ParrotServer() as model:
        word = secret_word(7)

A secret is a word that nothing else would say. Replies, summaries, answers in JSON and arguments of
tools all hold the words that stand in their prompt, wherever a text may stand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.fakes.openai_server import OpenAIServer, called, completion, reply
from tests.fakes.scripted_server import Answer, Request

SECRET = re.compile(r"Vex[A-Z][a-z]{3}Qor")
"""In CamelCase, so that the glossary takes it for coined. What asks for one writes it small."""

LINE = re.compile(r"^\s*#(\d+) ", re.MULTILINE)
"""A line of the story, as work after a reply is shown it."""

_CONSONANTS, _VOWELS = "bdfglmnprstv", "aeiou"


def secret_word(number: int) -> str:
    """The word of a secret, from 0 to 719."""
    rest, vowel = divmod(number, len(_VOWELS))
    other, consonant = divmod(rest, len(_CONSONANTS))
    start = _CONSONANTS[other % len(_CONSONANTS)].upper()
    return f"Vex{start}{_VOWELS[vowel]}{_CONSONANTS[consonant]}iQor"


def secrets_in(said: Any) -> list[str]:
    """The secrets in a value, as their words, in order."""
    text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
    return sorted(set(SECRET.findall(text)))


class ParrotServer(OpenAIServer):
    """Repeats. Of the names in `knows` it writes about one that it is shown, each in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.knows: list[str] = []

    @property
    def prompts(self) -> list[Request]:
        """The requests without those for vectors."""
        return [each for each in self.requests if not each.path.endswith("/embeddings")]

    def usual(self, request: Request) -> Answer:
        if request.path.endswith("/embeddings"):
            return super().usual(request)
        body: dict[str, Any] = request.body
        words, shown = secrets_in(body["messages"]), json.dumps(body["messages"])
        known = [name for name in self.knows if name in shown] or ["Nobody"]
        name = known[len(self.requests) % len(known)]
        lines = [int(number) for number in LINE.findall(str(body["messages"][-1]["content"]))]
        # All texts differ, because repeated texts are not stored again.
        rest = " ".join(f"word{len(self.requests)}{letter}" for letter in "abcdefgh")
        text = f"Obsidian ledger: {' and '.join(words) or 'nothing'}; {rest}."
        if schema := body.get("response_format", {}).get("json_schema"):
            filled = _filled(schema["schema"], Told(text, name, lines))
            if "terms" in filled:
                filled["terms"] = [{"term": word, "definition": text} for word in words]
            return Answer(body=completion(json.dumps(filled)))
        tools = [each["function"] for each in body.get("tools", ())]
        if not tools:
            return reply(text)
        is_first = not any(each["role"] == "tool" for each in body["messages"])
        wanted = [
            tool
            for tool in tools
            if (tool["name"] in _ENDS) != is_first and tool["name"] not in _WAITS
        ]
        told = Told(text, name, lines)
        calls = [(tool["name"], _filled(tool["parameters"], told)) for tool in wanted]
        return called(*calls, text=text) if calls else reply(text)


class Told(NamedTuple):
    """The content of generated values: a text, its subject, and the numbers of its lines."""

    text: str
    name: str
    lines: Sequence[int]


def _filled(schema: Mapping[str, Any], told: Told, key: str = "") -> Any:
    """A value of a schema with the text in every string."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            left_out = _LEFT_OUT | _REFERENCES if key in {"set", "add", "remove"} else _LEFT_OUT
            members: Mapping[str, Any] = schema.get("properties", {})
            return {
                name: _filled(member, told, name)
                for name, member in members.items()
                if name not in left_out
            }
        case "array" if key in {"source_turns", "source_messages"}:
            numbers = told.lines[-2:]
            return numbers if key == "source_turns" else [f"#{each}" for each in numbers]
        case "array":
            return [_filled(schema["items"], told, key)]
        case "string":
            return told.name if key in _NAMES else told.text
        case kind:
            return _NUMBERS.get(key, {"integer": 1, "number": 1, "boolean": True}.get(str(kind)))


_WAITS = {"ask_player"}
_ENDS = {"finish", "finish_turn"}
_LEFT_OUT = {"supersedes", "differs_from", "story_day", "ref", "who", "resolved"}
_REFERENCES = {"location", "giver", "present"}
_NAMES = {"item", "npc", "about", "clock", "name"}
_NUMBERS = {"segments": 6, "significance": 3}
