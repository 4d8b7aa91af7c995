"""Column types for SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BINARY, DateTime, Dialect, TypeDecorator, Uuid
from sqlalchemy.types import TypeEngine


class Id(TypeDecorator[UUID]):
    """A UUID: `uuid` on PostgreSQL, 16 bytes on SQLite (32 with SQLAlchemy's `Uuid`)."""

    impl = Uuid
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Uuid() if dialect.name == "postgresql" else BINARY(16))

    def process_bind_param(self, value: UUID | None, dialect: Dialect) -> Any:
        return value if value is None or dialect.name == "postgresql" else value.bytes

    def process_result_value(self, value: Any, dialect: Dialect) -> UUID | None:
        return value if value is None or dialect.name == "postgresql" else UUID(bytes=value)


class UtcTime(TypeDecorator[datetime]):
    """A time in UTC. Values have a time zone, although SQLite does not store it."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(
        self,
        value: datetime | None,
        dialect: Dialect,  # noqa: ARG002  # the base class's
    ) -> datetime | None:
        """Convert a value to UTC. Raises `ValueError` if it has no time zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("The time needs a time zone.")
        return value.astimezone(UTC)

    def process_result_value(
        self,
        value: datetime | None,
        dialect: Dialect,  # noqa: ARG002  # the base class's
    ) -> datetime | None:
        return value if value is None or value.tzinfo else value.replace(tzinfo=UTC)
