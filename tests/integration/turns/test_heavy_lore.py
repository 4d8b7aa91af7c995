"""A book of four hundred long constant entries full of macros, and the user beside it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from backend.context.macros import MAX_CHARACTERS
from tests.support.memory import link
from tests.support.server import Account, Running, ok, running

pytestmark = pytest.mark.anyio

ENTRIES = 400
CONTENT = "{{char}} walks with {{user}} down to the harbour in the rain. " * 80
"""Five thousand characters: all entries together have two million."""

LONGEST_PAUSE = 0.5
"""Seconds of the process's own work for which the event loop may stand still."""


@pytest.fixture(scope="module")
async def server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Running]:
    """Without anything in the background: what is measured is the requests' work."""
    folder = tmp_path_factory.mktemp("data")
    async with running(shared_url, folder, embedder="none", job_workers=0) as server:
        yield server


async def heavy_chat(ada: Account, count: int = ENTRIES) -> str:
    """A chat with a book of so many entries."""
    chat = str((await ada.new_chat())["id"])
    entry: dict[str, Any] = {"content": CONTENT, "constant": True, "position": 0, "key": []}
    world = {"entries": {f"{n}": {**entry, "uid": n, "comment": f"{n}"} for n in range(count)}}
    files = {"file": ("world.json", json.dumps(world).encode())}
    made = ok(await ada.ask("POST", "/lorebooks/import", files=files), 201)
    await link(ada, chat, made["lorebook"]["id"])
    return chat


async def previewed(ada: Account, chat: str) -> dict[str, Any]:
    return await ada.post(f"/chats/{chat}/context", {"text": "Well?"})


@contextlib.asynccontextmanager
async def pauses() -> AsyncGenerator[list[float]]:
    """How long the loop stood still between two ticks, in CPU time of the whole process."""
    found: list[float] = []

    async def tick() -> None:
        last = time.process_time()
        while True:
            await asyncio.sleep(0.005)
            now = time.process_time()
            found.append(now - last)
            last = now

    task = asyncio.create_task(tick())
    try:
        yield found
    finally:
        task.cancel()


async def test_a_preview_expands_what_its_budget_allows_and_not_what_the_book_holds(
    ada: Account,
) -> None:
    chat = await heavy_chat(ada)
    context = await previewed(ada, chat)
    lore = [item for item in context["items"] if item["kind"] == "lore"]
    expanded = sum(len(item["text"]) for item in lore)
    assert 0 < expanded <= MAX_CHARACTERS
    reasons = [each["reason"] for each in context["left_out"] if each["kind"] == "lore"]
    assert "macros: more than 1,000,000 characters" in reasons
    assert await previewed(ada, chat) == context


async def test_eight_previews_of_a_heavy_book_leave_the_turn_of_another_user_unharmed(
    ada: Account, server: Running
) -> None:
    heavy = await heavy_chat(ada)
    async with server.account(f"bob-of-{ada.name}") as bob:
        character = await bob.new_character()
        quiet = str((await bob.new_chat(character_ids=[character["id"]]))["id"])
        await bob.turn(quiet, text="First, to warm up.")
        async with pauses() as found:
            previews = [asyncio.create_task(previewed(ada, heavy)) for _ in range(8)]
            events = await bob.turn(quiet, text="Is anyone there?")
            await asyncio.gather(*previews)
    assert events[-1].name == "turn.completed"
    assert max(found) < LONGEST_PAUSE


async def test_what_a_preview_costs_does_not_grow_with_the_book(ada: Account) -> None:
    few, many = await heavy_chat(ada, 200), await heavy_chat(ada, 1_600)
    costs: dict[str, float] = {}
    for chat in (few, many):
        await previewed(ada, chat)  # compiles the book
        began = time.process_time()
        for _ in range(3):
            await previewed(ada, chat)
        costs[chat] = time.process_time() - began
    assert costs[many] < 3 * costs[few], costs
