"""Column types that are the same on SQLite and on PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BINARY, DateTime, Dialect, TypeDecorator, Uuid
from sqlalchemy.types import TypeEngine


class Id(TypeDecorator[UUID]):
    """A UUID: PostgreSQL's own type, 16 bytes on SQLite (SQLAlchemy's `Uuid` takes 32 there)."""

    impl = Uuid
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The database's type."""
        return dialect.type_descriptor(Uuid() if dialect.name == "postgresql" else BINARY(16))

    def process_bind_param(self, value: UUID | None, dialect: Dialect) -> Any:
        """A value on its way in."""
        return value if value is None or dialect.name == "postgresql" else value.bytes

    def process_result_value(self, value: Any, dialect: Dialect) -> UUID | None:
        """A value on its way out."""
        return value if value is None or dialect.name == "postgresql" else UUID(bytes=value)


class UtcTime(TypeDecorator[datetime]):
    """A moment. SQLite forgets the zone: what comes out is aware all the same, in UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(
        self,
        value: datetime | None,
        dialect: Dialect,  # noqa: ARG002  # the base class's
    ) -> datetime | None:
        """A value on its way in. Raises `ValueError` for one without a zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("A moment needs a time zone.")
        return value.astimezone(UTC)

    def process_result_value(
        self,
        value: datetime | None,
        dialect: Dialect,  # noqa: ARG002  # the base class's
    ) -> datetime | None:
        """A value on its way out."""
        return value if value is None or value.tzinfo else value.replace(tzinfo=UTC)
