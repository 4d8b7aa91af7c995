"""The report of a campaign: one row for each fault, and progress while it runs."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Row:
    """One fault. `broken` are the promises that did not hold; `skipped` says why it was not run."""

    group: str
    name: str
    figures: dict[str, Any] = field(default_factory=dict[str, Any])
    broken: list[str] = field(default_factory=list[str])
    skipped: str = ""
    is_told: bool = field(default=False, repr=False)

    def tell(self) -> None:
        """Print the result once, because a campaign can end before its table."""
        if not self.is_told:
            self.is_told = True
            print(f"{self.group}: {self.name}: {self.verdict}  {self.told}", file=sys.stderr)
            for each in self.broken[:5]:
                print(f"    {each[:300]}", file=sys.stderr)

    @property
    def told(self) -> str:
        """The figures in one line."""
        return self.skipped or ", ".join(f"{name} {value}" for name, value in self.figures.items())

    @property
    def verdict(self) -> str:
        """The result in a word."""
        return "skipped" if self.skipped else "BROKEN" if self.broken else "held"


@dataclass
class Progress:
    """Progress on standard error: one line on a terminal, rare lines elsewhere."""

    every: float = 10.0
    _told_at: float = 0.0

    def tell(self, text: str, *, always: bool = False) -> None:
        """Print the progress."""
        now = time.monotonic()
        if sys.stderr.isatty() and not always:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif always or now - self._told_at >= self.every:
            self._told_at = now
            print(text, file=sys.stderr, flush=True)


def machine() -> str:
    """Return the system, the number of cores and the version of Python."""
    return f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def show(rows: Sequence[Row], *, as_json: bool, seed: int, seconds: float) -> None:
    """Print the table, and each promise that did not hold."""
    if as_json:
        told: dict[str, Any] = {
            "machine": machine(),
            "seed": seed,
            "seconds": round(seconds),
            "rows": [{**asdict(row), "verdict": row.verdict} for row in rows],
        }
        print(json.dumps(told, indent=2, default=str))
        return
    print(f"\n{machine()}; seed {seed}; {seconds:.0f} s\n")
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        print(f"{row.group:<10} {row.name:<{width}} {row.verdict:<8} {row.told}")
    for row in rows:
        for each in row.broken[:20]:
            print(f"  {row.group}, {row.name}: {each}")
        if len(row.broken) > 20:
            print(f"  {row.group}, {row.name}: and {len(row.broken) - 20} more")
    broken = sum(bool(row.broken) for row in rows)
    print(f"\n{len(rows)} faults, {broken} with promises that did not hold.")
