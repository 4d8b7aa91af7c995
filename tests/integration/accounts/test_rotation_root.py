"""Tests of the rotation of the root key, and of rotations that are killed."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import select, update

from backend.accounts.auth.names import load_instance_keys
from backend.accounts.keys import rotation
from backend.accounts.keys.rotation import (
    RootKeyRotation,
    rewrap_all_keys,
    rotate_data_key,
    rotate_root_key,
)
from backend.accounts.keys.slots import refuse_older_root
from backend.accounts.models import InstanceKey, KeySlot
from backend.database.engine import Database
from backend.vault.root import RootKeyError, RootKeys, add_root_key, load_root_keys, parse_root_keys
from backend.vault.sealing import key_number
from tests.integration.accounts.rotation_account import (
    PASSWORD,
    Account,
    PowerCutError,
    Progress,
    accounts,
    open_user_key,
    run_rotation,
    sign_up,
)
from tests.support.process import started
from tests.support.thorough import rounds

pytestmark = pytest.mark.anyio

NAMES = ("Edith", "Agnes", "Ida")
OLD, NEW = (base64.b64encode(bytes([each]) * 32).decode() for each in (1, 2))
BOTH = f"2:{NEW},1:{OLD}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "root.key"
    load_root_keys(path, create=True)
    return path


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "BATCH_ROWS", 1)


@pytest.fixture
def read_only_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to replace the key file, as if it were a mounted secret of a container."""

    def refuse(_: Path, _target: Path) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(Path, "replace", refuse)


def read(path: Path) -> str:
    return path.read_text()


def write(path: Path, text: str) -> None:
    path.write_text(text)


async def rotate(
    database: Database, path: Path, progress: Progress | None = None
) -> RootKeyRotation:
    report = progress or Progress()
    return await rotate_root_key(database, path=path, value=None, report=report)


async def populate(database: Database, root: RootKeys) -> list[Account]:
    return [await sign_up(database, name, root) for name in NAMES]


async def versions(database: Database) -> set[int | None]:
    """Return the versions of the root key that are in use."""
    slots = select(KeySlot.root_version)
    async with database.read() as session:
        return {
            *(await session.scalars(select(InstanceKey.root_version))),
            *(await session.scalars(slots)),
        }


async def check_sign_ins(database: Database, people: list[Account], root: RootKeys) -> None:
    for person in people:
        assert await open_user_key(database, person.name, root) == person.user_key


async def test_afterwards_everything_is_under_the_new_key_alone(
    database: Database, path: Path
) -> None:
    before = load_root_keys(path)
    people = await populate(database, before)
    result = await rotate(database, path)
    assert result == RootKeyRotation(version=2, rewrapped=7, dropped=(1,))
    assert load_root_keys(path).versions == [2]
    assert await versions(database) == {2}
    await check_sign_ins(database, people, load_root_keys(path))
    with pytest.raises(RootKeyError, match="version 2 is missing"):
        await load_instance_keys(database, before)


@pytest.mark.every_database
async def test_names_are_found_and_read_as_before(database: Database, path: Path) -> None:
    before = await load_instance_keys(database, load_root_keys(path))
    await rotate(database, path)
    after = await load_instance_keys(database, load_root_keys(path))
    assert after.hash_name("Edith") == before.hash_name("Edith")
    assert after.csrf_secret == before.csrf_secret


async def test_it_can_be_done_again_and_again(database: Database, path: Path) -> None:
    people = await populate(database, load_root_keys(path))
    for version in (2, 3, 4):
        result = await rotate(database, path)
        assert (result.version, result.dropped) == (version, (version - 1,))
    await check_sign_ins(database, people, load_root_keys(path))


@pytest.mark.every_database
async def test_a_session_that_does_not_open_is_ended_and_holds_nothing_up(
    database: Database, path: Path
) -> None:
    people = await populate(database, load_root_keys(path))
    async with database.write() as session:
        for number, kind in enumerate(("session", "api_key")):
            session.add(
                KeySlot(
                    user_id=people[number].user_id,
                    kind=kind,
                    wrapped=b"x" * 149,
                    root_version=1,
                    generation=1,
                )
            )

    await rotate(database, path)

    async with database.read() as session:
        kinds = set(await session.scalars(select(KeySlot.kind)))
    assert kinds == {"password", "recovery"}
    await check_sign_ins(database, people, load_root_keys(path))


async def test_an_installation_without_accounts_can_be_rotated(
    database: Database, path: Path
) -> None:
    progress = Progress()
    result = await rotate(database, path, progress)
    assert result == RootKeyRotation(version=2, rewrapped=0, dropped=(1,))
    assert progress.steps == [(0, 0)]


async def test_progress_is_reported_for_each_batch(
    database: Database, path: Path, one_by_one: None
) -> None:
    await populate(database, load_root_keys(path))
    progress = Progress()
    await rotate(database, path, progress)
    assert progress.steps == [(0, 7), *((done, 7) for done in range(2, 8))]


async def test_with_the_setting_nothing_is_written_and_the_old_key_can_go(
    database: Database, tmp_path: Path
) -> None:
    path = tmp_path / "root.key"
    people = await populate(database, parse_root_keys(OLD))
    result = await rotate_root_key(database, path=path, value=BOTH, report=Progress())
    assert result == RootKeyRotation(version=2, rewrapped=7, removable=(1,))
    assert not path.exists()
    await check_sign_ins(database, people, parse_root_keys(f"2:{NEW}"))


async def test_the_setting_may_still_name_both_when_it_is_done_already(
    database: Database, path: Path
) -> None:
    await populate(database, parse_root_keys(BOTH))
    result = await rotate_root_key(database, path=path, value=BOTH, report=Progress())
    assert result == RootKeyRotation(version=2, rewrapped=0, removable=(1,))


async def test_with_one_key_in_the_setting_it_says_what_to_set(
    database: Database, path: Path
) -> None:
    await populate(database, parse_root_keys(OLD))
    with pytest.raises(RootKeyError, match="2:new,1:present") as caught:
        await rotate_root_key(database, path=path, value=f"1:{OLD}", report=Progress())
    assert OLD not in str(caught.value)


async def test_a_file_that_cannot_be_written_is_the_operators_to_change(
    database: Database, path: Path, read_only_file: None
) -> None:
    people = await populate(database, load_root_keys(path))
    with pytest.raises(RootKeyError, match=r"can't be written.*2:new,1:present"):
        await rotate(database, path)
    assert load_root_keys(path).versions == [1]
    write(path, f"2:{NEW}\n{read(path)}")
    result = await rotate(database, path)
    assert result == RootKeyRotation(version=2, rewrapped=7, removable=(1,))
    assert load_root_keys(path).versions == [1, 2]
    await check_sign_ins(database, people, parse_root_keys(f"2:{NEW}"))


@pytest.mark.parametrize("cut_at", [0, 1, 2, 3])
async def test_a_rotation_that_was_cut_off_is_finished_with_the_same_key(
    database: Database, path: Path, one_by_one: None, cut_at: int
) -> None:
    people = await populate(database, load_root_keys(path))
    with pytest.raises(PowerCutError):
        await rotate(database, path, Progress(cut_at=cut_at))
    unfinished = load_root_keys(path)
    assert unfinished.versions == [1, 2]
    await check_sign_ins(database, people, unfinished)
    result = await rotate(database, path)
    assert (result.version, result.dropped) == (2, (1,))
    await check_sign_ins(database, people, load_root_keys(path))


async def test_a_power_cut_before_the_old_key_is_dropped_adds_no_third(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(_: Path) -> RootKeys:
        raise PowerCutError

    people = await populate(database, load_root_keys(path))
    with monkeypatch.context() as patch:
        patch.setattr(rotation, "drop_old_root_keys", cut)
        with pytest.raises(PowerCutError):
            await rotate(database, path)

    result = await rotate(database, path)

    assert result == RootKeyRotation(version=2, rewrapped=0, dropped=(1,))
    await check_sign_ins(database, people, load_root_keys(path))


async def test_people_who_come_while_it_is_unfinished_are_under_the_new_key(
    database: Database, path: Path
) -> None:
    await populate(database, load_root_keys(path))
    newcomer = await sign_up(database, "Maud", add_root_key(path))
    result = await rotate(database, path)
    assert result == RootKeyRotation(version=2, rewrapped=7, dropped=(1,))
    await check_sign_ins(database, [newcomer], load_root_keys(path))


@pytest.mark.every_database
async def test_with_another_installations_key_nothing_is_touched(
    database: Database, path: Path, tmp_path: Path
) -> None:
    await populate(database, load_root_keys(path))
    foreign = tmp_path / "foreign.key"
    load_root_keys(foreign, create=True)
    text = read(foreign)
    with pytest.raises(RootKeyError, match="this is a different key"):
        await rotate(database, foreign)
    assert read(foreign) == text
    assert await versions(database) == {1}


async def test_with_an_older_copy_of_the_file_nothing_is_touched(
    database: Database, path: Path
) -> None:
    copy = read(path)
    people = await populate(database, load_root_keys(path))
    await rotate(database, path)
    right = read(path)
    write(path, copy)
    with pytest.raises(RootKeyError, match="version 2 is missing"):
        await rotate(database, path)
    assert read(path) == copy
    await check_sign_ins(database, people, parse_root_keys(right))


@pytest.mark.every_database
@pytest.mark.parametrize(
    ("damage", "message", "kept"),
    [
        ({"root_version": 7}, "version 7 is missing", [1]),
        ({"wrapped": b"x" * 88}, "{user_id}", [1, 2]),
    ],
    ids=["lost version", "damaged"],
)
async def test_a_slot_that_does_not_open_is_named_and_the_old_key_stays(
    database: Database, path: Path, damage: dict[str, Any], message: str, kept: list[int]
) -> None:
    edith, agnes, ida = await populate(database, load_root_keys(path))
    mine = (KeySlot.user_id == agnes.user_id, KeySlot.kind == "password")
    async with database.write() as session:
        await session.execute(update(KeySlot).where(*mine).values(damage))
    with pytest.raises(RootKeyError, match=message.format(user_id=agnes.user_id)):
        await rotate(database, path)
    assert load_root_keys(path).versions == kept
    await check_sign_ins(database, [edith, ida], load_root_keys(path))


async def test_a_server_that_missed_the_rotation_may_wrap_nothing(
    database: Database, path: Path
) -> None:
    before = load_root_keys(path)
    await populate(database, before)
    both = add_root_key(path)
    async with database.write() as session:
        await refuse_older_root(session, before)
        await refuse_older_root(session, both)
    await rewrap_all_keys(database, both, Progress())
    async with database.write() as session:
        await refuse_older_root(session, both)
        with pytest.raises(RootKeyError, match="Restart this server"):
            await refuse_older_root(session, before)


async def test_before_the_first_start_there_is_nothing_to_refuse(
    database: Database, path: Path
) -> None:
    async with database.write() as session:
        await refuse_older_root(session, load_root_keys(path))


KILLS = rounds(2, 4)


async def run_and_kill(random: Random, *arguments: str) -> int:
    """Run a rotation in a process and kill it after a while. Return the exit status."""
    with started(run_rotation, *arguments) as (process, output):
        for _ in range(random.randrange(1, 20)):
            await asyncio.to_thread(output.readline)
        await asyncio.sleep(random.random() / 100)
        process.kill()
        return process.wait()


@pytest.mark.slow
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
    while kept:  # PostgreSQL releases a killed process's locks after a while
        kept = (
            await rotate_data_key(
                database, account.user_id, account.user_key, Progress(), grace=timedelta(0)
            )
        ).kept
    assert await account.texts() == texts
    numbers = {key_number(blob) for blob in (await account.blobs()).values()}
    assert numbers == set(await account.key_numbers())
    assert len(numbers) == 1
    assert 1 not in numbers


@pytest.mark.slow
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
        # A sign-in checks the MAC, every data key and the public key of every slot.
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


@pytest.mark.slow
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
            assert (
                await open_user_key(database, name, load_root_keys(path)) == people[name].user_key
            )

    assert -signal.SIGKILL in statuses
    result = await rotate(database, path)
    assert load_root_keys(path).versions == [result.version]
    async with database.read() as session:
        in_use = {
            *(await session.scalars(select(InstanceKey.root_version))),
            *(
                await session.scalars(
                    select(KeySlot.root_version).where(KeySlot.kind == "password")
                )
            ),
        }
    assert in_use == {result.version}
    for name in names:
        assert await open_user_key(database, name, load_root_keys(path)) == people[name].user_key
