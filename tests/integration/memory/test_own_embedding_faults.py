"""The provider of an account's own embedding model refuses, is slow, or gives other vectors."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.fakes.openai_server import API_KEY, OWN_DIMENSION, OpenAIServer, embedded, error
from tests.fakes.scripted_server import Answer, Break, Gate, Request
from tests.support.memory import (
    API,
    context_of,
    jobs_left,
    remembering,
    set_chat,
    settled,
    take_turn,
    tell,
)
from tests.support.own_models import (
    FACT,
    lines,
    moved,
    notes,
    own_index,
    problems,
    retried,
    status,
)
from tests.support.server import Account, Running, ok
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

WORDS = "searched by words only: the embedding model did not respond"
BARRED = "sk-another-another-another"


class Changeable(OpenAIServer):
    """Gives vectors of any length, takes one key, and may be silent."""

    length = OWN_DIMENSION
    key = API_KEY
    silence: Gate | None = None

    def usual(self, request: Request) -> Answer:
        if self.silence:
            return Answer(events=[self.silence, Break()])
        if request.headers["authorization"] != f"Bearer {self.key}":
            return error(401, code="invalid_api_key")
        body = {**request.body, "dimensions": self.length}
        return embedded(Request(request.method, request.path, {}, {}, body))


@pytest.fixture
async def mine() -> AsyncGenerator[Changeable]:
    async with Changeable() as model:
        yield model


async def long_chat(server: Running, account: Account, model: OpenAIServer) -> tuple[str, str]:
    """A chat whose first line no history holds; its id, and the path of the model's provider."""
    rain = [f"It rains on roof {n}." for n in range(30)]
    chat, path = await moved(server, account, model, [FACT, *rain])
    await set_chat(account, chat, budgets={"history": 100})
    assert await notes(account) == []
    return chat, path


async def ask(account: Account, words: str) -> list[str]:
    """What there is to say about a search that finds the fact."""
    answer = ok(await account.client.get(f"{API}/search", params={"q": words}))
    assert FACT in str(answer["items"])
    said: list[str] = answer["notes"]
    return said


async def is_delayed(account: Account) -> bool:
    return "delayed" in await problems(account)


async def are_all_there(server: Running, account: Account) -> bool:
    """Every line has its vector."""
    ids = await lines(server, UUID(account.user["id"]))
    return set(await (await own_index(server)).dense_vectors(ids)) == set(ids)


@pytest.mark.parametrize("fault", ["revoked", "silent"])
async def test_a_turn_streams_while_the_key_is_refused_or_nothing_is_answered_until_it_is_mended(
    database_url: str, tmp_path: Path, mine: Changeable, fault: str
) -> None:
    settings: dict[str, Any] = {"embedder": "none"}
    if fault == "silent":
        settings["embedding_timeout_seconds"] = 0.3
    async with (
        remembering(database_url, tmp_path, **settings) as server,
        server.account("Ada") as ada,
    ):
        (chat, path), silence = await long_chat(server, ada, mine), Gate()
        asked = len(mine.requests)
        if fault == "silent":
            mine.silence = silence
        else:
            mine.key = BARRED
        reply = await take_turn(ada, chat, text="Where is the astrolabe, under which bell?")
        assert (await context_of(ada, reply))["notes"] == [WORDS]
        assert "own_model_unavailable" in await problems(ada)
        if fault == "revoked":
            await until(lambda: is_delayed(ada))
        for number in range(4):
            assert await ask(ada, f"Is the chapel's bell of {number} tons?") == [WORDS]
        # After three failures in a row it is left alone for a moment.
        assert len(mine.requests) - asked <= 8

        if fault == "silent":
            mine.silence = None
            silence.opened.set()
        else:
            ok(await ada.client.patch(path, json={"api_key": BARRED}))
        await retried(server, ada)
        assert await are_all_there(server, ada)
        if fault == "revoked":
            assert (await ask(ada, "Which chapel has a bell?"), await problems(ada)) == ([], [])


async def test_a_turn_asks_for_one_vector_and_a_model_is_measured_once(
    database_url: str, tmp_path: Path, mine: Changeable
) -> None:
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.account("Ada") as ada,
    ):
        chat, _ = await long_chat(server, ada, mine)
        asked = len(mine.requests)
        line = "Where is the astrolabe, under which bell?"
        await take_turn(ada, chat, text=line)
        await settled(server)
        texts = [each.body["input"] for each in mine.requests[asked:]]
        # The query; then the line and the reply, as what is indexed. Each is one request.
        assert [some for some in texts if some == [line]] == [[line]]
        assert len(texts) <= 3
        ok(await ada.client.delete(f"{API}/sessions/current"), 204)
        async with server.signed_in("Ada") as again:
            asked = len(mine.requests)
            assert await ask(again, "Which chapel has a bell?") == []
            assert len(mine.requests) == asked + 1


@pytest.mark.parametrize(("before", "after"), [(256, 384), (200, 100)])
async def test_vectors_of_another_length_are_never_compared_and_a_rebuild_takes_them_up(
    database_url: str, tmp_path: Path, mine: Changeable, before: int, after: int
) -> None:
    mine.length = before
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.account("Ada") as ada,
    ):
        chat, _ = await long_chat(server, ada, mine)
    mine.length = after
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.signed_in("Ada") as ada,
    ):
        assert await notes(ada) == [WORDS]
        assert await problems(ada) == ["own_model_unavailable"]
        await tell(server, ada, chat, ["A gannet dives."], indexed=False)
        await until(lambda: is_delayed(ada))

        # As it was before, it fills in what is missing.
        mine.length = before
        await retried(server, ada)
        assert (await notes(ada), await problems(ada)) == ([], [])
        assert await are_all_there(server, ada)

    mine.length = after
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.signed_in("Ada") as ada,
    ):
        assert await notes(ada) == [WORDS]
        asked = len(mine.requests)
        ok(await ada.client.post(f"{API}/memory/rebuild"), 202)
        await settled(server)
        assert FACT in str([each.body for each in mine.requests[asked:]])
        assert (await notes(ada), await problems(ada)) == ([], [])
        assert (await status(ada))["model"]["dimension"] == (384 if after == 384 else 256)
        assert await jobs_left(server) == []
