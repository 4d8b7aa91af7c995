"""Whether an event says the same as one that is there: by meaning and by words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar
from uuid import UUID

import numpy as np

from backend.chronicles.events import EventFields
from backend.cpu_pool import CpuPool
from backend.enrichment.duplicates.wording import (
    Difference,
    Wording,
    differences,
    likeness,
    overlap,
    worded,
)
from backend.memory.embedding.protocol import EmbedderError, Floats
from backend.memory.points import DocumentEmbedder
from backend.memory.terms import TermCounter
from backend.vault.sealing import Sealer


class Telling(Protocol):
    """What can be compared: an event that is stored, or one that is about to be."""

    @property
    def id(self) -> UUID:
        """Which one it is."""
        ...

    @property
    def fields(self) -> EventFields:
        """What it says."""
        ...


E = TypeVar("E", bound=Telling)


@dataclass(frozen=True, slots=True, kw_only=True)
class Near(Generic[E]):
    """An event near a new one.

    `cosine` of their meanings is None where no embedder answered. In [0, 1]: `overlap` is how much
    of the new event's words the old one has, `likeness` how many of the words of either both have.
    `differs` names what tells the two apart, whatever they share.
    """

    event: E
    cosine: float | None
    overlap: float
    likeness: float = 0.0
    differs: frozenset[Difference] = frozenset()

    @property
    def score(self) -> float:
        """How near: only to be compared within one answer of `nearest`."""
        return self.overlap + self.likeness + (0.0 if self.cosine is None else 2 * self.cosine)


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateThresholds:
    """From where on two events are one, if nothing tells them apart.

    Either they share nearly all of their words (`alike`), which is all that there is without an
    embedder; or they mean the same (`cosine`), the old one has nearly all that the new one says
    (`contained`), and they share many of their words (`alike_in_part`).

    Chosen by `scripts/bench_duplicates.py --choose`; docs/duplicates.md has the figures.
    """

    alike: float = 0.8
    cosine: float = 0.9
    contained: float = 0.85
    alike_in_part: float = 0.5


THRESHOLDS = DuplicateThresholds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubts:
    """From where on two events may be one, whatever but `SURE` tells them apart: worth a question.

    With an embedder all but `alike` have to be reached, without one `alike` alone.
    """

    alike: float = 0.5
    cosine: float = 0.8
    contained: float = 0.5
    alike_in_part: float = 0.35


DOUBTS = Doubts()

SURE: frozenset[Difference] = frozenset({"day", "numbers"})
"""What tells two events apart for certain: nobody need look at them."""


@dataclass(slots=True)
class Kept:
    """What one run has found out of events: each new one is compared with much the same ones.

    `vectors` by what was embedded, `wordings` by event, with the fields that they are of.
    """

    vectors: dict[str, Floats] = field(default_factory=dict[str, Floats])
    wordings: dict[UUID, tuple[EventFields, Wording]] = field(
        default_factory=dict[UUID, tuple[EventFields, Wording]]
    )


class DuplicateJudge:
    """Compares events. Without an embedder it does so by their words alone."""

    def __init__(self, embedder: DocumentEmbedder | None, pool: CpuPool) -> None:
        self._embedder = embedder
        self._pool = pool
        self._terms = TermCounter()

    async def nearest(
        self,
        sealer: Sealer,
        fields: EventFields,
        events: Sequence[E],
        *,
        kept: Kept | None = None,
    ) -> list[Near[E]]:
        """All of `events`, best first. Call it outside of any transaction.

        Args:
            sealer: Of the user whose events these are: their vectors are kept under it.
            fields: The new event.
            events: Those that it might repeat. Some tens: each is embedded, once.
            kept: Of this user's run, for one call at a time: is filled in.
        """
        kept = Kept() if kept is None else kept
        cosines = await self._cosines(sealer, fields, events, kept)
        # Some tenths of a millisecond an event: not on the loop that streams replies.
        work = partial(self._compared, fields, events, cosines, kept)
        return await self._pool.run(sealer.user_id, work, is_job=True)

    def _compared(
        self, fields: EventFields, events: Sequence[E], cosines: Floats | None, kept: Kept
    ) -> list[Near[E]]:
        mine = worded(fields, self._terms)
        near: list[Near[E]] = []
        for row, event in enumerate(events):
            of, other = kept.wordings.get(event.id, (None, mine))
            if of != event.fields:
                other = worded(event.fields, self._terms)
                kept.wordings[event.id] = event.fields, other
            near.append(
                Near(
                    event=event,
                    cosine=None if cosines is None else float(cosines[row]),
                    overlap=overlap(mine, other),
                    likeness=likeness(mine, other),
                    differs=differences(mine, other),
                )
            )
        return sorted(near, key=lambda each: -each.score)

    async def _cosines(
        self, sealer: Sealer, fields: EventFields, events: Sequence[E], kept: Kept
    ) -> Floats | None:
        """The cosine of each event to the new one, shape (n,); None where nothing answers."""
        if self._embedder is None or not events:
            return None
        texts = [meaning(fields), *(meaning(event.fields) for event in events)]
        new = [text for text in dict.fromkeys(texts) if text not in kept.vectors]
        if new:
            try:
                made = await self._embedder.embed_documents(sealer, new)
            except EmbedderError:
                return None
            kept.vectors.update(zip(new, made, strict=True))
        vectors = np.stack([kept.vectors[text] for text in texts])
        cosines: Floats = vectors[1:] @ vectors[0]
        return cosines


def duplicate_of(near: Sequence[Near[E]]) -> Near[E] | None:
    """The nearest event that says the same; None where there is none."""
    return next((each for each in near if is_same(each)), None)


def may_be_same(near: Near[E], at_least: Doubts = DOUBTS) -> bool:
    """Whether somebody who can read should look at the two."""
    if near.differs & SURE:
        return False
    if near.cosine is None:
        return near.likeness >= at_least.alike
    return (
        near.cosine >= at_least.cosine
        and near.overlap >= at_least.contained
        and near.likeness >= at_least.alike_in_part
    )


def is_same(near: Near[E], at_least: DuplicateThresholds = THRESHOLDS) -> bool:
    """Whether an event says the same as the new one."""
    if near.differs:
        return False
    return near.likeness >= at_least.alike or (
        near.cosine is not None
        and near.cosine >= at_least.cosine
        and near.overlap >= at_least.contained
        and near.likeness >= at_least.alike_in_part
    )


def meaning(fields: EventFields) -> str:
    """An event as it is embedded: what happened, and not where and to whom, which many share."""
    return fields.summary
