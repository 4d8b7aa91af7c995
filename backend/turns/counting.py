"""Counts of texts that come back turn after turn, kept by hash and not by text."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from backend.generation.tokens import get_tokenizer

CAPACITY = 20_000
SHORT = 200
"""Below so many characters, counting costs no more than looking up."""


class CountCache:
    """Token counts by vocabulary and content hash, the least recently used forgotten first."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._counts: OrderedDict[bytes, int] = OrderedDict()

    def count(self, tokenizer: str, text: str) -> int:
        """Tokens of a text in a vocabulary."""
        if len(text) < SHORT:
            return get_tokenizer(tokenizer).count(text)
        key = hashlib.blake2b(
            text.encode(), digest_size=16, person=tokenizer.encode()[:16]
        ).digest()
        found = self._counts.get(key)
        if found is None:
            found = self._counts[key] = get_tokenizer(tokenizer).count(text)
            if len(self._counts) > self._capacity:
                self._counts.popitem(last=False)
        else:
            self._counts.move_to_end(key)
        return found
