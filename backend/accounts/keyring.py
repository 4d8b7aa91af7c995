"""From a secret that opens a slot to the keys that open a user's texts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from hmac import compare_digest
from typing import get_args
from uuid import UUID

from backend.accounts.errors import TamperedAccountError
from backend.accounts.models import DataKey, KeyMode, User
from backend.logs import get_logger
from backend.vault.sealing import KEY_BYTES, Sealer, derive, digest, open_with, seal_with

log = get_logger(__name__)

KEY_MODES: tuple[KeyMode, ...] = get_args(KeyMode)
DEFAULT_KEY_MODE: KeyMode = "per_job"


def new_data_key(user_id: UUID, number: int, *, user_key: bytes) -> DataKey:
    """A fresh data key's row, wrapped under the user key."""
    wrapped = seal_with(
        derive(user_key, "data-keys"), os.urandom(KEY_BYTES), context=_context(user_id, number)
    )
    return DataKey(user_id=user_id, number=number, wrapped=wrapped)


def open_sealer(user_id: UUID, rows: Iterable[DataKey], *, user_key: bytes) -> Sealer:
    """The sealer of a user whose key is at hand. Raises `SealBrokenError` for a wrong key."""
    wrapping = derive(user_key, "data-keys")
    keys = {
        row.number: open_with(wrapping, row.wrapped, context=_context(user_id, row.number))
        for row in rows
    }
    return Sealer(user_id, keys, user_key=user_key)


def settings_mac(user_key: bytes, *, key_mode: str, kdf: bytes) -> bytes:
    """Guards what decides how well the key is kept: whoever writes rows can't make it weaker."""
    return digest(derive(user_key, "settings-mac"), key_mode.encode(), kdf)


def check_settings_mac(user: User, user_key: bytes, *, kdf: bytes | None) -> None:
    """Raise `TamperedAccountError` unless the account's key mode and KDF are what its owner set."""
    mac = settings_mac(user_key, key_mode=user.key_mode, kdf=kdf or b"")
    if not compare_digest(mac, user.settings_mac):
        log.error("account.tampered", user_id=user.id)
        raise TamperedAccountError("Ask the administrator to look at the database.")


def _context(user_id: UUID, number: int) -> bytes:
    return b"data-key/" + user_id.bytes + number.to_bytes(4, "big")
