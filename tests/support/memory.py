"""An embedder with known vectors, and helpers that wait for the index and read it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from backend.accounts.auth.identity import Identity
from backend.chats.models import Chat, Message
from backend.container import Services
from backend.database.base import now
from backend.jobs.keys import JobKeys
from backend.jobs.models import Job
from backend.jobs.worker import build_worker
from backend.lorebooks.models import LoreEntryRow
from backend.memory.index.protocol import Payload, VectorIndex
from backend.memory.indexing.outbox import FORGET, RECONCILE
from tests.fakes.openai_server import OpenAIServer
from tests.fakes.scripted_server import Answer, Request
from tests.integration.turns.seeding import identity_of, seed
from tests.support.models import asking
from tests.support.server import ROOT, Account, Running, ok, running
from tests.support.waiting import until

API = "/api/v1"
DIMENSION = 256
MODEL_FOLDER = Path(__file__).parents[2].parent / "shared" / "data" / "minilm-l6-v2-int8"


Start = Callable[..., contextlib.AbstractAsyncContextManager[Running]]
"""Starts a Talekeeper with the given settings."""


class Moody(OpenAIServer):
    """Answers as long as it likes to; else with `refusal`."""

    refusal: Answer | None = None

    def usual(self, request: Request) -> Answer:
        return self.refusal or super().usual(request)


def embedding(
    model: OpenAIServer, *, name: str = "words", dimension: int = DIMENSION
) -> dict[str, Any]:
    """Settings of a server with vectors from this model: one number for each hashed word."""
    return {
        "embedder": "openai",
        "embedding_base_url": model.url,
        "embedding_model": name,
        "embedding_dimension": dimension,
    }


@contextlib.asynccontextmanager
async def remembering(url: str, folder: Path, **settings: Any) -> AsyncGenerator[Running]:
    """A Talekeeper that keeps its index in `folder`, with a worker beside it where it has none."""
    async with running(url, folder, **settings) as server, working(server.parts):
        yield server


@contextlib.asynccontextmanager
async def working(parts: Services) -> AsyncGenerator[None]:
    """On PostgreSQL, do the jobs of `talekeeper work` here: only one process can open an index."""
    if parts.settings.embedded or not parts.settings.job_workers:
        yield
        return
    keys = JobKeys(ROOT)
    worker = build_worker(parts.settings, parts.queue, keys, parts.kinds, takes_queued=True)
    worker.start()
    try:
        yield
    finally:
        await worker.aclose()


async def jobs_left(server: Running) -> list[Job]:
    """Jobs of the index that are not over, but for the nightly one and a second look for later."""
    is_later = (Job.kind == RECONCILE) | ((Job.kind == FORGET) & (Job.run_after > now()))
    query = select(Job).where(
        Job.kind.like("memory.%"), ~is_later, Job.state.not_in(("done", "dead"))
    )
    async with server.parts.database.read() as session:
        return list(await session.scalars(query))


async def give_up(server: Running, kind: str) -> None:
    """Keep failed jobs of a kind from being retried.

    Only between two tries: one that runs goes on writing whatever its row says.
    """
    failed = Job.kind == kind, Job.state == "queued", Job.error.is_not(None)
    query = update(Job).where(*failed).values(state="dead").returning(Job.id)

    async def are_dead() -> bool:
        async with server.parts.database.write() as session:
            return bool((await session.scalars(query)).all())

    await until(are_dead)


async def settled(server: Running) -> None:
    """Wait until the index agrees with the database."""

    async def are_done() -> bool:
        return not await jobs_left(server)

    server.parts.queue.wake()
    await until(are_done)


async def forgotten(server: Running) -> None:
    """Have points of deleted accounts deleted once more, which otherwise comes minutes later."""
    async with server.parts.database.write() as session:
        await session.execute(update(Job).where(Job.kind == FORGET).values(run_after=now()))
    await settled(server)


async def tell(
    server: Running, account: Account, chat_id: str, texts: Iterable[str], *, indexed: bool = True
) -> list[Message]:
    """Add lines at the end of a chat, and see them indexed."""
    made = await seed(server, account, chat_id, texts)
    identity = await identity_of(server, account)
    await note(server, identity, chat_id, [line.id for line in made])
    if indexed:
        await settled(server)
    return made


async def note(
    server: Running, identity: Identity, chat_id: str, message_ids: Sequence[UUID] | None
) -> None:
    """Index messages that were written directly to the database."""
    async with server.parts.database.write() as session:
        await server.parts.index.changed(
            session, identity, kind="message", container_id=UUID(chat_id), source_ids=message_ids
        )


async def search(account: Account, words: str, **query: Any) -> list[dict[str, Any]]:
    """The search results of an account, best first."""
    answer = ok(await account.client.get(f"{API}/search", params={"q": words, **query}))
    items: list[dict[str, Any]] = answer["items"]
    return items


async def texts_found(account: Account, words: str, **query: Any) -> list[str]:
    """The texts alone."""
    return [item["text"] for item in await search(account, words, **query)]


async def preview(
    account: Account, chat_id: str, text: str | None = None, **more: Any
) -> dict[str, Any]:
    """The context of the turn that would come now, with its prompt."""
    query = {"prompt": "true", **({"text": text} if text else {}), **more}
    found: dict[str, Any] = ok(
        await account.client.get(f"{API}/chats/{chat_id}/context", params=query)
    )
    return found


async def context_of(account: Account, message_id: str, **query: str) -> dict[str, Any]:
    """The stored context of a reply."""
    return await account.get(f"/messages/{message_id}/context", **query)


async def take_turn(account: Account, chat_id: str, **body: Any) -> str:
    """A turn to its end; the id of the reply."""
    events = await account.turn(chat_id, **body)
    assert events[-1].name == "turn.completed", events[-1]
    reply_id: str = events[0].data["reply_id"]
    return reply_id


async def set_chat(account: Account, chat_id: str, **settings: Any) -> None:
    """Merge into a chat's settings."""
    ok(await account.client.patch(f"{API}/chats/{chat_id}/settings", json=settings))


async def texts_worded(account: Account, words: str, **query: Any) -> list[str]:
    """Texts that contain one of these words or are near such a text."""
    found = await search(account, words, **query)
    return [item["text"] for item in found if {"sparse", "sparse_window"} & item["scores"].keys()]


def remembered(context: dict[str, Any], kind: str = "memory") -> list[str]:
    """The retrieved texts, by rank."""
    return [item["text"] for item in context["retrieved"] if item["kind"] == kind]


def reasons(context: dict[str, Any]) -> dict[str, str]:
    """Why each piece of lore is in a prompt, by its title."""
    items = [*context["items"], *context["retrieved"]]
    return {item["title"]: item["reason"] for item in items if item["kind"] == "lore"}


def whole(context: dict[str, Any]) -> str:
    """Everything that is sent."""
    return "\n".join(message["text"] for message in context["prompt"])


async def new_book(account: Account, *entries: dict[str, Any], **fields: Any) -> str:
    """A lorebook with these entries; its id."""
    body = {"name": "The coast", **fields}
    book_id: str = ok(await account.client.post(f"{API}/lorebooks", json=body), 201)["id"]
    for entry in entries:
        await new_entry(account, book_id, **entry)
    return book_id


async def new_entry(account: Account, book_id: str, **fields: Any) -> str:
    """A lorebook entry; its id."""
    made = await account.client.post(f"{API}/lorebooks/{book_id}/entries", json=fields)
    entry_id: str = ok(made, 201)["id"]
    return entry_id


async def link(account: Account, chat_id: str, book_id: str, state: str = "linked") -> None:
    """Link a book to a chat, or switch it off there."""
    path = f"{API}/chats/{chat_id}/lorebooks/{book_id}"
    ok(await account.client.put(path, json={"state": state}))


async def points_of(index: VectorIndex, owner_id: UUID) -> list[Payload]:
    """Every point of a user's."""
    return [payload async for page in index.scan(owner_id) for _, payload in page]


def rows_of(points: Iterable[Payload]) -> Counter[UUID]:
    """The number of points of each row. Short texts have one."""
    return Counter(point.source_id for point in points)


async def stored_rows(server: Running, owner_id: UUID) -> set[UUID]:
    """Everything of a user's that ought to be in the index."""
    async with server.parts.database.read() as session:
        messages = await session.scalars(
            select(Message.id).join(Chat).where(Chat.user_id == owner_id)
        )
        entries = await session.scalars(
            select(LoreEntryRow.id).where(LoreEntryRow.user_id == owner_id)
        )
        return {*messages, *entries}


async def reconcile(server: Running) -> None:
    """Run the nightly comparison now, and wait for its jobs."""
    parts = server.parts
    async with parts.database.write() as session:
        job = await session.scalar(select(Job).where(Job.kind == RECONCILE, Job.state == "queued"))
        assert job is not None
        job.run_after = job.created_at
        first = job.id
    parts.queue.wake()

    async def is_over() -> bool:
        async with parts.database.read() as session:
            return await session.get(Job, first) is None

    await until(is_over)


@pytest.fixture(scope="module")
async def remembering_server(
    shared_url: str, tmp_path_factory: pytest.TempPathFactory, model: OpenAIServer
) -> AsyncGenerator[Running]:
    """A server with the model of the module, and an embedder that compares words."""
    settings, folder = asking(model), tmp_path_factory.mktemp("data")
    async with (
        OpenAIServer() as vectors,
        remembering(shared_url, folder, **settings, **embedding(vectors)) as server,
    ):
        yield server
