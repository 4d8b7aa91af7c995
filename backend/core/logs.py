"""Logs that never contain users' texts.

Every line, of this code and of libraries, follows three rules:

- This code logs named events (`turn.failed`) with fields from `FIELDS`, whose values are numbers or
  single words. Other fields are dropped, and their names listed in `dropped_fields`.
- An exception is logged by its type and its places in the code, without its message and variables,
  because these may quote a user.
- Libraries log warnings and errors. Their messages are shown only if they are constants of the
  library's code, without their arguments.

Each module has its own logger:

    log = get_logger(__name__)
    log.info("turn.finished", turn_id=turn.id, completion_tokens=usage.completion_tokens)
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TextIO, cast
from uuid import UUID

# If rich is installed, structlog imports it and pygments for tracebacks with variables, which must
# not be logged. That takes 10% of a start and 11 MiB.
_rich = sys.modules.get("rich")
sys.modules["rich"] = cast("Any", None)
import structlog  # noqa: E402  # after rich is hidden
from structlog.contextvars import get_contextvars  # noqa: E402
from structlog.typing import EventDict, FilteringBoundLogger, Processor  # noqa: E402

del sys.modules["rich"]
if _rich is not None:
    sys.modules["rich"] = _rich

FIELDS = frozenset(
    # identifiers
    "logger_name request_id trace_id error_id user_id chat_id turn_id message_id character_id "  # noqa: SIM905  # a list would take forty lines
    "lorebook_id chronicle_id campaign_id job_id run_id api_key_id provider_id "
    # requests
    "method path_template status problem duration_ms "
    # models
    "provider model finish_reason prompt_file prompt_hash prompt_tokens completion_tokens "
    "cached_tokens thinking_tokens budget_tokens history_tokens retrieval_tokens "
    # jobs
    "job_kind state attempt retry_after_s "
    # the installation
    "address version python database revision key_version signal exit_code collection turns "
    "drain_seconds "
    # errors and counts
    "error_type source count bytes chore helper".split()
)
"""Every field that this code may log. A test checks the logging calls of the backend."""

EVENT = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
"""The name of an event: two or more words with dots, so that no single word passes for one."""

_WORD = re.compile(r"[!-~]{0,200}")
"""Printable ASCII without spaces, such as ids, addresses, slugs and versions. No sentences."""

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
"""Beginnings of lines below WARNING that are logged in full, by logger. They never quote a user."""

_MAX_EXCEPTIONS = 8
_MAX_FRAMES = 40
_ROOT = Path(__file__).parents[2]

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "console"]


def get_logger(name: str) -> FilteringBoundLogger:
    """Return the logger of a module, also before `configure_logging`."""
    return cast("FilteringBoundLogger", structlog.get_logger(logger_name=name))


def bind_request(**ids: str) -> AbstractContextManager[None]:
    """Add the ids of a request to all lines that the block and the tasks started in it log."""
    return structlog.contextvars.bound_contextvars(**ids)


def configure_logging(level: Level, log_format: Format, *, stream: TextIO | None = None) -> None:
    """Write every log line of this process to `stream` (default: standard error).

    Replaces the handlers of all loggers, and the hooks for warnings and uncaught exceptions. Call
    it once, at the start of a program. `auto` is `console` on a terminal, else `json`.
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
            _keep_allowed,
            structlog.processors.add_log_level,
            stamp,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: output,
        # Loggers are made when modules are imported, before this runs, and again by each test.
        cache_logger_on_first_use=False,
    )
    _take_over_loggers(_LibraryHandler(level, write))
    _take_over_hooks()


def describe_exception(error: BaseException) -> str:
    """Return an exception's type and places, then those of its causes, one per line.

    Places are `file:line:function`, the innermost last. Messages and variables are left out. For an
    `OSError`, the system's text for its number is included, without the file's name.
    """
    lines: list[str] = []
    for number, (relation, each) in enumerate(_with_causes(error)):
        if number == _MAX_EXCEPTIONS:
            lines.append("and more")
            break
        errno = each.errno if isinstance(each, OSError) else None
        system_words = f" ({os.strerror(errno)})" if errno else ""
        lines.append(relation + _type_name(each) + system_words)
        places = [
            f"  {_short_path(frame.f_code.co_filename)}:{line}:{frame.f_code.co_name}"
            for frame, line in traceback.walk_tb(each.__traceback__)
        ]
        lines.extend(places[-_MAX_FRAMES:])
    return "\n".join(lines)


def _keep_allowed(_logger: Any, _method: str, event_dict: EventDict) -> EventDict:
    """Drop fields that may not be logged. The first processor, so that no other sees them."""
    event = event_dict.pop("event", None)
    exc_info = event_dict.pop("exc_info", None)
    is_named = isinstance(event, str) and EVENT.fullmatch(event)
    return {
        "event": event if is_named else "log.unnamed",
        **_filter_fields(event_dict),
        **_exception_fields(exc_info),
    }


def _filter_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that may be logged, and the names of the others as `dropped_fields`."""
    kept: dict[str, Any] = {}
    dropped: list[str] = []
    for name, given in fields.items():
        value = str(given) if isinstance(given, UUID) else given
        if name in FIELDS and _is_plain(value):
            kept[name] = value
        else:
            dropped.append(name)
    if dropped:
        kept["dropped_fields"] = sorted(dropped)
    return kept


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    return value is None or isinstance(value, int | float)


def _exception_fields(
    exc_info: BaseException | tuple[Any, ...] | Literal[True] | None,
) -> dict[str, str]:
    error: object = exc_info
    if isinstance(exc_info, tuple):
        error = exc_info[1]
    elif exc_info is True:
        error = sys.exception()
    if not isinstance(error, BaseException):
        return {}
    return {"error_type": _type_name(error), "exception": describe_exception(error)}


def _with_causes(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    """Yield the exception and its causes, each once, with its relation to the one before."""
    seen: set[int] = set()
    queue = [("", error)]
    while queue:
        relation, each = queue.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield relation, each
        if isinstance(each, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", each)
            queue.extend(("part of the group: ", part) for part in group.exceptions)
        if each.__cause__ is not None:
            queue.append(("caused by ", each.__cause__))
        elif each.__context__ is not None and not each.__suppress_context__:
            queue.append(("while handling ", each.__context__))


def _type_name(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _short_path(filename: str) -> str:
    path = Path(filename)
    if "site-packages" in path.parts:
        return "/".join(path.parts[path.parts.index("site-packages") + 1 :])
    if path.is_relative_to(_ROOT):
        return path.relative_to(_ROOT).as_posix()
    return "/".join(path.parts[-2:])


class _LibraryHandler(logging.Handler):
    """Logs the records of libraries: logger, level, and messages that are constants."""

    def __init__(self, level: str, write: Callable[[EventDict], None]) -> None:
        super().__init__(level.upper())
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        message: Any = record.msg
        openings = _HEARD.get(record.name, ())
        is_heard = isinstance(message, str) and message.startswith(openings)
        if record.levelno < logging.WARNING and not is_heard:
            return
        error = message if isinstance(message, BaseException) else record.exc_info
        self._write(
            {
                **(_make_event(record) if is_heard else _make_literal_event(record)),
                "logger_name": record.name,
                "level": record.levelname.lower(),
                **_filter_fields(get_contextvars()),
                **_exception_fields(error),
            }
        )


def _make_event(record: logging.LogRecord) -> EventDict:
    try:
        message = record.getMessage()
    except (TypeError, ValueError):  # the arguments do not fit the template
        return _make_literal_event(record)
    return {"event": " ".join(message.split())}


def _make_literal_event(record: logging.LogRecord) -> EventDict:
    if _is_literal(record):
        return {"event": " ".join(record.msg.split())}
    place = f"{_short_path(record.pathname)}:{record.lineno}:{record.funcName}"
    return {"event": "library.message_withheld", "source": place}


def _is_literal(record: logging.LogRecord) -> bool:
    """True if the message is a constant of the function that logged it, not a formatted string.

    The function is still on the stack while its record is handled.
    """
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if (code.co_filename, frame.f_lineno) == (record.pathname, record.lineno):
            return isinstance(record.msg, str) and record.msg in code.co_consts
        frame = frame.f_back
    return False


def _rendering(log_format: Format, *, on_terminal: bool) -> tuple[Processor, Processor]:
    if log_format == "console" or (log_format == "auto" and on_terminal):
        return (
            structlog.processors.TimeStamper("%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(
                colors=on_terminal, exception_formatter=structlog.dev.plain_traceback
            ),
        )
    return structlog.processors.TimeStamper("iso"), structlog.processors.JSONRenderer()


def _take_over_loggers(handler: logging.Handler) -> None:
    for logger in logging.Logger.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True
    logging.root.handlers = [handler]
    logging.root.setLevel(logging.WARNING)
    for name in _HEARD:
        logging.getLogger(name).setLevel(logging.INFO)


def _take_over_hooks() -> None:
    """Log uncaught exceptions and warnings, which Python would print."""
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
        line: str | None = None,  # noqa: ARG001  # as above
    ) -> None:
        source = f"{_short_path(filename)}:{lineno}"
        log.warning("python.warning", error_type=category.__name__, source=source)

    sys.excepthook = excepthook
    sys.unraisablehook = lambda failure: log.error("object.failed", exc_info=failure.exc_value)
    threading.excepthook = lambda failure: log.error("thread.failed", exc_info=failure.exc_value)
    warnings.showwarning = showwarning
