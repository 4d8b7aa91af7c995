"""Measure imports and exports of a server process, next to floors of the same bytes.

`import`: a zip of a folder with chats of SillyTavern. `export`: one chat with five swipes of each
message. `archive`: an account with these chats and many cards.

Everything goes over HTTP. Memory is the peak of the server process above its memory before, without
the process of the index. The bystander is another account that takes one turn after the other with
the demo model: first alone, then during the work. The search index has no embedder.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import uvloop

from scripts.bench.data import CRD3, Lines, read_utterances
from scripts.bench.processes import (
    TALEKEEPER,
    begin_memory_peak,
    check,
    create_database,
    make_environment,
    read_cpu_seconds,
    read_memory_peak,
    sign_up,
    start_process,
)
from scripts.bench.stopwatch import format_turn
from scripts.bench.tables import (
    DatabaseName,
    Row,
    add_database_option,
    list_databases,
    make_row,
    new_parser,
    print_rows,
)
from scripts.bench.transfer_files import write_card_folder, write_chat, write_chat_folder
from scripts.bench.transfer_floor import MessageFloor, read_lines, time_zip

SWIPES = 5

WARM_UP_TURNS = 5
TURN_PAUSE_SECONDS = 0.1
POLL_SECONDS = 0.1
QUIET_SECONDS = 2.0
QUIET_CPU_SECONDS = 0.06
"""Processor time of a server without work in `QUIET_SECONDS`."""

UPLOAD_BYTES = 256 * 1024
MB = 1_000_000


@dataclass(frozen=True)
class Sizes:
    """Messages of the folder and of the exported chat, and cards in the archive.

    `turns` are those of the bystander before the work.
    """

    messages: int = 100_000
    exported: int = 10_000
    cards: int = 560
    turns: int = 100


SMALL = Sizes(messages=2_000, exported=200, cards=5, turns=10)


@dataclass(frozen=True)
class Place:
    """An empty database, and a folder for the server's data and for files."""

    database: DatabaseName
    url: str
    folder: Path


@asynccontextmanager
async def create_place(name: DatabaseName) -> AsyncGenerator[Place]:
    async with create_database(name) as url:
        with TemporaryDirectory(prefix="bench-") as folder:
            yield Place(name, url, Path(folder))


@dataclass(frozen=True)
class BenchServer:
    """A server process."""

    pid: int
    port: int

    async def wait_until_quiet(self) -> None:
        """Wait for the jobs of earlier work, such as indexing."""
        while True:
            before = read_cpu_seconds(self.pid)
            await asyncio.sleep(QUIET_SECONDS)
            if read_cpu_seconds(self.pid) - before <= QUIET_CPU_SECONDS:
                return


@asynccontextmanager
async def start_server(place: Place) -> AsyncGenerator[BenchServer]:
    """Start a process. Its memory has no traces of work that an earlier process has done."""
    environment = make_environment(
        database_url=place.url, data_dir=place.folder, embedder="none", demo_tokens_per_second=0
    )
    command = (str(TALEKEEPER), "serve", "--port", "0")
    async with start_process(*command, **environment) as (pid, port):
        yield BenchServer(pid, port)


def open_client(server: BenchServer, authorization: str) -> httpx.AsyncClient:
    """Return a client for an account of an earlier process."""
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{server.port}/api/v1",
        headers={"Authorization": authorization},
        timeout=120,
        trust_env=False,
    )


@dataclass
class Bystander:
    """An account that takes turns. `alone` and `during` are milliseconds to the first token."""

    port: int
    authorization: str
    alone: list[float]
    during: list[float]

    async def take_turns(
        self, chat_id: str, milliseconds: list[float], is_over: Callable[[], bool]
    ) -> None:
        """Take turns on one connection until `is_over`, and at least one."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        number, has_ended = 0, False
        while not has_ended:
            text = f"What do we do now, {number}? I open the old door."
            began, answer, has_token = time.perf_counter(), b"", False
            writer.write(format_turn(self.port, self.authorization, chat_id, text=text))
            while not answer.endswith(b"0\r\n\r\n"):
                more = await reader.read(65_536)
                answer += more
                if not more:
                    raise SystemExit(answer.decode())
                if not has_token and b"text.delta" in answer:
                    has_token = True
                    milliseconds.append(1000 * (time.perf_counter() - began))
            if b"turn.completed" not in answer:
                raise SystemExit(answer.decode())
            number += 1
            has_ended = is_over()
            await asyncio.sleep(TURN_PAUSE_SECONDS)
        writer.close()


@dataclass(frozen=True)
class WorkLoad:
    """The effects of work on its server: memory in MiB, and the turns of a bystander."""

    idle_mib: float
    peak_mib: float
    bystander: Bystander

    def make_rows(self, name: str) -> list[Row]:
        turns = self.bystander
        count = f"{len(turns.during)} turns"
        return [
            make_memory_row(name, self.idle_mib, self.peak_mib),
            make_row(name, "  bystander: first token, alone", turns.alone),
            make_row(name, "  bystander: first token, during it", turns.during, note=count),
        ]


async def watch_work(
    server: BenchServer, work: Callable[[], Awaitable[Any]], *, turns: int
) -> WorkLoad:
    """Let a new account take `turns` turns alone, and then turns during the work."""
    async with sign_up(server.port, "bystander") as client:
        bystander = Bystander(server.port, client.headers["authorization"], [], [])
        chats = [check(await client.post("/chats", json={}))["id"] for _ in range(3)]
    warm_up, alone = list[float](), bystander.alone
    await bystander.take_turns(chats[0], warm_up, lambda: len(warm_up) >= WARM_UP_TURNS)
    await bystander.take_turns(chats[1], alone, lambda: len(alone) >= turns)
    await server.wait_until_quiet()
    idle = begin_memory_peak(server.pid)
    working = asyncio.ensure_future(work())
    await asyncio.gather(working, bystander.take_turns(chats[2], bystander.during, working.done))
    return WorkLoad(idle, read_memory_peak(server.pid), bystander)


def make_memory_row(name: str, idle: float, peak: float) -> Row:
    note = f"{idle:.0f} before, {peak:.0f} at most"
    return Row(name, "  peak memory above idle", round(peak - idle, 1), unit="MiB", note=note)


def make_seconds_row(name: str, label: str, seconds: float, size: int, note: str = "") -> Row:
    speed = f"{size / MB:,.1f} MB, {size / MB / seconds:.1f} MB/s"
    note = "; ".join(filter(None, [speed, note]))
    return Row(name, label, round(seconds, 2), unit="s", note=note)


def make_rate_row(name: str, label: str, messages: int, seconds: float, note: str = "") -> Row:
    note = "; ".join(filter(None, [f"{messages:,} in {seconds:.1f} s", note]))
    return Row(name, label, round(messages / seconds), unit="mess/s", note=note)


@dataclass(frozen=True)
class ImportTimes:
    """Seconds until an upload was received, and until its import had ended."""

    received: float
    ended: float


async def import_file(client: httpx.AsyncClient, path: Path) -> ImportTimes:
    """Import a file, and wait for its end. Exits if a file of it was not imported."""
    began = time.perf_counter()
    size = (await asyncio.to_thread(path.stat)).st_size
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
    answer = await client.post(
        "/imports", params={"name": path.name}, content=_read_pieces(path), headers=headers
    )
    view = check(answer)
    received = time.perf_counter() - began
    while view["state"] == "running":
        await asyncio.sleep(POLL_SECONDS)
        view = check(await client.get(f"/imports/{view['id']}"))
    counts = view["counts"]
    if view["state"] != "finished" or counts["failed"] or not counts["imported"]:
        found = await client.get(f"/imports/{view['id']}/results", params={"outcome": "failed"})
        raise SystemExit(f"The import of {path.name} ended {view['state']}: {counts}; {found.text}")
    return ImportTimes(received, time.perf_counter() - began)


async def _read_pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while data := await asyncio.to_thread(file.read, UPLOAD_BYTES):
            yield data


@dataclass(frozen=True)
class DownloadTimes:
    """Seconds until the first and the last byte of a download, and its bytes."""

    first: float
    last: float
    size: int


async def download(client: httpx.AsyncClient, address: str, target: Path) -> DownloadTimes:
    began, first, size = time.perf_counter(), 0.0, 0
    async with client.stream("GET", address) as answer:
        if answer.is_error:
            raise SystemExit(f"{address}: {(await answer.aread()).decode()}")
        with target.open("wb") as file:
            async for data in answer.aiter_raw():
                first = first or time.perf_counter() - began
                size += len(data)
                file.write(data)
    return DownloadTimes(first, time.perf_counter() - began, size)


async def bench_import(place: Place, lines: Lines, sizes: Sizes) -> list[Row]:
    """Return the rows of the import of a folder with chats."""
    name, messages, path = place.database, sizes.messages, place.folder / "folder.zip"
    chats = write_chat_folder(path, lines, messages)
    times: list[ImportTimes] = []
    async with start_server(place) as server, sign_up(server.port, "owner") as client:

        async def work() -> None:
            times.append(await import_file(client, path))

        load = await watch_work(server, work, turns=sizes.turns)
    async with create_database(name) as url:
        floor = await MessageFloor(url).store(read_lines(path))
    size = sum(map(len, read_lines(path)))
    note = f"{chats} chats, {size / MB:.1f} MB; received after {times[0].received:.1f} s"
    return [
        make_rate_row(name, "import of a folder", messages, times[0].ended, note),
        make_rate_row(name, "  floor: parsed, sealed, inserted", messages, floor),
        *load.make_rows(name),
    ]


async def bench_export(place: Place, lines: Lines, sizes: Sizes) -> list[Row]:
    """Return the rows of the exports of a chat."""
    name, messages, path = place.database, sizes.exported, place.folder / "chat.jsonl"
    write_chat(path, lines, messages, swipes=SWIPES)
    async with start_server(place) as server, sign_up(server.port, "owner") as client:
        stored = await import_file(client, path)
        await server.wait_until_quiet()
        [chat] = check(await client.get("/chats"))["items"]
        authorization = client.headers["authorization"]
    label = f"import of {messages:,} messages of {SWIPES} swipes"
    rows = [make_rate_row(name, label, messages, stored.ended)]
    for kind in ("jsonl", "archive"):
        async with start_server(place) as server, open_client(server, authorization) as client:
            target = place.folder / kind
            # Modules that the first export loads are not part of the measurement.
            empty = check(await client.post("/chats", json={}))
            await download(client, f"/chats/{empty['id']}/export?format={kind}", target)
            await server.wait_until_quiet()
            idle = begin_memory_peak(server.pid)
            times = await download(client, f"/chats/{chat['id']}/export?format={kind}", target)
            first = f"first byte after {1000 * times.first:.0f} ms"
            rows += [
                make_seconds_row(name, f"export of it, {kind}", times.last, times.size, first),
                make_memory_row(name, idle, read_memory_peak(server.pid)),
            ]
    async with create_database(name) as url:
        floor = MessageFloor(url)
        await floor.store(read_lines(path))
        with (place.folder / "floor.jsonl").open("wb") as file:
            seconds = await floor.export(file.write)
            size = file.tell()
    rows.append(make_seconds_row(name, "  floor: read, unsealed, written", seconds, size))
    return rows


async def bench_archive(place: Place, lines: Lines, sizes: Sizes) -> list[Row]:
    """Return the rows of the archive of an account, and of its import by another one."""
    name, archive = place.database, place.folder / "me.zip"
    authorization = await fill_account(place, lines, sizes)
    seconds: list[float] = []
    async with start_server(place) as server, open_client(server, authorization) as client:

        async def make() -> None:
            began = time.perf_counter()
            view = check(await client.post("/me/archive"))
            while view["state"] == "making":
                await asyncio.sleep(POLL_SECONDS)
                view = check(await client.get("/me/archive/status"))
            if view["state"] != "ready":
                raise SystemExit(f"The archive ended {view}.")
            seconds.append(time.perf_counter() - began)

        load = await watch_work(server, make, turns=sizes.turns)
        idle = begin_memory_peak(server.pid)
        times = await download(client, "/me/archive", archive)
        peak = read_memory_peak(server.pid)
    floor = await time_zip(archive, place.folder / "floor.zip")
    first = f"first byte after {1000 * times.first:.0f} ms"
    rows = [
        make_seconds_row(name, "archive of an account", seconds[0], times.size),
        make_seconds_row(name, "  floor: zipfile of the same bytes", floor, times.size),
        *load.make_rows(name),
        make_seconds_row(name, "archive, downloaded", times.last, times.size, first),
        make_memory_row(name, idle, peak),
    ]
    async with (
        start_server(place) as server,
        sign_up(server.port, "newcomer", scope="manage") as newcomer,
    ):
        await server.wait_until_quiet()
        idle = begin_memory_peak(server.pid)
        imported = await import_file(newcomer, archive)
        peak = read_memory_peak(server.pid)
    label = "archive, imported by another account"
    received = f"received after {imported.received:.1f} s"
    rows.append(make_seconds_row(name, label, imported.ended, times.size, received))
    rows.append(make_memory_row(name, idle, peak))
    return rows


async def fill_account(place: Place, lines: Lines, sizes: Sizes) -> str:
    """Import chats and cards, and wait for their jobs. Return the account's `Authorization`."""
    chats, cards = place.folder / "folder.zip", place.folder / "cards.zip"
    write_chat_folder(chats, lines, sizes.messages)
    write_card_folder(cards, sizes.cards)
    async with (
        start_server(place) as server,
        sign_up(server.port, "owner", scope="manage") as client,
    ):
        for each in (chats, cards):
            await import_file(client, each)
            each.unlink()
        await server.wait_until_quiet()
        authorization: str = client.headers["authorization"]
        return authorization


BENCHES: dict[str, Callable[[Place, Lines, Sizes], Awaitable[list[Row]]]] = {
    "import": bench_import,
    "export": bench_export,
    "archive": bench_archive,
}


async def bench(name: DatabaseName, parts: Sequence[str], lines: Lines, sizes: Sizes) -> list[Row]:
    """Return the rows of one database. Each part has a new server and database."""
    rows: list[Row] = []
    for part in parts:
        async with create_place(name) as place:
            rows += await BENCHES[part](place, lines, sizes)
    return rows


async def run(options: argparse.Namespace) -> list[Row]:
    sizes = SMALL if options.small else Sizes()
    if options.messages is not None:
        sizes = replace(sizes, messages=options.messages)
    lines = read_utterances(CRD3)
    return [
        row
        for name in list_databases(options)
        for row in await bench(name, options.only or list(BENCHES), lines, sizes)
    ]


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("transfer", __doc__)
    add_database_option(parser)
    parser.add_argument("--only", choices=list(BENCHES), action="append")
    parser.add_argument("--messages", type=int, help="of the folder; 100,000 by default")
    parser.add_argument("--small", action="store_true", help="use small sizes, for development")
    options = parser.parse_args(arguments)
    print_rows(uvloop.run(run(options)), as_json=options.json)
