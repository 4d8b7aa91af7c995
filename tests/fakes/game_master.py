"""Servers of models that play: they call what the mood offers, as a seed has it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from tests.fakes import gemini_server, openai_server
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Answer, Request

Call = tuple[str, Mapping[str, Any]]

ENGAGE = {"domain": "infiltration", "position": "risky", "effect": "standard", "stakes": "noise"}
OUTCOMES: list[dict[str, Any]] = [
    {"tier": "critical", "hint": "it sings"},
    {"tier": "success", "hint": "it opens"},
    {"tier": "partial", "hint": "it groans", "costs": [{"kind": "heat", "amount": 1}]},
    {"tier": "bad", "hint": "it snaps", "costs": [{"kind": "clock", "what": "Alarm"}]},
]
QUESTIONS, RETURNS = 0.4, 0.5
"""How often it asks the player something, and goes back to the scene after an action."""


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
        """What it calls of the tools on offer, after the results of its calls in this phase."""
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
    """A game master on a server that accepts tools, and whose model writes calls as text alone.

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
