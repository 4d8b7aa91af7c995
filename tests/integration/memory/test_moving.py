"""Another embedding model: texts move to its collection while search goes on in the old one."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from tests.fakes.openai_server import error
from tests.support.memory import (
    API,
    Moody,
    embedding,
    jobs_left,
    points_of,
    reconcile,
    remembering,
    rows_of,
    settled,
    stored_rows,
    tell,
)
from tests.support.server import Account, ok
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

FACT = "The captain buried the astrolabe under the chapel bell."


async def test_texts_move_to_another_model_s_collection_and_are_found_all_the_while(
    database_url: str, tmp_path: Path
) -> None:
    async with Moody() as vectors:
        old_model = embedding(vectors, name="small", dimension=64)
        async with (
            remembering(database_url, tmp_path, **old_model) as server,
            server.account("Ada") as ada,
        ):
            chat = str((await ada.new_chat())["id"])
            await tell(server, ada, chat, [FACT, "I see."])
            first = server.parts.memory.collections.current.name
            assert (await found(ada, "astrolabe"))[0] == (FACT, [])

        vectors.refusal = error(500)
        new_model = embedding(vectors, name="large", dimension=128)
        async with (
            remembering(database_url, tmp_path, **new_model) as server,
            server.signed_in("Ada") as ada,
        ):
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

            # What is said from now on is in the new one alone, and at night the old one is emptied.
            await tell(server, ada, chat, ["A puffin lands."])
            assert rows_of(await points_of(old, user_id)).keys() == stored
            await reconcile(server)
            assert await points_of(old, user_id) == []
            stored = await stored_rows(server, user_id)
            assert rows_of(await points_of(collections.current, user_id)).keys() == stored


async def found(account: Account, words: str) -> list[tuple[str, list[str]]]:
    """Texts that are found, each with what there is to say about the search."""
    answer = ok(await account.client.get(f"{API}/search", params={"q": words}))
    return [(item["text"], answer["notes"]) for item in answer["items"]]
