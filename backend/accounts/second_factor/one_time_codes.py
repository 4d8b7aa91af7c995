"""One-time codes, for who has lost the phone or the passkey."""

from __future__ import annotations

import base64
import hashlib
import secrets

COUNT = 10
GROUP = 5
LENGTH = 10
"""Letters of base32: 50 bits. They are only tried online, at the pace of the throttle."""

_MISREAD = str.maketrans("018", "OIB")
"""Digits that base32 does not have, and the letters that they are mistaken for."""


def new_codes() -> list[str]:
    """Ten codes to write down, such as `ABCDE-FGHIJ`."""
    return [_new_code() for _ in range(COUNT)]


def digest_of(code: str) -> bytes:
    """What is stored of a code: its SHA-256, as it is typed, without dashes, spaces and case."""
    letters = "".join(code.split()).replace("-", "").upper().translate(_MISREAD)
    return hashlib.sha256(letters.encode()).digest()


def _new_code() -> str:
    letters = base64.b32encode(secrets.token_bytes(7)).decode()[:LENGTH]
    return f"{letters[:GROUP]}-{letters[GROUP:]}"
