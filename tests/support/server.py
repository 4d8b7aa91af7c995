"""A complete server on a real socket, in the event loop of the test."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from litestar import Litestar
from litestar.middleware import ASGIMiddleware
from pydantic import BaseModel

from backend.app import create_app, make_middleware
from backend.container import Services, build_services
from backend.database.engine import Database
from backend.generation.registry import ModelRegistry
from backend.http.responses import SchemeFinder, observe
from backend.server import make_server_config
from backend.settings import Settings
from backend.vault.root import RootKeys
from backend.vault.slots import PasswordKdf
from tests.support.engine_copies import copied_engines
from tests.support.waiting import PATIENCE

CHEAP_KDF = PasswordKdf(salt=b"\0" * 16, memory_kib=32, passes=1, lanes=1)
"""Argon2id with costs that are low enough for tests, and too low for users."""

ROOT = RootKeys({1: b"r" * 32})
PASSWORD = "a fine long password"

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts no authority: the servers use plain HTTP, and loading authorities is slow."""


@dataclass(frozen=True)
class Event:
    """A server-sent event. `turn_id` is that of a later turn of the stream, or empty."""

    id: int
    name: str
    data: Any
    turn_id: str = ""

    @property
    def place(self) -> str:
        """The id as it was sent."""
        return f"{self.turn_id}:{self.id}" if self.turn_id else str(self.id)


@dataclass
class Account:
    """An account and a client that is signed in to it."""

    client: httpx.AsyncClient
    name: str
    recovery_code: str
    user: dict[str, Any]

    async def new_chat(self, **fields: Any) -> dict[str, Any]:
        chat: dict[str, Any] = ok(await self.client.post("/api/v1/chats", json=fields), 201)
        return chat

    async def new_character(self, **fields: Any) -> dict[str, Any]:
        body = {"name": "Mara", "first_mes": "The door creaks open.", **fields}
        made = await self.client.post("/api/v1/characters", json=body)
        character: dict[str, Any] = ok(made, 201)
        return character

    async def turn(self, chat_id: str, **body: Any) -> list[Event]:
        async with self.client.stream(
            "POST", f"/api/v1/chats/{chat_id}/turns", json=body
        ) as response:
            assert response.status_code == 200, await response.aread()
            return [event async for event in read_events(response)]

    async def messages(self, chat_id: str, **query: Any) -> list[dict[str, Any]]:
        page = ok(await self.client.get(f"/api/v1/chats/{chat_id}/messages", params=query))
        items: list[dict[str, Any]] = page["items"]
        return items

    # Paths of these methods begin after `/api/v1`. Answers with another status are failures.

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        return _object(await self.ask("GET", path, params=query or None))

    async def post(
        self, path: str, body: Any = None, status: int = 200, **query: Any
    ) -> dict[str, Any]:
        return _object(await self.ask("POST", path, json=body, params=query or None), status)

    async def put(
        self, path: str, body: Any = None, status: int = 200, **query: Any
    ) -> dict[str, Any]:
        return _object(await self.ask("PUT", path, json=body, params=query or None), status)

    async def patch(self, path: str, body: Any) -> dict[str, Any]:
        return _object(await self.ask("PATCH", path, json=body))

    async def delete(self, path: str, status: int = 204, **query: Any) -> dict[str, Any]:
        return _object(await self.ask("DELETE", path, params=query or None), status)

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request and return its answer, of any status."""
        return await self.client.request(method, f"/api/v1{path}", **options)

    def stream(
        self, method: str, path: str, **options: Any
    ) -> contextlib.AbstractAsyncContextManager[httpx.Response]:
        return self.client.stream(method, f"/api/v1{path}", **options)


@dataclass
class Running:
    """A server that listens."""

    url: str
    parts: Services
    server: uvicorn.Server
    app: Litestar

    @contextlib.asynccontextmanager
    async def browser(self) -> AsyncGenerator[httpx.AsyncClient]:
        """Yield a client that keeps cookies and returns the CSRF token, as the page does."""

        async def send_token(request: httpx.Request) -> None:
            # Browsers send Secure cookies to this machine's own address over http, too.
            secure = [each for each in client.cookies.jar if each.secure]
            if secure and "cookie" not in request.headers:
                request.headers["cookie"] = "; ".join(f"{c.name}={c.value}" for c in secure)
            token = client.cookies.get("csrftoken")
            if token and request.method not in {"GET", "HEAD"}:
                request.headers["x-csrftoken"] = token

        async with httpx.AsyncClient(
            base_url=self.url,
            event_hooks={"request": [send_token]},
            timeout=PATIENCE,
            trust_env=False,
            verify=PLAIN,
        ) as client:
            yield client

    @contextlib.asynccontextmanager
    async def signed_in(self, name: str, password: str = PASSWORD) -> AsyncGenerator[Account]:
        """Sign in with a new client."""
        async with self.browser() as client:
            body = {"username": name, "password": password}
            user = ok(await client.post("/api/v1/sessions", json=body), 201)
            yield Account(client, name, "", user)

    @contextlib.asynccontextmanager
    async def program(self, token: str) -> AsyncGenerator[httpx.AsyncClient]:
        """Yield a client that sends an API key."""
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=PATIENCE, trust_env=False, verify=PLAIN
        ) as client:
            yield client

    @contextlib.asynccontextmanager
    async def account(self, name: str = "ada", **extra: Any) -> AsyncGenerator[Account]:
        """Sign up. The first account is an administrator."""
        async with self.browser() as client:
            body = {"username": name, "password": PASSWORD, **extra}
            made = ok(await client.post("/api/v1/accounts", json=body), 201)
            yield Account(client, name, made["recovery_code"], made["user"])


class Applications:
    """Unused applications, kept because registering all routes takes longer than most tests."""

    def __init__(self) -> None:
        self._free: list[tuple[Litestar, Services, list[ASGIMiddleware]]] = []

    @contextlib.contextmanager
    def take(self, parts: Services) -> Generator[Litestar]:
        """Yield an application with these services; keep it for reuse unless the block fails."""
        guards = make_middleware(parts)
        if not self._free:
            own = copy.copy(parts)
            app = create_app(own)
            kept = [each for each in app.middleware if isinstance(each, ASGIMiddleware)]
            self._free.append((app, own, kept[-len(guards) :]))
        taken = self._free.pop()
        app, own, kept = taken
        vars(own).update(vars(parts))
        for old, new in zip(kept, guards, strict=True):
            vars(old).update(vars(new))
        yield app
        self._free.append(taken)

    def forget(self) -> None:
        """Drop the kept applications, so that the next test gets a new one."""
        self._free.clear()


APPLICATIONS = Applications()


class _Server(uvicorn.Server):
    """A server that stops at once. Uvicorn checks every 0.1 s whether it has to stop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.stopping.wait()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop at once if no response is pending, because uvicorn always waits 0.1 s."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
        else:
            await self.lifespan.shutdown()


_started = count(1)


def settings_of(**values: Any) -> Settings:
    """Return settings with these values and defaults for all others.

    The environment and `.env` are ignored, because reading them takes 20 ms.
    """
    settings = Settings.__new__(Settings)
    BaseModel.__init__(settings, **values)
    return settings


@contextlib.asynccontextmanager
async def running(
    database_url: str,
    folder: Path,
    *,
    registry: ModelRegistry | None = None,
    root: RootKeys = ROOT,
    **settings: Any,
) -> AsyncGenerator[Running]:
    """Serve on a free port until the block ends."""
    values = {
        "registration": "open",
        "demo_tokens_per_second": 0,
        "index_delay_seconds": 0,
        "max_turns_per_user": 1000,
        # Tests send more requests than users do. Tests of quotas set limits of their own.
        "max_streams_per_user": 1000,
        "max_requests_per_minute_per_user": 0,
        "max_requests_per_minute_per_address": 0,
        **settings,
    }
    config = settings_of(data_dir=folder, database_url=database_url, **values)
    # Each start calls `gc.freeze`, which would keep the garbage of earlier tests for ever.
    number = next(_started)
    if number % 50 == 0:
        gc.unfreeze()
    if number % 5 == 0:  # a collection takes a tenth of a start's time
        gc.collect()
    with copied_engines():
        parts = await build_services(
            config, root, Database(database_url), kdf=CHEAP_KDF, registry=registry
        )
        # With this protocol number asyncio sends small packets at once. Without it, each request on
        # a kept connection waits 40 ms for an acknowledgement.
        with APPLICATIONS.take(parts) as app, socket.socket(proto=socket.IPPROTO_TCP) as listener:
            listener.bind(("127.0.0.1", 0))
            server = _Server(
                make_server_config(
                    observe(
                        app,
                        SchemeFinder(
                            config.public_origin, config.trusted_proxies, signs_itself=config.lan
                        ),
                        parts.cross_origin,
                    ),
                    config,
                    shutdown_seconds=2,
                )
            )
            task = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                if task.done():
                    await task
                await asyncio.sleep(0.01)
            try:
                yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", parts, server, app)
            finally:
                server.should_exit = True
                server.stopping.set()
                await task


def ok(response: httpx.Response, status: int = 200) -> Any:
    """Return the body of a response; fail unless it has this status."""
    assert response.status_code == status, response.text
    return response.json() if response.content else None


def _object(response: httpx.Response, status: int = 200) -> dict[str, Any]:
    """Return the JSON object of a response, or an empty one if there is no content."""
    found: dict[str, Any] | None = ok(response, status)
    return found or {}


def problem(response: httpx.Response, status: int, slug: str) -> dict[str, Any]:
    """Return the body of a response; fail unless it is this problem."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["type"] == f"urn:talekeeper:problem:{slug}", body
    assert body["status"] == status
    return body


async def read_events(response: httpx.Response) -> AsyncGenerator[Event]:
    """Yield the events of a stream as they arrive. Comment lines are ignored."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if not line:
            if fields:
                turn_id, _, number = fields["id"].rpartition(":")
                yield Event(int(number), fields["event"], json.loads(fields["data"]), turn_id)
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


def text_of(events: list[Event]) -> str:
    """Return the reply that the deltas of a stream add up to."""
    return "".join(event.data["text"] for event in events if event.name == "text.delta")


@dataclass(frozen=True)
class Requests:
    """Requests of an account. Keyword arguments are the query or the body."""

    account: Account

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self.account.ask(method, path, **options)

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        return await self.account.get(path, **query)

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        return await self.account.post(path, body, 201)

    async def patch(self, path: str, **body: Any) -> dict[str, Any]:
        return await self.account.patch(path, body)

    async def put(self, path: str, status: int = 204, **body: Any) -> dict[str, Any]:
        return await self.account.put(path, body, status)

    async def delete(self, path: str) -> None:
        await self.account.delete(path)


async def read_pages(
    get: Callable[..., Awaitable[httpx.Response]], path: str, **query: Any
) -> list[list[dict[str, Any]]]:
    """Return the items of a list, page by page. `get` is the method of a client."""
    pages: list[list[dict[str, Any]]] = []
    while True:
        page = ok(await get(path, params=query))
        pages.append(page["items"])
        if page["next"] is None:
            return pages
        query["after"] = page["next"]
