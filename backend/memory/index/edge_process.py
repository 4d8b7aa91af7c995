"""The process of Qdrant Edge, seen from the server's process."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from itertools import count
from typing import Any, ClassVar, Self

from backend.logs import get_logger
from backend.memory.index.edge_messages import HEAD, Outcome, framed
from backend.memory.index.scope import IndexUnavailableError
from backend.operating_system import helper_command, helper_options

log = get_logger(__name__)

_PROGRAM = "backend.memory.index.edge_engine"
_END_SECONDS = 30.0
"""How long it may take to write everything out before it is killed."""

_LIMIT = 1 << 20


class EngineError(Exception):
    """A call failed, or the process is gone. `kind` is the type of the engine's error, if any."""

    def __init__(self, text: str, *, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


class EngineProcess:
    """One running engine. Calls may be made side by side, all of them from one event loop."""

    _prepared: ClassVar[EngineProcess | None] = None

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("Pipes were asked for.")
        self._process = process
        self._in, self._out = process.stdin, process.stdout
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def prepare(cls) -> None:
        """Start the one that the next `start` gives: it comes up while other things are done.

        A failure is left to `start`, which tries again.
        """
        with contextlib.suppress(OSError):
            EngineProcess._prepared = await cls._started()

    @classmethod
    async def start(cls) -> EngineProcess:
        """One that runs."""
        prepared, EngineProcess._prepared = EngineProcess._prepared, None
        return prepared if prepared and not prepared.is_gone else await cls._started()

    @classmethod
    async def _started(cls) -> Self:
        """A new one, with an empty environment: no key and no password gets there."""
        return cls(
            await asyncio.create_subprocess_exec(
                *helper_command(_PROGRAM),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LIMIT,
                **helper_options(),
            )
        )

    @property
    def is_gone(self) -> bool:
        """True if it takes no more calls: its input closes a moment before its output does."""
        return self._reading.done() or self._in.is_closing()

    async def call(self, method: str, *arguments: object, **options: object) -> Any:
        """What a method of `Engine` gives back.

        Raises:
            IndexUnavailableError: As the method says.
            EngineError: Whatever else went wrong.
        """
        if self.is_gone:
            raise EngineError("The engine's process is gone.")
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._in.write(framed((number, method, arguments, options)))
        try:
            outcome, value = await answer
        finally:
            self._waiting.pop(number, None)
        if outcome == "unavailable":
            raise IndexUnavailableError(value)
        if outcome == "failed":
            kind, colon, _ = value.partition(":")
            raise EngineError(value, kind=kind if colon else "")
        return value

    async def end(self) -> None:
        """Let it finish its calls, write everything out, and end."""
        self._in.close()
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._reading
        except TimeoutError:
            log.warning("index.engine_killed")
            self._process.kill()
        if code := await self._process.wait():
            log.warning("index.engine_ended", exit_code=code)

    async def _read(self) -> None:
        try:
            while True:
                head = await self._out.readexactly(HEAD)
                message = await self._out.readexactly(int.from_bytes(head))
                number: int
                outcome: Outcome
                number, outcome, value = pickle.loads(message)  # noqa: S301  of our own process
                answer = self._waiting.get(number)
                if answer is not None and not answer.done():
                    answer.set_result((outcome, value))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_result(("failed", "The engine's process ended."))


async def engine_starts() -> bool:
    """True if an engine can be started, and answers. It opens no collection."""
    try:
        process = await EngineProcess.start()
    except OSError:
        return False
    try:
        await process.call("close")
    except EngineError:
        return False
    finally:
        await process.end()
    return True
