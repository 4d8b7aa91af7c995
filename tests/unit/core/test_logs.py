from __future__ import annotations

import ast
import asyncio
import io
import json
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import structlog

from backend.core.logs import (
    EVENT,
    FIELDS,
    Format,
    Level,
    bind_request,
    configure_logging,
    describe_exception,
    get_logger,
)

CANARY = "the-canary-sings-in-the-cellar"
SENTENCE = f"She whispered: {CANARY}"
BACKEND = Path(__file__).parents[3] / "backend"

log = get_logger("backend.turns.api.service")


class Output:
    """The text of the log since `configure`."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    @property
    def only(self) -> dict[str, Any]:
        (line,) = self.lines
        return line


@contextmanager
def configured(level: Level = "info", log_format: Format = "json") -> Generator[Output]:
    """Configure logging from `level` on, and restore everything afterwards."""
    root, hooks = logging.root, (sys.excepthook, sys.unraisablehook, threading.excepthook)
    handlers, root_level, showwarning = root.handlers, root.level, warnings.showwarning
    output = Output()
    configure_logging(level, log_format, stream=output.stream)
    try:
        yield output
    finally:
        root.handlers, warnings.showwarning = handlers, showwarning
        root.setLevel(root_level)
        sys.excepthook, sys.unraisablehook, threading.excepthook = hooks
        structlog.reset_defaults()


@pytest.fixture
def output() -> Iterator[Output]:
    with configured() as output:
        yield output


def fail_with(text: str) -> None:
    raise ValueError(f"Not acceptable: {text}")


def fail_after(text: str) -> None:
    try:
        fail_with(text)
    except ValueError as error:
        raise RuntimeError(text) from error


def test_an_event_comes_with_its_fields_its_logger_its_level_and_its_time(output: Output) -> None:
    turn = UUID(int=7)

    log.info("turn.finished", turn_id=turn, model="demo", completion_tokens=12, status=None)

    line = output.only
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "turn.finished",
        "logger_name": "backend.turns.api.service",
        "level": "info",
        "turn_id": str(turn),
        "model": "demo",
        "completion_tokens": 12,
        "status": None,
    }


def test_a_field_that_is_not_on_the_list_is_named_and_not_shown(output: Output) -> None:
    log.info("chat.renamed", chat_id=UUID(int=1), title=CANARY, tags=[CANARY])
    assert output.only["dropped_fields"] == ["tags", "title"]
    assert CANARY not in output.text


@pytest.mark.parametrize(
    "value",
    [SENTENCE, [CANARY], {"text": CANARY}, ValueError(CANARY), CANARY * 10, f"a\n{CANARY}"],
    ids=["sentence", "list", "mapping", "exception", "long word", "two lines"],
)
def test_a_field_on_the_list_has_no_room_for_text(output: Output, value: object) -> None:
    log.info("model.chosen", model=value)
    assert output.only["dropped_fields"] == ["model"]
    assert CANARY not in output.text


@pytest.mark.parametrize("event", [SENTENCE, CANARY, "canary", "%s"])
def test_an_event_that_is_no_name_is_not_shown(output: Output, event: str) -> None:
    log.info(event)
    assert output.only["event"] == "log.unnamed"


def test_arguments_of_an_event_are_not_logged(output: Output) -> None:
    log.info("turn.failed %s", CANARY)
    assert CANARY not in output.text


def test_an_exception_is_logged_with_type_and_place(output: Output) -> None:
    secret = CANARY
    try:
        fail_after(secret)
    except RuntimeError:
        log.exception("turn.failed")

    line = output.only
    assert line["error_type"] == "RuntimeError"
    first, *rest = line["exception"].split("\n")
    assert first == "RuntimeError"
    assert rest[2] == "caused by ValueError"
    assert rest[-1].startswith("  tests/unit/core/test_logs.py:")
    assert rest[-1].endswith(":fail_with")
    assert CANARY not in output.text


def test_logs_before_configuration_show_no_variables() -> None:
    program = """
import rich
from backend.core.logs import get_logger

def fail(secret):
    raise ValueError

try:
    fail(" ".join(["canary"] * 2))
except ValueError as error:
    get_logger("backend").warning("turn.failed", exc_info=error)
"""
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert "ValueError" in printed
    assert "canary canary" not in printed


def test_every_part_of_an_exception_group_is_logged(output: Output) -> None:
    errors: list[Exception] = []
    for fail in (fail_with, fail_after):
        try:
            fail(CANARY)
        except (ValueError, RuntimeError) as error:
            errors.append(error)

    log.error("job.failed", exc_info=ExceptionGroup(CANARY, errors))

    parts = output.only["exception"].split("part of the group: ")
    assert len(parts) == 3
    assert CANARY not in output.text


def test_a_system_error_is_logged_with_the_systems_words_without_the_file() -> None:
    with pytest.raises(OSError, match=CANARY) as caught:
        Path(f"/nowhere/{CANARY}").read_text()
    assert describe_exception(caught.value).startswith(
        "FileNotFoundError (No such file or directory)"
    )
    assert CANARY not in describe_exception(caught.value)


def test_exceptions_that_cause_each_other_are_logged_once() -> None:
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    assert describe_exception(first).split("\n") == ["ValueError", "caused by KeyError"]


def test_a_long_chain_of_causes_is_cut() -> None:
    error = ValueError()
    for _ in range(50):
        outer = ValueError()
        outer.__cause__ = error
        error = outer
    assert describe_exception(error).split("\n")[-1] == "and more"


def test_a_library_is_heard_in_the_words_of_its_code_alone(output: Output) -> None:
    logging.getLogger("httpx").warning("The request to %s failed", CANARY)
    assert output.only["event"] == "The request to %s failed"
    assert output.only["logger_name"] == "httpx"
    assert output.only["level"] == "warning"


def test_a_formatted_message_of_a_library_is_withheld_but_its_place_is_logged(
    output: Output,
) -> None:
    logging.getLogger("google_genai.types").warning(f"Bad part: {CANARY}")  # noqa: G004  as they do
    assert output.only["event"] == "library.message_withheld"
    assert output.only["source"].startswith("tests/unit/core/test_logs.py:")
    assert CANARY not in output.text


def test_an_exception_of_a_library_is_logged_without_its_message(output: Output) -> None:
    try:
        fail_with(CANARY)
    except ValueError as error:
        logging.getLogger("asyncio").exception("Task exception was never retrieved")
        logging.getLogger("uvicorn.error").error(error)  # noqa: TRY400  as uvicorn does
    assert [line["error_type"] for line in output.lines] == ["ValueError", "ValueError"]
    assert CANARY not in output.text


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
@pytest.mark.parametrize("name", ["openai", "httpx", "sqlalchemy.engine.Engine", "uvicorn.access"])
def test_debug_and_info_logs_of_libraries_are_dropped(
    output: Output, name: str, level: int
) -> None:
    library = logging.getLogger(name)
    before = library.level
    library.setLevel(logging.DEBUG)
    library.log(level, "Request options: %s", CANARY)
    library.setLevel(before)
    assert output.text == ""


def test_the_servers_start_and_stop_are_logged_in_full(output: Output) -> None:
    server = logging.getLogger("uvicorn.error")
    server.info("Uvicorn running on %s://%s:%d", "http", "127.0.0.1", 8000)
    server.info('%s - "WebSocket %s" [accepted]', "127.0.0.1", f"/search?q={CANARY}")
    assert output.only["event"] == "Uvicorn running on http://127.0.0.1:8000"


@pytest.mark.parametrize("name", ["uvicorn.error", "httpx"])
def test_a_record_with_wrong_arguments_is_logged_without_them(name: str) -> None:
    with configured() as output:
        logging.getLogger(name).warning("Waiting for %d", CANARY)
    assert output.only["event"] == "Waiting for %d"


def test_handlers_that_libraries_brought_along_are_taken_away() -> None:
    theirs = io.StringIO()
    library = logging.getLogger("a.library.that.prints")
    library.addHandler(logging.StreamHandler(theirs))
    library.propagate = False
    with configured() as output:
        library.error("Failed: %s", CANARY)
    assert output.only["event"] == "Failed: %s"
    assert theirs.getvalue() == ""


def test_a_warning_is_logged_with_type_and_place(output: Output) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logging("info", "json", stream=output.stream)
        warnings.warn(SENTENCE, RuntimeWarning, stacklevel=1)
    assert output.only["error_type"] == "RuntimeWarning"
    assert output.only["source"].startswith("tests/unit/core/test_logs.py:")
    assert CANARY not in output.text


def test_an_uncaught_exception_is_logged_with_type_and_place(output: Output) -> None:
    thread = threading.Thread(target=fail_with, args=[CANARY])
    thread.start()
    thread.join()
    error = ValueError(CANARY)
    sys.excepthook(ValueError, error, None)
    assert [line["event"] for line in output.lines] == ["thread.failed", "process.failed"]
    assert CANARY not in output.text


def test_the_request_is_named_on_every_line_of_its_block(output: Output) -> None:
    async def task() -> None:
        log.info("turn.started")

    async def request() -> None:
        with bind_request(request_id="r-1"):
            started = asyncio.create_task(task())
            logging.getLogger("httpx").warning("Slow")
        log.info("request.finished")
        await started

    asyncio.run(request())

    assert {line["event"]: line.get("request_id") for line in output.lines} == {
        "Slow": "r-1",
        "request.finished": None,
        "turn.started": "r-1",
    }


@pytest.mark.parametrize(("level", "heard"), [("debug", 3), ("info", 2), ("error", 1)])
def test_the_level_is_the_least_that_is_logged(level: Level, heard: int) -> None:
    with configured(level) as output:
        log.debug("turn.started")
        logging.getLogger("httpx").warning("Slow")
        log.error("turn.failed")
    assert len(output.lines) == heard


def test_the_console_form_keeps_the_same_rules() -> None:
    with configured(log_format="console") as output:
        try:
            fail_after(CANARY)
        except RuntimeError:
            log.exception("turn.failed", model=SENTENCE)
    assert "turn.failed" in output.text
    assert "caused by ValueError" in output.text
    assert CANARY not in output.text


def test_auto_is_json_without_a_terminal() -> None:
    with configured(log_format="auto") as output:
        log.info("turn.started")
    assert output.only["event"] == "turn.started"


def logging_calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield every call of a logger in the backend with its place."""
    methods = {"debug", "info", "warning", "error", "exception", "critical"}
    for path in BACKEND.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in methods
                and ast.unparse(node.func.value) in {"log", "_log", "self.log", "self._log"}
            ):
                yield f"{path.relative_to(BACKEND)}:{node.lineno}", node


def test_the_backend_logs_named_events_with_fields_of_the_list() -> None:
    found = list(logging_calls())
    assert found
    for place, call in found:
        (event,) = call.args
        assert isinstance(event, ast.Constant), f"{place}: an event is a constant"
        assert EVENT.fullmatch(str(event.value)), f"{place}: an event is `what.happened`"
        for keyword in call.keywords:
            assert keyword.arg in FIELDS | {"exc_info"}, f"{place}: {keyword.arg} is not in FIELDS"
