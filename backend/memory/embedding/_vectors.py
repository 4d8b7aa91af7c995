"""Vectors as they leave an embedder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.memory.embedding.protocol import EmbedderError, Floats


def unit_rows(vectors: NDArray[Any], *, who: str, count: int, dimension: int | None) -> Floats:
    """The same directions at unit length.

    Args:
        vectors: What came out of a model: as many rows as texts, of any real type.
        who: Whose they are, for the error.
        count: How many texts there were.
        dimension: How long each must be; None where nobody knows yet.

    Returns:
        Shape (count, d), float32.

    Raises:
        EmbedderError: If the shape is another one, or a row is zero or not finite.
    """
    if vectors.ndim != 2 or len(vectors) != count:  # noqa: PLR2004  # rows and columns
        raise EmbedderError(f"{who} gave {len(vectors)} vectors for {count} texts.")
    length = vectors.shape[1]
    if length == 0 or (dimension is not None and length != dimension):
        raise EmbedderError(
            f"{who} gives vectors of {length} numbers, and {dimension} are expected. Set "
            "TALEKEEPER_EMBEDDING_DIMENSION to what the model gives, or leave it out."
        )
    wide = vectors.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise EmbedderError(f"{who} gave a vector without a direction.")
    rows: Floats = (wide / norms).astype(np.float32)
    return rows


def table(rows: Sequence[Sequence[float]], *, who: str) -> Floats:
    """What a server sent, as a matrix. Raises `EmbedderError` where it is none."""
    if not rows:
        return np.empty((0, 0), np.float32)
    try:
        return np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError):  # a row that is shorter, or of something else
        raise EmbedderError(f"{who} sent embeddings that are no table of numbers.") from None
