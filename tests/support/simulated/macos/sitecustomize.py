"""Refuse a limit on memory, as macOS does, in every process that has this folder in PYTHONPATH.

Helper processes inherit PYTHONPATH.
"""

from __future__ import annotations

import resource  # noqa: TID251  it is changed here

_setrlimit = resource.setrlimit


def refuse_memory_limit(what: int, limits: tuple[int, int]) -> None:
    """Set a limit; raise `ValueError` for one on the address space."""
    if what == resource.RLIMIT_AS:
        raise ValueError("current limit exceeds maximum limit")
    _setrlimit(what, limits)


resource.setrlimit = refuse_memory_limit
