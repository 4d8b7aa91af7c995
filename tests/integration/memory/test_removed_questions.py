"""Tests that an upgrade deletes the questions of earlier versions."""

from __future__ import annotations

from uuid import UUID, uuid4

import msgspec
import numpy as np
import pytest
from sqlalchemy import LargeBinary, String, column, select, table, text, update

from backend.chats.models import CHAT_SETTINGS, Chat
from backend.database import migrate
from backend.database.base import now
from backend.database.types import Id, UtcTime
from backend.enrichment.models import EnrichmentRun
from backend.jobs.models import Job
from backend.jobs.queue import NewJob
from backend.memory.index.protocol import Payload, Point, Sparse, point_id
from backend.vault.sealing import Sealer
from tests.integration.turns.seeding import identity_of
from tests.support.memory import API, Start, points_of, settled, tell, texts_found
from tests.support.server import Running, ok

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

LINE = "The hound tore the cable, and the ferry was lost in the fog."
QUESTIONS = table(
    "message_questions",
    column("id", Id()),
    column("user_id", Id()),
    column("chat_id", Id()),
    column("run_id", Id()),
    column("sealed_questions", LargeBinary),
    column("written_at", UtcTime()),
)
RUNS = table("enrichment_runs", column("kind", String))


async def add_question_point(server: Running, owner_id: UUID, line: Payload) -> None:
    """Add a point of the kind that earlier versions made."""
    payload = msgspec.structs.replace(line, kind="question")
    point = Point(
        id=point_id("question", line.source_id),
        payload=payload,
        dense={},
        sparse={"sparse": Sparse(np.array([7], np.uint32), np.array([1], np.float32))},
    )
    await server.parts.memory.collections.current.upsert([point])


async def count_stored_bytes(server: Running) -> int:
    async with server.parts.database.read() as session:
        return await session.scalar(text("SELECT sum(bytes) FROM storage_ledger")) or 0


async def store_questions(server: Running, sealer: Sealer, chat_id: UUID, message_id: UUID) -> None:
    """Store the rows of earlier versions: questions, their run and job, and the setting."""
    parts, run_id = server.parts, uuid4()
    settings = msgspec.json.encode({"memory": {"questions": True, "max_items": 7}})
    async with parts.database.write() as session:
        question = {
            "id": message_id,
            "user_id": sealer.user_id,
            "chat_id": chat_id,
            "run_id": run_id,
            "sealed_questions": b"-" * 1_000,
            "written_at": now(),
        }
        await session.execute(QUESTIONS.insert().values(question))
        run = EnrichmentRun(
            id=run_id, user_id=sealer.user_id, chat_id=chat_id, kind="turn", state="done",
            model="demo/storyteller", from_position=0, to_position=1,
        )  # fmt: skip
        session.add(run)
        await session.flush()
        await session.execute(RUNS.update().values(kind="questions"))
        sealed = sealer.seal_bytes(CHAT_SETTINGS, chat_id, settings)
        await session.execute(update(Chat).where(Chat.id == chat_id).values(sealed_settings=sealed))
        job = NewJob(
            kind="enrichment.questions",
            user_id=sealer.user_id,
            payload={"chat_id": str(chat_id)},
            run_after=now().replace(year=now().year + 1),
        )
        await parts.queue.enqueue(session, job)


async def test_an_upgrade_leaves_nothing_of_the_questions(start: Start) -> None:
    async with start() as server, server.account() as ada:
        chat = (await ada.new_chat())["id"]
        said, _ = await tell(server, ada, chat, [LINE, "Gone!"])
        index = server.parts.memory.collections.current
        points = await points_of(index, said.user_id)
        line = next(each for each in points if (each.kind, each.source_id) == ("message", said.id))
        await add_question_point(server, said.user_id, line)
        # The old point does not disturb searches.
        assert LINE in await texts_found(ada, "hound", sources="message")
        database, before = server.parts.database, await count_stored_bytes(server)
        sealer = (await identity_of(server, ada)).sealer
        await migrate.downgrade(database, "2026_11_22")
        await store_questions(server, sealer, UUID(chat), said.id)
        await migrate.upgrade(database)
        assert LINE in await texts_found(ada, "hound", sources="message")
        await settled(server)
        kinds = {each.kind for each in await points_of(index, said.user_id)}
        assert kinds == {"message"}
        async with database.read() as session:
            assert (await session.scalars(select(EnrichmentRun.kind))).all() == []
            jobs = select(Job.kind).where(Job.kind.like("enrichment.%"))
            assert (await session.scalars(jobs)).all() == []
        assert abs(await count_stored_bytes(server) - before) < 1_000
        settings = ok(await ada.client.get(f"{API}/chats/{chat}/settings"))
        assert settings["memory"] == {"max_items": 7}
        changed = {"memory": {"max_items": 8}}
        ok(await ada.client.patch(f"{API}/chats/{chat}/settings", json=changed))
        assert LINE in await texts_found(ada, "hound", sources="message")
