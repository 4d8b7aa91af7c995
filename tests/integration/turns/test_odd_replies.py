"""Replies that no one would wish for: thoughts alone, blanks, half characters, sudden ends."""

from __future__ import annotations

import asyncio

import pytest

from backend.turns.run import registry as runs
from tests.fakes.openai_server import (
    OpenAIServer,
    chunk,
    reply,
    stream,
    usage_chunk,
)
from tests.fakes.openai_server import usage as used
from tests.fakes.scripted_server import Answer, Break, Gate, Silence
from tests.integration.turns.following import (
    follow,
    others,
    said,
    turn_under_way,
)
from tests.support.server import Account, text_of
from tests.support.shared import asking_server as server
from tests.support.waiting import PATIENCE, until

__all__ = ["server"]

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store what was said five times a second, so that tests need not wait for it."""
    monkeypatch.setattr(runs, "STORE_SECONDS", 0.2)


async def test_thoughts_that_no_reply_follows_leave_none_and_whoever_comes_back_hears_so(
    ada: Account, chat: str, vendor: OpenAIServer
) -> None:
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


async def test_a_turn_that_is_stopped_before_a_word_leaves_no_reply(
    ada: Account, chat: str, vendor: OpenAIServer
) -> None:
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


async def test_one_reply_that_is_odd_does_not_keep_others_from_being_stored(
    ada: Account, chat: str, vendor: OpenAIServer
) -> None:
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


async def test_a_continuation_that_says_nothing_leaves_the_reply_as_it_was(
    ada: Account, chat: str, vendor: OpenAIServer
) -> None:
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


async def test_a_continuation_that_breaks_off_keeps_both_parts(
    ada: Account, chat: str, vendor: OpenAIServer
) -> None:
    before = text_of(await ada.turn(chat, text="Well?"))
    vendor.script(stream(chunk(reasoning_content="Hm."), chunk(content=" And"), Break()))
    events = await ada.turn(chat, **{"continue": True})
    assert events[-1].name == "turn.failed"
    line = (await ada.messages(chat))[-1]
    assert (line["text"], line["thinking"], line["status"]) == (f"{before} And", "Hm.", "failed")
    stored = await follow(ada.client, events[0].data["turn_id"])
    assert (said(stored), others(stored)) == (said(events), others(events))


async def test_thinking_and_speaking_in_turns_is_told_in_that_order_ever_after(
    ada: Account, chat: str, vendor: OpenAIServer
) -> None:
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


async def test_a_continuation_is_separated_from_its_reply_and_stored_as_it_was_streamed(
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
        # Who comes back after the first five characters gets exactly the rest.
        after = next(each.id for each in events if each.name == "text.delta") - len(more) + 5
        assert text_of(await follow(ada.client, turn_id, last_id=after)) == more[5:]
        line = (await ada.messages(chat))[-1]
        whole += more
        assert (line["text"], line["thinking"]) == (whole, "A door.\n\nA room.")
        assert line["notices"] == []


@pytest.mark.parametrize(
    ("member", "event"), [("content", "text.delta"), ("reasoning_content", "thinking.delta")]
)
async def test_a_reply_without_an_end_is_cut_at_four_times_its_reserve(
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


async def test_a_reply_that_comes_as_a_whole_is_cut_in_the_same_way(
    ada: Account, chat: str, vendor: OpenAIServer
) -> None:
    body = {"choices": [{"message": {"content": "Word. " * 80_000}, "finish_reason": "stop"}]}
    vendor.script(Answer(body=body))
    events = await ada.turn(chat, text="Well?")

    reserve = dict(others(events))["context.ready"]["totals"]["reply_reserve"]
    assert len(text_of(events)) == 4 * reserve * 4
    line = (await ada.messages(chat))[-1]
    assert line["notices"] == [{"kind": "reply_cut", "reason": "length"}]
