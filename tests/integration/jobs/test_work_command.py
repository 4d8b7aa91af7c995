"""`talekeeper work`: a process that does jobs and nothing else."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.process import TALEKEEPER, environment, run_command
from tests.support.waiting import PATIENCE

ROOT_KEY = "1:" + "cnJycnJycnJycnJycnJycnJycnJycnJycnJycnJycnI="

NOBODY_THERE = "http://127.0.0.1:9"
"""An index that does not answer: the worker starts all the same, and its jobs wait."""


@contextmanager
def working(folder: Path, url: str) -> Generator[subprocess.Popen[str]]:
    settings = {
        "database_url": url,
        "root_key": ROOT_KEY,
        "qdrant_url": NOBODY_THERE,
        "drain_seconds": "3600",
    }
    with subprocess.Popen(
        [str(TALEKEEPER), "work", "--data-dir", str(folder)],
        cwd=folder,
        env=environment(**settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_with_sqlite_it_says_that_serve_does_it(tmp_path: Path) -> None:
    ended = run_command(tmp_path, "work")
    assert ended.returncode == 1
    assert "`talekeeper serve` runs the jobs itself" in ended.stderr


def test_with_no_workers_it_says_that_there_is_nothing_to_do(tmp_path: Path) -> None:
    url = "postgresql+asyncpg://user@127.0.0.1:1/name"
    ended = run_command(
        tmp_path, "work", database_url=url, qdrant_url=NOBODY_THERE, job_workers="0"
    )
    assert ended.returncode == 1
    assert "TALEKEEPER_JOB_WORKERS is 0" in ended.stderr


@pytest.mark.postgres
def test_it_works_until_it_is_told_to_stop(postgres_url: str, tmp_path: Path) -> None:
    with working(tmp_path, postgres_url) as process:
        assert process.stdout is not None
        assert "is running jobs" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        # It has no job, so there is nothing to wait for.
        assert process.wait(PATIENCE) == 0
        assert process.stdout.readline().startswith("Talekeeper is stopping.")
