"""Simulated operating systems, and certificate authorities that all clients of a process share."""

from __future__ import annotations

import os
import runpy
import ssl
from functools import cache
from pathlib import Path
from typing import Any

import httpcore2

SYSTEMS = ("windows", "macos")

_FOLDERS = Path(__file__).with_name("simulated")


def python_path(system: str) -> str:
    """Return the value of PYTHONPATH that simulates a system."""
    return str(_FOLDERS / system)


def simulate_here(system: str) -> None:
    """Simulate a system in this process and in those that it starts."""
    runpy.run_path(str(_FOLDERS / system / "sitecustomize.py"))
    os.environ["PYTHONPATH"] = python_path(system)  # noqa: TID251  it is Python's own


_create_context = ssl.create_default_context
_load_authorities = httpcore2.default_ssl_context
_create_once = cache(_create_context)
_load_once = cache(_load_authorities)


def share_ssl_contexts() -> None:
    """Let clients of the same authorities share a context.

    Every client of a model provider makes one, and to load the authorities takes 20 ms: as long
    as the rest of most tests of these clients.
    """
    ssl.create_default_context = _shared_context
    httpcore2.default_ssl_context = _shared_authorities


def _shared_context(
    purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH, *, cadata: Any = None, **paths: Any
) -> ssl.SSLContext:
    if cadata is not None:
        return _create_context(purpose, cadata=cadata, **paths)
    return _create_once(purpose, **paths)


def _shared_authorities(*, _trust_env: bool = True) -> ssl.SSLContext:
    if _trust_env:  # the variables may have changed
        return _load_authorities()
    return _load_once(_trust_env=False)
