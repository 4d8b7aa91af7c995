"""The jobs that compress a scene and summarise a chapter.

A compressed scene has a summary, key moments, threads, changes and quotations. All of them are
changes of the last message that was read, so that they count only while that message is on the
active path. A later compression continues the summary after the lines that it covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import Change, Operations, build_creation
from backend.campaigns.ledger.items import Chapter, Scene, Thread
from backend.campaigns.ledger.records import find_campaign, open_campaign, open_item
from backend.campaigns.models import Campaign, CampaignItem
from backend.campaigns.play.story_tools import FieldDelta
from backend.campaigns.play.table import Table
from backend.campaigns.scenes.chapters import DueChapter, find_due_chapter
from backend.campaigns.scenes.scenes import find_span
from backend.campaigns.state.knowledge import ItemScope, load_known_items
from backend.campaigns.state.listeners import Listeners
from backend.campaigns.state.situation_reader import CampaignReader
from backend.campaigns.state.snapshot import MAX_BLOCK_ITEMS, CampaignSnapshot
from backend.campaigns.state.viewpoints import read_marks
from backend.chats.models import Chat, Message
from backend.core.audience import (
    GM,
    PUBLIC,
    decode_audience,
    encode_audience,
    intersect_audiences,
    may_all_know,
)
from backend.database.base import new_id
from backend.enrichment.cleaning import clean_text, clip, to_one_line
from backend.enrichment.pipeline import (
    PathChangedError,
    RunWork,
    Task,
)
from backend.enrichment.reader import OUTPUT_TOKENS, open_budget
from backend.enrichment.runs.store import RefusedCall, RunDetail
from backend.enrichment.story import Version, is_path_unchanged, render_line
from backend.enrichment.tasks.scene_changes import (
    Quote,
    Seed,
    build_quoted_facts,
    build_scene_table,
    build_threads,
    compare_deltas,
    find_later_changes,
    render_items,
)
from backend.enrichment.tasks.scene_lines import read_scene_lines
from backend.generation.declined_answers import check_declined
from backend.generation.model import (
    ModelMalformedAnswerError,
)
from backend.generation.tools.calls import InvalidCallError, read_arguments, simplify_schema
from backend.llm.answers import CHARACTERS_PER_TOKEN, build_prompt

SCENE_WORDS = 150
"""Approximate length of a summary in words."""

MAX_SUMMARY = 4_000
MAX_MOMENTS = 5
MAX_MOMENT = 400
MAX_SEEDS = 3
MAX_CHANGES = 12
MAX_KEPT = 8


class SceneAnswer(msgspec.Struct, frozen=True):
    """The parts of the scene to keep."""

    summary: str
    key_moments: Annotated[list[str], Meta(description="3 to 5, one sentence each.")]
    seeds: list[Seed] = []
    changes: list[FieldDelta] = []
    kept: list[Quote] = []


class RawSceneAnswer(msgspec.Struct, frozen=True):
    """An answer with unvalidated lists, so that one invalid seed does not cost the summary."""

    summary: str
    key_moments: list[str]
    seeds: list[dict[str, Any]] = []
    changes: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []


SCHEMA = {**simplify_schema(SceneAnswer), "required": list(SceneAnswer.__struct_fields__)}


@dataclass(frozen=True, kw_only=True)
class SceneWork(RunWork):
    """Lines of a scene after position `after`, which the summary does not cover yet.

    `told` are the messages of the `lines`, and `versions` those of all lines that were read.
    `audience` is the audience of all results, in the form of the database column. `heard` is that
    of facts in a group; None if they have the audience of their lines. `listeners` are the
    viewpoints of those who heard the lines. `names` belong to the campaign's version that was read.
    """

    campaign_id: UUID
    scene_id: UUID
    scene: Scene
    after: int
    versions: Sequence[Version]
    told: Sequence[Version]
    lines: Sequence[str]
    audience: str
    heard: str | None
    listeners: Listeners
    threads: Sequence[str]
    items: Sequence[str]
    names: CampaignSnapshot


@dataclass(frozen=True, slots=True)
class SceneProposal:
    """The validated parts of a scene to keep, and the refused ones."""

    summary: str
    key_moments: Sequence[str]
    seeds: Sequence[Seed]
    deltas: Sequence[FieldDelta]
    quotes: Sequence[Quote]
    refused: Sequence[RefusedCall]
    note: str = ""


class SceneTask(Task[SceneWork, SceneProposal]):
    """Compresses the part of a scene that belongs to a chat, in steps of one model call."""

    kind = "scene"
    task = "summary"

    async def run(self) -> None:
        """Fold the campaign first, because a crash may have left it stale. See `Task.run`."""
        await self.fold_campaign()
        await super().run()

    async def load(self, session: AsyncSession, chat: Chat) -> SceneWork | None:
        """Load the next lines of the scene. Return None if its summary covers the whole chat.

        Also returns None for an open scene with lines that not everyone who knows the scene may
        know. Such a summary is for fewer, and the scene is hidden from the others at its end.
        """
        found = await self._get_scene(session, chat)
        scene_id = UUID(self.job.payload["scene_id"])
        span = await find_span(session, scene_id, chat.id)
        if found is None or span is None:
            return None
        campaign, scene = found
        reader = await self.load_reader(session, chat)
        story = await read_scene_lines(
            session, self.sealer, chat, span, scene, most=reader.stretch_tokens
        )
        told_to = encode_audience(scene.audience)
        if story is None or (
            scene.status == "open"
            and not all(may_all_know(told_to, each) for each in story.audiences)
        ):
            return None
        audience, rows = intersect_audiences([told_to, *story.audiences]), story.rows
        marks = await read_marks(session, self.sealer, campaign.id, audience)
        most = reader.stretch_tokens * CHARACTERS_PER_TOKEN
        lines = [render_line(reader, row, most, marks) for row in story.told]
        text = "\n".join(lines)
        names = await self.runtime.names.read(session, self.sealer, campaign)
        known_items = await load_known_items(
            session, self.sealer, story.listeners, ItemScope(campaign_id=campaign.id)
        )
        table = await build_scene_table(
            session, self.sealer, campaign, names, text, audience=audience, known=known_items
        )
        viewpoint = GM if audience == GM else PUBLIC
        known = CampaignReader(session, self.sealer, campaign, viewpoint, known=known_items)
        threads = await known.load_items("thread", limit=MAX_BLOCK_ITEMS, newest=True)
        return SceneWork(
            reader=reader,
            budget=await open_budget(session, self.runtime.settings, self.sealer.user_id),
            message_ids=[row.id for row in rows],
            from_position=rows[0].position,
            to_position=rows[-1].position,
            ends_job=rows[-1].position >= span.last,
            campaign_id=campaign.id,
            scene_id=scene_id,
            scene=scene,
            after=span.after,
            versions=[(row.id, row.updated_at) for row in rows],
            lines=lines,
            audience=audience,
            told=[(row.id, row.updated_at) for row in story.told],
            heard=story.heard,
            listeners=story.listeners,
            threads=[
                marks.mark(f"{item.title}: {clip(item.summary, MAX_MOMENT)}", item.audience)
                for _, item in threads
                if isinstance(item, Thread) and item.status == "open"
            ],
            items=render_items(table),
            names=names,
        )

    def output_tokens(self, work: SceneWork) -> int:  # noqa: ARG002  # the base class's
        """Return room for a summary, 12 changes and 8 quotations."""
        return 3 * OUTPUT_TOKENS

    async def propose(self, work: SceneWork) -> SceneProposal:
        """Let the model continue the summary of the scene."""
        prompts, scene = self.runtime.prompts, work.scene
        lines = prompts["enrichment/scene_lines"].render(
            title=to_one_line(scene.title) or "A scene",
            stakes=to_one_line(scene.stakes),
            previous=to_one_line(scene.summary),
            moments=[to_one_line(moment) for moment in scene.key_moments],
            threads=[to_one_line(thread) for thread in work.threads],
            items=work.items,
            lines=work.lines,
        )
        system = prompts["enrichment/scene"].render(
            words=SCENE_WORDS, most_seeds=MAX_SEEDS, most=MAX_CHANGES, most_kept=MAX_KEPT
        )
        said = await self.ask(work, build_prompt(system, lines), SCHEMA, RawSceneAnswer)
        summary = clean_text(to_one_line(said.summary), MAX_SUMMARY)
        moments = [clean_text(to_one_line(each), MAX_MOMENT) for each in said.key_moments]
        if not summary:
            raise ModelMalformedAnswerError("The model returned no summary of the scene.")
        check_declined(summary)
        seeds, bad_seeds = _validate(said.seeds[:MAX_SEEDS], Seed, "thread")
        deltas, bad_deltas = _validate(said.changes[:MAX_CHANGES], FieldDelta, "change")
        quotes, bad_quotes = _validate(said.kept[:MAX_KEPT], Quote, "quote")
        return SceneProposal(
            summary=summary,
            key_moments=[each for each in moments if each][:MAX_MOMENTS],
            seeds=seeds,
            deltas=deltas,
            quotes=quotes,
            refused=[*bad_seeds, *bad_deltas, *bad_quotes],
            note=self.build_note(work),
        )

    async def apply(
        self, session: AsyncSession, chat: Chat, work: SceneWork, proposal: SceneProposal
    ) -> RunDetail:
        """Write everything as changes of the last line, if all lines are unchanged.

        Quotations are changes of their own lines.
        """
        found = await self._get_scene(session, chat, lock=True)
        span = await find_span(session, work.scene_id, chat.id)
        if (
            found is None
            or span is None
            or span.after != work.after
            or (found[1].summary, found[1].status, found[1].audience)
            != (work.scene.summary, work.scene.status, work.scene.audience)
            or not await is_path_unchanged(session, chat, work.versions, after=work.after)
        ):
            raise PathChangedError
        campaign, scene = found
        message = await session.get_one(Message, work.message_ids[-1])
        wanted = {"summary": proposal.summary, "key_moments": list(proposal.key_moments)}
        written = {key: value for key, value in wanted.items() if key not in scene.locked}
        if work.audience != encode_audience(scene.audience):
            written["audience"] = msgspec.to_builtins(decode_audience(work.audience))
        threads, refused = await build_threads(
            session, self.sealer, campaign, proposal.seeds, audience=work.audience
        )
        text, audience = "\n".join(work.lines), work.audience
        names = await self.runtime.names.read(session, self.sealer, campaign, known=work.names)
        known = await load_known_items(
            session, self.sealer, work.listeners, ItemScope(campaign_id=campaign.id)
        )
        table = await build_scene_table(
            session, self.sealer, campaign, names, text, audience=audience, known=known
        )
        facts, unquoted = await build_quoted_facts(
            session,
            self.sealer,
            campaign,
            proposal.quotes,
            lines=work.lines,
            versions=work.told,
            table=table,
            audience=work.heard,
        )
        deltas, others = await self._find_changes(session, chat, table, work, proposal)
        changes = [Change("scene", work.scene_id, Operations(set=written)), *threads, *deltas]
        await ledger_store.append_changes(
            session,
            self.sealer,
            campaign,
            [*changes, *(fact.change for fact in facts)],
            actor="compactor",
            sources=[*([message] * len(changes)), *(fact.message for fact in facts)],
        )
        campaign.compactions += 1
        if scene.status == "closed":
            await self.runtime.outbox.make_chapters(session, work.reader, chat)
        return RunDetail(
            message_ids=list(work.message_ids),
            significant=True,
            why=", ".join(change.operations.set["title"] for change in threads),
            refused=[*proposal.refused, *refused, *unquoted, *others],
            note=proposal.note,
        )

    async def _find_changes(
        self,
        session: AsyncSession,
        chat: Chat,
        table: Table,
        work: SceneWork,
        proposal: SceneProposal,
    ) -> tuple[list[Change], list[RefusedCall]]:
        """Return the changes that the ledger does not contain yet, and the refused ones."""
        if not proposal.deltas:
            return [], []
        since = await find_later_changes(
            session,
            self.sealer,
            table,
            scene_id=work.scene_id,
            chat_id=chat.id,
            last=work.to_position,
        )
        return compare_deltas(table, proposal.deltas, since, audience=work.audience)

    async def _get_scene(
        self, session: AsyncSession, chat: Chat, *, lock: bool = False
    ) -> tuple[Campaign, Scene] | None:
        if chat.campaign_id is None:
            return None
        campaign = await find_campaign(session, self.sealer, chat.campaign_id, lock=lock)
        if campaign is None or not open_campaign(self.sealer, campaign).settings.summaries:
            return None
        row = await session.scalar(
            select(CampaignItem)
            .where(
                CampaignItem.id == UUID(self.job.payload["scene_id"]),
                CampaignItem.campaign_id == campaign.id,
                CampaignItem.kind == "scene",
                CampaignItem.exists,
            )
            .execution_options(populate_existing=True)
        )
        item = open_item(self.sealer, row) if row else None
        return (campaign, item) if isinstance(item, Scene) else None


T = TypeVar("T", bound=msgspec.Struct)


def _validate(
    said: Sequence[dict[str, Any]], wanted: type[T], name: str
) -> tuple[list[T], list[RefusedCall]]:
    """Return the valid members of an answer as structs, and the others as refusals."""
    read: list[T] = []
    refused: list[RefusedCall] = []
    schema = simplify_schema(wanted)
    for each in said:
        try:
            read.append(read_arguments(each, wanted, schema))
        except InvalidCallError as error:
            refused.append(RefusedCall(tool=name, reason=str(error)))
    return read, refused


CHAPTER_WORDS = 200
"""Approximate length of a chapter in words."""

MAX_CHAPTER_SUMMARY = 5_000
MAX_TITLE = 120


class ChapterAnswer(msgspec.Struct, frozen=True):
    """The parts of the chapter to keep."""

    title: str
    summary: str


CHAPTER_SCHEMA = simplify_schema(ChapterAnswer)


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
        said = await self.ask(work, prompt, CHAPTER_SCHEMA, ChapterAnswer)
        summary = clean_text(to_one_line(said.summary), MAX_CHAPTER_SUMMARY)
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
