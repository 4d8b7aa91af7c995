"""Tables of the endpoint: the state of clients' chats, the last requests, and corrections."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, CreatedAt, ListedOwnerId, OwnerId, PrimaryId, UpdatedAt
from backend.vault.sealing import Column

RequestKind = Literal["turn", "swipe", "continue", "impersonate", "quiet", "repeat", "plain"]
"""The kind of a request. `repeat` is a retry that joined its turn, `plain` a request to a
model without a chat."""

RequestReason = Literal[
    "new_line",
    "new_chat",
    "answer_missing",
    "reply_missing",
    "ends_with_reply",
    "prefill",
    "continue_nudge",
    "group_nudge",
    "group_reply",
    "impersonate_nudge",
    "post_history",
    "unknown_instruction",
    "known_quiet_form",
    "connection_test",
    "header_always",
    "header_never",
    "rule",
    "retry",
    "plain_model",
]
"""The reason for a decision. `web/page/texts.json` and docs/reference/clients.md explain each."""

RuledKind = Literal["turn", "quiet"]


class ClientChat(Base):
    """The state of a chat that clients play. `id` is that of the chat.

    `sealed_state` is the JSON of a `ClientState`.
    """

    __tablename__ = "client_chats"

    id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[OwnerId]
    sealed_state: Mapped[bytes]
    updated_at: Mapped[UpdatedAt]


CLIENT_CHAT_STATE = Column("client_chats", "sealed_state")


class ClientRequest(Base):
    """One of the last requests of an account's clients, with the decision about it.

    `sealed_details` is the JSON of a `RequestDetails`.
    `instruction_digest` is that of the instruction that the decision is about, if there is one.
    """

    __tablename__ = "client_requests"
    __table_args__ = (Index(None, "user_id", "id"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
    kind: Mapped[RequestKind] = mapped_column(String)
    reason: Mapped[RequestReason] = mapped_column(String)
    chat_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("chats.id", ondelete="SET NULL"), index=True
    )
    turn_id: Mapped[UUID | None]
    instruction_digest: Mapped[bytes | None]
    sealed_details: Mapped[bytes]
    created_at: Mapped[CreatedAt]


CLIENT_REQUEST_DETAILS = Column("client_requests", "sealed_details")


class ClientRule(Base):
    """A user's correction: requests with this trailing instruction are turns, or quiet.

    `sealed_text` is the beginning of the instruction.
    """

    __tablename__ = "client_rules"
    __table_args__ = (Index(None, "user_id", "instruction_digest", unique=True),)

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
    instruction_digest: Mapped[bytes]
    kind: Mapped[RuledKind] = mapped_column(String)
    sealed_text: Mapped[bytes]
    created_at: Mapped[CreatedAt]


CLIENT_RULE_TEXT = Column("client_rules", "sealed_text")
