"""The extent of a test run. `TEST_THOROUGH=1` runs everything."""

from __future__ import annotations

import os

THOROUGH = os.environ.get("TEST_THOROUGH", "") not in {"", "0"}  # noqa: TID251  no setting
"""Every test runs on every kind of database; whole corpora, more kills, more examples."""


def rounds(usual: int, thorough: int) -> int:
    """Choose the number of rounds of a random test."""
    return thorough if THOROUGH else usual
