"""Killed at any instant of an import: the lorebook is there as a whole, once, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_crash import browser
from tests.support.process import serving
from tests.support.server import Account, ok

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS = 8
ENTRIES = 3_000
IMPORT = "/api/v1/lorebooks/import"


def world(name: str) -> dict[str, Any]:
    """A book whose entries name it."""
    return {
        "name": name,
        "entries": {
            str(n): {"uid": n, "key": [f"{name} {n}"], "content": f"{name} says {n}. " * 10}
            for n in range(ENTRIES)
        },
    }


async def import_book(ada: Account, name: str) -> httpx.Response:
    files = {"file": ("book.json", json.dumps(world(name)).encode())}
    return await ada.client.post(IMPORT, files=files, headers={"Idempotency-Key": name})


async def books(ada: Account) -> dict[str, str]:
    """Ids by name; each is whole, and no name is there twice."""
    items = ok(await ada.client.get("/api/v1/lorebooks"))["items"]
    assert len({item["name"] for item in items}) == len(items)
    assert {item["entry_count"] for item in items} <= {ENTRIES}
    return {item["name"]: item["id"] for item in items}


def forget_claims(folder: Path) -> None:
    """As if five minutes had passed: requests that were never answered may be sent again."""
    with contextlib.closing(sqlite3.connect(folder / "talekeeper.sqlite3")) as connection:
        connection.execute(
            "UPDATE idempotent_requests SET created_at = '2020-01-01 00:00:00' WHERE status IS NULL"
        )
        connection.commit()


async def test_an_import_that_is_killed_at_any_moment_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    acknowledged: dict[str, str] = {}
    sent: list[str] = []
    cookies: httpx.Cookies | None = None
    for turn in range(ROUNDS + 1):
        with serving(tmp_path) as served:
            async with browser(served, cookies) as ada:
                found = await books(ada)
                assert acknowledged.items() <= found.items()
                assert found.keys() <= set(sent)
                for name in [name for name in sent if name not in acknowledged]:
                    again = ok(await import_book(ada, name), 201)["lorebook"]
                    assert again["id"] == found.get(name, again["id"])
                    acknowledged[name] = again["id"]
                assert await books(ada) == acknowledged
                if turn < ROUNDS:
                    sent.append(f"Book {turn}")
                    task = asyncio.create_task(import_book(ada, sent[-1]))
                    await asyncio.sleep(random.uniform(0.0, 0.6))
                    served.process.kill()
                    with contextlib.suppress(httpx.TransportError):
                        acknowledged[sent[-1]] = ok(await task, 201)["lorebook"]["id"]
                cookies = ada.client.cookies
        forget_claims(tmp_path)
    assert len(acknowledged) == ROUNDS
