"""Several processes on one PostgreSQL: following, stopping and recovering turns."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Generator
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select, update

from backend.chats.models import Chat, Message
from backend.core.events import Participants
from backend.database.base import now
from backend.database.engine import Database
from backend.database.processes import Process
from backend.enrichment.outbox import EnrichmentOutbox
from backend.jobs.models import Job
from backend.jobs.queue import NewJob
from backend.quotas.ledgers import RECOUNT_KIND
from backend.turns.api import service
from backend.turns.models import Turn
from backend.turns.run import registry as runs
from backend.turns.run.recovery import TurnRecovery
from backend.turns.run.store import TurnStore
from backend.turns.run.turn_run import TurnRun
from tests.e2e.test_crash import browser
from tests.integration.jobs.test_worker_processes import ROOT_KEY
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
from tests.support.process import Served, serving
from tests.support.server import Account, Event, Running, ok, problem, read_events, running, text_of
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store and poll five times as often, so that tests do not wait."""
    monkeypatch.setattr(runs, "STORE_SECONDS", 0.2)
    monkeypatch.setattr(service, "FOLLOW_SECONDS", 0.1)


@pytest.fixture
async def first(postgres_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(postgres_url, tmp_path, demo_tokens_per_second=100) as server:
        yield server


@pytest.fixture
async def other(postgres_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    """A server with a model that answers at once."""
    async with running(postgres_url, tmp_path / "other") as server:
        yield server


@pytest.fixture
async def ada(first: Running) -> AsyncGenerator[Account]:
    async with first.account() as ada:
        yield ada


@pytest.fixture
async def elsewhere(ada: Account, other: Running) -> AsyncGenerator[Account]:
    """The same session at the other process."""
    async with same_browser(ada, other) as elsewhere:
        yield elsewhere


async def test_a_reply_is_followed_elsewhere(ada: Account, elsewhere: Account, chat: str) -> None:
    async with turn_under_way(ada, chat, text="/demo long 80") as (turn_id, events):
        stored = await follow(elsewhere.client, turn_id)
        live = [event async for event in events]
    assert (said(stored), others(stored)[1:]) == (said(live), others(live))
    ids = [event.id for event in stored]
    assert ids == sorted(set(ids))
    assert [event.name for event in stored].count("text.delta") > 1


async def test_every_character_is_sent_once(ada: Account, elsewhere: Account, chat: str) -> None:
    """The client is ahead of the stored text at first; later it lags."""
    async with turn_under_way(ada, chat, text="/demo long 120") as (turn_id, events):
        heard = await take_words(events, 30)
    for client in (elsewhere.client, ada.client, elsewhere.client):
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


async def test_a_turn_is_stopped_elsewhere(ada: Account, elsewhere: Account, chat: str) -> None:
    async with turn_under_way(ada, chat, text="/demo long 5000") as (turn_id, events):
        heard = await take_words(events, 2)
        assert (await elsewhere.ask("POST", f"/turns/{turn_id}/stop")).status_code == 202
        heard += [event async for event in events]
    assert (heard[-1].name, heard[-1].data["state"]) == ("turn.completed", "stopped")
    reply = (await elsewhere.messages(chat))[-1]
    assert (reply["status"], reply["text"]) == ("interrupted", text_of(heard))


async def test_a_chat_is_busy_in_both(ada: Account, elsewhere: Account, chat: str) -> None:
    turn_id = str(uuid4())
    line = {"text": "/demo long 5000", "turn_id": turn_id}
    async with turn_under_way(ada, chat, **line) as (_, events):
        refused = await elsewhere.ask("POST", f"/chats/{chat}/turns", json={"text": "Me!"})
        assert problem(refused, 409, "turn-in-progress")["turn_id"] == turn_id
        again = asyncio.create_task(elsewhere.turn(chat, **line))
        live = await take_words(events, 20)
        assert (await ada.ask("POST", f"/turns/{turn_id}/stop")).status_code == 202
        live += [event async for event in events]
    assert text_of(await again) == text_of(live)
    assert len(await elsewhere.messages(chat)) == 3
    turn = ok(
        await elsewhere.ask(
            "POST", f"/chats/{chat}/turns", json=line, headers={"Accept": "application/json"}
        )
    )
    assert (turn["state"], turn["reply"]["text"]) == ("stopped", text_of(live))


async def test_a_deleted_chat_ends_following(ada: Account, elsewhere: Account, chat: str) -> None:
    async with turn_under_way(ada, chat, text="/demo long 5000") as (turn_id, events):
        await take_words(events, 2)
        async with elsewhere.stream("GET", f"/turns/{turn_id}/events") as response:
            following = read_events(response)
            await anext(following)
            assert (await ada.ask("DELETE", f"/chats/{chat}")).status_code == 204
            rest = [event async for event in following]
    assert rest[-1].name == "turn.failed"
    assert rest[-1].data["type"] == "urn:talekeeper:problem:turn-not-found"


async def test_a_shutdown_stores_replies(postgres_url: str, tmp_path: Path, other: Running) -> None:
    async with (
        running(postgres_url, tmp_path, demo_tokens_per_second=100) as first,
        first.account() as ada,
        same_browser(ada, other) as elsewhere,
    ):
        chat = (await ada.new_chat())["id"]
        async with turn_under_way(ada, chat, text="/demo long 5000") as (turn_id, events):
            heard = await take_words(events, 5)
            await first.parts.turns.close()
            heard += [event async for event in events]
        reply = (await elsewhere.messages(chat))[-1]
        assert (reply["text"], reply["status"]) == (text_of(heard), "interrupted")
        assert reply["tokens"] == len(reply["text"].split()) + 4
        assert heard[-1].name == "turn.failed"
        assert heard[-1].data["type"] == "urn:talekeeper:problem:turn-interrupted"
        stored = await follow(elsewhere.client, turn_id)
        assert (said(stored), others(stored)[1:]) == (said(heard), others(heard))


async def test_a_shutdown_ends_the_streams_of_followers(
    ada: Account, elsewhere: Account, other: Running, chat: str
) -> None:
    async with turn_under_way(ada, chat, text="/demo long 300") as (turn_id, live):
        path = f"/turns/{turn_id}/events"
        async with elsewhere.stream("GET", path) as response:
            following = read_events(response)
            heard = await take_words(following, 5)
            await other.parts.turns.close()
            heard += [event async for event in following]
        assert heard[-1].name == "text.delta"
        heard += await follow(ada.client, turn_id, last_id=heard[-1].id)
        assert text_of(heard) == text_of([event async for event in live])


class TestLease:
    """A process that loses the database while its model continues."""

    async def test_its_turn_is_recovered_and_not_overwritten(
        self,
        ada: Account,
        elsewhere: Account,
        first: Running,
        other: Running,
        chat: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        outage = Outage(first.parts.database, monkeypatch)
        async with turn_under_way(ada, chat, text="/demo long 5000") as (turn_id, events):
            heard = await take_words(events, 40)
            await outage.start()
            heard += await take_words(events, 20)
            await other.parts.turns.recover()
            assert not await is_over(elsewhere, turn_id)
            await lapse(other.parts.database, turn_id)
            await other.parts.turns.recover()

            left = (await elsewhere.messages(chat))[-1]
            assert left["status"] == "interrupted"
            assert text_of(heard).startswith(left["text"])
            await check_tree(other.parts.database, chat)
            end = await follow(elsewhere.client, turn_id, last_id=heard[-1].id)
            assert [event.name for event in end] == ["message.saved", "turn.failed"]
            assert end[-1].data["type"] == "urn:talekeeper:problem:turn-interrupted"

            more = text_of(await elsewhere.turn(chat, **{"continue": True}))
            outage.is_on = False
            heard += [event async for event in events]
        assert heard[-1].name == "turn.failed"
        assert heard[-1].data["type"] == "urn:talekeeper:problem:turn-interrupted"
        assert "message.saved" not in {event.name for event in heard}
        reply = (await elsewhere.messages(chat))[-1]
        assert reply["id"] == left["id"]
        assert (reply["text"], reply["status"]) == (left["text"] + more, "complete")
        await check_tree(other.parts.database, chat)

    @pytest.mark.parametrize("turn_id", [None, str(UUID(int=7, version=4))])
    async def test_the_next_line_does_not_wait_for_the_recovery_of_all_turns(
        self,
        ada: Account,
        elsewhere: Account,
        first: Running,
        other: Running,
        chat: str,
        monkeypatch: pytest.MonkeyPatch,
        turn_id: str | None,
    ) -> None:
        outage = Outage(first.parts.database, monkeypatch)
        async with turn_under_way(ada, chat, text="/demo long 5000") as (lost_id, events):
            await take_words(events, 40)
            await outage.start()
            path, line = f"/chats/{chat}/turns", {"text": "/demo long 1", "turn_id": turn_id}
            problem(await elsewhere.ask("POST", path, json=line), 409, "turn-in-progress")
            await lapse(other.parts.database, lost_id)
            heard = await elsewhere.turn(chat, **line)
            assert heard[-1].name == "turn.completed"
            outage.is_on = False
            assert [event async for event in events][-1].name == "turn.failed"
        stored = await elsewhere.messages(chat)
        assert [each["status"] for each in stored[-4:]] == [
            "complete",
            "interrupted",
            "complete",
            "complete",
        ]
        await check_tree(other.parts.database, chat)

    async def test_it_does_not_write_to_a_reply_that_is_continued_elsewhere(
        self,
        ada: Account,
        first: Running,
        other: Running,
        chat: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        outage = Outage(first.parts.database, monkeypatch)
        async with turn_under_way(ada, chat, text="/demo long 5000") as (turn_id, events):
            await take_words(events, 40)
            await outage.start()
            run = first.parts.turns.runs.get(UUID(turn_id))
            assert isinstance(run, TurnRun)
            await lapse(other.parts.database, turn_id)
            await other.parts.turns.recover()
            # As if another turn now wrote into the same reply.
            async with other.parts.database.write() as session:
                message = await session.get_one(Message, run.reply_id)
                message.status, before = "streaming", message.sealed_content
            outage.is_on = False
            assert await TurnStore(
                first.parts.database, first.parts.index, EnrichmentOutbox(first.parts.queue)
            ).store_progress([run]) == {run.turn_id}
            await until(lambda: has_no_runs(first))
            async with other.parts.database.read() as session:
                after = (await session.get_one(Message, run.reply_id)).sealed_content
            assert after == before
            assert [event async for event in events][-1].name == "turn.failed"

    async def test_ends_if_the_lease_moves(self, ada: Account, other: Running, chat: str) -> None:
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

    async def test_two_recoveries_happen_once(
        self,
        ada: Account,
        first: Running,
        other: Running,
        chat: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        outage = Outage(first.parts.database, monkeypatch)
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


async def has_no_runs(server: Running) -> bool:
    return len(server.parts.turns.runs) == 0


LONG = timedelta(days=1)
"""A lease that does not expire during a test."""


@pytest.fixture
async def here(postgres_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(postgres_url, tmp_path / "here") as server:
        yield server


@pytest.fixture
def there(postgres_url: str, tmp_path: Path) -> Generator[Served]:
    """A server in another process with a slow model."""
    with serving(
        tmp_path, database_url=postgres_url, root_key=ROOT_KEY, demo_tokens_per_second=50
    ) as served:
        yield served


async def find_other(database: Database) -> UUID:
    """Return the id of the other process."""

    async def found_process() -> UUID | None:
        async with database.read() as session:
            others = Process.id != database.process_id
            return await session.scalar(select(Process.id).where(others))

    process_id: UUID = await until(found_process)
    return process_id


async def lease_for_long(database: Database, turn_id: str) -> None:
    async with database.write() as session:
        running = (Turn.id == UUID(turn_id), Turn.state == "running", Turn.lease_until > now())
        await session.execute(update(Turn).where(*running).values(lease_until=now() + LONG))


async def test_work_of_a_lost_process_is_taken_over(here: Running, there: Served) -> None:
    database, queue = here.parts.database, here.parts.queue
    async with here.account() as ada, browser(there, ada.client.cookies) as elsewhere:
        chat = (await ada.new_chat())["id"]
        async with turn_under_way(elsewhere, chat, text="/demo long 5000") as (turn_id, events):
            heard = await take_words(events, 60)
            there.process.send_signal(signal.SIGSTOP)
            await lease_for_long(database, turn_id)
            told = await follow(ada.client, turn_id)
            assert told[-1].name == "turn.failed"
            assert told[-1].data["type"] == "urn:talekeeper:problem:turn-interrupted"
            [_, reply] = await ada.messages(chat)
            assert (reply["status"], reply["text"]) == ("interrupted", text_of(told))
            assert reply["text"]
            more = await ada.turn(chat, **{"continue": True})
            assert more[-1].name == "turn.completed"

            there.process.send_signal(signal.SIGCONT)
            heard += [event async for event in events]
            assert heard[-1].name == "turn.failed"
            assert heard[-1].data["type"] == "urn:talekeeper:problem:turn-interrupted"
            [_, after] = await elsewhere.messages(chat)
            assert (after["status"], after["text"]) == ("complete", reply["text"] + text_of(more))

        # The process works again. A kill interrupts its next turn and job.
        async with turn_under_way(elsewhere, chat, text="/demo long 5000") as (turn_id, events):
            await take_words(events, 60)
            async with database.write() as session:
                job_id = await queue.enqueue(session, NewJob(RECOUNT_KIND))
                leased = {
                    "state": "running",
                    "attempts": 1,
                    "fence": 1,
                    "lease_owner": await find_other(database),
                    "lease_until": now() + LONG,
                }
                await session.execute(update(Job).where(Job.id == job_id).values(leased))
            there.process.kill()
            await lease_for_long(database, turn_id)
            told = await follow(ada.client, turn_id)
            assert told[-1].data["type"] == "urn:talekeeper:problem:turn-interrupted"
        assert (await ada.turn(chat, text="Go on."))[-1].name == "turn.completed"

        async def job_is_done() -> bool:
            async with database.read() as session:
                return await session.get(Job, job_id) is None

        await until(job_is_done)
    await check_tree(database, chat)
