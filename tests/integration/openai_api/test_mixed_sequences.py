"""Other clients, headers, corrections, and chats that are played in the page as well."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.integration.openai_api.sequences import GREETING, Player, read_reply
from tests.support.clients import (
    AssistantClient,
    LibreChatClient,
    OpenWebUIClient,
    SillyTavernClient,
    Wire,
)

pytestmark = pytest.mark.anyio

UNKNOWN = "Rate the mood of this scene from one to ten, and answer with the number only, please."


def user(text: str) -> Wire:
    return {"role": "user", "content": text}


async def test_open_web_uis_tasks_and_documents_are_not_stored(player: Player) -> None:
    client = OpenWebUIClient()
    seat = player.use(client)
    await seat.ask(client.say("Who owns the mill?"), "Marlena does.")
    await seat.check("turn", "new_chat")
    for task in (
        client.ask_title(), client.ask_tags(), client.ask_follow_ups(), client.ask_queries(),
        client.ask_completion("Since wh"),
    ):  # fmt: skip
        assert read_reply(await seat.send(task, "{}")) == "{}"
        await seat.check("quiet", "known_quiet_form")
        assert seat.prompt == [("user", task[0]["content"])]
    await seat.ask(client.say_with_documents("Since when?", "The mill was sold in 1802."))
    await seat.check("turn", "new_line")
    assert "sold in 1802" in seat.prompt_text
    await seat.ask(client.regenerate())
    await seat.check("swipe", "reply_missing")
    assert len(await seat.list_siblings(3)) == 2
    await seat.ask(client.say("And before?"))
    await seat.check("turn", "new_line")


async def test_libre_chats_tasks_are_not_stored(player: Player) -> None:
    client = LibreChatClient(system_prompt="You are Marlena.")
    seat = player.use(client)
    await seat.ask(client.say("Who owns the mill?"), "I do.")
    for task in (client.ask_title(), client.ask_structured_title(), client.ask_summary()):
        assert read_reply(await seat.send(task, "The mill")) == "The mill"
        await seat.check("quiet", "known_quiet_form")
    await seat.ask(client.say("Since when?"), is_stream=True)
    await seat.check("turn", "new_line")
    client.chat[2].text = "For how long?"
    await seat.ask(client.regenerate())
    await seat.check("turn", "new_line")
    assert await seat.list_siblings(2) == ["For how long?", "Since when?"]


async def test_two_chats_with_the_same_beginning_are_told_apart(player: Player) -> None:
    client = player.client
    await player.ask(client.say("I knock."), "Come in.")
    other = SillyTavernClient()
    player.client = other
    await player.ask(other.say("I knock."), "Go away.")
    # The list is that of the first chat without its reply, so that it is a swipe.
    await player.check("swipe", "reply_missing")
    await player.ask(other.say("Please."))
    await player.check("turn", "new_line")
    player.client = client
    await player.ask(client.say("Thank you."))
    await player.check("turn", "new_line")


async def test_another_chat_with_other_lines_is_another_chat(player: Player) -> None:
    client = player.client
    await player.play(2)
    other = SillyTavernClient()
    await player.ask(other.say("I shout across the river."), "Nobody answers.")
    other.receive("Nobody answers.")
    assert await player.decide() == ("turn", "new_chat")
    newest, oldest = await player.list_chats()
    assert await player.show(newest) == other.lines
    await player.ask(client.say("I walk on."))
    assert await player.show(oldest) == client.lines


@pytest.mark.parametrize("by_header", [False, True])
async def test_a_named_chat_gets_the_last_line_of_a_list_that_shares_nothing(
    player: Player, by_header: bool
) -> None:
    await player.play(2)
    chat_id = await player.find_chat()
    before = await player.show()
    if by_header:
        player.headers = {"X-Talekeeper-Chat": chat_id}
    else:
        player.model = f"chat:{chat_id}"
    script = AssistantClient()
    await player.send(script.say("Is anyone there?"), "I am here.")
    assert await player.decide() == ("turn", "new_line")
    added = [("user", "Is anyone there?"), ("assistant", "I am here.")]
    assert await player.show() == [*before, *added]
    await player.send([user("Is anyone there?")], "I am.", x_stainless_retry_count="1")
    assert await player.decide() == ("repeat", "retry")
    assert await player.show() == [*before, *added]
    # Without the header, the user says the line again.
    await player.send([user("Is anyone there?")], "I am still here.")
    assert await player.decide() == ("turn", "new_line")
    assert len(await player.show()) == len(before) + 4
    await player.send([user("Good."), user("And the cat?")], "It sleeps.")
    assert (await player.show())[-2:] == [("user", "And the cat?"), ("assistant", "It sleeps.")]
    await player.ask(player.client.say("I go on in the client."))
    await player.check("turn", "new_line")


async def test_an_unknown_named_chat_is_an_error(player: Player) -> None:
    player.model = f"chat:{uuid4()}"
    response = await player.send([user("Hello?")])
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model-name-not-found"
    player.model = "character:marlena"
    response = await player.send([user("Hello?")], x_talekeeper_chat=str(uuid4()))
    assert (response.status_code, response.json()["error"]["code"]) == (404, "chat-not-found")
    assert await player.list_chats() == []


async def test_the_header_decides_if_a_request_is_stored(player: Player) -> None:
    client = player.client
    await player.play(1)
    before = await player.show()
    response = await player.send(client.say("A secret."), x_talekeeper_store="never")
    assert response.status_code == 200
    assert await player.decide() == ("quiet", "header_never")
    assert await player.show() == before
    client.chat.pop()
    sent = client.ask_quietly(UNKNOWN)
    response = await player.send(sent, "Seven.", x_talekeeper_store="always")
    assert await player.decide() == ("turn", "header_always")
    assert await player.show() == [*before, ("assistant", "Seven.")]
    await player.check_stored()


async def test_without_memory_the_model_gets_the_clients_prompt_alone(player: Player) -> None:
    client = player.client
    book = await player.account.post("/lorebooks", {"name": "Lore", "is_global": True}, 201)
    entry = {"keys": ["miller"], "content": "The miller is a ghost.", "constant": True}
    await player.account.post(f"/lorebooks/{book['id']}/entries", entry, 201)
    await player.ask(client.say("Where is the miller?"))
    assert "ghost" in player.prompt_text
    sent = client.say("Where is the miller now?")
    await player.ask(sent, x_talekeeper_memory="off")
    await player.check("turn", "new_line")
    assert player.prompt == [(each["role"], each["content"]) for each in sent]


async def test_corrections_decide_about_the_next_requests(player: Player) -> None:
    client = player.client
    await player.play(2)
    before = await player.read_path()
    await player.send(client.ask_quietly(UNKNOWN), "Seven.")
    assert await player.decide() == ("quiet", "unknown_instruction")
    await player.correct("turn")
    await player.send(client.ask_quietly(UNKNOWN), "Eight.")
    assert await player.decide() == ("turn", "rule")
    assert (await player.show())[-1] == ("assistant", "Eight.")
    assert (await player.correct("quiet"))["outcome"] == "removed"
    assert await player.read_path() == before
    await player.send(client.ask_quietly(UNKNOWN), "Nine.")
    assert await player.decide() == ("quiet", "rule")
    await player.ask(client.say("I go on."))
    await player.check("turn", "new_line")


async def test_a_line_that_was_no_line_is_removed_and_the_chat_goes_on(player: Player) -> None:
    client = player.client
    await player.play(2)
    task = [*client.say("x")[:-1], user("Describe the scene for a painter, in ten words.")]
    client.chat.pop()
    await player.send(task, "A mill, a river.")
    assert await player.decide() == ("turn", "new_line")
    assert (await player.correct("quiet"))["outcome"] == "removed"
    assert await player.show() == client.lines
    await player.send(task, "A mill, a river, a cat.")
    assert await player.decide() == ("quiet", "rule")
    await player.ask(client.say("I go on."))
    await player.check("turn", "new_line")


async def test_a_chat_of_the_page_goes_on_in_the_client_and_back(player: Player) -> None:
    account, client = player.account, player.client
    [character] = (await account.get("/characters"))["items"]
    chat = await account.new_chat(character_ids=[character["id"]])
    player.script("Come in.")
    await account.turn(chat["id"], text="I knock.")
    assert await player.show() == [
        ("assistant", GREETING), ("user", "I knock."), ("assistant", "Come in.")
    ]  # fmt: skip
    client.say("I knock.")
    client.receive("Come in.")
    await player.ask(client.say("May I stay?"), "For one night.")
    await player.check("turn", "new_line")
    player.script("It is late.")
    await account.turn(chat["id"], text="What time is it?")
    assert len(await player.show()) == 7
    await player.ask(client.say("I sit down."), "Do.")
    # The client does not know the lines of the page: they are on another branch.
    await player.check("turn", "new_line")
    assert await player.list_siblings(5) == ["I sit down.", "What time is it?"]
    # An edit in the page that the client does not know is overwritten by its text.
    path = await player.read_path()
    await account.delete(f"/messages/{path[5]['id']}", 200)
    client.go_back(5)
    await player.ask(client.say("I lie down."))
    await player.check("turn", "new_line")


@pytest.mark.every_database
async def test_the_usual_requests_work_on_every_database(player: Player) -> None:
    client = player.client
    await player.play(2)
    await player.ask(client.swipe())
    await player.check("swipe", "reply_missing")
    client.edit(1, "I walk to the mill.")
    client.delete(2)
    await player.ask(client.say("I knock."))
    await player.check("turn", "new_line")
    await player.stop(client.swipe(), "Who is")
    client.receive("Who is")
    await player.ask(client.proceed(), " there?")
    await player.check("continue", "continue_nudge")
    client.go_back(4)
    await player.ask(client.say("I turn around."))
    await player.check("turn", "new_line")


async def test_a_line_with_only_an_image_stays_in_the_chat(player: Player) -> None:
    url = "https://pictures.example/mill.png"
    picture: Wire = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": url}}],
    }
    sent = [user("Who owns the old mill?")]
    for line in (picture, user("What did you see there?"), user("And what else?")):
        spoken = read_reply(await player.send(sent, "The river has risen."))
        sent += [{"role": "assistant", "content": spoken}, line]
    await player.send(sent, "A light.")
    assert [text for role, text in await player.show() if role == "user"] == [
        "Who owns the old mill?", "[image]", "What did you see there?", "And what else?"
    ]  # fmt: skip
    assert await player.show_hidden() == []
    # The line can be answered again, too.
    await player.send(sent[:3], "It is a mill.")
    assert await player.decide() == ("swipe", "reply_missing")
