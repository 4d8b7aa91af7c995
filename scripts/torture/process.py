"""`talekeeper serve` and `talekeeper work` with shorter waits, so that torture ends in minutes.

    python -m scripts.torture.process [--shared-index] serve|work [argument...]

With `--shared-index` the index is that of `index_process.py` instead of a Qdrant server's, at the
port of TALEKEEPER_QDRANT_URL. Nothing else differs.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from backend import app
from backend.accounts.auth import idempotency
from backend.cli import main
from backend.jobs import claims as candidates
from backend.jobs import running, worker
from backend.memory.index import server
from backend.memory.indexing import outbox
from backend.settings import Settings
from backend.turns.run import resume as play_store
from backend.turns.run import start, store
from scripts.torture.index_process import RemoteIndex

JOB_LEASE = timedelta(seconds=3)
TURN_LEASE = timedelta(seconds=4)

SHORTER_WAITS: tuple[tuple[Any, str, Any], ...] = (
    (running, "FIRST_DELAY_SECONDS", 0.1),
    (running, "MAX_DELAY_SECONDS", 2.0),
    (worker, "HEARTBEAT_INTERVAL", timedelta(seconds=0.75)),
    (candidates, "FIRST_LOSS_WAIT", timedelta(seconds=4)),
    (candidates, "SECOND_LOSS_WAIT", timedelta(seconds=12)),
    (store, "LEASE_DURATION", TURN_LEASE),
    (start, "LEASE_DURATION", TURN_LEASE),
    (play_store, "LEASE_DURATION", TURN_LEASE),
    (app, "SWEEP_SECONDS", 1.0),
    # Longer than a client of torture waits for an answer.
    (idempotency, "CLAIM_TIMEOUT", timedelta(seconds=25)),
    (outbox, "SECOND_DELETE_DELAY", timedelta(seconds=10)),
)


def replace(holder: Any, name: str, value: Any) -> None:
    """Set an attribute of a module, or exit if it does not exist."""
    if not hasattr(holder, name):
        raise SystemExit(f"{holder.__name__} has no {name}: change this script.")
    setattr(holder, name, value)


def shorten_waits() -> None:
    for wait in SHORTER_WAITS:
        replace(*wait)
    defaults: dict[str, Any] | None = worker.Worker.__init__.__kwdefaults__
    if defaults is None or "lease" not in defaults:
        raise SystemExit("Worker takes no lease: change this script.")
    defaults["lease"] = JOB_LEASE


def share_index() -> None:
    """Use the shared index instead of a Qdrant server."""
    for function in SHARED_INDEX:
        replace(*function)


async def open_remote(settings: Settings, name: str, dimension: int | None) -> RemoteIndex:
    index = RemoteIndex(urlsplit(settings.qdrant_url).port or 0, name, dimension)
    await index.open()
    return index


async def list_remote_collections(settings: Settings) -> set[str]:
    return await RemoteIndex(urlsplit(settings.qdrant_url).port or 0, "", None).collections()


SHARED_INDEX: tuple[tuple[Any, str, Any], ...] = (
    (server, "open_server", open_remote),
    (server, "list_server_collections", list_remote_collections),
)


if __name__ == "__main__":
    shorten_waits()
    arguments = sys.argv[1:]
    if arguments[:1] == ["--shared-index"]:
        del arguments[0]
        share_index()
    sys.exit(main(arguments))
