"""The job of an import: stopping, continuing, lost processes, full accounts and uploads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import update

from backend.database.base import now
from backend.database.engine import Database
from backend.quotas.service import Quotas
from backend.transfer.models import Import
from backend.transfer.uploads import ABANDONED_SECONDS, WRITE_BYTES
from tests.support.importing import (
    bring,
    card_json,
    card_png,
    chat_jsonl,
    ended,
    outcomes,
    results_of,
    upload,
)
from tests.support.logs import Logged
from tests.support.server import Account, Running, ok, problem, running
from tests.support.waiting import until, until_true
from tests.support.zips import zipped

pytestmark = pytest.mark.anyio

CARDS = 60


def many_cards(count: int = CARDS, first: int = 0) -> bytes:
    return zipped({f"{number:03}.json": card_json(f"N{number}") for number in range(first, count)})


async def names(account: Account) -> list[str]:
    found = await account.get("/characters", limit=500)
    return sorted(each["name"] for each in found["items"])


@contextlib.asynccontextmanager
async def serving(
    database_url: str, folder: Path, **settings: Any
) -> AsyncGenerator[tuple[Running, Account]]:
    async with (
        running(database_url, folder, **settings) as server,
        server.account("Ada") as ada,
    ):
        yield server, ada


async def stopped_in_the_middle(ada: Account, data: bytes) -> str:
    """Begin an import and stop its job after some of its files; return its id."""
    view = await upload(ada, data, "many.zip")

    async def has_begun() -> bool:
        found = await ada.get(f"/imports/{view['id']}")
        return bool(found["counts"]["imported"] >= 3)

    await until(has_begun)
    await ada.post(f"/jobs/{view['job_id']}/stop", status=202)
    import_id: str = view["id"]
    return import_id


@pytest.mark.every_database
async def test_a_stopped_import_keeps_its_results_and_goes_on(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(database_url, tmp_path) as (server, ada):
        import_id = await stopped_in_the_middle(ada, many_cards())
        await server.parts.imports.sweep()
        view = await ada.get(f"/imports/{import_id}")
        assert (await ada.get("/imports", limit=1))["items"] == [view]
        assert view["state"] == "stopped"
        assert view["can_continue"]
        before = view["counts"]["imported"]
        assert 3 <= before < CARDS

        continued = await ada.post(f"/imports/{import_id}/continue", status=202)
        assert continued["state"] == "running"
        view, results = await ended(ada, import_id)
        assert view["state"] == "finished"
        assert outcomes(results) == {f"{number:03}.json": "imported" for number in range(CARDS)}
        assert await names(ada) == sorted(f"N{number}" for number in range(CARDS))
        path = f"/imports/{import_id}/results"
        first = await ada.get(path, outcome="imported", limit=2)
        second = await ada.get(path, outcome="imported", limit=2, after=first["next"])
        listed = [each["path"] for page in (first, second) for each in page["items"]]
        assert listed == ["000.json", "001.json", "002.json", "003.json"]
        assert (await ada.get(path, outcome="failed"))["items"] == []

        _, again = await bring(ada, many_cards(3), "again.zip")
        assert set(outcomes(again).values()) == {"already_there"}


@pytest.mark.every_database
async def test_an_import_goes_on_after_its_process_was_lost(
    database_url: str, tmp_path: Path
) -> None:
    async with running(database_url, tmp_path) as server, server.account("Ada") as ada:
        view = await upload(ada, many_cards(), "many.zip")

        async def has_begun() -> bool:
            found = await ada.get(f"/imports/{view['id']}")
            return bool(found["counts"]["imported"] >= 3)

        await until(has_begun)
        await server.parts.worker.kill()
    # The next process starts as after a crash: it ends the leases of the one that was lost.
    async with (
        running(database_url, tmp_path) as server,
        server.signed_in("Ada") as ada,
    ):
        found, results = await ended(ada, view["id"])
        assert found["state"] == "finished"
        assert set(outcomes(results).values()) == {"imported"}
        assert await names(ada) == sorted(f"N{number}" for number in range(CARDS))


@pytest.mark.every_database
async def test_deleting_an_import_stops_it_and_keeps_its_items(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(database_url, tmp_path) as (_, ada):
        view = await upload(ada, many_cards(), "many.zip")

        async def has_begun() -> bool:
            found = await ada.get(f"/imports/{view['id']}")
            return bool(found["counts"]["imported"] >= 3)

        await until(has_begun)
        await ada.delete(f"/imports/{view['id']}")
        problem(await ada.ask("GET", f"/imports/{view['id']}"), 404, "import-not-found")
        job = await ada.get(f"/jobs/{view['job_id']}")
        assert (job["state"], job["error"]) == ("done", "stopped")
        assert list((tmp_path / "transfers").glob("*")) == []
        assert 3 <= len(await names(ada)) < CARDS


async def test_imports_of_one_account_run_one_after_the_other(ada: Account) -> None:
    data = many_cards(20)
    first, second = await upload(ada, data, "a.zip"), await upload(ada, data, "b.zip")
    _, results = await ended(ada, first["id"])
    assert set(outcomes(results).values()) == {"imported"}
    _, results = await ended(ada, second["id"])
    assert set(outcomes(results).values()) == {"already_there"}
    assert len(await names(ada)) == 20


async def test_a_full_account_stops_the_import_which_goes_on_when_there_is_room(
    sqlite_url: str, tmp_path: Path
) -> None:
    limit = 60_000
    async with serving(sqlite_url, tmp_path, max_stored_bytes_per_user=limit) as (_, ada):
        data = zipped(
            {
                f"{number}.json": card_json(f"N{number}", description=os.urandom(6_000).hex())
                for number in range(6)
            }
        )
        assert len(data) < limit
        view, results = await bring(ada, data, "cards.zip")
        assert view["state"] == "stopped"
        assert view["can_continue"]
        [failed] = [each for each in results.values() if each["outcome"] == "failed"]
        assert "delete" in failed["detail"]
        assert len(results) < 6

        for character in (await ada.get("/characters"))["items"]:
            await ada.delete(f"/characters/{character['id']}")
        await ada.post(f"/imports/{view['id']}/continue", status=202)
        view, later = await ended(ada, view["id"])
        assert later[failed["path"]]["outcome"] == "imported"


async def test_an_unexpected_error_fails_one_file_without_its_content_in_the_log(
    ada: Account, server: Running, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    characters = server.parts.characters
    original = characters.import_file

    async def fail_once(identity: Any, data: bytes, **options: Any) -> Any:
        if b"Tovin" in data:
            raise RuntimeError("Tovin keeps the lighthouse")
        return await original(identity, data, **options)

    monkeypatch.setattr(characters, "import_file", fail_once)
    data = zipped({"a.json": card_json("Mara"), "t.json": card_json("Tovin")})
    view, results = await bring(ada, data)
    assert view["state"] == "finished"
    assert outcomes(results) == {"a.json": "imported", "t.json": "failed"}
    assert results["t.json"]["detail"].startswith("An unexpected error")
    assert "lighthouse" not in logged.text


async def test_a_job_waits_for_the_process_that_has_its_upload(
    ada: Account, server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several processes, the folder of another one may contain the file."""
    imports = server.parts.imports
    monkeypatch.setattr(imports, "_is_alone", False)
    monkeypatch.setattr("backend.transfer.imports.ELSEWHERE_RETRY_SECONDS", 0.05)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    start = imports.start

    async def start_elsewhere(identity: Any, received: Any, options: Any) -> Any:
        file = tmp_path / "transfers" / f"{received.id}.upload"
        file.rename(elsewhere / file.name)
        return await start(identity, received, options)

    monkeypatch.setattr(imports, "start", start_elsewhere)
    view = await upload(ada, card_png(), "Mara.png")

    async def was_put_off() -> bool:
        job = await ada.get(f"/jobs/{view['job_id']}")
        return bool(job["error"] is None and job["run_after"] > job["created_at"])

    await until(was_put_off)
    for file in elsewhere.iterdir():
        file.rename(tmp_path / "transfers" / file.name)
    _, results = await ended(ada, view["id"])
    assert outcomes(results) == {"Mara.png": "imported"}


async def expire(database: Database, import_id: str) -> None:
    async with database.write() as session:
        await session.execute(
            update(Import).where(Import.id == UUID(import_id)).values(expires_at=now())
        )


async def test_an_upload_expires_and_its_import_says_so(
    ada: Account, server: Running, tmp_path: Path
) -> None:
    import_id = await stopped_in_the_middle(ada, many_cards())
    await expire(server.parts.database, import_id)
    [file] = (tmp_path / "transfers").iterdir()
    long_ago = time.time() - 2 * ABANDONED_SECONDS
    os.utime(file, (long_ago, long_ago))
    await server.parts.imports.sweep()
    assert list((tmp_path / "transfers").iterdir()) == []

    assert not (await ada.get(f"/imports/{import_id}"))["can_continue"]
    answer = await ada.ask("POST", f"/imports/{import_id}/continue")
    assert "deleted" in problem(answer, 409, "import-not-continuable")["detail"]


async def test_an_upload_may_be_missing_after_a_restore(ada: Account, tmp_path: Path) -> None:
    import_id = await stopped_in_the_middle(ada, many_cards())
    before = await ada.get(f"/imports/{import_id}")
    [file] = (tmp_path / "transfers").iterdir()
    file.unlink()
    found = await ada.get(f"/imports/{import_id}")
    assert (found["state"], found["can_continue"]) == ("stopped", False)
    answer = await ada.ask("POST", f"/imports/{import_id}/continue")
    assert "restored" in problem(answer, 409, "import-not-continuable")["detail"]
    results = await results_of(ada, import_id)
    assert outcomes(results).keys() >= {"000.json"}
    assert found["counts"] == before["counts"]
    await ada.delete(f"/imports/{import_id}")


async def test_a_queued_import_without_its_upload_has_a_result(
    ada: Account, tmp_path: Path
) -> None:
    first = await upload(ada, many_cards(), "first.zip")
    second = await upload(ada, many_cards(), "second.zip")
    (tmp_path / "transfers" / f"{second['id']}.upload").unlink()
    await ended(ada, first["id"])
    view, results = await ended(ada, second["id"])
    assert view["state"] == "failed"
    assert outcomes(results) == {"second.zip": "failed"}
    assert "restored" in results["second.zip"]["detail"]


async def test_the_sweep_deletes_only_old_files_that_no_import_needs(
    ada: Account, server: Running, tmp_path: Path
) -> None:
    import_id = await stopped_in_the_middle(ada, many_cards())
    folder = tmp_path / "transfers"
    orphan = folder / "01890a5d-ac96-774b-bcce-b302099a8057.upload"
    broken = folder / "01890a5d-ac96-774b-bcce-b302099a8058.incoming"
    other = folder / "notes.txt"
    for file in (orphan, broken, other):
        file.write_bytes(b"x")
    await server.parts.imports.sweep()
    assert orphan.exists()
    assert broken.exists()
    long_ago = time.time() - 2 * ABANDONED_SECONDS
    for file in folder.iterdir():
        os.utime(file, (long_ago, long_ago))
    await server.parts.imports.sweep()
    assert {file.name for file in folder.iterdir()} == {f"{import_id}.upload", "notes.txt"}


async def test_a_damaged_upload_fails_with_advice(
    ada: Account, server: Running, tmp_path: Path
) -> None:
    import_id = await stopped_in_the_middle(ada, many_cards())
    [file] = (tmp_path / "transfers").iterdir()
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    await ada.post(f"/imports/{import_id}/continue", status=202)
    view, results = await ended(ada, import_id)
    assert view["state"] == "failed"
    assert "damaged" in results["many.zip"]["detail"]


async def body_of(size: int, pause: Callable[[int], float]) -> AsyncIterator[bytes]:
    """A body of `size` bytes that arrives in pieces."""
    sent = 0
    while sent < size:
        piece = os.urandom(min(65_536, size - sent))
        sent += len(piece)
        yield piece
        await asyncio.sleep(pause(sent))


async def test_a_large_upload_takes_none_of_the_quota_for_bodies(
    sqlite_url: str, tmp_path: Path
) -> None:
    limits: dict[str, Any] = {
        "max_upload_bytes_per_user": 6_000_000,
        "body_seconds": 0.5,
        "body_bytes_per_second": 1_000_000,
    }
    async with serving(sqlite_url, tmp_path, **limits) as (server, ada):
        quotas: Quotas = server.parts.quotas
        user_id, highest = UUID(ada.user["id"]), 0

        def look(_: int) -> float:
            nonlocal highest
            highest = max(highest, quotas.upload_bytes.used(user_id))
            return 0.01

        size = 10 * WRITE_BYTES
        sending = asyncio.create_task(
            ada.ask("POST", "/imports", content=body_of(size, look), params={"name": "a.bin"})
        )
        await until_true(lambda: highest)
        # A card can be uploaded at the same time.
        files = {"file": ("Mara.png", card_png())}
        ok(await ada.ask("POST", "/characters/import", files=files), 201)
        answer = await sending
        assert ok(answer, 202)["size"] == size
        assert highest < 6_000_000
        await until_true(lambda: not quotas.upload_bytes.used(user_id))


async def test_an_upload_over_the_limit_is_refused_and_leaves_nothing(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with serving(sqlite_url, tmp_path, max_import_bytes=100_000) as (_, ada):
        files = {"file": ("a.zip", os.urandom(2_000_000))}
        found = problem(await ada.ask("POST", "/imports", files=files), 413, "too-large")
        assert found["allowed"] == 100_000
        # Without a length, the bytes are counted as they arrive.
        content = body_of(200_000, lambda _: 0)
        answer = await ada.ask("POST", "/imports", content=content)
        problem(answer, 413, "too-large")
        assert list((tmp_path / "transfers").glob("*")) == []


async def test_an_upload_that_does_not_fit_into_the_account_is_refused(
    sqlite_url: str, tmp_path: Path
) -> None:
    limit = 1_000_000
    async with serving(sqlite_url, tmp_path, max_stored_bytes_per_user=limit) as (server, ada):
        for content in (os.urandom(limit + 1), body_of(limit + 1, lambda _: 0)):
            answer = await ada.ask("POST", "/imports", content=content)
            problem(answer, 413, "storage-quota-exceeded")
        # Uploads that wait on disk count, too.
        server.parts.worker.drain()
        await upload(ada, os.urandom(600_000), "a.bin")
        answer = await ada.ask("POST", "/imports", content=body_of(600_000, lambda _: 0))
        problem(answer, 413, "storage-quota-exceeded")
        assert len(list((tmp_path / "transfers").glob("*"))) == 1


async def test_an_upload_that_breaks_off_leaves_nothing(ada: Account, tmp_path: Path) -> None:
    async def break_off() -> AsyncIterator[bytes]:
        yield b"x" * 3 * WRITE_BYTES
        await until_true(lambda: list((tmp_path / "transfers").glob("*")))
        raise ConnectionResetError

    with contextlib.suppress(httpx.HTTPError, ConnectionResetError):
        await ada.ask("POST", "/imports", content=break_off())
    await until_true(lambda: not list((tmp_path / "transfers").glob("*")))
    assert (await ada.get("/imports"))["items"] == []


async def test_a_repeated_upload_with_the_same_key_makes_one_import(ada: Account) -> None:
    headers = {"Idempotency-Key": "one-import"}
    views = [
        ok(
            await ada.ask(
                "POST", "/imports", files={"file": ("a.json", card_json())}, headers=headers
            ),
            202,
        )
        for _ in range(2)
    ]
    assert views[0]["id"] == views[1]["id"]
    assert len((await ada.get("/imports"))["items"]) == 1


async def test_too_many_jobs_refuse_another_import(sqlite_url: str, tmp_path: Path) -> None:
    async with serving(sqlite_url, tmp_path, max_queued_jobs_per_user=1) as (server, ada):
        server.parts.worker.drain()
        await upload(ada, chat_jsonl(), "a.jsonl")
        files = {"file": ("b.jsonl", chat_jsonl())}
        answer = await ada.ask("POST", "/imports", files=files)
        problem(answer, 429, "quota-exceeded")


async def test_progress_counts_files_and_messages(ada: Account) -> None:
    data = zipped({f"{number}.jsonl": chat_jsonl(10, text=f"T{number}") for number in range(3)})
    view, _ = await bring(ada, data)
    job = await ada.get(f"/jobs/{view['job_id']}")
    assert job["progress"] == {"done": 3, "total": 3}
    assert job["counts"] == {"imported": 3, "messages": 30}
    assert await results_of(ada, view["id"])
