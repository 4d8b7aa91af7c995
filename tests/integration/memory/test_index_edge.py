"""Tests of Qdrant Edge in a folder: files, engine processes and faults."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import msgspec
import numpy as np
import pytest
import qdrant_edge as engine  # noqa: TID251  to look at what it keeps

from backend.core.operating_system import helper_command
from backend.memory.index import edge
from backend.memory.index.edge import _PROGRAM, EdgeIndex, EngineProcess, open_edge
from backend.memory.index.edge_engine import FORMAT
from backend.memory.index.protocol import IndexUnavailableError, Payload, Point, point_id
from backend.memory.search.terms import build_sparse_vector, count_terms
from backend.vault.blinding import Blinder
from backend.vault.sealing import Sealer
from scripts.torture.canary import disguises, find_in_folder
from tests.support.points import DIMENSION, point, query, scope, terms, unit
from tests.support.waiting import until, until_true

pytestmark = pytest.mark.anyio

OWNER, CHAT = uuid4(), uuid4()
WORD = "zephyrquill"

WRITER = """
import asyncio, sys
from pathlib import Path
from uuid import UUID
from backend.memory.index import edge
from backend.memory.index.edge import open_edge
from tests.support.points import DIMENSION, point

async def main() -> None:
    index = await open_edge(Path(sys.argv[1]), "tales", DIMENSION)
    owner, chat = UUID(sys.argv[2]), UUID(sys.argv[3])
    kept, gone = UUID(int=0), UUID(int=1)
    await index.upsert([point(owner, chat, source=UUID(int=i)) for i in range(100)])
    await index.delete_sources(owner, [gone])
    print("written", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def start_writer(folder: Path) -> subprocess.Popen[str]:
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(OWNER), str(CHAT)],
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    process.stdout.close()
    return process


async def test_the_nearest_of_many_are_found_as_exactly_once_they_are_put_in_order(
    tmp_path: Path,
) -> None:
    size, count = 1024, 3000
    drawn = np.random.default_rng(7).standard_normal((count + 5, size), dtype=np.float32)
    vectors = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    ids = [uuid4() for _ in range(count)]
    index = await open_edge(tmp_path, "tales", size)
    await index.upsert(
        [
            point(OWNER, CHAT, source=source, dense={"dense": vector})
            for source, vector in zip(ids, vectors, strict=False)
        ]
    )
    await index.aclose()

    async with aclosing(await open_edge(tmp_path, "tales", size)) as index:
        found = await index.search(
            [query(vector, scope(OWNER, CHAT), limit=100) for vector in vectors[count:]]
        )

    assert list(tmp_path.rglob("quantized.data"))  # noqa: ASYNC240  nothing waits
    for hits, vector in zip(found, vectors[count:], strict=True):
        scores = vectors[:count] @ vector
        best = np.argsort(-scores)[:100]
        assert [hit.payload.source_id for hit in hits] == [ids[place] for place in best]
        assert [hit.score for hit in hits] == pytest.approx(scores[best], abs=1e-6)


async def test_a_file_of_the_engine_s_log_may_go_while_it_is_synced(tmp_path: Path) -> None:
    index = await open_edge(tmp_path, "tales", DIMENSION)
    gone = next(tmp_path.rglob("wal")) / "tmp-open-9"  # noqa: ASYNC240  nothing waits
    gone.symlink_to(tmp_path / "nowhere")  # it is listed, but cannot be opened
    try:
        await index.upsert([point(OWNER, CHAT)])
        assert await index.count(OWNER) == 1
    finally:
        gone.unlink()
        await index.aclose()


async def test_stored_points_survive_a_killed_process(tmp_path: Path) -> None:
    writer = start_writer(tmp_path)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    async with aclosing(await open_edge(tmp_path, "tales", DIMENSION)) as index:
        assert not index.is_new
        assert await index.count(OWNER) == 99
        [hits] = await index.search([query(unit(1), scope(OWNER, CHAT), limit=200)])
        assert {hit.payload.source_id for hit in hits} == {
            UUID(int=number) for number in range(100) if number != 1
        }


async def test_a_folder_that_another_process_has_open_is_refused_and_left_alone(
    tmp_path: Path,
) -> None:
    writer = start_writer(tmp_path)
    try:
        with pytest.raises(IndexUnavailableError, match=r"Another process.*TALEKEEPER_QDRANT_URL"):
            await open_edge(tmp_path, "tales", DIMENSION)
    finally:
        writer.kill()
        writer.wait()
    index = await open_edge(tmp_path, "tales", DIMENSION)
    await index.aclose()
    assert not index.is_new


async def made(folder: Path) -> None:
    index = await open_edge(folder, "tales", DIMENSION)
    await index.upsert([point(OWNER, CHAT) for _ in range(3)])
    await index.aclose()


def damage(folder: Path, what: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and what in path.parts:
            path.write_bytes(os.urandom(100))


@pytest.mark.parametrize("what", ["edge_config.json", "segments", "wal"])
async def test_a_damaged_folder_is_created_again(tmp_path: Path, what: str) -> None:
    await made(tmp_path)
    damage(tmp_path, what)
    async with aclosing(await open_edge(tmp_path, "tales", DIMENSION)) as index:
        assert index.is_new
        assert await index.count() == 0
        await index.upsert([point(OWNER, CHAT)])
        assert await index.count() == 1


async def test_a_folder_of_another_dimension_or_format_is_created_again(tmp_path: Path) -> None:
    await made(tmp_path)
    (tmp_path / "tales.0").mkdir()
    index = await open_edge(tmp_path, "tales", DIMENSION * 2)
    await index.aclose()
    assert index.is_new
    assert not (tmp_path / "tales.0").exists()


ENGINE_COMMAND = b"".join(os.fsencode(word) + b"\0" for word in helper_command(_PROGRAM))


def list_engines() -> list[int]:
    children, found = list[int](), list[int]()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            children += map(int, (thread / "children").read_text().split())
    for pid in children:
        with suppress(FileNotFoundError, ProcessLookupError):
            if read_command(pid) == ENGINE_COMMAND:
                found.append(pid)
    return found


def read_command(pid: int) -> bytes:
    """Return the command line of a process, or nothing if it is dead.

    A process that was just started has none for a moment, after its parent is told that it runs.
    """
    process = Path(f"/proc/{pid}")
    while not (command := (process / "cmdline").read_bytes()):
        if (process / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            break
    return command


def list_mapped_files(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


async def test_an_engine_does_without_what_only_the_server_needs(tmp_path: Path) -> None:
    async with aclosing(await open_edge(tmp_path, "tales", DIMENSION)) as index:
        await index.upsert([point(OWNER, CHAT)])
        asked = [query(unit(1), scope(OWNER, CHAT)), query(terms({3: 1}), scope(OWNER, CHAT))]
        await index.search(asked)
        [engine_process] = list_engines()
        mapped = list_mapped_files(engine_process)
    assert "qdrant_edge" in mapped
    for library in ("numpy", "msgspec", "sqlalchemy"):
        assert library not in mapped


async def test_an_index_takes_the_engine_that_was_prepared(tmp_path: Path) -> None:
    await EngineProcess.prepare()
    [prepared] = list_engines()
    index = await open_edge(tmp_path, "tales", DIMENSION)
    assert list_engines() == [prepared]
    other = await open_edge(tmp_path, "others", DIMENSION)
    assert len(list_engines()) == 2
    await index.aclose()
    await other.aclose()

    await EngineProcess.prepare()
    [killed] = list_engines()
    os.kill(killed, signal.SIGKILL)

    async def is_gone() -> bool:
        return EngineProcess._prepared is None or EngineProcess._prepared.is_gone

    await until(is_gone)
    index = await open_edge(tmp_path, "tales", DIMENSION)
    await index.ping()
    await index.aclose()


async def test_an_engine_that_is_killed_is_started_again_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    await made(tmp_path)
    index = await open_edge(tmp_path, "tales", DIMENSION)
    asked = [query(unit(1), scope(OWNER, CHAT))]
    try:
        before = await index.search(asked)
        [engine_process] = list_engines()
        os.kill(engine_process, signal.SIGSTOP)  # the search is still running
        search = asyncio.create_task(index.search(asked))
        await asyncio.sleep(0.01)
        os.kill(engine_process, signal.SIGKILL)
        with pytest.raises(IndexUnavailableError, match="in the data folder failed"):
            await search
        index._starts._next_start = 0.0
        found = await asyncio.gather(index.search(asked), index.search(asked))
        assert list(found) == [before] * 2
        assert len(list_engines()) == 1
        assert not index.is_new
    finally:
        await index.aclose()
    assert list_engines() == []


async def test_an_engine_that_keeps_ending_is_not_started_without_end(tmp_path: Path) -> None:
    await made(tmp_path)
    index = await open_edge(tmp_path, "tales", DIMENSION)
    index._starts._next_start = float("inf")
    [engine_process] = list_engines()
    os.kill(engine_process, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(IndexUnavailableError, match="in the data folder failed"):
            await index.ping()
    assert list_engines() == []
    await index.aclose()


async def test_an_index_damaged_in_use_is_not_replaced_silently(tmp_path: Path) -> None:
    await made(tmp_path)
    index = await open_edge(tmp_path, "tales", DIMENSION)
    [engine_process] = list_engines()
    os.kill(engine_process, signal.SIGKILL)
    damage(tmp_path, "edge_config.json")
    with pytest.raises(IndexUnavailableError, match="in the data folder failed"):
        await index.ping()
    index._starts._next_start = 0.0
    with pytest.raises(IndexUnavailableError, match=r"damaged\. Restart Talekeeper"):
        await index.ping()
    await index.aclose()
    index = await open_edge(tmp_path, "tales", DIMENSION)
    await index.aclose()
    assert index.is_new


async def test_a_cancelled_write_is_completed(tmp_path: Path) -> None:
    index = await open_edge(tmp_path, "tales", DIMENSION)
    item = point(OWNER, CHAT)
    await index.upsert([item])
    asked = [query(unit(1), scope(OWNER, CHAT))]
    assert [hit.payload.words for [hit] in await index.search(asked)] == [item.payload.words]
    changed = replace(item, payload=msgspec.structs.replace(item.payload, words=99))
    write = asyncio.create_task(index.upsert([changed]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    await asyncio.gather(*index._writes)
    assert [hit.payload.words for [hit] in await index.search(asked)] == [99]
    await index.aclose()


async def test_one_collection_is_nothing_to_another(tmp_path: Path) -> None:
    await made(tmp_path)
    other = await open_edge(tmp_path, "tales-1", DIMENSION)
    assert await other.count() == 0
    await other.aclose()
    first = await open_edge(tmp_path, "tales", DIMENSION)
    assert await first.count() == 3
    await first.aclose()


async def test_a_folder_that_cannot_be_used_is_opened_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.core.helpers.FIRST_PAUSE_SECONDS", 0.0)
    folder = tmp_path / "index"
    folder.write_text("a file where the folder should be")
    async with aclosing(await open_edge(folder, "tales", DIMENSION)) as index:
        with pytest.raises(IndexUnavailableError, match="in the data folder failed"):
            await index.ping()
        folder.unlink()
        await index.upsert([point(OWNER, CHAT)])
        assert index.is_new
        assert await index.count(OWNER) == 1


async def test_results_are_the_same_after_an_optimization(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    vectors = random.standard_normal((12_000, DIMENSION)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = random.integers(0, 500, (12_000, 5))
    index = await open_edge(tmp_path, "tales", DIMENSION)
    await index.upsert(
        [
            point(
                OWNER,
                CHAT,
                dense={"dense": vector},
                sparse={"sparse": terms(dict.fromkeys(map(int, row), 1.0))},
            )
            for vector, row in zip(vectors, ids, strict=True)
        ]
    )
    within = scope(OWNER, CHAT)
    asked = [query(vectors[0], within), query(terms({3: 1}), within, limit=500)]
    before = await index.search(asked)
    await index.aclose()
    index = await open_edge(tmp_path, "tales", DIMENSION)
    after = await index.search(asked)
    await index.aclose()
    assert {hit.id for hit in after[0]} == {hit.id for hit in before[0]}
    assert {hit.id for hit in after[1]} == {hit.id for hit in before[1]}
    exact = np.sort(vectors @ vectors[0])[::-1][:10]
    assert [hit.score for hit in after[0]] == pytest.approx(list(exact), abs=1e-5)


async def test_payloads_of_who_searches_are_read_before_they_are_found(tmp_path: Path) -> None:
    index, other = await open_edge(tmp_path, "tales", DIMENSION), uuid4()
    hers = [point(OWNER, CHAT, position=number) for number in range(250)]
    his = [point(other, CHAT) for _ in range(5)]
    await index.upsert([*hers, *his])
    await index.search([query(unit(1), scope(OWNER, CHAT), limit=1)])
    kept = index._payloads
    await until_true(lambda: len(kept.get(each.id.int for each in hers)) == len(hers))
    assert not kept.get(each.id.int for each in his)

    changed = replace(hers[7], payload=msgspec.structs.replace(hers[7].payload, words=999))
    await index.upsert([changed])
    [hits] = await index.search([query(unit(1), scope(OWNER, CHAT), limit=250)])
    assert {hit.id: hit.payload for hit in hits} == {
        each.id: each.payload for each in (*hers[:7], changed, *hers[8:])
    }
    await index.aclose()


async def test_nothing_of_a_user_who_is_deleted_stays_in_memory(tmp_path: Path) -> None:
    index, other = await open_edge(tmp_path, "tales", DIMENSION), uuid4()
    hers, his = [[point(owner, CHAT) for _ in range(3)] for owner in (OWNER, other)]
    await index.upsert([*hers, *his])
    for owner in (OWNER, other):
        [hits] = await index.search([query(unit(1), scope(owner, CHAT))])
        assert len(hits) == 3
    await index.delete_owner(OWNER)
    kept = index._payloads.get([each.id.int for each in (*hers, *his)])
    assert sorted(kept) == sorted(each.id.int for each in his)
    await index.aclose()


async def make_tale(folder: Path) -> EdgeIndex:
    blinder = Blinder(Sealer(OWNER, {1: bytes(32)}, user_key=os.urandom(32)))
    index = await open_edge(folder, "tales", DIMENSION)
    for number in range(20):
        text = f"{WORD.title()} of {WORD}, the {WORD}s' number {number}: {WORD.upper()}"
        source = uuid4()
        payload = Payload(
            owner_id=OWNER,
            kind="message",
            container_id=CHAT,
            source_id=source,
            scene_id=uuid4(),
            speaker=blinder.term_id(WORD),
            words=9,
            is_question=True,
        )
        turned = blinder.turn(np.stack([unit(1, number)]))[0]
        await index.upsert(
            [
                Point(
                    id=point_id("message", source),
                    payload=payload,
                    dense={"dense": turned},
                    sparse={"sparse": build_sparse_vector(text, blinder)},
                )
            ]
        )
    return index


def without_gaps(folder: Path, copy: Path) -> Path:
    """Return the folder's files without zeros, which are most of the engine's files."""
    for path in folder.rglob("*"):
        if path.is_file():
            name = copy / path.relative_to(folder)
            name.parent.mkdir(parents=True, exist_ok=True)
            name.write_bytes(path.read_bytes().replace(bytes(4096), b""))
    return copy


async def test_a_word_that_was_indexed_is_nowhere_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    index = await make_tale(folder)
    stem = next(iter(count_terms(WORD)))
    needles = [*disguises(WORD), *disguises(stem)]
    assert find_in_folder(needles, without_gaps(folder, tmp_path / "open")) == {}
    await index.aclose()
    closed = without_gaps(folder, tmp_path / "closed")
    assert find_in_folder(needles, closed) == {}
    # This search finds plain text.
    assert find_in_folder(disguises(str(CHAT)), closed)


async def test_payloads_hold_ids_numbers_booleans_and_the_kind(tmp_path: Path) -> None:
    await (await make_tale(tmp_path)).aclose()
    shard = engine.EdgeShard.load(str(tmp_path / f"tales.{FORMAT}"))
    records, following = shard.scroll(engine.ScrollRequest(limit=100, with_payload=True))
    shard.close()
    assert (len(records), following) == (20, None)
    for record in records:
        assert record.payload is not None
        fields = dict(record.payload)
        assert fields.pop("k") == "message"
        texts = [value for value in fields.values() if isinstance(value, str)]
        assert len(texts) == 5
        assert all(str(UUID(text)) == text for text in texts)
        assert {type(value) for value in fields.values()} <= {str, int, bool}


async def test_the_cache_of_searching_users_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "_MAX_PREFETCHES", 2)
    async with aclosing(await open_edge(tmp_path, "tales", DIMENSION)) as index:
        for owner in (uuid4() for _ in range(5)):
            await index.upsert([point(owner, CHAT)])
            [hits] = await index.search([query(unit(1), scope(owner, CHAT))])
            assert len(hits) == 1
        assert len(index._prefetches) == 2
