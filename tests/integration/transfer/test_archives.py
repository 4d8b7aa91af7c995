"""Archives of accounts: made, downloaded, imported into another installation, and compared."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from backend.accounts.auth.identity import Identity
from backend.chats.models import Chat
from backend.database.base import now
from backend.database.engine import Database
from backend.jobs.errors import RetryLaterError
from backend.jobs.models import Job
from backend.transfer.archives.comparison import compare_archives
from backend.transfer.archives.service import EXPIRE_ARCHIVE
from backend.transfer.models import Archive
from tests.support.archived_rows import add_file_and_source
from tests.support.archives import (
    import_archive,
    make_archive,
    read_files,
    write_files,
)
from tests.support.full_account import fill_account
from tests.support.importing import bring, chat_jsonl
from tests.support.server import Account, Running, problem, running
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio]


def differences(first: bytes, second: bytes) -> list[str]:
    found = compare_archives(io.BytesIO(first), io.BytesIO(second))
    return [each.render() for each in found]


@dataclass
class Installation:
    """A second installation with a new, empty account."""

    server: Running
    account: Account

    async def bring(self, data: bytes, **options: Any) -> Counter[str]:
        """Import an archive; return how often each outcome was reported."""
        view, results = await bring(self.account, data, "archive.zip", **options)
        assert view["state"] == "finished"
        return Counter(each["outcome"] for each in results.values())


@asynccontextmanager
async def second_installation(template: Path, folder: Path) -> AsyncGenerator[Installation]:
    file = await asyncio.to_thread(shutil.copy, template, folder / "two.sqlite3")
    async with (
        running(f"sqlite+aiosqlite:///{file}", folder / "two") as server,
        server.account("Bea") as account,
    ):
        yield Installation(server, account)


@pytest.fixture(scope="module")
def full_archive() -> dict[str, bytes]:
    """The archive of a full account, once it was made."""
    return {}


@pytest.fixture
async def archive(full_archive: dict[str, bytes], sqlite_template: Path, tmp_path: Path) -> bytes:
    """The archive of a full account of another installation."""
    if not full_archive:
        file = await asyncio.to_thread(shutil.copy, sqlite_template, tmp_path / "full.sqlite3")
        async with (
            running(f"sqlite+aiosqlite:///{file}", tmp_path / "full") as server,
            server.account("Cleo") as account,
        ):
            await fill_account(account)
            full_archive["zip"] = await make_archive(account)
    return full_archive["zip"]


@pytest.mark.every_database
async def test_an_empty_account_becomes_equal(
    database_url: str, sqlite_template: Path, tmp_path: Path
) -> None:
    async with running(database_url, tmp_path / "one") as here, here.account("Ada") as ada:
        await fill_account(ada)
        archive = await make_archive(ada)
    async with second_installation(sqlite_template, tmp_path) as there:
        assert (await there.bring(archive)).keys() == {"imported"}
        assert differences(archive, await make_archive(there.account)) == []


@pytest.mark.every_database
async def test_an_archive_comes_into_an_account_of_any_database(
    database_url: str, archive: bytes, tmp_path: Path
) -> None:
    async with running(database_url, tmp_path / "one") as here, here.account("Ada") as ada:
        assert (await Installation(here, ada).bring(archive)).keys() == {"imported"}
        assert differences(archive, await make_archive(ada)) == []


async def test_an_archive_is_in_the_formats_of_other_programs(archive: bytes) -> None:
    files = read_files(archive)
    assert files["characters/Mara.png"].startswith(b"\x89PNG")
    assert json.loads(files["worlds/The coast.json"])["entries"]["0"]["key"] == ["tide"]
    assert json.loads(files["presets/Slow burn.json"])["prompts"]
    assert json.loads(files["regex.json"])[0]["scriptName"] == "Dashes"
    assert len(files["chats/At the inn.jsonl"].splitlines()) > 8
    manifest = json.loads(files["manifest.json"])
    assert {each["path"] for each in manifest["entries"]} == files.keys() - {"manifest.json"}
    assert manifest["counts"]["chat"] == 3


async def test_an_archive_has_no_keys_of_providers(archive: bytes) -> None:
    files = read_files(archive)
    assert "providers/mine.json" in files
    assert not [path for path, data in files.items() if b"sk-a-secret" in data]


async def test_files_and_members_of_imported_chats_come_back(
    server: Running, ada: Account, sqlite_template: Path, tmp_path: Path
) -> None:
    chat = await ada.new_chat(title="Pictures")
    await ada.turn(chat["id"], text="Look.")
    [line, *_] = await ada.messages(chat["id"])
    await add_file_and_source(server, ada, line["id"])
    await bring(ada, chat_jsonl(6), "Mara - 2024.jsonl")
    exported = await export_imported(ada)
    archive = await make_archive(ada)
    assert any(path.startswith("files/") for path in read_files(archive))
    async with second_installation(sqlite_template, tmp_path) as there:
        await there.bring(archive)
        assert differences(archive, await make_archive(there.account)) == []
        assert await export_imported(there.account) == exported


async def export_imported(account: Account) -> bytes:
    """Export the chat that was imported as SillyTavern's JSONL."""
    chats = (await account.get("/chats"))["items"]
    [chat] = [each for each in chats if each["title"] != "Pictures"]
    answer = await account.ask("GET", f"/chats/{chat['id']}/export", params={"format": "jsonl"})
    assert b"January 2, 2024 3:04am" in answer.content
    return answer.content


async def test_a_second_import_brings_nothing_new(
    server: Running, ada: Account, archive: bytes
) -> None:
    here = Installation(server, ada)
    first = await here.bring(archive)
    before = await make_archive(ada)
    assert await here.bring(archive) == {"already_there": first.total()}
    assert differences(before, await make_archive(ada)) == []


async def test_a_copy_is_imported_again(server: Running, ada: Account, archive: bytes) -> None:
    here = Installation(server, ada)
    await here.bring(archive)
    again = await here.bring(archive, copy=True)
    assert again["failed"] == 0
    chats = (await ada.get("/chats"))["items"]
    assert len(chats) == 8


async def test_an_archive_brings_back_what_was_deleted_in_its_own_account(
    ada: Account,
) -> None:
    full = await fill_account(ada)
    archive = await make_archive(ada)
    await ada.delete(f"/chats/{full.ids['group']}")
    await ada.delete(f"/presets/{full.ids['preset']}")
    _, results = await bring(ada, archive)
    brought = {path for path, each in results.items() if each["outcome"] == "imported"}
    assert {"chats/At the inn (2).jsonl", "presets/Brief fast loose.json"} <= brought
    assert not any(path.startswith(("characters/", "campaigns/")) for path in brought)
    titles = [each["title"] for each in (await ada.get("/chats"))["items"]]
    assert titles.count("At the inn") == 2


@pytest.mark.every_database
async def test_an_archive_brings_back_what_is_still_being_deleted(
    database_url: str, tmp_path: Path
) -> None:
    async with running(database_url, tmp_path) as server, server.account("Ada") as ada:
        full = await fill_account(ada)
        archive = await make_archive(ada)
        await server.parts.worker.aclose()  # so that no job deletes the rows
        names: dict[str, str] = {}
        deleted = {"lorebooks": "The war", "chronicles": "chronicle", "campaigns": "campaign"}
        for path, each in deleted.items():
            item = f"/{path}/{full.ids[each]}"
            names[path] = (await ada.get(item))["name"]
            await ada.delete(item)
        group = UUID(full.ids["group"])
        async with server.parts.database.write() as session:
            await session.execute(update(Chat).where(Chat.id == group).values(is_ready=False))
        results = await import_archive(server, ada, archive)
        assert {each.outcome for each in results.values()} == {"imported", "already_there"}
        brought = {each.kind for each in results.values() if each.outcome == "imported"}
        assert {"lorebook", "chronicle", "campaign", "chat"} <= brought
        for path, name in names.items():
            found = [each["name"] for each in (await ada.get(f"/{path}"))["items"]]
            assert name in found
        titles = [each["title"] for each in (await ada.get("/chats"))["items"]]
        assert titles.count("At the inn") == 2


async def test_an_import_can_go_on_after_every_file(
    archive: bytes, sqlite_template: Path, tmp_path: Path
) -> None:
    count = len(json.loads(read_files(archive)["manifest.json"])["entries"])
    async with second_installation(sqlite_template, tmp_path) as there:
        for number in range(count):
            await import_archive(there.server, there.account, archive, stop_after=number)
        await there.bring(archive)
        assert differences(archive, await make_archive(there.account)) == []


async def test_what_the_account_has_set_is_kept(
    server: Running, ada: Account, archive: bytes
) -> None:
    await ada.patch("/me/settings", {"system_prompt": "Mine.", "lore": {"mode": "keys"}})
    await Installation(server, ada).bring(archive)
    settings = await ada.get("/me/settings")
    assert settings["system_prompt"] == "Mine."
    assert settings["lore"] == {"mode": "keys", "scan_depth": 6}


async def test_a_turn_goes_on_in_an_imported_chat(
    server: Running, ada: Account, archive: bytes
) -> None:
    await Installation(server, ada).bring(archive)
    for chat in (await ada.get("/chats"))["items"]:
        before = await ada.messages(chat["id"])
        await ada.turn(chat["id"], text="And then?")
        assert len(await ada.messages(chat["id"])) == len(before) + 2


class TestDamage:
    async def test_a_changed_file_is_imported_with_a_warning(
        self, ada: Account, archive: bytes
    ) -> None:
        files = read_files(archive)
        persona = json.loads(files["personas/Traveller.json"])
        persona["persona"]["name"] = "Wanderer"
        files["personas/Traveller.json"] = json.dumps(persona).encode()
        _, results = await bring(ada, write_files(files))
        changed = results["personas/Traveller.json"]
        assert changed["outcome"] == "imported"
        assert changed["warnings"] == ["The file was changed after the archive was made."]
        names = [each["name"] for each in (await ada.get("/personas"))["items"]]
        assert "Wanderer" in names

    async def test_a_missing_file_fails_alone(self, ada: Account, archive: bytes) -> None:
        files = read_files(archive)
        del files["chats/At the inn.jsonl"]
        _, results = await bring(ada, write_files(files))
        assert results["chats/At the inn.jsonl"]["outcome"] == "failed"
        assert results["chats/At the inn.state.json"]["outcome"] == "skipped"
        others = [each["outcome"] for path, each in results.items() if "At the inn." not in path]
        assert set(others) == {"imported"}

    async def test_every_damaged_file_gets_a_result(self, ada: Account, archive: bytes) -> None:
        files = read_files(archive)
        damaged = {
            path: data if path == "manifest.json" else data[: len(data) // 2]
            for path, data in files.items()
        }
        _, results = await bring(ada, write_files(damaged))
        assert len(results) == len(files) - 1
        pictures = ("personas/Ines.webp",)
        wrong = {
            path: each["outcome"]
            for path, each in results.items()
            if each["outcome"] == "imported" and path not in pictures
        }
        assert not wrong
        assert all(each["detail"] for each in results.values() if each["outcome"] != "imported")
        assert (await ada.get("/chats"))["items"] == []

    @pytest.mark.parametrize(
        "manifest",
        [b'{"format":"talekeeper-archive"}', b'{"format":"talekeeper-archive","version":2}'],
    )
    async def test_a_damaged_manifest_is_refused(self, ada: Account, manifest: bytes) -> None:
        data = write_files({"manifest.json": manifest.ljust(300)})
        view, results = await bring(ada, data)
        assert view["state"] == "failed"
        [result] = results.values()
        assert "manifest.json" in result["detail"]


class TestRoutes:
    async def test_there_is_no_archive_before_one_is_made(self, ada: Account) -> None:
        for method, path in (("GET", ""), ("GET", "/status"), ("DELETE", "")):
            answer = await ada.ask(method, f"/me/archive{path}")
            problem(answer, 404, "archive-not-found")

    async def test_another_user_does_not_get_it(self, server: Running, ada: Account) -> None:
        await make_archive(ada)
        async with server.account("Bea") as bea:
            problem(await bea.ask("GET", "/me/archive"), 404, "archive-not-found")
            problem(await bea.ask("GET", "/me/archive/status"), 404, "archive-not-found")
            problem(await bea.ask("DELETE", "/me/archive"), 404, "archive-not-found")
        assert (await ada.ask("GET", "/me/archive")).status_code == 200

    async def test_it_is_sealed_on_disk(self, ada: Account, tmp_path: Path) -> None:
        await ada.new_chat(title="A title to look for")
        archive = await make_archive(ada)
        [file] = await asyncio.to_thread(lambda: list((tmp_path / "transfers").iterdir()))
        stored = await asyncio.to_thread(file.read_bytes)
        assert b"chats/" in archive
        assert b"chats/" not in stored
        assert not stored.startswith(b"PK")

    async def test_a_new_one_replaces_it(self, ada: Account, tmp_path: Path) -> None:
        first = await make_archive(ada)
        await ada.new_chat(title="Later")
        second = await make_archive(ada)
        assert differences(first, second) == ["chats/Later.jsonl: only in the second"]
        files = await asyncio.to_thread(lambda: list((tmp_path / "transfers").iterdir()))
        assert len(files) == 1

    async def test_deleting_it_deletes_the_file(self, ada: Account, tmp_path: Path) -> None:
        await make_archive(ada)
        await ada.delete("/me/archive")
        problem(await ada.ask("GET", "/me/archive"), 404, "archive-not-found")
        assert await asyncio.to_thread(lambda: list((tmp_path / "transfers").iterdir())) == []

    async def test_its_file_may_be_missing_after_a_restore(
        self, ada: Account, tmp_path: Path
    ) -> None:
        await make_archive(ada)
        [file] = await asyncio.to_thread(lambda: list((tmp_path / "transfers").iterdir()))
        await asyncio.to_thread(file.unlink)
        for path in ("/me/archive", "/me/archive/status"):
            problem(await ada.ask("GET", path), 404, "archive-not-found")
        assert read_files(await make_archive(ada))
        await ada.delete("/me/archive")

    async def test_it_expires_after_a_day(
        self, server: Running, ada: Account, tmp_path: Path
    ) -> None:
        await make_archive(ada)
        await _make_expiry_due(server.parts.database)
        server.parts.queue.wake()

        async def is_gone() -> bool:
            found = await asyncio.to_thread(lambda: list((tmp_path / "transfers").iterdir()))
            return not found

        await until(is_gone)
        problem(await ada.ask("GET", "/me/archive/status"), 404, "archive-not-found")

    async def test_a_stopped_one_leaves_nothing(
        self,
        server: Running,
        ada: Account,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        entered = asyncio.Event()
        reader = server.parts.archives._reader  # to hold the job in its middle

        async def hold(_: object) -> int:
            entered.set()
            await asyncio.sleep(3600)
            return 0

        monkeypatch.setattr(reader, "count", hold)
        begun = await ada.post("/me/archive", status=202)
        await entered.wait()
        again = await ada.post("/me/archive", status=202)
        assert again["job"]["id"] == begun["job"]["id"]
        await ada.post(f"/jobs/{begun['job']['id']}/stop", status=202)
        assert (await ada.get("/me/archive/status"))["state"] == "stopped"

        async def is_empty() -> bool:
            found = await asyncio.to_thread(lambda: list((tmp_path / "transfers").iterdir()))
            return not found

        await until(is_empty)
        problem(await ada.ask("GET", "/me/archive"), 404, "archive-not-found")
        monkeypatch.undo()
        assert read_files(await make_archive(ada))

    async def test_remains_of_a_killed_attempt_are_removed(
        self,
        server: Running,
        ada: Account,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        folder = tmp_path / "transfers"

        def leave(archive_id: str) -> None:
            folder.mkdir(exist_ok=True)
            (folder / f"{archive_id}-0123.part").write_bytes(b"half")

        async def leave_and_fail(identity: Identity) -> int:
            monkeypatch.undo()
            async with server.parts.database.read() as session:
                [archive_id] = await session.scalars(select(Archive.id))
            await asyncio.to_thread(leave, str(archive_id))
            raise RetryLaterError("Killed.", after=0.0)

        monkeypatch.setattr(server.parts.archives._reader, "count", leave_and_fail)
        await make_archive(ada)
        found = await asyncio.to_thread(lambda: [each.name for each in folder.iterdir()])
        assert not [name for name in found if name.endswith(".part")]


async def _make_expiry_due(database: Database) -> None:
    earlier = now() - timedelta(seconds=1)
    async with database.write() as session:
        await session.execute(
            update(Job).where(Job.kind == EXPIRE_ARCHIVE).values(run_after=earlier)
        )
        await session.execute(update(Archive).values(expires_at=earlier))


async def test_a_later_archive_changes_no_chat_that_is_there(
    ada: Account, sqlite_template: Path, tmp_path: Path
) -> None:
    full = await fill_account(ada)
    first = await make_archive(ada)
    settings = f"/chats/{full.ids['inn']}/settings"
    await ada.patch(settings, {"authors_note": {"text": "Louder."}})
    second = await make_archive(ada)
    async with second_installation(sqlite_template, tmp_path) as there:
        await there.bring(first)
        _, results = await bring(there.account, second)
        assert results["chats/At the inn.state.json"]["outcome"] == "already_there"
        assert differences(first, await make_archive(there.account)) == []
