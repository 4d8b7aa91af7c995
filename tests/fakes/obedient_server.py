"""Model servers that obey every order in the prompt: the worst case of a model.

    async with ObedientOpenAI() as model:
        model.obey(Obedience(case, ids))

They answer the story's turns with the case's reply, say of everything that it matters, and call in
each step of the agent's loop what the case orders; they finish only after more steps than there
may be. `hold()` keeps them from saying that anything matters until `release()`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from tests.fakes import gemini_server, openai_server
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Answer, Exchange, Request, ScriptedServer
from tests.support.injections import Call, Obedience, texts_in

PATIENCE = 12
"""Steps of the loop after which even such a model finishes: a loop without a cap must end, too."""


class _Obedient(ScriptedServer):
    """The behaviour of both formats."""

    def __init__(self) -> None:
        super().__init__()
        self._obedience: Obedience | None = None
        self._released = asyncio.Event()
        self._released.set()
        self.triages = 0
        self.steps: list[list[Call]] = []

    @property
    def obedience(self) -> Obedience:
        """The case that it obeys now."""
        assert self._obedience is not None
        return self._obedience

    def obey(self, obedience: Obedience) -> None:
        """Obey this case from now on, and delete the recorded requests."""
        self._obedience = obedience
        self.triages, self.steps = 0, []
        self.requests.clear()

    def hold(self) -> None:
        """Answer no triage until `release()`."""
        self._released.clear()

    def release(self) -> None:
        """Go on."""
        self._released.set()

    def step(self, number: int, body: Any) -> list[Call]:
        """The calls of one step."""
        calls: list[Call] = [("finish", {})]
        if number < PATIENCE:
            calls = self.obedience.calls(number, list(texts_in(body)))
        self.steps.append(calls)
        return calls

    def is_triage(self, request: Request) -> bool:
        """True if the request asks for the significance of lines."""
        raise NotImplementedError

    async def respond(self, exchange: Exchange) -> bool:
        if self.is_triage(exchange.request):
            self.triages += 1
            await self._released.wait()
        return await super().respond(exchange)


class ObedientOpenAI(_Obedient, OpenAIServer):
    """In OpenAI's wire format."""

    def is_triage(self, request: Request) -> bool:
        return bool(request.body) and "response_format" in request.body

    def usual(self, request: Request) -> Answer:
        if request.path.endswith("/embeddings"):
            return openai_server.embedded(request)
        if self.is_triage(request):
            return Answer(body=openai_server.completion(json.dumps(self.obedience.triage())))
        if "tools" not in request.body:
            return openai_server.reply(self.obedience.reply)
        said = request.body["messages"]
        number = sum(1 for message in said if message.get("tool_calls"))
        calls = [
            openai_server.tool_call(name, args, call_id=f"call-{number}-{place}")
            for place, (name, args) in enumerate(self.step(number, said))
        ]
        return Answer(body=openai_server.completion(None, finish="tool_calls", calls=calls))


class ObedientGemini(_Obedient, GeminiServer):
    """In Gemini's wire format, which has no room for arguments that are no object."""

    def is_triage(self, request: Request) -> bool:
        body: dict[str, Any] = request.body or {}
        return "responseJsonSchema" in body.get("generationConfig", {})

    def usual(self, request: Request) -> Answer:
        if request.path.endswith(":batchEmbedContents"):
            return gemini_server.embedded(request)
        if self.is_triage(request):
            return gemini_server.reply(json.dumps(self.obedience.triage()))
        if "tools" not in request.body:
            return gemini_server.reply(self.obedience.reply)
        said = request.body["contents"]
        number = sum(
            1
            for turn in said
            if turn["role"] == "model" and any("functionCall" in part for part in turn["parts"])
        )
        parts = [
            gemini_server.call_part(
                name, cast("dict[str, Any]", args), call_id=f"call-{number}-{place}"
            )
            for place, (name, args) in enumerate(self.step(number, said))
            if isinstance(args, dict)
        ]
        used = gemini_server.usage(12, 2)
        return Answer(body=gemini_server.chunk(*parts, finish="STOP", used=used))
