"""A rotation that is killed, at whatever point, has lost nothing, and the next one finishes it."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import select

from backend.accounts.keys.rotation import rotate_data_key, rotate_root_key
from backend.accounts.models import InstanceKey, KeySlot
from backend.database.engine import Database
from backend.vault.root import load_root_keys
from backend.vault.sealing import key_number
from tests.integration.accounts import rotation_process
from tests.integration.accounts.rotation_account import PASSWORD, accounts, log_in, sign_up
from tests.support.process import started
from tests.support.thorough import rounds

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KILLS = rounds(2, 4)


async def run_and_kill(random: Random, *arguments: str) -> int:
    """Let a rotation run for a while in a process of its own, and kill it; its exit status."""
    with started(rotation_process.run, *arguments) as (process, output):
        for _ in range(random.randrange(1, 20)):
            await asyncio.to_thread(output.readline)
        await asyncio.sleep(random.random() / 100)
        process.kill()
        return process.wait()


def ignore(_done: int, _total: int) -> None:
    pass


async def test_a_data_key_rotation_survives_being_killed(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    root, random = load_root_keys(tmp_path / "root.key", create=True), Random(1)
    account = await sign_up(database, "Edith", root)
    await account.fill(60)
    texts = await account.texts()

    statuses: list[int] = []
    for _ in range(KILLS):
        statuses.append(
            await run_and_kill(
                random, "data", database_url, str(account.user_id), account.user_key.hex()
            )
        )
        assert await account.texts() == texts

    assert -signal.SIGKILL in statuses
    kept: tuple[int, ...] = (1,)
    while kept:  # a killed process's locks are gone when PostgreSQL notices
        kept = (
            await rotate_data_key(
                database, account.user_id, account.user_key, ignore, grace=timedelta(0)
            )
        ).kept
    assert await account.texts() == texts
    numbers = {key_number(blob) for blob in (await account.blobs()).values()}
    assert numbers == set(await account.key_numbers())
    assert len(numbers) == 1
    assert 1 not in numbers


async def test_a_change_of_the_user_key_that_is_killed_is_done_as_a_whole_or_not_at_all(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    path, random = tmp_path / "root.key", Random(3)
    root = load_root_keys(path, create=True)
    account = await sign_up(database, "Edith", root)
    await account.fill(3)
    texts = await account.texts()
    statuses: list[int] = []
    generations: list[int] = []
    for _ in range(KILLS):
        statuses.append(await run_and_kill(random, "user", database_url, str(path), "Edith"))
        # What checks the MAC, opens every data key, and every slot's public key.
        service = await accounts(database, root)
        unlocked = await service.unlock("Edith", PASSWORD, address="::1")
        account = replace(account, user_key=unlocked.current.key)
        assert await account.texts() == texts
        renewed = await service.renew(unlocked.user.id, unlocked.current)
        account = replace(account, user_key=renewed.key)
        assert await account.texts() == texts
        generations.append(renewed.generation)
        assert max(await account.key_numbers()) == renewed.generation
    assert -signal.SIGKILL in statuses
    assert generations == sorted(set(generations))
    assert generations[-1] > 1 + KILLS


async def test_a_root_key_rotation_survives_being_killed(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    path, random = tmp_path / "root.key", Random(2)
    names = [f"Edith {number}" for number in range(20)]
    people = {
        name: await sign_up(database, name, load_root_keys(path, create=True)) for name in names
    }

    statuses: list[int] = []
    for _ in range(KILLS):
        statuses.append(await run_and_kill(random, "root", database_url, str(path)))
        for name in random.sample(names, 5):
            assert await log_in(database, name, load_root_keys(path)) == people[name].user_key

    assert -signal.SIGKILL in statuses
    result = await rotate_root_key(database, path=path, value=None, report=ignore)
    assert load_root_keys(path).versions == [result.version]
    async with database.read() as session:
        versions = {
            *(await session.scalars(select(InstanceKey.root_version))),
            *(
                await session.scalars(
                    select(KeySlot.root_version).where(KeySlot.kind == "password")
                )
            ),
        }
    assert versions == {result.version}
    for name in names:
        assert await log_in(database, name, load_root_keys(path)) == people[name].user_key
