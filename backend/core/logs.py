"""Logs that have no room for a user's words.

Three rules hold for every line, of ours and of libraries:

- Our own code logs an event by its name (`turn.failed`), with fields out of `FIELDS`, whose values
  are numbers or single words. Anything else is left out and named under `dropped_fields`.
- Of an exception come its type and the places it passed, never its message and never a variable:
  both may quote what a user wrote.
- Of a library come warnings and errors. Its message is shown only where it stands, letter for
  letter, in the library's code; what was put into it is not.

A module logs through a logger of its own:

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

# Where rich is installed structlog imports it, with all of pygments: a tenth of a start and 11 MiB,
# for tracebacks with variables, which are not to be logged.
_rich = sys.modules.get("rich")
sys.modules["rich"] = cast("Any", None)
import structlog  # noqa: E402  # not before rich is hidden
from structlog.contextvars import get_contextvars  # noqa: E402
from structlog.typing import EventDict, FilteringBoundLogger, Processor  # noqa: E402

del sys.modules["rich"]
if _rich is not None:
    sys.modules["rich"] = _rich

FIELDS = frozenset(
    # where a line belongs
    "logger_name request_id error_id user_id chat_id turn_id message_id character_id "  # noqa: SIM905  one name a line would say no more in forty
    "lorebook_id chronicle_id campaign_id job_id run_id api_key_id provider_id "
    # a request
    "method path_template status problem duration_ms "
    # a model's work
    "provider model finish_reason prompt_file prompt_hash prompt_tokens completion_tokens "
    "cached_tokens thinking_tokens budget_tokens history_tokens retrieval_tokens "
    # a job
    "job_kind state attempt retry_after_s "
    # how this installation runs
    "address version python database revision key_version signal exit_code collection turns "
    "drain_seconds "
    # what went wrong, and how much of anything
    "error_type source count bytes chore helper".split()
)
"""Every field that our own code may log. A test holds the logging calls of the backend to it."""

EVENT = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
"""An event's name: two words or more with dots between, so that no single word passes for one."""

_WORD = re.compile(r"[!-~]{0,200}")
"""Printable ASCII without a space: ids, addresses, slugs and versions pass, sentences do not."""

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

_MOST_EXCEPTIONS = 8
_MOST_FRAMES = 40
_ROOT = Path(__file__).parents[2]

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "console"]


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger for the module of that name; it may be made before `configure_logging`."""
    return cast("FilteringBoundLogger", structlog.get_logger(logger_name=name))


def bind_request(request_id: str) -> AbstractContextManager[None]:
    """Put `request_id` on every line logged inside the block, and in tasks started there."""
    return structlog.contextvars.bound_contextvars(request_id=request_id)


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
    """An exception's type and the places it passed, then the same of its causes, line by line.

    Places are `file:line:function`, the innermost last. Messages and variables stay out; of an
    `OSError` the system's own words for its number come in, without the file it was about.
    """
    lines: list[str] = []
    for number, (relation, each) in enumerate(_with_causes(error)):
        if number == _MOST_EXCEPTIONS:
            lines.append("and more")
            break
        errno = each.errno if isinstance(each, OSError) else None
        system_words = f" ({os.strerror(errno)})" if errno else ""
        lines.append(relation + _type_name(each) + system_words)
        places = [
            f"  {_short_path(frame.f_code.co_filename)}:{line}:{frame.f_code.co_name}"
            for frame, line in traceback.walk_tb(each.__traceback__)
        ]
        lines.extend(places[-_MOST_FRAMES:])
    return "\n".join(lines)


def _keep_allowed(_logger: Any, _method: str, event_dict: EventDict) -> EventDict:
    """The processor that stands before every other: what it leaves out, nothing later sees."""
    event = event_dict.pop("event", None)
    exc_info = event_dict.pop("exc_info", None)
    is_named = isinstance(event, str) and EVENT.fullmatch(event)
    return {
        "event": event if is_named else "log.unnamed",
        **_allowed(event_dict),
        **_exception_fields(exc_info),
    }


def _allowed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that may be logged, and under `dropped_fields` the names of the others."""
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
    """`error_type` and `exception` for `exc_info` as `logging` takes it: error, triple or True."""
    error: object = exc_info
    if isinstance(exc_info, tuple):
        error = exc_info[1]
    elif exc_info is True:
        error = sys.exception()
    if not isinstance(error, BaseException):
        return {}
    return {"error_type": _type_name(error), "exception": describe_exception(error)}


def _with_causes(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    """The exception, then what it came of, each once and with a word on how they hang together."""
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
    """A source file's path from its package on."""
    path = Path(filename)
    if "site-packages" in path.parts:
        return "/".join(path.parts[path.parts.index("site-packages") + 1 :])
    if path.is_relative_to(_ROOT):
        return path.relative_to(_ROOT).as_posix()
    return "/".join(path.parts[-2:])


class _LibraryHandler(logging.Handler):
    """Hands on what may be said of a record: which logger, how bad, and the words of the code."""

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
                **(_in_full(record) if is_heard else _in_words_of_the_code(record)),
                "logger_name": record.name,
                "level": record.levelname.lower(),
                **_allowed(get_contextvars()),
                **_exception_fields(error),
            }
        )


def _in_full(record: logging.LogRecord) -> EventDict:
    try:
        message = record.getMessage()
    except (TypeError, ValueError):  # the arguments don't fit the template
        return _in_words_of_the_code(record)
    return {"event": " ".join(message.split())}


def _in_words_of_the_code(record: logging.LogRecord) -> EventDict:
    if _is_literal(record):
        return {"event": " ".join(record.msg.split())}
    place = f"{_short_path(record.pathname)}:{record.lineno}:{record.funcName}"
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
    """Make `handler` the only one of this process, whatever libraries have set up so far."""
    for logger in logging.Logger.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True
    logging.root.handlers = [handler]
    logging.root.setLevel(logging.WARNING)
    for name in _HEARD:
        logging.getLogger(name).setLevel(logging.INFO)


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
        source = f"{_short_path(filename)}:{lineno}"
        log.warning("python.warning", error_type=category.__name__, source=source)

    sys.excepthook = excepthook
    sys.unraisablehook = lambda failure: log.error("object.failed", exc_info=failure.exc_value)
    threading.excepthook = lambda failure: log.error("thread.failed", exc_info=failure.exc_value)
    warnings.showwarning = showwarning
