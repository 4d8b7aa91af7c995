"""Servers and commands in separate processes.

Importing all modules takes ten times as long as most commands do. So one process imports them,
and servers and commands run in copies of it. Windows cannot copy processes: there, each starts
the installed program, as a user does. Servers in empty folders get a migrated database, because
migrating takes 0.2 s. Installed programs migrate it themselves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Protocol

from backend import cli
from backend.settings import DATABASE_NAME
from tests.support.waiting import PATIENCE

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

TALEKEEPER = Path(sys.executable).with_name("talekeeper")

_CAN_COPY = hasattr(os, "fork")
_PROCESSES = get_context("forkserver") if _CAN_COPY else get_context("spawn")
_PROCESSES.set_forkserver_preload(
    ["backend.app", "backend.operations.doctor", "backend.server", "alembic.command"]
)


class Process(Protocol):
    """The methods of `subprocess.Popen` that tests call on a server."""

    @property
    def pid(self) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


_Start = Callable[[Path, tuple[str, ...], dict[str, str], Path], tuple[Process, IO[str]]]
"""Starts a process from a folder, command, variables and log; returns it and its output."""


@dataclass(frozen=True)
class Served:
    """A server that listens. Its greeting has been read from `output` already."""

    url: str
    process: Process
    output: IO[str]
    log: Path

    def stop(self) -> int:
        """Ask the server to end, as a service manager does; return its exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE)


def environment(**settings: str) -> dict[str, str]:
    """Return this process's environment, with these settings of Talekeeper and no others."""
    inherited = {
        name: value
        for name, value in os.environ.items()  # noqa: TID251  # handed on to the process
        if not name.startswith("TALEKEEPER_")
    }
    return inherited | {f"TALEKEEPER_{name.upper()}": value for name, value in settings.items()}


def talekeeper(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run one command of the installed program to its end."""
    return subprocess.run(
        [str(TALEKEEPER), *arguments, "--data-dir", str(folder)],
        cwd=folder,
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def run_command(
    folder: Path, *arguments: str, prepare: Callable[[], None] | None = None, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end, in a copied process outside its data folder.

    Args:
        folder: The data folder. The path may be wrong: a command has to say so.
        arguments: The command's name and its arguments.
        prepare: Called in the process before the command. It has to be a module's function.
        settings: Settings of Talekeeper, without the prefix.
    """
    with TemporaryDirectory() as outputs:
        files = Path(outputs, "stdout"), Path(outputs, "stderr")
        command = (*arguments, "--data-dir", str(folder))
        given = (folder.parent, command, environment(**settings), files, prepare)
        process = _PROCESSES.Process(target=_run, args=given)
        process.start()
        process.join(PATIENCE)
        code = process.exitcode
        process.kill()
        assert code is not None, "the command does not end"
        stdout, stderr = (file.read_text() for file in files)
        return subprocess.CompletedProcess(command, code, stdout, stderr)


def serving(folder: Path, **settings: str | int) -> AbstractContextManager[Served]:
    """Run a server in a copied process until the block ends, then kill it.

    Args:
        folder: The data folder. If it is empty, it gets a migrated database.
        settings: Settings of Talekeeper, without the prefix. The port is a free one by default.
    """
    if "database_url" not in settings and not any(folder.iterdir()):
        database = folder / DATABASE_NAME
        database.write_bytes(migrated_database())
        database.chmod(0o600)
    return _serving(_start_copy if _CAN_COPY else _start_program, folder, settings)


def serving_installed(folder: Path, **settings: str | int) -> AbstractContextManager[Served]:
    """Do the same with the installed program, so that Python's own variables have effect."""
    return _serving(_start_program, folder, settings)


@cache
def migrated_database() -> bytes:
    """Return the content of an empty SQLite database with all tables."""
    with TemporaryDirectory() as folder:
        data = Path(folder, "data")
        done = run_command(data, "migrate")
        assert done.returncode == 0, done.stderr
        return (data / DATABASE_NAME).read_bytes()


@contextmanager
def _serving(start: _Start, folder: Path, settings: dict[str, str | int]) -> Generator[Served]:
    log = folder / "server.log"
    port = str(settings.pop("port", 0))
    command = ("serve", "--port", port, "--data-dir", str(folder))
    variables = environment(**{name: str(value) for name, value in settings.items()})
    process, output = start(folder, command, variables, log)
    with output:
        try:
            greeting = output.readline()
            assert " at http" in greeting, log.read_text()
            yield Served(greeting.split()[-1], process, output, log)
        finally:
            process.kill()
            process.wait()


@contextmanager
def started(
    function: Callable[..., None], *arguments: object
) -> Generator[tuple[Process, IO[str]]]:
    """Call a module's function in a copied process; yield the process and its output.

    The process is killed when the block ends.
    """
    reader, writer = _PROCESSES.Pipe(duplex=False)
    with reader, writer:
        process = _PROCESSES.Process(target=_call, args=(writer, function, arguments))
        process.start()
        output = os.fdopen(os.dup(reader.fileno()))
    with output:
        try:
            yield _Copy(process), output
        finally:
            process.kill()
            process.join()


class _Copy:
    """A copied process, with the methods of `subprocess.Popen`."""

    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self._process = process

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        assert self._process.exitcode is not None, "the process does not end"
        return self._process.exitcode


def _start_copy(
    folder: Path, command: tuple[str, ...], variables: dict[str, str], log: Path
) -> tuple[Process, IO[str]]:
    reader, writer = _PROCESSES.Pipe(duplex=False)
    with reader, writer:
        process = _PROCESSES.Process(target=_run, args=(folder, command, variables, (writer, log)))
        process.start()
        return _Copy(process), os.fdopen(os.dup(reader.fileno()))


def _start_program(
    folder: Path, command: tuple[str, ...], variables: dict[str, str], log: Path
) -> tuple[Process, IO[str]]:
    with log.open("w") as errors:
        process = subprocess.Popen(
            [str(TALEKEEPER), *command],
            cwd=folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    return process, process.stdout


def _call(output: Connection, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    sys.stdout = os.fdopen(os.dup(output.fileno()), "w", 1)
    output.close()
    function(*arguments)


def _run(
    folder: Path,
    command: tuple[str, ...],
    variables: dict[str, str],
    outputs: tuple[Path | Connection, Path],
    prepare: Callable[[], None] | None = None,
) -> None:
    """Become a command: take its folder, variables and outputs, and run it."""
    os.chdir(folder)
    inherited = os.environ  # noqa: TID251  # the command's from here on
    inherited.clear()
    inherited.update(variables)
    for number, output in enumerate(outputs, start=1):
        if isinstance(output, Path):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        else:
            os.dup2(output.fileno(), number)
            output.close()
    # The inherited streams were opened for the outputs of the copied process.
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
    # A shell that runs the tests in the background may have let them ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if prepare is not None:
        prepare()
    raise SystemExit(cli.main(command))
