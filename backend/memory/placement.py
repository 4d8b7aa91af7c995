"""Where a user's texts are in the index, and what collections are called."""

from __future__ import annotations

import re
from dataclasses import dataclass

from backend.memory.embedding.protocol import OWN, EmbedderSpec

_OWN_NAME = re.compile(rf"{OWN}-[0-9]+-v[0-9]+")

FORMAT = 1
"""Raised when what is indexed of a row changes: all texts move to a collection of that format."""


def collection_name(spec: EmbedderSpec | None) -> str:
    """The collection for an embedding model's vectors; without a model, for terms alone."""
    return f"{spec.collection if spec else 'terms'}-v{FORMAT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a user's texts are in the index.

    Attributes:
        target: The collection that they belong to.
        searched: The one that they are found in: another one until all of them have moved.
        is_chosen: Whether the target is that of a model which the account names.
        model: Of which model of the user's own the target's vectors are: see `IndexState`.
        length: How many numbers that model gave; None where that was not noted.
        is_moving: Whether they are on their way, so that vectors of the target's model find
            nothing yet, or not all.
    """

    target: str
    searched: str
    is_chosen: bool = False
    model: bytes | None = None
    length: int | None = None
    is_moving: bool = False


def is_own(name: str) -> bool:
    """Whether a collection is one of users' own models."""
    return _OWN_NAME.fullmatch(name) is not None


def dimension_of(name: str) -> int | None:
    """The dimension that a collection's name tells; None for one without vectors."""
    *_, dimension, _ = f"-{name}".rsplit("-", 2)
    return int(dimension) if dimension.isdigit() else None
