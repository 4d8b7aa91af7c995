"""Tables of chronicles and their events."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, CreatedAt, ListedOwnerId, OwnerId, PrimaryId, UpdatedAt
from backend.vault.sealing import Column

EventSourceName = Literal["user", "agent", "import", "campaign"]


class Chronicle(Base):
    """What happened in one story, or in one world: several chats may share it."""

    __tablename__ = "chronicles"
    __table_args__ = (Index(None, "user_id", "id"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
    sealed_chronicle: Mapped[bytes]
    revision: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


CHRONICLE = Column("chronicles", "sealed_chronicle")


class ChronicleEvent(Base):
    """Something that happened. Its story order is (`happened_at`, `place`, `id`).

    `happened_at` is when it was played, in the world; the story's own time is sealed with the rest.
    `place` is the depth of its first source message, which tells apart what one moment holds.
    `superseded_by` is the event that says what is true now. `run_id` is the agent's run that wrote
    it, and `is_edited` that a user has changed it since: neither undoing nor rebuilding takes it
    away then.
    """

    __tablename__ = "chronicle_events"
    __table_args__ = (
        Index(None, "chronicle_id", "happened_at", "place", "id"),
        Index(None, "run_id"),
        # Every turn asks for these. The condition stands as SQLAlchemy spells it in queries.
        Index(
            "ix_chronicle_events_pinned",
            "chronicle_id",
            "happened_at",
            "place",
            "id",
            sqlite_where=text("is_pinned = 1"),
            postgresql_where=text("is_pinned"),
        ),
    )

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    chronicle_id: Mapped[UUID] = mapped_column(ForeignKey("chronicles.id", ondelete="CASCADE"))
    source: Mapped[EventSourceName] = mapped_column(String)
    significance: Mapped[int]
    is_pinned: Mapped[bool] = mapped_column(default=False)
    is_edited: Mapped[bool] = mapped_column(default=False)
    happened_at: Mapped[datetime]
    place: Mapped[int] = mapped_column(default=0)
    superseded_by: Mapped[UUID | None] = mapped_column(
        ForeignKey("chronicle_events.id", ondelete="SET NULL"), index=True
    )
    run_id: Mapped[UUID | None]
    sealed_event: Mapped[bytes]
    revision: Mapped[int] = mapped_column(default=1)
    audience: Mapped[str] = mapped_column(default="public", server_default="public")
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


EVENT = Column("chronicle_events", "sealed_event")


class EventSource(Base):
    """A message that an event comes from.

    An event counts while all of its messages are on their chats' active paths. There is no key to
    the message: one that was deleted is on no path. With a chat its rows here go, and what counted
    goes on counting.
    """

    __tablename__ = "chronicle_event_sources"

    event_id: Mapped[UUID] = mapped_column(
        ForeignKey("chronicle_events.id", ondelete="CASCADE"), primary_key=True
    )
    message_id: Mapped[UUID] = mapped_column(primary_key=True, index=True)
    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"), index=True)
    position: Mapped[int]
