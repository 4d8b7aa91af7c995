"""Tables of accounts: users, their keys, and what guards the door."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, CreatedAt, OwnerId, PrimaryId
from backend.vault.sealing import Column


class InstanceKey(Base):
    """A random key of this installation, under the root key: finds names, and seals them.

    Names of accounts are needed before anyone has signed in, so they can't be under a user's key.
    """

    __tablename__ = "instance_keys"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    root_version: Mapped[int]
    wrapped: Mapped[bytes]


KeyMode = Literal["managed", "per_job", "sealed"]


class User(Base):
    """An account. `settings_mac` guards `key_mode` and the password's KDF against tampering."""

    __tablename__ = "users"

    id: Mapped[PrimaryId]
    name_lookup: Mapped[bytes] = mapped_column(unique=True)
    wrapped_name: Mapped[bytes]
    is_administrator: Mapped[bool] = mapped_column(default=False)
    is_disabled: Mapped[bool] = mapped_column(default=False)
    key_mode: Mapped[KeyMode] = mapped_column(String, default="per_job")
    settings_mac: Mapped[bytes]
    sealed_settings: Mapped[bytes | None]
    sealed_variables: Mapped[bytes | None]
    settings_revision: Mapped[int] = mapped_column(default=0)
    new_data_key_due: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[CreatedAt]


USER_SETTINGS = Column("users", "sealed_settings")
USER_VARIABLES = Column("users", "sealed_variables")


class DataKey(Base):
    """A data key, wrapped under the user key. Texts name it by its number."""

    __tablename__ = "data_keys"
    __table_args__ = (UniqueConstraint("user_id", "number"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    number: Mapped[int]
    wrapped: Mapped[bytes]
    created_at: Mapped[CreatedAt]


class KeySlot(Base):
    """One wrapping of the user key: `kind` is a `SlotKind`.

    `lookup` is the SHA-256 of a token's secret. `kdf` belongs to passwords, `root_version` to them
    and to standing slots.
    """

    __tablename__ = "key_slots"
    __table_args__ = (Index(None, "user_id", "kind"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    kind: Mapped[str]
    wrapped: Mapped[bytes]
    lookup: Mapped[bytes | None] = mapped_column(unique=True)
    kdf: Mapped[bytes | None]
    root_version: Mapped[int | None]
    scope: Mapped[str] = mapped_column(default="")
    sealed_label: Mapped[bytes | None]
    created_at: Mapped[CreatedAt]
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]


SLOT_LABEL = Column("key_slots", "sealed_label")


class Invitation(Base):
    """A code that lets one person sign up; the table keeps its hash."""

    __tablename__ = "invitations"

    id: Mapped[PrimaryId]
    created_by: Mapped[UUID] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    lookup: Mapped[bytes] = mapped_column(unique=True)
    created_at: Mapped[CreatedAt]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]


class LoginFailures(Base):
    """Failed log-ins in a row, by keyed hash of an account's name or of an address."""

    __tablename__ = "login_failures"

    key: Mapped[bytes] = mapped_column(primary_key=True)
    failures: Mapped[int]
    last_at: Mapped[datetime]


class IdempotentRequest(Base):
    """An answered write that a client named, so that sending it again is answered the same."""

    __tablename__ = "idempotent_requests"
    __table_args__ = (UniqueConstraint("user_id", "key_digest"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    key_digest: Mapped[bytes]
    request_digest: Mapped[bytes]
    status: Mapped[int | None]
    sealed_response: Mapped[bytes | None]
    created_at: Mapped[CreatedAt] = mapped_column(index=True)


IDEMPOTENT_RESPONSE = Column("idempotent_requests", "sealed_response")
