"""How much memory a process and its children hold."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from scripts._processes import resident_mib


@dataclass
class MemoryWatch:
    """Notes the most that a process and its children held, looking every 20 ms."""

    pid: int
    before: float = 0.0
    most: float = 0.0

    async def watch(self) -> None:
        """Look until cancelled."""
        self.before = self.most = resident_mib(self.pid)
        while True:
            self.most = max(self.most, resident_mib(self.pid))
            await asyncio.sleep(0.02)

    @property
    def growth(self) -> float:
        """By how much it grew, in MiB."""
        return self.most - self.before
