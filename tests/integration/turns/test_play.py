"""Played turns: tools within a reply, their changes, and the events about them."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.game_master import ENGAGE, OUTCOMES
from tests.fakes.openai_server import OpenAIServer, called, chunk, error, reply, stream, tool_call
from tests.fakes.scripted_server import Break, Gate, Silence
from tests.integration.turns.following import check_tree, follow, take_words, turn_under_way
from tests.integration.turns.playing import FINISH, QUESTION, Game, named, names, new_game
from tests.support.server import Account, Running, problem, text_of
from tests.support.shared import asking_server as server

__all__ = ["server"]

pytestmark = pytest.mark.anyio
CLOCK = {"clock": "The Watch"}


@pytest.fixture
async def game(ada: Account, vendor: OpenAIServer) -> Game:
    vendor.requests.clear()
    return await new_game(ada)


async def test_tools_change_the_campaign_with_the_reply(game: Game, vendor: OpenAIServer) -> None:
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


async def test_arriving_players_see_who_is_present(ada: Account, vendor: OpenAIServer) -> None:
    vendor.requests.clear()
    game = await new_game(ada, rules="dnd")
    # The compression of a closed scene would be another request.
    await ada.patch(game.path, {"settings": {"summaries": False}})
    shop = await game.add("entities", kind="location", name="The Salty Sigil")
    hills = await game.add(
        "entities", kind="location", name="Sunfall Hills", description="Wind and thistles."
    )
    await game.add("entities", kind="pc", name="Jake", location_id=shop["id"])
    await game.add(
        "entities", kind="npc", name="Marlena", wants="her sister", location_id=shop["id"]
    )
    holt = await game.add(
        "entities", kind="npc", name="Holt", wants="a name", voice=["Clipped"],
        location_id=hills["id"], attributes={"hp": 9, "hp_max": 9},
    )  # fmt: skip
    await game.add("facts", text="He lost his badge.", about_id=holt["id"])
    await game.add("facts", text="He takes bribes.", about_id=holt["id"], audience="gm")
    await game.add("clocks", name="The Watch")
    vendor.script(
        called(
            ("damage", {"target": "Holt", "damage": "1d4"}), ("set_scene", {"location": "hills"})
        ),
        called(
            ("set_condition", {"target": "Holt", "condition": "prone"}),
            ("start_combat", {"because": "Holt draws."}),
        ),
        called(
            ("finish_turn", {"deltas": {"flags": [{"flag": "alarm"}], "clocks": [CLOCK]}}),
            text="Steel.",
        ),
    )
    await game.say("I go to Sunfall Hills.")
    first, second, third = (request.body["messages"] for request in vendor.requests)
    before = str(first)
    assert "Marlena" in before
    assert "Clipped" not in before
    refused, answer = (each["content"] for each in second if each["role"] == "tool")
    assert "not here" in refused
    for text in (
        "**Sunfall Hills**: Wind and thistles.", "**Holt** [active]", "Clipped", "Wants: a name",
        "Holt: He lost his badge.", "(secret: game master only) Holt: He takes bribes.",
    ):  # fmt: skip
        assert answer.count(text) == 1
    assert "Marlena" not in answer
    guided = next(str(each["content"]) for each in second if "EXPLORING" in str(each["content"]))
    assert "The players are now at: Sunfall Hills" in guided
    assert "- Holt: a name" in guided
    # Calls before the fight are dropped, so the guidance names the place.
    fight = next(str(each["content"]) for each in third if "A FIGHT" in str(each["content"]))
    assert "The players are now at: Sunfall Hills" in fight
    assert "- Holt: a name" in fight
    state = await game.state()
    assert state["flags"] == {"combat": True, "alarm": True}
    assert state["clocks"][0]["filled"] == 1
    by_name = {each["name"]: each for each in state["entities"]}
    assert by_name["Holt"]["attributes"]["conditions"] == ["prone"]
    assert by_name["Jake"]["location_id"] == hills["id"]
    assert (state["scene"]["location_id"], state["scene"]["beats"]) == (hills["id"], 0)


async def test_the_record_names_the_tools_of_a_reply(game: Game, vendor: OpenAIServer) -> None:
    vendor.script(called(("advance_time", {"days": 2})), called(FINISH, text="It rains."))
    await game.say("I rest.")
    answer = await game.last()
    context = await game.account.get(f"/messages/{answer['id']}/context")
    assert context["tools"] == ["advance_time", "finish_turn"]
    assert context["tool_support"] == "native"
    assert [each["kind"] for each in context["items"]][-3:] == ["mood", "state", "user_line"]
    again = vendor.requests[-1].body["messages"][:-2]
    assert [each["text"] for each in context["prompt"]] == [each["content"] for each in again]


async def test_continuing_and_impersonating_have_no_tools(game: Game, vendor: OpenAIServer) -> None:
    vendor.script(called(FINISH, text="It rains."))
    await game.say()
    for body in ({"continue": True}, {"impersonate": True}):
        vendor.script(reply("And so on."))
        assert (await game.account.turn(game.chat, **body))[-1].name == "turn.completed"
        assert not vendor.requests[-1].body.get("tools")


async def test_a_swipe_undoes_the_changes_of_a_reply(game: Game, vendor: OpenAIServer) -> None:
    vendor.script(called(("advance_time", {"days": 2}), FINISH, text="Days pass."))
    await game.say()
    first = (await game.last())["id"]
    vendor.script(called(("advance_time", {"days": 5}), FINISH, text="A week passes."))
    [changed] = named(await game.account.turn(game.chat, regenerate_of=first), "state.changed")
    assert changed["changes"]
    assert (await game.state())["day"] == 6
    await game.account.post(f"/messages/{first}/activate")
    assert (await game.state())["day"] == 3
    await game.account.delete(f"/messages/{first}", 200)
    assert (await game.state())["day"] == 6


async def test_text_after_the_end_is_dropped(game: Game, vendor: OpenAIServer) -> None:
    vendor.hung_up.clear()
    begun = tool_call("finish_turn", "{}", call_id="c", index=0)
    vendor.script(
        stream(
            chunk(role="assistant", content="The end."),
            chunk(tool_calls=[begun]),
            chunk("tool_calls"),
            chunk(content=" And then the world ended."),
            Silence(),
        )
    )
    events = await game.say()
    assert events[-1].name == "turn.completed"
    assert text_of(events) == "The end."
    await asyncio.wait_for(vendor.hung_up.wait(), 5)
    assert (await game.last())["text"] == "The end."


async def test_a_turn_has_at_most_twelve_calls(game: Game, vendor: OpenAIServer) -> None:
    vendor.script(
        called(*[("advance_time", {"days": 1})] * 100, text="Days pass."), reply("You are older.")
    )
    events = await game.say()
    assert events[-1].name == "turn.completed"
    assert len(named(events, "tool.used")) == 12
    assert (await game.state())["day"] == 13
    assert text_of(events) == "Days pass.\n\nYou are older."
    assert [bool(each.body.get("tools")) for each in vendor.requests] == [True, False]


@pytest.mark.parametrize("broken", ["error", "break"])
async def test_a_failed_model_changes_nothing(
    game: Game, vendor: OpenAIServer, broken: str
) -> None:
    changes = await game.changes()
    vendor.script(
        called(("advance_time", {"days": 2}), text="You sleep."),
        error(401, message="no") if broken == "error" else stream(chunk(content="And"), Break()),
    )
    events = await game.say()
    assert events[-1].name == "turn.failed"
    assert "state.changed" not in names(events)
    assert ((await game.state())["day"], await game.changes()) == (1, changes)
    kept = await game.last()
    assert (kept["status"], kept["text"]) == ("failed", text_of(events))


async def test_stopping_the_model_changes_nothing(game: Game, vendor: OpenAIServer) -> None:
    gate = Gate()
    vendor.script(
        called(("advance_time", {"days": 2}), text="You sleep."),
        stream(chunk(content="And dream"), gate, chunk("stop")),
    )
    async with turn_under_way(game.account, game.chat, text="I rest.") as (turn_id, events):
        heard = await take_words(events, 4)
        await game.stop(turn_id)
        heard += [event async for event in events]
    assert heard[-1].data["state"] == "stopped"
    assert (await game.state())["day"] == 1
    kept = await game.last()
    assert (kept["status"], kept["text"]) == ("interrupted", "You sleep.\n\nAnd dream")
    gate.opened.set()


class TestMoods:
    @pytest.fixture
    async def game(self, ada: Account, vendor: OpenAIServer) -> Game:
        vendor.requests.clear()
        game = await new_game(ada, rules="blades")
        await game.add("entities", kind="pc", name="Jake")
        await game.add("clocks", name="Alarm", segments=4)
        return game

    async def test_a_break_restarts_the_reply_in_the_other_mood(
        self, game: Game, vendor: OpenAIServer, server: Running
    ) -> None:
        vendor.script(
            called(("engage", ENGAGE), text="You try the lock."),
            called(("spend_die", {"situation": "The lock.", "outcomes": OUTCOMES}), text="Click."),
        )
        events = await game.say("I pick the lock of the counting house.")
        turn_id = events[0].data["turn_id"]
        # Late followers do not receive dropped text.
        assert [name for name in names(events)[2:] if name != "text.delta"] == [
            "text.reset", "tool.used", "mood.changed", "tool.used", "turn.awaiting_choice"
        ]  # fmt: skip
        [mood] = named(events, "mood.changed")
        assert (mood["mood"], mood["position"], mood["effect"]) == ("action", "risky", "standard")
        told = await follow(game.client, turn_id)
        assert (text_of(told), told[-1]) == ("Click.", events[-1])
        assert (await game.last())["text"] == "Click."
        one, other = (each.body for each in vendor.requests)
        assert "Position: risky" in str(other["messages"])
        assert "Position: risky" not in str(one["messages"])
        assert "You try the lock." not in str(other["messages"])
        assert one["messages"][0] == other["messages"][0]
        await check_tree(server.parts.database, game.chat)

        worst = events[-1].data["options"][-1]
        tier = worst["detail"].partition(":")[0]
        vendor.script(
            called(("resolve", {"tier": tier}), text="It"), called(FINISH, text="The deed is done.")
        )
        rest = await game.choose(turn_id, worst["id"])
        assert rest[-1].name == "turn.completed"
        answer = await game.last()
        assert answer["text"] == "The deed is done."
        told = await follow(game.client, turn_id, last_id=events[-1].id)
        assert names(told)[:2] == ["turn.choice_made", "text.reset"]
        assert (text_of(told), told[-1]) == ("The deed is done.", rest[-1])
        [changed] = named(rest, "state.changed")
        assert {"world"} <= {each["target"]["kind"] for each in changed["changes"]}
        await game.account.delete(f"/messages/{answer['id']}", 200)
        assert not any(each["counts"] for each in await game.changes() if each["actor"] == "tool")

    async def test_three_breaks_end_the_moods(self, game: Game, vendor: OpenAIServer) -> None:
        vendor.script(
            called(("engage", ENGAGE), text="One."),
            called(("resolve", {"tier": "withdrawn"}), text="Two."),
            called(("engage", ENGAGE), text="Three."),
            called(("resolve", {"tier": "withdrawn"}), text="Four."),
            called(FINISH),
        )
        events = await game.say()
        offered = [
            [each["function"]["name"] for each in request.body["tools"]]
            for request in vendor.requests
        ]
        assert [len(each) > 1 for each in offered] == [True, True, True, False, False]
        assert offered[-1] == ["finish_turn"]
        assert len(named(events, "text.reset")) == 3
        assert events[-1].name == "turn.completed"
        assert (await game.last())["text"] == "Four."


async def test_a_question_waits_for_a_choice(
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
    refused = await game.account.ask("POST", f"/chats/{game.chat}/turns", json={"text": "Well?"})
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
