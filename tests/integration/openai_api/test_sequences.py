"""Requests of a client one after another, and the chat that its user sees after each."""

from __future__ import annotations

from copy import deepcopy

import pytest

from tests.integration.openai_api.sequences import GREETING, Player, read_reply
from tests.support.clients import SillyTavernClient, SillyTavernSettings
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


async def test_lines_and_swipes_are_one_chat(player: Player) -> None:
    client = player.client
    await player.ask(client.say("I knock."), "Come in.")
    await player.check("turn", "new_chat")
    assert player.prompt[-1] == ("user", "I knock.")
    await player.ask(client.say("May I stay?"), "For one night.")
    await player.check("turn", "new_line")
    await player.ask(client.swipe(), "As long as you like.")
    await player.check("swipe", "reply_missing")
    assert await player.list_siblings(4) == ["As long as you like.", "For one night."]
    assert "For one night." not in player.prompt_text
    await player.ask(client.say("Thank you."))
    await player.check("turn", "new_line")
    assert ("assistant", "As long as you like.") in player.prompt


async def test_an_edit_of_the_last_reply_or_of_an_earlier_line_is_made_in_place(
    player: Player,
) -> None:
    client = player.client
    await player.play(3)
    before = await player.read_path()
    client.edit(6, f"{client.chat[6].text} She looks at the floor.")
    await player.ask(client.say("What is it?"))
    await player.check("turn", "new_line")
    client.edit(3, "I ask for the price of a sack of flour.")
    await player.ask(client.say("Nothing?"))
    await player.check("turn", "new_line")
    after = await player.read_path()
    assert [each["id"] for each in after[:7]] == [each["id"] for each in before]
    assert {each["sibling_count"] for each in after} == {1}
    assert ("user", "I ask for the price of a sack of flour.") in player.prompt
    client.edit(-2, "Nothing at all?")
    await player.ask(client.swipe())
    await player.check("turn", "new_line")
    assert await player.list_siblings(9) == ["Nothing at all?", "Nothing?"]
    old = client.chat[-1].text
    client.edit(-1, "Another text.")
    await player.ask(client.say("I have rewritten your reply."))
    await player.check("turn", "new_line")
    assert await player.list_siblings(10) == sorted(["Another text.", old])


async def test_a_deletion_in_the_middle_hides_messages_until_they_are_sent_again(
    player: Player,
) -> None:
    client = player.client
    await player.play(4)
    deleted = [client.chat[3].text, client.chat[4].text]
    client.hide(3)
    client.hide(4)
    await player.ask(client.say("And now?"))
    assert await player.decide() == ("turn", "new_line")
    assert await player.show_hidden() == deleted
    assert not any(text in player.prompt_text for text in deleted)
    client.hide(4, is_hidden=False)
    await player.ask(client.say("And then?"))
    assert await player.show_hidden() == deleted[:1]
    client.delete(3)
    await player.ask(client.swipe())
    await player.check("swipe", "reply_missing")
    assert await player.show_hidden() == deleted[:1]


async def test_a_deletion_of_the_end_and_another_line_are_a_branch(player: Player) -> None:
    client = player.client
    await player.play(3)
    first = deepcopy(client.chat)
    client.go_back(3)
    await player.ask(client.say("I leave by the back door."))
    await player.check("turn", "new_line")
    assert len(await player.list_siblings(3)) == 2
    client.go_back(3)
    old = client.chat[-1].text
    await player.ask(client.proceed(), " She bars the door.")
    # Messages follow the old reply on other branches, so that it keeps its text.
    await player.check("swipe", "continue_nudge")
    assert await player.list_siblings(2) == [old, f"{old} She bars the door."]
    client.chat = first
    await player.ask(client.say("I go on as before."))
    await player.check("turn", "new_line")


async def test_an_older_swipe_that_the_client_shows_again_is_active_again(player: Player) -> None:
    client = player.client
    await player.play(1)
    await player.ask(client.say("May I stay?"), "For one night.")
    await player.ask(client.swipe(), "As long as you like.")
    await player.ask(client.swipe(), "Only in the stable.")
    client.edit(-1, "For one night.")
    await player.ask(client.say("One night is enough."))
    await player.check("turn", "new_line")
    assert len(await player.list_siblings(4)) == 3
    assert "stable" not in player.prompt_text


async def test_a_client_goes_back_to_an_older_line_and_swipes(player: Player) -> None:
    client = player.client
    await player.play(3)
    old = client.chat[4].text
    client.go_back(5)
    new = await player.ask(client.swipe())
    await player.check("swipe", "reply_missing")
    assert await player.list_siblings(4) == sorted([old, new])


async def test_a_trimmed_reply_is_the_new_text_of_the_message(player: Player) -> None:
    player.client = client = SillyTavernClient(SillyTavernSettings(trims=True))
    await player.ask(client.say("I knock."), "She opens the door. Behind her, the fire is")
    await player.ask(client.say("I enter."), "It is warm inside. Someone is")
    await player.check(
        "turn", "new_line", shown=[*client.lines[:4], client_reply("It is warm inside. Someone is")]
    )
    assert "the fire is" not in player.prompt_text
    await player.ask(client.swipe(), "The room is empty.")
    await player.check("swipe", "reply_missing")


def client_reply(text: str) -> tuple[str, str]:
    return ("assistant", text)


async def test_a_reply_that_a_script_of_the_client_changes_is_the_same_reply(
    player: Player,
) -> None:
    settings = SillyTavernSettings(script=(r"\s*<mood>.*?</mood>", ""))
    player.client = client = SillyTavernClient(settings)
    reply = "She opens the door and looks at you for a long time. <mood>wary and tired</mood>"
    for line in ("I knock.", "I enter.", "I sit down."):
        await player.ask(client.say(line), f"{line} {reply}")
    assert await player.decide() == ("turn", "new_line")
    assert [role for role, _ in await player.show()] == [role for role, _ in client.lines]
    assert (await player.show())[:-1] == client.lines[:-1]
    assert "<mood>" not in player.prompt_text
    await player.check_stored()


async def test_a_reply_that_was_stopped_keeps_its_text(player: Player) -> None:
    client = player.client
    await player.play(1)
    spoken = await player.stop(client.say("Tell me about the mill."), "It was built by")
    client.receive(spoken)
    assert client.lines[-1] == client_reply("It was built by")
    await player.ask(client.say("Go on."))
    await player.check("turn", "new_line")
    spoken = await player.stop(client.swipe(), "By my grandfather,")
    client.receive(spoken)
    await player.ask(client.proceed(), "long ago.")
    await player.check("continue", "continue_nudge")
    assert client.lines[-1] == client_reply("By my grandfather, long ago.")


async def test_a_line_whose_reply_never_began_gets_one_later(player: Player) -> None:
    client = player.client
    await player.play(1)
    response = await player.fail(client.say("Who owns the mill?"))
    assert response.status_code >= 400
    await player.ask(client.send_nothing())
    await player.check("turn", "answer_missing")


async def test_a_retry_joins_its_turn_and_is_no_swipe(player: Player) -> None:
    client = player.client
    await player.play(1)
    sent = client.say("May I stay?")
    first = await player.ask(sent, "For one night.")
    response = await player.send(sent, "Never.", x_stainless_retry_count="1")
    assert response.json()["choices"][0]["message"]["content"] == first
    await player.check("repeat", "retry")
    assert await player.list_siblings(4) == ["For one night."]


async def test_a_retry_whose_first_attempt_never_arrived_is_a_turn(player: Player) -> None:
    client = player.client
    await player.play(1)
    await player.ask(client.say("May I stay?"), x_stainless_retry_count="1")
    await player.check("turn", "new_line")


async def test_a_retry_of_a_broken_stream_brings_the_whole_reply(player: Player) -> None:
    client = player.client
    await player.play(1)
    sent = client.say("May I stay?")
    await player.stop(sent, "For one")
    await player.ask(sent, " night only.", x_stainless_retry_count="1", is_stream=True)
    assert client.lines[-1] == client_reply("For one night only.")
    await player.check("repeat", "retry")


async def test_a_second_retry_brings_the_whole_reply_too(player: Player) -> None:
    client = player.client
    await player.play(1)
    sent = client.say("May I stay?")
    await player.stop(sent, "For one")
    await player.stop(sent, "For one night", " night", x_stainless_retry_count="1")
    await player.ask(sent, " only.", x_stainless_retry_count="2")
    assert client.lines[-1] == client_reply("For one night only.")
    await player.check("repeat", "retry")
    response = await player.send(sent, "Never.", x_stainless_retry_count="3")
    assert read_reply(response) == "For one night only."
    await player.check("repeat", "retry")


@pytest.mark.parametrize("keeps_greeting", [False, True])
async def test_a_window_of_the_client_changes_nothing_before_it(
    player: Player, keeps_greeting: bool
) -> None:
    client = player.client
    old = "The locket of my sister is buried beneath the third pear tree."
    for number in range(1, 80):
        text = f"Message {number}: the river carries leaf {number} down to the mill."
        if number % 2:
            client.say(old if number == 15 else text)
        else:
            client.receive(text)
    await player.ask(client.say("A first line."))
    await player.check("turn", "new_chat")
    client.settings.window = 30
    client.settings.keeps_greeting = keeps_greeting
    count = len(client.chat)
    if keeps_greeting:
        await until(player.has_indexed)
    await player.ask(client.say("Where is the locket of my sister?"))
    if keeps_greeting:
        assert old in player.prompt_text
        assert player.prompt_text.count(GREETING) == 1
    await player.check("turn", "new_line")
    await player.ask(client.swipe())
    await player.check("swipe", "reply_missing")
    client.edit(count - 10, "An edited message.")
    await player.ask(client.say("I edited."))
    await player.check("turn", "new_line")
    client.delete(count - 12)
    await player.ask(client.say("I deleted."))
    await player.check("turn", "new_line")
    assert len(await player.show_hidden()) == 1
    client.go_back(count - 4)
    await player.ask(client.say("I went back."))
    await player.check("turn", "new_line")
    assert client.lines[0] == client_reply(GREETING)


async def test_a_line_that_is_said_again_and_again_is_found_at_its_place(player: Player) -> None:
    client = player.client
    for number in range(5):
        await player.ask(client.say("Go on."), f"The story goes on, part {number}.")
        await player.check("turn", "new_line" if number else "new_chat")
    await player.ask(client.swipe(), "The story ends.")
    await player.check("swipe", "reply_missing")
    client.delete(3)
    client.delete(3)
    await player.ask(client.say("Go on."), "It does not.")
    await player.check("turn", "new_line")
    # The line is already stored after this reply.
    client.go_back(5)
    await player.ask(client.say("Go on."), "It does.")
    await player.check("swipe", "reply_missing")
    client.go_back(4)
    await player.ask(client.send_nothing(), "It does indeed.")
    await player.check("swipe", "reply_missing")
    client.edit(1, "Stop.")
    client.edit(2, "I never stop, she says.")
    await player.ask(client.say("Go on."), "No.")
    await player.check("turn", "new_line")
