"""Questions that lines answer, for the index: a line is found by them in other words than its own.

A model is asked about a stretch at a time, once some lines have come together: what was said last
stands in the history anyway, and may be swiped away yet. Rows say which messages it has read; they
follow the tree, as the messages do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.models import Chat, Message
from backend.chats.questions import UNREAD, read_questions, write_questions
from backend.enrichment.agent.proposals import render_story_line
from backend.enrichment.cleaning import to_one_line
from backend.enrichment.errors import ChronicleNotEnabledError
from backend.enrichment.pipeline import MAX_BLOCKED_ATTEMPTS, SKIPPABLE_ERRORS, RunRecovery
from backend.enrichment.reader import OUTPUT_TOKENS
from backend.enrichment.runs.store import RunDetail
from backend.enrichment.story import (
    PathRange,
    find_last_reply,
    is_readable,
    is_unchanged,
    read_range,
)
from backend.enrichment.tasks.turn import StretchTask, StudyWork
from backend.generation.model import Prompt, PromptMessage
from backend.generation.tools.arguments import plain_schema

LEAST_LINES = 8
"""Lines that come together before a model is asked: each call says again what it is to do."""

MOST_QUESTIONS = 3
LINE_TOKENS = 20 * MOST_QUESTIONS
"""Estimate for the questions of one line."""
MAX_QUESTION = 200
"""Characters; what is longer is no question that anybody asks."""

Questions = Mapping[UUID, Sequence[str]]


class _Answered(msgspec.Struct, frozen=True):
    """What one line answers."""

    line: Annotated[int, Meta(description="The line's number.")]
    questions: list[str]


class _Answer(msgspec.Struct, frozen=True):
    """Questions by line."""

    lines: list[_Answered]


SCHEMA = plain_schema(_Answer)


class QuestionTask(StretchTask[Questions]):
    """Has questions written for lines that have none, if their chat's owner wants that.

    With `positions` in its payload it reads all lines between these two, with progress; else those
    that were said since the owner agreed to the agent.
    """

    kind = "questions"
    use = "questions"
    _unread = 0

    async def load(self, session: AsyncSession, chat: Chat) -> StudyWork | None:
        """The first lines that no model has read; None where they are too few."""
        if not chat.chronicle_enabled or chat.chronicle_id is None:
            raise ChronicleNotEnabledError
        reader = await self.reader(session, chat)
        last = await find_last_reply(session, chat)
        if not reader.writes_questions or last is None:
            return None
        positions: Sequence[int] | None = self.job.payload.get("positions")
        first, last = positions or (0, last)
        since = None if positions else chat.chronicle_since
        unread = is_readable(chat) & UNREAD & Message.position.between(first, last)
        if since is not None:
            unread &= Message.created_at >= since
        query = select(func.min(Message.position), func.count()).where(unread)
        begins, count = (await session.execute(query)).one()
        self._unread = count
        if count < (1 if positions else LEAST_LINES):
            return None
        place = PathRange(
            owner_id=chat.user_id,
            chat_id=chat.id,
            chronicle_id=chat.chronicle_id,
            from_position=begins,
            to_position=last,
        )
        stretch = await read_range(session, reader, chat, place, since=since)
        if stretch is None:
            return None
        # Behind where two branches part, some of them may have been read on the other one.
        read = await read_questions(session, chat.id, [line.id for line in stretch.lines])
        lines = [line for line in stretch.lines if line.id not in read]
        return await self.new_work(session, reader, replace(stretch, lines=lines))

    def output_tokens(self, work: StudyWork) -> int:
        """Return room for the questions of all lines, because they are one answer."""
        return max(OUTPUT_TOKENS, LINE_TOKENS * len(work.stretch.lines))

    async def propose(self, work: StudyWork) -> Questions:
        """Ask the model; of what it answers the lines that it was asked about."""
        prompts, stretch = self.runtime.prompts, work.stretch
        system = prompts["enrichment/questions"].render(most=MOST_QUESTIONS)
        lines = prompts["enrichment/questions_lines"].render(
            earlier=[render_story_line(line) for line in stretch.earlier],
            lines=[render_story_line(line) for line in stretch.lines],
        )
        prompt = Prompt([PromptMessage("system", system), PromptMessage("user", lines)])
        said = await self.ask(work, prompt, SCHEMA, _Answer)
        ids = {line.position + 1: line.id for line in stretch.lines}
        asked: dict[UUID, Sequence[str]] = dict.fromkeys(ids.values(), ())
        for each in said.lines:
            if each.line in ids:
                asked[ids[each.line]] = _cleaned(each.questions)
        return asked

    async def apply(
        self, session: AsyncSession, chat: Chat, work: StudyWork, proposal: Questions
    ) -> RunDetail:
        """Write the questions, and have the index follow."""
        await self.check_wanted(session, chat, work)
        await write_questions(session, self.sealer, chat.id, proposal, run_id=work.run_id)
        asked = [message_id for message_id, questions in proposal.items() if questions]
        await self.runtime.index.changed(
            session, work.reader, kind="message", container_id=chat.id, source_ids=asked
        )
        if self.job.payload.get("positions"):
            done = self.job.payload.get("done", 0)
            await self.job.progress(done + len(proposal), done + self._unread)
            self.job.checkpoint({**self.job.payload, "done": done + len(proposal)})
        count = sum(map(len, proposal.values()))
        return RunDetail(
            message_ids=list(work.message_ids),
            significant=bool(asked),
            note=f"Questions for {len(asked)} of {len(proposal)} lines: {count}.",
        )

    async def recover(
        self, session: AsyncSession, work: StudyWork, error: Exception
    ) -> RunRecovery:
        """Lines at which the model fails again and again have no questions."""
        if (
            isinstance(error, SKIPPABLE_ERRORS)
            and self.job.attempt >= MAX_BLOCKED_ATTEMPTS
            and await is_unchanged(session, work.stretch)
        ):
            nothing: Questions = {line.id: () for line in work.stretch.lines}
            await write_questions(session, self.sealer, self.chat_id, nothing, run_id=work.run_id)
            return RunRecovery()
        return await super().recover(session, work, error)


def _cleaned(questions: Sequence[str]) -> list[str]:
    """What a model wrote, as lines of text, none twice."""
    lines = {
        line.casefold(): line for each in questions if (line := to_one_line(each[:MAX_QUESTION]))
    }
    return list(lines.values())[:MOST_QUESTIONS]
