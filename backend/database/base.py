"""Base class and column types of every table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from sqlalchemy import ForeignKey, LargeBinary, MetaData
from sqlalchemy.orm import DeclarativeBase, mapped_column
from uuid_utils.compat import uuid7

from backend.database.types import Id, UtcTime

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


def new_id() -> UUID:
    """A UUIDv7: unique everywhere, and later ones sort later."""
    return uuid7()


def now() -> datetime:
    """The time, aware, in UTC."""
    return datetime.now(UTC)


class Base(DeclarativeBase):
    """Base of every table. Columns named `sealed_*` hold blobs that `vault.sealing` made."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012  # SQLAlchemy's own declaration
        UUID: Id(),
        datetime: UtcTime(),
        bytes: LargeBinary(),
    }


PrimaryId = Annotated[UUID, mapped_column(primary_key=True, default=new_id)]
OwnerId = Annotated[UUID, mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)]
ListedOwnerId = Annotated[UUID, mapped_column(ForeignKey("users.id", ondelete="CASCADE"))]
"""For tables that are listed page by page: they have an index on owner and id together."""

CreatedAt = Annotated[datetime, mapped_column(default=now)]
UpdatedAt = Annotated[datetime, mapped_column(default=now)]
"""When a user's text in the row last changed: services set it, flags and sums leave it alone."""
