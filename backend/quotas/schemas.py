"""Shapes of usage on the wire."""

from __future__ import annotations

from datetime import datetime

import msgspec

from backend.quotas.definitions import Unit


class QuotaUsage(msgspec.Struct, kw_only=True):
    """One quota: how much is used of how much.

    `limit` is null where there is none. `frees_at` is when all of it is free again, where time
    alone frees it; null where something has to end or to be deleted first.
    """

    quota: str
    used: int
    limit: int | None
    unit: Unit
    frees_at: datetime | None = None


class AccountUsage(msgspec.Struct, kw_only=True):
    """What an account uses: numbers only."""

    items: list[QuotaUsage]
