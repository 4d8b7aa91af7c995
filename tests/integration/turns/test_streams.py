"""Streams under stress: many at once, slow readers, and chats that change meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import func, select, text

from backend.chats.models import MESSAGE_CONTENT, Message
from backend.database.engine import Database
from backend.turns.api import streaming
from backend.turns.models import ContextText, StoredContextRecord, Turn
from backend.turns.run import registry as runs
from backend.turns.run.store import TurnStore
from backend.turns.run.turn_run import TurnRun
from tests.integration.turns.following import (
    Outage,
    check_tree,
    follow,
    is_over,
    lapse,
    others,
    said,
    take_words,
    turn_under_way,
)
from tests.integration.turns.seeding import identity_of
from tests.support.logs import caught_logs
from tests.support.server import Account, Event, Running, problem, read_events, running, text_of
from tests.support.thorough import rounds
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    """A server with a slow model, so that tests can act during a reply."""
    folder = tmp_path_factory.mktemp("data")
    async with running(shared_url, folder, demo_tokens_per_second=100) as server:
        yield server


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store replies five times a second, so that tests do not wait."""
    monkeypatch.setattr(runs, "STORE_SECONDS", 0.2)


async def stop(ada: Account, turn_id: str) -> None:
    assert (await ada.ask("POST", f"/turns/{turn_id}/stop")).status_code == 202


async def finish(ada: Account, turn_id: str, events: AsyncGenerator[Event]) -> list[Event]:
    """Stop a turn and read its stream to the end."""
    await stop(ada, turn_id)
    return [event async for event in events]


@pytest.mark.every_database
async def test_concurrent_turns_get_their_own_replies(database_url: str, tmp_path: Path) -> None:
    many = rounds(24, 100)
    settings: dict[str, Any] = {"demo_tokens_per_second": 200, "max_turns_per_user": many}
    async with running(database_url, tmp_path, **settings) as server, server.account() as ada:
        brief = {"sampling": {"max_output_tokens": 30}}
        await ada.patch("/me/settings", brief)
        chats = [(await ada.new_chat())["id"] for _ in range(many)]
        lines = [f"My number is {number}, and no other." for number in range(many)]
        heard = await asyncio.gather(
            *(ada.turn(chat, text=line) for chat, line in zip(chats, lines, strict=True))
        )
        for chat, line, events in zip(chats, lines, heard, strict=True):
            assert f"“{line}”" in text_of(events)
            assert events[-1].name == "turn.completed"
            stored = await ada.messages(chat)
            assert [each["text"] for each in stored] == [line, text_of(events)]
        assert len(server.parts.turns.runs) == 0


@pytest.mark.every_database
async def test_a_late_client_receives_everything_once(ada: Account) -> None:
    chat = (await ada.new_chat())["id"]
    async with turn_under_way(ada, chat, text="/demo long 100") as (turn_id, events):
        await until(lambda: is_over(ada, turn_id))
        heard = [event async for event in events]
    assert heard[-1].name == "turn.completed"
    assert text_of(heard) == (await ada.messages(chat))[-1]["text"]
    assert len({event.id for event in heard}) == len(heard)


@pytest.mark.every_database
@pytest.mark.parametrize("command", ["", "think", "long 3", "fail", "fail-midway", "silent", "cut"])
async def test_stored_events_equal_streamed_events(ada: Account, chat: str, command: str) -> None:
    live = await ada.turn(chat, text=f"/demo {command}" if command else "Hm.")
    stored = await follow(ada.client, live[0].data["turn_id"])
    assert said(stored) == said(live)
    expected = others(live)
    if not said(live):  # the reserved reply was deleted
        expected[0][1]["reply_id"] = None
    assert others(stored) == expected


async def test_a_stopped_turn_keeps_its_text_and_can_continue(ada: Account, chat: str) -> None:
    async with turn_under_way(ada, chat, text="/demo long 500") as (turn_id, events):
        heard = await take_words(events, 5)
        heard += await finish(ada, turn_id, events)
    assert heard[-1].data["state"] == "stopped"
    reply = (await ada.messages(chat))[-1]
    assert (reply["text"], reply["status"]) == (text_of(heard), "interrupted")
    stored = await follow(ada.client, turn_id)
    assert (said(stored), others(stored)[1:]) == (said(heard), others(heard))
    async with turn_under_way(ada, chat, **{"continue": True}) as (turn_id, events):
        more = await take_words(events, 3)
        more += await finish(ada, turn_id, events)
    again = (await ada.messages(chat))[-1]
    assert (again["id"], again["text"]) == (reply["id"], text_of(heard) + text_of(more))
    assert said(await follow(ada.client, turn_id)) == said(more)


async def test_a_repeated_or_late_stop_changes_nothing(ada: Account, chat: str) -> None:
    events = await ada.turn(chat, text="/demo long 2")
    before = await ada.get(f"/turns/{events[0].data['turn_id']}")
    assert before["state"] == "completed"
    for _ in range(2):
        await stop(ada, before["id"])
    assert (await ada.get(f"/turns/{before['id']}")) == before


async def test_a_turn_outlives_its_reply(ada: Account, chat: str) -> None:
    live = await ada.turn(chat, text="/demo long 3")
    await ada.delete(f"/messages/{live[0].data['reply_id']}", 200)
    turn = await ada.get(f"/turns/{live[0].data['turn_id']}")
    assert (turn["state"], turn["reply"]) == ("completed", None)
    for event in live:
        rest = await follow(ada.client, turn["id"], last_id=event.id)
        assert said(rest) == []
        if event is not live[-1]:
            assert rest[-1].name == "turn.completed"


@pytest.mark.parametrize("last_id", ["abc", "-1", "1.5", "²", "9" * 5000])
async def test_an_invalid_last_event_id_is_refused(ada: Account, chat: str, last_id: str) -> None:
    live = await ada.turn(chat, text="/demo long 1")
    answer = await ada.ask(
        "GET",
        f"/turns/{live[0].data['turn_id']}/events",
        headers={b"Last-Event-ID": last_id.encode()},
    )
    problem(answer, 400, "bad-request")


async def test_no_event_follows_the_last_one(ada: Account, chat: str) -> None:
    live = await ada.turn(chat, text="/demo long 1")
    turn_id = live[0].data["turn_id"]
    for last_id in (live[-1].id, live[-1].id + 10**12):
        assert await follow(ada.client, turn_id, last_id=last_id) == []


@pytest.mark.every_database
async def test_a_streaming_reply_is_locked(ada: Account, chat: str, server: Running) -> None:
    async with turn_under_way(ada, chat, text="/demo long 500") as (turn_id, events):
        heard = await take_words(events, 2)
        greeting, line, reply = await ada.messages(chat)
        assert (reply["status"], reply["id"]) == ("streaming", reply["id"])
        url = f"/messages/{reply['id']}"
        refused: list[httpx.Response] = [
            await ada.ask("PATCH", url, json={"text": "Mine."}),
            await ada.ask("DELETE", url),
            await ada.ask("DELETE", f"/messages/{line['id']}"),
            await ada.ask("DELETE", f"/messages/{greeting['id']}"),
            await ada.ask("POST", f"/chats/{chat}/fork", json={"message_id": reply["id"]}),
        ]
        for answer in refused:
            problem(answer, 409, "message-busy")
        heard += await finish(ada, turn_id, events)
    assert (await ada.messages(chat))[-1]["text"] == text_of(heard)
    await check_tree(server.parts.database, chat)


@pytest.mark.every_database
async def test_the_path_can_change_meanwhile(ada: Account, chat: str, server: Running) -> None:
    (greeting,) = await ada.messages(chat)
    async with turn_under_way(ada, chat, text="/demo long 500") as (turn_id, events):
        heard = await take_words(events, 2)
        line = (await ada.messages(chat))[1]
        hide = {"hidden": True}
        await ada.patch(f"/messages/{greeting['id']}", hide)
        edited = await ada.patch(f"/messages/{line['id']}", {"text": "Else."})
        assert [each["id"] for each in await ada.messages(chat)] == [greeting["id"], edited["id"]]
        heard += await finish(ada, turn_id, events)
    assert heard[-2].name == "message.saved"
    await ada.post(f"/messages/{line['id']}/activate")
    reply = (await ada.messages(chat))[-1]
    assert (reply["id"], reply["text"]) == (heard[-2].data["message_id"], text_of(heard))
    await check_tree(server.parts.database, chat)


@pytest.mark.every_database
async def test_a_hidden_reply_is_not_counted(ada: Account, chat: str, server: Running) -> None:
    async with turn_under_way(ada, chat, text="/demo long 500") as (turn_id, events):
        await take_words(events, 2)
        reply = (await ada.messages(chat))[-1]
        await ada.patch(f"/messages/{reply['id']}", {"hidden": True})
        await until(lambda: read_text(ada, reply["id"]))
        await check_tree(server.parts.database, chat)
        await finish(ada, turn_id, events)
    await check_tree(server.parts.database, chat)


async def read_text(ada: Account, message_id: str) -> str:
    text: str = (await ada.get(f"/messages/{message_id}"))["text"]
    return text


@pytest.mark.every_database
async def test_partial_replies_are_counted(ada: Account, chat: str, server: Running) -> None:
    """After a crash, partial replies are never counted again."""
    async with turn_under_way(ada, chat, text="/demo long 500") as (turn_id, events):
        await take_words(events, 1)
        reply_id = (await ada.messages(chat))[-1]["id"]

        async def second_store() -> bool:
            return len((await read_text(ada, reply_id)).split()) > 70

        await until(second_store)
        rows = await check_tree(server.parts.database, chat)
        (row,) = (row for row in rows if str(row.id) == reply_id)
        sealer = (await identity_of(server, ada)).sealer
        words = len(sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content).split())
        assert words + 4 <= row.tokens <= words + 14
        await finish(ada, turn_id, events)
    reply = (await ada.messages(chat))[-1]
    assert reply["tokens"] == len(reply["text"].split()) + 4


@pytest.mark.every_database
async def test_deleting_a_chat_ends_its_turn(ada: Account, chat: str, server: Running) -> None:
    async with turn_under_way(ada, chat, text="/demo long 5000") as (_, events):
        await take_words(events, 2)
        assert (await ada.ask("DELETE", f"/chats/{chat}")).status_code == 204
        rest = [event async for event in events]
    assert (rest[-1].name, rest[-1].data["state"]) == ("turn.completed", "stopped")
    assert "message.saved" not in {event.name for event in rest}
    assert len(server.parts.turns.runs) == 0
    async with server.parts.database.read() as session:
        for table in (Message, Turn, StoredContextRecord, ContextText):
            query = select(func.count()).where(table.chat_id == UUID(chat))
            assert await session.scalar(query) == 0


async def test_a_few_replies_are_stored_at_once_without_blocking(
    ada: Account, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = server.parts.turns.runs
    conclude, may_end = registry._conclude, asyncio.Event()
    begun = list[UUID]()

    async def hang(run: TurnRun) -> None:
        begun.append(run.turn_id)
        await may_end.wait()
        await conclude(run)

    monkeypatch.setattr(registry, "_conclude", hang)
    monkeypatch.setattr(runs, "MAX_END_WAIT_SECONDS", 3600)
    chats = [str((await ada.new_chat())["id"]) for _ in range(2 * runs.MAX_CONCURRENT_ENDS + 1)]
    turns = [asyncio.create_task(ada.turn(chat, text="/demo long 3")) for chat in chats]

    async def have_been_said() -> bool:
        under_way = list(registry._runs.values())
        return len(under_way) == len(chats) and all(
            run._speaking and run._speaking.done() for run in under_way
        )

    await until(have_been_said)
    assert len(begun) == runs.MAX_CONCURRENT_ENDS
    monkeypatch.setattr(runs, "MAX_END_WAIT_SECONDS", 0)
    turns.append(asyncio.create_task(ada.turn((await ada.new_chat())["id"], text="/demo long 3")))

    async def has_passed() -> bool:
        return len(begun) > runs.MAX_CONCURRENT_ENDS

    await until(has_passed)
    may_end.set()
    for events in await asyncio.gather(*turns):
        assert events[-1].name == "turn.completed"


@pytest.mark.every_database
async def test_a_reply_is_stored_after_a_database_outage(
    ada: Account, chat: str, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "RETRY_SECONDS", (0.05,) * 100)
    outage = Outage(server.parts.database, monkeypatch)
    async with turn_under_way(ada, chat, text="/demo long 60") as (turn_id, events):
        await take_words(events, 30)
        outage.is_on = True
        await take_words(events, 30)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await anext(events)
        run = server.parts.turns.runs.get(UUID(turn_id))
        assert run is not None
        run.stop()  # too late: the reply is complete
    outage.is_on = False
    reply = await until(lambda: complete_reply(ada, chat))
    assert len(reply["text"].split()) == 60
    assert (await ada.get(f"/turns/{turn_id}"))["state"] == "completed"


async def complete_reply(ada: Account, chat: str) -> dict[str, Any] | None:
    reply = (await ada.messages(chat))[-1]
    return reply if reply["status"] == "complete" else None


@pytest.mark.every_database
async def test_a_reply_that_cannot_be_stored_is_recovered(
    ada: Account, chat: str, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "RETRY_SECONDS", (0.01,))
    outage = Outage(server.parts.database, monkeypatch)
    async with turn_under_way(ada, chat, text="/demo long 60") as (turn_id, events):
        heard = await take_words(events, 40)
        outage.is_on = True
        heard += [event async for event in events]
        outage.is_on = False
    assert heard[-1].name == "turn.failed"
    assert heard[-1].data["type"] == "urn:talekeeper:problem:database-unavailable"
    refused = await ada.ask("POST", f"/chats/{chat}/turns", json={"text": "And now?"})
    problem(refused, 409, "turn-in-progress")
    await lapse(server.parts.database, turn_id)
    await server.parts.turns.recover()
    reply = (await ada.messages(chat))[-1]
    assert reply["status"] == "interrupted"
    assert reply["text"]
    assert text_of(heard).startswith(reply["text"])
    rest = await follow(ada.client, turn_id, last_id=heard[-2].id)
    assert rest[-1].data["type"] == "urn:talekeeper:problem:turn-interrupted"
    await check_tree(server.parts.database, chat)


@pytest.mark.postgres
async def test_broken_connections_lose_nothing(postgres_url: str, tmp_path: Path) -> None:
    async with (
        running(postgres_url, tmp_path, demo_tokens_per_second=100) as server,
        server.account() as ada,
    ):
        chat = (await ada.new_chat())["id"]
        async with turn_under_way(ada, chat, text="/demo long 60") as (_, events):
            await take_words(events, 2)
            other = Database(postgres_url)
            async with other.write() as session:
                await session.execute(
                    text(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
                )
            await other.dispose()
            rest = [event async for event in events]
        assert rest[-1].name == "turn.completed"
        reply = (await ada.messages(chat))[-1]
        assert (reply["status"], len(reply["text"].split())) == ("complete", 60)


async def test_silence_has_comments(
    ada: Account, chat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(streaming, "BEAT_SECONDS", 0.02)
    async with ada.stream("POST", f"/chats/{chat}/turns", json={"text": "/demo slow"}) as response:
        lines: list[str] = []
        async for line in response.aiter_lines():
            lines.append(line)
            if line.startswith(":"):
                break
    assert lines[0] == "id: 1"
    await stop(ada, response.headers["x-turn-id"])


@pytest.mark.every_database
async def test_the_stream_has_headers_against_buffering(ada: Account, chat: str) -> None:
    async with ada.stream(
        "POST", f"/chats/{chat}/turns", json={"text": "/demo long 1"}
    ) as response:
        headers = response.headers
        events = [event async for event in read_events(response)]
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-store"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-turn-id"] == events[0].data["turn_id"]


@pytest.mark.every_database
async def test_tree_changes_and_reply_stores_never_deadlock(
    ada: Account, chat: str, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL a deadlock would be an error of one of them."""
    monkeypatch.setattr(runs, "STORE_SECONDS", 0.01)
    (greeting,) = await ada.messages(chat)

    async def change(number: int) -> None:
        body: dict[str, Any] = {"hidden": number % 2 == 0}
        await ada.patch(f"/messages/{greeting['id']}", body)

    for _ in range(2):
        async with turn_under_way(ada, chat, text="/demo long 500") as (turn_id, events):
            await asyncio.gather(*(change(number) for number in range(30)))
            await finish(ada, turn_id, events)
        await check_tree(server.parts.database, chat)


async def test_progress_that_cannot_be_stored_is_logged(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> set[UUID]:
        raise RuntimeError

    monkeypatch.setattr(TurnStore, "store_progress", fail)
    with caught_logs() as logged:
        async with (
            running(sqlite_url, tmp_path, demo_tokens_per_second=100) as server,
            server.account() as ada,
        ):
            chats = [str((await ada.new_chat())["id"]) for _ in range(2)]
            async with (
                turn_under_way(ada, chats[0], text="/demo long 400") as (first, _),
                turn_under_way(ada, chats[1], text="/demo long 400") as (second, _),
            ):

                async def are_named() -> bool:
                    lines = logged.lines("turn.progress_not_stored")
                    return {first, second} <= {line.get("turn_id") for line in lines}

                await until(are_named)
