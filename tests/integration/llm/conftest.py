"""A database shared by the tests of a module."""

from __future__ import annotations

from tests.support.shared import shared_url

__all__ = ["shared_url"]
