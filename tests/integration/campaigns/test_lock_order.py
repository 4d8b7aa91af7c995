"""Requests that change a campaign lock its chat first, as turns do, so that they can't deadlock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import delete, exists, insert, select, text, update

from backend.campaigns.models import Campaign, CampaignMark
from backend.chats.models import Chat, Message
from backend.chats.repository import get_chat
from backend.chronicles.models import Chronicle, ChronicleEvent
from backend.database.base import now
from tests.integration.campaigns.seagate import Table, new_table
from tests.integration.campaigns.test_proposals import Compacted
from tests.integration.turns.seeding import identity_of
from tests.support.server import Running, running
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

WAITING = text("SELECT count(*) FROM pg_locks WHERE NOT granted")


@dataclass
class Busy:
    server: Running
    table: Table
    chat: str
    line: str
    entity: dict[str, Any]
    scene: dict[str, Any]
    proposal: dict[str, Any]


@pytest.fixture
async def busy(postgres_url: str, tmp_path: Path) -> AsyncGenerator[Busy]:
    async with (
        running(postgres_url, tmp_path, job_workers=0) as server,
        server.account("Ada") as ada,
    ):
        table = await new_table(ada)
        chat = (await ada.new_chat(campaign_id=table.campaign["id"]))["id"]
        entity = await table.add("entities", kind="npc", name="Holt", locked=["status"])
        scene = await table.add("scenes", title="The docks")
        story = Compacted(server, table, await identity_of(server, ada), chat)
        line = await story.turn()
        await story.draft(entity["id"], status="dead")
        [proposal] = await story.open()
        yield Busy(server, table, chat, line, entity, scene, proposal)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/threads?message_id={line}", {"title": "The bridge"}),
        ("PATCH", "/entities/{entity}?message_id={line}", {"status": "gone"}),
        ("DELETE", "/entities/{entity}?message_id={line}", None),
        ("PATCH", "?message_id={line}", {"day": 6}),
        ("POST", "/scenes/{scene}/close?message_id={line}", None),
        ("POST", "/proposals/{proposal}/accept", None),
        ("DELETE", "", None),
    ],
)
async def test_a_change_waits_for_the_lock_of_its_chat(
    busy: Busy, method: str, path: str, body: dict[str, Any] | None
) -> None:
    table = busy.table
    made = {each: getattr(busy, each)["id"] for each in ("entity", "scene", "proposal")}
    owner = UUID(table.account.user["id"])
    async with busy.server.parts.database.write() as holder:
        await get_chat(holder, UUID(busy.chat), owner_id=owner, lock=True)
        asked = table.ask(method, path.format(line=busy.line, **made), json=body)
        asking = asyncio.create_task(asked)
        await until(lambda: holder.scalar(WAITING))
        free = select(Campaign.id).where(Campaign.id == UUID(table.campaign["id"]))
        assert await holder.scalar(free.with_for_update(nowait=True)) is not None
    answer = await asking
    assert answer.is_success, answer.text


@pytest.mark.parametrize(
    ("method", "query", "body"),
    [("PATCH", "", {"audience": "gm"}), ("DELETE", "?alone=true", None)],
)
async def test_events_of_a_message_are_locked_after_the_campaign(
    busy: Busy, method: str, query: str, body: dict[str, Any] | None
) -> None:
    ada, database = busy.table.account, busy.server.parts.database
    chronicle = UUID((await ada.post("/chronicles", {"name": "Winter"}, 201))["id"])
    told = {"summary": "The ice broke.", "source_message_ids": [busy.line]}
    event = UUID((await ada.post(f"/chronicles/{chronicle}/events", told, 201))["id"])
    async with database.write() as session:
        written = update(ChronicleEvent).where(ChronicleEvent.id == event)
        await session.execute(written.values(source="agent"))
    async with database.write() as holder:
        campaign = select(Campaign.id).where(Campaign.id == UUID(busy.table.campaign["id"]))
        await holder.execute(campaign.with_for_update())
        asked = ada.ask(method, f"/messages/{busy.line}{query}", json=body)
        asking = asyncio.create_task(asked)
        await until(lambda: holder.scalar(WAITING))
        for free in (
            select(Chronicle.id).where(Chronicle.id == chronicle),
            select(ChronicleEvent.id).where(ChronicleEvent.id == event),
        ):
            assert await holder.scalar(free.with_for_update(nowait=True)) is not None
    answer = await asking
    assert answer.is_success, answer.text


async def test_a_chronicle_is_locked_after_the_campaign_that_it_tells(busy: Busy) -> None:
    ada, database = busy.table.account, busy.server.parts.database
    chronicle = (await ada.post("/chronicles", {"name": "Winter"}, 201))["id"]
    campaign = UUID(busy.table.campaign["id"])
    async with database.write() as session:
        told = update(Campaign).where(Campaign.id == campaign)
        await session.execute(told.values(chronicle_id=UUID(chronicle)))
    async with database.write() as holder:
        await holder.execute(select(Campaign.id).where(Campaign.id == campaign).with_for_update())
        deleting = asyncio.create_task(ada.ask("DELETE", f"/chronicles/{chronicle}"))
        await until(lambda: holder.scalar(WAITING))
        free = select(Chronicle.id).where(Chronicle.id == UUID(chronicle))
        assert await holder.scalar(free.with_for_update(nowait=True)) is not None
    answer = await deleting
    assert answer.is_success, answer.text


@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_message_is_removed_while_the_campaign_that_read_it_is_deleted(
    busy: Busy, *, is_gone: bool
) -> None:
    ada, database = busy.table.account, busy.server.parts.database
    campaign, line = UUID(busy.table.campaign["id"]), UUID(busy.line)
    own = Campaign.id == campaign
    async with database.write() as session:
        message = await session.get_one(Message, line)
        place = {"chat_id": message.chat_id, "position": message.position, "version": 1}
        mark = {"id": line, "user_id": message.user_id, "campaign_id": campaign, **place}
        await session.execute(delete(CampaignMark).where(CampaignMark.id == line))
        await session.execute(insert(CampaignMark), mark)
        # As if the chat had left the campaign, as it does when that is hidden.
        left = update(Chat).where(Chat.id == message.chat_id)
        await session.execute(left.values(campaign_id=None))
    async with database.write() as holder:
        hidden = update(Campaign).where(own).values(deleted_at=now())
        await holder.execute(delete(Campaign).where(own) if is_gone else hidden)
        asked = ada.ask("DELETE", f"/messages/{busy.line}?alone=true")
        asking = asyncio.create_task(asked)
        await until(lambda: holder.scalar(WAITING))
    answer = await asking
    assert answer.is_success, answer.text
    async with database.read() as session:
        marked = select(exists().where(CampaignMark.id == line))
        assert await session.scalar(marked) is not is_gone  # a hidden one is not folded
