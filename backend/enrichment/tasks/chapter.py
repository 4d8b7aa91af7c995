"""The job that combines old scenes of a campaign into chapters.

A chapter is a change of the last message of its scenes, so that it counts only while that message
is on the active path. Its scenes are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import Change, build_creation
from backend.campaigns.ledger.items import Chapter
from backend.campaigns.ledger.records import find_campaign, open_campaign
from backend.campaigns.models import Campaign
from backend.campaigns.scenes.chapters import DueChapter, find_due_chapter
from backend.chats.models import Chat, Message
from backend.core.audience import decode_audience
from backend.database.base import new_id
from backend.enrichment.cleaning import clean_text, clip, to_one_line
from backend.enrichment.pipeline import PathChangedError, RunWork, Task
from backend.enrichment.reader import open_budget
from backend.enrichment.runs.store import RunDetail
from backend.generation.declined_answers import check_declined
from backend.generation.model import ModelMalformedAnswerError
from backend.generation.tools.calls import simplify_schema
from backend.llm.answers import CHARACTERS_PER_TOKEN, build_prompt

CHAPTER_WORDS = 200
"""Approximate length of a chapter in words."""

MAX_SUMMARY = 5_000
MAX_TITLE = 120


class ChapterAnswer(msgspec.Struct, frozen=True):
    """The parts of the chapter to keep."""

    title: str
    summary: str


SCHEMA = simplify_schema(ChapterAnswer)


@dataclass(frozen=True, kw_only=True)
class ChapterWork(RunWork):
    """The scenes of the next chapter."""

    due: DueChapter


@dataclass(frozen=True, slots=True)
class ChapterProposal:
    """The title and the summary of a chapter."""

    title: str
    summary: str
    note: str = ""


class ChapterTask(Task[ChapterWork, ChapterProposal]):
    """Combines a chat's old scenes into chapters, until few enough are left."""

    kind = "chapter"
    task = "summary"

    async def load(self, session: AsyncSession, chat: Chat) -> ChapterWork | None:
        """Load the scenes of the next chapter. Return None if there are not enough."""
        found = await self._find_due(session, chat)
        if found is None:
            return None
        _, due, message = found
        return ChapterWork(
            reader=await self.load_reader(session, chat),
            budget=await open_budget(session, self.runtime.settings, self.sealer.user_id),
            message_ids=[message.id],
            from_position=due.position,
            to_position=due.position,
            due=due,
        )

    async def propose(self, work: ChapterWork) -> ChapterProposal:
        """Let the model combine the summaries and key moments of the scenes."""
        prompts, scenes = self.runtime.prompts, work.due.scenes
        share = work.reader.stretch_tokens * CHARACTERS_PER_TOKEN // len(scenes)
        summaries = [
            clip(to_one_line(f"{each.title or 'A scene'}: {each.summary}"), share // 2)
            + clip("".join(f"\n  - {to_one_line(one)}" for one in each.key_moments), share // 2)
            for each in scenes
        ]
        prompt = build_prompt(
            prompts["enrichment/chapter"].render(words=CHAPTER_WORDS),
            prompts["enrichment/chapter_scenes"].render(scenes=summaries),
        )
        said = await self.ask(work, prompt, SCHEMA, ChapterAnswer)
        summary = clean_text(to_one_line(said.summary), MAX_SUMMARY)
        if not summary:
            raise ModelMalformedAnswerError("The model returned no chapter.")
        check_declined(summary)
        return ChapterProposal(
            title=clean_text(to_one_line(said.title), MAX_TITLE),
            summary=summary,
            note=self.build_note(work),
        )

    async def apply(
        self, session: AsyncSession, chat: Chat, work: ChapterWork, proposal: ChapterProposal
    ) -> RunDetail:
        """Write the chapter, if its scenes are unchanged."""
        found = await self._find_due(session, chat, lock=True)
        if found is None or found[1] != work.due or found[2].id != work.message_ids[0]:
            raise PathChangedError
        campaign, due, message = found
        chapter = Chapter(
            title=proposal.title,
            summary=proposal.summary,
            scene_ids=list(due.scene_ids),
            audience=decode_audience(due.audience),
        )
        change = Change("chapter", new_id(), build_creation(chapter))
        await ledger_store.append_changes(
            session, self.sealer, campaign, [change], actor="compactor", message=message
        )
        return RunDetail(
            message_ids=list(work.message_ids),
            significant=True,
            why=chapter.title,
            note=proposal.note,
        )

    async def _find_due(
        self, session: AsyncSession, chat: Chat, *, lock: bool = False
    ) -> tuple[Campaign, DueChapter, Message] | None:
        if chat.campaign_id is None:
            return None
        campaign = await find_campaign(session, self.sealer, chat.campaign_id, lock=lock)
        settings = open_campaign(self.sealer, campaign).settings if campaign else None
        if campaign is None or settings is None or not settings.summaries:
            return None
        due = await find_due_chapter(
            session, self.sealer, campaign, chat, most=settings.chapter_scenes
        )
        if due is None:
            return None
        message = await session.scalar(
            select(Message).where(
                Message.chat_id == chat.id, Message.is_active, Message.position == due.position
            )
        )
        return (campaign, due, message) if message else None
