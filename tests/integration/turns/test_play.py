"""Played turns: tools within a reply, what they change, and what is told of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from backend.generation.registry import ModelRegistry
from tests.fakes.openai_server import MODEL_ID, OpenAIServer, called
from tests.integration.turns.following import check_tree, follow
from tests.integration.turns.playing import FINISH, QUESTION, Game, named, names, new_game
from tests.support.server import Account, Running, problem, running, text_of

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def vendor() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as vendor:
        yield vendor


@pytest.fixture(scope="module")
async def server(
    shared_url: str, vendor: OpenAIServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    registry = ModelRegistry(demo_tokens_per_second=0, openai=vendor.config(), default=MODEL_ID)
    async with running(shared_url, tmp_path_factory.mktemp("data"), registry=registry) as server:
        yield server


@pytest.fixture
async def game(ada: Account, vendor: OpenAIServer) -> Game:
    vendor.requests.clear()
    return await new_game(ada)


async def test_tools_within_a_reply_change_the_campaign_with_it(
    game: Game, vendor: OpenAIServer
) -> None:
    vendor.script(
        called(("advance_time", {"days": 2}), text="You sleep."),
        called(FINISH, text="The rain has stopped."),
    )
    events = await game.say("I rest.")
    assert names(events) == [
        "turn.started",
        "context.ready",
        "text.delta",
        "tool.used",
        "text.delta",
        "tool.used",
        "state.changed",
        "suggestions",
        "usage",
        "message.saved",
        "turn.completed",
    ]
    assert text_of(events) == "You sleep.\n\nThe rain has stopped."
    assert named(events, "suggestions") == [{"items": ["Wait", "Knock"]}]
    [changed] = named(events, "state.changed")
    assert [each["target"]["kind"] for each in changed["changes"]] == ["world"]
    assert changed["left_out"] == 0
    assert (await game.state())["day"] == 3
    ids = [event.id for event in events]
    assert ids == sorted(set(ids))
    assert await follow(game.client, events[0].data["turn_id"]) == events
    [usage] = named(events, "usage")
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (24, 4)
    tools = [each["function"]["name"] for each in vendor.requests[0].body["tools"]]
    assert "finish_turn" in tools


async def test_a_question_suspends_the_turn_and_a_choice_goes_on_with_it(
    game: Game, vendor: OpenAIServer, server: Running
) -> None:
    vendor.script(called(("advance_time", {"days": 1}), QUESTION, text="A fork in the road."))
    events = await game.say()
    turn_id = events[0].data["turn_id"]
    assert events[-1].name == "turn.awaiting_choice"
    assert [each["id"] for each in events[-1].data["options"]] == ["1.0", "1.1"]
    assert len(server.parts.turns.runs) == 0
    waiting = await game.turn(turn_id)
    assert (waiting["state"], waiting["waiting"]) == ("waiting", events[-1].data)
    assert (await game.state())["day"] == 1
    assert await follow(game.client, turn_id) == events
    refused = await game.client.post(f"/api/v1/chats/{game.chat}/turns", json={"text": "Well?"})
    told = problem(refused, 409, "turn-waiting")
    assert (told["turn_id"], told["waiting"]) == (turn_id, events[-1].data)

    vendor.script(called(FINISH, text="You go left."))
    rest = await game.choose(turn_id, "1.0")
    assert names(rest)[:2] == ["turn.choice_made", "text.delta"]
    assert rest[-1].name == "turn.completed"
    last = vendor.requests[-1].body["messages"]
    assert [each["role"] for each in last[-3:]] == ["assistant", "tool", "tool"]
    assert "Left" in last[-1]["content"]
    replies = await game.account.messages(game.chat)
    assert replies[-1]["text"] == "A fork in the road.\n\nYou go left."
    assert (await game.state())["day"] == 2
    assert await follow(game.client, turn_id) == [*events, *rest]
    assert await game.choose(turn_id, "1.0") == rest
    assert (await game.refused(turn_id, "1.1", 409, "choice-made"))["option"] == "1.0"
    await check_tree(server.parts.database, game.chat)
