"""Questions that every engine's adapter asks about what it is given."""

from __future__ import annotations

from collections.abc import Sequence

from backend.memory.index.protocol import Point, Query, Sparse


def is_empty(query: Query) -> bool:
    """Nothing can be found, so that the engine need not be asked, nor read the query as wider.

    To the engines a list of no alternatives is no condition at all.
    """
    scope = query.scope
    if not scope.kinds or not any(part.containers for part in scope.parts):
        return True
    return isinstance(query.near, Sparse) and not len(query.near.ids)


def check_dimensions(points: Sequence[Point], dimension: int | None) -> None:
    """Raise `ValueError` for a dense vector that is not of the collection's length."""
    for point in points:
        for name, vector in point.dense.items():
            if vector.shape != (dimension,):
                raise ValueError(
                    f"`{name}` of shape {vector.shape}: the collection's vectors have {dimension} "
                    "numbers."
                )
