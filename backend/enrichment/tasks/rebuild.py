"""The job that rebuilds a chronicle: the agent reads a chat again from the start, batch by batch.

Each batch is a run. It deletes what the agent wrote of the batch before, writes its new findings,
and stores the begin of the next batch in the job's payload. If the job is stopped or its process is
killed, finished batches are kept and the rest is unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import exists, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.chats.models import Chat, Message
from backend.chronicles import event_writer as writing
from backend.chronicles.models import ChronicleEvent, EventSource
from backend.chronicles.repository import counting, get_chronicle, open_event
from backend.database.base import split_chunks
from backend.enrichment.agent.agent import EVENT_KIND_NAMES, MAX_CALLS
from backend.enrichment.agent.proposals import AgentResult
from backend.enrichment.agent.tools import TOOLS, TRIAGE_SCHEMA
from backend.enrichment.errors import ChronicleNotEnabledError, OtherChronicleError
from backend.enrichment.pipeline import (
    MAX_BLOCKED_ATTEMPTS,
    SKIPPABLE_ERRORS,
    PathChangedError,
    RunRecovery,
)
from backend.enrichment.runs.effects import build_effect
from backend.enrichment.runs.store import RunDetail, RunEffect
from backend.enrichment.schemas import AmountRange
from backend.enrichment.story import (
    EARLIER_LINES,
    EARLIER_TOKENS,
    PathRange,
    find_unread_position,
    read_range,
)
from backend.enrichment.tasks.turn import StudyTask, StudyWork
from backend.errors import AppError
from backend.generation.registry import UnknownModelError
from backend.jobs.errors import RetryLaterError
from backend.jobs.running import draw_delay
from backend.llm.answers import CHARACTERS_PER_TOKEN
from backend.lorebooks import authoring
from backend.lorebooks.models import Lorebook, LoreEntryRow
from backend.prompts import PromptLibrary
from backend.vault.sealing import Sealer

_MAX_TITLE = 200
"""Maximum characters of an event's summary as its title."""

_REBUILT = "replaced by a rebuild"
_SUPERSEDER_REPLACED = "the event that superseded it was replaced by a rebuild"


async def find_replaced_events(session: AsyncSession, place: PathRange) -> list[UUID]:
    """Return the events that a rebuild replaces: by the agent, from this chat alone, in the range.

    Events of other branches and of hidden lines are kept, because a rebuild reads nothing that
    could replace them. So are events that were also told on another branch, and those that a user
    has changed or pinned. An event that was told again belongs to the range of its last telling.
    """
    source, told, message = aliased(EventSource), aliased(EventSource), aliased(Message)
    last = (
        select(func.max(source.position))
        .where(source.event_id == ChronicleEvent.id)
        .scalar_subquery()
    )
    elsewhere = exists().where(
        EventSource.event_id == ChronicleEvent.id, EventSource.chat_id != place.chat_id
    )
    hidden = exists().where(
        source.event_id == ChronicleEvent.id, Message.id == source.message_id, Message.hidden
    )
    on_branch = exists().where(
        told.event_id == ChronicleEvent.id,
        ~exists().where(message.id == told.message_id, message.is_active),
    )
    query = select(ChronicleEvent.id).where(
        ChronicleEvent.chronicle_id == place.chronicle_id,
        ChronicleEvent.user_id == place.owner_id,
        ChronicleEvent.source == "agent",
        ~ChronicleEvent.is_edited,
        ~ChronicleEvent.is_pinned,
        ~elsewhere,
        ~hidden,
        ~on_branch,
        last.between(place.from_position, place.to_position),
        counting(),
    )
    return list(await session.scalars(query.order_by(ChronicleEvent.id)))


async def find_replaced_entries(session: AsyncSession, place: PathRange) -> list[UUID]:
    """Return the agent's own entries in the chronicle's lorebook that come from the range."""
    query = select(LoreEntryRow.id).where(
        LoreEntryRow.lorebook_id.in_(
            select(Lorebook.id).where(
                Lorebook.chronicle_id == place.chronicle_id, Lorebook.match_owner(place.owner_id)
            )
        ),
        LoreEntryRow.agent_revision == LoreEntryRow.revision,
        LoreEntryRow.source_chat_id == place.chat_id,
        exists().where(
            Message.id == LoreEntryRow.source_message_id,
            Message.is_active,
            ~Message.hidden,
            Message.position.between(place.from_position, place.to_position),
        ),
    )
    return list(await session.scalars(query.order_by(LoreEntryRow.id)))


async def remove_replaced(
    session: AsyncSession, sealer: Sealer, place: PathRange
) -> list[RunEffect]:
    """Delete the events and entries to replace. Return the effects in order.

    The caller has locked the chat and the chronicle, and updates the index.
    """
    effects = await _remove_events(session, sealer, await find_replaced_events(session, place))
    return effects + await _remove_entries(session, sealer, place)


async def _remove_events(
    session: AsyncSession, sealer: Sealer, event_ids: Sequence[UUID]
) -> list[RunEffect]:
    removed: list[RunEffect] = []
    kept: list[RunEffect] = []
    heirs: dict[UUID, UUID | None] = {}
    for ids in split_chunks(event_ids):
        doomed = await session.scalars(
            select(ChronicleEvent)
            .where(ChronicleEvent.id.in_(ids))
            .order_by(ChronicleEvent.happened_at, ChronicleEvent.place, ChronicleEvent.id)
        )
        for row in doomed.all():
            heirs[row.id] = row.superseded_by
            before = await writing.snapshot(session, sealer, row)
            title = open_event(sealer, row).summary[:_MAX_TITLE]
            removed.append(
                build_effect(row, "event_removed", title=title, because=_REBUILT, before=before)
            )
    for ids in split_chunks(event_ids):
        others = await session.scalars(
            select(ChronicleEvent).where(
                ChronicleEvent.superseded_by.in_(ids), ChronicleEvent.id.not_in(event_ids)
            )
        )
        for row in others.all():
            before = await writing.snapshot(session, sealer, row)
            by = row.superseded_by
            while by is not None and by in heirs:
                by = heirs[by]
            await writing.supersede(session, row, by)
            title = open_event(sealer, row).summary[:_MAX_TITLE]
            kept.append(
                build_effect(
                    row, "event_changed", title=title, because=_SUPERSEDER_REPLACED, before=before
                )
            )
    await writing.remove_events(session, event_ids, owner_id=sealer.user_id)
    return kept + removed


async def _remove_entries(
    session: AsyncSession, sealer: Sealer, place: PathRange
) -> list[RunEffect]:
    book = await authoring.find_chronicle_book(
        session, place.chronicle_id, owner_id=place.owner_id, lock=True
    )
    if book is None:
        return []
    ids = await find_replaced_entries(session, place)
    rows = await session.scalars(
        select(LoreEntryRow).where(LoreEntryRow.id.in_(ids)).order_by(LoreEntryRow.id)
    )
    effects: list[RunEffect] = []
    for row in rows.all():
        before = authoring.snapshot(sealer, row)
        title = before["entry"].get("title", "")
        effects.append(
            build_effect(row, "entry_removed", title=title, because=_REBUILT, before=before)
        )
        await authoring.remove_entry(session, book, row)
    return effects


_MARK_TOKENS = 4
"""Estimated tokens of the mark before each line."""
_KNOWN_TOKENS = 1_500
"""Estimated tokens of known events, lore and old lines in the prompt."""
_ROUND_TOKENS = 400
"""Estimated tokens of one round: calls and results."""
_TRIAGE_TOKENS = 60
"""Estimated tokens of the triage's answer."""


class RebuildCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of written events and entries, and of replaced ones."""

    events: int = 0
    entries: int = 0
    replaced: int = 0

    def plus(self, effects: Sequence[RunEffect]) -> RebuildCounts:
        """Return the counts with the effects of a batch added."""
        kinds = [effect.what for effect in effects]
        return RebuildCounts(
            events=self.events + kinds.count("event_created"),
            entries=self.entries + kinds.count("entry_created"),
            replaced=self.replaced + kinds.count("event_removed") + kinds.count("entry_removed"),
        )


class RebuildState(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a rebuild, as the payload of its job. It contains no texts.

    `next` is the first position of the next batch. `done` and `total` count messages, `failures`
    the failed attempts of the next batch.
    """

    chat_id: UUID
    chronicle_id: UUID
    next: int
    to_position: int
    done: int = 0
    total: int = 0
    failures: int = 0
    counts: RebuildCounts = RebuildCounts()

    def to_payload(self) -> dict[str, Any]:
        """Return the payload of the job."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built


class RebuildTask(StudyTask):
    """Lets the agent read a whole chat again, and replaces its own events and entries.

    It ends early if the chat was deleted, uses another chronicle, or its owner withdrew consent.
    The job then has the error. A batch that keeps failing uses up the job's attempts.
    """

    kind = "rebuild"

    async def load(self, session: AsyncSession, chat: Chat) -> StudyWork | None:
        """Load the next batch. The agent does not see the events and entries to replace."""
        state = self._state
        if chat.chronicle_id != state.chronicle_id:
            raise OtherChronicleError
        if not chat.chronicle_enabled:
            raise ChronicleNotEnabledError
        reader = await self.load_reader(session, chat)
        rest = self._get_range(state.to_position)
        doomed = [
            *await find_replaced_events(session, rest),
            *await find_replaced_entries(session, rest),
        ]
        stretch = await read_range(
            session,
            reader,
            chat,
            rest,
            left_alone=frozenset(doomed),
        )
        return None if stretch is None else await self.new_work(session, reader, stretch)

    async def apply(
        self, session: AsyncSession, chat: Chat, work: StudyWork, proposal: AgentResult
    ) -> RunDetail:
        """Replace the old events and entries of the batch."""
        await self.check_wanted(session, chat, work)
        place = self._get_range(work.to_position)
        await get_chronicle(session, place.chronicle_id, owner_id=place.owner_id, lock=True)
        removed = await remove_replaced(session, self.sealer, place)
        # Events that later batches replace are like the new ones, and are not in their way.
        later = await find_replaced_events(session, self._get_range(self._state.to_position))
        proposal = replace(proposal, seen={*proposal.seen, *later})
        detail = await self.write(session, work, proposal, removed)
        # If earlier messages are unread, no mark is set, or the agent would never read them.
        if await find_unread_position(session, chat.id) >= place.from_position:
            await self.set_mark(session, work)
        await self._store_progress(work, detail.effects)
        return detail

    async def recover(
        self,
        session: AsyncSession,  # noqa: ARG002  # the job's payload is all that changes
        work: StudyWork,
        error: Exception,
    ) -> RunRecovery:
        """Retry the batch later, or skip it if it never gets an answer.

        Failures are counted for each batch, because a long chat has many batches and a job has few
        attempts.
        """
        if not isinstance(error, AppError):
            return RunRecovery(raises=error)
        if isinstance(error, UnknownModelError):  # waiting does not help
            return RunRecovery(is_over=True)
        failures = self._state.failures + 1
        if isinstance(error, SKIPPABLE_ERRORS) and failures >= MAX_BLOCKED_ATTEMPTS:
            await self._store_progress(work, ())
            return RunRecovery()
        state = msgspec.structs.replace(self._state, failures=failures)
        self.job.checkpoint(state.to_payload())
        if isinstance(error, PathChangedError) and failures == 1:
            return RunRecovery()
        wait = draw_delay(failures, self.runtime.draw)
        if wait is None:
            return RunRecovery(raises=error)
        return RunRecovery(raises=RetryLaterError(error.title, after=wait.total_seconds()))

    @property
    def _state(self) -> RebuildState:
        return msgspec.convert(self.job.payload, RebuildState)

    def _get_range(self, to_position: int) -> PathRange:
        state = self._state
        return PathRange(
            owner_id=self.sealer.user_id,
            chat_id=state.chat_id,
            chronicle_id=state.chronicle_id,
            from_position=state.next,
            to_position=to_position,
        )

    async def _store_progress(self, work: StudyWork, effects: Sequence[RunEffect]) -> None:
        """Store in the job that the next batch begins after this one. Call it within a step."""
        state = self._state
        done = state.done + len(work.stretch.lines)
        state = msgspec.structs.replace(
            state,
            next=work.to_position + 1,
            done=done,
            total=done if work.stretch.is_last else max(state.total, done),
            failures=0,
            counts=state.counts.plus(effects),
        )
        self.job.checkpoint(state.to_payload())
        await self.job.progress(done, state.total)


class RebuildCost(NamedTuple):
    """Calls and tokens, from nothing to record to the maximum of every batch."""

    calls: AmountRange
    prompt_tokens: AmountRange
    completion_tokens: AmountRange


def estimate_cost(
    batches: Sequence[Sequence[int]], prompts: PromptLibrary, *, most_writes: int, per_run: int
) -> RebuildCost:
    """Estimate the cost of reading a chat.

    Args:
        batches: The tokens of the lines of each batch.
        prompts: The instructions of the agent.
        most_writes: Maximum writes of one run.
        per_run: Maximum tokens of one run. Its first call is always made.
    """
    kinds = EVENT_KIND_NAMES
    frame = prompts["enrichment/story"].render(
        events=[], entries=[], messages=[], earlier=[], lines=[]
    )
    question = _count_tokens(
        prompts["enrichment/triage"].render(kinds=kinds), frame, msgspec.json.encode(TRIAGE_SCHEMA)
    )
    task = _count_tokens(
        prompts["enrichment/agent"].render(
            kinds=kinds, most_writes=most_writes, most_calls=MAX_CALLS - 1
        ),
        frame,
        *(msgspec.json.encode(tool.parameters) for tool in TOOLS),
        *(tool.description for tool in TOOLS),
    )
    steps = MAX_CALLS - 1
    least = most = 0
    before: list[int] = []
    for batch in batches:
        lines = sum(batch) + _MARK_TOKENS * len(batch) + _count_earlier(before)
        first = question + lines
        loop = steps * (task + lines + _KNOWN_TOKENS) + _ROUND_TOKENS * steps * (steps - 1) // 2
        least += first
        most += max(first, min(first + loop, per_run))
        before = [*before, *batch][-EARLIER_LINES:]
    count = len(batches)
    return RebuildCost(
        calls=AmountRange(least=count, most=count * MAX_CALLS),
        prompt_tokens=AmountRange(least=least, most=most),
        completion_tokens=AmountRange(
            least=count * _TRIAGE_TOKENS, most=count * (_TRIAGE_TOKENS + steps * _ROUND_TOKENS)
        ),
    )


def _count_earlier(tokens: Sequence[int]) -> int:
    total = 0
    for each in reversed(tokens):
        if total + each > EARLIER_TOKENS:
            break
        total += each + _MARK_TOKENS
    return total


def _count_tokens(*texts: str | bytes) -> int:
    return sum(map(len, texts)) // CHARACTERS_PER_TOKEN
