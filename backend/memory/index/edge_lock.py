"""One process at a time: the engine's folders take no second one."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from backend.memory.index.protocol import IndexUnavailableError

_PATIENCE = 2.0
"""Seconds that a process which is just ending gets to let go."""


def locked(path: Path) -> int:
    """Lock a file for as long as the returned descriptor is open.

    Waits in its thread. Raises `IndexUnavailableError`.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if time.monotonic() < until:
                time.sleep(0.05)
                continue
            os.close(descriptor)
            raise IndexUnavailableError(
                f"Another process has the index open ({path}). An index in the data folder serves "
                "one process. For several, start a Qdrant server and set TALEKEEPER_QDRANT_URL."
            ) from error
        return descriptor
