"""Killed at any instant of an import: what it makes is there as a whole, once, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_crash import browser
from tests.support.process import serving
from tests.support.server import Account, ok
from tests.support.thorough import rounds

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS = rounds(1, 4)
ENTRIES = 3_000


@dataclass(frozen=True)
class Kind:
    """What is imported. `made` names the member of the answer that holds it."""

    path: str
    made: str
    file: Callable[[str], dict[str, Any]]


def world(name: str) -> dict[str, Any]:
    """A book whose entries name it."""
    return {
        "name": name,
        "entries": {
            str(n): {"uid": n, "key": [f"{name} {n}"], "content": f"{name} says {n}. " * 10}
            for n in range(ENTRIES)
        },
    }


def card(name: str) -> dict[str, Any]:
    """A card with such a book in it."""
    entries = [
        {"keys": [f"{name} {n}"], "content": f"{name} says {n}.", "enabled": True}
        for n in range(ENTRIES)
    ]
    data = {"name": name, "first_mes": "Hm?", "character_book": {"entries": entries}}
    return {"spec": "chara_card_v3", "spec_version": "3.0", "data": data}


LOREBOOKS = Kind("/api/v1/lorebooks", "lorebook", world)
CHARACTERS = Kind("/api/v1/characters", "character", card)


async def import_file(ada: Account, kind: Kind, name: str) -> httpx.Response:
    files = {"file": ("file.json", json.dumps(kind.file(name)).encode())}
    headers = {"Idempotency-Key": name}
    return await ada.client.post(f"{kind.path}/import", files=files, headers=headers)


async def things(ada: Account, kind: Kind) -> dict[str, str]:
    """Ids by name; no name is there twice, and each lorebook is whole."""
    items = ok(await ada.client.get(kind.path))["items"]
    assert len({item["name"] for item in items}) == len(items)
    books = ok(await ada.client.get("/api/v1/lorebooks"))["items"]
    assert {book["entry_count"] for book in books} <= {ENTRIES}
    return {item["name"]: item["id"] for item in items}


def forget_claims(folder: Path) -> None:
    """As if five minutes had passed: requests that were never answered may be sent again."""
    with contextlib.closing(sqlite3.connect(folder / "talekeeper.sqlite3")) as connection:
        connection.execute(
            "UPDATE idempotent_requests SET created_at = '2020-01-01 00:00:00' WHERE status IS NULL"
        )
        connection.commit()


@pytest.mark.parametrize(
    "kind",
    [LOREBOOKS, pytest.param(CHARACTERS, marks=pytest.mark.thorough)],
    ids=lambda kind: kind.made,
)
async def test_an_import_that_is_killed_at_any_moment_loses_and_doubles_nothing(
    tmp_path: Path, kind: Kind
) -> None:
    acknowledged: dict[str, str] = {}
    sent: list[str] = []
    cookies: httpx.Cookies | None = None
    for turn in range(ROUNDS + 1):
        with serving(tmp_path) as served:
            async with browser(served, cookies) as ada:
                found = await things(ada, kind)
                assert acknowledged.items() <= found.items()
                assert found.keys() <= set(sent)
                for name in [name for name in sent if name not in acknowledged]:
                    again = ok(await import_file(ada, kind, name), 201)[kind.made]
                    assert again["id"] == found.get(name, again["id"])
                    acknowledged[name] = again["id"]
                assert await things(ada, kind) == acknowledged
                if turn < ROUNDS:
                    sent.append(f"Tale {turn}")
                    task = asyncio.create_task(import_file(ada, kind, sent[-1]))
                    await asyncio.sleep(random.uniform(0.0, 0.6))
                    served.process.kill()
                    with contextlib.suppress(httpx.TransportError):
                        acknowledged[sent[-1]] = ok(await task, 201)[kind.made]["id"]
                cookies = ada.client.cookies
        forget_claims(tmp_path)
    assert len(acknowledged) == ROUNDS
