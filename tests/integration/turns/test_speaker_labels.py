"""Speaker labels in replies: removed or the end of the reply, streamed as they are stored."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.openai_server import OpenAIServer, called, chunk, reply, stream
from tests.fakes.scripted_server import Gate
from tests.integration.turns.following import follow, said
from tests.integration.turns.playing import FINISH, new_game
from tests.support.server import Account, text_of
from tests.support.shared import asking_server as server
from tests.support.waiting import until

__all__ = ["server"]

pytestmark = pytest.mark.anyio


@pytest.fixture
async def group(ada: Account) -> str:
    """A chat of Alda and Mags."""
    cast = [(await ada.new_character(name=name))["id"] for name in ("Alda", "Mags")]
    return str((await ada.new_chat(character_ids=cast))["id"])


async def take(ada: Account, chat: str, **body: Any) -> str:
    """Take a turn, and return its text after checking that it is stored as it was streamed."""
    events = await ada.turn(chat, **(body or {"text": "Well?"}))
    assert events[-1].name == "turn.completed"
    assert events[-1].data["finish_reason"] == "stop"
    text = text_of(events)
    stored = await follow(ada.client, events[0].data["turn_id"])
    assert "".join(text for _, text in said(stored)) == text
    if "impersonate" not in body and "continue" not in body:
        assert (await ada.messages(chat))[-1]["text"] == text
    return text


async def test_a_reply_loses_the_label_of_its_speaker(
    ada: Account, group: str, vendor: OpenAIServer
) -> None:
    vendor.script(reply("Alda", ": Good day."), reply("**Al", "da:** ", "Hm."))

    assert await take(ada, group) == "Good day."
    assert await take(ada, group) == "Hm."


@pytest.mark.parametrize("line", ["{user}: I leave.", "Mags: No.", "**Mags**: No."])
async def test_a_reply_ends_where_the_user_or_another_character_would_speak(
    ada: Account, group: str, vendor: OpenAIServer, line: str
) -> None:
    vendor.script(reply("Good day.\n", "\n", f"{line.format(user=ada.name)} ", "More."))

    assert await take(ada, group) == "Good day."


async def test_in_a_chat_of_two_a_reply_ends_where_the_user_would_speak(
    ada: Account, chat: str, vendor: OpenAIServer
) -> None:
    vendor.script(reply("Good day.\n", f"{ada.name}: I leave."))

    assert await take(ada, chat) == "Good day."


async def test_the_model_is_hung_up_on_where_another_would_speak(
    ada: Account, group: str, vendor: OpenAIServer
) -> None:
    never = Gate()
    vendor.script(stream(chunk(content="Good day.\nMags: No"), never))

    assert await take(ada, group) == "Good day."


@pytest.mark.parametrize("path", ["/me/settings", "/chats/{chat}/settings"])
async def test_a_setting_keeps_lines_of_other_speakers(
    ada: Account, group: str, vendor: OpenAIServer, path: str
) -> None:
    settings = {"keep_other_speakers": True}
    await ada.patch(path.format(chat=group), settings)
    vendor.script(reply("Alda: Good day.\nMags: No."))

    assert await take(ada, group) == "Good day.\nMags: No."

    chat = f"/chats/{group}/settings"
    await ada.patch(chat, {"keep_other_speakers": False})
    vendor.script(reply("Alda: Good day.\nMags: No."))
    assert await take(ada, group) == "Good day."


async def test_a_line_that_is_written_for_the_user_has_the_user_s_label(
    ada: Account, group: str, vendor: OpenAIServer
) -> None:
    vendor.script(reply(f"{ada.name}: I nod.\n", "Alda: Good."))

    assert await take(ada, group, impersonate=True) == "I nod."


async def test_a_continuation_loses_the_label_and_ends_like_a_reply(
    ada: Account, group: str, vendor: OpenAIServer
) -> None:
    vendor.script(reply("Good day."), reply("Alda:", " And good night.\nMags: No."))
    await take(ada, group)

    assert await take(ada, group, **{"continue": True}) == " And good night."
    assert (await ada.messages(group))[-1]["text"] == "Good day. And good night."


async def test_a_persona_s_name_is_a_label_and_prose_about_someone_is_none(
    ada: Account, vendor: OpenAIServer
) -> None:
    persona = await ada.post("/personas", {"name": "Vex"}, 201)
    chat = (await ada.new_chat(persona_id=persona["id"]))["id"]
    prose = f"He asks {ada.name}: the keeper?\n```\nVex: 3\n```\nVexed: yes."
    vendor.script(reply(*f"{prose}\nVex: I go."))

    assert await take(ada, chat) == prose


async def test_each_request_of_a_played_turn_is_filtered(
    ada: Account, vendor: OpenAIServer
) -> None:
    alda = (await ada.new_character(name="Alda"))["id"]
    game = await new_game(ada, character_ids=[alda])
    vendor.script(
        called(("advance_time", {"days": 1}), text="Alda: Night falls."),
        called(FINISH, text="Alda: You wake."),
    )

    events = await game.say()

    assert text_of(events) == "Night falls.\n\nYou wake."
    assert (await game.state())["day"] == 2


async def test_a_played_turn_ends_where_the_player_would_speak(
    ada: Account, vendor: OpenAIServer
) -> None:
    game = await new_game(ada)
    vendor.script(
        called(("advance_time", {"days": 1}), text="Night falls."),
        reply(f"You wake.\n\n{ada.name}: I get up."),
    )

    events = await game.say()

    assert text_of(events) == "Night falls.\n\nYou wake."
    assert events[-1].name == "turn.completed"


async def test_only_the_text_of_the_request_is_taken_back_in_a_played_turn(
    ada: Account, vendor: OpenAIServer
) -> None:
    game = await new_game(ada)
    vendor.script(
        called(("advance_time", {"days": 1}), text="Night falls."),
        reply("They wake up now.", "</think>", "You wake."),
    )

    events = await game.say()

    assert [event.data for event in events if event.name == "text.reset"] == [
        {"length": len("Night falls.")}
    ]
    message = (await ada.messages(game.chat))[-1]
    assert message["text"] == "Night falls.\n\nYou wake."
    assert message["thinking"] == "They wake up now."

    async def stored() -> bool:
        turn = await ada.get(f"/turns/{events[0].data['turn_id']}")
        return bool(turn["state"] == "completed")

    await until(stored)
    rest = await follow(ada.client, events[0].data["turn_id"])
    assert "".join(text for kind, text in said(rest) if kind == "text.delta") == message["text"]
