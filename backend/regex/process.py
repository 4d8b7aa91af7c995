"""A process that searches with untrusted patterns and is killed on timeout.

Three timeouts cover each other. The timeout of `regex` does not apply while a pattern is compiled.
If it fails, this process kills the worker and starts another. If this process has died, an alarm in
the worker ends it, on systems with alarms. In all cases the caller gets an answer at the deadline:
`late` if the search got its time on a processor, `busy` if that is unknown.
"""

from __future__ import annotations

import marshal
import threading
import time
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, cast, get_args
from uuid import UUID

from backend.core.helpers import HelperStarts
from backend.core.operating_system import find_usage, start_connected
from backend.regex.patterns import Answer, Engine, Status
from backend.regex.worker import FAIR_SHARE, MAX_MEMORY, MAX_SECONDS_OVERDUE

if TYPE_CHECKING:
    import socket

START_SECONDS = 10.0
"""Time a process may take to report that it is ready, on a busy machine."""

PATIENCE_SECONDS = 2 * MAX_SECONDS_OVERDUE
"""Seconds after its deadline until a search that did not get enough processor time is killed."""

MARGIN_SECONDS = 0.01
"""Seconds reserved before a deadline: once to return in time, and once to receive the answer."""

WATCH_SECONDS = 0.02
"""Seconds between checks of an overdue search or a starting process."""

MAX_CONDEMNED = 10_000

READ_BYTES = 1 << 16
_PROGRAM = "backend.regex.worker"

_Said = Status | Literal["ready"]
_SAID = frozenset({*get_args(Status), "ready"})


class _Message(NamedTuple):
    """A status, a start and spans. See worker.py."""

    status: _Said
    start: int
    spans: Sequence[int]


class LateError(Exception):
    """The process did not answer in time."""


class EndedError(Exception):
    """The process has ended."""


class WorkerProcess:
    """A running worker for one thread at a time.

    It sends one message after its start and one after each request. Until then it accepts no
    further request. `asked` is the hash of the last pattern, or 0.

    Raises `OSError` if it cannot be started.
    """

    def __init__(self) -> None:
        self._popen, self._socket, far_end = start_connected(_PROGRAM)
        self._far_end: socket.socket | None = far_end
        self._received = b""
        self._owes_until: float | None = time.monotonic() + START_SECONDS
        self._seconds = 0.0
        self._used = 0.0
        self.asked = 0

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def owes(self) -> bool:
        """True while a message is pending."""
        return self._owes_until is not None

    @property
    def was_ready(self) -> bool:
        """True once the worker has reported that it is ready."""
        return self._far_end is None

    def is_lost(self) -> bool:
        """True if the worker has ended, or if its message is so late that it will not come."""
        is_late = self._owes_until is not None and time.monotonic() > self._owes_until
        return is_late or self.is_gone()

    def is_gone(self) -> bool:
        return self._popen.poll() is not None

    def is_exhausted(self) -> bool:
        """True if the search got its time on a processor or uses too much memory."""
        usage = find_usage(self._popen.pid)
        if usage is None:
            return True  # it has ended
        used, memory = usage
        return used - self._used >= self._seconds * FAIR_SHARE or memory > MAX_MEMORY

    def ask(self, request: bytes, *, seconds: float, deadline: float) -> _Message:
        """Send a request for a search of `seconds` and wait for the answer.

        Raises:
            LateError: If there is none at `deadline` (monotonic).
            EndedError: If the process ends.
        """
        self._seconds = seconds
        self._owes_until = deadline + PATIENCE_SECONDS
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            self._socket.sendall(len(request).to_bytes(4) + request)
        except TimeoutError as error:
            raise LateError from error
        except OSError as error:
            raise EndedError from error
        return self.receive(deadline)

    def receive(self, deadline: float) -> _Message:
        """Return the pending message. Parts received before `deadline` are kept.

        Raises:
            LateError: If it is not complete at `deadline` (monotonic).
            EndedError: If the process ends.
        """
        while (size := self._message_size()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise LateError
            self._socket.settimeout(left if self.was_ready else min(left, WATCH_SECONDS))
            try:
                piece = self._socket.recv(READ_BYTES)
            except TimeoutError:
                # The far end is still open here, so the socket does not report that the process
                # ended.
                if not self.was_ready and self.is_gone():
                    raise EndedError from None
                continue
            except OSError as error:
                raise EndedError from error
            if not piece:
                raise EndedError
            self._received += piece
        message, self._received = self._received[4:size], self._received[size:]
        self._owes_until = None
        self._close_far_end()
        status = message[:8].decode().rstrip()
        used, start, *spans = array("q", message[8:])
        self._used = used / 1e9
        if status not in _SAID:
            raise EndedError
        return _Message(cast("_Said", status), start, spans)

    def kill(self) -> None:
        """Kill the process without waiting. Safe if it has already ended."""
        self._popen.kill()
        self._socket.close()
        self._close_far_end()

    def wait(self) -> None:
        self._popen.wait()

    def _close_far_end(self) -> None:
        if self._far_end is not None:
            self._far_end.close()
            self._far_end = None

    def _message_size(self) -> int | None:
        """Return the length of the next complete message with its header, or None."""
        if len(self._received) < 4:  # noqa: PLR2004  # size of the length
            return None
        size = 4 + int.from_bytes(self._received[:4])
        return size if len(self._received) >= size else None


class RegexProcess:
    """An `Evaluator` with one process, which is started on demand.

    Threads share the process and wait for each other, but not beyond their deadlines. If a pattern
    causes a timeout, the process is replaced at once and the pattern is not tried again. If the
    process cannot start or ends unexpectedly, it is restarted with growing delays (`starts`).
    Meanwhile every search is `unavailable`. After `close` every search is `busy`.
    """

    def __init__(self) -> None:
        self.starts = HelperStarts("regex")
        self._lock = threading.Lock()
        self._process: WorkerProcess | None = None
        self._killed: list[WorkerProcess] = []
        self._condemned: set[int] = set()
        self._watch: threading.Thread | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The id of the running process, or None."""
        return self._process.pid if self._process else None

    def prepare(self) -> bool:
        """Start the process if necessary and wait for it. Return True if it is ready.

        Call it for books with `needs_process`, because a search does not wait for the start. It
        returns at once after a failed start.
        """
        with self._lock:
            return self._ready_process(time.monotonic() + START_SECONDS) is not None

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

        If `most` is set, all matches are searched, up to that number. A pattern that times out is
        remembered for its owner, if given.
        """
        begun = time.monotonic()
        deadline = begun + seconds - MARGIN_SECONDS
        answer = Answer("busy")
        if self._lock.acquire(timeout=max(0.0, seconds - 2 * MARGIN_SECONDS)):
            try:
                asked = hash((owner_id, engine, pattern))
                answer = self._ask(asked, engine, pattern, text, deadline, most)
            finally:
                self._lock.release()
        return answer._replace(seconds=time.monotonic() - begun)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._process:
                self._kill(self._process)
            for process in self._killed:
                process.wait()
            self._killed.clear()
        if self._watch:
            self._watch.join()

    def _ask(
        self, asked: int, engine: Engine, pattern: str, text: str, deadline: float, most: int
    ) -> Answer:
        process = self._ready_process(deadline)
        left = deadline - time.monotonic() - MARGIN_SECONDS
        if process is None or left <= 0:
            return Answer("busy" if self._process or self._is_closed else "unavailable")
        if asked in self._condemned:
            return Answer("late")
        process.asked = asked
        request = marshal.dumps((engine, pattern, text, left, most))
        try:
            status, start, spans = process.ask(request, seconds=left, deadline=deadline)
        except LateError:
            if process.is_exhausted():
                self._condemn(process)
                return Answer("late")
            self._watch_overdue(process)
            return Answer("busy")
        except EndedError:
            self._condemn(process)
            return Answer("late")
        return Answer(cast("Status", status), start, spans=spans)

    def _ready_process(self, deadline: float) -> WorkerProcess | None:
        """Return a process without pending messages, or None if there is none at `deadline`."""
        while (process := self._running()) and process.owes and time.monotonic() < deadline:
            try:
                status, *_ = process.receive(min(deadline, time.monotonic() + WATCH_SECONDS))
            except LateError:
                self._end_overdue(process)
            except EndedError:
                self._give_up(process)
            else:
                if status == "ready":
                    self.starts.note_success()
                elif status == "late":
                    self._condemned.add(process.asked)
        return None if process is None or process.owes else process

    def _running(self) -> WorkerProcess | None:
        """Return the process. Start it if necessary, return None if it must not be started."""
        if self._is_closed:
            return None
        self._killed = [process for process in self._killed if not process.is_gone()]
        if self._process and self._process.is_lost():
            self._give_up(self._process)
        if self._process is None and self.starts.is_due():
            self._start()
        return self._process

    def _start(self) -> None:
        try:
            self._process = WorkerProcess()
        except OSError as error:
            self.starts.note_failure(error)

    def _give_up(self, process: WorkerProcess) -> None:
        """Kill an unresponsive process and record if its pattern or the system is the cause."""
        if process.was_ready and process.owes:
            self._condemn(process)
        else:
            self._kill(process)
            self.starts.note_failure()

    def _condemn(self, process: WorkerProcess) -> None:
        """Replace a process and remember the pattern that caused this."""
        if len(self._condemned) >= MAX_CONDEMNED:
            self._condemned.clear()
        self._condemned.add(process.asked)
        self._kill(process)
        self._start()

    def _kill(self, process: WorkerProcess) -> None:
        process.kill()
        self._killed.append(process)
        self._process = None

    def _watch_overdue(self, process: WorkerProcess) -> None:
        """Watch an overdue search, so that it is killed even if no other search is requested."""
        if self._watch is None or not self._watch.is_alive():
            self._watch = threading.Thread(
                target=self._watch_search, args=(process,), name="regex-watch", daemon=True
            )
            self._watch.start()

    def _watch_search(self, process: WorkerProcess) -> None:
        while True:
            time.sleep(WATCH_SECONDS)
            with self._lock:
                if process is self._process and process.owes:
                    self._end_overdue(process)
                if process is not self._process or not process.owes:
                    return

    def _end_overdue(self, process: WorkerProcess) -> None:
        """Replace a process if its search had its time, but not a process that is starting."""
        if process.was_ready and process.is_exhausted():
            self._condemn(process)
        elif process.is_lost():
            self._give_up(process)
