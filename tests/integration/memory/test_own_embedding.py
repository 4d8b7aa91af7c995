"""Tests of an account's own embedding model: moves, provider faults, and a lost collection."""

from __future__ import annotations

import base64
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from backend.database.engine import Database
from backend.memory.indexing.outbox import REINDEX
from backend.memory.models import IndexState
from backend.operations.maintenance import reindex_all_users, reindex_user
from tests.fakes.openai_server import API_KEY, OWN_DIMENSION, OpenAIServer, embedded, error
from tests.fakes.scripted_server import Answer, Break, Gate, Request
from tests.support.memory import (
    API,
    Moody,
    Start,
    context_of,
    embedding,
    give_up,
    jobs_left,
    reconcile,
    search,
    set_chat,
    settled,
    stored_rows,
    take_turn,
    tell,
)
from tests.support.own_models import (
    FACT,
    OWN,
    choose,
    chosen,
    lines,
    moved,
    notes,
    own_index,
    problems,
    provide,
    queries,
    quietly,
    retried,
    rows_in,
    status,
    told,
)
from tests.support.server import PASSWORD, Account, Running, ok, problem
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.mark.every_database
async def test_only_their_texts_move_to_the_account_s_model_and_back(
    start: Start, usual: Moody, mine: Moody
) -> None:
    async with (
        start(**embedding(usual)) as server,
        server.account("Ada") as ada,
        server.account("Ben") as ben,
    ):
        for account in (ada, ben):
            chat = str((await account.new_chat())["id"])
            await tell(server, account, chat, [FACT, "I see.", "A gannet dives."])
        current = server.parts.memory.collections.current
        path = await provide(ada, mine)
        await choose(ada, "mine/words")
        await settled(server)
        stored = await stored_rows(server, UUID(ada.user["id"]))
        assert await rows_in(await own_index(server), ada) == stored
        assert (await status(ada))["model"] == {
            "provider": "mine",
            "model": "words",
            "dimension": 256,
            "is_own": True,
        }
        assert (await problems(ada), (await status(ada))["move"]) == ([], None)
        assert mine.requests[-1].headers["authorization"] == f"Bearer {API_KEY}"

        # Queries and new texts of each account go to the model of the account.
        before = queries(usual), queries(mine)
        assert (await notes(ada), await notes(ben)) == ([], [])
        assert (queries(usual), queries(mine)) == (before[0] + 1, before[1] + 1)
        chat_id = str((await ada.new_chat())["id"])
        await tell(server, ada, chat_id, ["A puffin lands."])
        assert "puffin" in str(mine.requests[-1].body)
        assert not [each for each in usual.requests if "puffin" in str(each.body)]
        assert len(await search(ada, "puffin")) >= 1

        # The nightly comparison keeps each account's points, and deletes those in the old
        # collection.
        await reconcile(server)
        assert await rows_in(current, ada) == set()
        stored = await stored_rows(server, UUID(ada.user["id"]))
        assert await rows_in(await own_index(server), ada) == stored
        assert (await status(ada))["compared_at"] is not None
        assert await rows_in(current, ben) == await stored_rows(server, UUID(ben.user["id"]))

        await choose(ada, None)
        await settled(server)
        assert await rows_in(current, ada) == stored
        assert (await notes(ada), await problems(ada)) == ([], [])
        assert (await status(ada))["model"]["is_own"] is False
        await reconcile(server)
        assert await rows_in(await own_index(server), ada) == set()
        ok(await ada.client.delete(path), 204)
        assert await notes(ada) == []


@pytest.mark.every_database
async def test_a_model_that_does_not_answer_leaves_words_and_says_so(
    start: Start, usual: Moody, mine: Moody
) -> None:
    async with start(**embedding(usual)) as server, server.account("Ada") as ada:
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT, "I see."])
        path = await provide(ada, mine)
        mine.refusal = error(500)
        await choose(ada, "mine/words")

        async def is_told() -> bool:
            return await problems(ada) == ["own_model_unavailable", "delayed"]

        await until(is_told)
        # The texts do not move before the model has answered once.
        assert (await notes(ada), (await status(ada))["model"]["is_own"]) == ([], False)
        mine.refusal = None
        await retried(server, ada)
        assert (await notes(ada), await problems(ada)) == ([], [])

        words = "searched by words only: the embedding model did not respond"
        mine.script(error(500))
        answer = ok(await ada.client.get(f"{API}/search", params={"q": "the chapel's bell"}))
        assert (FACT in str(answer["items"]), answer["notes"]) == (True, [words])
        assert await problems(ada) == ["own_model_unavailable"]

        # If the provider is deleted, no other model embeds the account's texts.
        asked = len(usual.requests)
        ok(await ada.client.delete(path), 204)
        gone = "searched by words only: the account's embedding model does not exist"
        assert await notes(ada) == [gone]
        await settled(server)
        await tell(server, ada, chat, ["A gannet dives."])
        assert (await search(ada, "gannet"))[0]["text"] == "A gannet dives."
        assert (await problems(ada), len(usual.requests)) == (["own_model_gone"], asked)

        # A new provider of that name also embeds the texts that were added before.
        await provide(ada, mine)
        await settled(server)
        assert (await notes(ada), await problems(ada)) == ([], [])
        ids = await lines(server, UUID(ada.user["id"]))
        assert set(await (await own_index(server)).dense_vectors(ids)) == set(ids)


@pytest.mark.every_database
async def test_a_move_that_gave_up_is_forgotten_once_the_texts_are_where_they_belong(
    start: Start, usual: Moody, mine: Moody
) -> None:
    async with start(**embedding(usual)) as server, server.account("Ada") as ada:
        await tell(server, ada, str((await ada.new_chat())["id"]), [FACT, "I see."])
        await provide(ada, mine)
        mine.refusal = error(500)
        await choose(ada, "mine/words")
        await give_up(server, REINDEX)
        assert "gave_up" in await problems(ada)
        mine.refusal = None
        await choose(ada, "mine/others")
        await settled(server)
        assert (await notes(ada), await problems(ada)) == ([], [])
        assert (await status(ada))["model"]["model"] == "others"


@pytest.mark.every_database
async def test_vectors_of_another_server_are_never_compared_though_its_model_has_that_name(
    start: Start, usual: Moody, mine: Moody
) -> None:
    async with start(embedder="none") as server, server.account("Ada") as ada:
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT, "I see."])
        path = await provide(ada, mine)
        await choose(ada, "mine/words")
        await settled(server)
        index, owned = await own_index(server), UUID(ada.user["id"])
        ids = await lines(server, owned)
        before = await index.dense_vectors(ids)
        assert set(before) == set(ids)

        usual.common = 0.5  # other vectors for the same texts
        usual.refusal = error(500)
        ok(await ada.client.patch(path, json={"base_url": usual.url, "api_key": API_KEY}))
        gone = "searched by words only: the account's embedding model does not exist"
        assert await notes(ada) == [gone]
        assert queries(usual) == 0
        await until(lambda: is_delayed(ada))
        usual.refusal = None
        await retried(server, ada)
        assert await notes(ada) == []
        after = await index.dense_vectors(ids)
        assert all(bool((before[each] != after[each]).any()) for each in ids)
        assert not (await status(ada))["move"]


async def is_delayed(account: Account) -> bool:
    return "delayed" in await problems(account)


async def test_nothing_that_can_t_embed_is_taken_and_a_chat_has_no_such_model(
    start: Start, mine: Moody
) -> None:
    async with (
        start(embedder="none") as server,
        server.account("Ada") as ada,
        server.account("Ben") as ben,
    ):
        await provide(ada, mine)
        body = {"kind": "anthropic", "slug": "claude", "api_key": API_KEY}
        ok(await ada.client.post(f"{API}/providers", json=body), 201)
        path = f"{API}/me/settings"
        before = ok(await ada.client.get(path))
        for model_id in ("none/words", "mine", "mine/", "demo/storyteller"):
            problem(await ada.client.patch(path, json=chosen(model_id)), 422, "unknown-model")
        problem(await ada.client.patch(path, json=chosen("claude/words")), 422, "no-embeddings")
        # Another account does not see the provider.
        problem(await ben.client.patch(path, json=chosen("mine/words")), 422, "unknown-model")
        assert ok(await ada.client.get(path)) == before
        chat = str((await ada.new_chat())["id"])
        answer = await ada.client.patch(f"{API}/chats/{chat}/settings", json=chosen("mine/words"))
        assert "the account's settings" in problem(answer, 422, "validation-failed")["detail"]
        assert await jobs_left(server) == []


async def test_an_account_s_end_and_a_start_reach_every_collection(
    start: Start, mine: Moody
) -> None:
    async with start(embedder="none") as server, server.account("Ada") as ada:
        await moved(server, ada, mine, [FACT])
    async with start(embedder="none") as server:
        async with server.signed_in("Ada") as ada:
            assert await notes(ada) == []
            assert (await status(ada))["move"] is None
            assert queries(mine) == 1
            deleted = await ada.client.request("DELETE", f"{API}/me", json={"password": PASSWORD})
            ok(deleted, 204)
        await settled(server)
        assert await (await own_index(server)).count() == 0
        async with server.parts.database.read() as session:
            assert not list(await session.scalars(select(IndexState)))


async def test_provider_networks_apply_to_embeddings(start: Start, mine: Moody) -> None:
    async with start(embedder="none") as server, server.account("Ada") as ada:
        await moved(server, ada, mine, [FACT])
    asked = len(mine.requests)
    barred: dict[str, Any] = {"embedder": "none", "provider_networks": ("10.0.0.0/8",)}
    async with start(**barred) as server, server.signed_in("Ada") as ada:
        assert await notes(ada) == ["searched by words only: the embedding model did not respond"]
        assert (await problems(ada), len(mine.requests)) == (["own_model_unavailable"], asked)


@pytest.mark.parametrize("mode", ["managed", "per_job", "sealed"])
async def test_its_key_is_used_as_the_key_mode_allows(start: Start, mine: Moody, mode: str) -> None:
    async with start(embedder="none") as server:
        async with server.account("Ada") as ada:
            ok(await ada.client.patch(f"{API}/me", json={"key_mode": mode}))
            chat = str((await ada.new_chat())["id"])
            await provide(ada, mine)
            await choose(ada, "mine/words")
            await tell(server, ada, chat, [FACT])
            assert await notes(ada) == []
            user_id = UUID(ada.user["id"])
            ok(await ada.client.delete(f"{API}/sessions/current"), 204)
        asked = len(mine.requests)
        # Without a session the job waits for the key, unless the server has the key.
        async with server.parts.database.write() as session:
            await server.parts.index.reindex(session, user_id, OWN)
        if mode == "managed":
            await settled(server)
            assert len(mine.requests) > asked
            return

        async def waits() -> bool:
            return [each.state for each in await jobs_left(server)] == ["waiting_key"]

        await until(waits)
        assert len(mine.requests) == asked
        async with server.signed_in("Ada") as ada:
            ok(await ada.client.get(f"{API}/me"))
            await settled(server)
            assert len(mine.requests) > asked


async def test_the_doctor_counts_accounts_that_embed_by_themselves(
    start: Start, mine: Moody
) -> None:
    async with start(embedder="none") as server, server.account("Ada") as ada:
        settings = server.parts.settings
        assert "no account" in (await told(settings)).detail
        path = await provide(ada, mine)
        await choose(ada, "mine/words")
        await settled(server)
        assert (await told(settings)).detail == "accounts with their own model: 1"
        ok(await ada.client.delete(path), 204)
        await settled(server)
        assert (await told(settings)).detail.endswith("whose provider was deleted: 1")


async def test_reindexing_outside_of_the_server_follows_the_account_s_choice(
    start: Start, mine: Moody
) -> None:
    async with start(embedder="none", job_workers=0) as server, server.account("Ada") as ada:
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT], indexed=False)
        await provide(ada, mine)
        await choose(ada, "mine/words")
        settings = server.parts.settings
    settings.resolved_root_key_file.write_bytes(base64.b64encode(b"r" * 32))  # the key of `ROOT`
    database = Database(settings.resolved_database_url)
    try:
        said = await reindex_user(database, settings, name="Ada", password=PASSWORD, report=quietly)
        assert said == f"The index {OWN} has 1 point of Ada."
        async with database.read() as session:
            (state,) = await session.scalars(select(IndexState))
            assert (state.collection, state.state, state.is_chosen) == (OWN, "ready", True)
    finally:
        await database.dispose()


WORDS = "searched by words only: the embedding model did not respond"
BARRED = "sk-another-another-another"


class Changeable(OpenAIServer):
    """Returns vectors of any length, accepts one key, and can be silent."""

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
async def changeable() -> AsyncGenerator[Changeable]:
    async with Changeable() as model:
        yield model


async def long_chat(server: Running, account: Account, model: OpenAIServer) -> tuple[str, str]:
    """Make a chat with a fact outside of the history. Return its id and the provider's path."""
    rain = [f"It rains on roof {n}." for n in range(30)]
    chat, path = await moved(server, account, model, [FACT, *rain])
    await set_chat(account, chat, budgets={"history": 100})
    assert await notes(account) == []
    return chat, path


async def ask(account: Account, words: str) -> list[str]:
    """Search for the fact. Return the notes of the search."""
    answer = ok(await account.client.get(f"{API}/search", params={"q": words}))
    assert FACT in str(answer["items"])
    said: list[str] = answer["notes"]
    return said


async def are_all_there(server: Running, account: Account) -> bool:
    ids = await lines(server, UUID(account.user["id"]))
    return set(await (await own_index(server)).dense_vectors(ids)) == set(ids)


@pytest.mark.parametrize("fault", ["revoked", "silent"])
async def test_a_turn_streams_while_the_key_is_refused_or_nothing_is_answered_until_it_is_mended(
    start: Start, changeable: Changeable, fault: str
) -> None:
    settings: dict[str, Any] = {"embedder": "none"}
    if fault == "silent":
        settings["embedding_timeout_seconds"] = 0.3
    async with start(**settings) as server, server.account("Ada") as ada:
        (chat, path), silence = await long_chat(server, ada, changeable), Gate()
        asked = len(changeable.requests)
        if fault == "silent":
            changeable.silence = silence
        else:
            changeable.key = BARRED
        reply = await take_turn(ada, chat, text="Where is the astrolabe, under which bell?")
        assert (await context_of(ada, reply))["notes"] == [WORDS]
        assert "own_model_unavailable" in await problems(ada)
        if fault == "revoked":
            await until(lambda: is_delayed(ada))
        for number in range(4):
            assert await ask(ada, f"Is the chapel's bell of {number} tons?") == [WORDS]
        # After three failures in a row the model is not asked for a moment.
        assert len(changeable.requests) - asked <= 8

        if fault == "silent":
            changeable.silence = None
            silence.opened.set()
        else:
            ok(await ada.client.patch(path, json={"api_key": BARRED}))
        await retried(server, ada)
        assert await are_all_there(server, ada)
        if fault == "revoked":
            assert (await ask(ada, "Which chapel has a bell?"), await problems(ada)) == ([], [])


async def test_a_turn_asks_for_one_vector_and_a_model_is_measured_once(
    start: Start, changeable: Changeable
) -> None:
    async with start(embedder="none") as server, server.account("Ada") as ada:
        chat, _ = await long_chat(server, ada, changeable)
        asked = len(changeable.requests)
        line = "Where is the astrolabe, under which bell?"
        await take_turn(ada, chat, text=line)
        await settled(server)
        texts = [each.body["input"] for each in changeable.requests[asked:]]
        # The first request has the query, the others have the line and the reply.
        assert [some for some in texts if some == [line]] == [[line]]
        assert len(texts) <= 3
        ok(await ada.client.delete(f"{API}/sessions/current"), 204)
        async with server.signed_in("Ada") as again:
            asked = len(changeable.requests)
            assert await ask(again, "Which chapel has a bell?") == []
            assert len(changeable.requests) == asked + 1


@pytest.mark.parametrize(("before", "after"), [(256, 384), (200, 100)])
async def test_vectors_of_another_length_are_never_compared_and_a_rebuild_takes_them_up(
    start: Start, changeable: Changeable, before: int, after: int
) -> None:
    changeable.length = before
    async with start(embedder="none") as server, server.account("Ada") as ada:
        chat, _ = await long_chat(server, ada, changeable)
    changeable.length = after
    async with start(embedder="none") as server, server.signed_in("Ada") as ada:
        assert await notes(ada) == [WORDS]
        assert await problems(ada) == ["own_model_unavailable"]
        await tell(server, ada, chat, ["A gannet dives."], indexed=False)
        await until(lambda: is_delayed(ada))

        # With the old length, the missing vectors are added.
        changeable.length = before
        await retried(server, ada)
        assert (await notes(ada), await problems(ada)) == ([], [])
        assert await are_all_there(server, ada)

    changeable.length = after
    async with start(embedder="none") as server, server.signed_in("Ada") as ada:
        assert await notes(ada) == [WORDS]
        asked = len(changeable.requests)
        ok(await ada.client.post(f"{API}/memory/rebuild"), 202)
        await settled(server)
        assert FACT in str([each.body for each in changeable.requests[asked:]])
        assert (await notes(ada), await problems(ada)) == ([], [])
        assert (await status(ada))["model"]["dimension"] == (384 if after == 384 else 256)
        assert await jobs_left(server) == []


def folder_of_own(data: Path) -> Path:
    (path,) = (data / "index").glob(f"{OWN}.[0-9]*")
    return path


@pytest.mark.parametrize("loss", ["deleted", "damaged"])
async def test_a_start_makes_and_fills_again_what_was_lost_and_disturbs_no_other_user(
    start: Start, tmp_path: Path, mine: Moody, loss: str
) -> None:
    async with (
        start(embedder="none") as server,
        server.account("Ada") as ada,
        server.account("Ben") as ben,
    ):
        for account in (ada, ben):
            chat = str((await account.new_chat())["id"])
            await tell(server, account, chat, [FACT, "I see."])
        await provide(ada, mine)
        await choose(ada, "mine/words")
        await settled(server)
        stored = await stored_rows(server, UUID(ada.user["id"]))
    path = folder_of_own(tmp_path)
    if loss == "deleted":
        shutil.rmtree(path)
        found = await told(server.parts.settings)
        said = f"accounts with their own model: 1; lost: {OWN}"
        assert (found.state, found.detail) == ("fault", said)
    else:
        (path / "edge_config.json").write_text("{")
    async with start(embedder="none") as server:
        async with server.signed_in("Ben") as ben:
            assert (await notes(ben), (await status(ben))["move"]) == ([], None)
            assert await problems(ben) == ["no_model"]
        async with server.signed_in("Ada") as ada:
            ok(await ada.client.get(f"{API}/me"))
            await settled(server)
            assert (await notes(ada), await problems(ada)) == ([], [])
            assert await rows_in(await own_index(server), ada) == stored
    assert (await told(server.parts.settings)).state == "ok"


async def test_a_lost_collection_is_filled_while_the_model_is_down(
    start: Start, tmp_path: Path, mine: Moody
) -> None:
    async with start(embedder="none") as server, server.account("Ada") as ada:
        await moved(server, ada, mine, [FACT, "I see."])
        stored = await stored_rows(server, UUID(ada.user["id"]))
    shutil.rmtree(folder_of_own(tmp_path))
    mine.refusal = error(500)
    async with start(embedder="none") as server, server.signed_in("Ada") as ada:
        ok(await ada.client.get(f"{API}/me"))
        await settled(server)
        assert await rows_in(await own_index(server), ada) == stored
        assert await notes(ada) == ["searched by words only: the embedding model did not respond"]
        mine.refusal = None
        assert (await notes(ada), await problems(ada)) == ([], [])


async def test_the_nightly_comparison_completes_an_older_collection(
    start: Start, tmp_path: Path, mine: Moody
) -> None:
    async with start(embedder="none") as server, server.account("Ada") as ada:
        chat, _ = await moved(server, ada, mine, [FACT, "I see."])
    shutil.copytree(folder_of_own(tmp_path), tmp_path / "copy")
    async with start(embedder="none") as server, server.signed_in("Ada") as ada:
        await tell(server, ada, chat, ["A gannet dives."])
        assert (await search(ada, "gannet"))[0]["text"] == "A gannet dives."
    there = folder_of_own(tmp_path)
    shutil.rmtree(there)
    shutil.copytree(tmp_path / "copy", there)
    async with start(embedder="none") as server, server.signed_in("Ada") as ada:
        assert await notes(ada) == []
        await reconcile(server)
        await settled(server)
        assert (await search(ada, "gannet"))[0]["text"] == "A gannet dives."
        stored = await stored_rows(server, UUID(ada.user["id"]))
        assert await rows_in(await own_index(server), ada) == stored


@pytest.mark.parametrize("whose", ["Ada", None])
async def test_reindexing_outside_of_the_server_fills_what_was_lost(
    start: Start, tmp_path: Path, mine: Moody, whose: str | None
) -> None:
    async with start(embedder="none") as server, server.account("Ada") as ada:
        ok(await ada.client.patch(f"{API}/me", json={"key_mode": "managed"}))
        await moved(server, ada, mine, [FACT])
    settings = server.parts.settings
    settings.resolved_root_key_file.write_bytes(base64.b64encode(b"r" * 32))  # the key of `ROOT`
    shutil.rmtree(folder_of_own(tmp_path))
    database = Database(settings.resolved_database_url)
    try:
        if whose is None:
            said = await reindex_all_users(database, settings, quietly)
            assert said == "1 of 1 accounts are indexed."
        else:
            said = await reindex_user(
                database, settings, name=whose, password=PASSWORD, report=quietly
            )
            assert said == f"The index {OWN} has 1 point of Ada."
    finally:
        await database.dispose()
    async with start(embedder="none") as server, server.signed_in("Ada") as ada:
        assert (await notes(ada), await problems(ada)) == ([], [])
        # The stored vectors are used again, so the model is not asked a second time.
        assert sum(FACT in str(each.body) for each in mine.requests) == 1
