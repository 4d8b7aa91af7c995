"""Chats are locked before their chronicles, by whoever locks both: nobody waits in a circle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import httpx
import pytest
from sqlalchemy import select, text

from backend.chats.repository import get_chat
from backend.chronicles.models import Chronicle
from tests.integration.chronicles.chroniclers import Chronicler
from tests.support.server import Running, running
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

Change = Callable[[Chronicler, str, list[dict[str, Any]]], Awaitable[httpx.Response]]


async def create(writer: Chronicler, path: str, events: list[dict[str, Any]]) -> httpx.Response:
    body = {"summary": "A bell.", "source_message_ids": events[0]["source_message_ids"]}
    return await writer.ask("POST", f"{path}/events", json=body)


async def change(writer: Chronicler, path: str, events: list[dict[str, Any]]) -> httpx.Response:
    body = {"source_message_ids": events[0]["source_message_ids"]}
    return await writer.ask("PATCH", f"{path}/events/{events[1]['id']}", json=body)


async def merge(writer: Chronicler, path: str, events: list[dict[str, Any]]) -> httpx.Response:
    body = {"event_ids": [each["id"] for each in events]}
    return await writer.ask("POST", f"{path}/events/merge", json=body)


async def bring(writer: Chronicler, path: str, events: list[dict[str, Any]]) -> httpx.Response:
    members = ("happened_at", "source_message_ids")
    event = {"summary": "A bell.", **{each: events[0][each] for each in members}}
    file = {"format": "talekeeper-chronicle", "version": 1, "events": [event]}
    files = {"file": ("tale.json", json.dumps(file).encode())}
    return await writer.ask("POST", f"{path}/import", files=files)


async def delete(writer: Chronicler, path: str, events: list[dict[str, Any]]) -> httpx.Response:
    del events
    return await writer.ask("DELETE", path)


@pytest.fixture
async def busy(postgres_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(postgres_url, tmp_path, job_workers=0) as server:
        yield server


@pytest.mark.parametrize("changed", [create, change, merge, bring, delete])
async def test_what_changes_a_chronicle_waits_for_its_chat_without_locking_it(
    busy: Running, changed: Change
) -> None:
    async with busy.account("Ada") as ada:
        writer = Chronicler(ada)
        chat = (await ada.new_chat())["id"]
        reply = (await writer.say(chat))[-1]["id"]
        chronicle = await writer.new_chronicle()
        await writer.settle(chat, chronicle_id=chronicle)
        events = [
            await writer.new_event(chronicle, source_message_ids=[reply]),
            await writer.new_event(chronicle),
        ]
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        async with busy.parts.database.write() as holder:
            await get_chat(holder, UUID(chat), owner_id=UUID(ada.user["id"]), lock=True)
            asked = changed(writer, f"/chronicles/{chronicle}", events)
            asking = asyncio.create_task(cast("Any", asked))
            await until(lambda: holder.scalar(waiting))
            free = select(Chronicle.id).where(Chronicle.id == UUID(chronicle))
            assert await holder.scalar(free.with_for_update(nowait=True)) is not None
        answer: httpx.Response = await asking
        assert answer.is_success, answer.text
