"""Rows that models have written come back with an archive."""

from __future__ import annotations

import asyncio
import io
import shutil
from pathlib import Path

import pytest

from backend.transfer.archives.comparison import compare_archives
from tests.support.archived_rows import add_work
from tests.support.archives import make_archive
from tests.support.full_account import fill_account
from tests.support.importing import bring
from tests.support.server import running

pytestmark = [pytest.mark.anyio]


@pytest.mark.every_database
async def test_work_of_models_comes_back(
    database_url: str, sqlite_template: Path, tmp_path: Path
) -> None:
    async with running(database_url, tmp_path / "one") as here, here.account("Ada") as ada:
        full = await fill_account(ada)
        await add_work(here, ada, full)
        archive = await make_archive(ada)
    file = await asyncio.to_thread(shutil.copy, sqlite_template, tmp_path / "two.sqlite3")
    async with (
        running(f"sqlite+aiosqlite:///{file}", tmp_path / "two") as there,
        there.account("Bea") as bea,
    ):
        _, results = await bring(bea, archive)
        assert {each["outcome"] for each in results.values()} == {"imported"}
        again = await make_archive(bea)
        found = compare_archives(io.BytesIO(archive), io.BytesIO(again))
        assert [each.render() for each in found] == []
        [campaign] = (await bea.get("/campaigns"))["items"]
        [proposal] = (await bea.get(f"/campaigns/{campaign['id']}/proposals"))["items"]
        entities = await bea.get(f"/campaigns/{campaign['id']}/entities")
        assert proposal["target"]["id"] in {each["id"] for each in entities["items"]}
        [chat] = [
            each for each in (await bea.get("/chats"))["items"] if each["campaign_id"] is not None
        ]
        assert len(await bea.messages(chat["id"])) > 3
