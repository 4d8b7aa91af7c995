"""Servers of models that play: a seed chooses among the tools of the mood."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from tests.fakes import gemini_server, openai_server
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Answer, Gate, Request

Call = tuple[str, Mapping[str, Any]]

ENGAGE = {"domain": "infiltration", "position": "risky", "effect": "standard", "stakes": "noise"}
OUTCOMES: list[dict[str, Any]] = [
    {"tier": "critical", "hint": "it sings"},
    {"tier": "success", "hint": "it opens"},
    {"tier": "partial", "hint": "it groans", "costs": [{"kind": "heat", "amount": 1}]},
    {"tier": "bad", "hint": "it snaps", "costs": [{"kind": "clock", "what": "Alarm"}]},
]
QUESTIONS, RETURNS = 0.4, 0.5
"""The shares of turns with a question to the player and with a return to the scene."""


class GameMaster:
    """Tells a story in any mood of `blades`. `failing` is how often it breaks off, 0 to 1."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        self.dice = Random(seed)
        self.failing = 0.0
        self.likes_danger = 0.5

    def tells(self) -> str:
        return f"The lamp flickers {self.dice.randint(2, 99)} times."

    def fails(self) -> bool:
        return self.dice.random() < self.failing

    def calls(self, offered: set[str], results: Sequence[Mapping[str, Any]]) -> Call:
        """Choose calls among the offered tools, given the results of this phase."""
        if "spend_die" in offered:
            return self._act(results)
        finish = (
            "finish_turn",
            {"threat": f"Steps, {self.dice.randint(2, 99)} of them.", "suggested_actions": ["Run"]},
        )
        if results:
            return finish
        if "engage" in offered and self.dice.random() < self.likes_danger:
            return "engage", ENGAGE
        if "ask_player" in offered and self.dice.random() < QUESTIONS:
            return "ask_player", {"prompt": "Which way?", "options": ["Left", "Right"]}
        if offered.isdisjoint({"engage"}) and "accept" in offered and self.dice.random() < RETURNS:
            return "accept", {"variant": "discovery"}
        return finish

    def _act(self, results: Sequence[Mapping[str, Any]]) -> Call:
        """Commit to outcomes, and go on with the one that the die has fixed."""
        for result in reversed(results):
            if "tier" in result:
                return "resolve", {"tier": result["tier"]}
        if results:  # it was refused: no dice are left, say
            return "resolve", {"tier": "withdrawn"}
        return "spend_die", {"situation": "The lock.", "outcomes": OUTCOMES}


class OpenAIGameMaster(GameMaster, OpenAIServer):
    """A game master behind an OpenAI-compatible API."""

    model_id = openai_server.MODEL_ID

    def usual(self, request: Request) -> Answer:
        if request.path.endswith("/embeddings"):
            return super().usual(request)
        offered = {each["function"]["name"] for each in request.body.get("tools", ())}
        if not offered:
            return openai_server.reply("The rain goes on.")
        if self.fails():
            return openai_server.error(401, message="no")
        messages = request.body["messages"]
        results = [json.loads(each["content"]) for each in messages if each["role"] == "tool"]
        return openai_server.called(self.calls(offered, results), text=self.tells())


class GeminiGameMaster(GameMaster, GeminiServer):
    """A game master behind Gemini's API."""

    model_id = gemini_server.MODEL_ID

    def usual(self, request: Request) -> Answer:
        if request.path.endswith(":batchEmbedContents"):
            return super().usual(request)
        offered = {
            each["name"]
            for tools in request.body.get("tools", ())
            for each in tools["functionDeclarations"]
        }
        if not offered:
            return gemini_server.reply("The rain goes on.")
        if self.fails():
            return gemini_server.error(401, "UNAUTHENTICATED", "no")
        results = [
            part["functionResponse"]["response"]
            for content in request.body["contents"]
            for part in content["parts"]
            if "functionResponse" in part
        ]
        return gemini_server.called(self.calls(offered, results), text=self.tells())


class BlockWritingGameMaster(GameMaster, OpenAIServer):
    """A game master on a server that accepts tools but writes calls as text.

    It writes a block if the prompt describes one. Otherwise it only tells.
    """

    def usual(self, request: Request) -> Answer:
        if request.path.endswith("/embeddings"):
            return super().usual(request)
        texts = [str(each["content"]) for each in request.body["messages"]]
        described = next((text for text in texts if "```tools" in text and "Schemas" in text), "")
        if not described:
            return openai_server.reply(self.tells())
        offered = set(re.findall(r"^- (\w+): ", described, re.MULTILINE))
        head = "Results of the calls: "
        told = [json.loads(text.removeprefix(head)) for text in texts if text.startswith(head)]
        results = [each["result"] for results in told for each in results]
        name, arguments = self.calls(offered, results)
        block = json.dumps([{"tool": name, "arguments": arguments}])
        return openai_server.reply(f"{self.tells()}\n\n```tools\n{block}\n```")


class CarelessGameMaster(OpenAIServer):
    """A game master of `blades` who forgets the rules, in the way that `habit` says.

    `ignore`: it tells on, whatever the die says. `finish`: it sends finish_turn alone. `unknown`:
    it calls a tool that there is not. `voice`: it calls speak_as_npc and says nothing. `prose`: it
    calls nothing. `good`: it plays by the rules. A risky action begins when `has_risk`; what it
    costs has `number` in its name. While there is a `gate`, narration stops in its middle.
    """

    model_id = openai_server.MODEL_ID

    def __init__(self) -> None:
        super().__init__()
        self.habit, self.has_risk, self.number = "good", False, 0
        self.gate: Gate | None = None
        self._narrations = 0

    def usual(self, request: Request) -> Answer:
        if request.path.endswith("/embeddings"):
            return super().usual(request)
        body = request.body
        if "response_format" in body:
            return openai_server.reply(json.dumps(IN_JSON))
        system = str(body["messages"][0]["content"])
        if system.startswith("Task: rolling summary"):
            return openai_server.reply("So it went.")
        offered = {each["function"]["name"] for each in body.get("tools", ())}
        if not body.get("stream") or system.startswith("Task: compaction"):
            return openai_server.reply("Nothing.")
        results = [
            json.loads(each["content"]) for each in body["messages"] if each["role"] == "tool"
        ]
        return self.plays(offered, results)

    def plays(self, offered: set[str], results: Sequence[Mapping[str, Any]]) -> Answer:
        """Answer a request of a turn."""
        tier = next((each["tier"] for each in results if "tier" in each), "")
        if self.has_risk and "engage" in offered:
            calls: list[Call] = [("engage", ENGAGE)]
        elif self.has_risk and "spend_die" in offered and not tier:
            spend = {"situation": f"Lock {self.number}.", "outcomes": priced(self.number)}
            calls = [("spend_die", spend)]
        else:
            return self._misbehaves(offered, results, tier)
        return openai_server.called(*calls, text=self.tells())

    def _misbehaves(
        self, offered: set[str], results: Sequence[Mapping[str, Any]], tier: str
    ) -> Answer:
        is_refused = any("error" in each for each in results)
        calls: list[Call] = []
        match self.habit:
            case "unknown" if not is_refused:
                calls = [("cast_spell", {}), ("ask_gods", {})]
            case "finish" if not is_refused and offered:
                calls = [self.end()]
            case "voice" if not results and "speak_as_npc" in offered:
                calls = [("speak_as_npc", {"npc": "Marlena"})]
            case "voice" if len(results) == 1 and "next" not in results[0]:
                return openai_server.reply("")
            case "ignore" | "prose" | "voice":
                return self.narration()
            case _ if tier and "resolve" in offered:
                calls = [("resolve", {"tier": tier})]
            case _:
                return self.narration(self.end())
        return openai_server.called(*calls)

    def narration(self, *calls: Call) -> Answer:
        """Send story text. With a gate, send the second half after it is opened."""
        if self.gate is not None:
            chunk = openai_server.chunk
            first, rest = chunk(content=self.tells()), chunk(content=" And so on.")
            return openai_server.stream(first, self.gate, rest, chunk("stop"))
        text = self.tells()
        return openai_server.called(*calls, text=text) if calls else openai_server.reply(text)

    def tells(self) -> str:
        self._narrations += 1
        return f"The lamp flickers {self._narrations} times."

    def end(self) -> Call:
        return "finish_turn", {"suggested_actions": ["Run", "Hide"]}


def priced(number: int) -> list[dict[str, Any]]:
    """Outcomes whose costs are known by a number, and go to a clock and to the heat as well."""
    harm = {"kind": "harm", "what": f"cut {number}"}
    return [
        {"tier": "critical", "hint": f"{number}: it sings"},
        {"tier": "success", "hint": f"{number}: it opens"},
        {"tier": "partial", "hint": f"{number}: it groans", "costs": [harm]},
        {"tier": "bad", "hint": f"{number}: it snaps", "costs": [harm]},
    ]


IN_JSON = {
    "why": "",
    "significant": False,
    "kinds": [],
    "terms": [],
    "tags": [],
    "questions": [],
    "title": "A night",
    "summary": "So it went.",
    "key_moments": ["A lamp flickered."],
    "seeds": [],
    "changes": [],
    "kept": [],
}
"""An answer to any task in JSON: nothing is worth keeping."""
