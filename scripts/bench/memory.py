"""Measure memory: indexing, search, the engine, and a lorebook until it can be searched.

A chat of 10,000 messages made of CRD3's transcripts is indexed by the job that does it in a server.
It is one user's, among 100,000 points in the index. A search takes the steps that a turn takes,
with the texts of the results. The database is SQLite in a temporary folder.

The peer of the engine is `qdrant-client`'s local mode with the same vectors. The floor is numpy
over the vectors and terms of the one user.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
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
from backend.memory.embedding.cache import CachedEmbedder
from backend.memory.embedding.local import LocalEmbedder
from backend.memory.embedding.protocol import Floats
from backend.memory.index.edge import EdgeIndex, open_edge
from backend.memory.index.protocol import Hit, Query, Scope, ScopePart
from backend.memory.indexing import documents
from backend.memory.indexing.collections import UserEmbedders
from backend.memory.runtime import MemoryRuntime, index_folder
from backend.memory.search import query as parsed_query
from backend.memory.search.request import SearchRequest
from backend.memory.search.search import MemorySearch
from backend.memory.search.terms import build_sparse_vector
from backend.settings import Settings
from scripts.bench.application import (
    Account,
    import_book,
    index_container,
    make_chat,
    make_settings,
    open_account,
    open_client,
    serve,
)
from scripts.bench.data import (
    CRD3,
    MINILM,
    Lines,
    choose_questions,
    make_book,
    read_utterances,
)
from scripts.bench.processes import check, read_resident_mib
from scripts.bench.stopwatch import Watch
from scripts.bench.tables import Row, make_row, new_parser, print_rows
from scripts.bench.vectors import (
    DIMENSION,
    STRANGERS,
    draw_vectors,
    get_stranger_id,
    write_strangers,
)

HIT_COUNT = 100
PEER_QUERIES = 20

_row = partial(Row, "sqlite")
_make_row = partial(make_row, "sqlite")


@dataclass(frozen=True)
class SearchSet:
    """An account, its requests, and the lines of its chat."""

    account: Account
    requests: Sequence[SearchRequest]
    lines: Lines

    @property
    def memory(self) -> MemoryRuntime:
        return self.account.services.memory


def extend_lines(lines: Lines, count: int) -> list[tuple[str, str]]:
    """Return `count` lines with few duplicates, because equal lines are embedded once.

    If there are too few lines, pairs of consecutive lines are added, then groups of three.
    """
    found = list(lines)
    size = 2
    while len(found) < count:
        groups = [lines[start : start + size] for start in range(len(lines) - size + 1)]
        found += [(group[0][0], " ".join(text for _, text in group)) for group in groups]
        size += 1
    return found[:count]


def make_requests(
    lines: Lines, chat_id: UUID, *, messages: int, queries: int
) -> list[SearchRequest]:
    """Return requests of turns that search all of the messages."""
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
        for number, text in enumerate(choose_questions(lines, queries))
    ]


async def time_requests(
    work: Callable[[SearchRequest], Awaitable[object]], requests: Sequence[SearchRequest]
) -> tuple[list[float], list[Any]]:
    """Return the milliseconds and the result of each request."""
    times: list[float] = []
    results: list[Any] = []
    for request in requests:
        began = time.perf_counter()
        results.append(await work(request))
        times.append((time.perf_counter() - began) * 1000)
    return times, results


INDEXING_STAGES: dict[str, tuple[tuple[Any, str], ...]] = {
    "reading rows": ((MessageSource, "rows"),),
    "embedding": ((LocalEmbedder, "embed"),),
    "cache of vectors": ((CachedEmbedder, "embed_documents"),),
    "terms": ((documents, "build_sparse_vector"),),
    "writes to the engine": ((EdgeIndex, "upsert"), (EdgeIndex, "delete_sources")),
}
"""Functions that are timed, by the label of their row."""


async def bench_indexing(account: Account, chat_id: UUID, messages: int) -> list[Row]:
    """Return the rows of the job that indexes a chat."""
    with Watch(*(each for watched in INDEXING_STAGES.values() for each in watched)) as watch:
        seconds = await index_container(account, "message", chat_id)
    owned = await account.services.memory.collections.current.count(account.identity.user_id)
    rate = round(messages / seconds, 1)
    rows = [_row("indexing: messages", rate, unit="1/s", note=f"{owned:,} points")]
    known = 0.0
    for label, watched in INDEXING_STAGES.items():
        spent = watch.sum_seconds(*watched)
        if label == "cache of vectors":  # it includes the model's time
            spent -= watch.sum_seconds(*INDEXING_STAGES["embedding"])
        known += spent
        rows.append(_row(f"  of it: {label}", round(100 * spent / seconds, 1), unit="%"))
    rows.append(_row("  of it: the rest", round(100 * (1 - known / seconds), 1), unit="%"))
    return rows


async def bench_search(searches: SearchSet, *, suffix: str = "") -> list[Row]:
    """Return the rows of a turn's search: with embedding, without it, and by words only."""
    services, sealer = searches.account.services, searches.account.identity.sealer
    memory = searches.memory
    by_words = MemorySearch(
        memory.collections,
        (MessageSource(),),
        embedders=UserEmbedders(None),
        blinders=memory.blinders,
        pool=services.cpu_pool,
    )

    async def run_search(request: SearchRequest, search: MemorySearch) -> int:
        findings = await search.find(sealer, request)
        if findings.notes:
            raise SystemExit(f"A part of the search failed: {findings.notes}")
        return len(await search.recall(services.database, sealer, findings))

    await time_requests(partial(run_search, search=by_words), searches.requests[:10])
    rows: list[Row] = []
    with Watch((LocalEmbedder, "embed"), (EdgeIndex, "search"), (MemorySearch, "recall")) as watch:
        for label, search in (
            ("query embedded", memory.search),
            ("without embedding", memory.search),  # the same requests: vectors are in the cache
            ("by words alone", by_words),
        ):
            run_one = partial(run_search, search=search)
            times, found = await time_requests(run_one, searches.requests)
            note = f"{np.mean(found):.0f} memories"
            rows.append(_make_row(f"search, {label}{suffix}", times, note=note))
            for (_, name), calls in watch.calls.items():
                if calls and not suffix:
                    milliseconds = [call.seconds * 1000 for call in calls]
                    rows.append(_make_row(f"  of it: {name}", milliseconds))
                calls.clear()
    return rows


async def plan_queries(searches: SearchSet) -> list[list[Query]]:
    """Return the batch that each search sends to the engine, the dense query first."""
    memory, sealer = searches.memory, searches.account.identity.sealer
    if memory.embedder is None:
        raise SystemExit("There is no embedding model.")
    blinder = memory.blinders.get(sealer)
    batches: list[list[Query]] = []
    for request in searches.requests:
        reading = parsed_query.parse_query(
            request.text, context=request.context, cast=request.names, now=request.now
        )
        plan = parsed_query.plan_queries(
            reading,
            owner_id=sealer.user_id,
            parts=request.parts,
            kinds=request.kinds,
            dense=blinder.turn(await memory.embedder.embed_query(sealer, reading.meaning)),
            blinder=blinder,
        )
        batches.append([query for _, query in plan])
    return batches


async def bench_engine(searches: SearchSet, strangers: int) -> list[Row]:
    """Return the rows of Qdrant Edge, of the peer and of the floors."""
    index = searches.memory.collections.current
    owner_id = searches.account.identity.user_id
    batches = await plan_queries(searches)
    times: list[float] = []
    for batch in batches:
        began = time.perf_counter()
        await index.search(batch)
        times.append((time.perf_counter() - began) * 1000)
    rows = [_make_row("engine: the whole batch", times, note=f"{len(batches[0])} queries")]

    ids = [
        point_id
        async for page in index.scan(owner_id)
        for point_id, payload in page
        if payload.kind == "message"
    ]
    stored = await index.dense_vectors(ids)
    vectors = np.stack([stored[each] for each in ids])
    dense = [query.near for batch in batches if isinstance((query := batch[0]).near, np.ndarray)]
    scope = Scope(owner_id=owner_id, parts=batches[0][0].scope.parts, kinds=["message"])
    times = []
    hits: list[list[Hit]] = []
    for near in dense:
        began = time.perf_counter()
        hits += await index.search([Query(vector="dense", near=near, scope=scope, limit=HIT_COUNT)])
        times.append((time.perf_counter() - began) * 1000)
    rows.append(_make_row("engine: one dense query", times, note=f"best {HIT_COUNT}"))

    times, found = search_local_mode(vectors, owner_id, strangers, dense[:PEER_QUERIES])
    same = np.mean(
        [
            len({ids[position] for position in positions} & {hit.id for hit in ours}) / len(ours)
            for positions, ours in zip(found, hits, strict=False)
        ]
    )
    note = f"{100 * same:.0f}% the same hits"
    rows.append(_make_row("  peer: qdrant-client's local mode", times, note=note))

    times = []
    for near in dense:
        began = time.perf_counter()
        find_best(vectors @ near)
        times.append((time.perf_counter() - began) * 1000)
    note = f"{len(vectors):,} vectors of the user"
    rows.append(_make_row("  floor: one dense query in numpy", times, note=note))
    times = time_numpy(batches, vectors, make_postings(searches))
    note = "BM25 over lines, no filters"
    rows.append(_make_row("  floor: the whole batch in numpy", times, note=note))
    return rows


def find_best(scores: Floats) -> NDArray[np.intp]:
    """Return the positions of the best `HIT_COUNT` scores, best first."""
    best = np.argpartition(-scores, min(HIT_COUNT, len(scores) - 1))[:HIT_COUNT]
    return best[np.argsort(-scores[best])]


def make_postings(searches: SearchSet) -> Mapping[int, tuple[NDArray[np.intp], Floats]]:
    """Return the positions of the lines that contain each term, and the weights of the term."""
    blinder = searches.memory.blinders.get(searches.account.identity.sealer)
    found: dict[int, list[tuple[int, float]]] = {}
    for position, (_, text) in enumerate(searches.lines):
        terms = build_sparse_vector(text, blinder)
        for term, weight in zip(terms.ids.tolist(), terms.weights.tolist(), strict=True):
            found.setdefault(term, []).append((position, weight))
    return {
        term: (np.array([place for place, _ in some]), np.array([each for _, each in some], "f4"))
        for term, some in found.items()
    }


def time_numpy(
    batches: Sequence[Sequence[Query]],
    vectors: Floats,
    postings: Mapping[int, tuple[NDArray[np.intp], Floats]],
) -> list[float]:
    """Return milliseconds of the same batches over one user's vectors and terms."""
    count, times = len(vectors), list[float]()
    for batch in batches:
        began = time.perf_counter()
        for query in batch:
            if isinstance(query.near, np.ndarray):
                find_best(vectors @ query.near)
                continue
            scores = np.zeros(count, np.float32)
            for term, weight in zip(query.near.ids, query.near.weights, strict=True):
                if (posted := postings.get(int(term))) is not None:
                    rarity = np.log1p((count - len(posted[0]) + 0.5) / (len(posted[0]) + 0.5))
                    scores[posted[0]] += weight * rarity * posted[1]
            find_best(scores)
        times.append((time.perf_counter() - began) * 1000)
    return times


def search_local_mode(
    vectors: Floats, owner_id: UUID, strangers: int, queries: Sequence[Floats]
) -> tuple[list[float], list[list[int]]]:
    """Return milliseconds of searches in `qdrant-client`'s local mode, and positions of hits.

    Each point has one dense vector: first those of the user, then those of the strangers.
    """
    # Not at the top, because `backend.memory` has to be imported first.
    from qdrant_client import QdrantClient, models  # noqa: PLC0415, TID251  # a peer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about the number of points
        client = QdrantClient(":memory:")
        params = models.VectorParams(size=DIMENSION, distance=models.Distance.DOT)
        client.create_collection("bench", vectors_config=params)
        owners = [str(owner_id)] * len(vectors)
        owners += [str(get_stranger_id(number % STRANGERS)) for number in range(strangers)]
        everything = np.concatenate([vectors, draw_vectors(strangers, seed=0)])
        page = 10_000
        for start in range(0, len(owners), page):
            client.upload_collection(
                "bench",
                vectors=everything[start : start + page],
                payload=[{"o": owner} for owner in owners[start : start + page]],
                ids=range(start, min(start + page, len(owners))),
            )
        match = models.FieldCondition(key="o", match=models.MatchValue(value=str(owner_id)))
        of_owner = models.Filter(must=[match])
        times: list[float] = []
        found: list[list[int]] = []
        for near in queries:
            began = time.perf_counter()
            answer = client.query_points(
                "bench", query=near.tolist(), query_filter=of_owner, limit=HIT_COUNT
            )
            times.append((time.perf_counter() - began) * 1000)
            found.append([int(point.id) for point in answer.points])
        client.close()
    return times, found


async def bench_lorebook(account: Account, port: int, lines: Lines, entries: int) -> list[Row]:
    """Return seconds from sending a lorebook until `GET /search` finds its last entry."""
    book = make_book(0, entries, lines)
    search = "/search?q=lastentry0&sources=lore&limit=5"
    async with open_client(account, port) as api:
        check(await api.get(search))
        began = time.perf_counter()
        await import_book(api, book)
        imported = time.perf_counter() - began
        while True:
            items = check(await api.get(search))["items"]
            last = [item for item in items if item["title"] == f"Entry 0.{entries - 1}"]
            if last and "dense" in last[0]["scores"]:
                break
            await asyncio.sleep(0.1)
        searchable = time.perf_counter() - began
    label = f"lorebook of {entries:,} entries"
    return [
        _row(f"{label}: stored", round(imported, 2), unit="s"),
        _row(f"{label}: searchable", round(searchable, 2), unit="s"),
    ]


async def bench_opening(account: Account, folder: Path, points: int) -> list[Row]:
    """Return the rows of the index on disk and in a process that only opens it."""
    name = account.services.memory.collections.current.name
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "scripts.bench.memory"),
        *(str(folder), name, str(account.identity.user_id)),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    opened = json.loads(output)
    size = read_disk_bytes(folder)
    note = f"{opened['before']} before it"
    return [
        _row("index: opened in", round(opened["seconds"], 2), unit="s", note="with optimisation"),
        _row("index: RSS after opening", opened["after"], unit="MiB", note=note),
        _row("index: RSS after 100 searches", opened["searched"], unit="MiB"),
        _row("  of it: not mapped from files", opened["anonymous"], unit="MiB"),
        _row("index: on disk, a point", round(size / points), unit="bytes", note=f"{points:,}"),
    ]


def read_disk_bytes(folder: Path) -> int:
    """Return the allocated bytes, because write-ahead logs reserve more than they contain."""
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


async def open_alone(folder: Path, name: str, owner_id: UUID) -> None:
    """Open an index, search in it 100 times, and print the memory of this process."""
    before, began = read_resident_mib(), time.perf_counter()
    index = await open_edge(folder, name, DIMENSION)
    seconds, after = time.perf_counter() - began, read_resident_mib()
    page = await anext(aiter(index.scan(owner_id)))
    scope = Scope(
        owner_id=owner_id,
        parts=[ScopePart(containers=[page[0][1].container_id])],
        kinds=["message"],
    )
    for near in draw_vectors(100, seed=3):
        await index.search([Query(vector="dense", near=near, scope=scope, limit=HIT_COUNT)])
    figures = {
        "before": before,
        "seconds": seconds,
        "after": after,
        "searched": read_resident_mib(),
        "anonymous": read_resident_mib(field="RssAnon"),
    }
    await index.aclose()
    print(json.dumps(figures))


@asynccontextmanager
async def serve_account(settings: Settings, *, is_new: bool) -> AsyncGenerator[tuple[Account, int]]:
    """Yield an account and the port of its server in this process."""
    database = Database(settings.resolved_database_url)
    await upgrade(database)
    account = await open_account(settings, database, "bench", is_new=is_new)
    async with serve(account) as port:
        yield account, port


async def run(options: argparse.Namespace) -> list[Row]:
    lines = read_utterances(options.data)
    chat_lines = extend_lines(lines, options.messages)
    rows: list[Row] = []
    with TemporaryDirectory(prefix="bench-") as folder:
        settings = make_settings(
            f"sqlite+aiosqlite:///{folder}/bench.sqlite3",
            Path(folder),
            embedder="local",
            embedding_model_path=options.model_path,
            embedding_threads=options.threads,
        )
        async with serve_account(settings, is_new=True) as (account, _):
            memory = account.services.memory
            index = memory.collections.current
            if memory.embedder is None or memory.embedder.spec.dimension != DIMENSION:
                raise SystemExit(f"--model-path needs a model of {DIMENSION} dimensions.")
            # The model is loaded here, so that loading is not measured.
            await memory.embedder.embed_query(account.identity.sealer, "warm")
            chat_id = await make_chat(
                account.database, account.identity, chat_lines, options.messages
            )
            rows += await bench_indexing(account, chat_id, options.messages)
            strangers = max(0, options.points - await index.count())
            if strangers:
                rate = strangers / await write_strangers(index, strangers)
                rows.append(_row("engine: points written", round(rate), unit="1/s"))
            requests = make_requests(
                lines, chat_id, messages=options.messages, queries=options.queries
            )
            searches = SearchSet(account, requests, chat_lines)
            rows += await bench_search(searches, suffix=", not optimised")
        async with serve_account(settings, is_new=False) as (account, port):
            searches = SearchSet(account, requests, chat_lines)
            rows += await bench_search(searches)
            rows += await bench_engine(searches, strangers)
            rows += await bench_lorebook(account, port, lines, options.entries)
            points = await account.services.memory.collections.current.count()
        rows += await bench_opening(account, index_folder(settings), points)
    return rows


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("memory", __doc__)
    parser.add_argument(
        "--model-path", type=Path, default=MINILM, help="folder of the embedding model"
    )
    parser.add_argument("--data", type=Path, default=CRD3, help="folder of CRD3's transcripts")
    parser.add_argument("--points", type=int, default=100_000, help="in the whole index")
    parser.add_argument("--messages", type=int, default=10_000, help="of the one user")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--entries", type=int, default=1_000, help="of the lorebook")
    parser.add_argument("--threads", type=int, default=0, help="of the model; 0: all cores, max. 4")
    options = parser.parse_args(arguments)
    configure_logging("error", "json")
    print_rows(uvloop.run(run(options)), as_json=options.json)  # uvloop, as the server runs


if __name__ == "__main__":
    asyncio.run(open_alone(Path(sys.argv[1]), sys.argv[2], UUID(sys.argv[3])))
