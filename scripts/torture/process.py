"""`talekeeper serve` and `talekeeper work`, without what would make a campaign endless.

    python -m scripts.torture.process [--shared-index] serve|work [argument...]

With `--shared-index` the index is not a Qdrant server's but the one of `_enrichment_index.py`, at
the port that TALEKEEPER_QDRANT_URL names.

The waits that `_enrichment_process.py` shortens, and beside them a turn whose process is gone is
missed after 4 s and not 30, and looked for each second and not each 15. A request with an
`Idempotency-Key` whose process died may be sent again after 25 s and not after five minutes: longer
than a client here waits for an answer. Points of a deleted account are deleted for the second time
after 10 s and not after five minutes. Nothing else differs.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from backend import app
from backend.accounts.auth import idempotency
from backend.cli import main
from backend.memory.indexing import outbox
from backend.turns.run import resume, start, store
from scripts._enrichment_process import hurry, share_index

TURN_LEASE = timedelta(seconds=4)
SWEEP_EVERY = 1.0
GIVEN_UP_AFTER = timedelta(seconds=25)
FORGOTTEN_AGAIN = timedelta(seconds=10)


def hurry_turns() -> None:
    """Shorten what is waited for before a turn or a request is taken for abandoned."""
    shorter: tuple[tuple[Any, str, Any], ...] = (
        (store, "LEASE_DURATION", TURN_LEASE),
        (start, "LEASE_DURATION", TURN_LEASE),
        (resume, "LEASE_DURATION", TURN_LEASE),
        (app, "SWEEP_EVERY", SWEEP_EVERY),
        (idempotency, "GIVEN_UP_AFTER", GIVEN_UP_AFTER),
        (outbox, "FORGOTTEN_AGAIN", FORGOTTEN_AGAIN),
    )
    for holder, name, value in shorter:
        if not hasattr(holder, name):
            raise SystemExit(f"{holder.__name__} has no {name} any more: change this script.")
        setattr(holder, name, value)


if __name__ == "__main__":
    hurry()
    hurry_turns()
    arguments = sys.argv[1:]
    if arguments[:1] == ["--shared-index"]:
        del arguments[0]
        share_index()
    sys.exit(main(arguments))
