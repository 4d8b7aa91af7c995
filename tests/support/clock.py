"""A clock that a test moves by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

DOOR = (
    "activity",
    "administration",
    "profile",
    "second_factor.gate",
    "second_factor.service",
    "service",
    "sessions",
    "throttle",
    "token_controller",
)
"""Modules of `backend.accounts` that ask for the time."""


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.at = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.at

    def forward(self, **by: float) -> None:
        self.at += timedelta(**by)

    def hang_at_the_door(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let everything that guards accounts go by this clock."""
        for module in DOOR:
            monkeypatch.setattr(f"backend.accounts.{module}.now", self)
