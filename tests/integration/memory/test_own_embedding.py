"""An embedding model of an account's own: its texts move there and back, and nobody else's do."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from backend.database.engine import Database
from backend.memory.indexing.outbox import REINDEX
from backend.memory.models import IndexState
from backend.operations.maintenance import reindex_user
from tests.fakes.openai_server import API_KEY, error
from tests.support.memory import (
    API,
    Moody,
    embedding,
    give_up,
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
from tests.support.server import PASSWORD, Account, ok, problem
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.mark.every_database
async def test_only_their_texts_move_to_the_account_s_model_and_back(
    database_url: str, tmp_path: Path, usual: Moody, mine: Moody
) -> None:
    async with (
        remembering(database_url, tmp_path, **embedding(usual)) as server,
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

        # A query of each goes to the model of each, and new texts do.
        before = queries(usual), queries(mine)
        assert (await notes(ada), await notes(ben)) == ([], [])
        assert (queries(usual), queries(mine)) == (before[0] + 1, before[1] + 1)
        chat_id = str((await ada.new_chat())["id"])
        await tell(server, ada, chat_id, ["A puffin lands."])
        assert "puffin" in str(mine.requests[-1].body)
        assert not [each for each in usual.requests if "puffin" in str(each.body)]
        assert len(await search(ada, "puffin")) >= 1

        # At night nobody's points are taken for a stranger's, and those left behind go.
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
    database_url: str, tmp_path: Path, usual: Moody, mine: Moody
) -> None:
    async with (
        remembering(database_url, tmp_path, **embedding(usual)) as server,
        server.account("Ada") as ada,
    ):
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT, "I see."])
        path = await provide(ada, mine)
        mine.refusal = error(500)
        await choose(ada, "mine/words")

        async def is_told() -> bool:
            return await problems(ada) == ["own_model_unavailable", "delayed"]

        await until(is_told)
        # Until it has answered once, the texts stay where they are.
        assert (await notes(ada), (await status(ada))["model"]["is_own"]) == ([], False)
        mine.refusal = None
        await retried(server, ada)
        assert (await notes(ada), await problems(ada)) == ([], [])

        words = "searched by words only: the embedding model did not respond"
        mine.script(error(500))
        answer = ok(await ada.client.get(f"{API}/search", params={"q": "the chapel's bell"}))
        assert (FACT in str(answer["items"]), answer["notes"]) == (True, [words])
        assert await problems(ada) == ["own_model_unavailable"]

        # Without its provider nothing else embeds what was given to it.
        asked = len(usual.requests)
        ok(await ada.client.delete(path), 204)
        gone = "searched by words only: the account's embedding model does not exist"
        assert await notes(ada) == [gone]
        await settled(server)
        await tell(server, ada, chat, ["A gannet dives."])
        assert (await search(ada, "gannet"))[0]["text"] == "A gannet dives."
        assert (await problems(ada), len(usual.requests)) == (["own_model_gone"], asked)

        # Another one of that name takes it up again, with vectors for what came meanwhile.
        await provide(ada, mine)
        await settled(server)
        assert (await notes(ada), await problems(ada)) == ([], [])
        ids = await lines(server, UUID(ada.user["id"]))
        assert set(await (await own_index(server)).dense_vectors(ids)) == set(ids)


@pytest.mark.every_database
async def test_a_move_that_gave_up_is_forgotten_once_the_texts_are_where_they_belong(
    database_url: str, tmp_path: Path, usual: Moody, mine: Moody
) -> None:
    async with (
        remembering(database_url, tmp_path, **embedding(usual)) as server,
        server.account("Ada") as ada,
    ):
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
    database_url: str, tmp_path: Path, usual: Moody, mine: Moody
) -> None:
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.account("Ada") as ada,
    ):
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT, "I see."])
        path = await provide(ada, mine)
        await choose(ada, "mine/words")
        await settled(server)
        index, owned = await own_index(server), UUID(ada.user["id"])
        ids = await lines(server, owned)
        before = await index.dense_vectors(ids)
        assert set(before) == set(ids)

        usual.common = 0.5  # whose vectors are others
        usual.refusal = error(500)
        ok(await ada.client.patch(path, json={"base_url": usual.url, "api_key": API_KEY}))
        gone = "searched by words only: the account's embedding model does not exist"
        assert await notes(ada) == [gone]
        assert queries(usual) == 0
        await until(lambda: delayed(ada))
        usual.refusal = None
        await retried(server, ada)
        assert await notes(ada) == []
        after = await index.dense_vectors(ids)
        assert all(bool((before[each] != after[each]).any()) for each in ids)
        assert not (await status(ada))["move"]


async def delayed(account: Account) -> bool:
    return "delayed" in await problems(account)


async def test_nothing_that_can_t_embed_is_taken_and_a_chat_has_no_such_model(
    database_url: str, tmp_path: Path, mine: Moody
) -> None:
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
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
    database_url: str, tmp_path: Path, mine: Moody
) -> None:
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.account("Ada") as ada,
    ):
        await moved(server, ada, mine, [FACT])
    async with remembering(database_url, tmp_path, embedder="none") as server:
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


async def test_where_providers_may_be_holds_for_embeddings(
    database_url: str, tmp_path: Path, mine: Moody
) -> None:
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.account("Ada") as ada,
    ):
        await moved(server, ada, mine, [FACT])
    asked = len(mine.requests)
    barred: dict[str, Any] = {"embedder": "none", "provider_networks": ("10.0.0.0/8",)}
    async with (
        remembering(database_url, tmp_path, **barred) as server,
        server.signed_in("Ada") as ada,
    ):
        assert await notes(ada) == ["searched by words only: the embedding model did not respond"]
        assert (await problems(ada), len(mine.requests)) == (["own_model_unavailable"], asked)


@pytest.mark.parametrize("mode", ["managed", "per_job", "sealed"])
async def test_its_key_is_used_as_the_key_mode_allows(
    database_url: str, tmp_path: Path, mine: Moody, mode: str
) -> None:
    async with remembering(database_url, tmp_path, embedder="none") as server:
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
        # What is noted while nobody is there waits for the key, but where the server has it.
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
    database_url: str, tmp_path: Path, mine: Moody
) -> None:
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.account("Ada") as ada,
    ):
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
    database_url: str, tmp_path: Path, mine: Moody
) -> None:
    async with (
        remembering(database_url, tmp_path, embedder="none", job_workers=0) as server,
        server.account("Ada") as ada,
    ):
        chat = str((await ada.new_chat())["id"])
        await tell(server, ada, chat, [FACT], indexed=False)
        await provide(ada, mine)
        await choose(ada, "mine/words")
        settings = server.parts.settings
    settings.resolved_root_key_file.write_bytes(base64.b64encode(b"r" * 32))  # as `ROOT`
    database = Database(settings.resolved_database_url)
    try:
        said = await reindex_user(database, settings, name="Ada", password=PASSWORD, report=quietly)
        assert said == f"The index {OWN} has 2 points of Ada."
        async with database.read() as session:
            (state,) = await session.scalars(select(IndexState))
            assert (state.collection, state.state, state.is_chosen) == (OWN, "ready", True)
    finally:
        await database.dispose()
