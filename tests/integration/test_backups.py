"""Backups and restores of an embedded installation, and the server's schedule of backups."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
import stat
import zipfile
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import ValidationError

from backend.core.operating_system import HAS_FILE_MODES
from backend.database.engine import Database
from backend.database.migrate import upgrade
from backend.operations.backup.backup_file import (
    BackupBusyError,
    BackupDamagedError,
    BackupError,
    BackupStorageError,
    Manifest,
    open_backup,
)
from backend.operations.backup.restore import (
    complete_restore,
    describe_restore,
    restore_backup,
    settle_restored,
)
from backend.operations.backup.schedule import BackupSchedule
from backend.operations.backup.writer import (
    describe_backup,
    find_source,
    list_backups,
    lock_backups,
    write_backup,
)
from backend.operations.doctor import Finding, examine
from backend.settings import Settings
from backend.vault.root import RootKeyError
from tests.support.installations import fill_database, make_installation, read_instance_key
from tests.support.logs import Logged
from tests.support.server import ok, running, settings_of
from tests.support.thorough import rounds
from tests.support.waiting import until, until_true

pytestmark = pytest.mark.anyio


def ignore(_done: int, _total: int) -> None:
    """Progress that no one looks at."""


def back_up(folder: Path, target: Path, *, with_root_key: bool = False) -> Manifest:
    source = find_source(settings_of(data_dir=folder), with_root_key=with_root_key)
    return write_backup(source, target, ignore)


def restore(
    backup: Path, folder: Path, *, replace: bool = False, key: Path | None = None, **settings: Any
) -> str:
    """Restore, and return the message of the command line."""
    folder.mkdir(exist_ok=True)
    given = settings_of(data_dir=folder, **settings)
    result = restore_backup(given, backup, replace=replace, root_key_file=key, report=ignore)
    return describe_restore(backup, result)


def list_names(folder: Path) -> set[str]:
    """The names in a folder, without the files that locks and SQLite's readers leave."""
    ignored = {"backup.lock", "backup.id", "talekeeper.sqlite3-wal", "talekeeper.sqlite3-shm"}
    return {each.name for each in folder.iterdir()} - ignored


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """The data folder of an installation."""
    folder = tmp_path / "data"
    await make_installation(folder)
    return folder


async def test_a_backup_comes_back_with_the_root_key_that_is_in_it(
    data: Path, tmp_path: Path
) -> None:
    file, other = tmp_path / "backup.zip", tmp_path / "other"
    manifest = back_up(data, file, with_root_key=True)
    assert "contains the root key" in describe_backup(settings_of(data_dir=data), file, manifest)
    restore(file, other)
    assert read_instance_key(other) == read_instance_key(data)
    assert list_names(other) == {"talekeeper.sqlite3", "root.key", "restored"}


async def test_a_backup_has_no_root_key_unless_asked_for_and_says_where_it_is(
    data: Path, tmp_path: Path
) -> None:
    file = tmp_path / "backup.zip"
    said = describe_backup(settings_of(data_dir=data), file, back_up(data, file))
    assert "cannot be read without the root key (version 1)" in said
    assert str(data / "root.key") in said
    assert "Metadata are not" in said
    key = (data / "root.key").read_text().strip().partition(":")[2]
    with zipfile.ZipFile(file) as archive:
        assert set(archive.namelist()) == {"talekeeper.sqlite3", "manifest.json"}
        assert not any(key.encode() in archive.read(name) for name in archive.namelist())
    with pytest.raises(RootKeyError, match="--root-key-file"):
        restore(file, tmp_path / "other")
    assert list_names(tmp_path / "other") == set()
    restore(file, tmp_path / "other", key=data / "root.key")
    assert read_instance_key(tmp_path / "other") == read_instance_key(data)


async def test_a_root_key_in_a_variable_is_backed_up_and_used(data: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "backup.zip", tmp_path / "other"
    text = (data / "root.key").read_text().strip()
    settings = settings_of(data_dir=data, root_key=_secret(text))
    manifest = write_backup(find_source(settings), file, ignore)
    assert "TALEKEEPER_ROOT_KEY" in describe_backup(settings, file, manifest)
    write_backup(find_source(settings, with_root_key=True), file, ignore)
    with pytest.raises(RootKeyError, match="takes precedence"):
        restore(file, other, key=data / "root.key", root_key=_secret(text))
    restore(file, other, root_key=_secret(text))
    assert not (other / "root.key").exists()


def _secret(text: str) -> Any:
    return Settings(root_key=text, _env_file=None).root_key  # type: ignore[call-arg, arg-type]  # pydantic-settings' own


async def test_a_wrong_root_key_changes_nothing(data: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "backup.zip", tmp_path / "other"
    back_up(data, file)
    before = await make_installation(other)
    for key in (None, other / "root.key"):
        with pytest.raises(RootKeyError, match="does not open the backup"):
            restore(file, other, key=key, replace=True)
        assert read_instance_key(other) == before
        assert list_names(other) == {"talekeeper.sqlite3", "root.key", "index", "transfers"}


async def test_an_installation_is_replaced_only_on_request_with_its_index(
    data: Path, tmp_path: Path
) -> None:
    file, other = tmp_path / "backup.zip", tmp_path / "other"
    back_up(data, file, with_root_key=True)
    before = await make_installation(other)
    (other / "models").mkdir()
    old_key = (other / "root.key").read_text()
    with pytest.raises(BackupError, match="--replace"):
        restore(file, other)
    assert read_instance_key(other) == before
    said = restore(file, other, replace=True)
    assert read_instance_key(other) == read_instance_key(data)
    (kept,) = other.glob("root.key.replaced-*")
    assert kept.read_text() == old_key
    assert str(kept) in said
    expected = {"talekeeper.sqlite3", "root.key", "restored", "models", kept.name}
    assert list_names(other) == expected


async def test_a_backup_is_the_moment_at_which_it_began_while_others_write(
    data: Path, tmp_path: Path
) -> None:
    fill_database(data, 40)
    file, other = tmp_path / "backup.zip", tmp_path / "other"
    written = 0
    with closing(sqlite3.connect(data / "talekeeper.sqlite3", isolation_level=None)) as writer:
        writer.execute("PRAGMA busy_timeout=0")
        writer.execute("CREATE TABLE beside (n INTEGER)")
        writer.execute("INSERT INTO beside VALUES (0)")

        def write(_done: int, _total: int) -> None:
            nonlocal written
            written += 1
            writer.execute("INSERT INTO beside VALUES (?)", (written,))

        write_backup(find_source(settings_of(data_dir=data), with_root_key=True), file, write)
        assert writer.execute("SELECT count(*) FROM beside").fetchone() == (written + 1,)
    assert written > 20
    restore(file, other)
    with closing(sqlite3.connect(other / "talekeeper.sqlite3")) as database:
        assert database.execute("SELECT count(*) FROM beside").fetchone() == (1,)
        assert database.execute("SELECT count(*) FROM filling").fetchone() == (400,)


async def test_files_of_backups_and_restores_are_private(data: Path, tmp_path: Path) -> None:
    if not HAS_FILE_MODES:
        pytest.skip("this system has no file modes")
    file, seen = tmp_path / "out" / "backup.zip", set[int]()
    file.parent.mkdir()

    def look(_done: int, _total: int) -> None:
        for each in file.parent.iterdir():
            seen.add(stat.S_IMODE(each.stat().st_mode) & 0o077)

    write_backup(find_source(settings_of(data_dir=data), with_root_key=True), file, look)
    restore(file, tmp_path / "other")
    assert seen == {0}
    written = [file, *(tmp_path / "other" / name for name in ("talekeeper.sqlite3", "root.key"))]
    assert {stat.S_IMODE(each.stat().st_mode) for each in written} == {0o600}


async def test_a_stopped_backup_leaves_nothing_and_keeps_the_earlier_one(
    data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    earlier = back_up(data, out / "backup.zip")
    calls = 0

    def count(_done: int, _total: int) -> None:
        nonlocal calls
        calls += 1

    source = find_source(settings_of(data_dir=data))
    write_backup(source, tmp_path / "other.zip", count)
    for last in range(1, calls + 1):
        left = last

        def stop(_done: int, _total: int) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_backup(source, out / "backup.zip", stop)
        assert [each.name for each in out.iterdir()] == ["backup.zip"]
        with open_backup(out / "backup.zip") as backup:
            assert backup.manifest == earlier


async def test_a_backup_replaces_only_a_backup(data: Path, tmp_path: Path) -> None:
    (tmp_path / "story.zip").write_text("my only copy")
    with pytest.raises(BackupError, match="is not a readable backup"):
        back_up(data, tmp_path / "story.zip")
    assert (tmp_path / "story.zip").read_text() == "my only copy"
    with pytest.raises(BackupStorageError, match="no folder"):
        back_up(data, tmp_path / "missing" / "backup.zip")
    with pytest.raises(BackupError, match="no database"):
        back_up(tmp_path / "empty", tmp_path / "backup.zip")


async def test_one_backup_or_restore_runs_at_a_time(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "backup.zip")
    with lock_backups(data):
        with pytest.raises(BackupBusyError):
            back_up(data, tmp_path / "second.zip")
        with pytest.raises(BackupBusyError):
            restore(tmp_path / "backup.zip", data, replace=True)


async def test_a_damaged_database_gives_no_backup(data: Path, tmp_path: Path) -> None:
    fill_database(data, 1)
    out = tmp_path / "out"
    out.mkdir()
    database = data / "talekeeper.sqlite3"
    content = bytearray(database.read_bytes())
    for start in range(4096 * 20, len(content) - 4096, 4096 * 7):
        content[start : start + 64] = b"\xff" * 64
    database.write_bytes(content)
    with pytest.raises(BackupDamagedError, match=r"talekeeper\.sqlite3"):
        back_up(data, out / "backup.zip")
    assert list(out.iterdir()) == []


async def test_a_damaged_backup_is_refused_and_changes_nothing(data: Path, tmp_path: Path) -> None:
    whole, file, other = (tmp_path / name for name in ("whole.zip", "damaged.zip", "other"))
    back_up(data, whole, with_root_key=True)
    content, random = whole.read_bytes(), Random(7)
    before = await make_installation(other)

    def check(damaged: bytes) -> None:
        file.write_bytes(damaged)
        with pytest.raises(BackupDamagedError):
            restore(file, other, replace=True)
        assert list_names(other) == {"talekeeper.sqlite3", "root.key", "index", "transfers"}

    with zipfile.ZipFile(whole) as archive:
        packed = archive.getinfo("talekeeper.sqlite3").compress_size
    for _ in range(rounds(20, 500)):
        place = random.randrange(100, packed - 16)
        # One bit is not enough: the compressed format has some without a meaning.
        flipped = bytes(255 - each for each in content[place : place + 16])
        check(content[:place] + flipped + content[place + 16 :])
        check(content[: random.randrange(len(content))])
    check(b"")
    check(b"Once upon a time. " * 1000)
    assert read_instance_key(other) == before


Change = Callable[[dict[str, Any], dict[str, bytes]], None]


def _add_path(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    files["../evil"] = b"x"
    manifest["files"].append({"name": "../evil", "size": 1, "sha256": "0" * 64})


def _add_unlisted(_: dict[str, Any], files: dict[str, bytes]) -> None:
    files["more"] = b"x"


def _expand(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    files["talekeeper.sqlite3"] += bytes(5_000_000)


def _drop_database(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
    del files["talekeeper.sqlite3"]
    manifest["files"] = []


def _be_of_another_program(manifest: dict[str, Any], _: dict[str, bytes]) -> None:
    manifest["format"] = "something-else"


def _be_newer(manifest: dict[str, Any], _: dict[str, bytes]) -> None:
    manifest["format_version"] = 2


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (_add_path, "is damaged"),
        (_add_unlisted, "is damaged"),
        (_expand, "is damaged"),
        (_drop_database, "is damaged"),
        (_be_of_another_program, "is damaged"),
        (_be_newer, "newer"),
    ],
)
async def test_a_forged_or_newer_backup_is_refused(
    data: Path, tmp_path: Path, change: Change, error: str
) -> None:
    file, other = tmp_path / "backup.zip", tmp_path / "other"
    back_up(data, file, with_root_key=True)
    with zipfile.ZipFile(file) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files.pop("manifest.json"))
    change(manifest, files)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in {**files, "manifest.json": json.dumps(manifest).encode()}.items():
            archive.writestr(name, content)
    file.write_bytes(made.getvalue())
    with pytest.raises(BackupError, match=error):
        restore(file, other)
    assert list_names(other) == set()
    assert not (tmp_path / "evil").exists()


async def test_an_unknown_revision_is_backed_up_and_restored_only_if_it_is_compatible(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "backup.zip"
    with closing(sqlite3.connect(data / "talekeeper.sqlite3")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '2099_01_01'")
    back_up(data, tmp_path / "compatible.zip", with_root_key=True)
    restore(tmp_path / "compatible.zip", tmp_path / "compatible")
    with closing(sqlite3.connect(data / "talekeeper.sqlite3")) as database, database:
        database.execute("DELETE FROM compatible_revisions")
    with pytest.raises(BackupError, match="2099_01_01"):
        back_up(data, file)
    assert not file.exists()
    with monkeypatch.context() as patch:
        patch.setattr("backend.operations.backup.backup_file.is_known", bool)
        back_up(data, file, with_root_key=True)
    with pytest.raises(BackupError, match="2099_01_01"):
        restore(file, tmp_path / "other")
    assert list_names(tmp_path / "other") == set()


async def test_an_older_backup_is_migrated_at_the_next_start(tmp_path: Path) -> None:
    older, other, file = tmp_path / "older", tmp_path / "other", tmp_path / "backup.zip"
    database = Database(settings_of(data_dir=older).resolved_database_url)
    await upgrade(database, "2026_11_20")
    await database.dispose()
    assert back_up(older, file).revision == "2026_11_20"
    restore(file, other)
    database = Database(settings_of(data_dir=other).resolved_database_url)
    assert await upgrade(database)
    assert await settle_restored(database, other)
    assert not await settle_restored(database, other)
    await database.dispose()


async def test_postgresql_is_referred_to_its_own_tools() -> None:
    settings = settings_of(database_url="postgresql+asyncpg://talekeeper@localhost/talekeeper")
    with pytest.raises(BackupError, match="pg_dump"):
        find_source(settings)
    with pytest.raises(ValidationError, match="pg_dump"):
        Settings(
            database_url=settings.database_url,
            backup_folder=Path("/backups"),
            _env_file=None,  # type: ignore[call-arg]  # pydantic-settings' own argument
        )


async def test_restored_sessions_end_and_api_keys_remain(sqlite_url: str, tmp_path: Path) -> None:
    file = tmp_path / "backup.zip"
    settings = settings_of(data_dir=tmp_path, database_url=sqlite_url)
    async with running(sqlite_url, tmp_path) as server, server.browser() as client:
        body = {"username": "ada", "password": "a fine long password"}
        ok(await client.post("/api/v1/accounts", json=body), 201)
        label = {"label": "script"}
        key = ok(await client.post("/api/v1/api-keys", json=label), 201)["token"]
        write_backup(find_source(settings), file, ignore)
        cookies = client.cookies
    key_file = tmp_path / "key"
    key_file.write_text("1:" + "cnJycnJycnJycnJycnJycnJycnJycnJycnJycnJycnI=\n")
    restore_backup(settings, file, replace=True, root_key_file=key_file, report=ignore)
    database = Database(sqlite_url)
    await settle_restored(database, tmp_path)
    await database.dispose()
    async with running(sqlite_url, tmp_path) as server, server.browser() as client:
        client.cookies.update(cookies)
        assert (await client.get("/api/v1/me")).status_code == 401
        client.cookies.clear()
        ok(await client.get("/api/v1/me", headers={"Authorization": f"Bearer {key}"}))


async def find_backups(settings: Settings) -> Finding:
    (found,) = [each for each in await examine(settings) if each.name == "backups"]
    return found


async def test_the_server_makes_backups_and_keeps_the_last_ones(
    sqlite_url: str, tmp_path: Path, logged: Logged
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    (folder / "talekeeper-notes.zip").write_text("not a backup")
    given: dict[str, Any] = {"backup_folder": folder, "backup_hours": 1 / 3600, "backup_keep": 2}
    async with running(sqlite_url, tmp_path, **given) as server, server.browser() as client:
        await until_true(lambda: len(logged.lines("backup.done")) >= 4)
        metrics = (await client.get("/metrics")).text
    assert 'talekeeper_backups_total{state="done"}' in metrics
    assert "talekeeper_backup_last_success_timestamp_seconds 1." in metrics
    made = sorted(folder.glob("talekeeper-2*.zip"))
    assert 1 <= len(made) <= 3, "a server that stops may not have deleted the oldest yet"
    assert (folder / "talekeeper-notes.zip").exists()
    for each in made:
        with open_backup(each) as backup:
            backup.check(lambda _: None)
            assert not backup.manifest.has_root_key
    settings = settings_of(data_dir=tmp_path, database_url=sqlite_url, **given)
    settings = settings.model_copy(update={"backup_hours": 24})
    assert (await find_backups(settings)).state == "ok"


async def test_a_backup_that_fails_is_logged_and_deletes_none(
    sqlite_url: str, tmp_path: Path, logged: Logged
) -> None:
    async with running(
        sqlite_url, tmp_path, backup_folder=tmp_path / "missing", backup_hours=0.0001
    ):
        await until_true(lambda: logged.lines("backup.failed"))
    assert logged.lines("backup.failed")[0]["problem"] == "backup-storage"


async def test_backups_of_other_installations_in_the_folder_are_kept(
    data: Path, tmp_path: Path
) -> None:
    folder, other = tmp_path / "backups", tmp_path / "other"
    folder.mkdir()
    await make_installation(other)
    theirs = folder / "talekeeper-20200101T000000Z.zip"
    back_up(other, theirs)
    schedule = BackupSchedule(
        settings_of(data_dir=data, backup_folder=folder, backup_hours=0.0001, backup_keep=1)
    )

    async def has_deleted_one() -> bool:
        mine = [
            each.path
            for each in list_backups(folder, (data / "backup.id").read_text().strip())
            if each.manifest
        ]
        return len(mine) == 1 and mine[0] > first[0]

    running_schedule = asyncio.create_task(schedule.run())
    await until_true(lambda: len(list(folder.glob("talekeeper-*.zip"))) > 1)
    first = sorted(set(folder.glob("talekeeper-*.zip")) - {theirs})
    await until(has_deleted_one)
    running_schedule.cancel()
    assert theirs.exists()


async def test_the_doctor_reports_missing_late_and_damaged_backups(
    data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "backups"
    settings = settings_of(data_dir=data, backup_folder=folder)
    assert (await find_backups(settings_of(data_dir=data))).detail == "no schedule"
    assert (await find_backups(settings)).state == "fault"
    folder.mkdir()
    assert (await find_backups(settings)).state == "missing"
    file = folder / f"talekeeper-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip"
    back_up(data, file)
    assert (await find_backups(settings)).state == "ok"
    late = settings.model_copy(update={"backup_hours": 0.00001})
    assert "the last one is" in (await find_backups(late)).detail
    assert (await find_backups(late)).state == "fault"
    content = bytearray(file.read_bytes())
    content[2000] ^= 1
    file.write_bytes(content)
    found = await find_backups(settings)
    assert (found.state, str(file) in found.detail) == ("fault", True)


async def test_a_restart_does_not_repeat_a_backup_before_its_time(
    data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    back_up(data, folder / f"talekeeper-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip")
    at = datetime.now(UTC)
    schedule = BackupSchedule(
        settings_of(data_dir=data, backup_folder=folder, backup_hours=2), clock=lambda: at
    )
    assert schedule.find_due(folder) > at + timedelta(hours=1.9)


async def test_an_interrupted_restore_is_named_and_completed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = tmp_path / "backup.zip", tmp_path / "other"
    back_up(data, file, with_root_key=True)
    await make_installation(other)
    with monkeypatch.context() as patch:
        # The first call looks for an earlier restore, the second puts the new files in place.
        patch.setattr(
            "backend.operations.backup.restore.complete_restore",
            Mock(side_effect=[False, KeyboardInterrupt]),
        )
        with pytest.raises(KeyboardInterrupt):
            restore(file, other, replace=True)
    settings = settings_of(data_dir=other)
    (found,) = [each for each in await examine(settings) if each.name == "data folder"]
    assert (found.state, "interrupted" in found.detail) == ("fault", True)
    with pytest.raises(BackupError, match="interrupted"):
        back_up(other, tmp_path / "second.zip")
    assert complete_restore(settings)
    assert read_instance_key(other) == read_instance_key(data)
    assert not complete_restore(settings)
