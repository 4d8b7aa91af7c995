"""Two Talekeepers on one PostgreSQL: what one of them streams, the other follows and stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from backend.chats.models import Chat, Message
from backend.core.events import Participants
from backend.enrichment.outbox import EnrichmentOutbox
from backend.turns.api import service
from backend.turns.models import Turn
from backend.turns.run import registry as runs
from backend.turns.run.recovery import TurnRecovery
from backend.turns.run.store import TurnStore
from backend.turns.run.turn_run import TurnRun
from tests.integration.turns.following import (
    TURN,
    Outage,
    check_tree,
    follow,
    is_over,
    lapse,
    others,
    said,
    same_browser,
    take_words,
    turn_under_way,
)
from tests.support.server import (
    Account,
    Event,
    Running,
    ok,
    problem,
    read_events,
    running,
    text_of,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store and look five times as often, so that tests need not wait for it."""
    monkeypatch.setattr(runs, "STORE_SECONDS", 0.2)
    monkeypatch.setattr(service, "FOLLOW_SECONDS", 0.1)


@pytest.fixture
async def one(postgres_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(postgres_url, tmp_path, demo_tokens_per_second=100) as server:
        yield server


@pytest.fixture
async def other(postgres_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    """Its model speaks at once."""
    async with running(postgres_url, tmp_path / "other") as server:
        yield server


@pytest.fixture
async def ada(one: Running) -> AsyncGenerator[Account]:
    async with one.account() as ada:
        yield ada


@pytest.fixture
async def there(ada: Account, other: Running) -> AsyncGenerator[Account]:
    """The same browser at the other process."""
    async with same_browser(ada, other) as there:
        yield there


async def test_the_other_process_follows_a_reply_to_its_end(
    ada: Account, there: Account, chat: str
) -> None:
    async with turn_under_way(ada, chat, text="/demo long 80") as (turn_id, events):
        stored = await follow(there.client, turn_id)
        live = [event async for event in events]
    assert (said(stored), others(stored)[1:]) == (said(live), others(live))
    ids = [event.id for event in stored]
    assert ids == sorted(set(ids))
    assert [event.name for event in stored].count("text.delta") > 1


async def test_going_from_one_process_to_the_other_and_back_gets_every_character_once(
    ada: Account, there: Account, chat: str
) -> None:
    """Going over, the client is ahead of what is stored; coming back, it is behind."""
    async with turn_under_way(ada, chat, text="/demo long 120") as (turn_id, events):
        heard = await take_words(events, 30)
    for client in (there.client, ada.client, there.client):
        headers = {"Last-Event-ID": str(heard[-1].id)}
        async with client.stream("GET", f"{TURN}/{turn_id}/events", headers=headers) as response:
            rest: list[Event] = []
            async for event in read_events(response):
                rest.append(event)
                if len(rest) == 2:
                    break
        heard += rest
    heard += await follow(ada.client, turn_id, last_id=heard[-1].id)
    assert heard[-1].name == "turn.completed"
    assert text_of(heard) == (await ada.messages(chat))[-1]["text"]
    ids = [event.id for event in heard]
    assert ids == sorted(set(ids))


async def test_a_turn_is_stopped_by_the_process_that_runs_it_when_another_is_asked(
    ada: Account, there: Account, chat: str
) -> None:
    async with turn_under_way(ada, chat, text="/demo long 5000") as (turn_id, events):
        heard = await take_words(events, 2)
        assert (await there.ask("POST", f"/turns/{turn_id}/stop")).status_code == 202
        heard += [event async for event in events]
    assert (heard[-1].name, heard[-1].data["state"]) == ("turn.completed", "stopped")
    reply = (await there.messages(chat))[-1]
    assert (reply["status"], reply["text"]) == ("interrupted", text_of(heard))


async def test_a_chat_with_a_turn_in_one_process_is_busy_in_the_other(
    ada: Account, there: Account, chat: str
) -> None:
    turn_id = str(uuid4())
    line = {"text": "/demo long 5000", "turn_id": turn_id}
    async with turn_under_way(ada, chat, **line) as (_, events):
        refused = await there.ask("POST", f"/chats/{chat}/turns", json={"text": "Me!"})
        assert problem(refused, 409, "turn-in-progress")["turn_id"] == turn_id
        again = asyncio.create_task(there.turn(chat, **line))
        live = await take_words(events, 20)
        assert (await ada.ask("POST", f"/turns/{turn_id}/stop")).status_code == 202
        live += [event async for event in events]
    assert text_of(await again) == text_of(live)
    assert len(await there.messages(chat)) == 3
    turn = ok(
        await there.ask(
            "POST", f"/chats/{chat}/turns", json=line, headers={"Accept": "application/json"}
        )
    )
    assert (turn["state"], turn["reply"]["text"]) == ("stopped", text_of(live))


async def test_whoever_follows_elsewhere_hears_that_the_chat_was_deleted(
    ada: Account, there: Account, chat: str
) -> None:
    async with turn_under_way(ada, chat, text="/demo long 5000") as (turn_id, events):
        await take_words(events, 2)
        async with there.stream("GET", f"/turns/{turn_id}/events") as response:
            following = read_events(response)
            await anext(following)
            assert (await ada.ask("DELETE", f"/chats/{chat}")).status_code == 204
            rest = [event async for event in following]
    assert rest[-1].name == "turn.failed"
    assert rest[-1].data["type"] == "urn:talekeeper:problem:turn-not-found"


async def test_a_process_that_goes_down_in_order_keeps_all_that_was_said(
    postgres_url: str, tmp_path: Path, other: Running
) -> None:
    async with (
        running(postgres_url, tmp_path, demo_tokens_per_second=100) as one,
        one.account() as ada,
        same_browser(ada, other) as there,
    ):
        chat = (await ada.new_chat())["id"]
        async with turn_under_way(ada, chat, text="/demo long 5000") as (turn_id, events):
            heard = await take_words(events, 5)
            await one.parts.turns.close()
            heard += [event async for event in events]
        reply = (await there.messages(chat))[-1]
        assert (reply["text"], reply["status"]) == (text_of(heard), "interrupted")
        assert reply["tokens"] == len(reply["text"].split()) + 4
        assert heard[-1].name == "turn.failed"
        assert heard[-1].data["type"] == "urn:talekeeper:problem:turn-interrupted"
        stored = await follow(there.client, turn_id)
        assert (said(stored), others(stored)[1:]) == (said(heard), others(heard))


async def test_a_process_that_goes_down_lets_go_of_those_who_follow_a_turn_of_the_other(
    ada: Account, there: Account, other: Running, chat: str
) -> None:
    async with turn_under_way(ada, chat, text="/demo long 300") as (turn_id, live):
        path = f"/turns/{turn_id}/events"
        async with there.stream("GET", path) as response:
            following = read_events(response)
            heard = await take_words(following, 5)
            await other.parts.turns.close()
            heard += [event async for event in following]
        assert heard[-1].name == "text.delta"
        heard += await follow(ada.client, turn_id, last_id=heard[-1].id)
        assert text_of(heard) == text_of([event async for event in live])


class TestLease:
    """A process that is cut off from the database while its model goes on talking."""

    async def test_what_it_left_is_swept_up_and_what_follows_is_not_overwritten(
        self,
        ada: Account,
        there: Account,
        one: Running,
        other: Running,
        chat: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        outage = Outage(one.parts.database, monkeypatch)
        async with turn_under_way(ada, chat, text="/demo long 5000") as (turn_id, events):
            heard = await take_words(events, 40)
            await outage.start()
            heard += await take_words(events, 20)
            await other.parts.turns.recover()
            assert not await is_over(there, turn_id)
            await lapse(other.parts.database, turn_id)
            await other.parts.turns.recover()

            left = (await there.messages(chat))[-1]
            assert left["status"] == "interrupted"
            assert text_of(heard).startswith(left["text"])
            await check_tree(other.parts.database, chat)
            end = await follow(there.client, turn_id, last_id=heard[-1].id)
            assert [event.name for event in end] == ["message.saved", "turn.failed"]
            assert end[-1].data["type"] == "urn:talekeeper:problem:turn-interrupted"

            more = text_of(await there.turn(chat, **{"continue": True}))
            outage.is_on = False
            heard += [event async for event in events]
        assert heard[-1].name == "turn.failed"
        assert heard[-1].data["type"] == "urn:talekeeper:problem:turn-interrupted"
        assert "message.saved" not in {event.name for event in heard}
        reply = (await there.messages(chat))[-1]
        assert reply["id"] == left["id"]
        assert (reply["text"], reply["status"]) == (left["text"] + more, "complete")
        await check_tree(other.parts.database, chat)

    async def test_it_does_not_write_into_a_reply_that_is_being_continued_elsewhere(
        self,
        ada: Account,
        one: Running,
        other: Running,
        chat: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        outage = Outage(one.parts.database, monkeypatch)
        async with turn_under_way(ada, chat, text="/demo long 5000") as (turn_id, events):
            await take_words(events, 40)
            await outage.start()
            run = one.parts.turns.runs.get(UUID(turn_id))
            assert isinstance(run, TurnRun)
            await lapse(other.parts.database, turn_id)
            await other.parts.turns.recover()
            # As if another turn wrote into the same reply by now.
            async with other.parts.database.write() as session:
                message = await session.get_one(Message, run.reply_id)
                message.status, before = "streaming", message.sealed_content
            outage.is_on = False
            assert await TurnStore(
                one.parts.database, one.parts.index, EnrichmentOutbox(one.parts.queue)
            ).store_progress([run]) == {run.turn_id}
            await until(lambda: stopped(one))
            async with other.parts.database.read() as session:
                after = (await session.get_one(Message, run.reply_id)).sealed_content
            assert after == before
            assert [event async for event in events][-1].name == "turn.failed"

    async def test_it_does_not_write_to_a_turn_that_goes_on_elsewhere(
        self, ada: Account, other: Running, chat: str
    ) -> None:
        async with turn_under_way(ada, chat, text="/demo long 5000") as (turn_id, events):
            await take_words(events, 40)
            async with other.parts.database.write() as session:
                await session.get_one(Chat, UUID(chat), with_for_update=True)
                turn = await session.get_one(Turn, UUID(turn_id))
                reply_id, turn.lease_owner = turn.reply_id, other.parts.database.process_id
                before = (await session.get_one(Message, reply_id)).sealed_content
            assert [event async for event in events][-1].name == "turn.failed"
        async with other.parts.database.read() as session:
            assert (await session.get_one(Turn, UUID(turn_id))).state == "running"
            assert (await session.get_one(Message, reply_id)).sealed_content == before

    async def test_two_who_sweep_at_once_do_it_once(
        self,
        ada: Account,
        one: Running,
        other: Running,
        chat: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        outage = Outage(one.parts.database, monkeypatch)
        async with turn_under_way(ada, chat, text="/demo long 5000") as (turn_id, events):
            await take_words(events, 40)
            await outage.start()
            await lapse(other.parts.database, turn_id)
            sweepers = [
                TurnRecovery(
                    other.parts.database,
                    other.parts.index,
                    EnrichmentOutbox(other.parts.queue),
                    Participants(),
                )
                for _ in range(2)
            ]
            done = await asyncio.gather(*(each.recover() for each in sweepers))
            assert sorted(done) == [0, 1]
            outage.is_on = False
            assert [event async for event in events][-1].name == "turn.failed"


async def stopped(server: Running) -> bool:
    return len(server.parts.turns.runs) == 0
