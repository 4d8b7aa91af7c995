"""Detect events that repeat a recorded event.

An event with the same words is refused. An event that is similar in meaning and in words may repeat
another one, or differ in the one word that matters. The model decides, because that works in any
language. docs/explanation/duplicates.md has the figures.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar
from uuid import UUID

import numpy as np

from backend.chronicles.events import EventFields
from backend.chronicles.repository import StoryEvent
from backend.core.cpu_pool import CpuPool
from backend.core.text_forms import normalize
from backend.enrichment.agent.lookup import KnowledgeLookup
from backend.enrichment.agent.proposals import ProposedEvent, RefusedCallError, ShownReferences
from backend.memory.embedding.protocol import DocumentEmbedder, EmbedderError, Floats
from backend.memory.search.terms import count_terms
from backend.vault.sealing import Sealer

MAX_QUESTIONS = 3
"""Maximum similar events that the model is asked about."""

_MAX_COMPARED = 12
"""Events of the index that a new one is compared with, in addition to the latest."""

_ENDS = " .!。"  # an ideographic full stop


class _Telling(Protocol):
    # A stored or a proposed event.
    @property
    def id(self) -> UUID: ...

    @property
    def fields(self) -> EventFields: ...


E = TypeVar("E", bound=_Telling)


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateThresholds:
    """Limits from which the model is asked if two events are the same.

    Attributes:
        cosine: Similarity of the meanings, if there is an embedder.
        likeness: Share of common words, in [0, 1]. It must be reached, too.
        likeness_alone: The limit without an embedder.
    """

    cosine: float = 0.8
    likeness: float = 0.35
    likeness_alone: float = 0.4


DUPLICATE_THRESHOLDS = DuplicateThresholds()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarEvent(Generic[E]):
    """An event and its similarity to a new one.

    Attributes:
        cosine: Of the summaries; None if no embedder answered.
        likeness: Share of common terms (Jaccard), in [0, 1].
        is_same: True if the wording is the same.
        is_apart: True if days or numbers differ, so that it is certainly another event.
    """

    event: E
    cosine: float | None
    likeness: float
    is_same: bool
    is_apart: bool

    def may_be_same(self, least: DuplicateThresholds = DUPLICATE_THRESHOLDS) -> bool:
        """True if the model should decide about the two events."""
        if self.is_apart:
            return False
        if self.cosine is None:
            return self.likeness >= least.likeness_alone
        return self.cosine >= least.cosine and self.likeness >= least.likeness


class DuplicateFinder:
    """Compares events of one run. Vectors are cached, because many comparisons share events.

    Args:
        sealer: Of the events' owner. Vectors are stored encrypted for this user.
        embedder: Without one, events are compared by their words.
    """

    def __init__(self, sealer: Sealer, embedder: DocumentEmbedder | None, pool: CpuPool) -> None:
        self._sealer = sealer
        self._embedder = embedder
        self._pool = pool
        self._vectors: dict[str, Floats] = {}

    async def nearest(self, fields: EventFields, events: Sequence[E]) -> list[SimilarEvent[E]]:
        """Compare with some tens of events, and return them with the most similar first.

        Call it outside of transactions.
        """
        cosines = await self._compute_cosines(fields, events)
        # It takes some tenths of a millisecond an event, too long for the event loop.
        work = partial(_compare, fields, events, cosines)
        return await self._pool.run(self._sealer.user_id, work, is_job=True)

    async def _compute_cosines(self, fields: EventFields, events: Sequence[E]) -> Floats | None:
        """Return the cosine of each event to the new one, shape (n,); None without an embedder.

        Only summaries are embedded, because many events share places and people.
        """
        if self._embedder is None or not events:
            return None
        texts = [fields.summary, *(event.fields.summary for event in events)]
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if new:
            try:
                made = await self._embedder.embed_documents(self._sealer, new)
            except EmbedderError:
                return None
            self._vectors.update(zip(new, made, strict=True))
        vectors = np.stack([self._vectors[text] for text in texts])
        cosines: Floats = vectors[1:] @ vectors[0]
        return cosines


def _compare(
    fields: EventFields, events: Sequence[E], cosines: Floats | None
) -> list[SimilarEvent[E]]:
    terms, numbers = find_terms(fields.summary), _find_numbers(fields.summary)
    near: list[SimilarEvent[E]] = []
    for row, event in enumerate(events):
        other = event.fields
        other_terms, other_numbers = find_terms(other.summary), _find_numbers(other.summary)
        both = terms | other_terms
        is_other_day = None not in {fields.day, other.day} and fields.day != other.day
        has_other_numbers = bool(numbers and other_numbers) and numbers != other_numbers
        near.append(
            SimilarEvent(
                event=event,
                cosine=None if cosines is None else float(cosines[row]),
                likeness=len(terms & other_terms) / len(both) if both else 0.0,
                is_same=not is_other_day and _fold(fields.summary) == _fold(other.summary),
                is_apart=is_other_day or has_other_numbers,
            )
        )
    return sorted(near, key=lambda each: -(each.likeness + (each.cosine or 0.0)))


def is_any_known(
    new: Iterable[EventFields], written: Iterable[StoryEvent], *, seen: Collection[UUID]
) -> bool:
    """True if events that were written since may repeat new ones, judged by words alone.

    It is used in the transaction that writes the events, where no model can be asked.

    Args:
        new: The events to write.
        written: The recorded events of the same messages.
        seen: Ids of the events that the new ones have been compared with.
    """
    unseen = [event for event in written if event.id not in seen]
    return any(
        near.is_same or near.may_be_same()
        for fields in new
        for near in _compare(fields, unseen, None)
    )


def find_terms(text: str) -> frozenset[str]:
    """Return the stems of a text without stop words, as in the index."""
    return frozenset(count_terms(text))


def _find_numbers(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\d+", text))


def _fold(text: str) -> str:
    """Normalise capitals, spaces and the end of the sentence."""
    return " ".join(normalize("NFKC", text).casefold().split()).strip(_ENDS)


Known = StoryEvent | ProposedEvent


@dataclass(frozen=True, slots=True)
class DuplicateCheck:
    """Compares new events with those of the index, the latest ones, and those of this run.

    A refusal shows the similar event, which `references` then contain. `seen` are the ids of all
    compared events.
    """

    finder: DuplicateFinder
    lookup: KnowledgeLookup
    references: ShownReferences
    latest: Sequence[StoryEvent]
    seen: set[UUID] = field(default_factory=set[UUID])

    async def check_new(
        self,
        fields: EventFields,
        *,
        proposed: Sequence[ProposedEvent],
        besides: Known | None,
        apart: Collection[UUID],
    ) -> None:
        """Refuse an event that repeats another one, or that may do so and is not in `apart`.

        `besides` is the event that it supersedes, which is similar by nature. Raises
        `RefusedCallError`.
        """
        near = await self.check_changed(fields, proposed=proposed, besides=besides)
        asked = [each.event for each in near if each.may_be_same()][:MAX_QUESTIONS]
        asked = [event for event in asked if event.id not in apart]
        if not asked:
            return
        marks = [self.references.events.show(event) for event in asked]
        shown = " ".join(
            f"{mark}: {self.references.render_summary(event)}"
            for mark, event in zip(marks, asked, strict=True)
        )
        raise RefusedCallError(
            f"{' and '.join(marks)} may say the same. {shown} If so, leave it. If yours is another "
            f"fact, call again with differs_from: {', '.join(marks)}.",
            duplicate_of=asked[0].id,
        )

    async def check_changed(
        self, fields: EventFields, *, proposed: Sequence[ProposedEvent], besides: Known | None
    ) -> list[SimilarEvent[Known]]:
        """Return similar events, the most similar first.

        Raises `RefusedCallError` if one of them has the same words.
        """
        if besides is not None and besides.fields == fields:
            raise self._build_refusal(besides)
        found = await self.lookup.find(fields.summary, limit=_MAX_COMPARED, sources=["events"])
        left_out = {each.supersedes for each in proposed}
        if besides is not None:
            left_out.add(besides.id)
        told = await self.lookup.list_recorded()
        everything: list[Known] = [*found.events.values(), *self.latest, *told, *proposed]
        self.seen.update(event.id for event in everything)
        others = {event.id: event for event in everything if event.id not in left_out}
        near = await self.finder.nearest(fields, list(others.values()))
        if (same := next((each for each in near if each.is_same), None)) is not None:
            raise self._build_refusal(same.event)
        return near

    def _build_refusal(self, event: Known) -> RefusedCallError:
        mark = self.references.events.show(event)
        return RefusedCallError(
            f"duplicate of {mark}: {self.references.render_summary(event)}", duplicate_of=event.id
        )
