"""Responses of the API of imports."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from backend.jobs.schemas import JobProgress
from backend.transfer.models import ImportState, ItemKind, Outcome


class ImportCounts(msgspec.Struct, kw_only=True):
    """The number of files by outcome."""

    imported: int = 0
    already_there: int = 0
    skipped: int = 0
    failed: int = 0


class ImportView(msgspec.Struct, kw_only=True):
    """An import of a file, or of a folder in a zip.

    `name` is that of the upload, `size` its bytes. `progress` counts files; its total is 0 until it
    is known. `job_id` is the job that does the work; its counts include the messages that are
    stored. An import that was stopped, or has failed, can be continued while `can_continue` is
    true, at most until `expires_at`. `chat_id` is the chat of an upload that is one chat.
    """

    id: UUID
    name: str
    size: int
    state: ImportState
    counts: ImportCounts
    progress: JobProgress
    can_continue: bool
    job_id: UUID | None
    chat_id: UUID | None
    expires_at: datetime
    created_at: datetime
    updated_at: datetime


class ImportResultView(msgspec.Struct, kw_only=True):
    """The result of one file.

    `kind` and `item_id` name the item that was made, or that was there before. `detail` is the
    reason in a sentence. `warnings` name the parts of a file that were not understood.
    """

    id: UUID
    path: str
    outcome: Outcome
    kind: ItemKind | None
    item_id: UUID | None
    detail: str
    warnings: Sequence[str]
    created_at: datetime
