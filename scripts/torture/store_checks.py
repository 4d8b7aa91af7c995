"""Checks of an idle installation: rows, jobs, index, and no plain text."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import and_, func, select, text

from backend.accounts.auth.names import load_instance_keys
from backend.accounts.keys.keyring import open_sealer
from backend.accounts.models import User
from backend.accounts.repository import list_data_keys
from backend.accounts.service import AccountService
from backend.chats.models import Chat, Message
from backend.chronicles.models import EVENT, ChronicleEvent
from backend.container import SOURCES
from backend.database.base import Base, now
from backend.database.engine import Database
from backend.enrichment.models import EnrichmentRun
from backend.enrichment.runs.store import open_detail
from backend.jobs.models import Job
from backend.memory.index.edge import list_collections, open_edge
from backend.memory.index.protocol import Kind, VectorIndex
from backend.memory.index.server import list_server_collections, open_server
from backend.memory.indexing.collections import parse_dimension
from backend.memory.indexing.indexer import compare_container
from backend.memory.models import IndexChange, IndexState
from backend.settings import Settings
from backend.turns.models import Turn
from backend.vault.root import load_root_keys
from backend.vault.sealing import Sealer
from backend.vault.slots import DEFAULT_KDF
from scripts.torture.canary import disguises, find_in_folder
from scripts.torture.client import PASSWORD, Client
from scripts.torture.index_process import RemoteIndex
from scripts.torture.installation import Installation
from scripts.torture.model import LINE_MARK
from scripts.torture.model_checks import ChosenModel, check_vectors

SETTLE_WITHIN = 120.0
NIGHTLY_IN = timedelta(minutes=10)
"""Jobs that run later than this do not follow from the campaign."""
EVENT_MARK = re.compile(rf"Event of ({LINE_MARK.pattern})")


async def open_client_sealer(database: Database, made: Installation, client: Client) -> Sealer:
    """Return the sealer of a client's texts, from the password as in the server."""
    values: dict[str, Any] = {"_env_file": None, "data_dir": made.data}
    settings = Settings(**values)
    root = load_root_keys(settings.resolved_root_key_file, value=None, create=False)
    instance = await load_instance_keys(database, root)
    accounts = AccountService(database, root, instance, settings, kdf=DEFAULT_KDF)
    unlocked = await accounts.unlock(client.username, PASSWORD, address="")
    async with database.read() as session:
        rows = await list_data_keys(session, unlocked.user.id)
    return open_sealer(unlocked.user, rows, user_key=unlocked.current.key)


async def settle(
    database: Database, users: Collection[UUID], within: float = SETTLE_WITHIN
) -> list[str]:
    """Wait until no turn runs and no job is due; return the rest after `within` seconds.

    Jobs that wait for the key of somebody else than `users` wait for good.
    """
    began = time.monotonic()
    while True:
        async with database.read() as session:
            waits = and_(Job.state == "waiting_key", Job.user_id.in_(users))
            soon = func.count().filter(Job.state.in_(("queued", "running")) | waits)
            due = Job.run_after < now() + NIGHTLY_IN
            jobs = await session.scalar(select(soon).where(due)) or 0
            turns = await session.scalar(
                select(func.count()).select_from(Turn).where(Turn.state == "running")
            )
        if not jobs and not turns:
            return []
        if time.monotonic() - began > within:
            return [f"unsettled: {jobs} jobs and {turns} turns are left after {within:.0f} s"]
        await asyncio.sleep(0.2)


async def check_rows(database: Database) -> list[str]:
    """Orphans, states that nothing may be left in, and, on SQLite, the file itself."""
    found: list[str] = []
    async with database.read() as session:
        if database.is_sqlite:
            verdict = await session.scalar(text("PRAGMA integrity_check"))
            if verdict != "ok":
                found.append(f"broken file: {verdict}")
        for table in Base.metadata.sorted_tables:
            for key in table.foreign_keys:
                parent = key.column.table.alias("parent")
                query = (
                    select(func.count())
                    .select_from(table.outerjoin(parent, key.parent == parent.c[key.column.name]))
                    .where(key.parent.is_not(None), parent.c[key.column.name].is_(None))
                )
                if count := await session.scalar(query):
                    found.append(f"orphans: {count} in {table.name}.{key.parent.name}")
        streaming = (
            select(Message.id, Turn.id, Turn.kind, Turn.state)
            .outerjoin(Turn, Turn.reply_id == Message.id)
            .where(Message.status == "streaming")
        )
        for message_id, *turn in await session.execute(streaming):
            found.append(f"left over: message {message_id} is being written, turn {turn}")
        notes = select(func.count()).select_from(IndexChange)
        if count := await session.scalar(notes):
            found.append(f"left over: {count} changes are not indexed, and no job is there for it")
        hidden = select(func.count()).select_from(Chat).where(~Chat.is_ready)
        closed = select(func.count()).select_from(User).where(User.deleted_at.is_not(None))
        for name, rest in (("chats", hidden), ("accounts", closed)):
            if count := await session.scalar(rest):
                found.append(f"left over: {count} deleted {name} still have rows")
        dead = await session.scalars(select(Job).where(Job.state == "dead"))
        found += [f"dead: a job {job.kind} ({job.error}, {job.attempts} times)" for job in dead]
    return found


async def check_events(database: Database, sealer: Sealer) -> tuple[list[str], int]:
    """Events that a chronicle has twice, and jobs that read lines twice; and how many events."""
    found: list[str] = []
    query = select(ChronicleEvent).where(ChronicleEvent.user_id == sealer.user_id)
    done = select(EnrichmentRun).where(
        EnrichmentRun.user_id == sealer.user_id, EnrichmentRun.state == "done"
    )
    async with database.read() as session:
        rows = list(await session.scalars(query))
        runs = list(await session.scalars(done))
    # A job reads stretch by stretch, and has a run for each.
    read = Counter((run.job_id, *open_detail(sealer, run).message_ids) for run in runs)
    found += [f"done twice: job {each[0]} read the same lines" for each, n in read.items() if n > 1]
    told: Counter[tuple[str, str]] = Counter()
    for row in rows:
        sealed = sealer.open(EVENT, row.id, row.sealed_event)
        told.update((str(row.chronicle_id), mark) for mark in EVENT_MARK.findall(sealed))
    found += [f"done twice: {n} events of {mark}" for (_, mark), n in told.items() if n > 1]
    return found, len(rows)


async def check_index(
    database: Database, made: Installation, chosen: Mapping[Sealer, ChosenModel]
) -> tuple[list[str], Counter[str]]:
    """Rows without points, points without rows, points and vectors of the wrong user or model.

    Also returns how many `rows`, `points` and `vectors` there are. A check that compared no row
    fails. The servers must not run: Qdrant Edge is open in one process alone.
    """
    found: list[str] = []
    count: Counter[str] = Counter()
    async with database.read() as session:
        users = set(await session.scalars(select(User.id)))
        states = (await session.execute(select(IndexState.collection, IndexState.user_id))).all()
    for name in sorted(await _list_collections(made) | {name for name, _ in states}):
        async with aclosing(await _open_index(made, name)) as index:
            if strangers := await index.owners() - users:
                found.append(f"index: {len(strangers)} who are gone have points in {name}")
            here = users & {user_id for each, user_id in states if each == name}
            for user_id in here:
                wrong, rows = await _compare_rows(database, index, user_id)
                found += wrong
                count["rows"] += rows
            for sealer, model in chosen.items():
                if sealer.user_id in here and not model.is_gone:
                    wrong, vectors = await check_vectors(database, index, sealer, SOURCES, model)
                    found += wrong
                    count["vectors"] += vectors
            count["points"] += await index.count()
            count["collections"] += 1
    for user_id in users - {user_id for _, user_id in states}:
        if rows := sum([len(stored) async for _, _, stored in _read_rows(database, user_id)]):
            found.append(f"index: {rows} rows of {user_id} are in no collection")
    if not count["rows"]:
        found.append("index: no row was compared with its points")
    return found, count


async def _compare_rows(
    database: Database, index: VectorIndex, user_id: UUID
) -> tuple[list[str], int]:
    """Compare a user's rows with their points; and how many rows there are."""
    found: list[str] = []
    rows = 0
    async for kind, container, stored in _read_rows(database, user_id):
        rows += len(stored)
        held = await compare_container(index, user_id, container, stored)
        if held.missing or held.gone:
            found.append(
                f"index: {kind}s of {container}: {len(held.missing)} are not in "
                f"{index.name}, {len(held.gone)} are left in it"
            )
    return found, rows


async def _read_rows(
    database: Database, user_id: UUID
) -> AsyncIterator[tuple[Kind, UUID, Mapping[UUID, int]]]:
    """Kind, container, and versions by row, of all that is to be in the index for a user."""
    for source in SOURCES:
        async with database.read() as session:
            containers = await source.containers(session, owner_id=user_id)
        for container in containers:
            async with database.read() as session:
                stored = await source.inventory(session, container, owner_id=user_id)
            yield source.kind, container, stored or {}


async def _list_collections(made: Installation) -> set[str]:
    """The names of all collections, where the servers have them."""
    if made.index_port is not None:
        return await RemoteIndex(made.index_port, "", None).collections()
    if made.index_settings.qdrant_url:
        return await list_server_collections(made.index_settings)
    return list_collections(made.index_folder)


async def _open_index(made: Installation, name: str) -> VectorIndex:
    if made.index_port is not None:
        index = RemoteIndex(made.index_port, name, parse_dimension(name))
        await index.open()
        return index
    if made.index_settings.qdrant_url:
        return await open_server(made.index_settings, name, parse_dimension(name))
    return await open_edge(made.index_folder, name, parse_dimension(name))


def check_plaintext(canary: str, folders: Mapping[str, Path]) -> list[str]:
    """Places on disk where a word of every text lies in the clear."""
    needles = disguises(canary)
    return [
        f"plain text: in {label}/{name}"
        for label, folder in folders.items()
        for name in find_in_folder(needles, folder)
    ]
