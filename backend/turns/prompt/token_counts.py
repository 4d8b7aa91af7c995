"""Counts of texts that come back turn after turn, kept by keyed hash and not by text."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from uuid import UUID

from backend.accounts.events import UserSignedOut
from backend.generation.tokens import get_tokenizer

CAPACITY = 20_000
SHORT = 200
"""Below so many characters, counting costs no more than looking up."""


class CountCache(UserSignedOut):
    """Token counts by user, vocabulary and content hash, the least recently used forgotten first.

    The hashes are under a key of this process: what was counted can't be guessed from them. Safe to
    use from several threads.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._key = os.urandom(32)
        self._counts: OrderedDict[tuple[UUID, bytes], int] = OrderedDict()
        self._lock = threading.Lock()

    def count(self, user_id: UUID, tokenizer: str, text: str) -> int:
        """Tokens of a user's text in a vocabulary."""
        if len(text) < SHORT:
            return get_tokenizer(tokenizer).count(text)
        digest = hashlib.blake2b(
            text.encode(), key=self._key, digest_size=16, person=tokenizer.encode()[:16]
        ).digest()
        key = user_id, digest
        with self._lock:
            found = self._counts.get(key)
            if found is not None:
                self._counts.move_to_end(key)
                return found
        found = get_tokenizer(tokenizer).count(text)
        with self._lock:
            self._counts[key] = found
            if len(self._counts) > self._capacity:
                self._counts.popitem(last=False)
        return found

    def user_signed_out(self, user_id: UUID) -> None:
        """Drop what is kept of a user."""
        with self._lock:
            for key in [each for each in self._counts if each[0] == user_id]:
                del self._counts[key]
