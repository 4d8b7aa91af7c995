"""The commands `talekeeper reindex` and `rotate-keys`. They can be interrupted and repeated.

Each function returns a message for the terminal. Functions with a password raise
`WrongCredentialsError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sqlalchemy import func, select

from backend.accounts.auth.names import load_instance_keys
from backend.accounts.keys.keyring import open_sealer
from backend.accounts.keys.rotation import request_new_data_keys, rotate_data_key, rotate_root_key
from backend.accounts.keys.sealed_tables import ReportProgress
from backend.accounts.repository import list_data_keys
from backend.accounts.service import AccountService
from backend.campaigns.state.index_source import CampaignSource
from backend.characters import models as character_models
from backend.chats import models as chat_models
from backend.chats.index_source import MessageSource
from backend.chronicles import models as chronicle_models
from backend.chronicles.index_source import ChronicleSource
from backend.core.cpu_pool import CpuPool
from backend.database.engine import Database
from backend.enrichment import models as enrichment_models
from backend.generation.registry import build_registry
from backend.jobs import models as job_models
from backend.jobs.keys import JobKeys
from backend.jobs.queue import JobQueue
from backend.jobs.worker import Worker
from backend.llm import models as provider_models
from backend.llm.user_models import UserModels
from backend.lorebooks import models as lorebook_models
from backend.lorebooks.index_source import LoreSource
from backend.memory import models as memory_models
from backend.memory.indexing.outbox import REINDEX, IndexOutbox
from backend.memory.runtime import MemoryRuntime, open_memory
from backend.openai_api import models as client_models
from backend.presets import models as preset_models
from backend.settings import Settings
from backend.transfer import models as transfer_models
from backend.turns import models as turn_models
from backend.vault.root import RootKeys, load_root_keys
from backend.vault.slots import DEFAULT_KDF

TABLES = (
    character_models,
    chat_models,
    chronicle_models,
    client_models,
    enrichment_models,
    job_models,
    lorebook_models,
    memory_models,
    preset_models,
    provider_models,
    transfer_models,
    turn_models,
)
"""Imported for their tables, so that rotation finds every sealed column."""

POLL_SECONDS = 0.2


async def reindex_user(
    database: Database, settings: Settings, *, name: str, password: str, report: ReportProgress
) -> str:
    root = _load_root_keys(settings)
    accounts = await _open_accounts(database, settings, root)
    unlocked = await accounts.unlock(name, password, address="")
    async with database.read() as session:
        rows = await list_data_keys(session, unlocked.user.id)
    sealer = open_sealer(unlocked.user, rows, user_key=unlocked.current.key)
    async with _open_memory(database, settings, JobQueue(database, root)) as memory:
        collection = await memory.indexer.rebuild(sealer, report)
        count = await (await memory.collections.open(collection)).count(unlocked.user.id)
    points = "1 point" if count == 1 else f"{count:,} points"
    return f"The index {collection} has {points} of {name}."


async def reindex_all_users(database: Database, settings: Settings, report: ReportProgress) -> str:
    """Index the texts of all users whose keys are available.

    The other users are indexed after their next sign-in.
    """
    root = _load_root_keys(settings)
    queue = JobQueue(database, root)
    async with _open_memory(database, settings, queue) as memory:
        worker = Worker(queue, memory.kinds, JobKeys(root), concurrency=2)
        try:
            await memory.prepare()
            async with database.write() as session:
                users = await memory.collections.mark_due(session)
                for user_id, collection in users:
                    await memory.outbox.reindex(session, user_id, collection)
            worker.start()
            while left := await _count_jobs(database, "queued", "running"):
                report(len(users) - min(left, len(users)), len(users))
                await asyncio.sleep(POLL_SECONDS)
            report(len(users), len(users))
            waiting = await _count_jobs(database, "waiting_key")
        finally:
            await worker.aclose()
    done = len(users) - waiting
    message = f"{done:,} of {len(users):,} accounts are indexed."
    if waiting:
        message += (
            f" {waiting:,} follow when their users sign in, because their keys are not kept. "
            "With --user NAME and the password, they are indexed now."
        )
    return message


async def rotate_root_keys(database: Database, settings: Settings, report: ReportProgress) -> str:
    path, value = settings.resolved_root_key_file, settings.root_key_text
    result = await rotate_root_key(database, path=path, value=value, report=report)
    message = f"All keys are now encrypted with version {result.version} of the root key."
    if result.removable:
        older = ", ".join(str(version) for version in result.removable)
        return f"{message} You can remove version {older} from TALEKEEPER_ROOT_KEY."
    return f"{message} Keep a new copy of {path}."


async def schedule_new_data_keys(database: Database) -> str:
    count = await request_new_data_keys(database)
    return (
        f"{count} accounts get a new data key at their next sign-in. Existing data stays encrypted "
        "with the old key until it is written again, or re-encrypted with `--user`."
    )


async def rotate_user_key(
    database: Database, settings: Settings, *, name: str, password: str
) -> str:
    accounts = await _open_accounts(database, settings, _load_root_keys(settings))
    unlocked = await accounts.unlock(name, password, address="")
    renewed = await accounts.renew(unlocked.user.id, unlocked.current)
    return (
        f"{name} has user key {renewed.generation}. New data is encrypted with a "
        "new data key; `rotate-keys data` re-encrypts existing data with it."
    )


async def rotate_user_data_key(
    database: Database, settings: Settings, *, name: str, password: str, report: ReportProgress
) -> str:
    """Seal all texts of one user again, under a new data key."""
    accounts = await _open_accounts(database, settings, _load_root_keys(settings))
    unlocked = await accounts.unlock(name, password, address="")
    result = await rotate_data_key(database, unlocked.user.id, unlocked.current.key, report)
    message = f"{result.resealed:,} texts are now encrypted with data key {result.number}."
    if result.damaged:
        message += f" {result.damaged:,} could not be decrypted and were left as they are."
    if result.kept:
        older = ", ".join(str(number) for number in result.kept)
        message += f" Key {older} is kept for now; run this again in a day to delete it."
    return message


def _load_root_keys(settings: Settings) -> RootKeys:
    return load_root_keys(settings.resolved_root_key_file, value=settings.root_key_text)


async def _open_accounts(database: Database, settings: Settings, root: RootKeys) -> AccountService:
    instance = await load_instance_keys(database, root)
    return AccountService(database, root, instance, settings, kdf=DEFAULT_KDF)


@asynccontextmanager
async def _open_memory(
    database: Database, settings: Settings, queue: JobQueue
) -> AsyncGenerator[MemoryRuntime]:
    sources = (MessageSource(), LoreSource(), ChronicleSource(), CampaignSource())
    pool = CpuPool()
    outbox = IndexOutbox(queue)
    user_models = UserModels(build_registry(settings), settings, _load_root_keys(settings))
    memory = await open_memory(settings, database, queue, outbox, sources, pool, user_models)
    try:
        await memory.collections.current.ping()  # fail now if the index does not respond
        yield memory
    finally:
        await memory.aclose()
        await pool.aclose()


async def _count_jobs(database: Database, *states: str) -> int:
    job = job_models.Job
    query = select(func.count()).select_from(job).where(job.kind == REINDEX, job.state.in_(states))
    async with database.read() as session:
        return await session.scalar(query) or 0
