"""Answers over HTTP: disconnects, the drain at the end, files and wire formats."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast
from uuid import uuid4

import msgspec
import pytest
from litestar import Litestar, Request, get, post
from litestar.di import NamedDependency, Provide
from litestar.params import JSONBody
from litestar.testing import AsyncTestClient

from backend.core.cpu_pool import CpuPool, WorkStoppedError, check_stopped
from backend.http.connections import DisconnectMiddleware, Drain
from backend.http.responses import EXCEPTION_HANDLERS
from backend.http.schemas import ENDS_WITH_CLIENT, convert_list

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


async def test_the_drain_ends_if_nothing_runs() -> None:
    drain, running = Drain(60), ["a reply"]
    asyncio.get_running_loop().call_later(0.01, running.clear)
    drain.begin()
    await drain.finish(lambda: bool(running))
    assert drain.is_over
    assert not running


@pytest.mark.parametrize("seconds", [0, 0.01])
async def test_the_drain_ends_at_its_time_limit(seconds: float) -> None:
    drain = Drain(seconds)
    drain.begin()
    async with asyncio.timeout(60):
        await drain.finish(lambda: True)
    assert drain.is_over


async def test_only_the_second_signal_ends_the_wait() -> None:
    drain = Drain(3600)
    drain.receive_signal()
    assert drain.is_on
    waiting = asyncio.create_task(drain.finish(lambda: True))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    drain.receive_signal()
    async with asyncio.timeout(60):
        await waiting


async def test_the_drain_waits_for_requests_without_an_answer() -> None:
    drain = Drain(3600)
    drain.requests = 1
    drain.begin()
    waiting = asyncio.create_task(drain.finish(lambda: False))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    drain.requests = 0
    async with asyncio.timeout(60):
        await waiting


class Said(msgspec.Struct):
    messages: list[str]


@post("/said", status_code=200)
async def said(data: JSONBody[Said], messages: NamedDependency[str]) -> str:
    return f"{messages}: {data.messages[0]}"


@post("/broken")
async def broken(messages: NamedDependency[int]) -> int:
    return messages


async def answer(path: str, body: dict[str, Any], *, dependency: Any = "Mara") -> tuple[int, Any]:
    app = Litestar(
        [said, broken],
        dependencies={"messages": Provide(lambda: dependency, sync_to_thread=False)},
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=None,
        logging_config=None,
    )
    async with AsyncTestClient(app) as client:
        found = await client.post(path, json=body)
        return found.status_code, found.json()


async def test_a_member_that_is_called_like_a_dependency_is_the_client_s_fault() -> None:
    status, problem = await answer("/said", {"messages": 1})
    assert status == 422
    assert problem["errors"] == [
        {"member": "messages", "in": "body", "message": "Expected `array`, got `int`"}
    ]


async def test_a_dependency_of_the_wrong_kind_is_the_server_s_fault() -> None:
    status, problem = await answer("/broken", {}, dependency="no number")
    assert status == 500
    assert problem["type"].endswith(":internal")


class Line(msgspec.Struct):
    seq: int


def test_a_long_list_is_converted_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    convert = msgspec.convert

    def convert_and_count(values: Any, *rest: Any, **named: Any) -> Any:
        sizes.append(len(values))
        return convert(values, *rest, **named)

    monkeypatch.setattr(msgspec, "convert", convert_and_count)
    lines = convert_list([{"seq": number} for number in range(100_000)], Line)

    assert [line.seq for line in lines] == list(range(100_000))
    assert max(sizes) <= 1_000


@pytest.mark.parametrize("number", [0, 499, 500, 12_345])
def test_an_item_of_another_kind_is_named_by_its_place_in_the_whole_list(number: int) -> None:
    values: list[Any] = [{"seq": 1}] * 20_000
    values[number] = {"seq": "one"}
    with pytest.raises(msgspec.ValidationError) as raised:
        convert_list(values, Line, at="$.lines")
    assert str(raised.value) == f"Expected `int`, got `str` - at `$.lines[{number}].seq`"


def test_a_value_that_is_no_list_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="Expected `array`, got `object`"):
        convert_list({}, Line)
