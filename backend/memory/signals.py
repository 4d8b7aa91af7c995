"""What the queries of a search say of points: each of them is a signal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal
from uuid import UUID

import msgspec
from msgspec import structs

from backend.memory.index.protocol import Hit, Payload

Signal = Literal[
    "dense",
    "sparse",
    "dense_window",
    "sparse_window",
    "scene",
    "dense_question",
    "sparse_question",
]
SIGNALS: tuple[Signal, ...] = ("dense", "sparse", "dense_window", "sparse_window", "scene")
ASKED: tuple[Signal, ...] = ("dense_question", "sparse_question")
"""Signals of questions that a line answers: they lift their line, or bring it in."""

DENSE_SIGNALS: tuple[Signal, ...] = ("dense", "dense_window", "dense_question")
SPARSE_SIGNALS: tuple[Signal, ...] = ("sparse", "sparse_window", "sparse_question")

Found = Mapping[Signal, Sequence[Hit]]


class Scores(msgspec.Struct, frozen=True, gc=False):
    """What each signal said of a point: scores as they came from the index.

    Null where a signal did not find it. There are hundreds of them a search: the garbage collector
    has nothing to look at in a struct of numbers, and a dict each costs it a millisecond.
    """

    dense: float | None = None
    sparse: float | None = None
    dense_window: float | None = None
    sparse_window: float | None = None
    dense_question: float | None = None
    sparse_question: float | None = None

    def by_name(self) -> dict[str, float]:
        """The scores that there are."""
        return {name: score for name, score in structs.asdict(self).items() if score is not None}


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A point that some signal found, with what each said.

    Attributes:
        score: The fused score, for the order alone.
        meaning: The same without any words (`MEANING`).
        scene: How near its scene is, from 0 to 1.
        cosine: The best of its cosines; -1 where no vector found it.
        bm25: The best of its sums of weighted terms; 0 where no term found it.
        joined: How near the event is that was made from it, against the best hit.
        aboutness: How much the line is about it by its words; 1 is enough. Messages have none.
    """

    id: UUID
    payload: Payload
    score: float
    signals: Scores = Scores()
    cosine: float = -1.0
    bm25: float = 0.0
    meaning: float = 0.0
    scene: float = 0.0
    joined: float = 0.0
    aboutness: float = 0.0


def gather(signals: Sequence[Signal], hits: Sequence[Sequence[Hit]]) -> Found:
    """The answers of a batch by signal; those of one signal (of several kinds) come together."""
    found: dict[Signal, list[Hit]] = {}
    for signal, some in zip(signals, hits, strict=True):
        found.setdefault(signal, []).extend(some)
    return found
