"""Budgets over HTTP: whose settings hold, which lines are kept, and what macros leave behind."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest

from backend.generation.registry import ModelRegistry
from tests.fakes.openai_server import MODEL_ID, OpenAIServer
from tests.integration.turns.seeding import seed, stored_lines
from tests.support.memory import link, new_book
from tests.support.server import Account, Running, problem, running

pytestmark = pytest.mark.anyio

WINDOW, LONGEST_REPLY = 16_384, 1_000


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    """With a model whose window is small."""
    async with OpenAIServer() as vendor:
        openai = vendor.config(context_window=WINDOW, max_output_tokens=LONGEST_REPLY)
        registry = ModelRegistry(demo_tokens_per_second=0, openai=openai, default="demo")
        folder = tmp_path_factory.mktemp("data")
        async with running(shared_url, folder, registry=registry) as server:
            yield server


async def set_chat(ada: Account, chat: str, **body: Any) -> None:
    await ada.patch(f"/chats/{chat}/settings", body)


async def set_account(ada: Account, **body: Any) -> None:
    await ada.patch("/me/settings", body)


async def preview(ada: Account, chat: str, text: str | None = "Well?") -> dict[str, Any]:
    query = {"prompt": "true", **({"text": text} if text else {})}
    return await ada.get(f"/chats/{chat}/context", **query)


async def turn(ada: Account, chat: str, **body: Any) -> dict[str, Any]:
    """Take a turn; the context of its reply."""
    events = await ada.turn(chat, **body)
    assert events[-1].name == "turn.completed", events[-1]
    url = f"/messages/{events[0].data['reply_id']}/context"
    return await ada.get(url)


async def test_the_chat_s_budgets_win_over_the_account_s_and_those_over_the_server_s(
    ada: Account, chat: str
) -> None:
    assert (await preview(ada, chat))["budgets"] == {
        "total": 200_000,
        "history": 150_000,
        "retrieval": 50_000,
        "reply_reserve": 8_192,
        "min_tail_messages": 8,
    }
    await set_account(ada, budgets={"total": 50_000, "history": 20_000, "min_tail_messages": 4})
    await set_chat(ada, chat, budgets={"history": 30_000, "reply_reserve": 500, "retrieval": 0})
    assert (await preview(ada, chat))["budgets"] == {
        "total": 50_000,
        "history": 30_000,
        "retrieval": 0,
        "reply_reserve": 500,
        "min_tail_messages": 4,
    }
    await set_chat(ada, chat, budgets=None)
    assert (await preview(ada, chat))["budgets"]["history"] == 20_000


async def test_a_prompt_never_takes_more_than_the_model_s_window(
    ada: Account, chat: str, server: Running
) -> None:
    await set_chat(ada, chat, model=MODEL_ID)
    await seed(server, ada, chat, ["So it goes on and on. " * 50 for _ in range(100)])
    context = await turn(ada, chat, text="Well?")
    assert context["budgets"]["total"] == WINDOW
    assert context["budgets"]["reply_reserve"] == LONGEST_REPLY
    totals = context["totals"]
    assert totals["prompt"] + LONGEST_REPLY + totals["free"] == WINDOW
    # A quarter is kept for what is retrieved, and nothing was.
    assert context["budgets"]["history"] == (WINDOW - LONGEST_REPLY) * 3 // 4
    assert 0 <= totals["free"] < WINDOW * 3 / 8
    assert context["left_out"][0]["reason"] == "budget"


@pytest.mark.parametrize("own", [{}, {"total": WINDOW, "history": WINDOW, "retrieval": WINDOW}])
async def test_lore_that_is_asked_for_has_room_in_a_small_window(
    ada: Account, chat: str, server: Running, own: dict[str, int]
) -> None:
    names = ["bell", "salt", "eel", "fog", "ferry"]
    entries = [
        {"keys": [name], "title": name, "content": "So it is told. " * 120} for name in names
    ]
    await link(ada, chat, await new_book(ada, *entries))
    await set_chat(ada, chat, model=MODEL_ID, budgets=own)
    await seed(server, ada, chat, ["So it goes on and on. " * 50 for _ in range(100)])
    asked = f"Tell me of {', '.join(names)}!"

    quiet = await preview(ada, chat, "Well?")
    context = await preview(ada, chat, asked)
    assert {item["title"] for item in context["retrieved"]} == set(names)
    assert context["totals"]["retrieved"] > 2_500
    assert context["totals"]["history"] > 8_000
    if own:
        # History gives way to what came in, and to no more than that.
        given = quiet["totals"]["history"] - context["totals"]["history"]
        assert 1_000 < given < context["totals"]["retrieved"] + 2_000
    else:
        assert quiet["totals"]["history"] == context["totals"]["history"]

    await set_chat(ada, chat, lore={"reserve_percent": 0})
    without = await preview(ada, chat, asked)
    assert (len(without["retrieved"]) < 5) == bool(own)
    assert without["totals"]["history"] == quiet["totals"]["history"]


@pytest.mark.parametrize("budget", [0, 50, 333, 1000, 2500, 100_000])
async def test_the_longest_run_of_last_lines_that_fits_is_kept_but_for_a_tenth(
    ada: Account, chat: str, server: Running, budget: int
) -> None:
    await seed(server, ada, chat, [f"{n} " + "la " * (n * 7 % 40) for n in range(80)])
    await set_chat(ada, chat, budgets={"history": budget})
    context = await preview(ada, chat)
    rows = await stored_lines(server, chat)
    if context["history"] is None:
        assert budget <= rows[-1].tokens * 2
        return
    first, last = context["history"]["first"], context["history"]["last"]
    assert last == len(rows) - 1
    kept = [row.tokens for row in rows[first:]]
    assert sum(kept) == context["history"]["tokens"] == context["totals"]["history"] <= budget
    if first > 0:
        assert sum(kept) + rows[first - 1].tokens > budget - budget // 10
    sent = [message["text"] for message in context["prompt"][1:-1]]
    assert len(sent) == len(kept)
    assert sent[-1].startswith("79 ")


async def test_a_long_line_is_not_passed_over_for_older_short_ones(
    ada: Account, chat: str, server: Running
) -> None:
    await seed(server, ada, chat, ["short", "short", "long " * 400, "late", "later"])
    await set_chat(ada, chat, budgets={"history": 300})
    sent = [message["text"] for message in (await preview(ada, chat))["prompt"]]
    assert sent[1:-1] == ["late", "later"]


async def test_the_beginning_of_the_prompt_stays_the_same_for_several_turns(
    ada: Account, chat: str, server: Running
) -> None:
    await seed(server, ada, chat, ["So it goes on and on. " * 5 for _ in range(60)])
    await set_chat(ada, chat, budgets={"history": 1200}, sampling={"max_output_tokens": 10})
    firsts = [
        (await turn(ada, chat, text=f"And then? {number}"))["history"]["first"]
        for number in range(16)
    ]
    assert firsts == sorted(firsts)
    moves = sum(one != other for one, other in pairwise(firsts))
    assert 1 <= moves <= 8


async def test_a_budget_that_the_fixed_part_fills_leaves_no_history(
    ada: Account, server: Running
) -> None:
    character = await ada.new_character(description="Tall. " * 800)
    chat = (await ada.new_chat(character_ids=[character["id"]]))["id"]
    await seed(server, ada, chat, ["So it goes. " * 20 for _ in range(10)])
    fixed = (await preview(ada, chat))["totals"]["fixed"]
    await set_chat(ada, chat, budgets={"total": fixed + 100, "reply_reserve": 80})
    context = await preview(ada, chat)
    assert (context["history"], context["totals"]["history"]) == (None, 0)
    await set_chat(ada, chat, budgets={"total": fixed + 79})
    body = problem(
        await ada.ask("POST", f"/chats/{chat}/turns", json={"text": "Well?"}),
        422,
        "context-overflow",
    )
    assert {section["kind"] for section in body["sections"]} >= {"character", "user_line"}
    assert len(await ada.messages(chat)) == 11


async def test_previews_are_the_same_again_and_again_and_the_turn_sends_what_they_show(
    ada: Account,
) -> None:
    character = await ada.new_character(
        description="{{random::a::b::c::d::e::f}} {{pick::a::b::c::d}} {{roll::1d1000}}",
        personality="{{random::a::b::c::d::e::f}}",
        system_prompt="{{original}} {{roll::5d6}} {{random:a,b,c,d}}",
    )
    chat = (await ada.new_chat(character_ids=[character["id"]]))["id"]
    shown = [await preview(ada, chat) for _ in range(4)]
    assert shown[0] == shown[1] == shown[2] == shown[3]
    context = await turn(ada, chat, text="Well?")
    assert context["prompt"] == shown[0]["prompt"]
    reply = (await ada.messages(chat))[-1]["id"]
    for _ in range(3):
        again = await turn(ada, chat, regenerate_of=reply)
        assert again["prompt"] == context["prompt"]
        reply = (await ada.messages(chat))[-1]["id"]


async def test_a_pick_stays_for_the_chat_and_a_draw_changes_with_the_message(
    ada: Account,
) -> None:
    numbers = "::".join(map(str, range(200)))
    character = await ada.new_character(
        scenario=f"{{{{pick::{numbers}}}}}", personality=f"{{{{random::{numbers}}}}}"
    )
    chat = (await ada.new_chat(character_ids=[character["id"]]))["id"]
    cards: list[dict[str, str]] = []
    for _ in range(4):
        context = await turn(ada, chat, text="Well?")
        (card,) = (item["text"] for item in context["items"] if item["kind"] == "character")
        parts = (str(line).partition(": ") for line in card.splitlines())
        cards.append({name: drawn for name, _, drawn in parts})
    assert len({card["Scenario"] for card in cards}) == 1
    assert len({card["Personality"] for card in cards}) > 1


async def test_variables_are_kept_when_a_line_is_stored_and_by_nothing_else(
    ada: Account, server: Running
) -> None:
    character = await ada.new_character(
        description="Asked {{incvar::asked}}, by all {{incglobalvar::asked}}."
    )
    chat = (await ada.new_chat(character_ids=[character["id"]]))["id"]

    async def asked() -> str:
        (card,) = (
            item["text"]
            for item in (await preview(ada, chat))["items"]
            if item["kind"] == "character"
        )
        return str(card).splitlines()[1]

    assert await asked() == "Asked 1, by all 1."
    assert await asked() == "Asked 1, by all 1."
    await turn(ada, chat, text="One.")
    assert await asked() == "Asked 2, by all 2."
    for body in (
        {"regenerate_of": (await ada.messages(chat))[-1]["id"]},
        {"continue": True},
        {"speaker": character["id"]},
    ):
        await turn(ada, chat, **body)
        assert await asked() == "Asked 2, by all 2."
    await ada.turn(chat, impersonate=True)
    await ada.post(f"/chats/{chat}/suggestions")
    refused = await ada.ask("POST", f"/chats/{chat}/turns", json={"text": " "})
    assert refused.status_code == 422
    assert await asked() == "Asked 2, by all 2."
    await turn(ada, chat, text="Two.")
    assert await asked() == "Asked 3, by all 3."
    other = (await ada.new_chat(character_ids=[character["id"]]))["id"]
    chat = other
    assert await asked() == "Asked 1, by all 3."
    async with server.account(f"eve-{uuid4().hex[:8]}") as eve:
        card = await eve.new_character(description="{{getglobalvar::asked}}.")
        hers = (await eve.new_chat(character_ids=[card["id"]]))["id"]
        assert "\n.\n" in (await preview(eve, hers))["prompt"][0]["text"]


async def test_macros_in_a_stored_line_stay_as_they_are(ada: Account, chat: str) -> None:
    await set_chat(ada, chat, expand_macros=False)
    context = await turn(ada, chat, text="{{user}} {{setvar::a::b}} {{random::a::b}} <USER>")
    assert context["prompt"][-1]["text"] == "{{user}} {{setvar::a::b}} {{random::a::b}} <USER>"
    note = {"text": "Last: {{lastMessage}} / {{lastUserMessage}}", "depth": 0}
    await set_chat(ada, chat, authors_note=note)
    context = await turn(ada, chat, **{"continue": True})
    (shown,) = (item["text"] for item in context["items"] if item["kind"] == "authors_note")
    assert shown.endswith("/ {{user}} {{setvar::a::b}} {{random::a::b}} <USER>")


async def test_a_preview_without_a_line_shows_the_prompt_without_one(
    ada: Account, chat: str
) -> None:
    context = await preview(ada, chat, text=None)
    assert [item["kind"] for item in context["items"]] == ["system_prompt"]
    assert context["prompt"][-1]["text"] == "The door creaks open."
    assert len(await ada.messages(chat)) == 1
