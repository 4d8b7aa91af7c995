"""A process that searches with patterns which can't be trusted, and ends when it is late.

There are three ends to a search, each for when the one before does not work: the timeout that
`regex` has, which does not reach into the compiling of a pattern; an alarm in the process that
searches, after which another takes its place at once (see worker.py); and the kill from here.
Whichever of them is at work, the caller is answered at the deadline: `late` if the search had its
time on a processor, `busy` if that is not known.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Literal
from uuid import UUID

import msgspec

from backend.regex.patterns import Answer, Engine, Status

START_SECONDS = 10.0
"""How long a process may take until it says that it is ready, on a machine that is busy."""

PATIENCE = 2.0
"""Seconds after its deadline for a late search to be ended by its alarm, before the kill."""

MARGIN = 0.01
"""Seconds kept back from a deadline: to be back in time, and once more for the answer to come."""

READ_BYTES = 1 << 16
_PROGRAM = Path(__file__).with_name("worker.py")


_Message = tuple[Status | Literal["ready"], int, list[int]]
"""A status, a start, and spans: see worker.py."""


class LateError(Exception):
    """The process did not answer in time, or is gone."""


class Process:
    """One running worker, for one thread at a time.

    It owes a message after its start, and after each request. While it owes one nothing can be
    asked of it. `condemned` are hashes of patterns of which it turned out, after the deadline, that
    they had their time on a processor; `asked` is the hash of the last one.
    """

    def __init__(self) -> None:
        self._popen = subprocess.Popen(  # noqa: S603  # our own file, and nothing of a user's
            [sys.executable, "-I", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            bufsize=0,
        )
        if self._popen.stdin is None or self._popen.stdout is None:
            raise RuntimeError("Pipes were asked for.")
        self._in, self._out = self._popen.stdin, self._popen.stdout
        os.set_blocking(self._in.fileno(), False)
        os.set_blocking(self._out.fileno(), False)
        self._received = b""
        self.asked = 0
        self.condemned: set[int] = set()
        self._owes_until: float | None = time.monotonic() + START_SECONDS

    def wait_ready(self, deadline: float) -> bool:
        """Whether it owes nothing any more, at `deadline` (monotonic) at the latest."""
        if self._owes_until is not None:
            try:
                status, *_ = self._receive(deadline)
            except LateError:
                return False
            if self.asked and status in {"ready", "late"}:
                self.condemned.add(self.asked)
        return True

    def is_lost(self) -> bool:
        """Whether it is gone, or owes a message for so long that it will not come."""
        is_late = self._owes_until is not None and time.monotonic() > self._owes_until
        return is_late or self.is_gone()

    def is_gone(self) -> bool:
        """Whether it has ended."""
        return self._popen.poll() is not None

    def ask(self, request: bytes, deadline: float) -> _Message:
        """Send a request and wait for its answer: `ready` if the search was ended by its alarm.

        Raises:
            LateError: If there is none at `deadline`, or the process is gone.
        """
        # What can't be sent as a whole is never answered: the process is lost at once.
        self._owes_until = time.monotonic()
        self._send(len(request).to_bytes(4) + request, deadline)
        self._owes_until = deadline + PATIENCE
        return self._receive(deadline)

    def kill(self) -> None:
        """End it, without waiting until it is gone. It may be dead already."""
        self._popen.kill()
        self._in.close()
        self._out.close()

    def wait(self) -> None:
        """Wait until it is gone."""
        self._popen.wait()

    def _send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(self._in.fileno(), select.POLLOUT, deadline)
            try:
                view = view[os.write(self._in.fileno(), view) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise LateError from error

    def _receive(self, deadline: float) -> _Message:
        """The message that is owed. What came of it until `deadline` is kept for the next call."""
        while (size := self._message_size()) is None:
            self._wait(self._out.fileno(), select.POLLIN, deadline)
            try:
                piece = os.read(self._out.fileno(), READ_BYTES)
            except BlockingIOError:
                continue
            if not piece:
                raise LateError
            self._received += piece
        message, self._received = self._received[4:size], self._received[size:]
        self._owes_until = None
        answer: _Message = msgspec.msgpack.decode(message, type=_Message)
        return answer

    def _message_size(self) -> int | None:
        """How long the next message is, with its head; null while it is not here as a whole."""
        if len(self._received) < 4:  # noqa: PLR2004  # the length
            return None
        size = 4 + int.from_bytes(self._received[:4])
        return size if len(self._received) >= size else None

    @staticmethod
    def _wait(descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise LateError


class RegexProcess:
    """An `Evaluator` on one process, which is started when it is first wanted.

    Scans in several threads share it: they wait for each other, no longer than their deadlines.
    After `close` every search is `busy`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._killed: list[Process] = []
        self._is_closed = False

    def prepare(self) -> bool:
        """Start the process if it does not run, and wait until it is ready. Whether it is.

        For books whose `needs_process` is set: a search does not wait for the start.
        """
        with self._lock:
            if self._is_closed:
                return False
            return self._running().wait_ready(time.monotonic() + START_SECONDS)

    def search(
        self,
        engine: Engine,
        pattern: str,
        text: str,
        *,
        seconds: float,
        most: int = 0,
        owner_id: UUID | None = None,
    ) -> Answer:
        """Search within `seconds` of wall clock; see `Evaluator`.

        `most` asks for every match, of which there may be so many, and not for the first alone. A
        pattern that turns out to be late is remembered for its owner, if it has one.
        """
        begun = time.monotonic()
        deadline = begun + seconds - MARGIN
        answer = Answer("busy")
        if self._lock.acquire(timeout=max(0.0, seconds - 2 * MARGIN)):
            try:
                asked = hash((owner_id, engine, pattern))
                answer = self._ask(asked, engine, pattern, text, deadline, most)
            finally:
                self._lock.release()
        return answer._replace(seconds=time.monotonic() - begun)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._is_closed = True
            if self._process:
                self._kill(self._process)
            for process in self._killed:
                process.wait()
            self._killed.clear()

    def _ask(
        self, asked: int, engine: Engine, pattern: str, text: str, deadline: float, most: int
    ) -> Answer:
        if self._is_closed:
            return Answer("busy")
        process = self._running()
        is_ready = process.wait_ready(deadline)
        left = deadline - time.monotonic() - MARGIN
        if not is_ready or left <= 0:
            return Answer("busy")
        if asked in process.condemned:
            return Answer("late")
        process.asked = asked
        request = msgspec.msgpack.encode((engine, pattern, text, left, most))
        try:
            status, start, spans = process.ask(request, deadline)
        except LateError:
            return Answer("busy")
        return Answer("late") if status == "ready" else Answer(status, start, spans=spans)

    def _running(self) -> Process:
        self._killed = [process for process in self._killed if not process.is_gone()]
        if self._process and self._process.is_lost():
            self._kill(self._process)
        self._process = self._process or Process()
        return self._process

    def _kill(self, process: Process) -> None:
        process.kill()
        self._killed.append(process)
        self._process = None
