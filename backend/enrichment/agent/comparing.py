"""Whether an event is told already: what is refused, and what the model is asked about."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from backend.chronicles.events import EventFields
from backend.chronicles.reading import StoryEvent
from backend.enrichment.agent.checks import RefusedCallError
from backend.enrichment.agent.knowledge_lookup import KnowledgeLookup
from backend.enrichment.agent.references import References, summary_of
from backend.enrichment.duplicates.judging import (
    DuplicateJudge,
    Kept,
    Near,
    duplicate_of,
    may_be_same,
)
from backend.enrichment.study import ProposedEvent
from backend.vault.sealing import Sealer

MAX_DOUBTS = 3
"""Events that a new one may be asked to differ from."""

_NEAR = 12

Known = StoryEvent | ProposedEvent


class Comparer:
    """Compares new events with what the index finds, the latest events, and those of this run.

    Args:
        sealer: Of the user whose story it is.
        looker: Looks into memory.
        judge: Says what is a duplicate.
        marked: What the model was shown so far: what speaks against a call is shown with it.
        latest: Events that each new one is compared with, whatever the index finds.
    """

    def __init__(
        self,
        sealer: Sealer,
        *,
        looker: KnowledgeLookup,
        judge: DuplicateJudge,
        marked: References,
        latest: Sequence[StoryEvent],
    ) -> None:
        self._sealer = sealer
        self._looker = looker
        self._judge = judge
        self._marked = marked
        self._latest = latest
        self._kept = Kept()

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
        near = await self._compared(fields, proposed, besides)
        asked = [each.event for each in near if may_be_same(each)][:MAX_DOUBTS]
        asked = [event for event in asked if event.id not in apart]
        if not asked:
            return
        marks = [self._marked.events.show(event) for event in asked]
        shown = " ".join(
            f"{mark}: {summary_of(event.fields)}" for mark, event in zip(marks, asked, strict=True)
        )
        raise RefusedCallError(
            f"{' and '.join(marks)} may say the same. {shown} If so, leave it. If yours is another "
            f"fact, call again with differs_from: {', '.join(marks)}.",
            duplicate_of=asked[0].id,
        )

    async def check_mended(
        self, fields: EventFields, *, proposed: Sequence[ProposedEvent], besides: Known
    ) -> None:
        """Refuse an event that, said anew, is another one. Raises `RefusedCallError`."""
        await self._compared(fields, proposed, besides)

    async def _compared(
        self, fields: EventFields, proposed: Sequence[ProposedEvent], besides: Known | None
    ) -> list[Near[Known]]:
        """What was compared, best first, where none of it says the same."""
        if besides is not None and besides.fields == fields:
            raise self._duplicate(besides)
        found = await self._looker.look(fields.summary, limit=_NEAR, sources=["events"])
        left_out = {each.supersedes for each in proposed}
        if besides is not None:
            left_out.add(besides.id)
        everything: list[Known] = [*found.events.values(), *self._latest, *proposed]
        others = {event.id: event for event in everything if event.id not in left_out}
        near = await self._judge.nearest(
            self._sealer, fields, list(others.values()), kept=self._kept
        )
        if (same := duplicate_of(near)) is not None:
            raise self._duplicate(same.event)
        return near

    def _duplicate(self, event: Known) -> RefusedCallError:
        mark = self._marked.events.show(event)
        return RefusedCallError(
            f"duplicate of {mark}: {summary_of(event.fields)}", duplicate_of=event.id
        )
