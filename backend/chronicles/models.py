"""Tables of chronicles and their events."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, CreatedAt, Deletable, OwnerId, PrimaryId, UpdatedAt
from backend.vault.sealing import Column

EventSourceName = Literal["user", "agent", "import", "campaign"]


class Chronicle(Deletable, Base):
    """The events of one story or one world. Several chats may share it."""

    __tablename__ = "chronicles"

    id: Mapped[PrimaryId]
    sealed_chronicle: Mapped[bytes]
    revision: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


CHRONICLE = Column("chronicles", "sealed_chronicle")


class ChronicleEvent(Base):
    """An event. Story order is (`happened_at`, `place`, `id`).

    `happened_at` is the real time when it was played. Time in the story is part of the sealed
    fields. `place` is the depth of its first source message, which orders events of one moment.
    `superseded_by` is the event that replaced it. `run_id` is the agent's run that wrote it.
    `is_edited` is True if a user changed it since. Then undoing and rebuilding keep it.
    """

    __tablename__ = "chronicle_events"
    __table_args__ = (
        Index(None, "chronicle_id", "happened_at", "place", "id"),
        Index(None, "run_id"),
        # Used in every turn. The condition is spelled as SQLAlchemy writes it in queries.
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
    """A source message of an event.

    An event is active while all messages of one of its tellings are on their chats' active paths.
    The first `telling` is 0; if the same is told to others later, that is another one. There is no
    foreign key to the message. A deleted message is on no path. Deleting a chat deletes its rows
    here, so active events stay active.
    """

    __tablename__ = "chronicle_event_sources"

    event_id: Mapped[UUID] = mapped_column(
        ForeignKey("chronicle_events.id", ondelete="CASCADE"), primary_key=True
    )
    message_id: Mapped[UUID] = mapped_column(primary_key=True, index=True)
    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"), index=True)
    position: Mapped[int]
    telling: Mapped[int] = mapped_column(default=0, server_default="0")
