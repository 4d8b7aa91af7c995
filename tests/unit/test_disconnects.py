"""Work in the pool stops if the client of its request closes the connection."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast
from uuid import uuid4

import pytest
from litestar import Litestar, Request, get, post

from backend.core.cpu_pool import CpuPool, WorkStoppedError, check_stopped
from backend.http.connections import DisconnectMiddleware
from backend.http.responses import EXCEPTION_HANDLERS
from backend.http.schemas import ENDS_WITH_CLIENT

pytestmark = pytest.mark.anyio

ADA = uuid4()


class Work:
    """Work in a loop that ends when it is stopped or `may_end`."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.was_stopped = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> str:
        self.has_begun.set()
        while not self.may_end.is_set():
            try:
                check_stopped()
            except WorkStoppedError:
                self.was_stopped.set()
                raise
        return "done"


class Server:
    """An application with a route that works for one user in the pool."""

    def __init__(self, *, ends_with_client: bool = True) -> None:
        self.pool = CpuPool(2)
        self.work = Work()
        self.hang_up = asyncio.Event()
        self.sent: list[Any] = []

        @get("/work", opt={ENDS_WITH_CLIENT: ends_with_client})
        async def get_work() -> str:
            return await self.pool.run(ADA, self.work)

        @post("/work", opt={ENDS_WITH_CLIENT: ends_with_client})
        async def do_work(request: Request[Any, Any, Any]) -> str:
            await request.body()
            return await self.pool.run(ADA, self.work)

        self.app = Litestar(
            [get_work, do_work],
            middleware=[DisconnectMiddleware()],
            exception_handlers=EXCEPTION_HANDLERS,
            openapi_config=None,
            logging_config=None,
        )

    async def ask(self, method: str = "POST") -> None:
        """Send a request, a POST in two parts, and keep the connection open until `hang_up`."""
        body = [(b"a", True), (b"b", False)] if method == "POST" else [(b"", False)]
        parts = iter(body)

        async def receive() -> dict[str, Any]:
            if part := next(parts, None):
                return {"type": "http.request", "body": part[0], "more_body": part[1]}
            await self.hang_up.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.sent.append(message)

        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": "/work",
            "raw_path": b"/work",
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-length", b"2")] if method == "POST" else [],
            "scheme": "http",
            "server": ("test", 80),
            "client": ("test", 1),
            "http_version": "1.1",
            "state": {},
        }
        await self.app(cast("Any", scope), cast("Any", receive), send)

    @property
    def status(self) -> int:
        return int(next(each["status"] for each in self.sent if "status" in each))


async def begun(work: Work) -> None:
    while not work.has_begun.is_set():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_running_work_stops_when_the_client_hangs_up(method: str) -> None:
    server = Server()
    asking = asyncio.create_task(server.ask(method))
    await begun(server.work)
    server.hang_up.set()
    await asyncio.wait_for(asking, 30)
    assert await asyncio.wait_for(server.pool.run(ADA, lambda: "next"), 30) == "next"
    assert server.work.was_stopped.is_set()
    assert server.status == 400


async def test_waiting_work_is_dropped_when_the_client_hangs_up() -> None:
    server, first = Server(), Work()
    running = asyncio.create_task(server.pool.run(ADA, first))
    await begun(first)
    asking = asyncio.create_task(server.ask())
    await asyncio.sleep(0.01)
    server.hang_up.set()
    await asyncio.wait_for(asking, 30)
    first.may_end.set()
    assert await running == "done"
    assert await server.pool.run(ADA, lambda: "next") == "next"
    assert not server.work.has_begun.is_set()


@pytest.mark.parametrize(("method", "status"), [("POST", 201), ("GET", 200)])
async def test_a_client_that_stays_gets_its_answer(method: str, status: int) -> None:
    server = Server()
    asking = asyncio.create_task(server.ask(method))
    await begun(server.work)
    server.work.may_end.set()
    await asyncio.wait_for(asking, 30)
    assert server.status == status


async def test_the_work_of_other_routes_goes_on_when_the_client_hangs_up() -> None:
    server = Server(ends_with_client=False)
    asking = asyncio.create_task(server.ask())
    await begun(server.work)
    server.hang_up.set()
    await asyncio.sleep(0.01)
    assert not asking.done()
    server.work.may_end.set()
    await asyncio.wait_for(asking, 30)
    assert not server.work.was_stopped.is_set()
