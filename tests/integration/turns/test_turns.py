"""A turn from the line to the stored reply with the demo model, and the list of turns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.integration.turns.following import turn_under_way
from tests.support.server import Account, Running, ok, problem, read_events, running, text_of

pytestmark = pytest.mark.anyio


async def test_a_turn_streams_its_events_and_stores_both_lines(ada: Account, chat: str) -> None:
    events = await ada.turn(chat, text="Hello there.")
    names = [event.name for event in events]
    assert names[:2] == ["turn.started", "context.ready"]
    assert set(names[2:-3]) == {"text.delta"}
    assert names[-3:] == ["usage", "message.saved", "turn.completed"]
    ids = [event.id for event in events]
    assert ids == sorted(set(ids))
    lines = await ada.messages(chat)
    assert [line["role"] for line in lines] == ["assistant", "user", "assistant"]
    assert lines[1]["text"] == "Hello there."
    assert lines[2]["text"] == text_of(events)
    assert lines[2]["status"] == "complete"
    assert events[-2].data["message_id"] == lines[2]["id"]


async def test_accept_json_returns_the_finished_turn(ada: Account, chat: str) -> None:
    answer = await ada.ask(
        "POST", f"/chats/{chat}/turns", json={"text": "Hi."}, headers={"Accept": "application/json"}
    )
    turn = ok(answer)
    assert turn["state"] == "completed"
    assert turn["reply"]["text"]
    assert turn["usage"]["model"] == "demo"


async def test_a_returning_client_receives_missed_events(ada: Account, chat: str) -> None:
    events = await ada.turn(chat, text="Tell me more.")
    turn_id = events[0].data["turn_id"]
    for index in (0, 1, len(events) // 2, len(events) - 2, len(events) - 1):
        async with ada.stream(
            "GET", f"/turns/{turn_id}/events", headers={"Last-Event-ID": str(events[index].id)}
        ) as response:
            rest = [event async for event in read_events(response)]
        assert text_of(events[: index + 1]) + text_of(rest) == text_of(events)
        if index < len(events) - 1:
            assert rest[-1].name == "turn.completed"


async def test_a_disconnect_does_not_stop_the_reply(database_url: str, tmp_path: Path) -> None:
    async with (
        running(database_url, tmp_path, demo_tokens_per_second=100) as server,
        server.account() as ada,
    ):
        chat = (await ada.new_chat())["id"]
        async with ada.stream(
            "POST", f"/chats/{chat}/turns", json={"text": "/demo long 60"}
        ) as response:
            started = await anext(read_events(response))
        turn: dict[str, Any] = {}
        for _ in range(100):
            turn = await ada.get(f"/turns/{started.data['turn_id']}")
            if turn["state"] != "running":
                break
            await asyncio.sleep(0.05)
        assert turn["state"] == "completed"
        reply = (await ada.messages(chat))[-1]
        assert reply["id"] == started.data["reply_id"]
        assert len(reply["text"].split()) >= 60


async def test_a_chat_has_one_running_turn(database_url: str, tmp_path: Path) -> None:
    async with (
        running(database_url, tmp_path, demo_tokens_per_second=20) as server,
        server.account() as ada,
    ):
        chat = (await ada.new_chat())["id"]
        async with ada.stream(
            "POST", f"/chats/{chat}/turns", json={"text": "/demo long 100"}
        ) as response:
            events = read_events(response)
            first = await anext(events)
            refused = await ada.ask("POST", f"/chats/{chat}/turns", json={"text": "Me!"})
            body = problem(refused, 409, "turn-in-progress")
            assert body["turn_id"] == first.data["turn_id"]
            for other in ({"continue": True}, {}, {"impersonate": True}):
                refused = await ada.ask("POST", f"/chats/{chat}/turns", json=other)
                assert problem(refused, 409, "turn-in-progress")["turn_id"] == body["turn_id"]
            stopped = await ada.ask("POST", f"/turns/{first.data['turn_id']}/stop")
            assert stopped.status_code == 202
            rest = [event async for event in events]
        assert rest[-1].name == "turn.completed"
        assert rest[-1].data["state"] == "stopped"
        lines = await ada.messages(chat)
        assert [line["text"] for line in lines if line["role"] == "user"] == ["/demo long 100"]


async def test_a_repeated_turn_id_returns_the_same_turn(ada: Account, chat: str) -> None:
    turn_id = str(uuid4())
    first, second = await asyncio.gather(
        ada.turn(chat, text="Once.", turn_id=turn_id), ada.turn(chat, text="Once.", turn_id=turn_id)
    )
    third = await ada.turn(chat, text="Once.", turn_id=turn_id)
    assert text_of(first) == text_of(second) == text_of(third)
    assert len(await ada.messages(chat)) == 3
    reused = await ada.ask(
        "POST", f"/chats/{chat}/turns", json={"text": "Twice.", "turn_id": turn_id}
    )
    problem(reused, 409, "turn-id-reused")


async def test_a_regenerated_reply_has_the_same_prompt(ada: Account, chat: str) -> None:
    events = await ada.turn(chat, text="Who are you?")
    first = events[0].data["reply_id"]
    again = await ada.turn(chat, regenerate_of=first)
    second = again[0].data["reply_id"]
    assert second != first
    siblings = (await ada.get(f"/messages/{second}/siblings"))["items"]
    assert [each["id"] for each in siblings] == [first, second]
    assert [each["is_active"] for each in siblings] == [False, True]
    contexts = [(await ada.get(f"/messages/{each}/context")) for each in (first, second)]
    assert contexts[0]["prompt"] == contexts[1]["prompt"]


async def test_continuing_extends_the_last_reply(ada: Account, chat: str) -> None:
    before = text_of(await ada.turn(chat, text="Go on."))
    more = text_of(await ada.turn(chat, **{"continue": True}))
    line = (await ada.messages(chat))[-1]
    assert line["text"] == before + more
    assert line["sibling_count"] == 1
    context = await ada.get(f"/messages/{line['id']}/context")
    assert context["prompt"][-2]["text"] == before


async def test_impersonating_stores_nothing(ada: Account, chat: str) -> None:
    events = await ada.turn(chat, impersonate=True)
    assert text_of(events)
    assert "message.saved" not in {event.name for event in events}
    assert len(await ada.messages(chat)) == 1


async def test_suggestions_are_two_to_four_lines(ada: Account, chat: str) -> None:
    url = f"/chats/{chat}/suggestions"
    assert len((await ada.post(url))["items"]) == 3
    assert len((await ada.post(url, {"count": 2}))["items"]) == 2
    problem(await ada.ask("POST", url, json={"count": 9}), 422, "validation-failed")


@pytest.mark.parametrize(
    ("command", "slug"),
    [
        ("fail", "model-unavailable"),
        ("silent", "model-empty-reply"),
        ("rate-limit", "model-rate-limited"),
    ],
)
async def test_a_failed_model_keeps_line(ada: Account, chat: str, command: str, slug: str) -> None:
    events = await ada.turn(chat, text=f"/demo {command}")
    assert events[-1].name == "turn.failed"
    assert events[-1].data["type"] == f"urn:talekeeper:problem:{slug}"
    lines = await ada.messages(chat)
    assert lines[-1]["text"] == f"/demo {command}"
    answered = await ada.turn(chat)
    assert answered[0].data["user_message_id"] == lines[-1]["id"]


async def test_a_broken_reply_keeps_its_text(ada: Account, chat: str) -> None:
    events = await ada.turn(chat, text="/demo cut")
    assert events[-1].name == "turn.failed"
    line = (await ada.messages(chat))[-1]
    assert line["status"] == "failed"
    assert line["text"] == text_of(events) != ""


async def test_thinking_is_streamed_and_stored_separately(ada: Account, chat: str) -> None:
    events = await ada.turn(chat, text="/demo think")
    thoughts = "".join(e.data["text"] for e in events if e.name == "thinking.delta")
    line = (await ada.messages(chat))[-1]
    assert thoughts
    assert line["thinking"] == thoughts
    assert line["text"] == text_of(events)


async def test_a_line_that_does_not_fit_is_itemised(ada: Account, chat: str) -> None:
    settings = {"budgets": {"total": 2048, "reply_reserve": 1024}}
    await ada.patch(f"/chats/{chat}/settings", settings)
    answer = await ada.ask("POST", f"/chats/{chat}/turns", json={"text": "many words " * 2000})
    body = problem(answer, 422, "context-overflow")
    assert "user_line" in {section["kind"] for section in body["sections"]}
    assert len(await ada.messages(chat)) == 1


async def test_empty_turns_are_refused_with_their_reason(ada: Account, chat: str) -> None:
    answer = await ada.ask("POST", f"/chats/{chat}/turns", json={})
    problem(answer, 422, "nothing-to-answer")
    both = await ada.ask("POST", f"/chats/{chat}/turns", json={"text": "a", "impersonate": True})
    problem(both, 422, "validation-failed")
    problem(
        await ada.ask("POST", f"/chats/{chat}/turns", json={"text": "  "}), 422, "message-empty"
    )


async def list_turns(ada: Account, chat: str, **query: Any) -> dict[str, Any]:
    return await ada.get(f"/chats/{chat}/turns", **query)


async def test_turns_are_listed_newest_first_in_pages(ada: Account, chat: str) -> None:
    made = [(await ada.turn(chat, text=f"Line {n}."))[0].data["turn_id"] for n in range(3)]
    first = await list_turns(ada, chat, limit=2)
    assert [turn["id"] for turn in first["items"]] == [made[2], made[1]]
    assert first["next"] == made[1]
    rest = await list_turns(ada, chat, limit=2, after=first["next"])
    assert [turn["id"] for turn in rest["items"]] == [made[0]]
    assert rest["next"] is None
    assert first["items"][0]["totals"]["prompt"] > 0
    assert (first["items"][0]["text"], first["items"][0]["reply"]) == (None, None)


@pytest.mark.every_database
async def test_a_client_turn_id_is_listed_by_time(ada: Account, chat: str) -> None:
    low = "00000000-0000-4000-8000-000000000000"
    before = (await ada.turn(chat, text="One."))[0].data["turn_id"]
    await ada.turn(chat, text="Two.", turn_id=low)
    listed = [turn["id"] for turn in (await list_turns(ada, chat))["items"]]
    assert listed == [low, before]
    behind = await list_turns(ada, chat, after=low)
    assert [turn["id"] for turn in behind["items"]] == [before]


@pytest.mark.every_database
async def test_the_running_turn_is_found_by_its_state(database_url: str, tmp_path: Path) -> None:
    async with (
        running(database_url, tmp_path, demo_tokens_per_second=50) as server,
        server.account() as ada,
    ):
        chat = (await ada.new_chat())["id"]
        await ada.turn(chat, text="Hello.")
        async with turn_under_way(ada, chat, text="/demo long 5000") as (turn_id, _):
            found = (await list_turns(ada, chat, state="running"))["items"]
            assert [(turn["id"], turn["finished_at"]) for turn in found] == [(turn_id, None)]
        await server.parts.turns.close()
        assert (await list_turns(ada, chat, state="running"))["items"] == []
        cut = (await list_turns(ada, chat, state="interrupted"))["items"]
        assert [turn["id"] for turn in cut] == [turn_id]


async def test_a_failed_turn_shows_its_problem(ada: Account, chat: str) -> None:
    await ada.turn(chat, text="/demo fail")
    newest = (await list_turns(ada, chat, limit=1))["items"][0]
    assert newest["state"] == "failed"
    assert newest["problem"]["type"].startswith("urn:talekeeper:problem:")


async def test_turns_of_other_users_are_hidden(ada: Account, chat: str, server: Running) -> None:
    turn = (await ada.turn(chat, text="Hello."))[0].data["turn_id"]
    async with server.account(f"bo-of-{ada.name}") as bo:
        problem(await bo.ask("GET", f"/chats/{chat}/turns"), 404, "chat-not-found")
        own = (await bo.new_chat())["id"]
        assert (await list_turns(bo, own, after=turn))["items"] == []


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 501}, {"state": "odd"}])
async def test_invalid_queries_are_refused(ada: Account, chat: str, query: dict[str, Any]) -> None:
    answer = await ada.ask("GET", f"/chats/{chat}/turns", params=query)
    problem(answer, 422, "validation-failed")
