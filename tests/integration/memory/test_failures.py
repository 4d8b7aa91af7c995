"""Parts of memory that fail: turns go on and say so, and what was missed is made up for."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from backend.memory.index.edge import EdgeIndex
from backend.memory.index.protocol import Floats, point_id
from backend.memory.index.scope import IndexUnavailableError
from tests.fakes.openai_server import error
from tests.fakes.scripted_server import Answer, Break, Gate
from tests.support.memory import (
    API,
    Moody,
    context_of,
    embedding,
    jobs_left,
    points_of,
    remembered,
    remembering,
    rows_of,
    set_chat,
    settled,
    stored_rows,
    take_turn,
    tell,
    texts_found,
)
from tests.support.server import Account, Running, ok
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

FACT = "The captain buried the astrolabe under the chapel bell."
QUESTION = "Where did the captain bury the astrolabe, under which bell?"


async def failed_job(server: Running, account: Account) -> dict[str, Any]:
    """The one job of the index that was tried and put back."""

    async def found() -> list[dict[str, Any]]:
        jobs = ok(await account.client.get(f"{API}/jobs"))["items"]
        assert len(await jobs_left(server)) <= 1
        return [job for job in jobs if job["error"] and job["state"] == "queued"]

    (job,) = await until(found)
    return job  # type: ignore[no-any-return]


async def part_of(account: Account, name: str) -> dict[str, Any]:
    """What `/ready` says of a part."""
    parts = ok(await account.client.get("/ready"))["parts"]
    return next(part for part in parts if part["name"] == name)


@pytest.mark.parametrize(
    "refusal", [error(500), Answer(events=[Gate(), Break()])], ids=["error", "silence"]
)
async def test_without_its_embedder_memory_goes_by_words_and_catches_up_later(
    database_url: str, tmp_path: Path, refusal: Answer
) -> None:
    async with (
        Moody() as vectors,
        remembering(
            database_url, tmp_path, **embedding(vectors), embedding_timeout_seconds=0.3
        ) as server,
        server.account("Ada") as ada,
    ):
        index = server.parts.memory.collections.current
        chat = str((await ada.new_chat())["id"])
        await set_chat(ada, chat, budgets={"history": 300})
        if refusal.status == 500:
            vectors.refusal = refusal
        # More than are embedded together: the rest does not wait for the first ones' vectors.
        lines = [f"It rains on roof number {n}." for n in range(210)]
        rows = await tell(server, ada, chat, [*lines, FACT, *lines[:30]], indexed=False)
        fact = rows[210]
        if refusal.status == 500:
            job = await failed_job(server, ada)
            assert job["attempts"] == 1
            points = await points_of(index, UUID(ada.user["id"]))
            assert rows_of(points).keys() == {row.id for row in rows}
            assert {point.version for point in points if point.kind == "message"} == {0}
            assert await index.dense_vectors([point_id("message", fact.id)]) == {}
        else:
            await settled(server)
            vectors.refusal = refusal

        reply_id = await take_turn(ada, chat, text=QUESTION)
        context = await context_of(ada, reply_id)
        assert FACT in remembered(context)[0]
        assert context["notes"] == ["searched by words only: the embedding model did not respond"]

        vectors.refusal = None
        for event in refusal.events or ():
            if isinstance(event, Gate):
                event.opened.set()
        for left in await jobs_left(server):
            await ada.client.post(f"{API}/jobs/{left.id}/retry")
        await settled(server)
        points = await points_of(index, UUID(ada.user["id"]))
        assert rows_of(points).keys() == await stored_rows(server, UUID(ada.user["id"]))
        assert 0 not in {point.version for point in points}
        ids = [point_id("message", row.id) for row in rows]
        assert len(await index.dense_vectors(ids)) == len(rows)


async def test_where_vectors_of_what_was_found_do_not_come_it_is_told_all_the_same(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        Moody() as vectors,
        remembering(database_url, tmp_path, **embedding(vectors)) as server,
        server.account("Ada") as ada,
    ):
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT, "I see.", FACT])
        # What says the same is known by its vector.
        assert (await texts_found(ada, QUESTION)).count(FACT) == 1
        monkeypatch.setattr(EdgeIndex, "dense_vectors", unavailable)
        assert (await texts_found(ada, QUESTION)).count(FACT) == 2


async def unavailable(*_: object) -> dict[UUID, Floats]:
    raise IndexUnavailableError("The engine is gone.")


async def test_without_its_index_a_turn_goes_on_and_what_was_said_is_indexed_later(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.account("Ada") as ada,
    ):
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT, *[f"Roof {n}." for n in range(60)]])
        await set_chat(ada, chat, budgets={"history": 100})
        assert (await part_of(ada, "index"))["ready"]
        await server.parts.memory.collections.current.aclose()

        reply_id = await take_turn(ada, chat, text=f"{QUESTION} A zeppelin?")
        context = await context_of(ada, reply_id)
        (said,) = context["notes"]
        assert said.startswith("memory was not searched: the memory index")
        assert context["retrieved"] == []
        found = ok(await ada.client.get(f"{API}/search", params={"q": "bell"}))
        assert found["items"] == []
        assert found["notes"] == [said]
        part = await part_of(ada, "index")
        assert not part["ready"]
        assert not part["needed"]
        job = await failed_job(server, ada)
        assert job["error"] == "index-unavailable"

    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.signed_in("Ada") as ada,
    ):
        await ada.client.post(f"{API}/jobs/{job['id']}/retry")
        await settled(server)
        assert "zeppelin" in (await texts_found(ada, "zeppelin"))[0]
        reply_id = await take_turn(ada, chat, text=QUESTION)
        context = await context_of(ada, reply_id)
        assert any(FACT in text for text in remembered(context))
        assert context["notes"] == []
