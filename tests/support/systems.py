"""Other operating systems, as far as they can be simulated: what they lack is hidden.

A folder in PYTHONPATH does it, which helper processes inherit. `pytest --system NAME` simulates a
system for any tests.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path

SYSTEMS = ("windows", "macos")

_FOLDERS = Path(__file__).with_name("simulated")


def python_path(system: str) -> str:
    """Return the value of PYTHONPATH that simulates a system."""
    return str(_FOLDERS / system)


def simulate_here(system: str) -> None:
    """Simulate a system in this process and in those that it starts."""
    runpy.run_path(str(_FOLDERS / system / "sitecustomize.py"))
    os.environ["PYTHONPATH"] = python_path(system)  # noqa: TID251  it is Python's own
