"""A clock that a test moves by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

TIMED_MODULES = (
    "auth.second_factor.gate",
    "auth.second_factor.service",
    "auth.controller",
    "auth.sessions",
    "auth.throttle",
    "profile.activity",
    "profile.administration",
    "profile.service",
    "service",
)
"""Modules of `backend.accounts` that ask for the time."""


class Clock:
    """A clock that stops until it is moved."""

    def __init__(self) -> None:
        self.at = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.at

    def forward(self, **by: float) -> None:
        self.at += timedelta(**by)

    def hang_at_the_door(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let everything that guards accounts go by this clock."""
        for module in TIMED_MODULES:
            monkeypatch.setattr(f"backend.accounts.{module}.now", self)
