"""Engines of the index in copies of one process.

More than 2,000 tests start a server, and each server an engine. Its start takes 55 ms of processor
time, a copy 20 ms. So one process imports the modules, and engines are copies of it. Windows cannot
copy processes: there, servers start engines themselves. Tests of the index do so everywhere.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from backend.core.operating_system import helper_options
from backend.memory.index.edge import _PIPE_BYTES, EngineProcess

ROOT = Path(__file__).parents[2]
_CAN_COPY = hasattr(os, "fork")
_PID_BYTES = 4

_SOURCE = f"""
import os, signal, socket, sys
from backend.memory.index.edge_engine import main

signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets copies that have ended
requests = socket.socket(fileno=int(sys.argv[1]))
while pipes := socket.recv_fds(requests, 1, 2)[1]:
    if pid := os.fork():
        for pipe in pipes:
            os.close(pipe)
        requests.send(pid.to_bytes({_PID_BYTES}))
        continue
    requests.close()
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    main()
    break
"""


@contextlib.contextmanager
def copied_engines() -> Generator[None]:
    """Let the servers that start in the block use copies."""
    if not _CAN_COPY:
        yield
        return
    with patch.object(EngineProcess, "_spawn", _copy):
        yield


async def _copy() -> EngineProcess:
    """Return a copy that is connected with two pipes, as a started engine is."""
    requests = _start_original()
    its_input, our_output = os.pipe()
    our_input, its_output = os.pipe()
    socket.send_fds(requests, [b"+"], [its_input, its_output])
    os.close(its_input)
    os.close(its_output)
    pid = int.from_bytes(requests.recv(_PID_BYTES))
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_PIPE_BYTES)
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(our_input, "rb")
    )
    writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(our_output, "wb"))
    process: Any = _Copy(pid, writer, reader)
    return EngineProcess(process)


@dataclass(frozen=True)
class _Copy:
    """The part of `asyncio.subprocess.Process` that `EngineProcess` uses."""

    pid: int
    stdin: asyncio.WriteTransport
    stdout: asyncio.StreamReader

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Return 0: a copy has ended when its output has, and its exit code is not known here."""
        return 0


@cache
def _start_original() -> socket.socket:
    """Start the process that is copied. Returns the socket for the pipes of copies."""
    ours, theirs = socket.socketpair()
    options = helper_options()
    path = filter(None, (str(ROOT), options["env"].get("PYTHONPATH")))
    options["env"]["PYTHONPATH"] = os.pathsep.join(path)
    with theirs:
        number = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _SOURCE, str(number)], pass_fds=[number], **options
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours
