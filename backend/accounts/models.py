"""Tables of accounts: users, their keys, sessions, second factors and activity."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from sqlalchemy import BigInteger, Float, ForeignKey, Index, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import (
    Base,
    CreatedAt,
    ListedOwnerId,
    OwnerId,
    PrimaryId,
    index_hidden,
)
from backend.vault.sealing import Column


class InstanceKey(Base):
    """A random key of this installation, under the root key. It hashes and seals names.

    Names of accounts are needed before sign-in, so they cannot be under a user's key.
    """

    __tablename__ = "instance_keys"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    root_version: Mapped[int]
    wrapped: Mapped[bytes]


KeyMode = Literal["managed", "per_job", "sealed"]


class User(Base):
    """An account. `settings_mac` protects the values in `Protection` against tampering.

    `factors_digest` covers the ids of the active second factors. It is None if there are none.
    `key_generation` counts the account's user keys. `newest_data_key` is the number of the data key
    that was added with the current user key. An account with `deleted_at` has no keys and no name,
    and no one can find it. Its rows are being deleted.
    """

    __tablename__ = "users"
    __table_args__ = (
        Index(
            "ix_users_open",
            "id",
            sqlite_where=text("deleted_at IS NULL"),
            postgresql_where=text("deleted_at IS NULL"),
        ),
        index_hidden(),
    )

    id: Mapped[PrimaryId]
    name_lookup: Mapped[bytes] = mapped_column(unique=True)
    wrapped_name: Mapped[bytes]
    is_administrator: Mapped[bool] = mapped_column(default=False)
    is_disabled: Mapped[bool] = mapped_column(default=False)
    key_mode: Mapped[KeyMode] = mapped_column(String, default="per_job")
    key_generation: Mapped[int] = mapped_column(default=1)
    factors_digest: Mapped[bytes | None]
    newest_data_key: Mapped[int] = mapped_column(default=0)
    wrapped_derivation_key: Mapped[bytes]
    settings_mac: Mapped[bytes]
    sealed_settings: Mapped[bytes | None]
    sealed_variables: Mapped[bytes | None]
    sealed_scripts: Mapped[bytes | None] = mapped_column(deferred=True)
    settings_revision: Mapped[int] = mapped_column(default=0)
    scripts_revision: Mapped[int] = mapped_column(default=0)
    providers_revision: Mapped[int] = mapped_column(default=0, server_default="0")
    new_data_key_due: Mapped[bool] = mapped_column(default=False)
    deleted_at: Mapped[datetime | None]
    created_at: Mapped[CreatedAt]


USER_SETTINGS = Column("users", "sealed_settings")
USER_VARIABLES = Column("users", "sealed_variables")
USER_SCRIPTS = Column("users", "sealed_scripts")


class DataKey(Base):
    __tablename__ = "data_keys"
    __table_args__ = (UniqueConstraint("user_id", "number"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    number: Mapped[int]
    wrapped: Mapped[bytes]
    created_at: Mapped[CreatedAt]


class KeySlot(Base):
    """One wrapping of the user key. `kind` is a `SlotKind`.

    `lookup` is the SHA-256 of a token's secret. Only passwords have a `kdf`. `generation` is that
    of the user key in an envelope. Standing slots have none.
    """

    __tablename__ = "key_slots"
    __table_args__ = (
        Index(None, "user_id", "kind"),
        Index(
            "ix_key_slots_expires_at",
            "expires_at",
            sqlite_where=text("expires_at IS NOT NULL"),
            postgresql_where=text("expires_at IS NOT NULL"),
        ),
    )

    id: Mapped[PrimaryId]
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    kind: Mapped[str]
    wrapped: Mapped[bytes]
    lookup: Mapped[bytes | None] = mapped_column(unique=True)
    kdf: Mapped[bytes | None]
    root_version: Mapped[int]
    generation: Mapped[int | None]
    scope: Mapped[str] = mapped_column(default="")
    sealed_label: Mapped[bytes | None]
    created_at: Mapped[CreatedAt]
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]


SLOT_LABEL = Column("key_slots", "sealed_label")


class Invitation(Base):
    """A code that lets one person sign up. Only its hash is stored."""

    __tablename__ = "invitations"

    id: Mapped[PrimaryId]
    created_by: Mapped[UUID] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    lookup: Mapped[bytes] = mapped_column(unique=True)
    created_at: Mapped[CreatedAt]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    used_at: Mapped[datetime | None]


class LoginFailures(Base):
    """Failed sign-ins, by keyed hash of an account's name or of an address.

    They decay: `failures` is the number that was left at `last_at`.
    """

    __tablename__ = "login_failures"

    key: Mapped[bytes] = mapped_column(primary_key=True)
    failures: Mapped[float] = mapped_column(Float(53))
    last_at: Mapped[datetime] = mapped_column(index=True)


class KnownAddress(Base):
    """An address that has signed in to an account, as a keyed hash of both."""

    __tablename__ = "known_addresses"

    key: Mapped[bytes] = mapped_column(primary_key=True)
    user_id: Mapped[OwnerId]
    last_at: Mapped[datetime] = mapped_column(index=True)


class IdempotentRequest(Base):
    """A write with an idempotency key, and its response for repeated requests.

    `is_done` and `made_id` (the created id) are set in the transaction of the write, because the
    process may end before it responds.
    """

    __tablename__ = "idempotent_requests"
    __table_args__ = (UniqueConstraint("user_id", "key_digest"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    key_digest: Mapped[bytes]
    request_digest: Mapped[bytes]
    status: Mapped[int | None]
    sealed_response: Mapped[bytes | None]
    is_done: Mapped[bool] = mapped_column(default=False)
    made_id: Mapped[UUID | None]
    created_at: Mapped[CreatedAt] = mapped_column(index=True)


IDEMPOTENT_RESPONSE = Column("idempotent_requests", "sealed_response")


FactorKind = Literal["totp", "passkey", "one_time_code"]


class SecondFactor(Base):
    """A second factor. It counts only if `is_on`.

    `sealed_secret` depends on the kind (`factors.open_secret`). `counter` only increases, so that
    no proof works twice. It is the newest used time step of a TOTP, or the time of a passkey's
    newest challenge (microseconds). `sign_count` is the passkey device's own counter.
    """

    __tablename__ = "second_factors"

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    kind: Mapped[FactorKind] = mapped_column(String)
    is_on: Mapped[bool] = mapped_column(default=False)
    sealed_secret: Mapped[bytes]
    sealed_label: Mapped[bytes | None]
    counter: Mapped[int] = mapped_column(BigInteger, default=0)
    sign_count: Mapped[int] = mapped_column(BigInteger, default=0)
    created_at: Mapped[CreatedAt]
    last_used_at: Mapped[datetime | None]


FACTOR_SECRET = Column("second_factors", "sealed_secret")
FACTOR_LABEL = Column("second_factors", "sealed_label")

_HAS_ADDRESS = text("sealed_address IS NOT NULL")


class ActivityEntry(Base):
    """An entry of an account's activity. `sealed_entry` is a `StoredEntry` in JSON.

    The address has its own column, because it is deleted before the entry.
    """

    __tablename__ = "account_activity"
    __table_args__ = (
        Index(None, "user_id", "id"),
        Index(
            "ix_account_activity_addressed",
            "created_at",
            sqlite_where=_HAS_ADDRESS,
            postgresql_where=_HAS_ADDRESS,
        ),
    )

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
    sealed_entry: Mapped[bytes]
    sealed_address: Mapped[bytes | None]
    created_at: Mapped[CreatedAt] = mapped_column(index=True)


ACTIVITY_ENTRY = Column("account_activity", "sealed_entry")
ACTIVITY_ADDRESS = Column("account_activity", "sealed_address")
