"""A client plays chats whose members come and go, which it does not know of."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.openai_api.sequences import Player
from tests.support.clients import SillyTavernClient, SillyTavernSettings
from tests.support.server import ok

pytestmark = pytest.mark.anyio


async def add_character(player: Player, name: str) -> str:
    made = await player.account.new_character(name=name, first_mes=f"{name} waits.")
    return str(made["id"])


async def set_presence(
    player: Player, character: str, presence: str, **more: Any
) -> dict[str, Any]:
    """Change a member's presence in the page. Returns the last message."""
    path = f"/chats/{await player.find_chat()}/members/{character}"
    ok(await player.account.ask("PATCH", path, json={"presence": presence, **more}))
    return (await player.read_path())[-1]


async def check(player: Player, kind: str, reason: str) -> None:
    """Assert the decision, and that the client has the lines of the one chat."""
    shown = [(role, text) for role, text in await player.show() if role != "system"]
    assert (await player.decide(), shown) == ((kind, reason), player.client.lines)
    await player.check_stored()


async def list_places(player: Player) -> list[str]:
    """Return the messages of the active path: a presence, or the role."""
    return [each["presence"] or each["role"] for each in await player.read_path()]


async def test_a_client_goes_on_below_changes_of_presence(player: Player) -> None:
    client, bor = player.client, await add_character(player, "Bor")
    await player.play(2)
    before = await player.read_path()
    await set_presence(player, bor, "present", briefing="The bridge is down.")
    last = await set_presence(player, bor, "muted")
    await player.ask(client.say("Who is there?"), "Only me.")
    await check(player, "turn", "new_line")
    path = await player.read_path()
    assert await list_places(player) == [
        *(each["role"] for each in before),
        *("present", "system", "muted", "user", "assistant"),
    ]
    assert path[8]["parent_id"] == last["id"]
    assert not any(text in player.prompt_text for text in ("joins", "bridge", "listens"))
    await player.ask(client.swipe(), "No one but me.")
    await check(player, "swipe", "reply_missing")
    assert await player.list_siblings(9) == ["No one but me.", "Only me."]
    client.edit(3, "I ask for the price of a sack of flour.")
    await player.ask(client.say("What is it?"))
    await check(player, "turn", "new_line")
    assert (await list_places(player))[5:8] == ["present", "system", "muted"]
    shown = [each for each in await player.read_path() if each["presence"]]
    assert all(each["hidden"] for each in shown)


async def test_a_client_answers_and_continues_above_changes_of_presence(player: Player) -> None:
    client, bor = player.client, await add_character(player, "Bor")
    await player.play(1)
    await player.ask(client.say("May I stay?"), "For one night.")
    await set_presence(player, bor, "muted")
    await player.ask(client.proceed(), " Or for two.")
    await check(player, "continue", "continue_nudge")
    assert (await list_places(player))[-2:] == ["assistant", "muted"]
    # The reply is deleted in the page, and Bor is muted before the line is answered again.
    reply = (await player.read_path())[-2]
    await player.account.delete(f"/messages/{reply['id']}", status=200)
    last = await set_presence(player, bor, "muted")
    client.chat.pop()
    await player.ask(client.send_nothing(), "As long as you like.")
    await check(player, "turn", "answer_missing")
    assert (await player.read_path())[-1]["parent_id"] == last["id"]
    await player.ask(client.swipe(), "Only in the stable.")
    await check(player, "swipe", "reply_missing")
    assert (await player.read_path())[-2]["id"] == last["id"]


async def test_a_branch_of_a_client_keeps_the_change_before_it(player: Player) -> None:
    client, bor = player.client, await add_character(player, "Bor")
    await player.play(2)
    await set_presence(player, bor, "muted")
    await player.ask(client.say("Who is there?"))
    await player.ask(client.say("And who else?"))
    client.go_back(5)
    await player.ask(client.say("I leave by the back door."))
    await check(player, "turn", "new_line")
    assert (await list_places(player))[-3:] == ["muted", "user", "assistant"]
    client.go_back(3)
    await player.ask(client.say("I stay at the front door."))
    await check(player, "turn", "new_line")
    assert "muted" not in await list_places(player)


async def test_a_client_that_asks_someone_absent_is_told_so(player: Player) -> None:
    settings = SillyTavernSettings(members=("Marlena", "Bor"))
    seat, bor = player.use(SillyTavernClient(settings)), await add_character(player, "Bor")
    await seat.ask(seat.client.say("Is anyone here?", speaker="Marlena"))
    await set_presence(player, bor, "absent")
    before = await player.read_path()
    response = await seat.send(seat.client.say("Bor, are you there?", speaker="Bor"))
    assert (response.status_code, "Bor is absent" in response.text) == (409, True)
    said = [(each["text"], each["presence"]) for each in await player.read_path()]
    assert said[: len(before)] == [(each["text"], each["presence"]) for each in before]


async def test_a_chat_that_begins_when_someone_joins_is_recognised(player: Player) -> None:
    chat = str((await player.account.new_chat())["id"])
    marlena = (await player.account.get("/characters"))["items"][0]["id"]
    path = f"/chats/{chat}/members/{marlena}"
    ok(await player.account.ask("PATCH", path, json={"presence": "present"}))
    player.script("Welcome to the mill.")
    await player.account.turn(chat)
    assert await list_places(player) == ["present", "assistant"]
    said = player.client.say("Good day.")
    await player.ask(said, "Good evening.", X_Talekeeper_Chat=chat)
    await check(player, "turn", "new_line")
    assert await list_places(player) == ["present", "assistant", "user", "assistant"]
    await player.ask(player.client.say("How late is it?"))
    await check(player, "turn", "new_line")


async def test_lines_of_a_client_reach_only_those_who_heard_them(player: Player) -> None:
    settings = SillyTavernSettings(members=("Marlena", "Bor"))
    seat, bor = player.use(SillyTavernClient(settings)), await add_character(player, "Bor")
    await seat.ask(seat.client.say("Good evening to both.", speaker="Marlena"))
    await set_presence(player, bor, "absent")
    await seat.ask(seat.client.say("The key is in the well.", speaker="Marlena"))
    await set_presence(player, bor, "present")
    # The client sends all of its lines, whoever speaks.
    for speaker, knows in (("Bor", False), ("Marlena", True)):
        await seat.ask(seat.client.say(f"{speaker}, where is the key?", speaker=speaker))
        assert "Good evening to both." in player.prompt_text
        assert ("in the well" in player.prompt_text) == knows
