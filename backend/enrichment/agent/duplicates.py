"""Whether an event is told already: what is refused, and what the model is asked about.

An event in the very words of another one is refused. What is near another one, by meaning and by
words, may say the same or may differ in the one word that matters: that the model has to say, in
whatever language the story is told. docs/duplicates.md has the figures.
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
from backend.memory.embedding.protocol import EmbedderError, Floats
from backend.memory.indexing.points import DocumentEmbedder
from backend.memory.search.terms import document_terms
from backend.vault.sealing import Sealer

MAX_QUESTIONS = 3
"""Events that a new one may be asked to differ from."""

_COMPARED = 12
"""Events of the index that a new one is compared with, besides the latest."""

_ENDS = " .!。"  # an ideographic full stop


class _Telling(Protocol):
    # An event that is stored, or one that is about to be.
    @property
    def id(self) -> UUID: ...

    @property
    def fields(self) -> EventFields: ...


E = TypeVar("E", bound=_Telling)


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateThresholds:
    """From where on the model is asked about two events.

    Attributes:
        cosine: Of their meanings, where there is an embedder.
        likeness: How many of the words of either both have, in [0, 1], besides.
        likeness_alone: The same without an embedder.
    """

    cosine: float = 0.8
    likeness: float = 0.35
    likeness_alone: float = 0.4


DUPLICATE_THRESHOLDS = DuplicateThresholds()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarEvent(Generic[E]):
    """An event beside a new one.

    Attributes:
        cosine: Of their summaries; None where no embedder answered.
        likeness: How many of the terms of either are in both (Jaccard), in [0, 1].
        is_same: It says the same, word by word.
        is_apart: It is another event for certain: another day, or other numbers.
    """

    event: E
    cosine: float | None
    likeness: float
    is_same: bool
    is_apart: bool

    def may_be_same(self, least: DuplicateThresholds = DUPLICATE_THRESHOLDS) -> bool:
        """Whether somebody who can read should look at the two."""
        if self.is_apart:
            return False
        if self.cosine is None:
            return self.likeness >= least.likeness_alone
        return self.cosine >= least.cosine and self.likeness >= least.likeness


class DuplicateFinder:
    """Compares events: one for each run, since new ones are compared with much the same old ones.

    Args:
        sealer: Of the user whose events these are: their vectors are kept under it.
        embedder: Without one events are compared by their words alone.
    """

    def __init__(self, sealer: Sealer, embedder: DocumentEmbedder | None, pool: CpuPool) -> None:
        self._sealer = sealer
        self._embedder = embedder
        self._pool = pool
        self._vectors: dict[str, Floats] = {}

    async def nearest(self, fields: EventFields, events: Sequence[E]) -> list[SimilarEvent[E]]:
        """Some tens of events, best first. Call it outside of any transaction."""
        cosines = await self._cosines(fields, events)
        # Some tenths of a millisecond an event: not on the loop that streams replies.
        work = partial(_compared, fields, events, cosines)
        return await self._pool.run(self._sealer.user_id, work, is_job=True)

    async def _cosines(self, fields: EventFields, events: Sequence[E]) -> Floats | None:
        """The cosine of each event to the new one, shape (n,); None where nothing answers.

        The summary is what is embedded, not where and to whom, which many events share.
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


def _compared(
    fields: EventFields, events: Sequence[E], cosines: Floats | None
) -> list[SimilarEvent[E]]:
    terms, numbers = find_terms(fields.summary), _numbers(fields.summary)
    near: list[SimilarEvent[E]] = []
    for row, event in enumerate(events):
        other = event.fields
        other_terms, other_numbers = find_terms(other.summary), _numbers(other.summary)
        both = terms | other_terms
        is_other_day = None not in {fields.day, other.day} and fields.day != other.day
        has_other_numbers = bool(numbers and other_numbers) and numbers != other_numbers
        near.append(
            SimilarEvent(
                event=event,
                cosine=None if cosines is None else float(cosines[row]),
                likeness=len(terms & other_terms) / len(both) if both else 0.0,
                is_same=not is_other_day and _wording(fields.summary) == _wording(other.summary),
                is_apart=is_other_day or has_other_numbers,
            )
        )
    return sorted(near, key=lambda each: -(each.likeness + (each.cosine or 0.0)))


def is_any_known(
    new: Iterable[EventFields], written: Iterable[StoryEvent], *, seen: Collection[UUID]
) -> bool:
    """True if events that were written since may say the same as new ones, by words alone.

    For the transaction that writes the new ones: no model can be asked there.

    Args:
        new: What is about to be written.
        written: What is there, of the same messages.
        seen: Ids of the events that the new ones were compared with before.
    """
    unseen = [event for event in written if event.id not in seen]
    return any(
        near.is_same or near.may_be_same()
        for fields in new
        for near in _compared(fields, unseen, None)
    )


def find_terms(text: str) -> frozenset[str]:
    """The stems of a text, without stop words, as the index has them."""
    return frozenset(document_terms(text))


def _numbers(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\d+", text))


def _wording(text: str) -> str:
    """The words in their order: capitals, blanks and the end of the sentence don't matter."""
    return " ".join(normalize("NFKC", text).casefold().split()).strip(_ENDS)


Known = StoryEvent | ProposedEvent


@dataclass(frozen=True, slots=True)
class DuplicateCheck:
    """Compare new events with those that the index finds, the latest ones, and those of this run.

    The objections to a call are shown with it, among the `references`. `seen` are the ids of all
    events that were compared.
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
        """Refuse what says the same, and what may say the same unless it is in `apart`.

        `besides` is what the event supersedes: it says much the same by nature. Raises
        `RefusedCallError`.
        """
        near = await self.check_changed(fields, proposed=proposed, besides=besides)
        asked = [each.event for each in near if each.may_be_same()][:MAX_QUESTIONS]
        asked = [event for event in asked if event.id not in apart]
        if not asked:
            return
        marks = [self.references.events.show(event) for event in asked]
        shown = " ".join(
            f"{mark}: {self.references.summary(event)}"
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
        """What is near, best first. Raises `RefusedCallError` where one of it says the same."""
        if besides is not None and besides.fields == fields:
            raise self._duplicate(besides)
        found = await self.lookup.look(fields.summary, limit=_COMPARED, sources=["events"])
        left_out = {each.supersedes for each in proposed}
        if besides is not None:
            left_out.add(besides.id)
        told = await self.lookup.told()
        everything: list[Known] = [*found.events.values(), *self.latest, *told, *proposed]
        self.seen.update(event.id for event in everything)
        others = {event.id: event for event in everything if event.id not in left_out}
        near = await self.finder.nearest(fields, list(others.values()))
        if (same := next((each for each in near if each.is_same), None)) is not None:
            raise self._duplicate(same.event)
        return near

    def _duplicate(self, event: Known) -> RefusedCallError:
        mark = self.references.events.show(event)
        return RefusedCallError(
            f"duplicate of {mark}: {self.references.summary(event)}", duplicate_of=event.id
        )
