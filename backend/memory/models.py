"""Tables of memory: pending index changes, cached embeddings and the collections of users."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from sqlalchemy import Index, String, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, CreatedAt, OwnerId, PrimaryId
from backend.vault.sealing import Column


class IndexChange(Base):
    """A note that the points of a row are out of date. The job that updates them deletes it.

    `source_id` is a row that was created, changed or deleted in the container `container_id` (a
    chat, lorebook, chronicle or campaign). Null means all rows of the container.
    """

    __tablename__ = "index_changes"
    __table_args__ = (Index(None, "container_id", "id"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    kind: Mapped[str]
    container_id: Mapped[UUID]
    source_id: Mapped[UUID | None]


class Embedding(Base):
    """The cached vector of a text. `digest` is a keyed hash of model, task and text."""

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
    """The state of one collection for one user. Search uses a ready one, which has all texts.

    Attributes:
        compared_at: Time of the last comparison between its points and the database.
        is_chosen: The user's texts belong here because the account has its own embedding model.
        model: Keyed hash of the user's model that made the vectors. Null for the installation's
            model, `GONE` if the user's model is no longer available.
        vector_length: Length of the model's vectors, before they were padded.
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
"""The `model` of vectors whose model is no longer available."""
