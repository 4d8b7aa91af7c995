"""Fixtures for every test, and the groups of tests that not every machine can run."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

from tests.support.machine import SYSTEMS, share_ssl_contexts, simulate_here
from tests.support.thorough import THOROUGH

GROUPS = (
    "release",
    "embeddings",
    "pooler",
    "postgres",
    "qdrant",
    "browser",
    "generated",
    "llm",
    "door",
    "npm",
)
"""Markers of tests that need more than Python and its packages.

A fixture provides the requirement, or calls `pytest.skip` with the reason. The summary has one line
for each skipped group. A test with several markers belongs to the first group in this tuple. The
environment variable `TEST_REQUIRE` (comma-separated names) makes skips of a group failures.
"""

# No deadline, because the time of an example depends on the load of the machine.
hypothesis.settings.register_profile("ci", deadline=None, max_examples=40)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=500)
hypothesis.settings.load_profile("thorough" if THOROUGH else "ci")

MEMORY = Path("/dev/shm")  # noqa: S108  # a temporary folder is what it is wanted for
"""Linux's file system in memory.

Each test server creates a database and an index, which wait for the disk a dozen times. On a busy
disk that takes longer than most tests.
"""

ENOUGH_BYTES = 8 * 2**30
"""Free space that the temporary folders need. Containers may have only some megabytes."""

_REQUIRED = pytest.StashKey[frozenset[str]]()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run on asyncio, the only event loop that is supported."""
    return "asyncio"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--system", choices=SYSTEMS, help="hide what this operating system lacks")


def pytest_configure(config: pytest.Config) -> None:
    share_ssl_contexts()
    if system := config.getoption("--system"):
        simulate_here(system)
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ENOUGH_BYTES:
        # Pytest creates its temporary folders there.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # noqa: TID251  # no setting of the program's
    named = os.environ.get("TEST_REQUIRE", "")  # noqa: TID251  no setting of the program's
    required = frozenset(filter(None, (name.strip() for name in named.split(","))))
    if unknown := sorted(required.difference(GROUPS)):
        raise pytest.UsageError(f"TEST_REQUIRE: no such group: {', '.join(unknown)}")
    config.stash[_REQUIRED] = required


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of thorough runs, unless this run is one."""
    if THOROUGH:
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker("thorough")]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt the collected tests and modules from garbage collection.

    They are half a million objects that live until the end. A full collection took 0.6 s.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, pytest.skip.Exception):
        reason = str(call.excinfo.value)
        group = next(filter(item.get_closest_marker, GROUPS), "")
        if group in item.config.stash[_REQUIRED]:
            report.outcome = "failed"
            report.longrepr = f"{group} is required (TEST_REQUIRE): {reason}"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    yield
    # Reports are all that arrives from the other processes.
    skipped: list[pytest.TestReport] = terminalreporter.stats.get("skipped", [])
    for group in GROUPS:
        reasons = [
            report.longrepr[2].removeprefix("Skipped: ")
            for report in skipped
            if _group_of(report) == group and isinstance(report.longrepr, tuple)
        ]
        if reasons:
            line = f"not run: {group} ({len(reasons)} tests): {reasons[0]}"
            terminalreporter.write_line(line, yellow=True)


def _group_of(report: pytest.TestReport) -> str:
    """Return the group of a test, or an empty string."""
    return next((group for group in GROUPS if group in report.keywords), "")
