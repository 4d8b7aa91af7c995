"""Dice and downtime: ignored dice, stopped choices, turns without narration, the demo game."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from tests.fakes.game_master import ENGAGE
from tests.fakes.openai_server import OpenAIServer, called, chunk, error, reply, stream
from tests.fakes.scripted_server import Answer, Gate
from tests.integration.turns.following import check_tree, follow
from tests.integration.turns.playing import FINISH, QUESTION, Game, named, names, new_game
from tests.support.server import Account, Event, Running, problem, read_events, text_of
from tests.support.shared import asking_server as server

__all__ = ["server"]

pytestmark = pytest.mark.anyio

BAD = [{"kind": "harm", "what": "a cut hand"}, {"kind": "heat", "amount": 2}]
OUTCOMES: list[dict[str, Any]] = [
    {"tier": "critical", "hint": "it sings"},
    {"tier": "success", "hint": "it opens"},
    {"tier": "partial", "hint": "it groans", "costs": [{"kind": "heat", "amount": 1}]},
    {"tier": "bad", "hint": "the pick snaps", "costs": BAD},
]
SPEND = ("spend_die", {"situation": "The lock.", "outcomes": OUTCOMES})


@pytest.fixture
async def game(ada: Account, vendor: OpenAIServer) -> Game:
    """A Blades campaign with Jake; all its dice are ones."""
    vendor.requests.clear()
    game = await new_game(ada, rules="blades")
    await game.add("entities", kind="pc", name="Jake", attributes={"stress": 0})
    await game.account.patch(game.path, {"attributes": {"dice": [1, 1, 1]}})
    return game


async def wait_for_die(game: Game, vendor: OpenAIServer, *, text: str = "Click.") -> str:
    """Take a turn that asks for the player's die; return its id."""
    vendor.script(called(("engage", ENGAGE)), called(SPEND, text=text))
    events = await game.say("I pick the lock.")
    assert events[-1].name == "turn.awaiting_choice"
    return str(events[0].data["turn_id"])


async def read_world(game: Game) -> tuple[str, list[str], int, list[int]]:
    """Return the mood, Jake's harm, the heat and the remaining dice."""
    state = await game.state()
    (jake,) = (each for each in state["entities"] if each["name"] == "Jake")
    world = state["attributes"]
    mood = world.get("play", {}).get("mood", "scene")
    return mood, jake["attributes"].get("harm", []), world.get("heat", 0), world["dice"]


def at_risk(mood: str) -> tuple[str, list[str], int, list[int]]:
    """Return the world after one bad die."""
    return mood, ["a cut hand"], 2, [1, 1]


BEFORE = ("scene", list[str](), 0, [1, 1, 1])


async def choose_and_stop(game: Game, turn_id: str, *, after_text: bool) -> list[Event]:
    """Choose the die, and stop the turn during the answer."""
    events = list[Event]()
    body = {"option": "1.0"}
    async with game.account.stream("POST", f"/turns/{turn_id}/choice", json=body) as response:
        async for event in read_events(response):
            events.append(event)
            if event.name == ("text.delta" if after_text else "turn.choice_made"):
                await game.stop(turn_id)
    return events


class TestAModelThatIgnoresTheDie:
    @pytest.mark.parametrize(
        "ignoring",
        [
            reply("The lock springs open, and all is well."),
            called(FINISH, text="The lock springs open, and all is well."),
            called(FINISH),
            called(("no_such_tool", {}), text="The lock springs open."),
        ],
        ids=["prose", "finish_turn", "finish_turn alone", "an unknown tool"],
    )
    async def test_is_asked_again_for_the_aftermath(
        self, game: Game, vendor: OpenAIServer, ignoring: Answer
    ) -> None:
        turn_id = await wait_for_die(game, vendor)
        is_unknown = "no_such_tool" in str(ignoring.events)
        again = (reply("It is open."),) if is_unknown else ()
        vendor.script(ignoring, *again, called(FINISH, text="The pick snaps."))
        events = await game.choose(turn_id, "1.0")
        assert events[-1].name == "turn.completed"
        assert "text.reset" in names(events)
        kept = await game.last()
        assert (kept["text"], kept["status"]) == ("The pick snaps.", "complete")
        assert await read_world(game) == at_risk("aftermath")
        guidance = str(vendor.requests[-1].body["messages"])
        assert "THE AFTERMATH (setback)" in guidance
        assert "What happened is fixed: bad, the pick snaps" in guidance
        assert "all is well" not in guidance
        [moved] = named(events, "mood.changed")
        assert (moved["mood"], moved["variant"]) == ("aftermath", "setback")

    async def test_sees_new_numbers_in_the_aftermath(
        self, game: Game, vendor: OpenAIServer
    ) -> None:
        turn_id = await wait_for_die(game, vendor)
        vendor.script(called(("resolve", {"tier": "bad"})), called(FINISH, text="Snap."))
        await game.choose(turn_id, "1.0")
        guidance = str(vendor.requests[-1].body["messages"])
        assert "- Jake: harm a cut hand" in guidance
        assert "Heat: 2/9" in guidance
        echoes = [each["text"] for each in (await game.state())["echoes"]]
        assert echoes == ["the pick snaps (harm: a cut hand, 2 heat)"]

    async def test_ends_an_action_after_two_turns(self, game: Game, vendor: OpenAIServer) -> None:
        vendor.script(called(("engage", ENGAGE)), reply("You try the lock."))
        await game.say()
        assert await read_world(game) == ("action", [], 0, [1, 1, 1])
        vendor.script(reply("You go on trying."))
        assert named(await game.say(), "mood.changed")[0]["mood"] == "scene"
        assert await read_world(game) == BEFORE

    async def test_settles_an_action_left_open(self, game: Game, vendor: OpenAIServer) -> None:
        turn_id = await wait_for_die(game, vendor)
        vendor.script(error(401, message="no"))
        assert (await game.choose(turn_id, "1.0"))[-1].name == "turn.failed"
        vendor.script(reply("All is well."), reply("The pick is in pieces."))
        events = await game.say("And now?")
        assert text_of(events).endswith("The pick is in pieces.")
        assert await read_world(game) == at_risk("aftermath")
        vendor.script(called(FINISH, text="You bind the hand."))
        await game.say("I bind my hand.")
        assert await read_world(game) == at_risk("scene")

    async def test_ends_a_fight_without_rolls(self, ada: Account, vendor: OpenAIServer) -> None:
        game = await new_game(ada, rules="dnd")
        vendor.script(called(("start_combat", {})), called(FINISH, text="They draw."))
        await game.say()
        for expected in (True, False):
            assert (await game.state())["flags"]["combat"]
            vendor.script(called(FINISH, text="They wait."))
            await game.say()
            assert (await game.state())["flags"]["combat"] is expected


class TestAChosenDie:
    @pytest.mark.every_database
    async def test_counts_though_the_narration_is_stopped(
        self, game: Game, vendor: OpenAIServer, server: Running
    ) -> None:
        turn_id = await wait_for_die(game, vendor, text="Click.")
        gate = Gate()
        vendor.script(
            called(("resolve", {"tier": "bad"})),
            stream(chunk(content="The pick snaps, and"), gate, chunk("stop")),
        )
        events = await choose_and_stop(game, turn_id, after_text=True)
        gate.opened.set()
        assert events[-1].data["state"] == "stopped"
        [changed] = named(events, "state.changed")
        [answer] = [
            each for each in await game.account.messages(game.chat) if each["role"] != "user"
        ]
        assert (answer["text"], answer["status"]) == ("The pick snaps, and", "interrupted")
        assert await read_world(game) == at_risk("action")
        assert (await game.state())["attributes"]["play"]["position"] == ENGAGE["position"]
        counting = [each["id"] for each in await game.changes() if each["counts"]]
        assert {each["id"] for each in changed["changes"]} <= set(counting)
        assert await game.choose(turn_id, "1.0") == events
        assert [each["id"] for each in await game.changes() if each["counts"]] == counting

        vendor.requests.clear()
        vendor.script(called(("resolve", {"tier": "bad"})), called(FINISH, text=" you bleed."))
        rest = await game.account.turn(game.chat, **{"continue": True})
        assert rest[-1].name == "turn.completed"
        offered = [each["function"]["name"] for each in vendor.requests[0].body["tools"]]
        assert "resolve" in offered
        assert "spend_die" not in offered
        kept = await game.last()
        assert (kept["id"], kept["text"]) == (answer["id"], "The pick snaps, and you bleed.")
        assert await read_world(game) == at_risk("aftermath")
        await check_tree(server.parts.database, game.chat)

        vendor.script(called(FINISH, text="You leave the lock alone."))
        await game.account.turn(game.chat, regenerate_of=answer["id"])
        assert await read_world(game) == BEFORE
        await game.account.post(f"/messages/{answer['id']}/activate")
        assert await read_world(game) == at_risk("aftermath")

    async def test_counts_without_narration(
        self, game: Game, vendor: OpenAIServer, server: Running
    ) -> None:
        turn_id = await wait_for_die(game, vendor, text="")
        gate = Gate()
        vendor.script(stream(gate, chunk("stop")))
        events = await choose_and_stop(game, turn_id, after_text=False)
        gate.opened.set()
        assert names(events)[-2:] == ["message.saved", "turn.completed"]
        assert await follow(game.client, turn_id, last_id=events[0].id) == events[1:]
        answer = await game.last()
        assert (answer["text"], answer["status"]) == ("", "interrupted")
        assert await read_world(game) == at_risk("action")
        await check_tree(server.parts.database, game.chat)
        vendor.script(reply("All is well."), called(FINISH, text="The pick snaps."))
        await game.account.turn(game.chat, **{"continue": True})
        kept = await game.last()
        assert (kept["id"], kept["text"]) == (answer["id"], "The pick snaps.")
        assert await read_world(game) == at_risk("aftermath")
        await check_tree(server.parts.database, game.chat)

    async def test_counts_if_the_turn_is_stopped(self, ada: Account, vendor: OpenAIServer) -> None:
        game = await new_game(ada)
        vendor.script(called(("advance_time", {"days": 1}), QUESTION))
        turn_id = (await game.say())[0].data["turn_id"]
        vendor.script(called(("advance_time", {"days": 1}), QUESTION))
        assert (await game.choose(turn_id, "1.0"))[-1].name == "turn.awaiting_choice"
        assert (await game.state())["day"] == 2
        await game.stop(turn_id)
        assert (await game.state())["day"] == 2
        assert (await game.last())["status"] == "interrupted"


class TestForgettingToNarrate:
    @pytest.fixture
    async def game(self, ada: Account, vendor: OpenAIServer) -> Game:
        vendor.requests.clear()
        game = await new_game(ada)
        await game.add("entities", kind="npc", name="Marlena")
        return game

    @pytest.mark.parametrize(
        "second",
        [called(FINISH, text="The rain stops."), reply("The rain stops.")],
        ids=["finished again", "only told"],
    )
    async def test_an_end_without_text_is_refused(
        self, game: Game, vendor: OpenAIServer, second: Answer
    ) -> None:
        end = ("finish_turn", {**FINISH[1], "threat": "Steps on the stairs."})
        second = (
            called(end, text="The rain stops.") if "tool_calls" in str(second.events) else second
        )
        vendor.script(called(("advance_time", {"days": 1}), end), second)
        events = await game.say()
        assert events[-1].name == "turn.completed"
        assert text_of(events) == "The rain stops."
        assert "narrate first" in vendor.requests[-1].body["messages"][-1]["content"]
        state = await game.state()
        assert state["day"] == 2
        assert [each["text"] for each in state["echoes"]] == ["Steps on the stairs."]
        assert named(events, "suggestions") == [{"items": ["Wait", "Knock"]}]

    async def test_a_voice_without_text_fails(self, game: Game, vendor: OpenAIServer) -> None:
        vendor.script(
            called(("speak_as_npc", {"npc": "Marlena"})), reply(""), reply("She drawls a greeting.")
        )
        events = await game.say()
        assert events[-1].name == "turn.completed"
        assert text_of(events) == "She drawls a greeting."
        told = json.loads(vendor.requests[-1].body["messages"][-1]["content"])
        assert told["result"] == {"name": "Marlena"}
        assert "narrate first" in told["next"]

    async def test_a_silent_model_is_asked_twice(self, game: Game, vendor: OpenAIServer) -> None:
        vendor.script(called(FINISH), called(FINISH), called(FINISH))
        events = await game.say()
        assert events[-1].name == "turn.failed"
        assert events[-1].data["type"].endswith("model-empty-reply")
        assert len(vendor.requests) == 3
        assert "tools" not in vendor.requests[-1].body


class TestAnAnswerOfOnesOwn:
    async def test_is_sent_to_the_model_once(self, ada: Account, vendor: OpenAIServer) -> None:
        game = await new_game(ada)
        vendor.script(called(QUESTION, text="A fork."))
        events = await game.say()
        turn_id, own = events[0].data["turn_id"], events[-1].data["own"]
        for body in (
            {"option": own},
            {"option": own, "text": " "},
            {"option": "1.0", "text": "Up"},
        ):
            refused = await game.account.ask("POST", f"/turns/{turn_id}/choice", json=body)
            assert refused.status_code == 422
        vendor.script(called(FINISH, text="You climb."))
        rest = await game.choose(turn_id, own, text=" I climb the wall. ")
        assert rest[0].data == {"option": own, "text": "I climb the wall."}
        assert rest[-1].name == "turn.completed"
        told = json.loads(vendor.requests[-1].body["messages"][-1]["content"])
        assert told == {"answered": "I climb the wall."}
        assert await game.choose(turn_id, own, text="I climb the wall.") == rest
        body = {"option": own, "text": "I swim."}
        refused = await game.account.ask("POST", f"/turns/{turn_id}/choice", json=body)
        assert refused.status_code == 409

    async def test_is_not_offered_for_a_die(self, game: Game, vendor: OpenAIServer) -> None:
        turn_id = await wait_for_die(game, vendor)
        assert (await game.turn(turn_id))["waiting"]["own"] == ""


async def test_a_private_turn_changes_nothing(ada: Account, vendor: OpenAIServer) -> None:
    game = await new_game(ada, rules="dnd")
    await game.account.patch(game.path, {"settings": {"hidden_information": True}})
    await game.add("entities", kind="pc", name="Anna", attributes={"hp": 20})
    before = await game.state(), await game.changes()
    check = ("ability_check", {"character": "Anna", "ability": "wisdom", "dc": 10})
    hit = ("damage", {"target": "Anna", "damage": "1d6"})
    vendor.requests.clear()
    vendor.script(called(check, ("roll_dice", {"dice": "2d6+1"}), hit), reply("You see a shape."))
    events = await game.say("I listen at the door.", audience="gm")
    assert events[-1].name == "turn.completed"
    used = [each["name"] for each in named(events, "tool.used")]
    assert used == ["ability_check", "roll_dice"]
    asked, told = (each.body for each in vendor.requests)
    offered = {each["function"]["name"] for each in asked["tools"]}
    assert offered == {"think_as_dm", "speak_as_npc", "ask_player", "ability_check", "roll_dice"}
    assert "APART FROM THE OTHERS" in str(asked["messages"])
    results = [json.loads(each["content"]) for each in told["messages"] if each["role"] == "tool"]
    assert 3 <= results[1]["total"] <= 13
    assert "error" in results[2]
    vendor.script(called(QUESTION))
    events = await game.say("I wait.", audience="gm")
    vendor.script(called(("roll_dice", {"dice": "1d4"}), text="You go left."), reply("It is dark."))
    rest = await game.choose(events[0].data["turn_id"], "1.0")
    assert rest[-1].name == "turn.completed"
    assert (await game.state(), await game.changes()) == before


@pytest.fixture
async def tired_game(ada: Account) -> Game:
    tired_game = await new_game(ada, rules="blades")
    await tired_game.add("entities", kind="pc", name="Silk", attributes={"stress": 8})
    return tired_game


async def begin_downtime(tired_game: Game, status: int = 200, **body: Any) -> Any:
    return await tired_game.account.post(
        f"{tired_game.path}/downtime", {"activity": "recovery", **body}, status
    )


@pytest.mark.every_database
async def test_the_user_begins_and_ends_downtime(tired_game: Game) -> None:
    begun = await begin_downtime(tired_game, target="Silk")
    lost = begun["result"]["die"]
    assert (begun["result"]["character"], begun["result"]["stress"]) == ("Silk", -lost)
    assert {each["actor"] for each in begun["changes"]} == {"user"}
    [silk] = (await tired_game.state())["entities"]
    assert silk["attributes"]["stress"] == 8 - lost
    campaign = await tired_game.account.get(tired_game.path)
    assert campaign["version"] == begun["version"]
    problem(
        await tired_game.account.ask(
            "POST", f"{tired_game.path}/downtime", json={"activity": "project"}
        ),
        409,
        "downtime",
    )
    await tired_game.account.delete(f"{tired_game.path}/downtime")
    problem(await tired_game.account.ask("DELETE", f"{tired_game.path}/downtime"), 409, "downtime")
    [silk] = (await tired_game.state())["entities"]
    assert silk["attributes"]["stress"] == 8 - lost


async def test_invalid_downtime_is_refused(tired_game: Game) -> None:
    path = f"{tired_game.path}/downtime"
    before = await tired_game.changes()
    for body in ({"activity": "sleep"}, {"activity": "project", "target": "No clock"}, {}):
        problem(await tired_game.account.ask("POST", path, json=body), 422, "validation-failed")
    stale = await tired_game.account.ask(
        "POST", path, json={"activity": "recovery"}, headers={"If-Match": '"1"'}
    )
    problem(stale, 412, "revision-mismatch")
    nowhere = f"/campaigns/{uuid4()}/downtime"
    problem(
        await tired_game.account.ask("POST", nowhere, json={"activity": "recovery"}),
        404,
        "campaign-not-found",
    )
    assert await tired_game.changes() == before


async def test_only_some_campaigns_have_downtime(ada: Account, tired_game: Game) -> None:
    plain = await new_game(ada)
    for each in (plain, tired_game):
        if each is tired_game:
            await tired_game.account.patch(tired_game.path, {"settings": {"tools": False}})
        answer = await ada.ask("POST", f"{each.path}/downtime", json={"activity": "recovery"})
        problem(answer, 422, "validation-failed")


async def test_no_downtime_while_a_turn_waits(tired_game: Game, vendor: OpenAIServer) -> None:
    turn_id = await tired_game.wait_for_choice(vendor)
    answer = await tired_game.account.ask(
        "POST", f"{tired_game.path}/downtime", json={"activity": "recovery"}
    )
    assert problem(answer, 409, "turn-waiting")["turn_id"] == turn_id
    answer = await tired_game.account.ask("DELETE", f"{tired_game.path}/downtime")
    assert problem(answer, 409, "turn-waiting")["waiting"]["kind"] == "question"
    await tired_game.account.post(f"/turns/{turn_id}/stop", status=202)
    await begin_downtime(tired_game, target="Silk")


@pytest.mark.every_database
async def test_no_downtime_during_an_action(tired_game: Game) -> None:
    campaign = tired_game.campaign["id"]
    world = {"attributes": {"play": {"mood": "action"}}}
    await tired_game.account.patch(f"/campaigns/{campaign}", world)
    answer = await tired_game.account.ask(
        "POST", f"{tired_game.path}/downtime", json={"activity": "recovery"}
    )
    problem(answer, 409, "downtime")


LINE = "I pick the lock of the counting house."


async def new_demo_game(ada: Account, rules: str) -> Game:
    game = await new_game(ada, rules=rules)
    await ada.patch(f"/chats/{game.chat}/settings", {"model": "demo"})
    return game


async def start_demo(ada: Account) -> tuple[Game, str, list[dict[str, object]]]:
    """Begin a risky action with the demo model; return the game, the turn and the dice."""
    game = await new_demo_game(ada, "blades")
    events = await game.say(LINE)
    assert events[-1].name == "turn.awaiting_choice"
    assert events[-1].data["kind"] == "die"
    return game, str(events[0].data["turn_id"]), events[-1].data["options"]


async def test_a_lock_is_picked_with_a_die_a_cost_and_a_clock(ada: Account) -> None:
    game, turn_id, options = await start_demo(ada)
    worst = options[-1]
    events = await game.choose(turn_id, str(worst["id"]))
    moods = [each["mood"] for each in named(events, "mood.changed")]
    assert moods[-1] == "aftermath"
    state = await game.state()
    (clock,) = state["clocks"]
    assert clock["filled"] == 1
    (player,) = state["entities"]
    costs = {"critical": 0, "success": 0, "partial": 1, "bad": 2}
    tier = str(worst["detail"]).partition(":")[0]
    assert player["attributes"].get("stress", 0) == costs[tier]
    assert named(events, "suggestions")
    changed = named(events, "state.changed")[0]["changes"]
    assert {each["target"]["kind"] for each in changed} >= {"world", "entity", "clock"}


async def test_swiping_the_reply_undoes_it(ada: Account) -> None:
    game, turn_id, options = await start_demo(ada)
    await game.choose(turn_id, str(options[0]["id"]))
    reply_id = (await game.turn(turn_id))["reply_id"]
    assert (await game.state())["entities"]
    again = await ada.turn(game.chat, regenerate_of=reply_id)
    assert again[-1].name == "turn.awaiting_choice"
    state = await game.state()
    assert (state["clocks"], state["entities"]) == ([], [])
    await ada.post(f"/turns/{again[0].data['turn_id']}/stop", status=202)
    # The empty reply was deleted, and the previous one is active again.
    assert len((await game.state())["clocks"]) == 1


async def test_a_safe_action_needs_no_die(ada: Account) -> None:
    game, turn_id, options = await start_demo(ada)
    await game.choose(turn_id, str(options[0]["id"]))
    events = await game.say("I look around.")
    assert [each["mood"] for each in named(events, "mood.changed")] == ["scene"]
    assert events[-1].name == "turn.completed"
    state = await game.state()
    assert state["attributes"]["play"]["mood"] == "scene"


async def test_two_risks_in_a_row_are_both_resolved(ada: Account) -> None:
    game, turn_id, options = await start_demo(ada)
    first = await game.choose(turn_id, str(options[0]["id"]))
    # With the same outcome if the dice allow it.
    events = await game.say("I climb the stairs.")
    assert [each["mood"] for each in named(events, "mood.changed")] == ["scene", "action"]
    again = events[-1].data["options"]
    same = [each for each in again if each["detail"] == options[0]["detail"]]
    choice = str((same or again)[0]["id"])
    events = await game.choose(str(events[0].data["turn_id"]), choice)
    assert [each["mood"] for each in named(events, "mood.changed")][-1] == "aftermath"
    assert text_of(first).startswith("You try, and ")
    assert text_of(events).startswith("You try, and ")
    (clock,) = (await game.state())["clocks"]
    assert clock["filled"] == 2


async def test_a_game_without_moods_has_suggestions(ada: Account) -> None:
    game = await new_demo_game(ada, "freeform")
    events = await game.say(LINE)
    assert events[-1].name == "turn.completed"
    assert len(named(events, "suggestions")[0]["items"]) == 3
