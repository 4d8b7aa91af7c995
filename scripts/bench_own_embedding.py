#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""What a search costs whose query an account's own model embeds, beside the installation's model.

    scripts/bench_own_embedding.py [--messages N] [--queries N] [--wait MS] [--json]

Two users have the same chat, in one process. The texts of one are embedded by the installation's
model, those of the other by a provider of the account's own: both are one server, a process of its
own, which answers after `--wait`. They search by turns, for lines of the transcripts, as a turn
would. CPU is that of the process that serves, without the engine's and the model's.

Everything is in a temporary folder: SQLite, Qdrant Edge.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from uuid import UUID

import uvloop

from backend.container import Services
from backend.core.logs import configure_logging
from backend.database.base import now
from backend.database.engine import Database
from backend.database.migrate import upgrade
from backend.llm.providers.schemas import NewProvider
from backend.memory.embedding.openai_compatible import OpenAICompatibleEmbedder
from backend.memory.index.protocol import ScopePart
from backend.memory.indexing.collections import EXPECTED_SECONDS
from backend.memory.search.request import SearchRequest
from backend.settings import Settings
from scripts._bench import (
    SHARED,
    Account,
    HashedWords,
    Watch,
    index_container,
    make_chat,
    open_account,
    p50_p95,
    questions,
    serving,
    until_idle,
    utterances,
)

BLOCK = 20
KEY = "sk-a-key-for-a-bench-alone"


@dataclass(frozen=True)
class Row:
    """One line of the table; milliseconds of a search, but for the number of requests."""

    what: str
    cpu_ms: float
    wall_p50_ms: float
    wall_p95_ms: float
    requests: float


class _Embeddings(BaseHTTPRequestHandler):
    """OpenAI's `/embeddings`, by hashed words."""

    protocol_version = "HTTP/1.1"
    wait = 0.0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        time.sleep(self.wait)
        vectors = asyncio.run(HashedWords().embed(body["input"], "document"))
        data = [
            {"object": "embedding", "index": place, "embedding": vector.tolist()}
            for place, vector in enumerate(vectors)
        ]
        answer = json.dumps({"object": "list", "data": data, "model": "words"}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as in the library
        """Say nothing."""


def serve_embeddings(wait: float, told: Connection) -> None:
    """Answer until the process is ended."""
    _Embeddings.wait = wait
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Embeddings)
    told.send(server.server_address[1])
    server.serve_forever()


async def choose_own(account: Account, url: str) -> None:
    """Have an account embed by a provider of its own; waits until its texts have moved."""
    parts, identity = account.parts, account.identity
    new = NewProvider(kind="openai", slug="mine", base_url=url, api_key=KEY)
    await parts.providers.create(identity, new)
    patch = {"task_models": {"embedding": "mine/words"}}
    await parts.profile.patch_settings(identity, patch, if_match=None)
    await until_idle(account)


async def search(account: Account, ask: SearchRequest) -> None:
    """One search, with the texts of what was found."""
    found = await account.parts.memory.search.find(account.identity.sealer, ask)
    if found.notes:
        raise SystemExit(f"The search did without something: {found.notes}")
    await account.parts.memory.search.recall(account.parts.database, account.identity.sealer, found)


async def measured(
    accounts: dict[str, tuple[Account, UUID]], texts: Sequence[str], messages: int, suffix: str
) -> list[Row]:
    """Each searches for each text, by turns, in blocks."""
    wall: dict[str, list[float]] = {name: [] for name in accounts}
    cpu = dict.fromkeys(accounts, 0.0)
    asked = dict.fromkeys(accounts, 0)
    with Watch((OpenAICompatibleEmbedder, "_ask")) as watch:
        for start in range(0, len(texts), BLOCK):
            for name, (account, chat_id) in accounts.items():
                began_cpu, calls = time.process_time(), sum(map(len, watch.calls.values()))
                for text in texts[start : start + BLOCK]:
                    parts = [ScopePart(containers=[chat_id], before_position=messages)]
                    ask = SearchRequest(text=text, parts=parts, kinds=["message"], now=now())
                    began = time.perf_counter()
                    await search(account, ask)
                    wall[name].append((time.perf_counter() - began) * 1000)
                cpu[name] += time.process_time() - began_cpu
                asked[name] += sum(map(len, watch.calls.values())) - calls
    count = len(texts)
    return [
        Row(
            name + suffix,
            round(1000 * cpu[name] / count, 2),
            *p50_p95(wall[name]),
            round(asked[name] / count, 2),
        )
        for name in accounts
    ]


async def second_account(parts: Services, name: str) -> Account:
    """Somebody else on the same server."""
    unlocked = await parts.accounts.sign_up(
        name, "a long bench password", invitation=None, address=""
    )
    token = await parts.sessions.open_session(unlocked, label=name)
    identity = await parts.sessions.authenticate(token, kind="session")
    if identity is None:
        raise SystemExit("The session does not open.")
    return Account(parts, identity, token)


async def bench(options: argparse.Namespace, folder: Path, url: str) -> list[Row]:
    """All rows."""
    settings = Settings.model_validate(
        {
            "data_dir": folder,
            "embedder": "openai",
            "embedding_base_url": url,
            "embedding_model": "words",
            "registration": "open",
        }
    )
    database = Database(settings.resolved_database_url)
    await upgrade(database)
    lines = utterances(options.data)
    own = await open_account(settings, database, "own")
    usual = await second_account(own.parts, "usual")
    accounts: dict[str, tuple[Account, UUID]] = {}
    async with serving(own.parts):
        for name, account in (("installation's model", usual), ("own model", own)):
            chat_id = await make_chat(database, account.identity, lines, options.messages)
            await index_container(account, "message", chat_id)
            accounts[name] = account, chat_id
        await choose_own(own, url)
        await asyncio.sleep(EXPECTED_SECONDS)  # until then no place is remembered
        # What is loaded and measured once is no part of what a search costs.
        first = questions(lines, options.queries + BLOCK)[-BLOCK:]
        warm = await measured(accounts, first, options.messages, ", first 20")
        texts = questions(lines, options.queries)
        rows = await measured(accounts, texts, options.messages, "")
        again = await measured(accounts, texts[-2 * BLOCK :], options.messages, ", asked again")
    return [*warm, *rows, *again]


def main() -> None:
    """Start the model's process, measure, print a table."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--data", type=Path, default=SHARED / "crd3")
    made.add_argument("--messages", type=int, default=2_000)
    made.add_argument("--queries", type=int, default=200)
    made.add_argument("--wait", type=float, default=0.0, metavar="MS")
    made.add_argument("--json", action="store_true")
    options = made.parse_args()
    configure_logging("error", "console")
    here, there = multiprocessing.Pipe()
    arguments = options.wait / 1000, there
    model = multiprocessing.Process(target=serve_embeddings, args=arguments, daemon=True)
    model.start()
    url = f"http://127.0.0.1:{here.recv()}/v1"
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows = uvloop.run(bench(options, Path(folder), url))
    finally:
        model.terminate()
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print("| search | CPU (ms) | p50 (ms) | p95 (ms) | requests |\n|---|---|---|---|---|")
    for row in rows:
        figures = row.cpu_ms, row.wall_p50_ms, row.wall_p95_ms, row.requests
        print(f"| {row.what} | {' | '.join(map(str, figures))} |")


if __name__ == "__main__":
    main()
