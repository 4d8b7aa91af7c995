"""From the user key to the keys that open a user's texts, and the MAC over how they are kept."""

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
    """A user key, and its place in the row of its account's user keys."""

    key: bytes = field(repr=False)
    generation: int


def check_current(user: User, current: UserKey) -> None:
    """Raise `KeysChangedError` where another request changed the account's keys meanwhile."""
    if user.key_generation != current.generation:
        raise KeysChangedError("Send the request again.")


def new_data_key(user_id: UUID, number: int, *, user_key: bytes) -> DataKey:
    """A fresh data key's row, wrapped under the user key."""
    row = DataKey(user_id=user_id, number=number)
    wrap_data_key(row, os.urandom(KEY_BYTES), user_key=user_key)
    return row


def wrap_data_key(row: DataKey, key: bytes, *, user_key: bytes) -> None:
    """Put a data key into its row, wrapped under the user key."""
    row.wrapped = seal_under(
        derive(user_key, "data-keys"), key, context=_context(row.user_id, row.number)
    )


def open_data_keys(rows: Iterable[DataKey], *, user_key: bytes) -> dict[int, bytes]:
    """An account's data keys by number. Raises `SealBrokenError` for a wrong key."""
    wrapping = derive(user_key, "data-keys")
    return {
        row.number: unseal_under(wrapping, row.wrapped, context=_context(row.user_id, row.number))
        for row in rows
    }


def wrap_derivation_key(user: User, key: bytes, *, user_key: bytes) -> None:
    """Put the key that other keys are derived from into its user's row."""
    user.wrapped_derivation_key = seal_under(
        derive(user_key, "derivation-key"), key, context=_derivation_context(user.id)
    )


def open_derivation_key(user: User, *, user_key: bytes) -> bytes:
    """The key that other keys are derived from. Raises `SealBrokenError`."""
    return unseal_under(
        derive(user_key, "derivation-key"),
        user.wrapped_derivation_key,
        context=_derivation_context(user.id),
    )


def open_sealer(user: User, rows: Iterable[DataKey], *, user_key: bytes) -> Sealer:
    """The sealer of a user whose key is at hand.

    Raises `SealBrokenError` for a wrong key, and where the newest data key is missing.
    """
    keys = open_data_keys((row for row in rows if row.user_id == user.id), user_key=user_key)
    if not keys or max(keys) < user.newest_data_key:
        raise SealBrokenError
    derivation_key = open_derivation_key(user, user_key=user_key)
    return Sealer(user.id, keys, user_key=user_key, derivation_key=derivation_key)


def open_checked_sealer(user: User, rows: Iterable[DataKey], *, user_key: bytes) -> Sealer:
    """`open_sealer` for a user who comes in.

    Raises `TamperedAccountError`: the user key belongs to a slot that opened, so keys that do not
    open were changed, removed, or put back from an older copy.
    """
    try:
        return open_sealer(user, rows, user_key=user_key)
    except SealBrokenError as error:
        raise tampered(user) from error


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """What decides how well an account's keys are kept: what `User.settings_mac` covers.

    The MAC is under the user key, so that somebody who can write to the database, and has no key,
    can't make the protection weaker. Its generation counts the account's user keys.

    The MAC's input is the list of names and values below, in this order, each after its length. A
    field that is added later is left out of the list while it has its default: the MACs that were
    made before it still hold.
    """

    generation: int
    key_mode: str
    kdf: bytes
    factors: bytes = b""
    newest_data_key: int = 0

    @classmethod
    def of(cls, user: User, *, kdf: bytes | None) -> Protection:
        """The protection of an account as its rows have it."""
        return cls(
            generation=user.key_generation,
            key_mode=user.key_mode,
            kdf=kdf or b"",
            factors=user.factors_digest or b"",
            newest_data_key=user.newest_data_key,
        )

    def mac(self, user_key: bytes) -> bytes:
        """HMAC-SHA256 of it under a key of its own, derived from the user key."""
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
    """Give an account the MAC of what its row has now."""
    user.settings_mac = Protection.of(user, kdf=kdf).mac(user_key)


def check_protection(user: User, user_key: bytes, *, kdf: bytes | None) -> None:
    """Raise `TamperedAccountError` unless the account's protection is what its owner set."""
    if not compare_digest(Protection.of(user, kdf=kdf).mac(user_key), user.settings_mac):
        raise tampered(user)


def tampered(user: User) -> TamperedAccountError:
    """The error for an account whose rows other hands have changed; the operator is told, too."""
    log.error("account.tampered", user_id=user.id)
    return TamperedAccountError("Ask the administrator to check the database.")


def _context(user_id: UUID, number: int) -> bytes:
    return b"data-key/" + user_id.bytes + number.to_bytes(4, "big")


def _derivation_context(user_id: UUID) -> bytes:
    return b"derivation-key/" + user_id.bytes
