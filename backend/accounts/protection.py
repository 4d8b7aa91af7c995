"""The MAC over what decides how well an account's keys are kept.

It is under the user key, so that somebody who can write to the database, and has no key, can't
make the protection weaker. Its generation counts the account's user keys.
"""

from __future__ import annotations

from hmac import compare_digest

import msgspec

from backend.accounts.errors import TamperedAccountError
from backend.accounts.models import User
from backend.logs import get_logger
from backend.vault.sealing import derive, digest

log = get_logger(__name__)


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """What the MAC covers.

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
    return TamperedAccountError("Ask the administrator to look at the database.")
