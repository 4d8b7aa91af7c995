"""A user in another process that only reads, and the longest of its waits.

    python -m scripts.torture.bystander URL TOKEN

Every 50 ms it asks for `/health` on a new connection, and for the account on one that is kept. For
each line that it is sent it says, as JSON, how long the worst waits since the last one were, those
that are not over yet among them.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

EVERY = 0.05
PATIENCE = 30.0


@dataclass
class Wait:
    """The waits of one kind of request, in seconds."""

    longest: float = 0.0
    count: int = 0
    failed: int = 0
    asked_at: float | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> dict[str, float]:
        """Return the waits since the last call."""
        with self.lock:
            under_way = time.perf_counter() - self.asked_at if self.asked_at is not None else 0.0
            told = {
                "longest": max(self.longest, under_way),
                "count": self.count,
                "failed": self.failed,
            }
            self.longest, self.count, self.failed = 0.0, 0, 0
            if self.asked_at is not None:
                self.asked_at = time.perf_counter()
            return told


def watch(url: str, path: str, headers: dict[str, str], *, kept: bool, wait: Wait) -> None:
    """Send requests until cancelled."""
    place = urlsplit(url)
    connection: http.client.HTTPConnection | None = None
    while True:
        connection = connection or http.client.HTTPConnection(
            place.hostname or "", place.port, timeout=PATIENCE
        )
        with wait.lock:
            wait.asked_at = time.perf_counter()
        good = False
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            answer.read()
            good = answer.status == 200
        with wait.lock:
            seconds = time.perf_counter() - (wait.asked_at or 0.0)
            wait.asked_at = None
            wait.longest = max(wait.longest, seconds)
            wait.count += 1
            wait.failed += not good
        if not good or not kept:
            connection.close()
            connection = None
        time.sleep(max(0.0, EVERY - seconds))


@dataclass
class Bystander:
    """The process, seen from the campaign."""

    process: asyncio.subprocess.Process

    async def take(self) -> dict[str, dict[str, float]]:
        """The worst waits since the last call, by `health` and `read`."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("The bystander is not spoken to.")
        self.process.stdin.write(b"\n")
        await self.process.stdin.drain()
        found: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return found

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


async def start_bystander(url: str, token: str) -> Bystander:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "scripts.torture.bystander", url, token),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    return Bystander(process)


def main(url: str, token: str) -> None:
    health, read = Wait(), Wait()
    bearer = {"authorization": f"Bearer {token}"}
    arguments: tuple[tuple[str, dict[str, str], bool, Wait], ...] = (
        ("/health", {}, False, health),
        ("/api/v1/me", bearer, True, read),
    )
    for path, headers, kept, wait in arguments:
        options: dict[str, Any] = {"kept": kept, "wait": wait}
        threading.Thread(
            target=watch, args=(url, path, headers), kwargs=options, daemon=True
        ).start()
    for _ in sys.stdin:
        print(json.dumps({"health": health.take(), "read": read.take()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
