"""Played turns with models of both vendors, in each way of asking them for calls."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from backend.generation.catalogue import ToolSupport
from backend.generation.registry import ModelRegistry
from tests.fakes import gemini_server, openai_server
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Answer
from tests.integration.turns.playing import FINISH, QUESTION, Game, names, new_game
from tests.support.server import Account, running, text_of

pytestmark = pytest.mark.anyio

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Script:
    """A vendor's server, how it speaks, and a game that is played with it."""

    server: OpenAIServer | GeminiServer
    reply: Callable[..., Answer]
    called: Callable[..., Answer]
    refused: Answer
    game: Game

    def says(self, support: ToolSupport, text: str, *calls: Call) -> Answer:
        """A reply with calls, as a model writes them that is asked in this way."""
        if support == "native":
            return self.called(*calls, text=text)
        return self.reply(*cut(written(support, text, *calls)))

    @property
    def sent(self) -> Any:
        """The body of the last request."""
        return self.server.requests[-1].body


def written(support: ToolSupport, text: str, *calls: Call) -> str:
    """A reply with calls in its text."""
    listed = [{"tool": name, "arguments": arguments} for name, arguments in calls]
    if support == "structured":
        return json.dumps({"narration": text, "calls": listed})
    return f"{text}\n```tools\n{json.dumps(listed)}\n```"


def cut(text: str, size: int = 7) -> Sequence[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.fixture(params=["openai", "gemini"])
async def script(
    request: pytest.FixtureRequest, sqlite_url: str, tmp_path: Path
) -> AsyncGenerator[Script]:
    vendor = openai_server if request.param == "openai" else gemini_server
    async with OpenAIServer() if request.param == "openai" else GeminiServer() as server:
        config: Any = {request.param: server.config()}
        registry = ModelRegistry(**config, demo_tokens_per_second=0, default=vendor.MODEL_ID)
        async with (
            running(sqlite_url, tmp_path, registry=registry) as host,
            host.account("Ada") as ada,
        ):
            refused = (
                openai_server.error(400, code="invalid_request_error")
                if request.param == "openai"
                else gemini_server.error(400, "INVALID_ARGUMENT")
            )
            game = await new_game(ada)
            yield Script(server, vendor.reply, vendor.called, refused, game)


async def support_of(account: Account, chat: str) -> str:
    """How the record of the last reply says that the model was asked."""
    message = (await account.messages(chat))[-1]
    path = f"/messages/{message['id']}/context"
    return str((await account.get(path))["tool_support"])


@pytest.mark.parametrize(("support", "refusals"), [("native", 0), ("structured", 1), ("fenced", 2)])
async def test_a_turn_is_played_in_every_way(
    script: Script, support: ToolSupport, refusals: int
) -> None:
    game = script.game
    script.server.script(
        *[script.refused] * refusals,
        script.says(support, "A fork.", ("advance_time", {"days": 1}), QUESTION),
    )

    events = await game.say()

    assert events[-1].name == "turn.awaiting_choice"
    assert text_of(events).strip() == "A fork."
    script.server.script(script.says(support, "You go left.", FINISH))
    rest = await game.choose(events[0].data["turn_id"], "1.0")
    assert names(rest)[-1] == "turn.completed"
    assert "Left" in json.dumps(script.sent)
    assert text_of(rest).strip() == "You go left."
    assert (await game.state())["day"] == 2
    assert await support_of(game.account, game.chat) == support


@pytest.mark.parametrize("script", ["gemini"], indirect=True)
async def test_gemini_s_signature_outlives_the_wait(script: Script) -> None:
    script.server.script(script.says("native", "A fork.", QUESTION))
    events = await script.game.say()

    await script.game.choose(events[0].data["turn_id"], "1.0")

    asked = script.sent["contents"][-2]["parts"][-1]
    assert asked["functionCall"]["id"] == "call-0"
    assert asked["thoughtSignature"] == "c2lnbmF0dXJl"


@pytest.mark.parametrize(("support", "refusals"), [("structured", 1), ("fenced", 2)])
@pytest.mark.parametrize("thoughts", ["I plan.</think>", "<think>I plan.</think>"])
async def test_thoughts_may_come_before_calls_that_are_written_into_the_text(
    script: Script, support: ToolSupport, refusals: int, thoughts: str
) -> None:
    answer = written(support, "Night falls.", ("advance_time", {"days": 1}), FINISH)
    script.server.script(*[script.refused] * refusals, script.reply(*cut(thoughts + answer)))

    events = await script.game.say()

    assert events[-1].name == "turn.completed"
    message = (await script.game.account.messages(script.game.chat))[-1]
    assert (message["text"].strip(), message["thinking"]) == ("Night falls.", "I plan.")
    assert (await script.game.state())["day"] == 2


@pytest.mark.parametrize("support", ["structured", "fenced"])
async def test_broken_calls_are_answered_and_the_turn_goes_on(
    script: Script, support: ToolSupport
) -> None:
    broken = '{"narration": "A fork.", "calls": [{"tool": "advance_time", "argum'
    if support == "fenced":
        broken = 'A fork.\n```tools\n[{"tool": "advance_time", "argum\n```'
    refusals = [script.refused] * (1 if support == "structured" else 2)
    script.server.script(*refusals, script.reply(*cut(broken)), script.says(support, "On.", FINISH))

    events = await script.game.say()

    assert events[-1].name == "turn.completed"
    assert text_of(events).split() == ["A", "fork.", "On."]
    assert "not JSON" in json.dumps(script.sent)
    assert (await script.game.state())["day"] == 1
