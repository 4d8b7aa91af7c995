"""Vectors that a test can reason about: texts are near each other when they share words."""

from __future__ import annotations

import hashlib
import re

import numpy as np
from numpy.typing import NDArray


def word_vector(text: str, dimension: int, *, common: float = 0.0) -> NDArray[np.float64]:
    """A bag of hashed words, of unit length, shape (dimension,). The same in every process.

    `common` is what all vectors share: with 1.5 two texts without a common word have a cosine of
    0.69, as with many models.
    """
    vector = np.zeros(dimension)
    for word in re.findall(r"\w+", text.lower()) or ["."]:
        drawn = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
        vector[drawn % dimension] += 1
    vector /= np.linalg.norm(vector)
    vector += common / np.sqrt(dimension)
    unit: NDArray[np.float64] = vector / np.linalg.norm(vector)
    return unit
