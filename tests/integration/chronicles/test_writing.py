"""Snapshots of events, and restoring them within one transaction."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats.errors import MessageNotFoundError
from backend.chats.models import Message
from backend.chronicles.errors import ChronicleFullError
from backend.chronicles.event_writer import (
    NewEvent,
    add_events,
    remove_events,
    restore,
    snapshot,
    supersede,
    touch,
)
from backend.chronicles.events import MAX_EVENTS, EventFields
from backend.chronicles.repository import StoryEvent, find_sources, get_events, seal_event
from backend.database.base import new_id
from backend.errors import ValidationError
from tests.integration.chronicles.chroniclers import Chronicler
from tests.integration.turns.seeding import identity_of
from tests.support.server import Running, ok

pytestmark = pytest.mark.anyio

MOMENT = datetime(2026, 3, 1, 20, 15, tzinfo=UTC)


@pytest.fixture
async def identity(server: Running, writer: Chronicler) -> Identity:
    return await identity_of(server, writer.account)


@pytest.fixture
async def chronicle(writer: Chronicler) -> UUID:
    return UUID(await writer.new_chronicle())


@pytest.fixture
async def session(server: Running, chronicle: UUID, chat: str) -> AsyncGenerator[AsyncSession]:
    """A transaction. Requests to the server must come before its first write."""
    async with server.parts.database.write() as session:
        yield session


def new(summary: str = "The lamp went out.", **values: Any) -> NewEvent:
    given: dict[str, Any] = {"source": "agent", "happened_at": MOMENT, **values}
    return NewEvent(fields=EventFields(summary=summary), **given)


@pytest.mark.every_database
async def test_a_deleted_event_is_restored(
    session: AsyncSession, identity: Identity, chronicle: UUID, writer: Chronicler, chat: str
) -> None:
    sealer = identity.sealer
    [greeting] = await writer.account.messages(chat)
    sources = await find_sources(session, [UUID(greeting["id"])], owner_id=sealer.user_id)
    old, row, later = await add_events(
        session,
        sealer,
        chronicle,
        [
            new("Lit."),
            new("Out.", sources=sources, significance=5, is_pinned=True, run_id=new_id(), place=7),
            new("Lit again."),
        ],
    )
    await supersede(session, old, row.id)
    await supersede(session, row, later.id)
    before = await _read(session, identity, row.id)
    taken = json.loads(json.dumps(await snapshot(session, sealer, row)))
    await remove_events(session, [row.id], owner_id=sealer.user_id)
    assert await get_events(session, sealer, [row.id]) == {}
    assert (await _read(session, identity, old.id)).superseded_by is None
    await restore(session, sealer, chronicle, taken)
    after = await _read(session, identity, before.id)
    assert _but_for_versions(after) == _but_for_versions(before)
    assert after.revision > before.revision
    assert after.updated_at > before.updated_at
    assert (await _read(session, identity, old.id)).superseded_by == before.id


@pytest.mark.every_database
async def test_a_changed_event_is_restored(
    session: AsyncSession, identity: Identity, chronicle: UUID
) -> None:
    sealer = identity.sealer
    row, later = await add_events(session, sealer, chronicle, [new("Out."), new("Lit.")])
    before = await _read(session, identity, row.id)
    taken = await snapshot(session, sealer, row)
    row.sealed_event = seal_event(sealer, row.id, EventFields(summary="Said anew.", day=3))
    touch(row)
    await supersede(session, row, later.id)
    row.significance, row.is_pinned = 5, True
    revision = row.revision
    restored = await restore(session, sealer, chronicle, taken)
    assert restored.id == before.id
    assert _but_for_versions(await _read(session, identity, row.id)) == _but_for_versions(before)
    assert restored.revision == revision + 1


async def test_deleted_references_are_left_out_of_a_restored_event(
    session: AsyncSession, identity: Identity, chronicle: UUID
) -> None:
    sealer = identity.sealer
    row, later = await add_events(session, sealer, chronicle, [new("Out."), new("Lit.")])
    await supersede(session, row, later.id)
    taken = await snapshot(session, sealer, row)
    taken["sources"] = [{"message_id": str(uuid4()), "chat_id": str(uuid4()), "position": 3}]
    await remove_events(session, [row.id, later.id], owner_id=sealer.user_id)
    restored = await restore(session, sealer, chronicle, taken)
    after = await _read(session, identity, restored.id)
    assert (after.superseded_by, list(after.sources), after.is_current) == (None, [], True)


async def test_restoring_makes_no_circle(
    session: AsyncSession, identity: Identity, chronicle: UUID
) -> None:
    sealer = identity.sealer
    first, second = await add_events(session, sealer, chronicle, [new("1"), new("2")])
    await supersede(session, first, second.id)
    taken = await snapshot(session, sealer, first)
    await supersede(session, first, None)
    await supersede(session, second, first.id)
    await restore(session, sealer, chronicle, taken)
    assert (await _read(session, identity, first.id)).superseded_by is None
    assert (await _read(session, identity, second.id)).superseded_by == first.id


async def test_a_later_successor_is_kept(
    session: AsyncSession, identity: Identity, chronicle: UUID
) -> None:
    sealer = identity.sealer
    old, row, other = await add_events(session, sealer, chronicle, [new("1"), new("2"), new("3")])
    await supersede(session, old, row.id)
    taken = await snapshot(session, sealer, row)
    await remove_events(session, [row.id], owner_id=sealer.user_id)
    await supersede(session, old, other.id)
    await restore(session, sealer, chronicle, taken)
    assert (await _read(session, identity, old.id)).superseded_by == other.id


async def test_foreign_events_are_not_deleted(
    session: AsyncSession,
    identity: Identity,
    chronicle: UUID,
    server: Running,
    stranger: Chronicler,
) -> None:
    [row] = await add_events(session, identity.sealer, chronicle, [new()])
    await remove_events(session, [row.id], owner_id=UUID(stranger.account.user["id"]))
    assert row.id in await get_events(session, identity.sealer, [row.id])


@pytest.mark.every_database
async def test_too_many_events_are_refused_together(
    session: AsyncSession, identity: Identity, chronicle: UUID
) -> None:
    many = [new()] * (MAX_EVENTS + 1)
    with pytest.raises(ChronicleFullError):
        await add_events(session, identity.sealer, chronicle, many)
    assert await add_events(session, identity.sealer, chronicle, []) == []


@pytest.mark.every_database
async def test_a_streaming_message_is_no_source(
    session: AsyncSession, identity: Identity, writer: Chronicler, chat: str
) -> None:
    [greeting] = await writer.account.messages(chat)
    message_id = UUID(greeting["id"])
    row = await session.get(Message, message_id)
    assert row is not None
    row.status = "streaming"
    await session.flush()
    with pytest.raises(ValidationError, match="still being written"):
        await find_sources(session, [message_id], owner_id=identity.user_id)
    row.status = "complete"
    await session.flush()
    [found] = await find_sources(session, [message_id, message_id], owner_id=identity.user_id)
    assert (found.id, found.chat_id, found.position) == (message_id, UUID(chat), 0)
    with pytest.raises(MessageNotFoundError):
        await find_sources(session, [message_id, uuid4()], owner_id=identity.user_id)


async def test_an_event_of_a_chat_that_was_just_deleted_is_refused(
    server: Running, identity: Identity, chronicle: UUID, writer: Chronicler, chat: str
) -> None:
    database, sealer = server.parts.database, identity.sealer
    [greeting] = await writer.account.messages(chat)
    async with database.read() as session:
        sources = await find_sources(session, [UUID(greeting["id"])], owner_id=sealer.user_id)
    ok(await writer.ask("DELETE", f"/chats/{chat}"), 204)
    with pytest.raises(MessageNotFoundError):
        async with database.write() as session:
            await add_events(session, sealer, chronicle, [new(sources=sources)])
    assert await writer.summaries(str(chronicle), current=False) == []


async def _read(session: AsyncSession, identity: Identity, event_id: UUID) -> StoryEvent:
    return (await get_events(session, identity.sealer, [event_id]))[event_id]


def _but_for_versions(event: StoryEvent) -> dict[str, Any]:
    names = set(StoryEvent.__struct_fields__) - {"revision", "updated_at"}
    return {name: getattr(event, name) for name in names}
