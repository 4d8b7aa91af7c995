"""Tests of connections that are too many, too slow, too large or idle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.server import Running, running
from tests.support.waiting import until_true

pytestmark = pytest.mark.anyio

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@contextlib.asynccontextmanager
async def connect(server: Running) -> AsyncGenerator[Streams]:
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), 20)
    return b""


async def read_head(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)


async def trickle(streams: Streams, data: bytes, *, seconds: float = 0.1) -> bytes:
    """Send data again and again until the server closes the connection. Return its answer."""
    reader, writer = streams
    over = asyncio.create_task(read_to_end(reader))
    while not over.done():
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
        await asyncio.sleep(seconds)
    return await over


async def test_a_head_that_is_too_large_is_refused_before_it_is_complete(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with running(sqlite_url, tmp_path, header_bytes=20_000) as server:
        async with connect(server) as (reader, writer):
            writer.write(GET + b"X-Fine: " + b"a" * 10_000 + b"\r\n\r\n")
            assert (await read_head(reader)).startswith(b"HTTP/1.1 200")
        for endless in (b"X-Long: " + b"a" * 300_000, b"X-Many: 1\r\n" * 30_000):
            async with connect(server) as (reader, writer):
                writer.write(GET + endless)
                answer = await read_to_end(reader)
                assert answer == b"" or answer.startswith(b"HTTP/1.1 431")
        async with connect(server) as (reader, writer):
            writer.write(GET + b"\r\n")
            assert (await read_head(reader)).startswith(b"HTTP/1.1 200")


async def test_endless_trailers_are_a_head_that_is_too_large(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with running(sqlite_url, tmp_path, header_bytes=20_000) as server:
        async with connect(server) as (reader, writer):
            writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
            writer.write(b"X-Trailer: 1\r\n" * 20_000)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            await read_to_end(reader)
        assert not server.server.server_state.connections


async def test_a_head_that_trickles_is_given_up_and_so_is_a_silent_connection(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        running(sqlite_url, tmp_path, header_seconds=0.5) as server,
        connect(server) as (silent, _),
        connect(server) as (reader, writer),
    ):
        writer.write(GET)
        answer = await trickle((reader, writer), b"X-More: 1\r\n")
        assert answer.startswith(b"HTTP/1.1 408")
        assert await read_to_end(silent) == b""


async def test_a_body_that_trickles_is_given_up_and_one_that_comes_steadily_is_not(
    sqlite_url: str, tmp_path: Path
) -> None:
    limits: dict[str, Any] = {"body_seconds": 0.5, "body_bytes_per_second": 1_000}
    async with running(sqlite_url, tmp_path, **limits) as server:
        start = POST + b"Content-Length: 3000\r\n\r\n"
        async with connect(server) as (reader, writer):
            writer.write(start)
            assert await trickle((reader, writer), b" ") == b""
        async with connect(server) as (reader, writer):
            writer.write(start)
            for _ in range(10):  # for longer than body_seconds, and much faster than the pace
                writer.write(b" " * 300)
                await asyncio.sleep(0.1)
            assert (await read_head(reader)).startswith(b"HTTP/1.1 4")


async def test_an_idle_connection_is_closed(sqlite_url: str, tmp_path: Path) -> None:
    async with (
        running(sqlite_url, tmp_path, keep_alive_seconds=1) as server,
        connect(server) as (reader, writer),
    ):
        writer.write(GET + b"\r\n")
        assert (await read_to_end(reader)).startswith(b"HTTP/1.1 200")


async def test_the_rest_of_a_body_is_not_taken_for_ever_after_its_answer(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.server.LINGER_SECONDS", 0.5)
    async with running(sqlite_url, tmp_path) as server, connect(server) as (reader, writer):
        writer.write(POST + b"Content-Length: 900000\r\n\r\n")
        answer = await trickle((reader, writer), b" " * 1000, seconds=0.05)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


async def test_beyond_so_many_connections_requests_get_503_and_health_answers(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with running(sqlite_url, tmp_path, max_connections=4) as server:
        async with contextlib.AsyncExitStack() as stack:
            open_ones = [await stack.enter_async_context(connect(server)) for _ in range(5)]
            await until_true(lambda: len(server.server.server_state.connections) >= 5)
            reader, writer = open_ones[-1]
            writer.write(GET.replace(b"/health", b"/ready") + b"\r\n")
            assert (await read_head(reader)).startswith(b"HTTP/1.1 503")
            reader, writer = open_ones[0]
            writer.write(GET + b"\r\n")
            assert (await read_head(reader)).startswith(b"HTTP/1.1 200")
        await until_true(lambda: not server.server.server_state.connections)
        async with connect(server) as (reader, writer):
            writer.write(GET.replace(b"/health", b"/ready") + b"\r\n")
            assert (await read_head(reader)).startswith(b"HTTP/1.1 200")


async def test_streams_outlive_the_time_that_heads_and_bodies_have(
    sqlite_url: str, tmp_path: Path
) -> None:
    limits: dict[str, Any] = {"header_seconds": 0.3, "body_seconds": 0.3}
    limits["demo_tokens_per_second"] = 40
    async with running(sqlite_url, tmp_path, **limits) as server, server.account() as ada:
        chat = (await ada.new_chat())["id"]
        events = await ada.turn(chat, text="/demo long 60")
        assert events[-1].name == "turn.completed"
