"""Tests of an account's own embedding model with an index on a Qdrant server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from backend.memory.indexing.outbox import INDEX
from tests.fakes.holding_server import HoldingServer
from tests.fakes.openai_server import API_KEY, OpenAIServer
from tests.fakes.qdrant_cluster import QdrantNode
from tests.fakes.scripted_server import Request
from tests.support.memory import (
    API,
    Moody,
    embedding,
    jobs_left,
    reconcile,
    remembering,
    search,
    settled,
    stored_rows,
    tell,
)
from tests.support.own_models import (
    FACT,
    OWN,
    choose,
    lines,
    notes,
    own_index,
    problems,
    provide,
    rows_in,
    status,
    told,
)
from tests.support.server import PASSWORD, Account, Running, ok
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

PREFIX = "talekeeper-"


@pytest.fixture
async def qdrant() -> AsyncGenerator[QdrantNode]:
    async with QdrantNode() as running:
        yield running


@contextlib.asynccontextmanager
async def start_with_server(
    url: str, folder: Path, qdrant: QdrantNode, usual: OpenAIServer | None = None, **more: object
) -> AsyncGenerator[Running]:
    """Start a Talekeeper with its index on this server. Several share the database."""
    chosen = embedding(usual) if usual else {"embedder": "none"}
    server = {"qdrant_url": qdrant.url, "qdrant_protocol": "http", "qdrant_timeout_seconds": 5}
    async with remembering(url, folder, **chosen, **server, **more) as running:
        yield running


async def test_texts_move_to_a_collection_made_on_demand_and_back_and_an_account_s_end_empties_it(
    database_url: str, tmp_path: Path, qdrant: QdrantNode, mine: Moody
) -> None:
    async with (
        Moody() as usual,
        start_with_server(database_url, tmp_path, qdrant, usual) as server,
        server.account("Ben") as ben,
        server.account("Ada") as ada,
    ):
        for account in (ada, ben):
            chat = str((await account.new_chat())["id"])
            await tell(server, account, chat, [FACT, "I see."])
        current = server.parts.memory.collections.current
        assert PREFIX + OWN not in qdrant.collections
        await provide(ada, mine)
        await choose(ada, "mine/words")
        await settled(server)
        assert PREFIX + OWN in qdrant.collections
        stored = await stored_rows(server, UUID(ada.user["id"]))
        assert await rows_in(await own_index(server), ada) == stored
        assert (await notes(ada), await problems(ada)) == ([], [])
        assert (await status(ada))["points"] == 2
        assert await notes(ben) == []
        await reconcile(server)
        assert await rows_in(current, ada) == set()

        await choose(ada, None)
        await settled(server)
        assert await rows_in(current, ada) == stored
        assert await notes(ada) == []
        assert await rows_in(await own_index(server), ada) == stored
    async with (
        Moody() as usual,
        start_with_server(database_url, tmp_path, qdrant, usual) as server,
        server.signed_in("Ada") as ada,
        server.signed_in("Ben") as ben,
    ):
        # No row mentions the points that are left in the old collection.
        ok(await ada.client.request("DELETE", f"{API}/me", json={"password": PASSWORD}), 204)
        await settled(server)
        assert qdrant.store.count(PREFIX + OWN, None) == 0
        current = server.parts.memory.collections.current
        assert await current.owners() == {UUID(ben.user["id"])}
        assert len(await search(ben, "astrolabe")) >= 1


class Slow(HoldingServer):
    """An embedding model that holds requests with stored texts while a test is `thinking`."""

    def holds(self, request: Request) -> bool:
        """True for texts of the chat, but not for queries or the probe of the dimension."""
        return any(word in str(request.body) for word in ("I see.", "A gannet dives."))


async def found(account: Account, words: str, text: str) -> list[str]:
    """Search for a text, which must be found. Return the notes of the search."""
    answer = ok(await account.client.get(f"{API}/search", params={"q": words}))
    assert text in str(answer["items"])
    said: list[str] = answer["notes"]
    return said


MOVING = "memory is moving to another embedding model: searched by words only"


@pytest.mark.postgres
async def test_all_processes_follow_a_choice_and_find_all_the_while_what_there_is(
    postgres_url: str, tmp_path: Path, qdrant: QdrantNode
) -> None:
    async with (
        Moody() as usual,
        Slow() as mine,
        start_with_server(postgres_url, tmp_path / "a", qdrant, usual, job_workers=0) as first,
        start_with_server(postgres_url, tmp_path / "b", qdrant, usual) as second,
        first.account("Ada") as ada,
        second.signed_in("Ada") as there,
    ):
        chat = str((await ada.new_chat())["id"])
        await tell(second, ada, chat, [FACT, "I see."])
        current = first.parts.memory.collections.current
        before = await rows_in(current, ada)
        assert [await found(each, "astrolabe", FACT) for each in (ada, there)] == [[], []]
        usual.requests.clear()
        async with mine.thinking() as is_asked:
            await provide(ada, mine)
            await choose(ada, "mine/words")
            await is_asked.wait()
            # One process searches the old collection, the other one the new collection.
            assert await found(ada, "astrolabe", FACT) == [MOVING]
            assert await found(there, "astrolabe", FACT) in ([], [MOVING])
            await tell(second, ada, chat, ["A gannet dives."], indexed=False)
            # Until the texts have moved, it is found by its words in the old collection.
            await until(lambda: is_indexed(ada, "gannet"))
        await settled(second)
        assert (await found(ada, "gannet", "A gannet dives."), await problems(ada)) == ([], [])
        stored = await stored_rows(second, UUID(ada.user["id"]))
        assert await rows_in(await own_index(second), ada) == stored
        assert len(stored - before) == 1
        # New texts go to one collection, and are found at once.
        await tell(second, ada, chat, ["A puffin lands."])
        assert await found(ada, "puffin", "A puffin lands.") == []
        assert len(await rows_in(current, ada)) == len(stored)
        assert not [each for each in usual.requests if "gannet" in str(each.body)]
        assert not [each for each in usual.requests if "puffin" in str(each.body)]


async def is_indexed(account: Account, words: str) -> bool:
    return bool(await search(account, words))


@pytest.mark.postgres
async def test_vectors_of_the_model_before_that_come_late_are_made_again(
    postgres_url: str, tmp_path: Path, qdrant: QdrantNode
) -> None:
    async with (
        Moody() as other,
        Slow() as mine,
        start_with_server(postgres_url, tmp_path, qdrant) as server,
        server.account("Ada") as ada,
    ):
        other.common = 0.5  # other vectors for the same texts
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT, "I see."])
        path = await provide(ada, mine)
        await choose(ada, "mine/words")
        await settled(server)
        async with mine.thinking() as is_asked:
            await tell(server, ada, chat, ["A gannet dives."], indexed=False)
            await is_asked.wait()
            ok(await ada.client.patch(path, json={"base_url": other.url, "api_key": API_KEY}))
            await until(lambda: has_arrived(server, ada))
        await settled(server)
        index, ids = await own_index(server), await lines(server, UUID(ada.user["id"]))
        late = await index.dense_vectors(ids)
        assert await notes(ada) == []
        ok(await ada.client.post(f"{API}/memory/rebuild"), 202)
        await settled(server)
        again = await index.dense_vectors(ids)
        assert set(late) == set(again) == set(ids)
        assert all(np.allclose(late[each], again[each], atol=1e-3) for each in ids)


async def has_arrived(server: Running, account: Account) -> bool:
    """True if the texts have moved and only the held job is left."""
    kinds = [job.kind for job in await jobs_left(server)]
    return kinds == [INDEX] and (await status(account))["move"] is None


async def test_a_collection_that_the_server_lost_is_filled_again_and_one_that_fails_harms_no_other(
    database_url: str, tmp_path: Path, qdrant: QdrantNode, mine: Moody
) -> None:
    async with (
        start_with_server(database_url, tmp_path, qdrant) as server,
        server.account("Ada") as ada,
        server.account("Ben") as ben,
    ):
        for account in (ada, ben):
            chat = str((await account.new_chat())["id"])
            await tell(server, account, chat, [FACT, "I see."])
        await provide(ada, mine)
        await choose(ada, "mine/words")
        await settled(server)
        await reconcile(server)
        stored = await stored_rows(server, UUID(ada.user["id"]))
    qdrant.lose(PREFIX + OWN)
    assert (await told(server.parts.settings)).detail.endswith(f"lost: {OWN}")
    asked = len(mine.requests)
    async with (
        start_with_server(database_url, tmp_path, qdrant) as server,
        server.signed_in("Ada") as ada,
    ):
        ok(await ada.client.get(f"{API}/me"))  # the request provides the key
        await settled(server)
        assert await notes(ada) == []
        assert await rows_in(await own_index(server), ada) == stored
        assert await problems(ada) == []
        # The stored vectors are used, so only the query is embedded.
        texts = [str(each.body) for each in mine.requests[asked:]]
        assert not [each for each in texts if "I see." in each]
    qdrant.store.broken.add(PREFIX + OWN)
    async with (
        start_with_server(database_url, tmp_path, qdrant) as server,
        server.signed_in("Ada") as ada,
        server.signed_in("Ben") as ben,
    ):
        assert await notes(ben) == []
        await reconcile(server)
        assert (await status(ben))["compared_at"] is not None
        assert await problems(ada) == ["index_unavailable"]
        answer = ok(await ada.client.get(f"{API}/search", params={"q": "astrolabe"}))
        assert answer["items"] == []
        assert "memory was not searched" in answer["notes"][0]
        qdrant.store.broken.clear()
        await until(lambda: is_indexed(ada, "astrolabe"))
        assert (await notes(ada), await problems(ada)) == ([], [])
