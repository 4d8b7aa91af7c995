"""Tables of turns and their context records."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from sqlalchemy import ForeignKey, Index, LargeBinary, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, CreatedAt, ListedOwnerId, OwnerId, PrimaryId, get_table
from backend.database.processes import Leases
from backend.llm.slot_rules import Occupation
from backend.vault.sealing import Column

TurnKind = Literal["reply", "regenerate", "continue", "impersonate"]
TurnState = Literal["running", "waiting", "completed", "stopped", "failed", "interrupted"]

OPEN_STATES: tuple[TurnState, ...] = ("running", "waiting")
"""States of a turn that has not ended."""

LEASE_DURATION = timedelta(seconds=30)
"""A running turn counts as abandoned if its lease was not renewed for this time."""

RESERVATION = timedelta(minutes=2)
"""The lease of a turn that follows by itself, until its prompt is built."""

NOT_BUILT = "{}"
"""The `totals` of a turn without a prompt."""

IS_OPEN = text("state IN ('running', 'waiting')")
_IS_RUNNING = text("state = 'running'")


class Turn(Base):
    """A turn. At most one turn of a chat is open.

    Attributes:
        totals: The token totals of the prompt as JSON. Without them, the turn is reserved: it will
            follow another one by itself, and its speaker is not chosen yet. Any other turn of the
            chat may take its place.
        segments: The order of thinking, text and events as JSON (`[[kind, places], ...]`), so that
            any process can number the events.
        lease_owner: The process that runs the turn and renews `lease_until`. Once the lease has
            expired, the process may no longer write to the turn.
        path_tokens: The model's tokens of the whole history of a campaign.
        sent_tokens: The model's tokens that were sent instead of it.
        waits_for: The work of the model's server that the turn waits for.
        sealed_events: The events of a played turn.
        sealed_play: The state of a waiting turn.
        chain_id: The first turn of replies that follow each other by themselves. The first turn has
            its own id here.
        replies_left: The number of replies that may follow this one by themselves.
    """

    __tablename__ = "turns"
    __table_args__ = (
        Index(
            "uq_turns_open",
            "chat_id",
            unique=True,
            sqlite_where=IS_OPEN,
            postgresql_where=IS_OPEN,
        ),
        Index(None, "chat_id"),
        Index(None, "user_id", "created_at"),
        Index(
            "ix_turns_chain_id",
            "chain_id",
            sqlite_where=text("chain_id IS NOT NULL"),
            postgresql_where=text("chain_id IS NOT NULL"),
        ),
        Index(
            "ix_turns_lease",
            "lease_until",
            sqlite_where=_IS_RUNNING,
            postgresql_where=_IS_RUNNING,
        ),
    )

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"))
    kind: Mapped[TurnKind] = mapped_column(String)
    state: Mapped[TurnState] = mapped_column(String)
    model: Mapped[str]
    request_digest: Mapped[bytes]
    user_message_id: Mapped[UUID | None]
    reply_id: Mapped[UUID | None]
    prefix_length: Mapped[int] = mapped_column(default=0)
    thinking_prefix_length: Mapped[int] = mapped_column(default=0)
    segments: Mapped[str] = mapped_column(default="[]")
    totals: Mapped[str] = mapped_column(default="{}")
    path_tokens: Mapped[int | None]
    sent_tokens: Mapped[int | None]
    usage: Mapped[str | None]
    finish: Mapped[str | None]
    sealed_output: Mapped[bytes | None]
    sealed_problem: Mapped[bytes | None]
    sealed_events: Mapped[bytes | None]
    sealed_play: Mapped[bytes | None]
    waits_for: Mapped[Occupation | None] = mapped_column(String)
    chain_id: Mapped[UUID | None]
    replies_left: Mapped[int] = mapped_column(default=0, server_default="0")
    stop_requested: Mapped[bool] = mapped_column(default=False)
    lease_owner: Mapped[UUID | None]
    lease_until: Mapped[datetime | None]
    created_at: Mapped[CreatedAt]
    finished_at: Mapped[datetime | None]

    @property
    def is_reserved(self) -> bool:
        return self.state == "running" and self.totals == NOT_BUILT

    def is_abandoned(self, at: datetime) -> bool:
        """True if the lease has expired, so that any process may end the turn."""
        return self.state == "running" and (self.lease_until is None or self.lease_until <= at)

    def is_run_by(self, process_id: UUID) -> bool:
        """True if a process may write to the turn."""
        return self.state == "running" and self.lease_owner == process_id


TURN_LEASES = Leases(get_table(Turn), _IS_RUNNING)


TURN_OUTPUT = Column("turns", "sealed_output")
TURN_PROBLEM = Column("turns", "sealed_problem")
TURN_EVENTS = Column("turns", "sealed_events")
TURN_PLAY = Column("turns", "sealed_play")


class StoredContextRecord(Base):
    """The items of a reply's prompt and the reasons for them. `id` is the reply's."""

    __tablename__ = "context_records"

    id: Mapped[UUID] = mapped_column(
        ForeignKey("messages.id", ondelete="CASCADE"), primary_key=True
    )
    user_id: Mapped[OwnerId]
    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"), index=True)
    sealed_record: Mapped[bytes]
    created_at: Mapped[CreatedAt] = mapped_column(index=True)


CONTEXT_RECORD = Column("context_records", "sealed_record")


class ContextText(Base):
    """A text of a prompt that may change later. Stored once per chat, by keyed hash.

    `created_at` is renewed while prompts use the text, because old texts are deleted.
    """

    __tablename__ = "context_texts"
    __table_args__ = (UniqueConstraint("chat_id", "digest"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"))
    digest: Mapped[bytes] = mapped_column(LargeBinary(32))
    sealed_text: Mapped[bytes]
    created_at: Mapped[CreatedAt] = mapped_column(index=True)


CONTEXT_TEXT = Column("context_texts", "sealed_text")
