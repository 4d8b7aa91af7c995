"""Time-based one-time passwords (RFC 6238) as authenticator apps make them."""

from __future__ import annotations

import re
from datetime import datetime

import pyotp
import segno
from pyotp.exceptions import OTPVerificationError
from pyotp.totp import TOTP

ISSUER = "Talekeeper"
WINDOW = 1
"""Time steps of 30 s by which a phone's clock may be wrong, before and after."""

CODE = re.compile(r"[0-9]{6}")


def new_secret() -> str:
    """160 random bits in base32, the length that RFC 4226 recommends."""
    return pyotp.random_base32()


def uri_of(secret: str, name: str) -> str:
    """The `otpauth` address that an authenticator app reads."""
    return TOTP(secret).provisioning_uri(name=name, issuer_name=ISSUER)


def qr_rows(text: str) -> list[str]:
    """A QR code's modules row by row, `1` for a dark one, without the margin of 4 around it.

    Takes some 10 ms: call it in a thread.
    """
    code = segno.make_qr(text, error="m")
    return ["".join(str(module & 1) for module in row) for row in code.matrix]


def step_of(secret: str, code: str, *, at: datetime) -> int | None:
    """The time step that a code belongs to; None if it is of none within the window."""
    try:
        return TOTP(secret).verify_and_get_timecode(code, for_time=at, valid_window=WINDOW)
    except OTPVerificationError:
        return None
