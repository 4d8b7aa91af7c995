"""Tables of what users store and spend."""

from __future__ import annotations

from datetime import date

from sqlalchemy import BigInteger, Index, Integer
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, ListedOwnerId, PrimaryId


class StorageLedger(Base):
    """A change of what a user stores, in bytes; triggers write it (`database.stored_bytes`).

    The sum of a user's rows is what the user stores now.
    """

    __tablename__ = "storage_ledger"
    __table_args__ = (Index(None, "user_id", "bytes"),)

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer(), "sqlite"), primary_key=True
    )
    user_id: Mapped[ListedOwnerId]
    bytes: Mapped[int] = mapped_column(BigInteger)


class TokenLedger(Base):
    """Tokens, of a prompt and its reply, that a model took of a user's, and on which day in UTC.

    Rows are added and never changed, so that no two transactions wait for each other.
    """

    __tablename__ = "token_ledger"
    __table_args__ = (Index(None, "user_id", "day"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
    day: Mapped[date]
    tokens: Mapped[int]
