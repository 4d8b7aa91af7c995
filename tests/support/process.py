"""Talekeeper in a process of its own, started as a person starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import PATIENCE

TALEKEEPER = Path(sys.executable).with_name("talekeeper")


@dataclass(frozen=True)
class Served:
    """A server that listens."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def stop(self) -> int:
        """Ask it to end, as a service manager does; its exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE)


def environment(**settings: str) -> dict[str, str]:
    """This process's environment with these settings of Talekeeper's and no others."""
    inherited = {
        name: value
        for name, value in os.environ.items()  # to hand it on without settings  # noqa: TID251  # handed on to the process
        if not name.startswith("TALEKEEPER_")
    }
    return inherited | {f"TALEKEEPER_{name.upper()}": value for name, value in settings.items()}


def talekeeper(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [str(TALEKEEPER), *arguments, "--data-dir", str(folder)],
        cwd=folder,
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@contextmanager
def _taking_interrupts() -> Generator[None]:
    """Have processes that are started here take SIGINT: a shell may have this one ignore it."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def serving(folder: Path, **settings: str | int) -> Generator[Served]:
    """A server, on a free port where none is named; killed at the end of the block."""
    log = folder / "server.log"
    port = str(settings.pop("port", 0))
    command = [str(TALEKEEPER), "serve", "--port", port, "--data-dir", str(folder)]
    with log.open("w") as errors, _taking_interrupts():
        started = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(**{name: str(value) for name, value in settings.items()}),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with started as process:
        try:
            assert process.stdout is not None
            greeting = process.stdout.readline()
            assert " at http" in greeting, log.read_text()
            yield Served(greeting.split()[-1], process, log)
        finally:
            process.kill()
