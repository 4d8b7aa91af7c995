"""What `talekeeper reindex` does; it can be interrupted and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sqlalchemy import func, select

from backend.accounts.keyring import open_sealer
from backend.accounts.names import load_instance_keys
from backend.accounts.repository import data_keys
from backend.accounts.service import AccountService
from backend.chats.index_source import MessageSource
from backend.chronicles.index_source import ChronicleSource
from backend.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.jobs.keys import JobKeys
from backend.jobs.models import Job
from backend.jobs.queue import JobQueue
from backend.jobs.worker import Worker
from backend.lorebooks.index_source import LoreSource
from backend.memory.outbox import REINDEX, IndexOutbox
from backend.memory.runtime import MemoryRuntime, open_memory
from backend.settings import Settings
from backend.vault.root import RootKeys
from backend.vault.slots import DEFAULT_KDF

Report = Callable[[int, int], None]

LOOK_EVERY = 0.2


async def reindex_user(
    database: Database,
    settings: Settings,
    root: RootKeys,
    *,
    name: str,
    password: str,
    report: Report,
) -> str:
    """Bring the index up to date with all texts of one user; says how it ended.

    Raises `WrongCredentialsError`: nobody's texts can be read without their password.
    """
    instance = await load_instance_keys(database, root)
    accounts = AccountService(database, root, instance, settings, kdf=DEFAULT_KDF)
    unlocked = await accounts.unlock(name, password, address="")
    async with database.read() as session:
        rows = await data_keys(session, unlocked.user.id)
    sealer = open_sealer(unlocked.user, rows, user_key=unlocked.user_key)
    memory, _, pool = await _open(database, settings, root)
    try:
        await memory.indexer.rebuild(sealer, report)
        count = await memory.collections.current.count(unlocked.user.id)
    finally:
        await memory.aclose()
        await pool.aclose()
    return f"{count:,} points of {name}'s are in the index {memory.collections.current.name}."


async def reindex_everybody(
    database: Database, settings: Settings, root: RootKeys, *, report: Report
) -> str:
    """Bring the index up to date with everybody's texts, as far as their keys are to be had.

    Whose key is not to be had is indexed when they are next seen.
    """
    memory, queue, pool = await _open(database, settings, root)
    worker = Worker(queue, memory.kinds, JobKeys(database, root), concurrency=2)
    try:
        await memory.prepare()
        async with database.write() as session:
            users = await memory.collections.all_due(session)
            for user_id in users:
                await memory.outbox.reindex(
                    session, user_id, memory.collections.current.name, holder=None
                )
        worker.start()
        while left := await _left(database, "queued", "running"):
            report(len(users) - min(left, len(users)), len(users))
            await asyncio.sleep(LOOK_EVERY)
        report(len(users), len(users))
        waiting = await _left(database, "waiting_key")
    finally:
        await worker.aclose()
        await memory.aclose()
        await pool.aclose()
    done = len(users) - waiting
    message = f"{done:,} of {len(users):,} accounts are in the index."
    if waiting:
        message += (
            f" {waiting:,} will be as soon as their users are seen: their keys are not kept here. "
            "With --user NAME and the password it is done at once."
        )
    return message


async def _open(
    database: Database, settings: Settings, root: RootKeys
) -> tuple[MemoryRuntime, JobQueue, CpuPool]:
    queue, pool = JobQueue(database, root), CpuPool()
    sources = (MessageSource(), LoreSource(), ChronicleSource())
    outbox = IndexOutbox(queue)
    return await open_memory(settings, database, queue, outbox, sources, pool), queue, pool


async def _left(database: Database, *states: str) -> int:
    query = select(func.count()).select_from(Job).where(Job.kind == REINDEX, Job.state.in_(states))
    async with database.read() as session:
        return await session.scalar(query) or 0
