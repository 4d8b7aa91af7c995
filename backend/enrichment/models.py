"""Tables of background work: read marks, runs and rolling summaries."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, CreatedAt, ListedOwnerId, OwnerId, PrimaryId, UpdatedAt
from backend.vault.sealing import Column

RunKind = Literal[
    "turn",
    "rebuild",
    "summary",
    "glossary",
    "scene",
    "compaction",
    "chapter",
    "rephrasing",
    "speaker",
    "suggestions",
    "briefing",
    "title",
]
RunState = Literal["done", "failed", "undone"]


class EnrichmentMark(Base):
    """A watermark: the path down to the message `id` has been read.

    It follows the message tree. The deepest mark on the active path counts.
    """

    __tablename__ = "enrichment_marks"
    __table_args__ = (Index(None, "chat_id", "position"),)

    id: Mapped[UUID] = mapped_column(
        ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True
    )
    user_id: Mapped[OwnerId]
    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"))
    position: Mapped[int]


class EnrichmentRun(Base):
    """One run of a background task: its cost, and, sealed, its messages and effects.

    It read the path from `from_position` to `to_position`. Tokens are as reported by the provider.
    `delay_ms` is the time from the creation of the job to the end of the run. `campaign_id` is the
    campaign of the chat at that time. `error` is the slug of an error. A failed run has written
    nothing. `triage_` columns are the share of another model, `triage_model`; null if there was
    one.
    """

    __tablename__ = "enrichment_runs"
    __table_args__ = (
        Index(None, "chat_id", "id"),
        Index(None, "user_id", "created_at"),
        Index(None, "campaign_id", "created_at"),
        Index(
            "ix_enrichment_runs_detailed",
            "created_at",
            sqlite_where=text("sealed_detail IS NOT NULL"),
            postgresql_where=text("sealed_detail IS NOT NULL"),
        ),
    )

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"))
    chronicle_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("chronicles.id", ondelete="CASCADE"), index=True
    )
    campaign_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("campaigns.id", ondelete="SET NULL")
    )
    job_id: Mapped[UUID | None]
    kind: Mapped[RunKind] = mapped_column(String)
    state: Mapped[RunState] = mapped_column(String)
    model: Mapped[str]
    from_position: Mapped[int]
    to_position: Mapped[int]
    calls: Mapped[int] = mapped_column(default=0)
    prompt_tokens: Mapped[int] = mapped_column(default=0)
    completion_tokens: Mapped[int] = mapped_column(default=0)
    triage_model: Mapped[str | None]
    triage_prompt_tokens: Mapped[int] = mapped_column(default=0, server_default="0")
    triage_completion_tokens: Mapped[int] = mapped_column(default=0, server_default="0")
    duration_ms: Mapped[int] = mapped_column(default=0)
    delay_ms: Mapped[int | None]
    error: Mapped[str | None]
    sealed_detail: Mapped[bytes | None]
    created_at: Mapped[CreatedAt]
    undone_at: Mapped[datetime | None]


RUN_DETAIL = Column("enrichment_runs", "sealed_detail")


class ChatSummary(Base):
    """A rolling summary of the path from position `begins_at` down to a message, for one audience.

    It follows the message tree. In a chat whose members come and go, a new one begins where
    presence changes.
    """

    __tablename__ = "chat_summaries"
    __table_args__ = (
        Index(None, "chat_id", "position"),
        Index(None, "message_id", "audience", unique=True),
    )

    id: Mapped[PrimaryId]
    message_id: Mapped[UUID] = mapped_column(ForeignKey("messages.id", ondelete="CASCADE"))
    user_id: Mapped[OwnerId]
    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"))
    run_id: Mapped[UUID | None]
    position: Mapped[int]
    begins_at: Mapped[int] = mapped_column(default=0, server_default="0")
    is_edited: Mapped[bool] = mapped_column(default=False)
    sealed_summary: Mapped[bytes]
    revision: Mapped[int] = mapped_column(default=1)
    audience: Mapped[str] = mapped_column(default="public", server_default="public")
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


CHAT_SUMMARY = Column("chat_summaries", "sealed_summary")
