"""Tests of the reliability harness with an index on a Qdrant server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from sqlalchemy import delete

from backend.memory.index.edge import open_edge
from backend.memory.models import IndexState
from scripts.torture.installation import Installation
from scripts.torture.model import TaggedModel
from scripts.torture.store_checks import check_index
from tests.fakes.qdrant_cluster import QdrantNode
from tests.support.memory import Start, tell
from tests.support.server import Running

pytestmark = pytest.mark.anyio

LINES = ["The lamp is out.", "Who has the key?", "The harbour master."]
PREFIX = "torture-"


@pytest.fixture
async def qdrant() -> AsyncGenerator[QdrantNode]:
    async with QdrantNode() as running:
        yield running


@pytest.fixture
def on_server(qdrant: QdrantNode) -> dict[str, str]:
    return {"qdrant_url": qdrant.url, "qdrant_protocol": "http", "qdrant_collection_prefix": PREFIX}


@pytest.fixture
async def server(start: Start, on_server: dict[str, str]) -> AsyncGenerator[Running]:
    """A Talekeeper with an indexed chat."""
    async with start(embedder="none", **on_server) as running, running.account("Ada") as ada:
        chat = await ada.new_chat()
        await tell(running, ada, str(chat["id"]), LINES)
        yield running


@pytest.fixture
def made(tmp_path: Path, on_server: dict[str, str]) -> Installation:
    """The account and the chat as the harness describes them."""
    return Installation("sqlite", "", tmp_path, TaggedModel("canary"), [], [], on_server, "")


async def test_the_check_reads_the_points_on_the_server(
    server: Running, made: Installation, qdrant: QdrantNode
) -> None:
    found, count = await check_index(server.parts.database, made, {})
    assert found == []
    (name,) = qdrant.collections
    points = qdrant.store.count(name, None)
    assert points >= len(LINES)
    assert count == {"rows": len(LINES), "points": points, "collections": 1}


async def test_points_that_are_lost_on_the_server_are_found_though_a_folder_has_them(
    server: Running, made: Installation, qdrant: QdrantNode
) -> None:
    name = server.parts.memory.collections.current.name
    await (await open_edge(made.index_folder, name, None)).aclose()
    qdrant.lose(PREFIX + name)
    found, count = await check_index(server.parts.database, made, {})
    assert [each.split(": ")[2] for each in found] == [f"3 are not in {name}, 0 are left in it"]
    assert count["points"] == 0


async def test_a_check_that_compared_no_row_fails(server: Running, made: Installation) -> None:
    async with server.parts.database.write() as session:
        await session.execute(delete(IndexState))
    found, _ = await check_index(server.parts.database, made, {})
    assert len(found) == 2
    assert "3 rows" in found[0]
    assert found[0].endswith("are in no collection")
    assert found[1] == "index: no row was compared with its points"
