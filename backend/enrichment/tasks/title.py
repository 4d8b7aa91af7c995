"""The job that writes the title of a chat after its first exchange."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from backend.chats.models import Chat
from backend.enrichment.cleaning import to_one_line
from backend.enrichment.pipeline import RunWork, Task
from backend.enrichment.reader import open_budget
from backend.enrichment.runs.store import RunDetail
from backend.enrichment.story import read_lines, render_line
from backend.enrichment.titles import find_first_line, find_title_source, set_title, shorten
from backend.generation.declined_answers import check_declined
from backend.generation.model import ModelEmptyReplyError
from backend.jobs.errors import RetryLaterError
from backend.llm.answers import CHARACTERS_PER_TOKEN, build_prompt, collect

MAX_WORDS: Final = 8
MAX_TITLE: Final = 100

LINES_AFTER: Final = 2
"""Messages after the user's first line that the model reads: the reply, and the next line."""

MOST_TOKENS: Final = 2_000
"""Maximum tokens of the lines, in the chat's unit."""

OUTPUT_TOKENS: Final = 100

_LABEL = re.compile(r"^\W{0,8}title\W{1,8}", re.IGNORECASE)
_QUOTES: Final = "\"'`*_#“”„«»‘’ "  # noqa: RUF001  # quotation marks of all kinds


@dataclass(frozen=True, kw_only=True)
class TitleWork(RunWork):
    """The first lines of a chat, oldest first."""

    lines: Sequence[str]


class TitleTask(Task[TitleWork, str]):
    """Writes the title of a chat that has none of its user's."""

    kind = "title"
    task = "summary"
    use = "title"

    async def load(self, session: AsyncSession, chat: Chat) -> TitleWork | None:
        """Load the first lines.

        Returns None if the chat has a title of its user or of a model, if the user no longer wants
        titles of models, or if the daily tokens are used up.
        """
        if chat.title_origin in {"user", "model"}:
            return None
        if await find_title_source(session, self.sealer) != "model":
            return None
        first = await find_first_line(session, chat)
        if first is None:
            return None
        try:
            budget = await open_budget(session, self.runtime.settings, self.sealer.user_id)
        except RetryLaterError:
            return None
        reader = await self.load_reader(session, chat)
        most = min(MOST_TOKENS, reader.stretch_tokens)
        rows = await read_lines(
            session, chat, after=-1, through=first.position + LINES_AFTER, most=most
        )
        return TitleWork(
            reader=reader,
            budget=budget,
            message_ids=[row.id for row in rows],
            from_position=rows[0].position,
            to_position=rows[-1].position,
            ends_job=True,
            lines=[render_line(reader, row, most * CHARACTERS_PER_TOKEN) for row in rows],
        )

    def output_tokens(self, work: TitleWork) -> int:  # noqa: ARG002  # titles are short
        return OUTPUT_TOKENS

    async def propose(self, work: TitleWork) -> str:
        """Let the model write the title."""
        model, prompts = work.reader.model, self.runtime.prompts
        prompt = build_prompt(
            prompts["enrichment/title"].render(words=MAX_WORDS),
            prompts["enrichment/title_lines"].render(lines=work.lines, words=MAX_WORDS),
        )
        sampling = work.reader.build_sampling(model, self.output_tokens(work))
        answer = await collect(model.stream(prompt, sampling), prompt, work.budget)
        check_declined(answer.text)
        title = clean_title(answer.text)
        if not title:
            raise ModelEmptyReplyError
        return title

    async def apply(
        self, session: AsyncSession, chat: Chat, work: TitleWork, proposal: str
    ) -> RunDetail:
        """Store the title, unless the user has written one since."""
        del session
        if chat.title_origin != "user":
            set_title(self.sealer, chat, proposal, "model")
        return RunDetail(
            message_ids=list(work.message_ids),
            significant=True,
            why=proposal,
            note=self.build_note(work),
        )


def clean_title(text: str) -> str:
    """Return the title in the answer of a model: its first line, without marks and quotes."""
    lines = (_LABEL.sub("", to_one_line(line)).strip(_QUOTES) for line in text.splitlines())
    words = next((line for line in lines if line), "").split()
    title = " ".join(words[:MAX_WORDS]).rstrip(".,;: ")
    return shorten(title, MAX_TITLE)
