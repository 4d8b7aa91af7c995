"""The job that brings a campaign up to date with unread messages of a chat."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger.records import find_campaign, open_campaign
from backend.campaigns.models import Campaign, CampaignMark
from backend.campaigns.rules.protocol import is_unsettled
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
from backend.enrichment.compaction.tools import EVENT_TOOL, build_tools
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
    Tool,
    ToolAnswer,
    ToolCall,
)
from backend.generation.tools.streams import stream_with_tools
from backend.jobs.errors import RetryLaterError
from backend.llm.answers import collect, run_tool_loop

MAX_CALLS = 3
"""Maximum calls of the model in one run. It is asked again if calls were refused."""

WAIT_SECONDS = 900.0
"""The longest wait for the end of an action, if no turn ends it earlier."""

LANE_SECONDS = 300.0
"""The longest time for which other jobs of the campaign wait for this one."""

CHARACTERS_AN_ITEM = 200
"""CPU cost of the names of an item, as characters of a text."""

MAX_WRITES = 40
WRITES_TOKENS = 4_096
"""For an answer with up to 40 calls of about 100 tokens."""
MAX_EVENTS = 20
"""Maximum known events that are shown, the latest ones."""


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class CompactionWork(RunWork):
    """Unread messages of one audience, and the items that it may know."""

    campaign_id: UUID
    window: MessageWindow
    known: KnownWorld


@dataclass(frozen=True, slots=True)
class CompactionProposal:
    """The accepted calls in order, and their changes of the state `known`.

    `shown` contains the references of the prompt. `seen` are the events that new events were
    compared with.
    """

    calls: Sequence[ToolCall]
    refused: Sequence[RefusedCall]
    shown: ShownWorld
    known: KnownWorld
    drafter: Drafter
    seen: Collection[UUID]
    note: str = ""


class CompactionTask(Task[CompactionWork, CompactionProposal]):
    """Reads the unread messages of a chat, one audience after the other."""

    kind = "compaction"
    task = "compaction"

    async def run(self) -> None:
        """Fold the campaign first, because a crash may have left it stale. See `Task.run`."""
        await self.fold_campaign()
        await super().run()

    async def load(self, session: AsyncSession, chat: Chat) -> CompactionWork | None:
        """Load unread messages, and the state as their audience knows it.

        Raises `RetryLaterError` during an action or a fight, because its outcome is open.
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
        reader = await self.load_reader(session, chat)
        window = await read_window(session, reader, chat)
        if window is None:
            return None
        known = await read_world(
            session,
            self.sealer,
            campaign,
            self.runtime.names,
            [*window.earlier, *window.lines],
            listeners=window.listeners,
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
        """Let the model call tools. If calls are refused, it gets the reasons and may try again."""
        model, window = work.reader.model, work.window
        text = "\n".join([*window.earlier, *window.lines])
        shown = await self._run_in_pool(work.known, partial(render_world, work.known, text), text)
        events = await self._load_known_events(work)
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
        drafter, _ = await self._run_in_pool(
            work.known, partial(_draft_changes, work, work.known, shown)
        )
        calls: list[ToolCall] = []
        refused: list[RefusedCall] = []

        async def execute(asked: Sequence[ToolCall]) -> Sequence[Any] | None:
            results: list[Any] = []
            async for call in iterate_in_slices(asked):
                problem = await _apply_call(drafter, call, events)
                results.append({"error": problem.reason} if problem else {"ok": True})
                if problem is None:
                    calls.append(call)
                else:
                    refused.append(problem)
            return None if all("ok" in each for each in results) else results

        await run_tool_loop(
            opening,
            partial(_ask_for_calls, model, tools, work),
            execute,
            budget=work.budget,
            max_calls=MAX_CALLS,
            tolerated=ModelError,
        )
        known = await self._reload_known(work)
        if known is not work.known:
            read = partial(_draft_changes, work, known, shown, calls)
            drafter, again = await self._run_in_pool(known, read)
            refused += again
        note = DEMO_NOTE if model.spec.provider == "demo" else ""
        seen = events.seen if events else frozenset[UUID]()
        return CompactionProposal(calls, refused, shown, known, drafter, seen, note)

    async def _load_known_events(self, work: CompactionWork) -> KnownEvents | None:
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
            listeners=work.window.listeners,
            marks=work.known.marks,
        )

    async def _reload_known(self, work: CompactionWork) -> KnownWorld:
        """Reload the state, because play may have gone on while the model was working."""
        async with self.runtime.database.read() as session:
            campaign = await find_campaign(session, self.sealer, work.campaign_id)
            if campaign is None or campaign.is_stale or campaign.version == work.known.version:
                return work.known
            return await self._refresh(session, campaign, work, work.known)

    async def _refresh(
        self, session: AsyncSession, campaign: Campaign, work: CompactionWork, known: KnownWorld
    ) -> KnownWorld:
        listeners = work.window.listeners
        return await refresh_world(session, self.sealer, campaign, known, listeners=listeners)

    async def _run_in_pool(self, known: KnownWorld, read: Callable[[], T], text: str = "") -> T:
        """Run CPU-bound work in the pool. It takes longer in larger campaigns."""
        size = len(text) + CHARACTERS_AN_ITEM * len(known.items)
        return await self.runtime.agent.pool.run(self.sealer.user_id, read, size=size, is_job=True)

    async def apply(
        self,
        session: AsyncSession,
        chat: Chat,
        work: CompactionWork,
        proposal: CompactionProposal,
    ) -> RunDetail:
        """Write all changes as one version of the campaign, and mark the messages as read.

        Each change and each event belongs to its source message. Calls are resolved again if the
        campaign has changed.
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
        if campaign.version != proposal.known.version:
            known = await self._refresh(session, campaign, work, proposal.known)
            drafter, again = _draft_changes(work, known, proposal.shown, proposal.calls)
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
                audience=work.window.heard,
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


async def _apply_call(
    drafter: Drafter, call: ToolCall, events: KnownEvents | None
) -> RefusedCall | None:
    """Add a call, unless it repeats a recorded event. Return the reason if it is refused."""
    problem = drafter.use(call)
    if problem is None and events is not None and call.name == EVENT_TOOL:
        *before, event = drafter.events
        problem = await events.check(event, before)
        if problem is not None:
            drafter.events.remove(event)
    return problem


def _draft_changes(
    work: CompactionWork, known: KnownWorld, shown: ShownWorld, calls: Sequence[ToolCall] = ()
) -> tuple[Drafter, list[RefusedCall]]:
    """Return the changes of calls in a state, and the refused calls. CPU-bound.

    Lines are named by the numbers that the model was shown.
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


async def _ask_for_calls(
    model: ChatModel, tools: Sequence[Tool], work: CompactionWork, prompt: Prompt
) -> ToolAnswer:
    """Return one answer with its calls. It is streamed, because it may be long."""
    sampling = work.reader.build_sampling(model, WRITES_TOKENS)
    answer = await collect(stream_with_tools(model, prompt, tools, sampling), prompt, work.budget)
    if not (answer.calls or answer.text.strip() or prompt.rounds):
        raise ModelEmptyReplyError("It wrote thoughts and nothing else.")
    if not (answer.calls or prompt.rounds):
        check_declined(answer.text)
    return answer
