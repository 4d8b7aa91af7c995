"""Random draws that are the same again: each from a seed, what is drawn for, and the entry's id.

No draw depends on how many came before it, so the order of books and the presence of other entries
change nothing.
"""

from __future__ import annotations

import hashlib
import math
from uuid import UUID


def fraction(seed: int, purpose: str, entry_id: UUID) -> float:
    """A number in (0, 1), uniform over entries, the same for the same arguments."""
    digest = hashlib.blake2b(
        f"{seed}\n{purpose}".encode(errors="replace"), key=entry_id.bytes, digest_size=8
    ).digest()
    return ((int.from_bytes(digest) >> 11) + 0.5) / (1 << 53)


def happens(seed: int, entry_id: UUID, percent: float) -> bool:
    """Whether something of that probability, in per cent, happens to the entry."""
    return fraction(seed, "probability", entry_id) * 100 < percent


def waiting_time(seed: int, purpose: str, entry_id: UUID, weight: float) -> float:
    """The entry's time in a race that it wins with probability `weight` / sum of all weights.

    An exponential clock of rate `weight`: the least of several is a weighted draw, and each clock
    depends on its own entry alone. Weight 0 never wins against one that has some.

    Source: Efraimidis & Spirakis, Information Processing Letters 97, 2006.
    """
    if weight <= 0:
        return math.inf
    return -math.log(fraction(seed, purpose, entry_id)) / weight
