"""Many connections, slow ones, endless headers; many searches and many streams at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from scripts.torture.hostile_user import HostileUser

LASTS = 6.0
"""Seconds that each of these goes on."""


@asynccontextmanager
async def _connections(user: HostileUser, count: int) -> AsyncGenerator[list[asyncio.StreamWriter]]:
    """Yield up to a number of connections, as far as the server accepts them."""
    opened: list[asyncio.StreamWriter] = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    _, writer = await asyncio.open_connection(*user.place)
                opened.append(writer)
        user.statuses[f"{len(opened)} connections"] += 1
        yield opened
    finally:
        for each in opened:
            each.close()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    # uvloop calls it a RuntimeError when the other end has closed the connection.
    with contextlib.suppress(OSError, TimeoutError, RuntimeError):
        writer.write(data)
        async with asyncio.timeout(2):
            await writer.drain()


async def slowloris(user: HostileUser) -> None:
    """Send 500 requests with headers that arrive byte by byte."""
    async with _connections(user, 500) as opened:
        for each in opened:
            await _send(each, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        ends = asyncio.get_running_loop().time() + LASTS
        while asyncio.get_running_loop().time() < ends:
            for each in opened:
                await _send(each, b"a")
            await asyncio.sleep(0.25)


async def slow_bodies(user: HostileUser) -> None:
    """Send 200 uploads with bodies that arrive byte by byte."""
    head = (
        "POST /api/v1/characters/import HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {user.client.token}\r\nContent-Length: 20000000\r\n"
        'Content-Type: multipart/form-data; boundary="b"\r\n\r\n'
    )
    async with _connections(user, 200) as opened:
        for each in opened:
            await _send(each, head.encode())
        ends = asyncio.get_running_loop().time() + LASTS
        while asyncio.get_running_loop().time() < ends:
            for each in opened:
                await _send(each, b"a")
            await asyncio.sleep(0.25)


async def huge_headers(user: HostileUser) -> None:
    """50 requests with headers of 10 MB."""
    async with _connections(user, 50) as opened:
        for each in opened:
            await _send(each, b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        line = b"X-Much: " + b"a" * 100_000 + b"\r\n"
        for _ in range(100):
            await asyncio.gather(*(_send(each, line) for each in opened))


async def idle_connections(user: HostileUser) -> None:
    """900 connections that say nothing."""
    async with _connections(user, 900):
        await asyncio.sleep(LASTS)


async def search_storm(user: HostileUser) -> None:
    """600 searches of one user, 60 at a time, with long questions."""
    chat = await user.chat()
    for n in range(5):
        await user.say(chat, f"Line {n} about the harbour, the lamps and the door.")
    question = "harbour lamps door rain old " * 30
    at_once = asyncio.Semaphore(60)

    async def search(n: int) -> None:
        async with at_once:
            await user.ask("search", "GET", "/search", params={"q": f"{n} {question}"})

    await asyncio.gather(*(search(n) for n in range(600)))


async def many_streams(user: HostileUser) -> None:
    """100 streams of one user's turns, and 100 that follow one of them."""
    chats = [await user.chat() for _ in range(100)]
    await asyncio.gather(*(user.say(chat, "Tell me all of it.") for chat in chats))
    turns = await user.ask("turns", "GET", f"/chats/{chats[0]}/turns")
    if turns.outcome == "ok" and turns.body["items"]:
        path = f"/turns/{turns.body['items'][0]['id']}/events"
        await asyncio.gather(*(user.ask("follow", "GET", path) for _ in range(100)))


CONNECTIONS = {
    "slow headers (slowloris)": slowloris,
    "slow bodies": slow_bodies,
    "huge headers": huge_headers,
    "900 idle connections": idle_connections,
    "search storm": search_storm,
    "100 streams of one user": many_streams,
}
