"""Shapes of the API of rolling summaries."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec

from backend.enrichment.summary.stored import MAX_SUMMARY_CHARS, StoredSummary

SummaryText = Annotated[str, msgspec.Meta(max_length=MAX_SUMMARY_CHARS)]


class SummaryView(msgspec.Struct, kw_only=True, frozen=True):
    """A summary of a chat's active path, from its beginning through a message.

    `model` wrote it; null where a person did, where that is no longer known, or where no model
    would sum up the lines and they were passed over. `edited`: a person wrote or changed it.
    `is_used`: the next prompt would have it.
    """

    text: str
    through_message_id: UUID
    through_position: int
    edited: bool
    model: str | None
    revision: int
    is_used: bool
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, summary: StoredSummary, *, is_used: bool) -> "SummaryView":
        """The view of what is stored."""
        return cls(
            text=summary.text,
            through_message_id=summary.message_id,
            through_position=summary.position,
            edited=summary.is_edited,
            model=summary.model,
            revision=summary.revision,
            is_used=is_used,
            created_at=summary.created_at,
            updated_at=summary.updated_at,
        )


class NewSummary(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What a summary is to say.

    `through_message_id` is the last message that it covers. Absent, the current summary is changed.
    """

    text: SummaryText
    through_message_id: UUID | None = None
