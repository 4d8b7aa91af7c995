"""`reasoning_sent`: the thoughts of the last replies go out with them, where settings say so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.openai_server import DONE, OpenAIServer, chunk, stream
from tests.fakes.scripted_server import Answer
from tests.support.server import Account
from tests.support.shared import asking_server as server

__all__ = ["server"]

pytestmark = pytest.mark.anyio

SETTINGS = "/me/settings"


def thinking(number: int, thoughts: str = "") -> Answer:
    return stream(
        chunk(reasoning_content=thoughts or f"Thought {number}."),
        chunk("stop", content=f"Reply {number}."),
        DONE,
    )


async def play(ada: Account, chat: str, vendor: OpenAIServer, *answers: Answer) -> list[Any]:
    """One turn for each answer; the replies that were sent with the last."""
    vendor.script(*answers)
    for number, _ in enumerate(answers):
        await ada.turn(chat, text=f"Line {number}.")
    sent = vendor.requests[-1].body["messages"]
    return [each["content"] for each in sent if each["role"] == "assistant"]


async def context_of(ada: Account, chat: str) -> Any:
    reply = (await ada.messages(chat))[-1]["id"]
    return await ada.get(f"/messages/{reply}/context")


async def test_thoughts_are_kept_and_not_sent(
    ada: Account, chat: str, vendor: OpenAIServer
) -> None:
    replies = await play(ada, chat, vendor, *map(thinking, range(3)))

    assert replies[-2:] == ["Reply 0.", "Reply 1."]


async def test_those_of_the_last_replies_are_sent_and_shown_in_the_context(
    ada: Account, chat: str, vendor: OpenAIServer
) -> None:
    # The account's setting holds where the chat has none.
    await ada.patch(SETTINGS, {"reasoning_sent": 1})
    replies = await play(ada, chat, vendor, *map(thinking, range(3)))
    assert replies[-2:] == ["Reply 0.", "<think>\nThought 1.\n</think>\n\nReply 1."]

    await ada.patch(f"/chats/{chat}/settings", {"reasoning_sent": 2})
    replies = await play(ada, chat, vendor, thinking(3))
    assert replies[-3:] == [
        "Reply 0.",
        "<think>\nThought 1.\n</think>\n\nReply 1.",
        "<think>\nThought 2.\n</think>\n\nReply 2.",
    ]
    shown = (await context_of(ada, chat))["prompt"]
    sent = vendor.requests[-1].body["messages"]
    assert [each["text"] for each in shown] == [each["content"] for each in sent]

    await ada.patch(f"/chats/{chat}/settings", {"reasoning_sent": 0})
    assert (await play(ada, chat, vendor, thinking(4)))[-1] == "Reply 3."


async def test_a_reply_that_goes_on_has_none_before_it(
    ada: Account, chat: str, vendor: OpenAIServer
) -> None:
    await ada.patch(f"/chats/{chat}/settings", {"reasoning_sent": 5})
    await play(ada, chat, vendor, thinking(0), thinking(1))
    vendor.script(thinking(2))
    await ada.turn(chat, **{"continue": True})

    sent = [each["content"] for each in vendor.requests[-1].body["messages"]]
    assert sum("Thought 0." in each for each in sent) == 1
    assert not any("Thought 1." in each for each in sent)


async def test_thoughts_leave_room_for_what_was_said(
    ada: Account, chat: str, vendor: OpenAIServer
) -> None:
    wanted = {"reasoning_sent": 50, "budgets": {"total": 4096, "reply_reserve": 512}}
    await ada.patch(f"/chats/{chat}/settings", wanted)
    long = "So it may be. " * 120  # some 500 tokens
    replies = await play(ada, chat, vendor, *(thinking(at, long) for at in range(6)))

    assert [each.count("<think>") for each in replies[-5:]] == [0, 0, 0, 0, 1]
    assert replies[-5].endswith("Reply 0.")
    totals = (await context_of(ada, chat))["totals"]
    assert totals["prompt"] <= 4096 - 512


async def test_a_number_out_of_range_is_refused(ada: Account, chat: str) -> None:
    for path in (SETTINGS, f"/chats/{chat}/settings"):
        for number in (-1, 51):
            refused = await ada.ask("PATCH", path, json={"reasoning_sent": number})
            assert refused.status_code == 422, refused.text
