"""Which passwords are taken, and how fast they are tried."""

from __future__ import annotations

import asyncio
import unicodedata
from functools import cache

from backend.accounts.errors import BusyError, WeakPasswordError
from backend.vault.slots import PasswordKdf

MIN_LENGTH = 8
MAX_LENGTH = 256
MAX_WAITING = 20
BUSY_SECONDS = 5
"""About what it takes to stretch as many passwords as may wait."""


def normalise_name(name: str) -> str:
    """The form by which an account is found: NFKC, case folded, no blanks around it."""
    return unicodedata.normalize("NFKC", name).strip().casefold()


def normalise_password(password: str) -> str:
    """The same keys give the same password on every machine: NFKC (NIST SP 800-63B)."""
    return unicodedata.normalize("NFKC", password)


def check_password(password: str, *, name: str) -> str:
    """The password, normalised. Raises `WeakPasswordError` with what to do about it."""
    password = normalise_password(password)
    if len(password) < MIN_LENGTH:
        raise WeakPasswordError(f"It needs at least {MIN_LENGTH} characters.")
    if len(password) > MAX_LENGTH:
        raise WeakPasswordError(f"It may have at most {MAX_LENGTH} characters.")
    if password.casefold() in _common() or password.casefold() == normalise_name(name):
        raise WeakPasswordError("It is among the first that anyone would try.")
    return password


@cache
def _common() -> frozenset[str]:
    # Late: a tenth of a second at each start, for something that only sign-ups need.
    from zxcvbn.frequency_lists import FREQUENCY_LISTS  # noqa: PLC0415

    return frozenset(FREQUENCY_LISTS["passwords"])


class Stretcher:
    """Runs Argon2id, at most two at once: a rush of log-ins must not eat the memory.

    A few more may wait. Those after them are sent away: by their turn nobody would be there to
    hear the answer.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(2)
        self._waiting = 0

    async def stretch(self, kdf: PasswordKdf, password: str) -> bytes:
        """The stretched password (32 bytes), computed in a thread. Raises `BusyError`."""
        if self._waiting >= MAX_WAITING:
            raise BusyError(retry_after=BUSY_SECONDS)
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            return await asyncio.to_thread(kdf.stretch, password)
        finally:
            self._places.release()
