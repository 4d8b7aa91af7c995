"""Tables of stored bytes and used tokens."""

from __future__ import annotations

from datetime import date

from sqlalchemy import BigInteger, Index, Integer
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, ListedOwnerId, PrimaryId


class StorageLedger(Base):
    """A change of a user's storage in bytes, written by triggers (`database.stored_bytes`).

    The sum of a user's rows is the current storage.
    """

    __tablename__ = "storage_ledger"
    __table_args__ = (Index(None, "user_id", "bytes"),)

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer(), "sqlite"), primary_key=True
    )
    user_id: Mapped[ListedOwnerId]
    bytes: Mapped[int] = mapped_column(BigInteger)


class TokenLedger(Base):
    """Tokens of prompts and replies of a user on a day (UTC).

    Rows are only inserted, so that transactions do not block each other. Those of earlier days are
    folded into one row for each user, day and model. A row with a `model` also
    has the usage that no chat lists: that of a deleted chat, or of a request without a chat.
    """

    __tablename__ = "token_ledger"
    __table_args__ = (Index(None, "user_id", "day"), Index("ix_token_ledger_day", "day", "user_id"))

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
    day: Mapped[date]
    tokens: Mapped[int]
    model: Mapped[str | None]
    turns: Mapped[int] = mapped_column(server_default="0")
    runs: Mapped[int] = mapped_column(server_default="0")
    unreported: Mapped[int] = mapped_column(server_default="0")
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    cached_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    completion_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    thinking_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
