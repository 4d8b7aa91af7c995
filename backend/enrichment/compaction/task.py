"""Brings a campaign up to date with what a chat has told since it was read last."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.records import find_campaign, open_campaign
from backend.campaigns.models import Campaign, CampaignMark
from backend.campaigns.play.state import is_unsettled
from backend.chats.models import Chat, Message
from backend.core.cpu_pool import iterate_in_slices
from backend.enrichment.agent.agent import DEMO_NOTE
from backend.enrichment.agent.duplicates import DuplicateFinder
from backend.enrichment.cleaning import to_one_line
from backend.enrichment.compaction.drafts import Drafter
from backend.enrichment.compaction.reader import (
    KnownWorld,
    MessageWindow,
    ShownWorld,
    is_unread,
    list_attributes,
    read_window,
    read_world,
    refresh_world,
    render_world,
)
from backend.enrichment.compaction.tools import build_tools
from backend.enrichment.compaction.writer import ChronicleWriter, CompactionWriter, KnownEvents
from backend.enrichment.errors import ChronicleNotEnabledError
from backend.enrichment.pipeline import PathChangedError, RunWork, Task
from backend.enrichment.reader import open_budget
from backend.enrichment.runs.effects import update_index
from backend.enrichment.runs.store import RefusedCall, RunDetail
from backend.generation.declined_answers import check_declined
from backend.generation.model import (
    ChatModel,
    ModelEmptyReplyError,
    ModelError,
    Prompt,
    PromptMessage,
    TextPiece,
    TextReset,
    TokenUsage,
    Tool,
    ToolCall,
    ToolRound,
)
from backend.generation.tools.streams import stream_with_tools
from backend.jobs.errors import RetryLaterError

MOST_CALLS = 3
"""Times that a model is asked in one run: again, where calls of its last answer can't be."""

WAIT_SECONDS = 900.0
"""How long it waits for an action to be over, if no turn says so before."""

LANE_SECONDS = 300.0
"""The longest time for which other work of the campaign waits with it."""

CHARACTERS_AN_ITEM = 200
"""What reading an item's names takes, in characters of a text."""

MAX_WRITES = 40
WRITES_TOKENS = 4_096
"""An answer has up to 40 calls, of about 100 tokens each."""
MAX_EVENTS = 20
"""Known events that are shown, the last ones."""

EVENT_TOOL = "chronicle_event_tool"


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class CompactionWork(RunWork):
    """Messages of one audience that were not read, and what that may know of the campaign."""

    campaign_id: UUID
    window: MessageWindow
    known: KnownWorld


@dataclass(frozen=True, slots=True)
class CompactionProposal:
    """Calls that can be, in order, and what they come to in the campaign's state as it is `known`.

    `shown` says by what the model was told to call items, `seen` are the events that those of the
    calls were compared with.
    """

    calls: Sequence[ToolCall]
    refused: Sequence[RefusedCall]
    shown: ShownWorld
    known: KnownWorld
    drafter: Drafter
    seen: Collection[UUID]
    note: str = ""


class CompactionTask(Task[CompactionWork, CompactionProposal]):
    """Reads the messages of a chat that no compaction has read, one audience after the other."""

    kind = "compaction"
    task = "compaction"

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
        window = await read_window(session, reader, chat)
        if window is None:
            return None
        known = await read_world(
            session,
            self.sealer,
            campaign,
            self.runtime.names,
            [*window.earlier, *window.lines],
            audience=window.audience,
        )
        tools = open_campaign(self.sealer, campaign).settings.tools
        if is_unsettled(known.items[campaign.id].state, known.rules, is_played=tools):
            raise RetryLaterError(
                "An action is under way.", after=WAIT_SECONDS, holds_lane=LANE_SECONDS
            )
        chronicle_id = chat.chronicle_id or campaign.chronicle_id
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
        )

    async def propose(self, work: CompactionWork) -> CompactionProposal:
        """Have the model call, and again where calls can't be: it is told why."""
        model, window = work.reader.model, work.window
        text = "\n".join([*window.earlier, *window.lines])
        shown = await self._unhurried(work.known, partial(render_world, work.known, text), text)
        events = await self._known_events(work)
        prompts = self.runtime.prompts
        story = prompts["enrichment/compaction_lines"].render(
            world=shown.lines,
            events=await events.show(most=MAX_EVENTS) if events else [],
            earlier=window.earlier,
            lines=window.lines,
        )
        player = work.reader.player
        system = prompts["enrichment/compaction"].render(
            most=MAX_WRITES,
            player=to_one_line(player.name) if player and player.id in work.known.items else "",
        )
        opening = [PromptMessage("system", system), PromptMessage("user", story)]
        tools = build_tools(list_attributes(work.known))
        drafter, _ = await self._unhurried(work.known, partial(_drafted, work, work.known, shown))
        rounds: list[ToolRound] = []
        calls: list[ToolCall] = []
        refused: list[RefusedCall] = []
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
            async for call in iterate_in_slices(made):
                problem = await _use(drafter, call, events)
                results.append({"error": problem.reason} if problem else {"ok": True})
                if problem is None:
                    calls.append(call)
                else:
                    refused.append(problem)
            if all("ok" in each for each in results):
                break
            rounds.append(ToolRound(made, results, said))
        known = await self._known_now(work)
        if known is not work.known:
            read = partial(_drafted, work, known, shown, calls)
            drafter, again = await self._unhurried(known, read)
            refused += again
        note = DEMO_NOTE if model.spec.provider == "demo" else ""
        seen = events.seen if events else frozenset[UUID]()
        return CompactionProposal(calls, refused, shown, known, drafter, seen, note)

    async def _known_events(self, work: CompactionWork) -> KnownEvents | None:
        """Return the events that new ones are compared with; None without a chronicle."""
        if work.chronicle_id is None:
            return None
        agent = self.runtime.agent
        embedder = await agent.embedder_of(self.sealer)
        return KnownEvents(
            self.runtime.database,
            self.sealer,
            DuplicateFinder(self.sealer, embedder, agent.pool),
            work.chronicle_id,
            work.message_ids,
            audience=work.window.audience,
            marks=work.known.marks,
        )

    async def _known_now(self, work: CompactionWork) -> KnownWorld:
        """The state once the model has answered: while it worked, play has gone on."""
        async with self.runtime.database.read() as session:
            campaign = await find_campaign(session, self.sealer, work.campaign_id)
            if campaign is None or campaign.is_stale or campaign.version == work.known.version:
                return work.known
            return await self._refresh(session, campaign, work, work.known)

    async def _refresh(
        self, session: AsyncSession, campaign: Campaign, work: CompactionWork, known: KnownWorld
    ) -> KnownWorld:
        audience = work.window.audience
        return await refresh_world(session, self.sealer, campaign, known, audience=audience)

    async def _unhurried(self, known: KnownWorld, read: Callable[[], T], text: str = "") -> T:
        """Do what takes longer the more a campaign has; no transaction waits for it."""
        size = len(text) + CHARACTERS_AN_ITEM * len(known.items)
        return await self.runtime.agent.pool.run(self.sealer.user_id, read, size=size, is_job=True)

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
        drafter, again = proposal.drafter, list[RefusedCall]()
        if campaign.version != proposal.known.version:  # this very moment
            known = await self._refresh(session, campaign, work, proposal.known)
            drafter, again = _drafted(work, known, proposal.shown, proposal.calls)
        query = select(Message).where(Message.id.in_(work.message_ids))
        messages = {message.position: message for message in await session.scalars(query)}
        writer = CompactionWriter(
            session=session,
            sealer=self.sealer,
            campaign=campaign,
            messages=messages,
            audience=work.window.audience,
            refused=[*proposal.refused, *again],
        )
        if work.chronicle_id is None:
            await writer.change(chat, drafter.drafts, since=work.window.since)
        else:
            chronicle = ChronicleWriter(
                session=session,
                sealer=self.sealer,
                clock=self.runtime.clock,
                chat=chat,
                chronicle_id=work.chronicle_id,
                messages=messages,
                audience=work.window.audience,
                run_id=work.run_id,
                effects=writer.effects,
                refused=writer.refused,
            )
            has_day = any(draft.kind == "world" for draft in drafter.drafts)
            timed = await chronicle.find_timed() if has_day else ()
            await writer.change(chat, drafter.drafts, since=work.window.since)
            await chronicle.move(timed)
            await chronicle.add(drafter.events, seen=proposal.seen)
            await update_index(session, self.runtime.index, work.reader, chronicle.changed)
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
            significant=bool(writer.effects),
            effects=writer.effects,
            refused=writer.refused,
            note=proposal.note,
        )


async def _use(drafter: Drafter, call: ToolCall, events: KnownEvents | None) -> RefusedCall | None:
    """Use a call, unless its event is written already; return why it is refused."""
    problem = drafter.use(call)
    if problem is None and events is not None and call.name == EVENT_TOOL:
        *before, event = drafter.events
        problem = await events.check(event, before)
        if problem is not None:
            drafter.events.remove(event)
    return problem


def _drafted(
    work: CompactionWork, known: KnownWorld, shown: ShownWorld, calls: Sequence[ToolCall] = ()
) -> tuple[Drafter, list[RefusedCall]]:
    """What calls come to in a state, and what is wrong with those that can't be. CPU-bound.

    Lines are named by the numbers that they were shown with.
    """
    positions = {position + 1: position for position in work.window.positions}
    player = work.reader.player
    drafter = Drafter(
        known,
        shown.references,
        positions,
        audience=work.window.audience,
        text="\n".join(work.window.lines),
        player_id=player.id if player else None,
        player_names=work.window.player_names,
    )
    return drafter, [problem for call in calls if (problem := drafter.use(call))]


async def _asked(
    model: ChatModel, prompt: Prompt, tools: Sequence[Tool], work: CompactionWork
) -> tuple[list[ToolCall], str]:
    """The calls of one answer, and its text, by whichever way the model can call."""
    calls: list[ToolCall] = []
    text, usage = "", None
    try:
        async with aclosing(
            stream_with_tools(model, prompt, tools, work.reader.sampling_of(model, WRITES_TOKENS))
        ) as pieces:
            async for piece in pieces:
                match piece:
                    case TextPiece(said):
                        text += said
                    case TextReset():
                        text = ""
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
    if not (calls or text.strip() or prompt.rounds):
        raise ModelEmptyReplyError("It wrote thoughts and nothing else.")
    if not (calls or prompt.rounds):
        check_declined(text)
    return calls, text
