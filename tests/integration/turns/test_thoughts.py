"""Thoughts: replies that contain nothing else, and thoughts that are sent with replies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.openai_server import DONE, OpenAIServer, chunk, reply, stream
from tests.fakes.scripted_server import Answer, Break, Gate
from tests.integration.turns.following import check_tree, follow, others, said, turn_under_way
from tests.support.server import Account, Running, problem, text_of
from tests.support.shared import asking_server as server

__all__ = ["server"]

pytestmark = pytest.mark.anyio

THOUGHTS = "Mags waves and says hello."


def only_thoughts(text: str = THOUGHTS, finish: str = "stop") -> Answer:
    return stream(chunk(reasoning_content=text), chunk(finish), DONE)


def sent(vendor: OpenAIServer) -> list[Any]:
    messages: list[Any] = vendor.requests[-1].body["messages"]
    assert all(message["content"].strip() for message in messages)
    return messages


async def last_message(ada: Account, chat: str) -> dict[str, Any]:
    return (await ada.messages(chat))[-1]


async def think(ada: Account, chat: str, vendor: OpenAIServer, **body: Any) -> dict[str, Any]:
    """Take a turn with a reply of thoughts only; return its message."""
    vendor.script(only_thoughts())
    events = await ada.turn(chat, **(body or {"text": "Well?"}))
    assert events[-1].name == "turn.completed"
    return await last_message(ada, chat)


def text_path(message: dict[str, Any]) -> str:
    return f"/messages/{message['id']}/thoughts-as-text"


@pytest.mark.parametrize("finish", ["stop", "length"])
async def test_a_reply_of_thoughts_is_kept_and_hidden(
    ada: Account, chat: str, vendor: OpenAIServer, server: Running, finish: str
) -> None:
    vendor.script(only_thoughts(finish=finish))

    events = await ada.turn(chat, text="Well?")

    assert [event.name for event in events[2:]] == [
        *("thinking.delta", "message.saved", "turn.completed")
    ]
    assert events[-1].data["finish_reason"] == finish
    message = await last_message(ada, chat)
    assert (message["text"], message["thinking"]) == ("", THOUGHTS)
    assert (message["status"], message["hidden"]) == ("complete", True)
    turn_id = events[0].data["turn_id"]
    assert (await ada.get(f"/turns/{turn_id}"))["reply"]["id"] == message["id"]
    assert others(await follow(ada.client, turn_id)) == others(events)
    await check_tree(server.parts.database, chat)


async def test_no_prompt_has_empty_messages(ada: Account, chat: str, vendor: OpenAIServer) -> None:
    await think(ada, chat, vendor)
    await ada.turn(chat, text="Hello?")
    assert [each["content"] for each in sent(vendor)[-2:]] == ["Well?", "Hello?"]

    settings = {"names": True, "reasoning_sent": 5}
    await ada.patch(f"/chats/{chat}/settings", settings)
    await ada.turn(chat, text="Still there?")
    assert not any("<think>" in each["content"] for each in sent(vendor))


async def test_thoughts_become_the_reply_in_place(
    ada: Account, chat: str, vendor: OpenAIServer, server: Running
) -> None:
    before = await think(ada, chat, vendor)
    await ada.turn(chat, text="Hello?")

    message = await ada.post(text_path(before))

    assert (message["id"], message["text"], message["thinking"]) == (before["id"], THOUGHTS, None)
    assert not message["hidden"]
    assert message["tokens"] > before["tokens"]
    assert message["sibling_count"] == 1
    await check_tree(server.parts.database, chat)
    await ada.turn(chat, text="Still there?")
    assert THOUGHTS in [each["content"] for each in sent(vendor)]
    await ada.get(f"/messages/{message['id']}/context")


async def test_labels_and_scripts_apply_too(ada: Account, chat: str, vendor: OpenAIServer) -> None:
    script = {"findRegex": "waves", "replaceString": "nods", "placement": [2]}
    await ada.put("/me/regex-scripts", {"scripts": [script]})
    author = (await last_message(ada, chat))["author"]
    vendor.script(only_thoughts(f"{author}: Mags waves."))
    await ada.turn(chat, text="Well?")

    message = await ada.post(text_path(await last_message(ada, chat)))

    assert message["text"] == "Mags nods."


async def test_only_thoughts_without_text_can_become_a_reply(
    ada: Account, chat: str, vendor: OpenAIServer, server: Running
) -> None:
    thought = await think(ada, chat, vendor)
    await ada.post(text_path(thought))
    problem(await ada.ask("POST", text_path(thought)), 409, "not-only-thoughts")
    problem(
        await ada.ask("POST", text_path((await ada.messages(chat))[-2])), 409, "not-only-thoughts"
    )
    async with server.account("eve") as eve:
        problem(await eve.ask("POST", text_path(thought)), 404, "message-not-found")
    gate = Gate()
    vendor.script(stream(chunk(reasoning_content="Hm."), gate, chunk("stop"), DONE))
    async with turn_under_way(ada, chat, text="And?") as (_, events):
        problem(
            await ada.ask("POST", text_path(await last_message(ada, chat))), 409, "message-busy"
        )
        gate.opened.set()
        assert [event async for event in events][-1].name == "turn.completed"


async def test_a_message_without_text_stays_out_of_prompts(
    ada: Account, chat: str, vendor: OpenAIServer, server: Running
) -> None:
    message = await think(ada, chat, vendor)
    path = f"/messages/{message['id']}"

    problem(await ada.ask("PATCH", path, json={"hidden": False}), 422, "message-empty")
    edited = await ada.patch(path, {"text": "Mags shrugs."})

    assert (edited["text"], edited["hidden"], edited["sibling_count"]) == ("Mags shrugs.", False, 2)
    await check_tree(server.parts.database, chat)


async def test_a_reply_of_thoughts_can_be_swiped_or_continued(
    ada: Account, chat: str, vendor: OpenAIServer, server: Running
) -> None:
    first = await think(ada, chat, vendor)
    asked = sent(vendor)

    vendor.script(reply("Mags nods."))
    await ada.turn(chat, regenerate_of=first["id"])
    assert sent(vendor) == asked
    swipe = await last_message(ada, chat)
    assert (swipe["text"], swipe["sibling"], swipe["hidden"]) == ("Mags nods.", 2, False)

    await ada.post(f"/messages/{first['id']}/activate")
    vendor.script(reply("Mags waves."))
    events = await ada.turn(chat, **{"continue": True})
    assert sent(vendor) == asked
    assert text_of(events) == "Mags waves."
    message = await last_message(ada, chat)
    assert (message["id"], message["text"], message["hidden"]) == (
        first["id"],
        "Mags waves.",
        False,
    )
    assert message["thinking"] == THOUGHTS
    await ada.get(f"/messages/{first['id']}/context")
    await check_tree(server.parts.database, chat)


async def test_a_failed_continuation_keeps_the_thoughts(
    ada: Account, chat: str, vendor: OpenAIServer, server: Running
) -> None:
    first = await think(ada, chat, vendor)
    vendor.script(stream(chunk(reasoning_content=" Hm."), Break()))

    events = await ada.turn(chat, **{"continue": True})

    assert events[-1].name == "turn.failed"
    message = await last_message(ada, chat)
    for name in ("id", "text", "status", "hidden"):
        assert message[name] == first[name]
    assert message["thinking"] == f"{THOUGHTS} Hm."
    await check_tree(server.parts.database, chat)


async def test_thoughts_are_not_a_user_line(ada: Account, chat: str, vendor: OpenAIServer) -> None:
    vendor.script(only_thoughts())

    events = await ada.turn(chat, impersonate=True)

    assert events[-1].data["type"] == "urn:talekeeper:problem:model-empty-reply"
    assert "thoughts" in events[-1].data["detail"]


async def test_text_that_turns_into_thoughts_is_reset(
    ada: Account, chat: str, vendor: OpenAIServer, server: Running
) -> None:
    gate = Gate()
    vendor.script(
        stream(
            chunk(content="The user greets me. "),
            gate,
            *(chunk(content="\n</think>\n\n"), chunk(content="Mags "), chunk(content="waves.")),
            *(chunk("stop"), DONE),
        )
    )
    async with turn_under_way(ada, chat, text="Hello!") as (turn_id, stream_):
        live = [await anext(stream_), await anext(stream_)]
        gate.opened.set()
        live += [event async for event in stream_]

    assert [(event.name, event.data) for event in live if event.name.startswith("te")] == [
        ("text.delta", {"text": "The user greets me."}),
        ("text.reset", {"length": 0}),
        ("text.delta", {"text": "Mags waves."}),
    ]
    message = await last_message(ada, chat)
    assert message["text"] == "Mags waves."
    assert message["thinking"].strip() == "The user greets me."
    stored = await follow(ada.client, turn_id)
    assert said(stored) == [("thinking.delta", message["thinking"]), ("text.delta", "Mags waves.")]
    assert others(stored)[1:] == others(live)
    for event in live:
        rest = await follow(ada.client, turn_id, last_id=event.id)
        taken_back = [each for each in live if each.data == {"text": "The user greets me."}]
        assert rest == [each for each in live if each.id > event.id and each not in taken_back]
    await check_tree(server.parts.database, chat)


async def test_a_reset_keeps_earlier_text(ada: Account, chat: str, vendor: OpenAIServer) -> None:
    vendor.script(reply("Mags waves."))
    await ada.turn(chat, text="Hello!")
    vendor.script(reply("I go on.", "</think>", " And nods."))

    events = await ada.turn(chat, **{"continue": True})

    resets = [event.data for event in events if event.name == "text.reset"]
    assert resets == [{"length": len("Mags waves.")}]
    message = await last_message(ada, chat)
    assert (message["text"], message["thinking"]) == ("Mags waves. And nods.", "I go on.")


SETTINGS = "/me/settings"


def answer_with_thoughts(number: int, thoughts: str = "") -> Answer:
    return stream(
        chunk(reasoning_content=thoughts or f"Thought {number}."),
        chunk("stop", content=f"Reply {number}."),
        DONE,
    )


async def play_turns(ada: Account, chat: str, vendor: OpenAIServer, *answers: Answer) -> list[Any]:
    """Take a turn for each answer; return the replies in the last request."""
    vendor.script(*answers)
    for number, _ in enumerate(answers):
        await ada.turn(chat, text=f"Line {number}.")
    sent = vendor.requests[-1].body["messages"]
    return [each["content"] for each in sent if each["role"] == "assistant"]


async def last_context(ada: Account, chat: str) -> Any:
    reply = (await ada.messages(chat))[-1]["id"]
    return await ada.get(f"/messages/{reply}/context")


async def test_thoughts_are_not_sent(ada: Account, chat: str, vendor: OpenAIServer) -> None:
    replies = await play_turns(ada, chat, vendor, *map(answer_with_thoughts, range(3)))

    assert replies[-2:] == ["Reply 0.", "Reply 1."]


async def test_recent_thoughts_can_be_sent(ada: Account, chat: str, vendor: OpenAIServer) -> None:
    # The setting of the account applies if the chat has none.
    await ada.patch(SETTINGS, {"reasoning_sent": 1})
    replies = await play_turns(ada, chat, vendor, *map(answer_with_thoughts, range(3)))
    assert replies[-2:] == ["Reply 0.", "<think>\nThought 1.\n</think>\n\nReply 1."]

    await ada.patch(f"/chats/{chat}/settings", {"reasoning_sent": 2})
    replies = await play_turns(ada, chat, vendor, answer_with_thoughts(3))
    assert replies[-3:] == [
        "Reply 0.",
        "<think>\nThought 1.\n</think>\n\nReply 1.",
        "<think>\nThought 2.\n</think>\n\nReply 2.",
    ]
    shown = (await last_context(ada, chat))["prompt"]
    sent = vendor.requests[-1].body["messages"]
    assert [each["text"] for each in shown] == [each["content"] for each in sent]

    await ada.patch(f"/chats/{chat}/settings", {"reasoning_sent": 0})
    assert (await play_turns(ada, chat, vendor, answer_with_thoughts(4)))[-1] == "Reply 3."


async def test_a_continued_reply_has_none(ada: Account, chat: str, vendor: OpenAIServer) -> None:
    await ada.patch(f"/chats/{chat}/settings", {"reasoning_sent": 5})
    await play_turns(ada, chat, vendor, answer_with_thoughts(0), answer_with_thoughts(1))
    vendor.script(answer_with_thoughts(2))
    await ada.turn(chat, **{"continue": True})

    sent = [each["content"] for each in vendor.requests[-1].body["messages"]]
    assert sum("Thought 0." in each for each in sent) == 1
    assert not any("Thought 1." in each for each in sent)


async def test_thoughts_leave_room_for_text(ada: Account, chat: str, vendor: OpenAIServer) -> None:
    wanted = {"reasoning_sent": 50, "budgets": {"total": 4096, "reply_reserve": 512}}
    await ada.patch(f"/chats/{chat}/settings", wanted)
    long = "So it may be. " * 120  # some 500 tokens
    replies = await play_turns(
        ada, chat, vendor, *(answer_with_thoughts(at, long) for at in range(6))
    )

    assert [each.count("<think>") for each in replies[-5:]] == [0, 0, 0, 0, 1]
    assert replies[-5].endswith("Reply 0.")
    totals = (await last_context(ada, chat))["totals"]
    assert totals["prompt"] <= 4096 - 512


async def test_a_number_out_of_range_is_refused(ada: Account, chat: str) -> None:
    for path in (SETTINGS, f"/chats/{chat}/settings"):
        for number in (-1, 51):
            refused = await ada.ask("PATCH", path, json={"reasoning_sent": number})
            assert refused.status_code == 422, refused.text
