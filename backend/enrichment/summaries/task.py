"""The rolling summary: the job behind the reply that keeps it ahead of what history loses.

In a campaign with hidden information each audience that has news gets one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.state.viewpoints import hides_information, read_marks
from backend.chats.models import Chat, Message
from backend.core.audience import GM, Viewpoint, encode_viewpoint, intersect_audiences
from backend.enrichment.cleaning import strip_tags
from backend.enrichment.pipeline import (
    MAX_BLOCKED_ATTEMPTS,
    EnrichmentRuntime,
    PathChangedError,
    RunRecovery,
    RunWork,
    Task,
)
from backend.enrichment.reader import CHARACTERS_A_TOKEN, estimate, open_budget
from backend.enrichment.runs.store import RunDetail
from backend.enrichment.story import is_path_unchanged, read_lines, render_line
from backend.enrichment.summaries.store import (
    MAX_SUMMARY_CHARS,
    StoredSummary,
    find_current_summary,
    find_goal,
    find_next_audience,
    find_round_goal,
    list_active_summaries,
    read_summary_settings,
    store_summary,
)
from backend.generation.declined_answers import check_declined
from backend.generation.model import (
    ModelBlockedError,
    ModelDeclinedError,
    ModelEmptyReplyError,
    ModelError,
    Prompt,
    PromptMessage,
    TextPiece,
    TextReset,
    TokenUsage,
)
from backend.generation.registry import UnknownModelError
from backend.jobs.running import RunningJob

MAX_LENGTH_FACTOR = 3
"""How many times as many words as were asked for are kept."""

TOKENS_PER_WORD = 2

MIN_STEP_TOKENS = 500
"""Stored tokens of lines that one call of the model brings in, of a model with a tiny window."""

CHARS_PER_WORD = 7
"""Of long words, with the blank behind them."""

SKIPPED_NOTE = "Nothing came back for these lines: the summary goes on behind them, without them."

_SENTENCE_ENDS = ".!?…。\n"


Next = tuple[Viewpoint, StoredSummary | None, int | None]
"""Whom the path is summed up for, their summary so far, and the position that it is to reach."""


@dataclass(frozen=True, kw_only=True)
class SummaryWork(RunWork):
    """What one call of the model brings in: the lines behind `previous`, oldest first.

    `versions` says of each line which message it is and when its text changed; `goal` is the
    position that has to be reached in the end. The lines are what `viewpoint` may know.
    `audience` is the summary's, as a column holds it; None: of those who may know all of it.
    """

    viewpoint: Viewpoint
    audience: str | None
    previous: StoredSummary | None
    versions: Sequence[tuple[UUID, datetime]]
    lines: Sequence[str]
    goal: int
    words: int


class SummaryTask(Task[SummaryWork, str]):
    """Brings a chat's summary as far as its history will need it.

    In steps, each a row of its own that builds on the one before. Lines for which nothing comes
    back are passed over in the end; the rest is left to the job behind the next reply.
    """

    kind = "summary"
    task = "summary"
    use = "summary"

    def __init__(self, runtime: EnrichmentRuntime, job: RunningJob) -> None:
        super().__init__(runtime, job)
        self._is_begun = False

    async def load(self, session: AsyncSession, chat: Chat) -> SummaryWork | None:
        """The next lines towards the goal.

        None, too, where the chat's tokens are counted in another unit by now: the budget of the job
        says nothing then, that of the next reply's will.
        """
        wanted = await read_summary_settings(session, self.sealer, chat)
        if not wanted.enabled or chat.count_unit != self.job.payload["count_unit"]:
            return None
        is_hiding = await hides_information(session, self.sealer, chat)
        viewpoint, current, goal = (
            await self._next_of_all(session, chat, wanted.interval)
            if is_hiding
            else await self._next(session, chat, wanted.interval)
        )
        if goal is None:
            return None
        budget = await open_budget(session, self.runtime.settings, self.sealer.user_id)
        reader = await self.reader(session, chat)
        most = max(MIN_STEP_TOKENS, reader.stretch_tokens)
        after = current.position if current else -1
        rows = await read_lines(
            session, chat, after=after, through=goal, most=most, viewpoint=viewpoint
        )
        if not rows:
            return None
        known = intersect_audiences([row.audience for row in rows])
        marks = await read_marks(session, self.sealer, chat.campaign_id, known)
        return SummaryWork(
            reader=reader,
            budget=budget,
            message_ids=[row.id for row in rows],
            from_position=rows[0].position,
            to_position=rows[-1].position,
            previous=current,
            versions=[(row.id, row.updated_at) for row in rows],
            lines=[render_line(reader, row, most * CHARACTERS_A_TOKEN, marks) for row in rows],
            goal=goal,
            words=wanted.words,
            viewpoint=viewpoint,
            audience=encode_viewpoint(viewpoint) if is_hiding else None,
        )

    async def _next(self, session: AsyncSession, chat: Chat, interval: int) -> Next:
        current = await find_current_summary(session, self.sealer, chat)
        return GM, current, await self._goal(session, chat, current, interval)

    async def _next_of_all(self, session: AsyncSession, chat: Chat, interval: int) -> Next:
        """The same with hidden information: as far as one audience has come, the others follow."""
        furthest = await list_active_summaries(session, self.sealer, chat, limit=1)
        reached = furthest[0] if furthest else None
        goal = await self._goal(session, chat, reached, interval)
        if goal is None and reached is not None:
            goal = reached.position
        if goal is None:
            return GM, None, None
        found = await find_next_audience(session, self.sealer, chat, through=goal)
        return (*found, goal) if found else (GM, None, None)

    async def _goal(
        self, session: AsyncSession, chat: Chat, current: StoredSummary | None, interval: int
    ) -> int | None:
        """The position through which the path should be summed up by now; None where it is."""
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
        """Return room for a summary of the length that the user chose, times `MAX_LENGTH_FACTOR`."""
        return work.words * MAX_LENGTH_FACTOR * TOKENS_PER_WORD

    async def propose(self, work: SummaryWork) -> str:
        """Have the model write. The budget is filled in on the way: nothing spent is lost."""
        model = work.reader.model
        prompts, budget, said = self.runtime.prompts, work.budget, ""
        system = prompts["enrichment/summary"].render(words=work.words)
        lines = prompts["enrichment/summary_lines"].render(
            previous=strip_tags(work.previous.text) if work.previous else "",
            lines=work.lines,
            words=work.words,
        )
        prompt = Prompt([PromptMessage("system", system), PromptMessage("user", lines)])
        budget.calls += 1
        sampling = work.reader.sampling_of(model, self.output_tokens(work))
        async with aclosing(model.stream(prompt, sampling)) as pieces:
            async for piece in pieces:
                if isinstance(piece, TextPiece):
                    said += piece.text
                elif isinstance(piece, TextReset):
                    said = ""
                elif isinstance(piece, TokenUsage):
                    budget.prompt_tokens = piece.prompt_tokens
                    budget.completion_tokens = piece.completion_tokens
        if not budget.prompt_tokens:
            # Not every server says what was used.
            budget.prompt_tokens = estimate(prompt)
            budget.completion_tokens = len(said) // CHARACTERS_A_TOKEN + 1
        text = clean_text(
            said, min(MAX_SUMMARY_CHARS, work.words * MAX_LENGTH_FACTOR * CHARS_PER_WORD)
        )
        if not text:
            raise ModelEmptyReplyError
        check_declined(text)
        return text

    async def apply(
        self, session: AsyncSession, chat: Chat, work: SummaryWork, proposal: str
    ) -> RunDetail:
        """Keep the text as the summary through the lines."""
        await self._store(session, chat, work, proposal, run_id=work.run_id)
        self._is_begun = True
        return RunDetail(message_ids=list(work.message_ids), significant=True)

    async def recover(
        self, session: AsyncSession, work: SummaryWork, error: Exception
    ) -> RunRecovery:
        """Another attempt where that may help; what else goes wrong is in the run alone."""
        match error:
            case PathChangedError():
                return RunRecovery()
            case ModelBlockedError() | ModelDeclinedError() | ModelEmptyReplyError():
                if self.job.attempt < MAX_BLOCKED_ATTEMPTS:
                    return RunRecovery(raises=error)
                # It would be so for ever, and nothing behind these lines would be summed up.
                is_passed = await self._pass_over(session, work)
                return RunRecovery(is_over=True, note=SKIPPED_NOTE if is_passed else "")
            case UnknownModelError() | ModelError(retryable=False):
                return RunRecovery(is_over=True)
            case _:
                return RunRecovery(raises=error)

    async def _pass_over(self, session: AsyncSession, work: SummaryWork) -> bool:
        """Store the summary so far, and that something is missing behind it."""
        before = work.previous.text if work.previous else ""
        missing = self.runtime.prompts["sections/omitted"].render(count=len(work.lines))
        whole = f"{before}\n{missing}".strip()
        text = whole if len(whole) <= MAX_SUMMARY_CHARS else before
        chat = await self.locked_chat(session)
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
        """Raises `PathChangedError` where nobody wants it any more.

        That is so when its path was left, when one of its lines went on (`continue`), was hidden or
        shown, or when the summary that it builds on is another one by now.
        """
        viewpoint = work.viewpoint
        current = await find_current_summary(session, self.sealer, chat, viewpoint=viewpoint)
        message = await session.get(Message, work.message_ids[-1])
        if (
            message is None
            or not (await read_summary_settings(session, self.sealer, chat)).enabled
            or _version(current) != _version(work.previous)
            or not await is_path_unchanged(
                session,
                chat,
                work.versions,
                after=current.position if current else -1,
                viewpoint=viewpoint,
            )
        ):
            raise PathChangedError
        await store_summary(
            session, self.sealer, message, text, audience=work.audience, run_id=run_id
        )
        await self.job.progress(work.to_position + 1, work.goal + 1)


def clean_text(text: str, limit: int) -> str:
    """A model's text as it may stand in a prompt: no tags, no blank lines, `limit` characters.

    Sections of a prompt stand in tags or between blank lines: what has neither can't end the one
    that it stands in. What is longer ends with a sentence, where there is one, or with a word.
    """
    lines = (line.strip() for line in strip_tags(text).split("\n"))
    whole = "\n".join(line for line in lines if line)
    return whole if len(whole) <= limit else _cut(whole, limit)


def _cut(text: str, limit: int) -> str:
    head = text[: max(0, limit - 1)]
    end = max(head.rfind(mark) for mark in _SENTENCE_ENDS)
    if end >= limit // 2:
        return head[: end + 1].rstrip()
    words = head.rsplit(None, 1)
    return (words[0] if len(words) > 1 else head) + "…" if head else ""


def _version(summary: StoredSummary | None) -> tuple[UUID, int] | None:
    return (summary.id, summary.revision) if summary else None
