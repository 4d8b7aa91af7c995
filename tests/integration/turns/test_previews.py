"""Previews with other budgets and long drafts, and what they say beside the prompt."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID, uuid4

import pytest

from backend.llm import token_ratios as ratios
from tests.integration.turns.seeding import seed
from tests.support.memory import API, link, new_book
from tests.support.server import Account, Running, ok, problem

pytestmark = pytest.mark.anyio


async def tried(ada: Account, chat: str, **body: Any) -> dict[str, Any]:
    return await ada.post(f"/chats/{chat}/context", body)


async def context_of(ada: Account, message_id: str, **query: str) -> dict[str, Any]:
    return await ada.get(f"/messages/{message_id}/context", **query)


async def reply(ada: Account, chat: str, **body: Any) -> str:
    events = await ada.turn(chat, **body)
    assert events[-1].name == "turn.completed", events[-1]
    return str(events[0].data["reply_id"])


async def test_budgets_can_be_tried_without_keeping_them(
    ada: Account, chat: str, server: Running
) -> None:
    await seed(server, ada, chat, [f"{n} " + "la " * 30 for n in range(60)])
    await ada.patch(f"/chats/{chat}/settings", {"budgets": {"retrieval": 77}})
    before = await tried(ada, chat, text="Well?")
    less = await tried(ada, chat, text="Well?", budgets={"history": 500, "total": 9_000})
    assert less["totals"]["history"] <= 500 < before["totals"]["history"]
    assert (less["budgets"]["history"], less["budgets"]["total"]) == (500, 9_000)
    assert less["budgets"]["retrieval"] == before["budgets"]["retrieval"] == 77
    assert less["left_out"][0]["reason"] == "budget"
    assert await tried(ada, chat, text="Well?") == before
    url = f"/chats/{chat}/context"
    assert (await ada.get(url, text="Well?")) == before


async def test_budgets_that_leave_no_room_are_refused_as_in_the_settings(
    ada: Account, chat: str
) -> None:
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


async def test_a_draft_that_no_address_could_hold_is_previewed(ada: Account, chat: str) -> None:
    draft = "And then the tide came in again. " * 1_000
    context = await tried(ada, chat, text=draft, prompt=True)
    assert context["prompt"][-1] == {"role": "user", "text": draft}
    blank = await tried(ada, chat, text=" \n ")
    assert [item["kind"] for item in blank["items"]] == ["system_prompt"]
    assert blank["prompt"] is None
    assert len(await ada.messages(chat)) == 1


async def test_a_preview_says_how_it_differs_from_the_last_reply_s_prompt(
    ada: Account, chat: str
) -> None:
    assert (await tried(ada, chat, diff="previous"))["difference"] is None
    first = await reply(ada, chat, text="Who is there?")
    last = await reply(ada, chat, text="Come in.")
    body = {"text": "Sit down.", "diff": "previous", "prompt": True}
    preview = await tried(ada, chat, **body)
    assert preview["difference"]["previous_message_id"] == last
    assert [item["text"] for item in preview["difference"]["changed"]] == ["Sit down."]
    # All that was sent, the line behind the history included: it is history now.
    sent = (await context_of(ada, last))["prompt"]
    assert preview["difference"]["shared_prefix"] == len(sent)
    now = await context_of(ada, await reply(ada, chat, text="Sit down."), diff="previous")
    assert now["prompt"] == preview["prompt"]
    for name in ("previous_message_id", "shared_prefix", "shared_tokens", "history_last"):
        assert now["difference"][name] == preview["difference"][name]
    await ada.patch(f"/messages/{first}", {"text": "Me."})
    assert (await tried(ada, chat, text="Well?", diff="previous"))["difference"] is None


async def test_a_reply_of_another_branch_is_held_against_the_one_above_it(
    ada: Account, chat: str
) -> None:
    first = await reply(ada, chat, text="Who is there?")
    last = await reply(ada, chat, text="Come in.")
    shown = await context_of(ada, last, diff="previous")
    again = await reply(ada, chat, regenerate_of=last)
    assert again != last
    left = await context_of(ada, last, diff="previous")
    assert left["difference"] == shown["difference"]
    assert left["difference"]["previous_message_id"] == first


async def test_a_reply_s_context_has_what_the_provider_reported(ada: Account, chat: str) -> None:
    events = await ada.turn(chat, text="Who is there?")
    turn = await ada.get(f"/turns/{events[0].data['turn_id']}")
    context = await context_of(ada, events[0].data["reply_id"])
    assert context["usage"] == turn["usage"]
    assert context["usage"]["prompt_tokens"] > 0
    # An id of the client's own says nothing of when the turn was.
    low = f"00000000-0000-4000-8000-{uuid4().hex[:12]}"
    await ada.turn(chat, **{"continue": True, "turn_id": low})
    went_on = await context_of(ada, events[0].data["reply_id"])
    assert went_on["usage"]["prompt_tokens"] > context["usage"]["prompt_tokens"]
    assert (await tried(ada, chat))["usage"] is None


async def test_it_says_which_lorebook_an_entry_is_in(ada: Account, chat: str) -> None:
    entry = {"title": "Light", "keys": ["lighthouse"], "content": "It is dark."}
    book = await new_book(ada, entry)
    await link(ada, chat, book)
    context = await tried(ada, chat, text="To the lighthouse!")
    (item,) = context["retrieved"]
    assert context["containers"] == {item["source_id"]: book}
    message = await reply(ada, chat, text="To the lighthouse!")
    assert (await context_of(ada, message))["containers"] == {item["source_id"]: book}
    await ada.delete(f"/lorebooks/{book}")
    assert (await context_of(ada, message))["containers"] == {}


async def test_a_key_that_may_only_read_may_preview(
    ada: Account, chat: str, server: Running
) -> None:
    body = {"label": "reader", "scope": "read"}
    key = await ada.post("/api-keys", body, 201)
    async with server.program(key["token"]) as program:
        ok(await program.post(f"{API}/chats/{chat}/context", json={"text": "Well?"}))
    async with server.account(f"{ada.name}-eve") as eve:
        answer = await eve.ask("POST", f"/chats/{chat}/context", json={})
        problem(answer, 404, "chat-not-found")


async def test_whoever_has_too_much_under_way_waits_with_looking_too(
    ada: Account, chat: str, server: Running
) -> None:
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


async def test_budgets_are_shown_as_they_were_set_whatever_the_provider_counts(
    ada: Account, chat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ratios, "RELOAD_SECONDS", 0.0)
    budgets = {"total": 14_000, "history": 7_001, "retrieval": 333, "reply_reserve": 1_999}
    for line in ("/demo long 400", "/demo long 100", "/demo long 250"):
        await reply(ada, chat, text=line)
    context = await tried(ada, chat, budgets=budgets)
    assert context["ratio"] != 1
    assert {name: context["budgets"][name] for name in budgets} == budgets
    totals = context["totals"]
    assert (totals["total"], totals["reply_reserve"]) == (14_000, 1_999)
    assert totals["prompt"] + totals["free"] + 1_999 == 14_000
