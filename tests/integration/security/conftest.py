"""A server, and the first account on it."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support.clock import Clock
from tests.support.logs import Logged, caught_logs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    clock.hang_at_the_door(monkeypatch)
    return clock


@pytest.fixture
def logged() -> Generator[Logged]:
    """What is logged; it also spares the test the traceback that a terminal would show."""
    with caught_logs() as logged:
        yield logged
