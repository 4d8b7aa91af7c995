"""Token budgets and previews: settings, maxima, kept lines, and prompts before they are sent."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from backend.generation.registry import ModelRegistry
from backend.llm import token_ratios as ratios
from tests.fakes.openai_server import MODEL_ID, OpenAIServer
from tests.integration.turns.seeding import seed, stored_lines
from tests.support.memory import API, context_of, link, new_book, set_chat, take_turn
from tests.support.server import Account, Running, ok, problem, running

pytestmark = pytest.mark.anyio

WINDOW, LONGEST_REPLY = 16_384, 1_000


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    """A server with a model that has a small window."""
    async with OpenAIServer() as vendor:
        openai = vendor.config(context_window=WINDOW, max_output_tokens=LONGEST_REPLY)
        registry = ModelRegistry(demo_tokens_per_second=0, openai=openai, default="demo")
        folder = tmp_path_factory.mktemp("data")
        async with running(shared_url, folder, registry=registry) as server:
            yield server


async def set_account(ada: Account, **body: Any) -> None:
    await ada.patch("/me/settings", body)


async def preview(ada: Account, chat: str, text: str | None = "Well?") -> dict[str, Any]:
    query = {"prompt": "true", **({"text": text} if text else {})}
    return await ada.get(f"/chats/{chat}/context", **query)


async def turn(ada: Account, chat: str, **body: Any) -> dict[str, Any]:
    """Take a turn; return the context of its reply."""
    return await context_of(ada, await take_turn(ada, chat, **body))


async def test_budgets_come_from_chat_account_and_server(ada: Account, chat: str) -> None:
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


async def test_a_prompt_fits_the_model_s_window(ada: Account, chat: str, server: Running) -> None:
    await set_chat(ada, chat, model=MODEL_ID)
    await seed(server, ada, chat, ["So it goes on and on. " * 50 for _ in range(100)])
    context = await turn(ada, chat, text="Well?")
    assert context["budgets"]["total"] == WINDOW
    assert context["budgets"]["reply_reserve"] == LONGEST_REPLY
    totals = context["totals"]
    assert totals["prompt"] + LONGEST_REPLY + totals["free"] == WINDOW
    # A quarter is reserved for retrieved items, and there are none.
    assert context["budgets"]["history"] == (WINDOW - LONGEST_REPLY) * 3 // 4
    assert 0 <= totals["free"] < WINDOW * 3 / 8
    assert context["left_out"][0]["reason"] == "budget"


@pytest.mark.parametrize("own", [{}, {"total": WINDOW, "history": WINDOW, "retrieval": WINDOW}])
async def test_lore_has_room_in_a_small_window(
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
        # The history shrinks by the size of the lore, and no further.
        given = quiet["totals"]["history"] - context["totals"]["history"]
        assert 1_000 < given < context["totals"]["retrieved"] + 2_000
    else:
        assert quiet["totals"]["history"] == context["totals"]["history"]

    await set_chat(ada, chat, lore={"reserve_percent": 0})
    without = await preview(ada, chat, asked)
    assert (len(without["retrieved"]) < 5) == bool(own)
    assert without["totals"]["history"] == quiet["totals"]["history"]


@pytest.mark.parametrize("budget", [0, 50, 333, 1000, 2500, 100_000])
async def test_the_longest_run_of_lines_is_kept(
    ada: Account, chat: str, server: Running, budget: int
) -> None:
    await seed(server, ada, chat, [f"{n} " + "la " * (n * 7 % 40) for n in range(80)])
    await set_chat(ada, chat, budgets={"history": budget}, memory={"enabled": False})
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


async def test_no_shorter_line_follows_a_gap(ada: Account, chat: str, server: Running) -> None:
    await seed(server, ada, chat, ["short", "short", "long " * 400, "late", "later"])
    await set_chat(ada, chat, budgets={"history": 300})
    sent = [message["text"] for message in (await preview(ada, chat))["prompt"]]
    assert sent[1:-1] == ["late", "later"]


async def test_the_first_line_rarely_changes(ada: Account, chat: str, server: Running) -> None:
    await seed(server, ada, chat, ["So it goes on and on. " * 5 for _ in range(60)])
    await set_chat(ada, chat, budgets={"history": 1200}, sampling={"max_output_tokens": 10})
    firsts = [
        (await turn(ada, chat, text=f"And then? {number}"))["history"]["first"]
        for number in range(16)
    ]
    assert firsts == sorted(firsts)
    moves = sum(one != other for one, other in pairwise(firsts))
    assert 1 <= moves <= 8


async def test_a_full_budget_leaves_no_history(ada: Account, server: Running) -> None:
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


async def test_previews_are_stable_and_show_the_prompt_of_the_turn(ada: Account) -> None:
    character = await ada.new_character(
        description="{{random::a::b::c::d::e::f}} {{pick::a::b::c::d}} {{roll::1d1000}}",
        personality="{{random::a::b::c::d::e::f}}",
        system_prompt="{{original}} {{roll::5d6}} {{random:a,b,c,d}}",
    )
    chat = (await ada.new_chat(character_ids=[character["id"]]))["id"]
    shown = [await preview(ada, chat) for _ in range(4)]
    assert shown[0] == shown[1] == shown[2] == shown[3]
    context = await turn(ada, chat, text="Well?")
    for name in ("prompt", "prompt_hash", "totals"):
        assert context[name] == shown[0][name]
    reply = (await ada.messages(chat))[-1]["id"]
    for _ in range(3):
        again = await turn(ada, chat, regenerate_of=reply)
        assert again["prompt"] == context["prompt"]
        reply = (await ada.messages(chat))[-1]["id"]


async def test_a_pick_stays_and_a_draw_changes_with_the_message(ada: Account) -> None:
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


async def test_variables_are_stored_only_with_a_line(ada: Account, server: Running) -> None:
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


async def test_a_preview_without_a_line_has_no_user_line(ada: Account, chat: str) -> None:
    context = await preview(ada, chat, text=None)
    assert [item["kind"] for item in context["items"]] == ["system_prompt"]
    assert context["prompt"][-1]["text"] == "The door creaks open."
    assert len(await ada.messages(chat)) == 1


ME = "/me/settings"


async def preview_budgets(ada: Account, chat: str, **body: Any) -> tuple[int, int]:
    """Return the total and the reply reserve of a preview."""
    context = await ada.post(f"/chats/{chat}/context", body)
    return context["budgets"]["total"], context["budgets"]["reply_reserve"]


@pytest.mark.parametrize(("name", "most"), [("total", 50_000), ("reply_reserve", 40_000)])
async def test_nothing_exceeds_maxima(
    sqlite_url: str, tmp_path: Path, name: str, most: int
) -> None:
    maxima: dict[str, Any] = {"max_budget_total": 50_000, "max_budget_reply_reserve": 40_000}
    async with running(sqlite_url, tmp_path, **maxima) as server, server.account() as ada:
        chat = (await ada.new_chat())["id"]
        own = f"/chats/{chat}/settings"
        other = {"reply_reserve": 100} if name == "total" else {"total": 50_000}
        for method, path in (("PATCH", ME), ("PATCH", own), ("POST", own[:-8] + "context")):
            before = await ada.get(path)
            budgets = {**other, name: most + 1}
            answer = await ada.ask(method, path, json={"budgets": budgets})
            detail = problem(answer, 422, "validation-failed")["detail"]
            assert f"budgets.{name}" in detail
            assert f"{most:,}" in detail
            assert f"TALEKEEPER_MAX_BUDGET_{name.upper()}" in detail
            assert (await ada.get(path)) == before
        largest = {"budgets": {"total": 50_000, "reply_reserve": 40_000}}
        for path in (ME, own):
            await ada.patch(path, largest)
        assert await preview_budgets(ada, chat, **largest) == (50_000, 40_000)


async def test_settings_above_a_lowered_maximum_are_reduced(
    database_url: str, tmp_path: Path
) -> None:
    large = {"budgets": {"total": 90_000, "reply_reserve": 60_000}}
    async with running(database_url, tmp_path) as server, server.account() as ada:
        chat = (await ada.new_chat())["id"]
        own = f"/chats/{chat}/settings"
        await ada.patch(ME, large)
        await ada.patch(own, large)
        assert await preview_budgets(ada, chat) == (90_000, 60_000)
    async with (
        running(database_url, tmp_path, max_budget_total=20_000) as server,
        server.signed_in("ada") as ada,
    ):
        # A reserve of 60,000 would leave nothing, so it is halved.
        assert await preview_budgets(ada, chat) == (20_000, 10_000)
        assert (await ada.turn(chat, text="Well?"))[-1].name == "turn.completed"
        for path in (ME, own):
            settings = await ada.patch(path, {"system_prompt": "Be brief."})
            assert settings["budgets"] == large["budgets"]
            answer = await ada.ask("PATCH", path, json={"budgets": {"total": 89_999}})
            problem(answer, 422, "validation-failed")
        await ada.patch(own, {"budgets": {"total": 8_000, "reply_reserve": 900}})
        assert await preview_budgets(ada, chat) == (8_000, 900)
    async with (
        running(database_url, tmp_path, max_budget_reply_reserve=500) as server,
        server.signed_in("ada") as ada,
    ):
        assert await preview_budgets(ada, chat) == (8_000, 500)


async def test_a_low_maximum_replaces_the_defaults(sqlite_url: str, tmp_path: Path) -> None:
    async with (
        running(sqlite_url, tmp_path, max_budget_total=4_096) as server,
        server.account() as ada,
    ):
        chat = (await ada.new_chat())["id"]
        assert await preview_budgets(ada, chat) == (4_096, 2_048)
        assert (await ada.turn(chat, text="Well?"))[-1].name == "turn.completed"


async def post_preview(ada: Account, chat: str, **body: Any) -> dict[str, Any]:
    return await ada.post(f"/chats/{chat}/context", body)


async def test_a_preview_accepts_budgets(ada: Account, chat: str, server: Running) -> None:
    await seed(server, ada, chat, [f"{n} " + "la " * 30 for n in range(60)])
    await ada.patch(f"/chats/{chat}/settings", {"budgets": {"retrieval": 77}})
    before = await post_preview(ada, chat, text="Well?")
    less = await post_preview(ada, chat, text="Well?", budgets={"history": 500, "total": 9_000})
    assert less["totals"]["history"] <= 500 < before["totals"]["history"]
    assert (less["budgets"]["history"], less["budgets"]["total"]) == (500, 9_000)
    assert less["budgets"]["retrieval"] == before["budgets"]["retrieval"] == 77
    assert less["left_out"][0]["reason"] == "budget"
    assert await post_preview(ada, chat, text="Well?") == before
    url = f"/chats/{chat}/context"
    assert (await ada.get(url, text="Well?")) == before


async def test_a_preview_refuses_impossible_budgets(ada: Account, chat: str) -> None:
    url = f"/chats/{chat}/context"
    for budgets in ({"total": 5_000, "reply_reserve": 5_000}, {"total": 10}, {"history": -1}):
        answer = await ada.ask("POST", url, json={"budgets": budgets})
        problem(answer, 422, "validation-failed")
    await ada.patch("/me/settings", {"budgets": {"reply_reserve": 3_000}})
    answer = await ada.ask("POST", url, json={"budgets": {"total": 2_000}})
    problem(answer, 422, "validation-failed")
    answer = await ada.ask("POST", url, json={"text": "word " * 3_000, "budgets": {"total": 4_000}})
    body = problem(answer, 422, "context-overflow")
    assert body["needed"] > body["available"]


async def test_a_draft_longer_than_a_url_is_previewed(ada: Account, chat: str) -> None:
    draft = "And then the tide came in again. " * 1_000
    context = await post_preview(ada, chat, text=draft, prompt=True)
    assert context["prompt"][-1] == {"role": "user", "text": draft}
    blank = await post_preview(ada, chat, text=" \n ")
    assert [item["kind"] for item in blank["items"]] == ["system_prompt"]
    assert blank["prompt"] is None
    assert len(await ada.messages(chat)) == 1


async def test_a_preview_shows_the_difference_to_the_last_prompt(ada: Account, chat: str) -> None:
    assert (await post_preview(ada, chat, diff="previous"))["difference"] is None
    first = await take_turn(ada, chat, text="Who is there?")
    last = await take_turn(ada, chat, text="Come in.")
    body = {"text": "Sit down.", "diff": "previous", "prompt": True}
    preview = await post_preview(ada, chat, **body)
    assert preview["difference"]["previous_message_id"] == last
    assert [item["text"] for item in preview["difference"]["changed"]] == ["Sit down."]
    # Everything that was sent, including the line: it is history now.
    sent = (await context_of(ada, last))["prompt"]
    assert preview["difference"]["shared_prefix"] == len(sent)
    now = await context_of(ada, await take_turn(ada, chat, text="Sit down."), diff="previous")
    assert now["prompt"] == preview["prompt"]
    for name in ("previous_message_id", "shared_prefix", "shared_tokens", "history_last"):
        assert now["difference"][name] == preview["difference"][name]
    await ada.patch(f"/messages/{first}", {"text": "Me."})
    assert (await post_preview(ada, chat, text="Well?", diff="previous"))["difference"] is None


async def test_a_reply_is_compared_with_the_one_above_it(ada: Account, chat: str) -> None:
    first = await take_turn(ada, chat, text="Who is there?")
    last = await take_turn(ada, chat, text="Come in.")
    shown = await context_of(ada, last, diff="previous")
    again = await take_turn(ada, chat, regenerate_of=last)
    assert again != last
    left = await context_of(ada, last, diff="previous")
    assert left["difference"] == shown["difference"]
    assert left["difference"]["previous_message_id"] == first


async def test_a_context_has_the_usage_that_the_provider_reported(ada: Account, chat: str) -> None:
    events = await ada.turn(chat, text="Who is there?")
    turn = await ada.get(f"/turns/{events[0].data['turn_id']}")
    context = await context_of(ada, events[0].data["reply_id"])
    assert context["usage"] == turn["usage"]
    assert context["usage"]["prompt_tokens"] > 0
    # The id of a client does not contain the time of the turn.
    low = f"00000000-0000-4000-8000-{uuid4().hex[:12]}"
    await ada.turn(chat, **{"continue": True, "turn_id": low})
    went_on = await context_of(ada, events[0].data["reply_id"])
    assert went_on["usage"]["prompt_tokens"] > context["usage"]["prompt_tokens"]
    assert (await post_preview(ada, chat))["usage"] is None


async def test_a_context_names_the_lorebook_of_an_entry(ada: Account, chat: str) -> None:
    entry = {"title": "Light", "keys": ["lighthouse"], "content": "It is dark."}
    book = await new_book(ada, entry)
    await link(ada, chat, book)
    context = await post_preview(ada, chat, text="To the lighthouse!")
    (item,) = context["retrieved"]
    assert context["containers"] == {item["source_id"]: book}
    message = await take_turn(ada, chat, text="To the lighthouse!")
    assert (await context_of(ada, message))["containers"] == {item["source_id"]: book}
    await ada.delete(f"/lorebooks/{book}")
    assert (await context_of(ada, message))["containers"] == {}


async def test_a_read_only_key_may_preview(ada: Account, chat: str, server: Running) -> None:
    body = {"label": "reader", "scope": "read"}
    key = await ada.post("/api-keys", body, 201)
    async with server.program(key["token"]) as program:
        ok(await program.post(f"{API}/chats/{chat}/context", json={"text": "Well?"}))
    async with server.account(f"{ada.name}-eve") as eve:
        answer = await eve.ask("POST", f"/chats/{chat}/context", json={})
        problem(answer, 404, "chat-not-found")


async def test_previews_have_a_quota(ada: Account, chat: str, server: Running) -> None:
    book = await new_book(ada, {"keys": ["inn"], "content": "An inn."})
    looks: dict[str, dict[str, Any]] = {
        f"/chats/{chat}/context": {},
        f"/lorebooks/{book}/test": {"texts": ["The inn."]},
        "/tokens": {"texts": ["The inn."]},
    }
    with contextlib.ExitStack() as stays:
        for _ in range(server.parts.settings.max_previews_per_user):
            stays.enter_context(server.parts.quotas.previews.hold(UUID(ada.user["id"])))
        for path, body in looks.items():
            refused = problem(await ada.ask("POST", path, json=body), 429, "quota-exceeded")
            assert refused["quota"] == "previews"
    for path, body in looks.items():
        await ada.post(path, body)


async def test_ratios_do_not_change_the_budgets_that_are_shown(
    ada: Account, chat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ratios, "RELOAD_SECONDS", 0.0)
    budgets = {"total": 14_000, "history": 7_001, "retrieval": 333, "reply_reserve": 1_999}
    for line in ("/demo long 400", "/demo long 100", "/demo long 250"):
        await take_turn(ada, chat, text=line)
    context = await post_preview(ada, chat, budgets=budgets)
    assert context["ratio"] != 1
    assert {name: context["budgets"][name] for name in budgets} == budgets
    totals = context["totals"]
    assert (totals["total"], totals["reply_reserve"]) == (14_000, 1_999)
    assert totals["prompt"] + totals["free"] + 1_999 == 14_000
