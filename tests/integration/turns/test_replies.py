"""Unusual replies: thoughts only, blanks, half characters, sudden ends and speaker labels."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backend.turns.run import registry as runs
from tests.fakes.openai_server import OpenAIServer, called, chunk, reply, stream, usage_chunk
from tests.fakes.openai_server import usage as used
from tests.fakes.scripted_server import Answer, Break, Gate, Silence
from tests.integration.turns.following import follow, others, said, turn_under_way
from tests.integration.turns.playing import FINISH, new_game
from tests.support.server import Account, text_of
from tests.support.shared import asking_server as server
from tests.support.waiting import PATIENCE, until

__all__ = ["server"]

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store replies five times a second, so that tests do not wait."""
    monkeypatch.setattr(runs, "STORE_SECONDS", 0.2)


async def test_thoughts_only_make_no_reply(ada: Account, chat: str, vendor: OpenAIServer) -> None:
    vendor.script(
        stream(chunk(reasoning_content="Let me "), chunk(reasoning_content="see."), Break())
    )
    events = await ada.turn(chat, text="Well?")
    assert said(events) == [("thinking.delta", "Let me see.")]
    assert events[-1].name == "turn.failed"
    assert [line["text"] for line in await ada.messages(chat)][1:] == ["Well?"]
    for event in events[:-1]:
        rest = await follow(ada.client, events[0].data["turn_id"], last_id=event.id)
        assert others(rest)[-1] == others(events)[-1]


async def test_an_early_stop_makes_no_reply(ada: Account, chat: str, vendor: OpenAIServer) -> None:
    asked = len(vendor.requests)
    vendor.script(stream(Gate()))
    async with turn_under_way(ada, chat, text="Well?") as (turn_id, events):
        while len(vendor.requests) == asked:
            await asyncio.sleep(0.01)
        assert (await ada.ask("POST", f"/turns/{turn_id}/stop")).status_code == 202
        heard = [event async for event in events]
    assert [event.name for event in heard] == ["context.ready", "turn.completed"]
    assert [line["text"] for line in await ada.messages(chat)][1:] == ["Well?"]
    turn = await ada.get(f"/turns/{turn_id}")
    assert (turn["state"], turn["reply_id"], turn["reply"]) == ("stopped", None, None)


async def test_one_bad_reply_blocks_no_other(ada: Account, chat: str, vendor: OpenAIServer) -> None:
    gate = Gate()
    vendor.script(
        stream(chunk(content="\ud83d"), chunk(content="Odd."), gate, chunk("stop"), "[DONE]")
    )
    async with turn_under_way(ada, chat, text="Odd?") as (_, events):
        other = (await ada.new_chat())["id"]
        second = Gate()
        vendor.script(stream(chunk(content="Even."), second, chunk("stop"), "[DONE]"))
        async with turn_under_way(ada, other, text="Even?") as (_, even):

            async def stored() -> bool:
                return str((await ada.messages(other))[-1]["text"]) == "Even."

            await until(stored)
            second.opened.set()
            assert [event async for event in even][-1].name == "turn.completed"
        gate.opened.set()
        assert [event async for event in events][-1].name == "turn.completed"


async def test_empty_text_continues_nothing(ada: Account, chat: str, vendor: OpenAIServer) -> None:
    await ada.turn(chat, text="Well?")
    before = (await ada.messages(chat))[-1]
    url = f"/messages/{before['id']}/context"
    context = await ada.get(url)
    gate = Gate()
    vendor.script(stream(chunk(reasoning_content="Hm."), gate, chunk("stop"), "[DONE]"))
    async with turn_under_way(ada, chat, **{"continue": True}) as (turn_id, events):

        async def stored() -> str | None:
            thinking: str | None = (await ada.messages(chat))[-1]["thinking"]
            return thinking

        await until(stored)
        gate.opened.set()
        heard = [event async for event in events]
    assert heard[-1].data["type"] == "urn:talekeeper:problem:model-empty-reply"
    after = (await ada.messages(chat))[-1]
    for name in ("id", "text", "status", "tokens", "sibling_count"):
        assert after[name] == before[name]
    assert (await ada.get(url)) == context
    assert others(await follow(ada.client, turn_id))[1:] == others(heard)
    again = await ada.turn(chat, **{"continue": True})
    assert (await ada.messages(chat))[-1]["text"] == before["text"] + text_of(again)


async def test_a_broken_end_keeps_its_text(ada: Account, chat: str, vendor: OpenAIServer) -> None:
    before = text_of(await ada.turn(chat, text="Well?"))
    vendor.script(stream(chunk(reasoning_content="Hm."), chunk(content=" And"), Break()))
    events = await ada.turn(chat, **{"continue": True})
    assert events[-1].name == "turn.failed"
    line = (await ada.messages(chat))[-1]
    assert (line["text"], line["thinking"], line["status"]) == (f"{before} And", "Hm.", "failed")
    stored = await follow(ada.client, events[0].data["turn_id"])
    assert (said(stored), others(stored)) == (said(events), others(events))


async def test_thoughts_and_text_keep_order(ada: Account, chat: str, vendor: OpenAIServer) -> None:
    vendor.script(
        stream(
            chunk(reasoning_content="One. "),
            chunk(content="Two. "),
            chunk(reasoning_content="Three. "),
            chunk(content="Four."),
            chunk("stop"),
            usage_chunk(used(9, 4, reasoning=2, cached=3)),
            "[DONE]",
        )
    )
    events = await ada.turn(chat, text="Well?")
    assert [text for _, text in said(events)] == ["One. ", "Two. ", "Three. ", "Four."]
    stored = await follow(ada.client, events[0].data["turn_id"])
    assert (said(stored), others(stored)) == (said(events), others(events))
    usage = dict(others(events))["usage"]
    assert (usage["cached_tokens"], usage["thinking_tokens"]) == (3, 2)
    line = (await ada.messages(chat))[-1]
    assert (line["text"], line["thinking"]) == ("Two. Four.", "One. Three. ")


async def test_a_continuation_is_separated_as_streamed(
    ada: Account, chat: str, vendor: OpenAIServer
) -> None:
    first = stream(
        chunk(reasoning_content="A door."), chunk(content="*She opens the door and"),
        chunk("length"), usage_chunk(used(9, 9)), "[DONE]",
    )  # fmt: skip
    second = stream(
        chunk(reasoning_content="A room."), chunk(content="looks"), chunk(content=" around.*"),
        chunk("stop"), usage_chunk(used(9, 9)), "[DONE]",
    )  # fmt: skip
    vendor.script(first, second, reply("“Well?”"), reply("\nNobody answers."))
    await ada.turn(chat, text="Open it.")
    cut = (await ada.messages(chat))[-1]
    assert cut["status"] == "complete"
    assert cut["notices"] == [{"kind": "reply_cut", "reason": "length"}]

    whole = cut["text"]
    for more in (" looks around.*", " “Well?”", "\nNobody answers."):
        events = await ada.turn(chat, **{"continue": True})
        assert text_of(events) == more
        turn_id = events[0].data["turn_id"]
        assert text_of(await follow(ada.client, turn_id)) == more
        # A client that returns after five characters receives exactly the rest.
        after = next(each.id for each in events if each.name == "text.delta") - len(more) + 5
        assert text_of(await follow(ada.client, turn_id, last_id=after)) == more[5:]
        line = (await ada.messages(chat))[-1]
        whole += more
        assert (line["text"], line["thinking"]) == (whole, "A door.\n\nA room.")
        assert line["notices"] == []


@pytest.mark.parametrize(
    ("member", "event"), [("content", "text.delta"), ("reasoning_content", "thinking.delta")]
)
async def test_an_endless_reply_is_cut_at_four_times_its_reserve(
    ada: Account, chat: str, vendor: OpenAIServer, member: str, event: str
) -> None:
    vendor.hung_up.clear()
    vendor.script(stream(*[chunk(**{member: "Word. " * 5_000})] * 20, Silence()))
    events = await ada.turn(chat, text="Well?")

    reserve = dict(others(events))["context.ready"]["totals"]["reply_reserve"]
    [(name, text)] = said(events)
    assert (name, len(text)) == (event, 4 * reserve * 4)
    await asyncio.wait_for(vendor.hung_up.wait(), PATIENCE)
    line = (await ada.messages(chat))[-1]
    assert (line["text"] or line["thinking"]) == text
    assert line["status"] == "complete"
    assert line["notices"] == [{"kind": "reply_cut", "reason": "length"}]


async def test_long_answers_are_cut_too(ada: Account, chat: str, vendor: OpenAIServer) -> None:
    body = {"choices": [{"message": {"content": "Word. " * 80_000}, "finish_reason": "stop"}]}
    vendor.script(Answer(body=body))
    events = await ada.turn(chat, text="Well?")

    reserve = dict(others(events))["context.ready"]["totals"]["reply_reserve"]
    assert len(text_of(events)) == 4 * reserve * 4
    line = (await ada.messages(chat))[-1]
    assert line["notices"] == [{"kind": "reply_cut", "reason": "length"}]


@pytest.fixture
async def group(ada: Account) -> str:
    """A chat of Alda and Mags, in which Alda speaks unless Mags is asked."""
    cast = [(await ada.new_character(name=name))["id"] for name in ("Alda", "Mags")]
    chat: str = (await ada.new_chat(character_ids=cast))["id"]
    await ada.patch(f"/chats/{chat}/members/{cast[1]}", {"presence": "muted"})
    return chat


async def take_checked(ada: Account, chat: str, **body: Any) -> str:
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


async def test_the_speaker_s_label_is_cut(ada: Account, group: str, vendor: OpenAIServer) -> None:
    vendor.script(reply("Alda", ": Good day."), reply("**Al", "da:** ", "Hm."))

    assert await take_checked(ada, group) == "Good day."
    assert await take_checked(ada, group) == "Hm."


@pytest.mark.parametrize("line", ["{user}: I leave.", "Mags: No.", "**Mags**: No."])
async def test_a_reply_ends_before_lines_of_others(
    ada: Account, group: str, vendor: OpenAIServer, line: str
) -> None:
    vendor.script(reply("Good day.\n", "\n", f"{line.format(user=ada.name)} ", "More."))

    assert await take_checked(ada, group) == "Good day."


async def test_a_reply_ends_before_the_user(ada: Account, chat: str, vendor: OpenAIServer) -> None:
    vendor.script(reply("Good day.\n", f"{ada.name}: I leave."))

    assert await take_checked(ada, chat) == "Good day."


async def test_the_request_is_cancelled(ada: Account, group: str, vendor: OpenAIServer) -> None:
    never = Gate()
    vendor.script(stream(chunk(content="Good day.\nMags: No"), never))

    assert await take_checked(ada, group) == "Good day."


@pytest.mark.parametrize("path", ["/me/settings", "/chats/{chat}/settings"])
async def test_a_setting_keeps_lines_of_other_speakers(
    ada: Account, group: str, vendor: OpenAIServer, path: str
) -> None:
    settings = {"keep_other_speakers": True}
    await ada.patch(path.format(chat=group), settings)
    vendor.script(reply("Alda: Good day.\nMags: No."))

    assert await take_checked(ada, group) == "Good day.\nMags: No."

    chat = f"/chats/{group}/settings"
    await ada.patch(chat, {"keep_other_speakers": False})
    vendor.script(reply("Alda: Good day.\nMags: No."))
    assert await take_checked(ada, group) == "Good day."


async def test_impersonation_loses_a_label(ada: Account, group: str, vendor: OpenAIServer) -> None:
    vendor.script(reply(f"{ada.name}: I nod.\n", "Alda: Good."))

    assert await take_checked(ada, group, impersonate=True) == "I nod."


async def test_continuations_lose_labels(ada: Account, group: str, vendor: OpenAIServer) -> None:
    vendor.script(reply("Good day."), reply("Alda:", " And good night.\nMags: No."))
    await take_checked(ada, group)

    assert await take_checked(ada, group, **{"continue": True}) == " And good night."
    assert (await ada.messages(group))[-1]["text"] == "Good day. And good night."


async def test_a_persona_name_is_a_label_only_at_a_start(
    ada: Account, vendor: OpenAIServer
) -> None:
    persona = await ada.post("/personas", {"name": "Vex"}, 201)
    chat = (await ada.new_chat(persona_id=persona["id"]))["id"]
    prose = f"He asks {ada.name}: the keeper?\n```\nVex: 3\n```\nVexed: yes."
    vendor.script(reply(*f"{prose}\nVex: I go."))

    assert await take_checked(ada, chat) == prose


async def test_each_request_of_a_played_turn_is_cut(ada: Account, vendor: OpenAIServer) -> None:
    alda = (await ada.new_character(name="Alda"))["id"]
    game = await new_game(ada, character_ids=[alda])
    vendor.script(
        called(("advance_time", {"days": 1}), text="Alda: Night falls."),
        called(FINISH, text="Alda: You wake."),
    )

    events = await game.say()

    assert text_of(events) == "Night falls.\n\nYou wake."
    assert (await game.state())["day"] == 2


async def test_a_played_turn_ends_before_the_player(ada: Account, vendor: OpenAIServer) -> None:
    game = await new_game(ada)
    vendor.script(
        called(("advance_time", {"days": 1}), text="Night falls."),
        reply(f"You wake.\n\n{ada.name}: I get up."),
    )

    events = await game.say()

    assert text_of(events) == "Night falls.\n\nYou wake."
    assert events[-1].name == "turn.completed"


async def test_only_text_of_the_last_request_is_reset(ada: Account, vendor: OpenAIServer) -> None:
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
