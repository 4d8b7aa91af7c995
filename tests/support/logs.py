"""Capture of log output."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import structlog

from backend.core.logs import configure_logging


class Logged:
    """Every line of the process since `caught_logs` began."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The lines of one kind of event."""
        found = [json.loads(line) for line in self.text.splitlines()]
        return [line for line in found if line["event"] == event]


@contextmanager
def caught_logs() -> Generator[Logged]:
    """Log as the server does, to memory; everything is put back afterwards."""
    root, hooks = logging.root, (sys.excepthook, sys.unraisablehook, threading.excepthook)
    handlers, level, showwarning = root.handlers, root.level, warnings.showwarning
    logged = Logged()
    configure_logging("debug", "json", stream=logged.stream)
    try:
        yield logged
    finally:
        root.handlers, warnings.showwarning = handlers, showwarning
        root.setLevel(level)
        sys.excepthook, sys.unraisablehook, threading.excepthook = hooks
        structlog.reset_defaults()
