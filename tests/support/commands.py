"""Talekeeper's commands, each in a process of its own that has all modules from the beginning.

To import them takes ten times as long as most commands do. So one process imports them, and each
command runs in a copy of it; Windows has no such copies, and imports again. How a person starts a
command, `tests.support.process` shows.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from backend import cli
from tests.support.process import environment
from tests.support.waiting import PATIENCE

_PROCESSES = get_context("forkserver") if hasattr(os, "fork") else get_context("spawn")
_PROCESSES.set_forkserver_preload(["backend.app", "backend.operations.doctor", "alembic.command"])


def run_command(
    folder: Path, *arguments: str, prepare: Callable[[], None] | None = None, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end, outside its data folder, which may be no folder.

    Args:
        folder: The data folder.
        arguments: The command's name and what follows it.
        prepare: Called in the process before the command; a function of a module.
        settings: Of Talekeeper, without the prefix; there are no others.
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


def _run(
    folder: Path,
    command: tuple[str, ...],
    variables: dict[str, str],
    files: tuple[Path, Path],
    prepare: Callable[[], None] | None,
) -> None:
    os.chdir(folder)
    inherited = os.environ  # noqa: TID251  # the command's from here on
    inherited.clear()
    inherited.update(variables)
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    if prepare is not None:
        prepare()
    raise SystemExit(cli.main(command))
