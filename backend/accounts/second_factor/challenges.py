"""Challenges for passkeys that no table has to keep.

A challenge is `time | nonce | MAC`. The MAC is under a key of the user's, which only the right
password, or a session, opens. It names what the challenge is for, so a challenge of one account,
password or session is worth nothing to another. It works once: a passkey remembers the time of the
newest challenge that it answered, and takes no older one.
"""

from __future__ import annotations

import os
import struct
from datetime import datetime, timedelta
from hmac import compare_digest

from backend.vault.sealing import derive, digest

LASTS = timedelta(minutes=5)
_TIME = struct.Struct(">Q")
_NONCE_BYTES = 16
_BODY_BYTES = _TIME.size + _NONCE_BYTES


def new_challenge(user_key: bytes, purpose: bytes, *, at: datetime) -> bytes:
    """A challenge that can be answered for 5 minutes."""
    body = _TIME.pack(_microseconds(at)) + os.urandom(_NONCE_BYTES)
    return body + _mac(user_key, purpose, body)


def issued_at(challenge: bytes, user_key: bytes, purpose: bytes, *, at: datetime) -> int | None:
    """When a challenge was made, in microseconds; None if it is not one of ours, or is too old."""
    body, mac = challenge[:_BODY_BYTES], challenge[_BODY_BYTES:]
    if len(body) != _BODY_BYTES or not compare_digest(mac, _mac(user_key, purpose, body)):
        return None
    issued: int = _TIME.unpack_from(body)[0]
    age = _microseconds(at) - issued
    return issued if age < LASTS / timedelta(microseconds=1) else None


def _mac(user_key: bytes, purpose: bytes, body: bytes) -> bytes:
    return digest(derive(user_key, "passkey-challenge"), purpose, body)


def _microseconds(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000)
