"""A failing start ends with a sentence that names the fault and the next step."""

from __future__ import annotations

import errno
import os
import resource  # noqa: TID251  it limits what a server may write, where that is possible
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.process import run_command, serving

SERVE = ("serve", "--port", "0")
KEY = "1:" + "A" * 43 + "=\n"


def damage(folder: Path) -> None:
    (folder / "talekeeper.sqlite3").write_bytes(b"Once upon a time. " * 1000)


def put_folder_in_place_of_database(folder: Path) -> None:
    (folder / "talekeeper.sqlite3").mkdir()


def put_file_in_place_of_folder(folder: Path) -> None:
    folder.rmdir()
    folder.write_text("no folder")


DATABASE_FAULTS = [
    pytest.param(damage, "is damaged", id="damaged"),
    pytest.param(put_folder_in_place_of_database, "cannot be opened", id="folder"),
    pytest.param(put_file_in_place_of_folder, "a file is where a folder has to be", id="file"),
]


def put_short_key(folder: Path) -> None:
    (folder / "root.key").write_text("1:AAAA\n")


def put_folder_in_place_of_key(folder: Path) -> None:
    (folder / "root.key").mkdir()


KEY_FAULTS = [
    pytest.param(put_short_key, "A root key must be 32 bytes", id="short"),
    pytest.param(put_folder_in_place_of_key, "a folder where a file has to be", id="folder"),
]


def assert_is_explained(result: subprocess.CompletedProcess[str], says: str) -> None:
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("talekeeper: ")
    assert says in line
    assert not result.stdout


def assert_is_found(result: subprocess.CompletedProcess[str], name: str, says: str) -> None:
    assert result.returncode == 1
    assert not result.stderr
    (line,) = [each for each in result.stdout.splitlines() if each.startswith(f"FAIL {name}")]
    assert says in line


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def run(
    folder: Path, *arguments: str, prepare: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    return run_command(folder, *arguments, prepare=prepare, log_level="warning")


@pytest.mark.parametrize(("spoil", "says"), DATABASE_FAULTS)
def test_a_database_that_cannot_be_used_is_explained_by_each_command(
    folder: Path, spoil: Callable[[Path], None], says: str
) -> None:
    spoil(folder)
    assert_is_explained(run(folder, *SERVE), says)
    assert_is_explained(run(folder, "migrate"), says)
    is_file = folder.is_file()
    assert_is_found(run(folder, "doctor"), "data folder" if is_file else "database", says)
    assert is_file or not (folder / "root.key").exists()


@pytest.mark.parametrize(("spoil", "says"), KEY_FAULTS)
def test_a_root_key_that_cannot_be_used_is_explained_and_no_table_is_made(
    folder: Path, spoil: Callable[[Path], None], says: str
) -> None:
    spoil(folder)
    assert_is_explained(run(folder, *SERVE), says)
    assert run(folder, "migrate", "--to", "base").stdout.endswith("at revision base.\n")
    assert_is_found(run(folder, "doctor"), "root key", says)


def test_a_root_key_that_is_missing_beside_its_database_is_not_made_again(folder: Path) -> None:
    with serving(folder) as served:
        served.stop()
    kept = (folder / "root.key").rename(folder.parent / "root.key")
    says = "root.key is missing"

    assert_is_explained(run(folder, *SERVE), says)
    assert_is_found(run(folder, "doctor"), "root key", says)
    assert not (folder / "root.key").exists()

    (folder / "root.key").write_text(KEY)
    says = "does not open this database"
    assert_is_explained(run(folder, *SERVE), says)
    assert_is_found(run(folder, "doctor"), "root key", says)

    shutil.move(kept, folder / "root.key")
    with serving(folder) as served:
        served.stop()


def test_tables_that_were_made_before_the_first_start_have_no_key_yet(folder: Path) -> None:
    assert run(folder, "migrate").returncode == 0
    assert run(folder, "doctor").returncode == 0
    with serving(folder) as served:
        served.stop()
    assert (folder / "root.key").exists()


def allow_small_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))


def test_a_full_disk_is_explained(folder: Path) -> None:
    for command in (SERVE, ("migrate",)):
        result = run(folder, *command, prepare=allow_small_files)
        assert_is_explained(result, "the disk is full")


def test_without_a_usable_index_the_server_starts_and_says_so(folder: Path) -> None:
    (folder / "index").write_text("no folder")
    with serving(folder) as served, httpx.Client(base_url=served.url, trust_env=False) as client:
        assert '"index.not_opened"' in served.log.read_text()
        answer = client.get("/ready", timeout=60)
        assert answer.status_code == 200
        (index,) = [part for part in answer.json()["parts"] if part["name"] == "index"]
        assert (index["ready"], index["needed"]) == (False, False)
    assert_is_found(run(folder, "doctor"), "index", "a file is where a folder has to be")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EMFILE])
def test_faults_of_files_name_the_file(number: int) -> None:
    from backend.operations.start_faults import explain
    from backend.settings import Settings

    values: dict[str, Any] = {"_env_file": None, "data_dir": Path("/data")}
    error = OSError(number, os.strerror(number), "/data/root.key")
    explanation = explain(error, Settings(**values))
    assert explanation is not None
    assert explanation.startswith("/data/root.key cannot be ")
