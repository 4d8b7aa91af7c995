"""Chapters: scenes that are long over, compressed once more.

A chapter is a change of the last message that one of its scenes was compressed from: it counts
while that message is told. Its scenes stay as they are, to be read and found.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import creation
from backend.campaigns.ledger.items import Chapter
from backend.campaigns.ledger.records import find_campaign, open_campaign
from backend.campaigns.ledger.store import Change
from backend.campaigns.models import Campaign
from backend.campaigns.scenes.chapters import DueChapter, due_chapter
from backend.chats.models import Chat, Message
from backend.core.audience import decode_audience
from backend.database.base import new_id
from backend.enrichment.cleaning import clip, to_one_line
from backend.enrichment.pipeline import PathChangedError, RunWork, Task
from backend.enrichment.reader import CHARACTERS_A_TOKEN, open_budget
from backend.enrichment.runs.store import RunDetail
from backend.enrichment.summaries.task import clean_text
from backend.generation.declined_answers import check_declined
from backend.generation.model import ModelMalformedAnswerError, Prompt, PromptMessage
from backend.generation.tools.arguments import plain_schema

CHAPTER_WORDS = 200
"""About how long a chapter is."""

MAX_SUMMARY = 5_000
MAX_TITLE = 120


class ChapterAnswer(msgspec.Struct, frozen=True):
    """What is to be kept of a chapter."""

    title: str
    summary: str


SCHEMA = plain_schema(ChapterAnswer)


@dataclass(frozen=True, kw_only=True)
class ChapterWork(RunWork):
    """Scenes that are to become a chapter."""

    due: DueChapter


@dataclass(frozen=True, slots=True)
class ChapterProposal:
    """A chapter's title and summary."""

    title: str
    summary: str
    note: str = ""


class ChapterTask(Task[ChapterWork, ChapterProposal]):
    """Makes chapters of a chat's old scenes, one after the other, until few enough are left."""

    kind = "chapter"
    task = "summary"

    async def load(self, session: AsyncSession, chat: Chat) -> ChapterWork | None:
        """The scenes of the next chapter; None where there are not enough."""
        found = await self._due(session, chat)
        if found is None:
            return None
        _, due, message = found
        return ChapterWork(
            reader=await self.reader(session, chat),
            budget=await open_budget(session, self.runtime.settings, self.sealer.user_id),
            message_ids=[message.id],
            from_position=due.position,
            to_position=due.position,
            due=due,
        )

    async def propose(self, work: ChapterWork) -> ChapterProposal:
        """Have the model tell the scenes together, from their summaries and key moments."""
        prompts, scenes = self.runtime.prompts, work.due.scenes
        share = work.reader.stretch_tokens * CHARACTERS_A_TOKEN // len(scenes)
        told = [
            clip(to_one_line(f"{each.title or 'A scene'}: {each.summary}"), share // 2)
            + clip("".join(f"\n  - {to_one_line(one)}" for one in each.key_moments), share // 2)
            for each in scenes
        ]
        prompt = Prompt(
            [
                PromptMessage("system", prompts["enrichment/chapter"].render(words=CHAPTER_WORDS)),
                PromptMessage("user", prompts["enrichment/chapter_scenes"].render(scenes=told)),
            ]
        )
        said = await self.ask(work, prompt, SCHEMA, ChapterAnswer)
        summary = clean_text(to_one_line(said.summary), MAX_SUMMARY)
        if not summary:
            raise ModelMalformedAnswerError("The model was asked for a chapter: none came.")
        check_declined(summary)
        return ChapterProposal(
            title=clean_text(to_one_line(said.title), MAX_TITLE),
            summary=summary,
            note=self.note(work),
        )

    async def apply(
        self, session: AsyncSession, chat: Chat, work: ChapterWork, proposal: ChapterProposal
    ) -> RunDetail:
        """Write the chapter, if its scenes are still what was read."""
        found = await self._due(session, chat, lock=True)
        if found is None or found[1] != work.due or found[2].id != work.message_ids[0]:
            raise PathChangedError
        campaign, due, message = found
        chapter = Chapter(
            title=proposal.title,
            summary=proposal.summary,
            scene_ids=list(due.scene_ids),
            audience=decode_audience(due.audience),
        )
        change = Change("chapter", new_id(), creation(chapter))
        await ledger_store.append(
            session, self.sealer, campaign, [change], actor="compactor", message=message
        )
        return RunDetail(
            message_ids=list(work.message_ids),
            significant=True,
            why=chapter.title,
            note=proposal.note,
        )

    async def _due(
        self, session: AsyncSession, chat: Chat, *, lock: bool = False
    ) -> tuple[Campaign, DueChapter, Message] | None:
        """The next chapter of the chat's campaign, and the message that it will follow from."""
        if chat.campaign_id is None:
            return None
        campaign = await find_campaign(session, self.sealer, chat.campaign_id, lock=lock)
        settings = open_campaign(self.sealer, campaign).settings if campaign else None
        if campaign is None or settings is None or not settings.summaries:
            return None
        due = await due_chapter(session, self.sealer, campaign, chat, most=settings.chapter_scenes)
        if due is None:
            return None
        message = await session.scalar(
            select(Message).where(
                Message.chat_id == chat.id, Message.is_active, Message.position == due.position
            )
        )
        return (campaign, due, message) if message else None
