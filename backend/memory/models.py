"""Tables behind the index: what is still to be indexed, what was embedded, which index is whose."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from sqlalchemy import Index, String, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, CreatedAt, OwnerId, PrimaryId
from backend.vault.sealing import Column


class IndexChange(Base):
    """A row whose points the index does not show yet; it goes with the job that mends that.

    `source_id` is the row that was made, changed or deleted in the container `container_id` (a
    chat, a lorebook, a chronicle, a campaign); null stands for all of them. Whether it was deleted
    the indexer sees by itself.
    """

    __tablename__ = "index_changes"
    __table_args__ = (Index(None, "container_id", "id"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    kind: Mapped[str]
    container_id: Mapped[UUID]
    source_id: Mapped[UUID | None]


class Embedding(Base):
    """A vector that a text was turned into once. `digest` is a keyed hash of model, task, text."""

    __tablename__ = "embeddings"
    __table_args__ = (UniqueConstraint("user_id", "digest"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    digest: Mapped[bytes]
    sealed_vector: Mapped[bytes]
    used_at: Mapped[datetime] = mapped_column(index=True)


EMBEDDING_VECTOR = Column("embeddings", "sealed_vector")

IndexStateName = Literal["due", "ready"]


class IndexState(Base):
    """Whether a user's texts are all in one collection of the index. Search asks a ready one.

    `compared_at` is when its points were last compared with the database. `is_chosen`: the user's
    texts belong here, since the account names an embedding model of its own. `model` is a keyed
    hash of that model, whose vectors these are; null where they are of the installation's model,
    `GONE` where the user's can't be asked any more. `vector_length` is how many numbers that model
    gave, before they were filled up.
    """

    __tablename__ = "index_states"
    __table_args__ = (UniqueConstraint("user_id", "collection"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    collection: Mapped[str]
    state: Mapped[IndexStateName] = mapped_column(String)
    created_at: Mapped[CreatedAt]
    compared_at: Mapped[datetime | None]
    model: Mapped[bytes | None]
    vector_length: Mapped[int | None]
    is_chosen: Mapped[bool] = mapped_column(default=False, server_default=false())


GONE = b""
"""Stands for the model of vectors that no model can be compared with any more."""
