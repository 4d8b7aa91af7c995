"""`talekeeper serve` and `talekeeper work`, without what would make a benchmark endless.

    python -m scripts._enrichment_process serve|work [argument...]

A job that failed waits 0.1 s and not 5 s before its second attempt, 2 s at most and not an hour; a
worker that is gone is missed after 3 s and not 60. A job that lost two processes waits 4 s and not
15, and after three 12 s and not 60. Where TALEKEEPER_QDRANT_URL is set, the index is
not a Qdrant server's but the one of `_enrichment_index.py`, at that port.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from backend.cli import main
from backend.jobs import claims as candidates
from backend.jobs import running, worker
from backend.memory.index import server
from backend.settings import Settings
from scripts._enrichment_index import RemoteIndex

LEASE = timedelta(seconds=3)
HEARTBEAT = timedelta(seconds=0.75)
FIRST_DELAY, LONGEST_DELAY = 0.1, 2.0
ONCE_LOST, TWICE_LOST = timedelta(seconds=4), timedelta(seconds=12)


def hurry() -> None:
    """Shorten what workers of this process wait for."""
    for holder, name, value in (
        (running, "FIRST_DELAY_SECONDS", FIRST_DELAY),
        (running, "MAX_DELAY_SECONDS", LONGEST_DELAY),
        (worker, "HEARTBEAT_INTERVAL", HEARTBEAT),
        (candidates, "FIRST_LOSS_WAIT", ONCE_LOST),
        (candidates, "SECOND_LOSS_WAIT", TWICE_LOST),
    ):
        if not hasattr(holder, name):
            raise SystemExit(f"{holder.__name__} has no {name} any more: change this script.")
        setattr(holder, name, value)
    defaults: dict[str, Any] | None = worker.Worker.__init__.__kwdefaults__
    if defaults is None or "lease" not in defaults:
        raise SystemExit("Worker takes no lease any more: change this script.")
    defaults["lease"] = LEASE


def share_index() -> None:
    """Have the index of `_enrichment_index.py` stand in for a Qdrant server."""
    for name, instead in (("open_server", open_remote), ("server_collections", remote_collections)):
        if not hasattr(server, name):
            raise SystemExit(f"{server.__name__} has no {name} any more: change this script.")
        setattr(server, name, instead)


async def open_remote(settings: Settings, name: str, dimension: int | None) -> RemoteIndex:
    """What stands in for the adapter to a Qdrant server."""
    index = RemoteIndex(urlsplit(settings.qdrant_url).port or 0, name, dimension)
    await index.open()
    return index


async def remote_collections(settings: Settings) -> set[str]:
    """The names of the collections in that index."""
    return await RemoteIndex(urlsplit(settings.qdrant_url).port or 0, "", None).collections()


if __name__ == "__main__":
    hurry()
    share_index()
    sys.exit(main(sys.argv[1:]))
