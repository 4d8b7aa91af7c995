"""The certificate authorities of the machine, loaded once for all clients of a process."""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any

import httpcore2

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
