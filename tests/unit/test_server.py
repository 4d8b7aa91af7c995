"""The server's greeting, its accepted clients and its end."""

from __future__ import annotations

import asyncio
import io
import socket
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import uvicorn
import zxingcpp
from uvicorn.server import ServerState

from backend.generation.registry import ModelRegistry
from backend.http.connections import Drain
from backend.lan.service import LocalNetwork
from backend.server import LanProtocol, Server, open_listener, render_greeting
from tests.support.server import settings_of

pytestmark = pytest.mark.anyio


class LateConnection:
    """A connection that uvicorn's one round of closing missed."""

    cycle = None

    def __init__(self, connections: set[Any]) -> None:
        self._connections = connections
        self._missed = False

    def shutdown(self) -> None:
        if self._missed:
            self._connections.discard(self)
        self._missed = True


class Turns:
    """Turns, of which none runs."""

    runs: ClassVar[list[Any]] = []

    async def close(self) -> None:
        return


class Jobs:
    """Jobs without followers."""

    def close(self) -> None:
        return


class Worker:
    """A worker without jobs."""

    is_busy = False

    def drain(self) -> None:
        return


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers that all is well."""
    head = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
    await send(head)
    await send({"type": "http.response.body", "body": b""})


def made_server(drain: Drain) -> Server:
    config = uvicorn.Config(application, lifespan="off", log_config=None)
    config.load()
    turns: Any = Turns()
    jobs: Any = Jobs()
    worker: Any = Worker()
    server = Server(config, drain, turns=turns, jobs=jobs, worker=worker, announce=lambda _: None)
    server.lifespan = config.lifespan_class(config)
    server.servers = []
    return server


async def test_a_connection_that_came_as_listening_ended_is_closed_too() -> None:
    server = made_server(Drain(0))
    connections: set[Any] = server.server_state.connections
    connections.add(LateConnection(connections))
    async with asyncio.timeout(60):
        await server.shutdown()
    assert not connections


class Screen(io.StringIO):
    """A terminal, or the file that output is sent to."""

    def __init__(self, encoding: str, *, is_terminal: bool) -> None:
        super().__init__()
        self._encoding, self._is_terminal = encoding, is_terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._is_terminal


def read_qr(text: str) -> list[str]:
    """The texts of the QR codes that these lines show on a dark ground."""
    halves = {" ": (0, 0), "▀": (1, 0), "▄": (0, 1), "█": (1, 1)}
    lines = [line for line in text.splitlines() if line and set(line) <= halves.keys()]
    if not lines:
        return []
    rows = [[halves[sign][half] for sign in line] for line in lines for half in (0, 1)]
    image = np.kron(np.array(rows, dtype=np.uint8) * 255, np.ones((8, 8), dtype=np.uint8))
    return [each.text for each in zxingcpp.read_barcodes(image)]


@pytest.mark.parametrize(
    ("screen", "codes"),
    [
        (Screen("utf-8", is_terminal=True), ["https://192.168.7.20:8443"]),
        (Screen("utf-8", is_terminal=False), []),
        (Screen("cp1252", is_terminal=True), []),
    ],
)
def test_the_greeting_names_the_address_for_phones_and_draws_it_on_terminals(
    screen: Screen, codes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(data_dir=tmp_path, lan=True)
    lan = LocalNetwork(settings, find=lambda: [IPv4Address("192.168.7.20")])
    monkeypatch.setattr("sys.stdout", screen)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        said = render_greeting(settings, ModelRegistry(), listener, lan, embeds=True)
    assert "on this network: https://192.168.7.20:8443" in said
    assert read_qr(said) == codes
    said.encode(screen.encoding)


def test_the_greeting_warns_of_plain_http(tmp_path: Path) -> None:
    settings = settings_of(data_dir=tmp_path, plain_http_networks="192.168.1.0/24")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        said = render_greeting(
            settings, ModelRegistry(), listener, LocalNetwork(settings), embeds=True
        )
    assert "Warning: plain http is accepted from 192.168.1.0/24" in said


class Connection(asyncio.Transport):
    """A connection of a client with this address."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize(
    ("client", "aborted"),
    [("192.168.7.30", False), ("127.0.0.1", False), ("100.64.3.2", False), ("203.0.113.7", True)],
)
async def test_in_the_local_network_no_client_of_the_internet_is_heard(
    client: str, aborted: bool
) -> None:
    config = uvicorn.Config(application, lifespan="off", log_config=None)
    config.load()
    protocol = LanProtocol(config=config, server_state=ServerState(), app_state={})
    connection = Connection({"peername": (client, 50_000), "sockname": ("192.168.7.20", 8443)})
    protocol.connection_made(connection)
    assert connection.aborted is aborted
    protocol.connection_lost(ConnectionError())


async def test_a_request_on_a_connection_that_was_not_accepted_yet_is_answered() -> None:
    loop, server = asyncio.get_running_loop(), made_server(Drain(60))
    listener = open_listener("127.0.0.1", 0)
    address = listener.getsockname()
    await server.startup([listener])
    with socket.create_connection(address) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        client.settimeout(0)
        async with asyncio.timeout(60):
            # Nothing was awaited since the client connected, so the server does not know of it.
            _, answer = await asyncio.gather(
                server.shutdown([listener]), loop.sock_recv(client, 100)
            )
    assert answer.startswith(b"HTTP/1.1 200 ")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
