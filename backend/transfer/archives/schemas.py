"""Responses of the API of archives."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from backend.jobs.schemas import JobView

ArchiveState = Literal["making", "ready", "stopped", "failed"]


class ArchiveView(msgspec.Struct, kw_only=True):
    """The newest archive of the account.

    `size` is that of the zip in bytes, and 0 until it is complete. `unreadable` is the number of
    items that could not be decrypted: the archive does not contain them, and its manifest lists
    them. The archive is deleted at `expires_at`. `job` makes it, and is null a day after it ended.
    """

    state: ArchiveState
    size: int
    unreadable: int
    created_at: datetime
    expires_at: datetime
    job: JobView | None
