"""What memory says of its own state, and the rebuild that a user asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from backend.memory.index.protocol import Point
from backend.memory.indexing.outbox import INDEX
from tests.fakes.openai_server import error
from tests.support.memory import (
    API,
    Moody,
    embedding,
    give_up,
    jobs_left,
    new_book,
    remembering,
    settled,
    tell,
    texts_found,
)
from tests.support.server import Account, ok
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

FACT = "The captain buried the astrolabe under the chapel bell."


async def test_the_status_tells_what_is_indexed_what_waits_and_what_is_wrong(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        Moody() as vectors,
        remembering(database_url, tmp_path, **embedding(vectors)) as server,
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
        assert found["points"] == 4  # the message has a scene
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

        # Of rebuilds one is under way at a time.
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


async def test_a_rebuild_does_again_what_gave_up(database_url: str, tmp_path: Path) -> None:
    async with (
        Moody() as vectors,
        remembering(database_url, tmp_path, **embedding(vectors)) as server,
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


async def test_a_rebuild_makes_points_again_that_look_as_they_should(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        remembering(database_url, tmp_path) as server,
        server.account("Ada") as ada,
    ):
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
    """Totals and what waits, by kind."""
    return {each["kind"]: (each["total"], each["waiting"]) for each in found["indexed"]}
