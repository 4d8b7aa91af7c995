"""How much memory a process and its children hold."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path

from scripts._bench import resident_mib


def tree_mib(pid: int) -> float:
    """Resident memory of a process and of all below it, in MiB."""
    total = 0.0
    with contextlib.suppress(OSError):
        total = resident_mib(pid)
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                total += tree_mib(int(child))
    return total


@dataclass
class MemoryWatch:
    """Notes the most that a process and its children held, looking every 20 ms."""

    pid: int
    before: float = 0.0
    most: float = 0.0

    async def watch(self) -> None:
        """Look until cancelled."""
        self.before = self.most = tree_mib(self.pid)
        while True:
            self.most = max(self.most, tree_mib(self.pid))
            await asyncio.sleep(0.02)

    @property
    def growth(self) -> float:
        """By how much it grew, in MiB."""
        return self.most - self.before
