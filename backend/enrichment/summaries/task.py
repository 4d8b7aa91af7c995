"""The job that extends the rolling summary before the history loses messages.

In a campaign with hidden information each audience with news has its own summary. In a group the
summary has pieces, which end where presence changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.state.viewpoints import hides_information, read_marks
from backend.chats.members import Group, load_group
from backend.chats.models import Chat, Message
from backend.core.audience import GM, PUBLIC, Viewpoint, encode_viewpoint, intersect_audiences
from backend.enrichment.cleaning import clean_text, strip_tags
from backend.enrichment.pipeline import (
    MAX_BLOCKED_ATTEMPTS,
    EnrichmentRuntime,
    PathChangedError,
    RunRecovery,
    RunWork,
    Task,
)
from backend.enrichment.reader import open_budget
from backend.enrichment.runs.store import RunDetail
from backend.enrichment.story import is_path_unchanged, read_lines, render_line
from backend.enrichment.summaries.pieces import (
    PRIVATE_LINES,
    Pieces,
    find_next_piece,
    join_pieces,
    load_pieces,
)
from backend.enrichment.summaries.store import (
    MAX_SUMMARY_CHARS,
    PathPlace,
    StoredSummary,
    find_current_summary,
    find_goal,
    find_next_audience,
    find_round_goal,
    list_active_summaries,
    list_own_columns,
    read_summary_settings,
    store_summary,
)
from backend.generation.declined_answers import check_declined
from backend.generation.model import (
    ModelBlockedError,
    ModelDeclinedError,
    ModelEmptyReplyError,
    ModelError,
)
from backend.generation.registry import UnknownModelError
from backend.jobs.running import RunningJob
from backend.llm.answers import CHARACTERS_PER_TOKEN, build_prompt, collect

MAX_LENGTH_FACTOR = 3
"""An answer may have this many times the requested words."""

TOKENS_PER_WORD = 2

MIN_STEP_TOKENS = 500
"""Minimum stored tokens of new lines in one call, for models with tiny windows."""

CHARS_PER_WORD = 7
"""Estimate for long words and the space after them."""

SKIPPED_NOTE = "The model returned nothing for these messages. The summary skips them."

MIN_PIECE_WORDS = 30

WORDS_READ = 2
"""A piece of a short stretch has at most one word for so many that were read."""


class SummaryStep(NamedTuple):
    """The summary to extend: lines after `after` through `through`, on the way to `goal`.

    `previous` is its latest version. `audience` is that of the summary; None means everyone who may
    know all of it. It covers the path from `begins_at`.
    """

    viewpoint: Viewpoint
    previous: StoredSummary | None
    goal: int
    after: int
    through: int
    begins_at: int = 0
    audience: str | None = None


Next = tuple[Viewpoint, StoredSummary | None, int | None]
"""The viewpoint of the summary, its latest version, and the position that it is to reach."""


@dataclass(frozen=True, kw_only=True)
class SummaryWork(RunWork):
    """The lines of one call of the model: those after `previous`, oldest first.

    `versions` are the messages of the lines and the times of their last edits. `goal` is the
    position to reach in the end. `viewpoint` may know all lines. `audience` is that of the summary,
    in the form of the database column; None means everyone who may know all of it. Without lines,
    `previous` is the text of pieces to combine, whose ids and revisions are `combined`.
    """

    viewpoint: Viewpoint
    audience: str | None
    previous: StoredSummary | None
    versions: Sequence[tuple[UUID, datetime]]
    lines: Sequence[str]
    goal: int
    words: int
    after: int = -1
    begins_at: int = 0
    is_piece: bool = False
    combined: Sequence[tuple[UUID, int]] = ()


class SummaryTask(Task[SummaryWork, str]):
    """Extends a chat's summary as far as its history needs it.

    Each step is a row that continues the one before. Lines for which the model returns nothing are
    skipped in the end. The job of the next reply does the rest.
    """

    kind = "summary"
    task = "summary"
    use = "summary"

    def __init__(self, runtime: EnrichmentRuntime, job: RunningJob) -> None:
        super().__init__(runtime, job)
        self._is_begun = False

    async def load(self, session: AsyncSession, chat: Chat) -> SummaryWork | None:
        """Load the next lines up to the goal.

        Returns None if the unit of the chat's tokens has changed, because the job's budget is in
        the old unit. The next reply queues a new job.
        """
        wanted = await read_summary_settings(session, self.sealer, chat)
        if not wanted.enabled or chat.count_unit != self.job.payload["count_unit"]:
            return None
        group = await load_group(session, chat.id)
        pieces = await load_pieces(session, self.sealer, group) if group.is_group else None
        step = (
            await self._choose_piece(session, chat, pieces, wanted.interval)
            if pieces is not None
            else await self._choose_next(session, chat, wanted.interval)
        )
        has_cuts = pieces is not None and len(pieces.stretches) > 1
        if step is None:
            return await self._load_combination(session, chat, pieces, wanted.words)
        budget = await open_budget(session, self.runtime.settings, self.sealer.user_id)
        reader = await self.load_reader(session, chat)
        most = max(MIN_STEP_TOKENS, reader.stretch_tokens)
        viewpoint, previous = step.viewpoint, step.previous
        rows = await read_lines(
            session, chat, after=step.after, through=step.through, most=most, viewpoint=viewpoint
        )
        if not rows:
            return None
        known = intersect_audiences([row.audience for row in rows])
        marks = await read_marks(session, self.sealer, chat.campaign_id, known)
        lines = [render_line(reader, row, most * CHARACTERS_PER_TOKEN, marks) for row in rows]
        read = sum(map(len, lines)) + len(previous.text if previous else "")
        fewer = max(MIN_PIECE_WORDS, read // (WORDS_READ * CHARS_PER_WORD))
        return SummaryWork(
            reader=reader,
            budget=budget,
            message_ids=[row.id for row in rows],
            from_position=rows[0].position,
            to_position=rows[-1].position,
            previous=previous,
            versions=[(row.id, row.updated_at) for row in rows],
            lines=lines,
            goal=step.goal,
            words=min(wanted.words, fewer) if has_cuts else wanted.words,
            viewpoint=viewpoint,
            audience=step.audience,
            after=step.after,
            begins_at=step.begins_at,
            is_piece=pieces is not None,
        )

    async def _choose_next(
        self, session: AsyncSession, chat: Chat, interval: int
    ) -> SummaryStep | None:
        """Return the next step in a chat that is no group."""
        is_hiding = await hides_information(session, self.sealer, chat)
        if is_hiding:
            viewpoint, current, goal = await self._choose_audience(session, chat, interval)
        else:
            viewpoint, current = GM, await find_current_summary(session, self.sealer, chat)
            goal = await self._find_goal(session, chat, current, interval)
        if goal is None:
            return None
        after = current.position if current else -1
        audience = encode_viewpoint(viewpoint) if is_hiding else None
        return SummaryStep(viewpoint, current, goal, after, goal, audience=audience)

    async def _choose_piece(
        self, session: AsyncSession, chat: Chat, pieces: Pieces, interval: int
    ) -> SummaryStep | None:
        """Return the next step in a group."""
        reached = pieces.deepest
        goal = await self._find_goal(session, chat, reached, interval)
        if goal is None and reached is not None:
            goal = reached.position
        if goal is None:
            return None
        is_hiding = await hides_information(session, self.sealer, chat)
        found = await find_next_piece(
            session,
            self.sealer,
            chat,
            pieces,
            through=goal,
            private_lines=1 if is_hiding else PRIVATE_LINES,
        )
        if found is None:
            return None
        previous, stretch = found.previous, found.stretch
        own = list_own_columns(found.viewpoint)
        return SummaryStep(
            found.viewpoint,
            previous,
            goal,
            after=previous.position if previous else stretch.begin - 1,
            through=min(goal, stretch.end - 1),
            begins_at=previous.begins_at if previous else stretch.begin,
            audience=own[0] if own else PUBLIC,
        )

    async def _load_combination(
        self, session: AsyncSession, chat: Chat, pieces: Pieces | None, words: int
    ) -> SummaryWork | None:
        """Load old pieces to combine, once all lines are summarised."""
        found = pieces.find_combinable() if pieces is not None else None
        if pieces is None or found is None:
            return None
        old, audience = found
        joined = await join_pieces(session, self.sealer, pieces.group, old)
        if joined is None:
            return None
        return SummaryWork(
            reader=await self.load_reader(session, chat),
            budget=await open_budget(session, self.runtime.settings, self.sealer.user_id),
            message_ids=[old[-1].message_id],
            from_position=old[0].begins_at,
            to_position=old[-1].position,
            previous=joined,
            versions=(),
            lines=(),
            goal=old[-1].position,
            words=words,
            viewpoint=GM,
            audience=audience,
            begins_at=old[0].begins_at,
            is_piece=True,
            combined=[(each.id, each.revision) for each in old],
        )

    async def _choose_audience(self, session: AsyncSession, chat: Chat, interval: int) -> Next:
        furthest = await list_active_summaries(session, self.sealer, chat, limit=1)
        reached = furthest[0] if furthest else None
        goal = await self._find_goal(session, chat, reached, interval)
        if goal is None and reached is not None:
            goal = reached.position
        if goal is None:
            return GM, None, None
        found = await find_next_audience(session, self.sealer, chat, through=goal)
        return (*found, goal) if found else (GM, None, None)

    async def _find_goal(
        self, session: AsyncSession, chat: Chat, current: PathPlace | None, interval: int
    ) -> int | None:
        """Return the position through which the path should be summarised; None if it is."""
        budget = self.job.payload["history_budget"]
        goal = await find_goal(
            session,
            chat,
            current,
            history_budget=budget,
            interval=interval,
            is_begun=self._is_begun,
        )
        if chat.campaign_id is None:
            return goal
        rounds = await find_round_goal(session, chat, current, interval=interval)
        return max((each for each in (goal, rounds) if each is not None), default=None)

    def output_tokens(self, work: SummaryWork) -> int:
        """Return `MAX_LENGTH_FACTOR` times the tokens of the length that the user chose."""
        return work.words * MAX_LENGTH_FACTOR * TOKENS_PER_WORD

    async def propose(self, work: SummaryWork) -> str:
        """Let the model write the summary."""
        model = work.reader.model
        prompts = self.runtime.prompts
        system = prompts["enrichment/summary"].render(words=work.words)
        lines = prompts["enrichment/summary_lines"].render(
            previous=strip_tags(work.previous.text) if work.previous else "",
            lines=work.lines,
            words=work.words,
        )
        prompt = build_prompt(system, lines)
        sampling = work.reader.build_sampling(model, self.output_tokens(work))
        answer = await collect(model.stream(prompt, sampling), prompt, work.budget)
        text = clean_text(
            answer.text, min(MAX_SUMMARY_CHARS, work.words * MAX_LENGTH_FACTOR * CHARS_PER_WORD)
        )
        if not text:
            raise ModelEmptyReplyError
        check_declined(text)
        return text

    async def apply(
        self, session: AsyncSession, chat: Chat, work: SummaryWork, proposal: str
    ) -> RunDetail:
        """Store the text as the summary through the lines."""
        await self._store(session, chat, work, proposal, run_id=work.run_id)
        self._is_begun = True
        return RunDetail(message_ids=list(work.message_ids), significant=True)

    async def recover(
        self, session: AsyncSession, work: SummaryWork, error: Exception
    ) -> RunRecovery:
        """Retry if that may help. Other errors are only recorded in the run."""
        match error:
            case PathChangedError():
                return RunRecovery()
            case ModelBlockedError() | ModelDeclinedError() | ModelEmptyReplyError():
                if self.job.attempt < MAX_BLOCKED_ATTEMPTS:
                    return RunRecovery(raises=error)
                # Otherwise no later line would ever be summarised.
                is_passed = await self._skip_lines(session, work)
                return RunRecovery(is_over=True, note=SKIPPED_NOTE if is_passed else "")
            case UnknownModelError() | ModelError(retryable=False):
                return RunRecovery(is_over=True)
            case _:
                return RunRecovery(raises=error)

    async def _skip_lines(self, session: AsyncSession, work: SummaryWork) -> bool:
        """Store the old summary with a note that lines are missing after it.

        Pieces are combined unchanged.
        """
        before = work.previous.text[:MAX_SUMMARY_CHARS] if work.previous else ""
        missing = self.runtime.prompts["sections/omitted"].render(count=len(work.lines))
        whole = f"{before}\n{missing}".strip() if work.lines else before
        text = whole if len(whole) <= MAX_SUMMARY_CHARS else before
        chat = await self.lock_chat(session)
        if chat is None:
            return False
        try:
            await self._store(session, chat, work, text, run_id=None)
        except PathChangedError:
            return False
        return True

    async def _store(
        self,
        session: AsyncSession,
        chat: Chat,
        work: SummaryWork,
        text: str,
        *,
        run_id: UUID | None,
    ) -> None:
        """Store a summary. Raises `PathChangedError` if it is no longer wanted.

        That is so if the path was left, if a line was continued, hidden or shown, if the previous
        summary has changed, or if others were there than it seemed.
        """
        message = await session.get(Message, work.message_ids[-1])
        group = await load_group(session, chat.id)
        if (
            message is None
            or not (await read_summary_settings(session, self.sealer, chat)).enabled
            or group.is_group != work.is_piece
            or not await self._is_current(session, chat, group, work)
        ):
            raise PathChangedError
        await store_summary(
            session,
            self.sealer,
            message,
            text,
            begins_at=work.begins_at,
            audience=work.audience,
            run_id=run_id,
        )
        await self.job.progress(work.to_position + 1, work.goal + 1)

    async def _is_current(
        self, session: AsyncSession, chat: Chat, group: Group, work: SummaryWork
    ) -> bool:
        """True if the summary that is extended, and the lines after it, are unchanged."""
        if not work.is_piece:
            current = await find_current_summary(
                session, self.sealer, chat, viewpoint=work.viewpoint
            )
            version = _get_version(current)
        else:
            pieces = await load_pieces(session, self.sealer, group)
            if work.combined:
                found = pieces.find_combinable()
                return found is not None and (
                    [(each.id, each.revision) for each in found[0]],
                    found[1],
                ) == (work.combined, work.audience)
            stretch = pieces.find_stretch(work.to_position)
            chosen = pieces.choose_here(work.viewpoint, stretch)
            version = (chosen[-1].id, chosen[-1].revision) if chosen else None
            if not stretch.begin <= work.begins_at <= work.from_position < stretch.end:
                return False
        return version == _get_version(work.previous) and await is_path_unchanged(
            session, chat, work.versions, after=work.after, viewpoint=work.viewpoint
        )


def _get_version(summary: StoredSummary | None) -> tuple[UUID, int] | None:
    return (summary.id, summary.revision) if summary else None
