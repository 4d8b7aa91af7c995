"""The keys that a user key opens, and the MAC over an account's protection."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import get_args
from uuid import UUID

import msgspec

from backend.accounts.errors import KeysChangedError, TamperedAccountError
from backend.accounts.models import DataKey, KeyMode, User
from backend.core.logs import get_logger
from backend.vault.sealing import (
    KEY_BYTES,
    SealBrokenError,
    Sealer,
    derive,
    digest,
    seal_under,
    unseal_under,
)

log = get_logger(__name__)

KEY_MODES: tuple[KeyMode, ...] = get_args(KeyMode)
DEFAULT_KEY_MODE: KeyMode = "per_job"


@dataclass(frozen=True, slots=True)
class UserKey:
    key: bytes = field(repr=False)
    generation: int


def check_current(user: User, current: UserKey) -> None:
    """Raise `KeysChangedError` if another request has changed the account's keys."""
    if user.key_generation != current.generation:
        raise KeysChangedError("Send the request again.")


def make_data_key(user_id: UUID, number: int, *, user_key: bytes) -> DataKey:
    row = DataKey(user_id=user_id, number=number)
    wrap_data_key(row, os.urandom(KEY_BYTES), user_key=user_key)
    return row


def wrap_data_key(row: DataKey, key: bytes, *, user_key: bytes) -> None:
    row.wrapped = seal_under(
        derive(user_key, "data-keys"), key, context=_make_context(row.user_id, row.number)
    )


def open_data_keys(rows: Iterable[DataKey], *, user_key: bytes) -> dict[int, bytes]:
    """Return the data keys by number. Raises `SealBrokenError`."""
    wrapping = derive(user_key, "data-keys")
    return {
        row.number: unseal_under(
            wrapping, row.wrapped, context=_make_context(row.user_id, row.number)
        )
        for row in rows
    }


def wrap_derivation_key(user: User, key: bytes, *, user_key: bytes) -> None:
    user.wrapped_derivation_key = seal_under(
        derive(user_key, "derivation-key"), key, context=_make_derivation_context(user.id)
    )


def open_derivation_key(user: User, *, user_key: bytes) -> bytes:
    """Raises `SealBrokenError`."""
    return unseal_under(
        derive(user_key, "derivation-key"),
        user.wrapped_derivation_key,
        context=_make_derivation_context(user.id),
    )


def open_sealer(user: User, rows: Iterable[DataKey], *, user_key: bytes) -> Sealer:
    """Raises `SealBrokenError` if the key is wrong or the newest data key is missing."""
    keys = open_data_keys((row for row in rows if row.user_id == user.id), user_key=user_key)
    if not keys or max(keys) < user.newest_data_key:
        raise SealBrokenError
    derivation_key = open_derivation_key(user, user_key=user_key)
    return Sealer(user.id, keys, user_key=user_key, derivation_key=derivation_key)


def open_checked_sealer(user: User, rows: Iterable[DataKey], *, user_key: bytes) -> Sealer:
    """Return the sealer of a user who signs in. Raises `TamperedAccountError`.

    The user key came from a slot that opened. So if other keys do not open, they were changed,
    removed or restored from an older copy.
    """
    try:
        return open_sealer(user, rows, user_key=user_key)
    except SealBrokenError as error:
        raise report_tampering(user) from error


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """The protection of an account's keys. `User.settings_mac` covers it.

    The MAC uses the user key. So someone who can write to the database, but has no key, cannot
    weaken the protection. `generation` counts the account's user keys.

    The MAC's input is the list of names and values below, in this order, each after its length. A
    field that is added later is left out of the list while it has its default. So older MACs stay
    valid.
    """

    generation: int
    key_mode: str
    kdf: bytes
    factors: bytes = b""
    newest_data_key: int = 0

    @classmethod
    def from_user(cls, user: User, *, kdf: bytes | None) -> Protection:
        return cls(
            generation=user.key_generation,
            key_mode=user.key_mode,
            kdf=kdf or b"",
            factors=user.factors_digest or b"",
            newest_data_key=user.newest_data_key,
        )

    def mac(self, user_key: bytes) -> bytes:
        parts: list[tuple[bytes, bytes]] = [
            (b"generation", self.generation.to_bytes(8, "big")),
            (b"key_mode", self.key_mode.encode()),
            (b"kdf", self.kdf),
        ]
        if self.factors:
            parts.append((b"factors", self.factors))
        if self.newest_data_key:
            parts.append((b"newest_data_key", self.newest_data_key.to_bytes(8, "big")))
        return digest(derive(user_key, "protection/2"), *(each for part in parts for each in part))


def protect(user: User, user_key: bytes, *, kdf: bytes | None) -> None:
    user.settings_mac = Protection.from_user(user, kdf=kdf).mac(user_key)


def check_protection(user: User, user_key: bytes, *, kdf: bytes | None) -> None:
    """Raise `TamperedAccountError` unless the account's protection is as its owner set it."""
    if not compare_digest(Protection.from_user(user, kdf=kdf).mac(user_key), user.settings_mac):
        raise report_tampering(user)


def report_tampering(user: User) -> TamperedAccountError:
    """Log that an account's rows were tampered with, and return the error for its user."""
    log.error("account.tampered", user_id=user.id)
    return TamperedAccountError("Ask the administrator to check the database.")


def _make_context(user_id: UUID, number: int) -> bytes:
    return b"data-key/" + user_id.bytes + number.to_bytes(4, "big")


def _make_derivation_context(user_id: UUID) -> bytes:
    return b"derivation-key/" + user_id.bytes
