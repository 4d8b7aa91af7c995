"""The collection of users' own models is lost, damaged, or restored as it once was."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from backend.database.engine import Database
from backend.operations.maintenance import reindex_all_users, reindex_user
from tests.fakes.openai_server import error
from tests.support.memory import (
    API,
    Moody,
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
    moved,
    notes,
    own_index,
    problems,
    provide,
    quietly,
    rows_in,
    status,
    told,
)
from tests.support.server import PASSWORD, ok

pytestmark = pytest.mark.anyio


def folder(data: Path) -> Path:
    """That of the collection."""
    (path,) = (data / "index").glob(f"{OWN}.[0-9]*")
    return path


@pytest.mark.parametrize("loss", ["deleted", "damaged"])
async def test_a_start_makes_and_fills_again_what_was_lost_and_disturbs_no_other_user(
    database_url: str, tmp_path: Path, mine: Moody, loss: str
) -> None:
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
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
    path = folder(tmp_path)
    if loss == "deleted":
        shutil.rmtree(path)
        found = await told(server.parts.settings)
        said = f"accounts with their own model: 1; lost: {OWN}"
        assert (found.state, found.detail) == ("fault", said)
    else:
        (path / "edge_config.json").write_text("{")
    async with remembering(database_url, tmp_path, embedder="none") as server:
        async with server.signed_in("Ben") as ben:
            assert (await notes(ben), (await status(ben))["move"]) == ([], None)
            assert await problems(ben) == ["no_model"]
        async with server.signed_in("Ada") as ada:
            ok(await ada.client.get(f"{API}/me"))
            await settled(server)
            assert (await notes(ada), await problems(ada)) == ([], [])
            assert await rows_in(await own_index(server), ada) == stored
    assert (await told(server.parts.settings)).state == "ok"


async def test_what_was_lost_is_filled_again_though_the_model_does_not_answer(
    database_url: str, tmp_path: Path, mine: Moody
) -> None:
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.account("Ada") as ada,
    ):
        await moved(server, ada, mine, [FACT, "I see."])
        stored = await stored_rows(server, UUID(ada.user["id"]))
    shutil.rmtree(folder(tmp_path))
    mine.refusal = error(500)
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.signed_in("Ada") as ada,
    ):
        ok(await ada.client.get(f"{API}/me"))
        await settled(server)
        assert await rows_in(await own_index(server), ada) == stored
        assert await notes(ada) == ["searched by words only: the embedding model did not respond"]
        mine.refusal = None
        assert (await notes(ada), await problems(ada)) == ([], [])


async def test_what_an_older_copy_of_it_lacks_is_indexed_after_the_night_s_comparison(
    database_url: str, tmp_path: Path, mine: Moody
) -> None:
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.account("Ada") as ada,
    ):
        chat, _ = await moved(server, ada, mine, [FACT, "I see."])
    shutil.copytree(folder(tmp_path), tmp_path / "copy")
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.signed_in("Ada") as ada,
    ):
        await tell(server, ada, chat, ["A gannet dives."])
        assert (await search(ada, "gannet"))[0]["text"] == "A gannet dives."
    there = folder(tmp_path)
    shutil.rmtree(there)
    shutil.copytree(tmp_path / "copy", there)
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.signed_in("Ada") as ada,
    ):
        assert await notes(ada) == []
        await reconcile(server)
        await settled(server)
        assert (await search(ada, "gannet"))[0]["text"] == "A gannet dives."
        stored = await stored_rows(server, UUID(ada.user["id"]))
        assert await rows_in(await own_index(server), ada) == stored


@pytest.mark.parametrize("whose", ["Ada", None])
async def test_reindexing_outside_of_the_server_fills_what_was_lost(
    database_url: str, tmp_path: Path, mine: Moody, whose: str | None
) -> None:
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.account("Ada") as ada,
    ):
        ok(await ada.client.patch(f"{API}/me", json={"key_mode": "managed"}))
        await moved(server, ada, mine, [FACT])
    settings = server.parts.settings
    settings.resolved_root_key_file.write_bytes(base64.b64encode(b"r" * 32))  # as `ROOT`
    shutil.rmtree(folder(tmp_path))
    database = Database(settings.resolved_database_url)
    try:
        if whose is None:
            said = await reindex_all_users(database, settings, quietly)
            assert said == "1 of 1 accounts are indexed."
        else:
            said = await reindex_user(
                database, settings, name=whose, password=PASSWORD, report=quietly
            )
            assert said == f"The index {OWN} has 2 points of Ada."
    finally:
        await database.dispose()
    async with (
        remembering(database_url, tmp_path, embedder="none") as server,
        server.signed_in("Ada") as ada,
    ):
        assert (await notes(ada), await problems(ada)) == ([], [])
        # Its vectors were kept: nobody is asked for them a second time.
        assert sum(FACT in str(each.body) for each in mine.requests) == 1
