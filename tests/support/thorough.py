"""How much a run of the tests tries: `TEST_THOROUGH=1` asks for all there is."""

from __future__ import annotations

import os

THOROUGH = os.environ.get("TEST_THOROUGH", "") not in {"", "0"}  # noqa: TID251  no setting
"""Every test runs on every kind of database; whole corpora, more kills, more examples."""


def rounds(usual: int, thorough: int) -> int:
    """How often to do what chance decides."""
    return thorough if THOROUGH else usual
