"""Requests in the forms of SillyTavern's settings: notes, nudges, groups and merged messages."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from tests.integration.openai_api.sequences import Player
from tests.support.clients import (
    EXPRESSION,
    SUMMARY,
    ClientLine,
    Injection,
    PostProcessing,
    SillyTavernClient,
    SillyTavernSettings,
)

pytestmark = pytest.mark.anyio

NOTE = "[Style: terse and wry.]"
LORE = "The mill has stood on the river Wend for two hundred years."
POST = "[Two paragraphs at most, and no questions at the end of them.]"
UNKNOWN = "Rate the mood of this scene from one to ten, and answer with the number only, please."


def use(player: Player, settings: SillyTavernSettings) -> SillyTavernClient:
    player.client = SillyTavernClient(settings)
    return player.client


async def play_everything(player: Player) -> None:
    """Say, swipe, edit, delete, go back, continue and impersonate, and look after each."""
    client = player.client
    mode = client.settings.post_processing
    # Notes that are merged with the first line are known as notes once they have moved.
    is_unclear = mode in {"semi", "strict", "single"} and bool(client.settings.injections)
    for act, kind, reason in [
        (partial(client.say, "I knock at the door."), "turn", "new_chat"),
        (partial(client.say, "May I stay for the night?"), "turn", "new_line"),
        (partial(client.swipe), "swipe", "reply_missing"),
    ]:
        await player.ask(act())
        seen = await player.show() if is_unclear else None
        await player.check(kind, reason, shown=seen)
    await player.play(2)
    await player.check("turn", "new_line")
    client.edit(3, "May I stay here until the morning?")
    client.edit(4, f"{client.chat[4].text} She smiles.")
    await player.ask(client.say("I sit down."))
    await player.check("turn", "new_line")
    hidden = [client.chat[5].text, client.chat[6].text]
    client.delete(5)
    client.delete(5)
    await player.ask(client.say("I look around."))
    await player.check("turn", "new_line")
    assert await player.show_hidden() == hidden
    await player.ask(client.proceed(), " And the cat sleeps.")
    await player.check("continue", "continue_nudge")
    before = await player.read_path()
    await player.ask(client.impersonate(), "I pet the cat.")
    assert await player.decide() == ("impersonate", "impersonate_nudge")
    await player.ask(client.ask_quietly())
    await player.check("quiet", "known_quiet_form")
    if mode not in {"semi", "strict"}:
        # These turn the instruction into a line of the user's, like any other.
        await player.ask(client.ask_quietly(UNKNOWN))
        await player.check("quiet", "unknown_instruction")
    assert await player.read_path() == before
    client.go_back(5)
    await player.ask(client.say("I leave the house."))
    await player.check("turn", "new_line")
    await player.ask(client.say("I walk down to the river."))
    await player.check("turn", "new_line")


FORMS = {
    "names in the field": SillyTavernSettings(naming="field"),
    "names in the content": SillyTavernSettings(naming="content"),
    "squashed": SillyTavernSettings(squashes=True, post_history=POST),
    "author's note": SillyTavernSettings(injections=[Injection(text=NOTE, depth=4)]),
    "lore at depths": SillyTavernSettings(
        injections=[Injection(text=LORE, depth=2), Injection(text=NOTE, depth=0)]
    ),
    "post-history": SillyTavernSettings(post_history=POST),
    "examples": SillyTavernSettings(examples=[("Who are you?", "Who asks?")], persona="Alex."),
}


@pytest.mark.parametrize("name", FORMS)
async def test_every_action_shows_in_the_page(player: Player, name: str) -> None:
    use(player, FORMS[name])
    await play_everything(player)


@pytest.mark.parametrize("mode", ["merge", "semi", "strict", "single"])
async def test_every_action_of_a_client_that_merges_messages_shows_in_the_page(
    player: Player, mode: PostProcessing
) -> None:
    use(player, SillyTavernSettings(post_processing=mode))
    await play_everything(player)


@pytest.mark.parametrize("mode", ["merge", "semi", "strict", "single"])
async def test_notes_in_merged_messages_are_not_lines(player: Player, mode: PostProcessing) -> None:
    use(
        player,
        SillyTavernSettings(
            post_processing=mode, injections=[Injection(text=NOTE, depth=2)], post_history=POST
        ),
    )
    await play_everything(player)


async def test_a_users_note_that_moves_is_not_stored_twice(player: Player) -> None:
    client = player.client
    await player.play(2)
    client.settings.injections = [Injection(text=NOTE, depth=2, role="user")]
    for number in range(5):
        await player.ask(client.say(f"Line {number}: I walk along the river."))
    assert await player.decide() == ("turn", "new_line")
    assert await player.show() == client.lines
    await player.ask(client.swipe())
    await player.check("swipe", "reply_missing")


async def test_a_users_note_before_the_greeting_does_not_join_two_chats(player: Player) -> None:
    settings = SillyTavernSettings(injections=[Injection(text=NOTE, depth=4, role="user")])
    for line in ("I knock at the door.", "I whistle under the window."):
        client = use(player, settings)
        await player.ask(client.say(line))
        assert await player.decide() == ("turn", "new_chat")
        assert await player.show((await player.list_chats())[0]) == client.lines
        await player.ask(client.say(f"{line} Once more."))
        assert await player.decide() == ("turn", "new_line")
        assert await player.show((await player.list_chats())[0]) == client.lines


async def test_a_changed_note_changes_nothing_in_the_chat(player: Player) -> None:
    client = use(player, SillyTavernSettings(injections=[Injection(text=NOTE, depth=1)]))
    await player.play(2)
    client.settings.injections = [Injection(text=LORE, depth=0), Injection(text=NOTE, depth=3)]
    await player.ask(client.say("And now?"))
    await player.check("turn", "new_line")
    assert LORE in player.prompt_text


async def test_a_reply_is_continued_by_a_nudge_or_by_a_prefill(player: Player) -> None:
    client = player.client
    await player.ask(client.say("Tell me a story."), "Once there was a miller.")
    await player.ask(client.proceed(), " He had three sons.")
    await player.check("continue", "continue_nudge")
    client.settings.continues_by_prefill = True
    await player.ask(client.proceed(), " The youngest got the cat.")
    await player.check("continue", "ends_with_reply")
    assert client.lines[-1][1] == (
        "Once there was a miller. He had three sons. The youngest got the cat."
    )
    assert await player.list_siblings(2) == [client.lines[-1][1]]
    assert player.prompt[-1][0] == "assistant" or "Once there was" in player.prompt_text


async def test_the_beginning_of_a_reply_is_part_of_it_once(player: Player) -> None:
    client = use(player, SillyTavernSettings(prefix="Well, "))
    await player.ask(client.say("I knock."), "come in.")
    await player.check("turn", "new_chat")
    assert client.lines[-1] == ("assistant", "Well, come in.")
    await player.ask(client.swipe(), "stay out.", is_stream=True)
    await player.check("swipe", "reply_missing")
    assert client.lines[-1] == ("assistant", "Well, stay out.")


async def test_send_if_empty_asks_for_another_reply(player: Player) -> None:
    client = use(player, SillyTavernSettings(send_if_empty="[Go on.]"))
    await player.play(2)
    await player.ask(client.send_nothing(), "She pours the tea.")
    assert await player.decide() == ("turn", "new_line")
    await player.ask(client.say("I drink it."))
    assert await player.decide() == ("turn", "new_line")
    assert await player.show() == client.lines
    await player.ask(client.swipe())
    await player.check("swipe", "reply_missing")


async def test_known_and_unknown_tasks_are_answered_and_not_stored(player: Player) -> None:
    client = player.client
    await player.play(2)
    before = await player.read_path()
    for task, reason in [
        (client.ask_quietly(SUMMARY), "known_quiet_form"),
        (client.ask_quietly(EXPRESSION), "known_quiet_form"),
        (client.ask_quietly(UNKNOWN), "unknown_instruction"),
        (client.test_connection(), "connection_test"),
    ]:
        assert await player.ask(task, "42") == "42"
        await player.check("quiet", reason)
        assert player.prompt == [(each["role"], each["content"]) for each in task]
    assert await player.read_path() == before


GROUP = SillyTavernSettings(members=["Marlena", "Bo"], character="Marlena")


async def test_members_of_a_group_reply_as_their_nudges_say(player: Player) -> None:
    bo = await player.account.new_character(name="Bo", first_mes="Bo nods.")
    player.model = "auto"
    client = use(player, replace(GROUP, description="Marlena keeps the old mill."))
    await player.ask(client.say("I knock."), "Come in.")
    await player.check("turn", "new_chat")
    await player.ask(client.send_nothing(speaker="Bo"), "Wipe your boots.")
    await player.check("turn", "group_nudge")
    path = await player.read_path()
    assert [each["author"] for each in path[-2:]] == ["Marlena", "Bo"]
    assert path[-1]["character_id"] == bo["id"]
    await player.ask(client.swipe(), "Close the door.")
    await player.check("swipe", "reply_missing")
    assert (await player.read_path())[-1]["author"] == "Bo"
    await player.ask(client.say("May I stay?", speaker="Bo"), "No.")
    await player.check("turn", "new_line")
    assert (await player.read_path())[-1]["author"] == "Bo"
    await player.ask(client.proceed(), " Never.")
    await player.check("continue", "continue_nudge")
    await player.ask(client.ask_quietly())
    await player.check("quiet", "known_quiet_form")
    client.delete(3)
    await player.ask(client.say("Please.", speaker="Marlena"), "Let him.")
    await player.check("turn", "new_line")
    assert await player.show_hidden() == ["Close the door."]


@pytest.mark.parametrize("mode", ["merge", "semi", "strict", "single"])
async def test_merged_messages_of_a_group_are_its_lines(
    player: Player, mode: PostProcessing
) -> None:
    await player.account.new_character(name="Bo", first_mes="Bo nods.")
    client = use(player, replace(GROUP, post_processing=mode))
    await player.ask(client.say("I knock."), "Come in.")
    await player.check("turn", "new_chat")
    await player.ask(client.send_nothing(speaker="Bo"), "Wipe your boots.")
    await player.check("turn", "group_nudge")
    await player.ask(client.say("May I stay?", speaker="Bo"), "No.")
    await player.check("turn", "new_line")
    path = await player.read_path()
    assert [each["author"] for each in path if each["role"] == "assistant"] == [
        "Marlena",
        "Marlena",
        "Bo",
        "Bo",
    ]


async def test_groups_with_the_same_greetings_are_told_apart(player: Player) -> None:
    await player.account.new_character(name="Bo", first_mes="Bo nods.")
    clients: list[SillyTavernClient] = []
    for line in ("I knock at the door.", "I whistle under the window."):
        client = use(player, GROUP)
        client.chat.append(ClientLine("assistant", "Bo nods to you.", "Bo"))
        await player.ask(client.say(line, speaker="Bo"))
        assert await player.decide() == ("turn", "new_chat")
        clients.append(client)
    for client in clients:
        player.client = client
        await player.ask(client.say("May I come in?", speaker="Marlena"))
        assert await player.decide() == ("turn", "new_line")
    newest, oldest = await player.list_chats()
    assert [await player.show(newest), await player.show(oldest)] == [
        clients[1].lines, clients[0].lines
    ]  # fmt: skip


async def test_a_story_without_lines_of_the_user_is_one_chat(player: Player) -> None:
    client = use(player, SillyTavernSettings(members=["Marlena"]))
    for number in range(3):
        await player.ask(client.send_nothing(), f"The story goes on, part {number}.")
        await player.check("turn", "group_nudge" if number else "new_chat")
    await player.ask(client.say("And then?"))
    await player.check("turn", "new_line")
