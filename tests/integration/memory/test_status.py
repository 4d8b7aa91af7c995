"""Tests of the status of memory, of rebuilds, and of a move to another embedding model."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import pytest

from backend.memory.embedding.protocol import MINILM
from backend.memory.index.edge import EdgeIndex
from backend.memory.index.protocol import Floats, Point, point_id
from backend.memory.index.scope import IndexUnavailableError
from backend.memory.indexing.outbox import INDEX
from backend.memory.runtime import MemoryRuntime
from tests.fakes.openai_server import API_KEY, OWN_DIMENSION, OpenAIServer, error
from tests.fakes.scripted_server import Answer, Break, Gate
from tests.support.memory import (
    API,
    Moody,
    Start,
    context_of,
    embedding,
    give_up,
    jobs_left,
    new_book,
    points_of,
    reconcile,
    remembered,
    rows_of,
    search,
    set_chat,
    settled,
    stored_rows,
    take_turn,
    tell,
    texts_found,
)
from tests.support.server import Account, Running, ok
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

FACT = "The captain buried the astrolabe under the chapel bell."


@pytest.mark.every_database
async def test_the_status_shows_indexed_and_waiting_rows_and_problems(start: Start) -> None:
    async with (
        Moody() as vectors,
        start(**embedding(vectors)) as server,
        server.account("Ada") as ada,
        server.account("Bob") as bob,
    ):
        chat = str((await ada.new_chat())["id"])
        await new_book(ada, {"content": "An inn."}, {"content": "A well."})
        await tell(server, ada, chat, [FACT])
        found = await status(ada)
        model = {"provider": "openai", "model": "words", "dimension": 256, "is_own": False}
        assert found["model"] == model
        assert rows(found) == {
            "message": (1, 0),
            "lore": (2, 0),
            "event": (0, 0),
            "campaign": (0, 0),
        }
        assert found["points"] == 3
        assert found["compared_at"] is None
        assert (found["move"], found["jobs"], found["problems"]) == (None, [], [])
        assert rows(await status(bob))["message"] == (0, 0)

        vectors.refusal = error(500)
        await tell(server, ada, chat, ["A gannet dives."], indexed=False)

        async def is_delayed() -> bool:
            problems = (await status(ada))["problems"]
            return [(each["kind"], each["count"]) for each in problems] == [("delayed", 1)]

        await until(is_delayed)
        await texts_found(ada, "gannet")
        found = await status(ada)
        assert rows(found)["message"] == (2, 1)
        assert [each["kind"] for each in found["problems"]] == ["model_unavailable", "delayed"]
        assert all(each["advice"] for each in found["problems"])

        # Only one rebuild runs at a time.
        first = await rebuild(ada)
        assert (await rebuild(ada))["id"] == first["id"]
        assert (await status(ada))["jobs"][0]["id"] == first["id"]
        vectors.refusal = None
        for job in await jobs_left(server):
            await ada.client.post(f"{API}/jobs/{job.id}/retry")
        await settled(server)
        await texts_found(ada, "gannet")
        found = await status(ada)
        assert (rows(found)["message"], found["problems"]) == ((2, 0), [])
        assert found["compared_at"] is not None
        assert (await rebuild(ada))["id"] != first["id"]


@pytest.mark.every_database
async def test_a_rebuild_does_again_what_gave_up(start: Start) -> None:
    async with (
        Moody() as vectors,
        start(**embedding(vectors)) as server,
        server.account("Ada") as ada,
    ):
        vectors.refusal = error(500)
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT], indexed=False)
        await give_up(server, INDEX)
        told = [each["kind"] for each in (await status(ada))["problems"]]
        assert "gave_up" in told
        vectors.refusal = None
        await rebuild(ada)
        await settled(server)
        found = await status(ada)
        assert (rows(found)["message"], found["problems"]) == ((1, 0), [])


@pytest.mark.every_database
async def test_a_rebuild_makes_points_again_that_look_as_they_should(start: Start) -> None:
    async with start() as server, server.account("Ada") as ada:
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT, "I see.", "Yes."])
        index = server.parts.memory.collections.current
        owner_id = UUID(ada.user["id"])
        spoilt = [
            Point(id=each, payload=payload, dense={}, sparse={})
            async for page in index.scan(owner_id)
            for each, payload in page
        ]
        await index.upsert(spoilt)
        assert await texts_found(ada, "astrolabe") == []
        await rebuild(ada)
        await settled(server)
        assert (await texts_found(ada, "astrolabe"))[0] == FACT
        found = await status(ada)
        assert [each["kind"] for each in found["problems"]] == ["no_model"]
        (job,) = found["jobs"]
        assert (job["state"], job["progress"]) == ("done", {"done": 3, "total": 3})


async def status(account: Account) -> dict[str, Any]:
    found: dict[str, Any] = ok(await account.client.get(f"{API}/memory"))
    return found


async def rebuild(account: Account) -> dict[str, Any]:
    job: dict[str, Any] = ok(await account.client.post(f"{API}/memory/rebuild"), 202)
    return job


def rows(found: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return (total, waiting) by kind."""
    return {each["kind"]: (each["total"], each["waiting"]) for each in found["indexed"]}


@pytest.mark.every_database
async def test_texts_move_to_another_model_s_collection_and_are_found_all_the_while(
    start: Start,
) -> None:
    async with Moody() as vectors:
        old_model = embedding(vectors, name="small", dimension=64)
        async with start(**old_model) as server, server.account("Ada") as ada:
            chat = str((await ada.new_chat())["id"])
            await tell(server, ada, chat, [FACT, "I see."])
            first = server.parts.memory.collections.current.name
            assert (await found(ada, "astrolabe"))[0] == (FACT, [])

        vectors.refusal = error(500)
        new_model = embedding(vectors, name="large", dimension=128)
        async with start(**new_model) as server, server.signed_in("Ada") as ada:
            collections = server.parts.memory.collections
            user_id = UUID(ada.user["id"])
            (old,) = [each for each in await collections.all_indexes() if each.name == first]
            assert collections.current.name != first
            moving = "memory is moving to another embedding model: searched by words only"
            assert (await found(ada, "astrolabe"))[0] == (FACT, [moving])
            made = await tell(server, ada, chat, ["A gannet dives.", "Look!"], indexed=False)

            async def is_in_both() -> bool:
                ids = {line.id for line in made}
                sides = [await points_of(side, user_id) for side in (old, collections.current)]
                return all(ids <= rows_of(side).keys() for side in sides)

            await until(is_in_both)
            assert (await found(ada, "gannet"))[0] == ("A gannet dives.", [moving])

            vectors.refusal = None
            for job in await jobs_left(server):
                await ada.client.post(f"{API}/jobs/{job.id}/retry")
            await settled(server)
            assert (await found(ada, "astrolabe"))[0] == (FACT, [])
            assert (await found(ada, "gannet"))[0] == ("A gannet dives.", [])
            stored = await stored_rows(server, user_id)
            assert rows_of(await points_of(collections.current, user_id)).keys() == stored
            assert rows_of(await points_of(old, user_id)).keys() == stored

            # New texts are only in the new collection. At night the old collection is emptied.
            await tell(server, ada, chat, ["A puffin lands."])
            assert rows_of(await points_of(old, user_id)).keys() == stored
            await reconcile(server)
            assert await points_of(old, user_id) == []
            stored = await stored_rows(server, user_id)
            assert rows_of(await points_of(collections.current, user_id)).keys() == stored


async def found(account: Account, words: str) -> list[tuple[str, list[str]]]:
    """Return the texts of a search, each with the notes of the search."""
    answer = ok(await account.client.get(f"{API}/search", params={"q": words}))
    return [(item["text"], answer["notes"]) for item in answer["items"]]


QUESTION = "Where did the captain bury the astrolabe, under which bell?"


async def find_failed_job(server: Running, account: Account) -> dict[str, Any]:
    """Return the only job of the index that failed and is queued again."""

    async def found() -> list[dict[str, Any]]:
        jobs = ok(await account.client.get(f"{API}/jobs"))["items"]
        assert len(await jobs_left(server)) <= 1
        return [job for job in jobs if job["error"] and job["state"] == "queued"]

    (job,) = await until(found)
    return job  # type: ignore[no-any-return]


async def read_part(account: Account, name: str) -> dict[str, Any]:
    parts = ok(await account.client.get("/ready"))["parts"]
    return next(part for part in parts if part["name"] == name)


@pytest.mark.every_database
@pytest.mark.parametrize(
    "refusal", [error(500), Answer(events=[Gate(), Break()])], ids=["error", "silence"]
)
async def test_without_its_embedder_memory_goes_by_words_and_catches_up_later(
    start: Start, refusal: Answer
) -> None:
    async with (
        Moody() as vectors,
        start(**embedding(vectors), embedding_timeout_seconds=0.3) as server,
        server.account("Ada") as ada,
    ):
        index = server.parts.memory.collections.current
        chat = str((await ada.new_chat())["id"])
        await set_chat(ada, chat, budgets={"history": 300})
        if refusal.status == 500:
            vectors.refusal = refusal
        # There are several batches. The later ones do not wait for vectors of the first one.
        lines = [f"It rains on roof number {n}." for n in range(210)]
        rows = await tell(server, ada, chat, [*lines, FACT, *lines[:30]], indexed=False)
        fact = rows[210]
        if refusal.status == 500:
            job = await find_failed_job(server, ada)
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


@pytest.mark.every_database
async def test_hits_without_vectors_are_returned(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        Moody() as vectors,
        start(**embedding(vectors)) as server,
        server.account("Ada") as ada,
    ):
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT, "I see.", FACT])
        # Equal texts are recognised by their vectors.
        assert (await texts_found(ada, QUESTION)).count(FACT) == 1
        monkeypatch.setattr(EdgeIndex, "dense_vectors", unavailable)
        assert (await texts_found(ada, QUESTION)).count(FACT) == 2


async def unavailable(*_: object) -> dict[UUID, Floats]:
    raise IndexUnavailableError("The engine is gone.")


@pytest.mark.every_database
async def test_without_its_index_a_turn_goes_on_and_what_was_said_is_indexed_later(
    start: Start,
) -> None:
    async with start(embedder="none") as server, server.account("Ada") as ada:
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT, *[f"Roof {n}." for n in range(60)]])
        await set_chat(ada, chat, budgets={"history": 100})
        assert (await read_part(ada, "index"))["ready"]
        await server.parts.memory.collections.current.aclose()

        reply_id = await take_turn(ada, chat, text=f"{QUESTION} A zeppelin?")
        context = await context_of(ada, reply_id)
        (said,) = context["notes"]
        assert said.startswith("memory was not searched: the memory index")
        assert context["retrieved"] == []
        found = ok(await ada.client.get(f"{API}/search", params={"q": "bell"}))
        assert found["items"] == []
        assert found["notes"] == [said]
        part = await read_part(ada, "index")
        assert not part["ready"]
        assert not part["needed"]
        job = await find_failed_job(server, ada)
        assert job["error"] == "index-unavailable"

    async with start(embedder="none") as server, server.signed_in("Ada") as ada:
        await ada.client.post(f"{API}/jobs/{job['id']}/retry")
        await settled(server)
        assert "zeppelin" in (await texts_found(ada, "zeppelin"))[0]
        reply_id = await take_turn(ada, chat, text=QUESTION)
        context = await context_of(ada, reply_id)
        assert any(FACT in text for text in remembered(context))
        assert context["notes"] == []


CAPTAIN_QUESTION = "Where is the astrolabe of the captain?"


@pytest.fixture
async def embedding_model() -> AsyncGenerator[OpenAIServer]:
    async with OpenAIServer() as embedding_model:
        yield embedding_model


async def add(account: Account, embedding_model: OpenAIServer) -> str:
    """Add a shared provider of embeddings. Return its path."""
    body = {"kind": "openai", "scope": "installation", "embedding_model": "words"}
    wanted = {**body, "base_url": embedding_model.url, "api_key": API_KEY}
    made = ok(await account.client.post(f"{API}/providers", json=wanted), 201)
    return f"{API}/providers/{made['id']}"


async def follow(server: Running) -> MemoryRuntime:
    """Check the embedding model, as the server does every 15 seconds."""
    await server.parts.memory.follow_model()
    await settled(server)
    return server.parts.memory


async def read_offer(account: Account) -> dict[str, Any]:
    offers: dict[str, Any] = ok(await account.client.get(f"{API}/admin/embedding-models"))
    return {name: offers[name] for name in ("embedder", "model", "is_used")}


async def is_found(server: Running, account: Account) -> bool:
    await settled(server)
    return FACT in str(await search(account, CAPTAIN_QUESTION))


@pytest.mark.every_database
async def test_texts_move_to_its_collection_and_back(
    start: Start, embedding_model: OpenAIServer
) -> None:
    async with start() as server, server.account("Ada") as ada:
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT, "I see.", "A gannet dives."])
        path, embedding_model.common = await add(ada, embedding_model), 0.5
        embedding_model.script(error(500))
        await server.parts.memory.follow_model()
        assert server.parts.memory.embedder is None  # a failing model is not used
        memory = await follow(server)
        assert memory.embedder is not None
        assert (memory.embedder.spec.model, memory.embedder.spec.dimension) == (
            "words",
            OWN_DIMENSION,
        )
        assert embedding_model.requests[-1].headers["authorization"] == f"Bearer {API_KEY}"
        assert await read_offer(ada) == {"embedder": "provider", "model": "words", "is_used": False}
        assert await is_found(server, ada)
        assert await memory.embedder.cosines() != MINILM
        ok(await ada.client.patch(path, json={"embedding_model": None}))
        assert (await follow(server)).embedder is None
        assert (await read_offer(ada))["embedder"] == "none"
        assert await is_found(server, ada)


async def test_a_start_goes_on_with_it_and_does_not_wait_for_one_that_is_down(start: Start) -> None:
    async with OpenAIServer() as embedding_model:
        async with start() as server, server.account("Ada") as ada:
            await add(ada, embedding_model)
        async with start() as server:
            embedder = server.parts.memory.embedder
            assert embedder is not None
            assert embedder.spec.model == "words"
        async with start(embedder="none") as server:
            await server.parts.memory.follow_model()
            assert server.parts.memory.embedder is None  # as the settings require
    async with start() as server:
        assert server.parts.memory.embedder is None


@pytest.mark.every_database
@pytest.mark.parametrize("mode", ["per_job", "managed", "sealed"])
async def test_one_job_indexes_the_lines_of_several_turns(start: Start, mode: str) -> None:
    async with (
        Moody() as vectors,
        start(**embedding(vectors), index_delay_seconds=2) as server,
        server.account("Ada") as ada,
    ):
        ok(await ada.client.patch(f"{API}/me", json={"key_mode": mode}))
        chat = str((await ada.new_chat())["id"])
        lines = [f"The {thing} is in the attic." for thing in ("cradle", "violin", "lantern")]
        for line in lines:
            await take_turn(ada, chat, text=line)
        found = await status(ada)
        assert (rows(found)["message"], found["problems"]) == ((6, 6), [])
        assert len(await jobs_left(server)) == 1
        assert await texts_found(ada, "cradle") == []
        await settled(server)
        assert set(lines) <= set(await texts_found(ada, "attic"))
