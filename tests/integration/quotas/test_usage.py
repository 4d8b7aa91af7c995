"""`/me/usage` and the same of each account for administrators: numbers, and nobody's texts."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from backend.database.base import now
from backend.quotas.limits import QUOTAS
from tests.support.chronicling import last_run, opt_in
from tests.support.memory import new_book, new_entry, settled
from tests.support.server import Account, Running, ok, problem, running

pytestmark = pytest.mark.anyio

API = "/api/v1"


async def usage(account: Account, path: str = "me/usage") -> dict[str, dict[str, Any]]:
    items = ok(await account.client.get(f"{API}/{path}"))["items"]
    return {each["quota"]: each for each in items}


async def test_an_account_sees_every_quota_with_what_it_uses(
    server: Running, ada: Account, chat: str
) -> None:
    before = await usage(ada)
    assert list(before) == [quota.name for quota in QUOTAS]
    await new_entry(ada, await new_book(ada), keys=["inn"], content="An inn.")
    [usage_event] = [
        event.data for event in await ada.turn(chat, text="Hello.") if event.name == "usage"
    ]
    await settled(server)
    after = await usage(ada)
    settings = server.parts.settings
    for quota in QUOTAS:
        told = after[quota.name]
        assert told["unit"] == quota.unit
        assert told["limit"] == (quota.get_limit(settings) or None)
    grown = {name: after[name]["used"] - before[name]["used"] for name in after}
    assert grown["stored_bytes"] > 1000
    assert (grown["chats"], grown["lorebook_entries"], after["chats"]["used"]) == (0, 1, 1)
    spent = usage_event["prompt_tokens"] + usage_event["completion_tokens"]
    assert grown["tokens_per_day"] == spent
    assert datetime.fromisoformat(after["tokens_per_day"]["frees_at"]) > now()
    assert after["stored_bytes"]["frees_at"] is None


async def test_what_the_agent_takes_counts_as_tokens_of_the_day(
    server: Running, ada: Account, chat: str
) -> None:
    await opt_in(ada, chat)
    [usage_event] = [
        event.data for event in await ada.turn(chat, text="Hello.") if event.name == "usage"
    ]
    run = await last_run(ada, chat)
    await settled(server)
    spent = usage_event["prompt_tokens"] + usage_event["completion_tokens"]
    spent += run["prompt_tokens"] + run["completion_tokens"]
    assert (await usage(ada))["tokens_per_day"]["used"] == spent


async def test_administrators_see_the_numbers_of_each_account_and_others_do_not(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        running(database_url, tmp_path) as server,
        server.account("Ada") as boss,
        server.account("Ben") as ben,
    ):
        await ben.new_chat(title="Of nobody's business")
        path = f"admin/users/{ben.user['id']}/usage"
        problem(await ben.client.get(f"{API}/{path}"), 403, "forbidden")
        told, own = await usage(boss, path), await usage(ben)
        for name in ("stored_bytes", "chats", "lorebook_entries"):
            assert told[name] == own[name]
        assert told["chats"]["used"] == 1
        assert set(told["chats"]) == {"quota", "used", "limit", "unit", "frees_at"}
        missing = await boss.client.get(f"{API}/admin/users/{uuid4()}/usage")
        problem(missing, 404, "user-not-found")
