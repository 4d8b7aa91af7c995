"""Backups of a running server, and restores. Both are killed at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import resource  # noqa: TID251  it limits what a command may write, where that is possible
import signal
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from backend import cli
from backend.operations.backup.backup_file import open_backup
from tests.e2e.test_crash import browser
from tests.e2e.test_memory import BY_WORDS, FACT, wait_for_jobs
from tests.support.installations import (
    die_before_step,
    fill_database,
    make_installation,
    read_instance_key,
)
from tests.support.memory import API, take_turn, texts_found
from tests.support.process import Served, run_command, serving, started
from tests.support.server import PASSWORD, Account, ok
from tests.support.thorough import THOROUGH
from tests.support.waiting import PATIENCE, until_true

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KILLS = 6
"""Moments at which the usual run kills a command. A thorough run kills it at all of them."""


async def run(folder: Path, *arguments: str, **options: Any) -> str:
    """Run a command that succeeds, and return its output."""
    done = await asyncio.to_thread(run_command, folder, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.asynccontextmanager
async def open_session(served: Served, ended: httpx.Cookies) -> AsyncGenerator[Account]:
    """Sign in with the password, after the session from before the restore was refused."""
    async with httpx.AsyncClient(
        base_url=served.url, cookies=ended, timeout=30, trust_env=False
    ) as client:
        assert (await client.get(f"{API}/me")).status_code == 401
        client.cookies.clear()
        body = {"username": "ada", "password": PASSWORD}
        ok(await client.post(f"{API}/sessions", json=body), 201)
        client.headers["x-csrftoken"] = client.cookies["csrftoken"]
        yield Account(client, "ada", "", ok(await client.get(f"{API}/me")))


async def test_a_backup_beside_a_writing_server_is_restored_on_another_machine(
    tmp_path: Path,
) -> None:
    first, second, file = tmp_path / "first", tmp_path / "second", tmp_path / "backup.zip"
    first.mkdir()
    with serving(first, **BY_WORDS) as served:
        async with browser(served) as ada:
            cookies = ada.client.cookies
            chat = str((await ada.new_chat())["id"])
            await take_turn(ada, chat, text=FACT)
            await wait_for_jobs(ada)
            is_over = asyncio.Event()

            async def play() -> int:
                count = 0
                while not is_over.is_set():
                    await take_turn(ada, chat, text=f"/demo long 12 the rain falls on roof {count}")
                    count += 1
                return count

            playing = asyncio.create_task(play())
            said = await run(first, "backup", str(file))
            assert str(first / "root.key") in said
            is_over.set()
            assert await playing > 0
            refused = await asyncio.to_thread(run_command, first, "restore", str(file), "--replace")
            assert refused.returncode == 1
            assert "Another process uses" in refused.stderr
            lines = [each["text"] for each in await ada.messages(chat, limit=200)]
        assert served.stop() == 0

    second.mkdir()
    await run(second, "restore", str(file), "--root-key-file", str(first / "root.key"))
    with serving(second, **BY_WORDS) as served:
        async with open_session(served, cookies) as ada:
            restored = [each["text"] for each in await ada.messages(chat, limit=200)]
            assert FACT in restored
            assert [each for each in restored if each not in lines] == []
            await wait_for_jobs(ada)
            assert FACT in await texts_found(ada, "the locket beneath the pear tree")
            await take_turn(ada, chat, text="Play goes on.")
        assert served.stop() == 0


async def test_what_was_written_after_the_backup_is_not_found_after_a_restore(
    tmp_path: Path,
) -> None:
    folder, file = tmp_path / "data", tmp_path / "backup.zip"
    folder.mkdir()
    with serving(folder, **BY_WORDS) as served:
        async with browser(served) as ada:
            cookies = ada.client.cookies
            chat = str((await ada.new_chat())["id"])
            await take_turn(ada, chat, text=FACT)
            await wait_for_jobs(ada)
            await run(folder, "backup", str(file))
            await take_turn(ada, chat, text="The lighthouse keeper drowned in the harbour.")
            await wait_for_jobs(ada)
            assert "lighthouse" in (await texts_found(ada, "lighthouse keeper"))[0]
        assert served.stop() == 0
    await run(folder, "restore", str(file), "--replace")
    assert not (folder / "index").exists()
    with serving(folder, **BY_WORDS) as served:
        async with open_session(served, cookies) as ada:
            await wait_for_jobs(ada)
            assert FACT in await texts_found(ada, "the locket beneath the pear tree")
            found = await texts_found(ada, "lighthouse keeper")
            assert not any("lighthouse" in text for text in found)
        assert served.stop() == 0


class Killer:
    """Runs a command that is killed before one of its operations on files in a folder."""

    def __init__(self, data: Path, *command: str, at: Path, steps: Path) -> None:
        self._data, self._command = data, command
        self._at, self._steps = at, steps

    async def pick_moments(self) -> list[int]:
        """Run the command once, and choose moments to kill it."""
        await self.kill(0)
        numbers = range(1, self._steps.stat().st_size + 1)
        return list(numbers) if THOROUGH else sorted(Random().sample(numbers, KILLS))

    async def kill(self, number: int) -> None:
        """Run the command. It may not be killed, because the number of operations varies."""
        prepare = partial(die_before_step, number, self._at, self._steps)
        done = await asyncio.to_thread(run_command, self._data, *self._command, prepare=prepare)
        assert done.returncode in {0, -signal.SIGKILL}, done.stderr


async def test_a_killed_backup_leaves_the_earlier_one_and_the_next_cleans_up(
    tmp_path: Path,
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    out.mkdir()
    key = await make_installation(data)
    fill_database(data, 8)
    file = out / "backup.zip"
    command = "backup", str(file), "--with-root-key"
    killer = Killer(data, *command, at=out, steps=tmp_path / "steps")
    for number in await killer.pick_moments():
        file.unlink(missing_ok=True)
        for _ in range(2):  # without an earlier backup, and with one
            await killer.kill(number)
            if file.exists():
                with open_backup(file) as backup:
                    backup.check(lambda _: None)
            assert read_instance_key(data) == key
            await run(data, *command)
            assert [each.name for each in out.iterdir()] == ["backup.zip"]


async def test_a_killed_restore_leaves_the_old_or_the_new_installation(tmp_path: Path) -> None:
    """The next command completes it: another restore, or a command that locks the folder."""
    source, data, file = tmp_path / "source", tmp_path / "data", tmp_path / "backup.zip"
    new, old = await make_installation(source), await make_installation(data)
    earlier = tmp_path / "earlier.zip"
    await run(source, "backup", str(file), "--with-root-key")
    await run(data, "backup", str(earlier), "--with-root-key")
    command = "restore", str(file), "--replace"
    back = "restore", str(earlier), "--replace"
    outcomes = set[bytes]()
    killer = Killer(data, *command, at=data, steps=tmp_path / "steps")
    for number in await killer.pick_moments():
        await run(data, *back)
        (data / "index" / "terms-v1.2").mkdir(parents=True)
        assert read_instance_key(data) == old
        await killer.kill(number)
        said = await run(data, "migrate")
        found = read_instance_key(data)
        assert found in {old, new}
        assert (data / "index").exists() == (found == old), said
        names = {each.name for each in data.iterdir()}
        assert not [each for each in names if "restoring" in each or each == "restore.json"]
        assert not [each for each in names if "sqlite3.replaced" in each or "index.re" in each]
        outcomes.add(found)
        await run(data, *command)
        assert read_instance_key(data) == new
    if THOROUGH:
        assert outcomes == {old, new}


async def test_ctrl_c_ends_a_backup_and_leaves_nothing(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    out.mkdir()
    await make_installation(data)
    fill_database(data, 60)
    with started(back_up_until_stopped, data, out / "backup.zip") as (process, _):
        await until_true(lambda: list(out.glob(".talekeeper-backup-*/talekeeper.sqlite3")))
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, PATIENCE) == 130
    assert list(out.iterdir()) == []


def back_up_until_stopped(data: Path, file: Path) -> None:
    # A shell that runs the tests in the background may have let them ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    raise SystemExit(cli.main(["backup", str(file), "--data-dir", str(data)]))


def allow_small_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))


async def test_a_full_disk_leaves_no_backup_and_no_half_restore(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    out.mkdir()
    key = await make_installation(data)
    command = "backup", str(out / "backup.zip")
    done = await asyncio.to_thread(run_command, data, *command, prepare=allow_small_files)
    assert done.returncode == 1
    assert "the disk is full" in done.stderr
    assert list(out.iterdir()) == []
    await run(data, *command)
    again = "restore", str(out / "backup.zip"), "--replace"
    done = await asyncio.to_thread(run_command, data, *again, prepare=allow_small_files)
    assert done.returncode == 1
    assert "the disk is full" in done.stderr
    assert read_instance_key(data) == key
    assert not list(data.glob("*.restoring*"))
