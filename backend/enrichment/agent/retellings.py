"""Find events that new ones repeat for other listeners (docs/decisions/0083).

Some listeners of the new lines may not know an event that exists. The agent writes for all of them,
so it cannot be shown the event. Its finished proposals are compared here, first in code, and then
by a request with a list of numbers as its only answer, so that no words of the event get out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from backend.chronicles.events import MAX_SOURCES, EventFields, render_event
from backend.chronicles.repository import StoryEvent
from backend.core.text_forms import normalize
from backend.enrichment.agent.duplicates import MAX_QUESTIONS, DuplicateFinder
from backend.enrichment.agent.lookup import KnowledgeLookup
from backend.enrichment.agent.proposals import Proposal, ProposedEvent, Retelling
from backend.enrichment.cleaning import indent_text
from backend.generation.model import ChatModel, ModelError, Prompt, PromptMessage
from backend.generation.sampling import Sampling
from backend.generation.tools.calls import simplify_schema
from backend.llm.answers import RunBudget, ask
from backend.prompts import PromptLibrary

_MAX_NOTE = 900
"""Maximum characters of an event in the question."""


class _RetoldAnswer(msgspec.Struct, kw_only=True):
    same: list[int] = []


RETOLD_SCHEMA = {**simplify_schema(_RetoldAnswer), "required": ["same"]}


def tells_no_more(old: EventFields, new: EventFields) -> bool:
    """True if the time, place and people of an event are also in another one.

    Those who know only `new` would learn the others from `old`.
    """
    text = _fold(render_event(new))
    details = [old.time, old.where, *old.who]
    return old.day in {None, new.day} and all(_fold(each) in text for each in details)


def _fold(text: str) -> str:
    return " ".join(normalize("NFKC", text).casefold().split())


def is_retellable(event: StoryEvent, new: ProposedEvent) -> bool:
    """True if an event can get the messages of another one. The user's events do not change."""
    shared = {each.id for each in event.sources}
    return (
        bool(event.sources)
        and not event.is_users_own
        and not event.is_pinned
        and shared.isdisjoint(each.id for each in new.sources)
        and len(event.sources) + len(new.sources) <= MAX_SOURCES
    )


@dataclass(frozen=True, slots=True)
class RetellingFinder:
    """Compares the proposals of one run with events that some of their audience do not know."""

    prompts: PromptLibrary
    lookup: KnowledgeLookup
    finder: DuplicateFinder

    async def mark(
        self,
        proposals: Sequence[Proposal],
        model: ChatModel,
        budget: RunBudget,
        sampling: Sampling,
        *,
        max_calls: int,
    ) -> list[Proposal]:
        """Return the proposals. Those that tell an event again to others refer to it.

        Only the same facts are joined. If one text says more, both events are kept, because those
        who know one of them must not learn more from the other. The model is asked once at most,
        and not if the run has made `max_calls`. If it fails, both events are kept.
        """
        retold: dict[int, StoryEvent] = {}
        asked: list[tuple[int, StoryEvent]] = []
        replaced = {each.supersedes for each in proposals if isinstance(each, ProposedEvent)}
        for place, new in enumerate(proposals):
            if not isinstance(new, ProposedEvent) or new.supersedes or new.id in replaced:
                continue
            for near in await self.finder.nearest(new.fields, await self._list_retellable(new)):
                if near.is_same:
                    retold.setdefault(place, near.event)
                elif near.may_be_same():
                    asked.append((place, near.event))
        asked = [each for each in asked if each[0] not in retold][:MAX_QUESTIONS]
        if asked and budget.calls < max_calls and model.spec.provider != "demo":
            pairs = [
                (_render(event.fields), _render(_get_event(proposals[place]).fields))
                for place, event in asked
            ]
            for number in await self._ask(pairs, model, budget, sampling):
                retold.setdefault(*asked[number - 1])
        marked = list(proposals)
        for place, event in retold.items():
            retelling = Retelling(event.id, event.revision)
            marked[place] = replace(_get_event(marked[place]), retells=retelling)
        return marked

    async def _list_retellable(self, new: ProposedEvent) -> list[StoryEvent]:
        return [
            event
            for event in await self.lookup.list_unknown(new.fields)
            if is_retellable(event, new)
            # The story's time is compared when it is known, in the transaction.
            and tells_no_more(msgspec.structs.replace(event.fields, day=None, time=""), new.fields)
        ]

    async def _ask(
        self,
        pairs: Sequence[tuple[str, str]],
        model: ChatModel,
        budget: RunBudget,
        sampling: Sampling,
    ) -> list[int]:
        """Return the numbers of the pairs that state the same, from 1."""
        text = self.prompts["enrichment/retold"].render(pairs=pairs)
        prompt = Prompt([PromptMessage("user", text)])
        if not budget.can_afford(prompt):
            return []
        try:
            value = await ask(model, prompt, RETOLD_SCHEMA, sampling=sampling, budget=budget)
            same = msgspec.convert(value, _RetoldAnswer).same
        except (ModelError, msgspec.ValidationError):
            return []
        return [each for each in dict.fromkeys(same) if 1 <= each <= len(pairs)]


def _get_event(proposal: Proposal) -> ProposedEvent:
    assert isinstance(proposal, ProposedEvent)  # noqa: S101  # only events are compared
    return proposal


def _render(fields: EventFields) -> str:
    return indent_text(fields.summary, most=_MAX_NOTE)
