"""Fixtures of turn tests: one server for each module."""

from __future__ import annotations

from tests.support.shared import ada, chat, server, shared_url, vendor

__all__ = ["ada", "chat", "server", "shared_url", "vendor"]
