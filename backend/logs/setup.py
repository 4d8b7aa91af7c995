"""One pipeline for every line of the process."""

from __future__ import annotations

import sys
import threading
import warnings
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from backend.logs.exceptions import short_path
from backend.logs.fields import keep_allowed
from backend.logs.libraries import LibraryHandler, take_over

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "console"]


def configure_logging(level: Level, log_format: Format, *, stream: TextIO | None = None) -> None:
    """Send every line of this process, ours and the libraries', to `stream` (standard error).

    It takes over the root logger, the warnings and the hooks for uncaught exceptions: a program
    calls it once, before it starts anything else. `auto` is `console` on a terminal, else `json`.
    """
    file = sys.stderr if stream is None else stream
    stamp, render = _rendering(log_format, on_terminal=file.isatty())
    output = structlog.PrintLogger(file)

    def write(event_dict: EventDict) -> None:
        level = event_dict["level"]
        output.msg(cast("str", render(None, level, cast("Any", stamp(None, level, event_dict)))))

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            keep_allowed,
            structlog.processors.add_log_level,
            stamp,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: output,
        # Loggers are made when modules are imported, before this runs, and again by each test.
        cache_logger_on_first_use=False,
    )
    take_over(LibraryHandler(level, write))
    _take_over_hooks()


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger for the module of that name; it may be made before `configure_logging`."""
    return cast("FilteringBoundLogger", structlog.get_logger(logger_name=name))


def bind_request(request_id: str) -> AbstractContextManager[None]:
    """Put `request_id` on every line logged inside the block, and in tasks started there."""
    return structlog.contextvars.bound_contextvars(request_id=request_id)


def _rendering(log_format: Format, *, on_terminal: bool) -> tuple[Processor, Processor]:
    if log_format == "console" or (log_format == "auto" and on_terminal):
        return (
            structlog.processors.TimeStamper("%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(
                colors=on_terminal, exception_formatter=structlog.dev.plain_traceback
            ),
        )
    return structlog.processors.TimeStamper("iso"), structlog.processors.JSONRenderer()


def _take_over_hooks() -> None:
    """What Python would print by itself: exceptions that nobody caught, and warnings."""
    log = get_logger("python")

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
        else:
            log.critical("process.failed", exc_info=error)

    def showwarning(
        message: Warning | str,  # noqa: ARG001  it may quote a value
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,  # noqa: ARG001  the signature that Python calls
        line: str | None = None,  # noqa: ARG001  likewise
    ) -> None:
        source = f"{short_path(filename)}:{lineno}"
        log.warning("python.warning", error_type=category.__name__, source=source)

    sys.excepthook = excepthook
    sys.unraisablehook = lambda failure: log.error("object.failed", exc_info=failure.exc_value)
    threading.excepthook = lambda failure: log.error("thread.failed", exc_info=failure.exc_value)
    warnings.showwarning = showwarning
