"""One pipeline for every line of the process."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, TextIO, cast

import structlog
from structlog.contextvars import get_contextvars
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from backend.logs.exceptions import exception_fields, short_path
from backend.logs.fields import allowed, keep_allowed

_HEARD = {
    "uvicorn.error": (
        "Started server process",
        "Uvicorn running on",
        "Waiting for ",
        "Application ",
        "Shutting down",
        "Finished server process",
    ),
    "alembic.runtime.migration": ("Running ",),
}
"""Lines heard below WARNING and in full, by logger: how they begin. Nothing in them is a user's."""


class LibraryHandler(logging.Handler):
    """Hands on what may be said of a record: which logger, how bad, and the words of the code."""

    def __init__(self, level: str, write: Callable[[EventDict], None]) -> None:
        super().__init__(level.upper())
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """Called by `logging` for each record that reaches the root logger."""
        is_heard = _is_heard(record)
        if record.levelno < logging.WARNING and not is_heard:
            return
        message: Any = record.msg
        error = message if isinstance(message, BaseException) else record.exc_info
        self._write(
            {
                **(_in_full(record) if is_heard else _in_words_of_the_code(record)),
                "logger_name": record.name,
                "level": record.levelname.lower(),
                **allowed(get_contextvars()),
                **exception_fields(error),
            }
        )


def take_over(handler: logging.Handler) -> None:
    """Make `handler` the only one of this process, whatever libraries have set up so far."""
    for logger in logging.Logger.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True
    logging.root.handlers = [handler]
    logging.root.setLevel(logging.WARNING)
    for name in _HEARD:
        logging.getLogger(name).setLevel(logging.INFO)


def _is_heard(record: logging.LogRecord) -> bool:
    openings = _HEARD.get(record.name, ())
    return isinstance(record.msg, str) and record.msg.startswith(openings)


def _in_full(record: logging.LogRecord) -> EventDict:
    try:
        message = record.getMessage()
    except (TypeError, ValueError):  # the arguments don't fit the template
        return _in_words_of_the_code(record)
    return {"event": " ".join(message.split())}


def _in_words_of_the_code(record: logging.LogRecord) -> EventDict:
    if _is_literal(record):
        return {"event": " ".join(record.msg.split())}
    place = f"{short_path(record.pathname)}:{record.lineno}:{record.funcName}"
    return {"event": "library.message_withheld", "source": place}


def _is_literal(record: logging.LogRecord) -> bool:
    """Whether the message is a constant of the function that logged it.

    A template whose arguments come apart from it is; a text that was put together before is not.
    The function still stands on the stack while its record is handled.
    """
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if (code.co_filename, frame.f_lineno) == (record.pathname, record.lineno):
            return isinstance(record.msg, str) and record.msg in code.co_consts
        frame = frame.f_back
    return False


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
