"""Brings a campaign up to date with what a chat has told since it was read last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from msgspec import structs
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.audience import GM, PUBLIC
from backend.campaigns import ledger_store
from backend.campaigns.authority import Draft, judged
from backend.campaigns.errors import CampaignFullError
from backend.campaigns.item_service import check_item_room
from backend.campaigns.ledger import exists
from backend.campaigns.ledger_store import Change
from backend.campaigns.models import Campaign, CampaignMark
from backend.campaigns.play.state import is_unsettled
from backend.campaigns.proposals import keep
from backend.campaigns.records import find_campaign, item_name, item_states, open_campaign
from backend.chats.models import Chat, Message
from backend.chronicles.errors import ChronicleFullError
from backend.chronicles.events import told
from backend.chronicles.reading import SourceMessage, current_events
from backend.chronicles.writing import NewEvent, add_events, first_place
from backend.cpu_pool import unhurried
from backend.database.base import now
from backend.enrichment.agent.agent import DEMO_NOTE
from backend.enrichment.budgets import open_budget
from backend.enrichment.cleaning import clipped, one_line
from backend.enrichment.compaction.drafts import Drafted, DraftedEvent, Drafter
from backend.enrichment.compaction.known import (
    KnownWorld,
    ShownWorld,
    attributes_of,
    read_world,
    show,
)
from backend.enrichment.compaction.tools import offered
from backend.enrichment.compaction.window import Window, is_unread, read_window
from backend.enrichment.effects import Changed, effect_on, note_in_index
from backend.enrichment.errors import ChronicleNotEnabledError
from backend.enrichment.pipeline import PathChangedError, Task, Work
from backend.enrichment.runs import Refused, RunDetail, RunEffect
from backend.generation.model import (
    ChatModel,
    ModelError,
    Prompt,
    PromptMessage,
    TextPiece,
    TokenUsage,
    Tool,
    ToolCall,
    ToolRound,
)
from backend.generation.tool_streams import stream_with_tools
from backend.jobs.errors import RetryLaterError

MOST_CALLS = 3
"""Times that a model is asked in one run: again, where calls of its last answer can't be."""

WAIT_SECONDS = 900.0
"""How long it waits for an action to be over, if no turn says so before."""

MAX_WRITES = 40
MAX_EVENTS = 20
MAX_EVENT = 300


@dataclass(frozen=True, kw_only=True)
class CompactionWork(Work):
    """Messages of one audience that were not read, and what that may know of the campaign."""

    campaign_id: UUID
    window: Window
    known: KnownWorld
    events: Sequence[str]


@dataclass(frozen=True, slots=True)
class CompactionProposal:
    """Calls that can be, in order; `references` are by what the model was told to call items."""

    calls: Sequence[ToolCall]
    refused: Sequence[Refused]
    references: ShownWorld
    note: str = ""


class CompactionTask(Task[CompactionWork, CompactionProposal]):
    """Reads the messages of a chat that no compaction has read, one audience after the other."""

    kind = "compaction"

    async def run(self) -> None:
        """See `Task.run`. What a crash left to be folded is folded first."""
        await self.fold_campaign()
        await super().run()

    async def load(self, session: AsyncSession, chat: Chat) -> CompactionWork | None:
        """What was not read, and the state as its audience knows it.

        Raises `RetryLaterError` while an action or a fight is on: what happens is not settled yet.
        """
        if not chat.chronicle_enabled:
            raise ChronicleNotEnabledError
        campaign = (
            await find_campaign(session, self.sealer, chat.campaign_id)
            if chat.campaign_id
            else None
        )
        if campaign is None:
            return None
        reader = await self.reader(session, chat)
        window = await read_window(session, self.sealer, chat, most=reader.stretch_tokens)
        if window is None:
            return None
        known = await read_world(session, self.sealer, campaign, audience=window.audience)
        tools = open_campaign(self.sealer, campaign).settings.tools
        if is_unsettled(known.items[campaign.id].state, known.rules, is_played=tools):
            raise RetryLaterError("An action is under way.", after=WAIT_SECONDS)
        chronicle_id = chat.chronicle_id or campaign.chronicle_id
        events = (
            await current_events(
                session,
                self.sealer,
                chronicle_id,
                limit=MAX_EVENTS,
                viewpoint=GM if window.audience == GM else PUBLIC,
            )
            if chronicle_id
            else []
        )
        return CompactionWork(
            reader=reader,
            budget=await open_budget(session, self.runtime.settings, self.sealer.user_id),
            message_ids=[message_id for message_id, _ in window.versions],
            from_position=window.positions[0],
            to_position=window.positions[-1],
            chronicle_id=chronicle_id,
            campaign_id=campaign.id,
            window=window,
            known=known,
            events=[clipped(one_line(told(each.fields)), MAX_EVENT) for each in events],
        )

    async def propose(self, work: CompactionWork) -> CompactionProposal:
        """Have the model call, and again where calls can't be: it is told why."""
        model, window = self.runtime.registry.get(work.reader.model_id), work.window
        text = "\n".join([*window.earlier, *window.lines])
        shown = await self.runtime.agent.pool.run(
            self.sealer.user_id,
            partial(show, work.known, text),
            size=len(text) + 20 * len(work.known.items),
            is_job=True,
        )
        prompts = self.runtime.prompts
        story = prompts["enrichment/compaction_lines"].render(
            world=shown.lines, events=work.events, earlier=window.earlier, lines=window.lines
        )
        system = prompts["enrichment/compaction"].render(most=MAX_WRITES)
        opening = [PromptMessage("system", system), PromptMessage("user", story)]
        tools = offered(attributes_of(work.known))
        drafter = _drafter(work, work.known, shown)
        rounds: list[ToolRound] = []
        calls: list[ToolCall] = []
        refused: list[Refused] = []
        while work.budget.calls < MOST_CALLS:
            prompt = Prompt(opening, tuple(rounds))
            if not work.budget.affords(prompt):
                break
            try:
                made, said = await _asked(model, prompt, tools, work)
            except ModelError:
                if not rounds:
                    raise
                break  # what it has called before is not lost by it
            results: list[Any] = []
            async for call in unhurried(made):
                problem = drafter.use(call)
                results.append({"error": problem.reason} if problem else {"ok": True})
                if problem is None:
                    calls.append(call)
                else:
                    refused.append(problem)
            if all("ok" in each for each in results):
                break
            rounds.append(ToolRound(made, results, said))
        note = DEMO_NOTE if model.spec.provider == "demo" else ""
        return CompactionProposal(calls, refused, shown, note)

    async def apply(
        self,
        session: AsyncSession,
        chat: Chat,
        work: CompactionWork,
        proposal: CompactionProposal,
    ) -> RunDetail:
        """Write all that the calls come to as things are now, as one version, and what was read.

        Each change, and each event, belongs to the message that it comes from.
        """
        if (
            not chat.chronicle_enabled
            or chat.campaign_id != work.campaign_id
            or not await is_unread(session, chat, work.window)
        ):
            raise PathChangedError
        campaign = await find_campaign(session, self.sealer, work.campaign_id, lock=True)
        if campaign is None:
            raise PathChangedError
        known = work.known
        if campaign.version != known.version:
            audience = work.window.audience
            known = await read_world(session, self.sealer, campaign, audience=audience)
        drafter = _drafter(work, known, proposal.references)
        again = [drafter.use(call) async for call in unhurried(proposal.calls)]
        outcome = _Outcome(refused=[*proposal.refused, *filter(None, again)])
        query = select(Message).where(Message.id.in_(work.message_ids))
        messages = {message.position: message for message in await session.scalars(query)}
        verdict = await judged(
            session,
            self.sealer,
            campaign,
            [_draft(work, each, messages) for each in drafter.drafts],
            since=work.window.since,
        )
        await keep(session, self.sealer, campaign, chat, verdict.proposals)
        await self._append(session, campaign, verdict.drafts, outcome)
        await self._tell(session, work, drafter.events, messages, outcome)
        campaign.compactions += 1
        marks = [
            {
                "id": message.id,
                "user_id": self.sealer.user_id,
                "campaign_id": campaign.id,
                "chat_id": chat.id,
                "position": message.position,
                "version": campaign.version,
            }
            for message in messages.values()
        ]
        await session.execute(insert(CampaignMark), marks)
        return RunDetail(
            message_ids=list(work.message_ids),
            significant=bool(outcome.effects),
            effects=outcome.effects,
            refused=outcome.refused,
            note=proposal.note,
        )

    async def _append(
        self,
        session: AsyncSession,
        campaign: Campaign,
        drafts: Sequence[Draft],
        outcome: _Outcome,
    ) -> None:
        """Write changes, all of one version, also where there are none: marks are of a version."""
        made = sum(exists(draft.operations.set) for draft in drafts)
        try:
            await check_item_room(session, campaign.id, more=made)
        except CampaignFullError as error:
            outcome.refuse("campaign", error.detail)
            drafts = []
        if not drafts:
            campaign.version += 1
            return
        because = [
            Change(each.kind, each.item_id, structs.replace(each.operations, because=each.because))
            for each in drafts
        ]
        change_ids = await ledger_store.append(
            session,
            self.sealer,
            campaign,
            because,
            actor="compactor",
            sources=[draft.message for draft in drafts],
        )
        names = await item_states(
            session, self.sealer, campaign, {draft.item_id for draft in drafts}
        )
        outcome.effects += [
            RunEffect(
                what="item_changed",
                id=change_id,
                container_id=campaign.id,
                title=item_name(draft.kind, names[draft.item_id]),
                because=draft.because,
            )
            for change_id, draft in zip(change_ids, drafts, strict=True)
        ]

    async def _tell(
        self,
        session: AsyncSession,
        work: CompactionWork,
        events: Sequence[DraftedEvent],
        messages: Mapping[int, Message],
        outcome: _Outcome,
    ) -> None:
        """Write events into the chronicle, each from its messages."""
        if work.chronicle_id is None or not events:
            return
        new = [self._event(work, each, messages) for each in events]
        try:
            rows = await add_events(session, self.sealer, work.chronicle_id, new)
        except ChronicleFullError as error:
            outcome.refuse("chronicle_event_tool", error.detail)
            return
        outcome.effects += [
            effect_on(row, "event_created", title=each.fields.summary, because="")
            for row, each in zip(rows, events, strict=True)
        ]
        changed: Changed = defaultdict(set)
        changed["event", work.chronicle_id].update(row.id for row in rows)
        await note_in_index(session, self.runtime.index, work.reader, changed)

    def _event(
        self, work: CompactionWork, event: DraftedEvent, messages: Mapping[int, Message]
    ) -> NewEvent:
        sources = [
            SourceMessage(id=messages[at].id, chat_id=self.chat_id, position=at)
            for at in event.positions
        ]
        return NewEvent(
            fields=event.fields,
            significance=event.significance,
            source="campaign",
            happened_at=now(),
            place=first_place(sources),
            sources=sources,
            run_id=work.run_id,
            audience=work.window.audience,
        )


@dataclass(slots=True)
class _Outcome:
    """What a run has written, and what it has not."""

    effects: list[RunEffect] = field(default_factory=list[RunEffect])
    refused: list[Refused] = field(default_factory=list[Refused])

    def refuse(self, tool: str, reason: str) -> None:
        self.refused.append(Refused(tool=tool, reason=clipped(one_line(reason), MAX_EVENT)))


def _drafter(work: CompactionWork, known: KnownWorld, shown: ShownWorld) -> Drafter:
    """Reads calls on a state; lines are named by the numbers that they were shown with."""
    positions = {position + 1: position for position in work.window.positions}
    return Drafter(known, shown.references, positions, audience=work.window.audience)


def _draft(work: CompactionWork, draft: Drafted, messages: Mapping[int, Message]) -> Draft:
    return Draft(
        kind=draft.kind,
        item_id=draft.item_id,
        operations=draft.operations,
        message=messages[draft.position],
        because=draft.because,
        audience=work.window.audience,
        replaces=draft.replaces,
        unclear=draft.unclear,
    )


async def _asked(
    model: ChatModel, prompt: Prompt, tools: Sequence[Tool], work: CompactionWork
) -> tuple[list[ToolCall], str]:
    """The calls of one answer, and its text, by whichever way the model can call."""
    calls: list[ToolCall] = []
    text, usage = "", None
    try:
        async with aclosing(
            stream_with_tools(model, prompt, tools, work.reader.sampling)
        ) as pieces:
            async for piece in pieces:
                match piece:
                    case TextPiece(said):
                        text += said
                    case ToolCall():
                        calls.append(piece)
                    case TokenUsage():
                        usage = piece
                    case _:
                        pass
    except ModelError:
        work.budget.calls += 1
        raise
    said = "".join([text, *(str(dict(call.arguments)) for call in calls)])
    work.budget.take(usage, prompt, said)
    return calls, text
