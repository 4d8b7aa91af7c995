"""What libraries log through `logging`, brought under the rules of this package."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from structlog.contextvars import get_contextvars
from structlog.typing import EventDict

from backend.logs.exceptions import exception_fields, short_path
from backend.logs.fields import allowed

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
