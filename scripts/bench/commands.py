"""The command line of `scripts/bench.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

NAMES = (
    "campaign", "deletion", "embedding", "endpoint", "enrichment", "group", "load", "memory",
    "page", "queue", "retrieval", "round_trips", "start", "storage", "streams", "tenants",
    "transfer", "turn",
)  # fmt: skip
"""Modules of this package that have a `main(arguments)`."""


def run_command(path: str, names: Sequence[str], arguments: Sequence[str]) -> None:
    """Run the module of a package that the first argument names."""
    if not arguments or arguments[0] not in names:
        command = path.removeprefix("scripts.bench").replace(".", " ")
        usage = f"Usage: scripts/bench.py{command} NAME [OPTION...]"
        raise SystemExit(f"{usage}\nNames: {', '.join(names)}")
    # Only this module is imported, because each of them imports much.
    import_module(f"{path}.{arguments[0]}").main(arguments[1:])


def main() -> None:
    run_command("scripts.bench", NAMES, sys.argv[1:])
