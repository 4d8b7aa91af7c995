"""What is learned of models."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Float, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base


class TokenRatio(Base):
    """How many tokens a provider reports for one that Talekeeper counted: by user and model."""

    __tablename__ = "token_ratios"
    __table_args__ = (Index(None, "model", "ratio"),)

    user_id: Mapped[UUID] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), primary_key=True
    )
    model: Mapped[str] = mapped_column(primary_key=True)
    ratio: Mapped[float] = mapped_column(Float(53))
    samples: Mapped[int]
