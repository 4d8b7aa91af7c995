"""Tests of users' keys in jobs, for each key mode."""

from __future__ import annotations

import asyncio
import base64
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import delete, func, or_, select, update

from backend.accounts.auth.identity import Identity
from backend.accounts.auth.names import load_instance_keys
from backend.accounts.keys.keyring import Protection
from backend.accounts.keys.open_keys import OpenKeys
from backend.accounts.keys.rotation import rotate_root_key
from backend.accounts.keys.slots import clear_job_keys, make_standing_slot
from backend.accounts.models import DataKey, KeyMode, KeySlot, User
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.jobs.keys import JobKeys
from backend.jobs.models import Job
from backend.jobs.queue import GRANT_DURATION, JobQueue
from backend.jobs.running import JobKind, RunningJob
from backend.jobs.service import JobService
from backend.jobs.worker import Worker
from backend.vault.root import RootKeyError, RootKeys, Wrapped, load_root_keys
from backend.vault.sealing import Column
from backend.vault.slots import unwrap_lent
from tests.integration.jobs.working import (
    ROOT,
    Person,
    Workshop,
    is_empty,
    new_person,
    one,
    put,
    state_of,
)
from tests.support.waiting import until, until_true

pytestmark = pytest.mark.anyio

PLACE = Column("jobs", "sealed_nothing")


class Reader:
    """A handler that decrypts a text with the user's key."""

    def __init__(self, person: Person) -> None:
        self._row_id = new_id()
        self._blob = person.sealer.seal(PLACE, self._row_id, "a letter")
        self.read: list[str] = []

    async def __call__(self, job: RunningJob) -> None:
        self.read.append(job.keys.open(PLACE, self._row_id, self._blob))

    @property
    def kinds(self) -> dict[str, JobKind]:
        return {"read": JobKind(self)}


async def make_identity(
    database: Database, person: Person, *, mode: KeyMode, slot_id: UUID | None = None
) -> Identity:
    """Make an identity with a session slot, as a sign-in does."""
    slot_id = slot_id or new_id()
    async with database.write() as session:
        session.add(
            KeySlot(id=slot_id, user_id=person.id, kind="session", wrapped=b"", root_version=1)
        )
    user = User(id=person.id, key_mode=mode, key_generation=0)
    return Identity(user, slot_id, "session", "manage", person.sealer)


def ignore(_done: int, _total: int) -> None:
    pass


async def count_wrapped_keys(database: Database) -> int:
    query = select(func.count()).select_from(Job)
    query = query.where(or_(Job.wrapped_key.is_not(None), Job.root_version.is_not(None)))
    async with database.read() as session:
        return await session.scalar(query) or 0


async def waits_for_key(database: Database, job_id: UUID | None) -> bool:
    return await state_of(database, job_id) == "waiting_key"


@pytest.mark.every_database
async def test_a_job_carries_its_key_until_it_ends(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    reader = Reader(ada)
    await put(queue, "read", user_id=ada.id, key=queue.grant(ada.sealer, "per_job"))
    assert await count_wrapped_keys(queue.database) == 1
    workshop.worker({"read": JobKind(reader, keep=True)})

    async def is_read() -> bool:
        async with queue.database.read() as session:
            return set(await session.scalars(select(Job.state))) == {"done"}

    await until(is_read)
    assert reader.read == ["a letter"]
    assert await count_wrapped_keys(queue.database) == 0


async def test_the_key_that_a_job_carries_opens_for_that_job_and_user_alone(
    queue: JobQueue, ada: Person, ben: Person
) -> None:
    job_id = await put(queue, "read", user_id=ada.id, key=queue.grant(ada.sealer, "per_job"))
    job = await one(queue.database, job_id)
    assert job.wrapped_key is not None
    assert job.root_version is not None

    def open_key(root: RootKeys, job_id: UUID, user_id: UUID) -> bytes:
        assert job.wrapped_key is not None
        return unwrap_lent("job", job_id, user_id, Wrapped(1, job.wrapped_key), root=root)

    assert open_key(ROOT, job.id, ada.id) == ada.user_key
    for root, other_job, user_id in (
        (ROOT, new_id(), ada.id),
        (ROOT, job.id, ben.id),
        (RootKeys({1: b"x" * 32}), job.id, ada.id),
    ):
        with pytest.raises(RootKeyError):
            open_key(root, other_job, user_id)
    with pytest.raises(ValueError, match="another user"):
        await put(queue, "read", user_id=ben.id, key=queue.grant(ada.sealer, "per_job"))


async def test_a_key_whose_time_is_over_is_none_and_the_job_goes_on_when_its_user_comes(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database, reader, keys = queue.database, Reader(ada), OpenKeys()
    keys.on_arrival(queue.wake)
    job_id = await put(queue, "read", user_id=ada.id, key=queue.grant(ada.sealer, "per_job"))
    async with database.write() as session:
        await session.execute(update(Job).values(key_until=now() - timedelta(seconds=1)))
    workshop.worker(reader.kinds, open_keys=keys)
    await until(lambda: waits_for_key(database, job_id))
    assert await count_wrapped_keys(database) == 0
    assert (await one(database, job_id)).attempts == 0
    assert reader.read == []
    keys.keep(await make_identity(database, ada, mode="per_job"))
    await until(lambda: is_empty(database))
    assert reader.read == ["a letter"]


@pytest.mark.parametrize("lack", ["never had one", "waits for one", "nearly over"])
@pytest.mark.every_database
async def test_a_job_that_waits_without_a_key_gets_that_of_one_it_absorbs(
    queue: JobQueue, workshop: Workshop, ada: Person, lack: str
) -> None:
    database, reader, key = queue.database, Reader(ada), queue.grant(ada.sealer, "per_job")
    first = None if lack == "never had one" else key
    job_id = await put(queue, "read", user_id=ada.id, dedupe_key="d", key=first)
    async with database.write() as session:
        if lack == "waits for one":
            gone = {"wrapped_key": None, "root_version": None, "key_until": None}
            await session.execute(update(Job).values(state="waiting_key", **gone))
        if lack == "nearly over":
            until_soon = now() + GRANT_DURATION / 2 - timedelta(minutes=1)
            await session.execute(update(Job).values(key_until=until_soon))
    assert await put(queue, "read", user_id=ada.id, dedupe_key="d", key=key) is None
    job = await one(database, job_id)
    assert job.state == "queued"
    assert job.key_until is not None
    assert job.key_until > now() + GRANT_DURATION / 2
    workshop.worker(reader.kinds)  # as in another process: no key is in memory
    await until(lambda: is_empty(database))
    assert reader.read == ["a letter"]


async def test_a_key_that_holds_is_left_as_it_is(queue: JobQueue, ada: Person) -> None:
    database, key = queue.database, queue.grant(ada.sealer, "per_job")
    job_id = await put(queue, "read", user_id=ada.id, dedupe_key="d", key=key)
    before = (await one(database, job_id)).wrapped_key
    modes: tuple[KeyMode, ...] = ("per_job", "managed", "sealed")
    for mode in modes:
        again = queue.grant(ada.sealer, mode)
        assert await put(queue, "read", user_id=ada.id, dedupe_key="d", key=again) is None
        job = await one(database, job_id)
        assert (job.state, job.wrapped_key) == ("queued", before)


@pytest.mark.every_database
async def test_a_managed_users_job_that_waits_for_a_key_is_queued_again(
    queue: JobQueue, ada: Person
) -> None:
    database = queue.database
    job_id = await put(
        queue, "read", user_id=ada.id, dedupe_key="d", key=queue.grant(ada.sealer, "sealed")
    )
    steps: list[tuple[KeyMode, str]] = [("sealed", "waiting_key"), ("managed", "queued")]
    for mode, state in steps:
        key = queue.grant(ada.sealer, mode)
        await put(queue, "read", user_id=ada.id, dedupe_key="d", key=key)
        assert await state_of(database, job_id) == state
    assert await count_wrapped_keys(database) == 0


async def test_keys_whose_time_is_over_are_cleared(queue: JobQueue, ada: Person) -> None:
    database = queue.database
    await put(queue, "read", user_id=ada.id, key=queue.grant(ada.sealer, "per_job"))
    async with database.write() as session:
        await make_standing_slot(session, ada.id, user_key=ada.user_key, root=ROOT, at=now())
    await JobService(queue).clean(at=now() + GRANT_DURATION)
    assert await count_wrapped_keys(database) == 0
    await JobService(queue).clean(at=now() + timedelta(days=31))
    async with database.read() as session:
        kinds = set(await session.scalars(select(KeySlot.kind)))
    assert "standing" not in kinds


async def test_a_sealed_users_job_waits_until_a_process_has_the_key_in_memory(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database, reader, keys = queue.database, Reader(ada), OpenKeys()
    keys.on_arrival(queue.wake)
    job_id = await put(queue, "read", user_id=ada.id, key=queue.grant(ada.sealer, "sealed"))
    workshop.worker(reader.kinds)
    workshop.worker(reader.kinds, open_keys=keys, takes_queued=False)
    await asyncio.sleep(0.3)
    assert await waits_for_key(database, job_id)
    assert await count_wrapped_keys(database) == 0
    keys.keep(await make_identity(database, ada, mode="sealed"))
    await until(lambda: is_empty(database))
    assert reader.read == ["a letter"]


async def test_a_key_in_memory_goes_before_one_that_was_lent_before_the_users_key_was_changed(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database, reader, keys = queue.database, Reader(ada), OpenKeys()
    keys.keep(await make_identity(database, ada, mode="per_job"))
    job_id = await put(queue, "read", user_id=ada.id, key=queue.grant(ada.sealer, "per_job"))
    async with database.write() as session:
        job = await session.get_one(Job, job_id)
        job.wrapped_key = b"of the key before"
    workshop.worker(reader.kinds, open_keys=keys)
    await until(lambda: is_empty(database))
    assert reader.read == ["a letter"]


async def test_a_key_in_memory_counts_only_while_its_session_is_open(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database, reader, keys = queue.database, Reader(ada), OpenKeys()
    identity = await make_identity(database, ada, mode="sealed")
    keys.keep(identity)
    async with database.write() as session:
        await session.execute(delete(KeySlot).where(KeySlot.id == identity.slot_id))
    job_id = await put(queue, "read", user_id=ada.id, key=queue.grant(ada.sealer, "sealed"))
    workshop.worker(reader.kinds, open_keys=keys)
    await until_true(lambda: keys.get(ada.id) is None)
    await until(lambda: waits_for_key(database, job_id))
    assert reader.read == []


async def test_a_worker_that_takes_only_what_waits_leaves_the_rest_to_others(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database, reader, keys = queue.database, Reader(ada), OpenKeys()
    keys.keep(await make_identity(database, ada, mode="per_job"))
    job_id = await put(queue, "read", user_id=ada.id, key=queue.grant(ada.sealer, "per_job"))
    workshop.worker(reader.kinds, open_keys=keys, takes_queued=False)
    await asyncio.sleep(0.3)
    assert await state_of(database, job_id) == "queued"


async def test_a_managed_users_jobs_carry_no_key_and_run_while_the_user_is_away(
    queue: JobQueue, workshop: Workshop, database: Database
) -> None:
    ada = await new_person(database, "Ada", mode="managed")
    reader = Reader(ada)
    async with database.write() as session:
        await make_standing_slot(session, ada.id, user_key=ada.user_key, root=ROOT, at=now())
    await put(queue, "read", user_id=ada.id, key=queue.grant(ada.sealer, "managed"))
    assert await count_wrapped_keys(database) == 0
    workshop.worker(reader.kinds)
    await until(lambda: is_empty(database))
    assert reader.read == ["a letter"]


@pytest.mark.parametrize("what", ["expired", "switched off", "other hands", "disabled"])
@pytest.mark.every_database
async def test_a_standing_slot_opens_only_as_its_user_allows(
    queue: JobQueue, workshop: Workshop, database: Database, what: str
) -> None:
    ada = await new_person(database, "Ada", mode="managed")
    reader = Reader(ada)
    async with database.write() as session:
        await make_standing_slot(session, ada.id, user_key=ada.user_key, root=ROOT, at=now())
        if what == "expired":
            standing = update(KeySlot).where(KeySlot.kind == "standing")
            await session.execute(standing.values(expires_at=now()))
        elif what == "switched off":
            mac = Protection(generation=0, key_mode="per_job", kdf=b"").mac(ada.user_key)
            await session.execute(update(User).values(key_mode="per_job", settings_mac=mac))
        elif what == "other hands":
            mac = Protection(generation=0, key_mode="managed", kdf=b"").mac(b"x" * 32)
            await session.execute(update(User).values(settings_mac=mac))
        else:
            await session.execute(update(User).values(is_disabled=True))
    job_id = await put(queue, "read", user_id=ada.id, key=queue.grant(ada.sealer, "managed"))
    workshop.worker(reader.kinds)
    await until(lambda: waits_for_key(database, job_id))
    assert reader.read == []


async def test_with_no_key_left_of_the_account_nothing_opens(
    queue: JobQueue, workshop: Workshop, ada: Person
) -> None:
    database, reader = queue.database, Reader(ada)
    job_id = await put(queue, "read", user_id=ada.id, key=queue.grant(ada.sealer, "per_job"))
    async with database.write() as session:
        await session.execute(delete(DataKey).where(DataKey.user_id == ada.id))
    workshop.worker(reader.kinds)
    await until(lambda: waits_for_key(database, job_id))
    assert reader.read == []


async def test_switching_to_sealed_takes_the_keys_out_of_what_is_queued(
    queue: JobQueue, ada: Person, ben: Person
) -> None:
    for person in (ada, ben):
        await put(queue, "read", user_id=person.id, key=queue.grant(person.sealer, "per_job"))
    async with queue.database.write() as session:
        await clear_job_keys(session, ada.id)
    assert await count_wrapped_keys(queue.database) == 1


@pytest.mark.every_database
async def test_a_new_root_key_takes_queued_jobs_and_standing_slots_along(
    database: Database, tmp_path: Path
) -> None:
    path = tmp_path / "root.key"
    before = load_root_keys(path, create=True)
    await load_instance_keys(database, before)
    ada = await new_person(database, "Ada", root=before)
    ben = await new_person(database, "Ben", mode="managed", root=before)
    queue = JobQueue(database, before)
    await put(queue, "read", user_id=ada.id, key=queue.grant(ada.sealer, "per_job"))
    await put(queue, "again", user_id=ben.id, key=queue.grant(ben.sealer, "managed"))
    damaged = await put(queue, "read", user_id=ada.id, key=queue.grant(ada.sealer, "per_job"))
    async with database.write() as session:
        await make_standing_slot(session, ben.id, user_key=ben.user_key, root=before, at=now())
        await session.execute(update(Job).where(Job.id == damaged).values(wrapped_key=bytes(60)))

    result = await rotate_root_key(database, path=path, value=None, report=ignore)

    assert (result.version, result.rewrapped, result.dropped) == (2, 6, (1,))
    after = load_root_keys(path)
    assert after.versions == [2]
    job = await one(database, damaged)
    assert (job.wrapped_key, job.root_version, job.key_until) == (None, None, None)
    adas, bens = Reader(ada), Reader(ben)
    kinds = {"read": JobKind(adas), "again": JobKind(bens)}
    worker = Worker(JobQueue(database, after), kinds, JobKeys(after), poll=0.05)
    worker.start()
    await until(lambda: waits_for_key(database, damaged))

    async def is_alone() -> bool:
        async with database.read() as session:
            return await session.scalar(select(func.count()).select_from(Job)) == 1

    await until(is_alone)
    await worker.aclose()
    assert (adas.read, bens.read) == (["a letter"], ["a letter"])


def find_in_files(key: bytes, folder: Path) -> list[str]:
    forms = (key, base64.b64encode(key), key.hex().encode())
    return [
        file.name for file in folder.iterdir() if any(form in file.read_bytes() for form in forms)
    ]


async def test_no_key_lies_in_the_database_in_the_clear(sqlite_url: str, tmp_path: Path) -> None:
    database = Database(sqlite_url)
    ada = await new_person(database, "Ada", mode="managed")
    queue = JobQueue(database, ROOT)
    await put(queue, "read", user_id=ada.id, key=queue.grant(ada.sealer, "per_job"))
    async with database.write() as session:
        await make_standing_slot(session, ada.id, user_key=ada.user_key, root=ROOT, at=now())
    await database.dispose()
    assert find_in_files(ada.user_key, tmp_path) == []
