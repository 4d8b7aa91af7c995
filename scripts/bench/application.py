"""A server in this process, so that clocks can be read in it: accounts, chats, indexing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import msgspec
import uvicorn
from sqlalchemy import Select, and_, insert, or_, select

from backend.accounts.auth.identity import Identity
from backend.app import create_app
from backend.chats.drafts import MAX_SCENE_MESSAGES
from backend.chats.models import CHAT_TITLE, MESSAGE_AUTHOR, MESSAGE_CONTENT, Chat, Message
from backend.chats.text_digests import TextDigester
from backend.chats.token_counting import CountUnit
from backend.container import Services, build_services
from backend.core.audience import PUBLIC
from backend.database.base import new_id, now
from backend.database.engine import Database
from backend.generation.model import Role
from backend.generation.registry import ModelRegistry
from backend.http.responses import observe
from backend.jobs.models import Job
from backend.memory import runtime
from backend.memory.embedding.cache import CachedEmbedder
from backend.memory.index.protocol import Kind
from backend.memory.models import IndexChange
from backend.settings import Settings
from backend.vault.root import RootKeys
from backend.vault.slots import PasswordKdf
from scripts.bench.data import Lines
from scripts.bench.processes import PASSWORD, check
from scripts.bench.vectors import HashedWords

ROOT = RootKeys({1: b"r" * 32})
CHEAP_KDF = PasswordKdf(salt=b"\0" * 16, memory_kib=32, passes=1, lanes=1)


@dataclass(frozen=True)
class Account:
    """The services of a server, and an account that is signed in."""

    services: Services
    identity: Identity
    token: str

    @property
    def database(self) -> Database:
        return self.services.database


def make_settings(url: str, folder: Path, **others: Any) -> Settings:
    """Return settings for a database and a data folder, without an .env file.

    Lines are indexed at once, because most measurements wait for that after each step.
    """
    values = {"index_delay_seconds": 0, **others}
    return Settings(
        _env_file=None,  # type: ignore[call-arg]
        data_dir=folder,
        database_url=url,
        registration="open",
        **values,
    )


async def open_account(
    settings: Settings,
    database: Database,
    name: str,
    *,
    is_new: bool = True,
    registry: ModelRegistry | None = None,
) -> Account:
    """Build the services, and sign an account up or in."""
    services = await build_services(
        settings,
        ROOT,
        database,
        kdf=CHEAP_KDF,
        registry=registry or ModelRegistry(demo_tokens_per_second=0),
    )
    if is_new:
        unlocked = await services.accounts.sign_up(name, PASSWORD, invitation=None, address="")
    else:
        unlocked = await services.accounts.unlock(name, PASSWORD, address="")
    session_token = await services.sessions.open_session(unlocked, label=name)
    identity = await services.sessions.authenticate(session_token, kind="session")
    if identity is None:
        raise SystemExit("The session does not open.")
    token, _ = await services.sessions.make_api_key(
        identity, label=name, scope="chat", expires_at=None
    )
    return Account(services, identity, token)


@asynccontextmanager
async def serve(account: Account) -> AsyncGenerator[int]:
    """Serve the application in this process; yield its port."""
    async with serve_app(observe(create_app(account.services))) as port:
        yield port


@asynccontextmanager
async def serve_app(app: Any) -> AsyncGenerator[int]:
    """Serve an ASGI application on a free port of this process; yield the port."""
    config = uvicorn.Config(app, port=0, log_config=None, access_log=False, log_level="critical")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


def open_client(account: Account, port: int) -> httpx.AsyncClient:
    """Return a client of the account for a server's API."""
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}/api/v1",
        headers={"Authorization": f"Bearer {account.token}"},
        timeout=120,
        trust_env=False,
    )


def _change_nothing(_: int) -> Mapping[str, Any]:
    return {}


async def make_chat(
    database: Database,
    identity: Identity,
    lines: Lines,
    messages: int,
    change: Callable[[int], Mapping[str, Any]] = _change_nothing,
) -> UUID:
    """Store a chat with one branch of `messages` messages, which repeats the lines.

    `change` returns changed columns of the message at a position.
    """
    unit = CountUnit("o200k_base", names=False)
    counts = unit.count_many([("", text) for _, text in lines])
    repeated = islice(cycle(zip(lines, counts, strict=True)), messages)
    chat, rows = make_chat_rows(identity, list(repeated), unit, change)
    async with database.write() as session:
        session.add(chat)
        await session.flush()
        for start in range(0, len(rows), 1000):
            await session.execute(insert(Message), rows[start : start + 1000])
    return chat.id


def make_chat_rows(
    identity: Identity,
    counted: Sequence[tuple[tuple[str, str], int]],
    unit: CountUnit,
    change: Callable[[int], Mapping[str, Any]] = _change_nothing,
) -> tuple[Chat, list[dict[str, Any]]]:
    """Return a chat with one branch, and the columns of its messages.

    Args:
        identity: The owner.
        counted: ((author, text), tokens) of each message.
        unit: The unit of these tokens.
        change: Returns changed columns of the message at a position.
    """
    sealer, chat_id = identity.sealer, new_id()
    digester = TextDigester(sealer)
    rows: list[dict[str, Any]] = []
    total = 0
    for position, ((author, text), tokens) in enumerate(counted):
        message_id, changed = new_id(), change(position)
        total += 0 if changed.get("hidden") else tokens
        scene_place = position % MAX_SCENE_MESSAGES
        role: Role = "user" if position % 2 else "assistant"
        rows.append(
            {
                "id": message_id,
                "user_id": identity.user_id,
                "chat_id": chat_id,
                "parent_id": rows[-1]["id"] if rows else None,
                "position": position,
                "role": role,
                "status": "complete",
                "hidden": False,
                "is_active": True,
                "is_selected": True,
                "tokens": tokens,
                "path_tokens": total,
                "token_counts": msgspec.json.encode({str(unit): tokens}).decode(),
                "scene_id": rows[-1]["scene_id"] if scene_place else message_id,
                "scene_place": scene_place,
                "sealed_author": sealer.seal(MESSAGE_AUTHOR, message_id, author),
                "sealed_content": sealer.seal(MESSAGE_CONTENT, message_id, text),
                "text_digest": digester.compute(role, text),
                "created_at": now(),
                "updated_at": now(),
                "character_id": None,
                "presence": None,
                "audience": PUBLIC,
                **changed,
            }
        )
    chat = Chat(
        id=chat_id,
        user_id=identity.user_id,
        sealed_title=sealer.seal(CHAT_TITLE, chat_id, "Bench"),
        count_unit=str(unit),
        leaf_id=rows[-1]["id"],
    )
    return chat, rows


async def import_book(api: httpx.AsyncClient, book: bytes) -> str:
    """Import a lorebook file; return the id of the lorebook."""
    made = check(await api.post("/lorebooks/import", files={"file": ("book.json", book)}))
    book_id: str = made["lorebook"]["id"]
    return book_id


async def index_container(account: Account, kind: Kind, container_id: UUID) -> float:
    """Let a job index a chat or a lorebook; return the seconds that it takes."""
    began = time.perf_counter()
    async with account.database.write() as session:
        await account.services.index.changed(
            session, account.identity, kind=kind, container_id=container_id
        )
    await wait_until_indexed(account)
    return time.perf_counter() - began


async def wait_until_indexed(account: Account) -> None:
    """Wait until everything of the account is indexed. The server has to run."""
    query = select(IndexChange.id).where(IndexChange.user_id == account.identity.user_id)
    await _wait_until_empty(account, query)


async def wait_until_idle(account: Account) -> None:
    """Wait until everything is indexed and all jobs of the account have ended or failed once."""
    await wait_until_indexed(account)
    is_new = and_(Job.state == "queued", Job.attempts == 0)
    query = select(Job.id).where(Job.user_id == account.identity.user_id)
    await _wait_until_empty(account, query.where(or_(Job.state == "running", is_new)))


async def _wait_until_empty(account: Account, query: Select[UUID]) -> None:
    while True:
        async with account.database.read() as session:
            if await session.scalar(query.limit(1)) is None:
                return
        await asyncio.sleep(0.02)


@contextmanager
def use_hashed_words() -> Generator[None]:
    """Let servers that are built inside this context embed with `HashedWords`."""
    name = "build_cached_embedder"
    before = getattr(runtime, name)
    setattr(runtime, name, _build_hashed_words)
    try:
        yield
    finally:
        setattr(runtime, name, before)


def _build_hashed_words(_: Settings, database: Database) -> CachedEmbedder:
    return CachedEmbedder(database, HashedWords())
