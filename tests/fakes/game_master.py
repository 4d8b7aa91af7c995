"""An OpenAI-compatible server that plays: it calls what the mood offers, as a seed has it."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.fakes.openai_server import OpenAIServer, called, error, reply
from tests.fakes.scripted_server import Answer, Request

ENGAGE = {"domain": "infiltration", "position": "risky", "effect": "standard", "stakes": "noise"}
OUTCOMES: list[dict[str, Any]] = [
    {"tier": "critical", "hint": "it sings"},
    {"tier": "success", "hint": "it opens"},
    {"tier": "partial", "hint": "it groans", "costs": [{"kind": "heat", "amount": 1}]},
    {"tier": "bad", "hint": "it snaps", "costs": [{"kind": "clock", "what": "Alarm"}]},
]
QUESTIONS, RETURNS = 0.4, 0.5
"""How often it asks the player something, and goes back to the scene after an action."""


class GameMaster(OpenAIServer):
    """Tells a story in any mood of `blades`. `failing` is how often it breaks off, 0 to 1."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        self.dice = Random(seed)
        self.failing = 0.0
        self.likes_danger = 0.5

    def usual(self, request: Request) -> Answer:
        if request.path.endswith("/embeddings"):
            return super().usual(request)
        offered = {each["function"]["name"] for each in request.body.get("tools", ())}
        if not offered:
            return reply("The rain goes on.")
        if self.dice.random() < self.failing:
            return error(401, message="no")
        text = f"The lamp flickers {self.dice.randint(2, 99)} times."
        return called(self._call(offered, request.body["messages"]), text=text)

    def _call(self, offered: set[str], messages: list[dict[str, Any]]) -> tuple[str, Any]:
        finish = (
            "finish_turn",
            {"threat": f"Steps, {self.dice.randint(2, 99)} of them.", "suggested_actions": ["Run"]},
        )
        last = messages[-1]
        if "spend_die" in offered:
            return self._act(messages)
        if last["role"] == "tool":
            return finish
        if "engage" in offered and self.dice.random() < self.likes_danger:
            return "engage", ENGAGE
        if "ask_player" in offered and self.dice.random() < QUESTIONS:
            return "ask_player", {"prompt": "Which way?", "options": ["Left", "Right"]}
        if offered.isdisjoint({"engage"}) and "accept" in offered and self.dice.random() < RETURNS:
            return "accept", {"variant": "discovery"}
        return finish

    def _act(self, messages: list[dict[str, Any]]) -> tuple[str, Any]:
        """Commit to outcomes, and go on with the one that the die has fixed."""
        answers = [json.loads(each["content"]) for each in messages if each["role"] == "tool"]
        for answer in reversed(answers):
            if "tier" in answer:
                return "resolve", {"tier": answer["tier"]}
        if answers:  # it was refused: no dice are left, say
            return "resolve", {"tier": "withdrawn"}
        return "spend_die", {"situation": "The lock.", "outcomes": OUTCOMES}
