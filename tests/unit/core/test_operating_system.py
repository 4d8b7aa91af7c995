from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from backend.core.operating_system import FileLockedError, lock_file
from tests.support.waiting import PATIENCE

SLOW_IMPORTS = {"asyncio", "concurrent.futures", "dataclasses", "logging", "numpy", "shutil"}
"""Modules that take as long to import as a fifth of the start of an index, or longer."""


def test_a_locked_file_cannot_be_locked_again(tmp_path: Path) -> None:
    with lock_file(tmp_path / "lock"), pytest.raises(FileLockedError):
        lock_file(tmp_path / "lock")
    lock_file(tmp_path / "lock").close()


def test_a_lock_waits_for_its_release(tmp_path: Path) -> None:
    held = lock_file(tmp_path / "lock")
    release = threading.Timer(0.1, held.close)
    release.start()
    lock_file(tmp_path / "lock", wait_seconds=PATIENCE).close()
    release.join()


def test_windows_locks_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locking(_descriptor: int, *given: int) -> None:
        calls.append(given)
        if len(calls) > 1:
            raise PermissionError("Permission denied")

    calls: list[tuple[int, ...]] = []
    monkeypatch.setitem(sys.modules, "fcntl", None)  # it cannot be imported
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    with lock_file(tmp_path / "lock"), pytest.raises(FileLockedError):
        lock_file(tmp_path / "lock")
    assert calls == [(2, 1), (2, 1)]


def test_the_process_of_an_index_starts_without_slow_imports() -> None:
    code = "import sys, backend.memory.index.edge_engine; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=True)
    assert not SLOW_IMPORTS & set(done.stdout.decode().split())
