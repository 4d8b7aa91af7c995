#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""How fast memory is searched and filled, and what it takes in memory and on disk.

    scripts/bench_memory.py [--model-path DIR] [--data DIR] [--points N] [--messages N] [--json]

One user has a chat of 10,000 lines out of the transcripts of CRD3, indexed by the job that a server
runs; nine others fill the index up to 100,000 points, made up and written straight into it. What is
searched for are lines of the transcripts, as a turn would ask for them: `MemorySearch.find`, then
`recall`. A lorebook of 1,000 entries comes in over HTTP.

Beside it, in the same run and over the same vectors: `qdrant-client`'s local mode (a peer), one
product of the user's vectors with the query, with the best 100 taken out (the floor of a query),
and a search's whole batch in numpy, with BM25 over the same lines (the floor of the engine).

Everything is in a temporary folder: SQLite, Qdrant Edge, a MiniLM on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import uvloop
from numpy.typing import NDArray

from backend.chats.index_source import MessageSource
from backend.core.logs import configure_logging
from backend.database.base import now
from backend.database.engine import Database
from backend.database.migrate import upgrade
from backend.memory.embedding.cached import CachedEmbedder
from backend.memory.embedding.local import LocalEmbedder
from backend.memory.embedding.protocol import Floats
from backend.memory.index.edge import EdgeIndex, open_edge
from backend.memory.index.protocol import Hit, Query, Scope, ScopePart
from backend.memory.indexing import points
from backend.memory.runtime import MemoryRuntime, index_folder
from backend.memory.search import query as parsed_query
from backend.memory.search.request import SearchRequest
from backend.memory.search.search import MemorySearch
from backend.memory.search.terms import sparse_vector
from backend.settings import Settings
from scripts._bench import (
    DIMENSION,
    SHARED,
    Account,
    Watch,
    client,
    import_book,
    index_container,
    made_up_book,
    make_chat,
    open_account,
    p50_p95,
    questions,
    serving,
    stranger_id,
    strangers_vectors,
    utterances,
    write_strangers,
)
from scripts._processes import resident_mib

HITS = 100
PEER_QUERIES = 20


@dataclass(frozen=True)
class Row:
    """One line of the table. `p95` is None where there is one figure alone."""

    what: str
    value: float
    p95: float | None
    unit: str
    note: str = ""


@dataclass(frozen=True)
class Searched:
    """What is searched for, and where; `spoken` are the lines of the chat."""

    account: Account
    asks: Sequence[SearchRequest]
    spoken: Sequence[tuple[str, str]]

    @property
    def house(self) -> MemoryRuntime:
        """Memory, put together."""
        return self.account.parts.memory


def distinct(lines: Sequence[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """`count` lines of which as few as can be are equal: equal ones are embedded once.

    Where the lines are not enough, two that follow each other make a further one, then three.
    """
    found = list(lines)
    size = 2
    while len(found) < count:
        groups = [lines[start : start + size] for start in range(len(lines) - size + 1)]
        found += [(group[0][0], " ".join(text for _, text in group)) for group in groups]
        size += 1
    return found[:count]


def asks_of(
    lines: Sequence[tuple[str, str]], chat_id: UUID, *, messages: int, queries: int
) -> list[SearchRequest]:
    """What turns would ask, whose history begins behind all of the messages."""
    cast = sorted({name for name, _ in lines if " and " not in name})[:8]
    return [
        SearchRequest(
            text=text,
            context=lines[number % len(lines)][1],
            names=cast,
            parts=[ScopePart(containers=[chat_id], before_position=messages)],
            kinds=["message"],
            now=now(),
        )
        for number, text in enumerate(questions(lines, queries))
    ]


async def timed(
    work: Callable[[SearchRequest], Awaitable[object]], asks: Sequence[SearchRequest]
) -> tuple[list[float], list[Any]]:
    """Milliseconds that each took, and what came of it."""
    times: list[float] = []
    results: list[Any] = []
    for ask in asks:
        began = time.perf_counter()
        results.append(await work(ask))
        times.append((time.perf_counter() - began) * 1000)
    return times, results


def row(what: str, times: Sequence[float], note: str = "") -> Row:
    """A line of milliseconds."""
    return Row(what, *p50_p95(times), "ms", note)


async def bench_indexing(account: Account, chat_id: UUID, messages: int) -> list[Row]:
    """The job that indexes a chat, and where its time goes."""
    parts: dict[str, tuple[tuple[Any, str], ...]] = {
        "reading rows": ((MessageSource, "rows"),),
        "embedding": ((LocalEmbedder, "embed"),),
        "cache of vectors": ((CachedEmbedder, "embed_documents"),),
        "terms": ((points, "sparse_vector"),),
        "writes to the engine": ((EdgeIndex, "upsert"), (EdgeIndex, "delete_sources")),
    }
    with Watch(*(each for some in parts.values() for each in some)) as watch:
        seconds = await index_container(account, "message", chat_id)
    owned = await account.parts.memory.collections.current.count(account.identity.user_id)
    rows = [
        Row("indexing: messages", round(messages / seconds, 1), None, "1/s", f"{owned:,} points")
    ]
    known = 0.0
    for what, watched in parts.items():
        took = watch.seconds(*watched)
        if what == "cache of vectors":  # the model's time is in it
            took -= watch.seconds(*parts["embedding"])
        known += took
        rows.append(Row(f"  of it: {what}", round(100 * took / seconds, 1), None, "%"))
    rows.append(Row("  of it: the rest", round(100 * (1 - known / seconds), 1), None, "%"))
    return rows


async def bench_search(searched: Searched, *, suffix: str = "") -> list[Row]:
    """The search of a turn: with the query's embedding, without, and by words alone."""
    parts, sealer = searched.account.parts, searched.account.identity.sealer
    house = searched.house
    by_words = MemorySearch(
        house.collections,
        (MessageSource(),),
        embedder=None,
        blinders=house.blinders,
        pool=parts.cpu_pool,
    )

    async def look(ask: SearchRequest, search: MemorySearch) -> int:
        findings = await search.find(sealer, ask)
        if findings.notes:
            raise SystemExit(f"The search did without something: {findings.notes}")
        return len(await search.recall(parts.database, sealer, findings))

    await timed(partial(look, search=by_words), searched.asks[:10])
    rows: list[Row] = []
    with Watch((LocalEmbedder, "embed"), (EdgeIndex, "search"), (MemorySearch, "recall")) as watch:
        for what, search in (
            ("query embedded", house.search),
            # Asked a second time: the vector is at hand.
            ("without embedding", house.search),
            ("by words alone", by_words),
        ):
            times, found = await timed(partial(look, search=search), searched.asks)
            note = f"{np.mean(found):.0f} memories"
            rows.append(row(f"search, {what}{suffix}", times, note))
            for (_, name), calls in watch.calls.items():
                if calls and not suffix:
                    rows.append(row(f"  of it: {name}", [call.seconds * 1000 for call in calls]))
                calls.clear()
    return rows


async def queries_of(searched: Searched) -> list[list[Query]]:
    """The batch that each search sends to the engine; its first query is the dense one."""
    house, sealer = searched.house, searched.account.identity.sealer
    if house.embedder is None:
        raise SystemExit("There is no embedding model.")
    blinder = house.blinders.get(sealer)
    batches: list[list[Query]] = []
    for ask in searched.asks:
        reading = parsed_query.read(ask.text, context=ask.context, cast=ask.names, now=ask.now)
        plan = parsed_query.plan(
            reading,
            owner_id=sealer.user_id,
            parts=ask.parts,
            kinds=ask.kinds,
            dense=blinder.turn(await house.embedder.embed_query(sealer, reading.meaning)),
            blinder=blinder,
        )
        batches.append([query for _, query in plan])
    return batches


async def bench_engines(searched: Searched, strangers: int) -> list[Row]:
    """Qdrant Edge alone; a peer and the floor over the same vectors."""
    index = searched.house.collections.current
    owner_id = searched.account.identity.user_id
    batches = await queries_of(searched)
    times: list[float] = []
    for batch in batches:
        began = time.perf_counter()
        await index.search(batch)
        times.append((time.perf_counter() - began) * 1000)
    rows = [row("engine: the whole batch", times, f"{len(batches[0])} queries")]

    ids = [
        point_id
        async for page in index.scan(owner_id)
        for point_id, payload in page
        if payload.kind == "message"
    ]
    vectors = await index.dense_vectors(ids)
    mine = np.stack([vectors[each] for each in ids])
    nearest = [query.near for batch in batches if isinstance((query := batch[0]).near, np.ndarray)]
    scope = Scope(owner_id=owner_id, parts=batches[0][0].scope.parts, kinds=["message"])
    times = []
    found: list[list[Hit]] = []
    for near in nearest:
        began = time.perf_counter()
        found += await index.search([Query(vector="dense", near=near, scope=scope, limit=HITS)])
        times.append((time.perf_counter() - began) * 1000)
    rows.append(row("engine: one dense query", times, f"best {HITS}"))

    peer_times, peer_found = search_local_mode(mine, owner_id, strangers, nearest[:PEER_QUERIES])
    same = np.mean(
        [
            len({ids[place] for place in some} & {hit.id for hit in ours}) / len(ours)
            for some, ours in zip(peer_found, found, strict=False)
        ]
    )
    note = f"{100 * same:.0f}% the same hits"
    rows.append(row("  peer: qdrant-client's local mode", peer_times, note))

    floor: list[float] = []
    for near in nearest:
        began = time.perf_counter()
        best_of(mine @ near)
        floor.append((time.perf_counter() - began) * 1000)
    rows.append(row("  floor: numpy over the user's alone", floor, f"{len(mine):,} vectors"))
    floor = floor_of(batches, mine, postings_of(searched))
    rows.append(row("  floor: the whole batch in numpy", floor, "BM25 over lines, no filters"))
    return rows


def best_of(scores: Floats) -> NDArray[np.intp]:
    """Places of the best `HITS`, best first."""
    best = np.argpartition(-scores, min(HITS, len(scores) - 1))[:HITS]
    return best[np.argsort(-scores[best])]


def postings_of(searched: Searched) -> Mapping[int, tuple[NDArray[np.intp], Floats]]:
    """For each term the lines that have it, and its weights there."""
    blinder = searched.house.blinders.get(searched.account.identity.sealer)
    found: dict[int, list[tuple[int, float]]] = {}
    for place, (_, text) in enumerate(searched.spoken):
        terms = sparse_vector(text, blinder)
        for term, weight in zip(terms.ids.tolist(), terms.weights.tolist(), strict=True):
            found.setdefault(term, []).append((place, weight))
    return {
        term: (np.array([place for place, _ in some]), np.array([each for _, each in some], "f4"))
        for term, some in found.items()
    }


def floor_of(
    batches: Sequence[Sequence[Query]],
    mine: Floats,
    postings: Mapping[int, tuple[NDArray[np.intp], Floats]],
) -> list[float]:
    """Milliseconds of the same queries over one user's vectors and terms, and nothing else."""
    count, times = len(mine), list[float]()
    for batch in batches:
        began = time.perf_counter()
        for query in batch:
            if isinstance(query.near, np.ndarray):
                best_of(mine @ query.near)
                continue
            scores = np.zeros(count, np.float32)
            for term, weight in zip(query.near.ids, query.near.weights, strict=True):
                if (posted := postings.get(int(term))) is not None:
                    rare = np.log1p((count - len(posted[0]) + 0.5) / (len(posted[0]) + 0.5))
                    scores[posted[0]] += weight * rare * posted[1]
            best_of(scores)
        times.append((time.perf_counter() - began) * 1000)
    return times


def search_local_mode(
    mine: Floats, owner_id: UUID, strangers: int, nearest: Sequence[Floats]
) -> tuple[list[float], list[list[int]]]:
    """Milliseconds of searches in `qdrant-client`'s local mode, and the places of what they found.

    It holds one dense vector a point: the user's first, then those of everybody else.
    """
    # Here and not above: `backend.memory` has to be imported before it.
    from qdrant_client import QdrantClient, models  # noqa: PLC0415, TID251  # see above; a peer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is not made for so many points
        client = QdrantClient(":memory:")
        params = models.VectorParams(size=DIMENSION, distance=models.Distance.DOT)
        client.create_collection("bench", vectors_config=params)
        owners = [str(owner_id)] * len(mine)
        owners += [str(stranger_id(number % 9)) for number in range(strangers)]
        vectors = np.concatenate([mine, strangers_vectors(strangers, seed=0)])
        page = 10_000
        for start in range(0, len(owners), page):
            client.upload_collection(
                "bench",
                vectors=vectors[start : start + page],
                payload=[{"o": owner} for owner in owners[start : start + page]],
                ids=range(start, min(start + page, len(owners))),
            )
        match = models.FieldCondition(key="o", match=models.MatchValue(value=str(owner_id)))
        within = models.Filter(must=[match])
        times: list[float] = []
        found: list[list[int]] = []
        for near in nearest:
            began = time.perf_counter()
            answer = client.query_points(
                "bench", query=near.tolist(), query_filter=within, limit=HITS
            )
            times.append((time.perf_counter() - began) * 1000)
            found.append([int(point.id) for point in answer.points])
        client.close()
    return times, found


async def bench_lorebook(
    account: Account, port: int, lines: Sequence[tuple[str, str]], entries: int
) -> list[Row]:
    """Seconds from sending a lorebook until `GET /search` finds its last entry."""
    book = made_up_book(0, entries, lines)
    search = "/search?q=lastentry0&sources=lore&limit=5"
    async with client(account, port) as api:
        await api.get(search)
        began = time.perf_counter()
        await import_book(api, book)
        imported = time.perf_counter() - began
        while True:
            found = (await api.get(search)).json()["items"]
            last = [item for item in found if item["title"] == f"Entry 0.{entries - 1}"]
            if last and "dense" in last[0]["scores"]:
                break
            await asyncio.sleep(0.1)
        searchable = time.perf_counter() - began
    what = f"lorebook of {entries:,} entries"
    return [
        Row(f"{what}: stored", round(imported, 2), None, "s"),
        Row(f"{what}: searchable", round(searchable, 2), None, "s"),
    ]


async def bench_opening(account: Account, folder: Path, points: int) -> list[Row]:
    """What the index takes on disk, and in a process of its own that opens it."""
    name = account.parts.memory.collections.current.name
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--only-open",
        str(folder),
        name,
        str(account.identity.user_id),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    opened = json.loads(output)
    size = on_disk(folder)
    note = f"{opened['before']} before it"
    return [
        Row("index: opened in", round(opened["seconds"], 2), None, "s", "and put in order"),
        Row("index: RSS after opening", opened["after"], None, "MiB", note),
        Row("index: RSS after 100 searches", opened["searched"], None, "MiB"),
        Row("  of it: not of files", opened["anonymous"], None, "MiB"),
        Row("index: on disk, a point", round(size / points), None, "bytes", f"{points:,} points"),
    ]


def on_disk(folder: Path) -> int:
    """Bytes that are allocated: logs that are written ahead have room that is not used yet."""
    return sum(each.stat().st_blocks * 512 for each in folder.rglob("*") if each.is_file())


async def open_alone(folder: Path, name: str, owner_id: UUID) -> None:
    """Open an index and search in it; print what that does to this process."""
    before, began = resident_mib(), time.perf_counter()
    index = await open_edge(folder, name, DIMENSION)
    seconds, after = time.perf_counter() - began, resident_mib()
    page = await anext(aiter(index.scan(owner_id)))
    scope = Scope(
        owner_id=owner_id,
        parts=[ScopePart(containers=[page[0][1].container_id])],
        kinds=["message"],
    )
    for near in strangers_vectors(100, seed=3):
        await index.search([Query(vector="dense", near=near, scope=scope, limit=HITS)])
    figures = {
        "before": before,
        "seconds": seconds,
        "after": after,
        "searched": resident_mib(),
        "anonymous": resident_mib(field="RssAnon"),
    }
    await index.aclose()
    print(json.dumps(figures))


@asynccontextmanager
async def server(settings: Settings, *, is_new: bool) -> AsyncGenerator[tuple[Account, int]]:
    """A server with an account, in this process."""
    database = Database(settings.resolved_database_url)
    await upgrade(database)
    account = await open_account(settings, database, "bench", is_new=is_new)
    async with serving(account.parts) as port:
        yield account, port


async def run(options: argparse.Namespace) -> list[Row]:
    """Every row of the table."""
    lines = utterances(options.data)
    spoken = distinct(lines, options.messages)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = Settings(
            _env_file=None,  # type: ignore[call-arg]
            data_dir=Path(folder),
            registration="open",
            embedder="local",
            embedding_model_path=options.model_path,
            embedding_threads=options.threads,
        )
        async with server(settings, is_new=True) as (account, port):
            parts = account.parts
            index = parts.memory.collections.current
            if parts.memory.embedder is None or parts.memory.embedder.spec.dimension != DIMENSION:
                raise SystemExit(f"--model-path needs a model of {DIMENSION} numbers.")
            # The model is loaded before anything is measured.
            await parts.memory.embedder.embed_query(account.identity.sealer, "warm")
            chat_id = await make_chat(parts.database, account.identity, spoken, options.messages)
            rows += await bench_indexing(account, chat_id, options.messages)
            strangers = max(0, options.points - await index.count())
            took = await write_strangers(index, strangers)
            if strangers:
                rows.append(Row("engine: points written", round(strangers / took), None, "1/s"))
            asks = asks_of(lines, chat_id, messages=options.messages, queries=options.queries)
            searched = Searched(account, asks, spoken)
            rows += await bench_search(searched, suffix=", not in order yet")
        async with server(settings, is_new=False) as (account, port):
            searched = Searched(account, asks, spoken)
            rows += await bench_search(searched)
            rows += await bench_engines(searched, strangers)
            rows += await bench_lorebook(account, port, lines, options.entries)
            points = await account.parts.memory.collections.current.count()
        rows += await bench_opening(account, index_folder(settings), points)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument(
        "--model-path",
        type=Path,
        default=SHARED / "minilm-l6-v2-int8",
        help="folder of the embedding model (ONNX, 384 numbers)",
    )
    parser.add_argument(
        "--data", type=Path, default=SHARED / "crd3", help="folder of CRD3's transcripts"
    )
    parser.add_argument("--points", type=int, default=100_000, help="in the whole index")
    parser.add_argument("--messages", type=int, default=10_000, help="of the one user")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--entries", type=int, default=1_000, help="of the lorebook")
    parser.add_argument(
        "--threads", type=int, default=0, help="cores that the model computes on; 0: all, 4 at most"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only-open", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    configure_logging("error", "json")
    if options.only_open:
        folder, name, owner_id = options.only_open
        asyncio.run(open_alone(Path(folder), name, UUID(owner_id)))
        return
    rows = uvloop.run(run(options))  # as the server runs
    if options.json:
        print(json.dumps([asdict(each) for each in rows], indent=2))
        return
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{'what':<44} {'value (p50)':>12} {'p95':>9} {'unit':<6} note")
    for each in rows:
        p95 = "" if each.p95 is None else each.p95
        print(f"{each.what:<44} {each.value:>12} {p95:>9} {each.unit:<6} {each.note}")


if __name__ == "__main__":
    main()
