"""Measure the delay that the server adds to tokens while many turns stream at once.

The server is a process of its own. Its demo model sends 50 tokens a second to each stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Sequence
from itertools import pairwise
from tempfile import TemporaryDirectory

import uvloop

from scripts.bench.processes import (
    TALEKEEPER,
    check,
    create_database,
    make_environment,
    read_resident_mib,
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

TOKENS_PER_SECOND = 50


async def bench(name: DatabaseName, streams: int, seconds: float) -> list[Row]:
    """Return the rows of one database."""
    words = round(seconds * TOKENS_PER_SECOND)
    async with create_database(name) as url:
        with TemporaryDirectory(prefix="bench-") as folder:
            environment = make_environment(
                database_url=url,
                data_dir=folder,
                max_turns_per_user=1000,
                max_streams_per_user=1000,
                demo_tokens_per_second=TOKENS_PER_SECOND,
            )
            command = (str(TALEKEEPER), "serve", "--port", "0")
            async with (
                start_process(*command, **environment) as (pid, port),
                sign_up(port, "bench") as client,
            ):
                authorization = client.headers["authorization"]
                chats = [check(await client.post("/chats", json={}))["id"] for _ in range(streams)]
                gaps = await asyncio.gather(
                    *(
                        read_stream(port, authorization, chat_id, words, number)
                        for number, chat_id in enumerate(chats)
                    )
                )
                resident = read_resident_mib(pid)
    added = [gap * 1000 - 1000 / TOKENS_PER_SECOND for some in gaps for gap in some]
    label = f"{streams} streams: delay added to a token"
    return [
        make_row(name, label, added, note=f"{len(added):,} gaps"),
        Row(name, "serve: RSS after it", resident, unit="MiB"),
    ]


async def read_stream(
    port: int, authorization: str, chat_id: str, words: int, number: int
) -> list[float]:
    """Return seconds between the tokens of one stream.

    Raises `SystemExit` if the reply is incomplete or contains words of another stream.
    """
    marker = f"marker{number:04d}"
    await asyncio.sleep(number * 0.01)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text = f"/demo long {words} {marker}"
    writer.write(
        format_turn(port, authorization, chat_id, header="Connection: close\r\n", text=text)
    )
    arrivals: list[float] = []
    texts: list[str] = []
    async for line in reader:
        if line.startswith(b"event: text.delta"):
            arrivals.append(time.perf_counter())
        elif line.startswith(b"data: ") and b'"text"' in line and len(arrivals) > len(texts):
            texts.append(json.loads(line[6:])["text"])
    writer.close()
    reply = "".join(texts)
    if set(re.findall(r"marker\d+", reply)) != {marker} or len(reply.split()) != words:
        raise SystemExit(f"Stream {number} did not receive its own complete reply.")
    return [later - earlier for earlier, later in pairwise(arrivals)]


async def run(options: argparse.Namespace) -> list[Row]:
    return [
        row
        for name in list_databases(options)
        for row in await bench(name, options.streams, options.seconds)
    ]


def main(arguments: Sequence[str]) -> None:
    parser = new_parser("streams", __doc__)
    add_database_option(parser)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10, help="length of each reply")
    options = parser.parse_args(arguments)
    print_rows(uvloop.run(run(options)), as_json=options.json)
