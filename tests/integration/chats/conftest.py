"""A server shared by the tests of a module."""

from __future__ import annotations

from tests.support.shared import ada, chat, server, shared_url

__all__ = ["ada", "chat", "server", "shared_url"]
