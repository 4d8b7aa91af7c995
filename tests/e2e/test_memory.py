"""Memory in processes as people start them: through a lost index, and through kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import shutil
import sqlite3
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import select

from backend.accounts.models import User
from backend.chats.models import Message
from backend.container import build_services
from backend.database.engine import Database
from backend.lorebooks.models import LoreEntryRow
from backend.memory.runtime import index_folder
from backend.settings import Settings
from backend.vault.root import load_root_keys
from tests.e2e.test_crash import browser
from tests.support.memory import (
    API,
    MODEL_FOLDER,
    link,
    points_of,
    preview,
    reasons,
    remembered,
    rows_of,
    search,
    set_chat,
    take_turn,
)
from tests.support.process import Served, run_command, serving
from tests.support.server import PASSWORD, Account, ok
from tests.support.thorough import rounds
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WORLD = Path(__file__).parents[1] / "fixtures" / "lorebooks" / "drowned_coast.json"
FACT = "My sister's locket is buried beneath the third pear tree."
BY_WORDS = {"embedder": "none", "demo_tokens_per_second": "0"}


async def wait_for_jobs(account: Account) -> None:
    """Wait until all jobs of a user are done or dead. If they don't end, fail with their views."""
    left: list[dict[str, Any]] = []

    async def are_done() -> bool:
        jobs = ok(await account.client.get(f"{API}/jobs", params={"limit": 100}))["items"]
        left[:] = [job for job in jobs if job["state"] not in {"done", "dead"}]
        return not left

    try:
        await until(are_done)
    except TimeoutError:
        pytest.fail(f"jobs that do not end: {left}")


async def retry_dead_jobs(account: Account) -> None:
    """As their user would: work that lost its process three times in a row gave up."""
    jobs = ok(await account.client.get(f"{API}/jobs", params={"limit": 100}))["items"]
    for job in jobs:
        if job["state"] == "dead":
            ok(await account.client.post(f"{API}/jobs/{job['id']}/retry"), 202)


async def upload(account: Account, data: bytes) -> httpx.Response:
    files = {"file": ("world.json", data)}
    return await account.client.post(f"{API}/lorebooks/import", files=files)


def enter_password() -> None:
    sys.stdin = io.StringIO(f"{PASSWORD}\n")


def reindex(folder: Path, name: str, **settings: str) -> str:
    """Run `talekeeper reindex --user`; return its output."""
    done = run_command(folder, "reindex", "--user", name, prepare=enter_password, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def answers(account: Account, chat: str) -> tuple[str, set[str], str]:
    """The memories for a question, a paraphrase of lore and a search."""
    context = await preview(account, chat, "Where did you hide the locket of your sister?")
    paraphrase = await preview(account, chat, "Are kids allowed in the shed where hemp is twisted?")
    found = await search(account, "bad luck at noon")
    return "".join(remembered(context)[:1]), set(reasons(paraphrase)), found[0]["text"]


async def test_memory_outlives_its_index_and_finds_by_meaning(tmp_path: Path) -> None:
    if not (MODEL_FOLDER / "model.onnx").is_file():
        pytest.skip("there is no embedding model on this machine")
    settings = {
        "embedder": "local",
        "embedding_model_path": str(MODEL_FOLDER),
        "demo_tokens_per_second": "0",
    }
    folder = index_folder(Settings(data_dir=tmp_path, _env_file=None))  # type: ignore[call-arg]  # pydantic-settings' own argument
    with serving(tmp_path, **settings) as served:
        async with browser(served) as ada:
            cookies = ada.client.cookies
            chat = str((await ada.new_chat())["id"])
            book = ok(await upload(ada, WORLD.read_bytes()), 201)["lorebook"]["id"]
            await link(ada, chat, book)
            told = await ada.turn(chat, text=FACT)
            for n in range(15):
                await take_turn(ada, chat, text=f"/demo long 12 the rain falls on roof {n}")
            await set_chat(ada, chat, budgets={"history": 250})
            await wait_for_jobs(ada)
            before = await answers(ada, chat)
            assert FACT in before[0]
            assert before[1] == {"The coast", "Rope-walk"}
            assert before[2].startswith("In the Salt Market")
            keyed = await preview(ada, chat, "Is that the Skerrow?")
            assert 'key "skerrow" in the line' in reasons(keyed)["Skerrow Light"]

            # Write another line instead: the memory is hidden until the branch is active again.
            fact_id = told[0].data["user_message_id"]
            path = f"{API}/messages/{fact_id}"
            ok(await ada.client.patch(path, json={"text": "Nothing."}))
            assert FACT not in (await answers(ada, chat))[0]
            ok(await ada.client.post(f"{path}/activate", json={}))
            await wait_for_jobs(ada)
            assert await answers(ada, chat) == before
        assert served.stop() == 0

    shutil.rmtree(folder)
    assert "points of ada" in reindex(tmp_path, "ada", **settings)
    with serving(tmp_path, **settings) as served:
        async with browser(served, cookies) as ada:
            assert await answers(ada, chat) == before
        assert served.stop() == 0

    shutil.rmtree(folder)
    with serving(tmp_path, **settings) as served:
        async with browser(served, cookies) as ada:
            await wait_for_jobs(ada)
            assert await answers(ada, chat) == before


@contextlib.asynccontextmanager
async def killed(
    folder: Path, cookies: httpx.Cookies | None, seconds: float
) -> AsyncGenerator[Account]:
    """A server that is killed that long after the block began; what breaks off is passed over."""
    with serving(folder, **BY_WORDS) as served:
        async with browser(served, cookies) as ada:
            killer = asyncio.create_task(kill(served, seconds))
            with contextlib.suppress(httpx.TransportError):
                yield ada
            await killer
    # Let sixty seconds pass, so that the leases of jobs end.
    with contextlib.closing(sqlite3.connect(folder / "talekeeper.sqlite3")) as database:
        database.execute("UPDATE jobs SET lease_until = created_at WHERE state = 'running'")
        database.commit()


async def kill(served: Served, seconds: float) -> None:
    await asyncio.sleep(seconds)
    served.process.kill()
    served.process.wait()


async def test_killed_while_it_imports_and_indexes_nothing_is_missing_or_there_twice(
    tmp_path: Path,
) -> None:
    entries = {
        str(n): {"uid": n, "key": [f"key{n}"], "content": f"Entry {n} of them. " * 5}
        for n in range(1000)
    }
    world = json.dumps({"entries": entries}).encode()
    with serving(tmp_path, **BY_WORDS) as served:
        async with browser(served) as ada:
            chat = str((await ada.new_chat())["id"])
            cookies = ada.client.cookies
    acknowledged = 0
    for _ in range(rounds(1, 3)):
        async with killed(tmp_path, cookies, random.uniform(0.1, 0.8)) as ada:
            while True:
                ok(await upload(ada, world), 201)
                acknowledged += 1
                await ada.turn(chat, text=f"Line {acknowledged}.")
    with serving(tmp_path, **BY_WORDS) as served:
        async with browser(served, cookies) as ada:
            # What a crash cut off is indexed with what is said next.
            await ada.turn(chat, text="The last line.")
            await wait_for_jobs(ada)
            await retry_dead_jobs(ada)
            await wait_for_jobs(ada)
        assert served.stop() == 0

    stored, points = await both_sides(tmp_path)
    assert rows_of(points).keys() == stored
    assert set(rows_of(points).values()) == {1}
    assert len({point.source_id for point in points if point.kind == "lore"}) >= 1000 * acknowledged

    # Whoever deletes their account is gone from the index, though it be killed at once.
    with serving(tmp_path, **BY_WORDS) as served:
        async with browser(served, cookies) as ada:
            ok(await ada.client.request("DELETE", f"{API}/me", json={"password": PASSWORD}), 204)
            served.process.kill()
            served.process.wait()
    with contextlib.closing(sqlite3.connect(tmp_path / "talekeeper.sqlite3")) as database:
        database.execute("UPDATE jobs SET lease_until = created_at WHERE state = 'running'")
        database.commit()
    with serving(tmp_path, **BY_WORDS) as served:

        async def is_forgotten() -> bool:
            with contextlib.closing(sqlite3.connect(tmp_path / "talekeeper.sqlite3")) as database:
                # The second look, minutes later, has no part in it.
                left = (
                    "SELECT count(*) FROM jobs WHERE kind = 'memory.forget' "
                    "AND dedupe_key NOT LIKE '%/again'"
                )
                return bool(database.execute(left).fetchone() == (0,))

        # The last server may have forgotten all: this one must be there to take the signal.
        async with httpx.AsyncClient(base_url=served.url, trust_env=False) as client:
            ok(await client.get("/health"))
        await until(is_forgotten)
        assert served.stop() == 0
    assert await both_sides(tmp_path) == (set(), [])


async def both_sides(folder: Path) -> tuple[set[UUID], list[Any]]:
    """The rows in the database and the points in the index, of everybody."""
    values: dict[str, Any] = {"_env_file": None, "data_dir": folder, "embedder": "none"}
    settings = Settings(**values)
    database = Database(settings.resolved_database_url)
    root = load_root_keys(settings.resolved_root_key_file, value=None, create=False)
    parts = await build_services(settings, root, database)
    index = parts.memory.collections.current
    async with database.read() as session:
        messages = set(await session.scalars(select(Message.id)))
        entries = set(await session.scalars(select(LoreEntryRow.id)))
        users = set(await session.scalars(select(User.id)))
    points = [each for user_id in users for each in await points_of(index, user_id)]
    assert await index.count() == len(points)
    await parts.memory.aclose()
    await parts.registry.aclose()
    await database.dispose()
    return messages | entries, points
