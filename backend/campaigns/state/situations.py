"""The current situation of a campaign's story, for prompts and for the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import CampaignContextView, CampaignFields, StateView
from backend.campaigns.glossary.terms import get_max_terms
from backend.campaigns.ledger import paths as ledger_paths
from backend.campaigns.ledger.items import Chapter, Entity, Scene, Term, World
from backend.campaigns.ledger.records import (
    build_item_view,
    get_campaign,
    open_campaign,
    open_reading,
)
from backend.campaigns.models import Campaign, CampaignItem
from backend.campaigns.rules.protocol import find_rules
from backend.campaigns.scenes.chapters import count_fitting_chapters
from backend.campaigns.state.knowledge import ItemScope, load_known_items
from backend.campaigns.state.situation_reader import CampaignReader, SituationReader
from backend.campaigns.state.snapshot import (
    MAX_BLOCK_ITEMS,
    CampaignSnapshot,
    PlayedEntities,
    SnapshotCache,
)
from backend.campaigns.state.state_block import (
    MAX_EVENTS,
    BlockSummary,
    InjectedContext,
    MentionedEntity,
    Situation,
    StateBlock,
    build_state_block,
    choose_form,
)
from backend.campaigns.state.viewpoints import (
    load_known_rows,
    resolve_campaign_viewpoint,
    resolve_viewpoint,
)
from backend.chats import repository as chats
from backend.chats import tree
from backend.chats.members import NamedMembers
from backend.chats.models import MESSAGE_CONTENT, MESSAGE_CONTEXT, Chat, Message
from backend.chronicles.repository import current_events
from backend.core.audience import GM, AudienceMarks, Viewpoint, Witness
from backend.database.engine import Database
from backend.generation.tokens import get_tokenizer
from backend.vault.sealing import Sealer

RECENT_EVENTS = 40
RECENT_LINES = 4
"""Number of last messages that determine who spoke recently."""

LOOK_BACK_MESSAGES = 200
"""Number of messages before a turn among which the last block is searched."""

MAX_SPEAKERS = 24
"""Number of last blocks among which that of the speaker is searched."""


class CampaignLayers(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a prompt that come from a campaign.

    `terms` begin with the most used, `chapters` with the newest, `scenes` with the oldest. `told`
    are the ids of items in the block or in `named`.
    """

    campaign_id: UUID
    fields: CampaignFields
    terms: Sequence[Term]
    chapters: Mapping[UUID, Chapter]
    scenes: Mapping[UUID, Scene]
    block: StateBlock
    named: Sequence[MentionedEntity]
    told: frozenset[UUID]
    now: Situation
    names: CampaignSnapshot


class SituationService:
    def __init__(self, database: Database, names: SnapshotCache) -> None:
        self._database = database
        self._names = names

    async def load_state(
        self, identity: Identity, campaign_id: UUID, *, viewpoint: Viewpoint = GM
    ) -> StateView:
        """Raise `CampaignNotFoundError` or `ValidationError`."""
        async with open_reading(self._database, identity, campaign_id) as (session, campaign):
            viewpoint = await resolve_campaign_viewpoint(session, identity, campaign_id, viewpoint)
            sealer, scope = identity.sealer, ItemScope(campaign_id=campaign_id)
            known = await load_known_items(session, sealer, [viewpoint], scope)
            reader = CampaignReader(session, sealer, campaign, viewpoint, known=known)
            worlds = await load_known_rows(reader, await reader.load_items("world"))
            scene = await reader.find_open_scene()
            entities = await reader.load_nearest(scene[1] if scene else None)
            threads = await reader.load_items("thread", CampaignItem.is_live, limit=MAX_BLOCK_ITEMS)
            clocks = await reader.load_items("clock", CampaignItem.is_live, limit=MAX_BLOCK_ITEMS)
            echoes = await reader.load_items("echo", limit=MAX_BLOCK_ITEMS, newest=True)
            counts = await reader.count_live("entity", "thread", "clock", "echo")
            more = {
                "entities": counts["entity"] - len(entities),
                "threads": counts["thread"] - len(threads),
                "clocks": counts["clock"] - len(clocks),
                "echoes": counts["echo"] - len(echoes),
            }
            scenes = await load_known_rows(reader, [scene] if scene else [])
            entities, threads, clocks, echoes = [
                await load_known_rows(reader, rows) for rows in (entities, threads, clocks, echoes)
            ]
        world = worlds[0][1]
        assert isinstance(world, World)  # noqa: S101
        players = [item for _, item in entities if isinstance(item, Entity) and item.kind == "pc"]
        return StateView(
            version=campaign.version,
            day=world.day,
            time_of_day=world.time_of_day,
            flags=world.flags,
            attributes=world.attributes,
            locked=world.locked,
            scene=next((build_item_view(*each) for each in scenes), None),
            entities=[build_item_view(*each) for each in entities],
            threads=[build_item_view(*each) for each in threads],
            clocks=[build_item_view(*each) for each in clocks],
            echoes=[build_item_view(*each) for each in echoes],
            precarity=find_rules(campaign.rules).precarity(players, world),
            more=more,
        )

    async def load_context(
        self,
        identity: Identity,
        campaign_id: UUID,
        *,
        chat_id: UUID | None,
        text: str,
        viewpoint: Viewpoint = GM,
    ) -> CampaignContextView:
        """Return both forms of the block, and the form for the next turn or for a new chat.

        Raises `CampaignNotFoundError`, `ChatNotFoundError`, `ValidationError`.
        """
        owner_id, recent = identity.user_id, []
        chat, leaf = None, None
        async with open_reading(self._database, identity, campaign_id) as (session, campaign):
            if chat_id is not None:
                chat = await chats.get_chat(session, chat_id, owner_id=owner_id)
                leaf = await session.get(Message, chat.leaf_id) if chat.leaf_id else None
            if chat is not None and chat.campaign_id == campaign_id:
                viewpoint = await resolve_viewpoint(session, identity, chat, viewpoint)
            else:
                viewpoint = await resolve_campaign_viewpoint(
                    session, identity, campaign_id, viewpoint
                )
            if leaf is not None:
                recent = await _load_recent(session, identity.sealer, leaf, viewpoint)
            names = await self._names.load(session, identity.sealer, campaign)
            names = await names.limit_to(session, identity.sealer, campaign.id, viewpoint, chat)
            reader = SituationReader(
                session, identity.sealer, campaign, viewpoint, known=names.known
            )
            block, _ = await _find_moment(
                reader, names, chat, leaf, line=text, recent=recent, is_preview=True
            )
        count = get_tokenizer("o200k_base").count
        return CampaignContextView(
            form=block.form,
            why=block.why,
            full=block.full,
            light=block.light,
            tokens={"full": count(block.full), "light": count(block.light)},
        )

    async def find_played(
        self, session: AsyncSession, identity: Identity, campaign: Campaign
    ) -> PlayedEntities:
        """Return the entities that cards play. Reads only changes since the last turn."""
        return (await self._names.load(session, identity.sealer, campaign)).played

    async def load_layers(  # noqa: PLR0913  # the layers depend on all of them
        self,
        session: AsyncSession,
        identity: Identity,
        campaign: Campaign,
        chat: Chat,
        leaf: Message | None,
        *,
        line: str,
        recent: Sequence[str],
        until: int | None = None,
        viewpoint: Viewpoint = GM,
        player: str = "",
        members: NamedMembers | None = None,
    ) -> CampaignLayers:
        """Return the parts of a prompt that come from the chat's campaign, without stale items.

        `leaf` is the last message before the user's message `line`, and `recent` ends with it.
        Changes from the position `until` on are ignored, because its message is regenerated.
        `player` is the persona's name. `members` are those of the chat.
        """
        names = await self._names.load(session, identity.sealer, campaign)
        make_reader = partial(SituationReader, viewpoint=viewpoint, player=player, members=members)
        rewritten: set[UUID] = set()
        if until is not None:
            rewritten = await ledger_paths.find_changed_items(session, chat.id, above=until)
        if until is None or not rewritten:
            names = await names.limit_to(session, identity.sealer, campaign.id, viewpoint, chat)
            reader = make_reader(session, identity.sealer, campaign, known=names.known)
            return await self._load_layers(reader, names, chat, leaf, line=line, recent=recent)
        async with self._database.trial() as trial:
            # Chats before campaigns, because all code locks them in this order.
            await chats.get_chat(trial, chat.id, owner_id=identity.user_id, lock=True)
            campaign = await get_campaign(trial, identity, campaign.id, lock=True)
            await tree.leave_path(trial, chat.id, above=until)
            await ledger_paths.follow_path(trial, identity.sealer, campaign, chat.id, above=until)
            names = await names.update(trial, identity.sealer, campaign)
            names = await names.limit_to(trial, identity.sealer, campaign.id, viewpoint, chat)
            reader = make_reader(trial, identity.sealer, campaign, known=names.known)
            made = await self._load_layers(reader, names, chat, leaf, line=line, recent=recent)
        # A search would find their present state.
        return msgspec.structs.replace(made, told=made.told | rewritten)

    async def _load_layers(
        self,
        reader: SituationReader,
        names: CampaignSnapshot,
        chat: Chat,
        leaf: Message | None,
        *,
        line: str,
        recent: Sequence[str],
    ) -> CampaignLayers:
        block, now = await _find_moment(reader, names, chat, leaf, line=line, recent=recent)
        told = now.told if block.form == "full" else frozenset[UUID]()
        named = [each for each in now.named if each.id not in told]
        fields = open_campaign(reader.sealer, reader.campaign)
        settings, past = fields.settings, names.past
        chapters = await reader.load_chapters(
            count_fitting_chapters(settings.chapter_tokens) if "chapter" in past else 0
        )
        told_in = {each for chapter in chapters.values() for each in chapter.scene_ids}
        scenes = await reader.load_closed_scenes(told_in) if "scene" in past else {}
        facts = (fact_id for each in named for fact_id, _ in each.facts)
        return CampaignLayers(
            campaign_id=reader.campaign.id,
            fields=fields,
            terms=await reader.load_terms(
                get_max_terms(settings.glossary_tokens) if "term" in past else 0
            ),
            chapters={one: _mark_title(each, now.marks) for one, each in chapters.items()},
            scenes={one: _mark_title(each, now.marks) for one, each in scenes.items()},
            block=block,
            named=named,
            told=told.union((each.id for each in named), facts, scenes),
            now=now,
            names=names,
        )

    async def fold(self, identity: Identity, campaign_id: UUID) -> None:
        async with self._database.write() as session:
            await get_campaign(session, identity, campaign_id, lock=True)


_PastT = TypeVar("_PastT", Scene, Chapter)


def _mark_title(past: _PastT, marks: AudienceMarks) -> _PastT:
    """Add the audience mark of a closed scene or a chapter to its title."""
    words = marks.words(past.audience)
    title = f"({words}) {past.title}".strip() if words else past.title
    return msgspec.structs.replace(past, title=title)


async def _find_moment(
    reader: SituationReader,
    names: CampaignSnapshot,
    chat: Chat | None,
    leaf: Message | None,
    *,
    line: str,
    recent: Sequence[str],
    is_preview: bool = False,
) -> tuple[StateBlock, Situation]:
    session, sealer, campaign = reader.session, reader.sealer, reader.campaign
    viewpoint = reader.viewpoint
    speaker = str(viewpoint.character_id) if isinstance(viewpoint, Witness) else ""
    last = await _load_last_injected(session, sealer, leaf, speaker) if leaf else None
    is_first = last is None and not (leaf and await chats.has_message(session, leaf, "user"))
    now = await reader.load_situation(names, line=line, recent=recent[-RECENT_LINES:])
    shown = _build_summary(campaign, now, speaker)
    last_shown = last.shown if last else None
    form, why = choose_form(line, last_shown, shown, first=is_first)
    told = "full" if is_preview else form
    now = await reader.add_facts(names, now, form=told)
    chronicle = (chat.chronicle_id if chat else None) or campaign.chronicle_id
    if chronicle and told == "full":
        events = await current_events(
            session, sealer, chronicle, limit=RECENT_EVENTS, viewpoint=reader.viewpoint
        )
        today = [each for each in events if (each.fields.day or 0) == now.day][-MAX_EVENTS:]
        lines = [now.marks.mark(each.fields.summary, each.audience) for each in today]
        now = replace(now, events=lines, told=now.told.union(each.id for each in today))
    return build_state_block(now, shown, last_shown, form=form, why=why), now


def _build_summary(campaign: Campaign, now: Situation, speaker: str) -> BlockSummary:
    return BlockSummary(
        scene_id=now.scene_id,
        location_id=now.location.id if now.location else None,
        day=now.day,
        present=sorted(person.id for person in now.present),
        edits=campaign.edits,
        compactions=campaign.compactions,
        speaker=speaker,
    )


_LAST_INJECTED = (
    select(Message.id, Message.sealed_injected_context)
    .where(
        Message.chat_id == bindparam("chat"),
        Message.is_active,
        Message.position <= bindparam("leaf"),
        Message.position > bindparam("from"),
        Message.sealed_injected_context.is_not(None),
    )
    .order_by(Message.position.desc())
    .limit(MAX_SPEAKERS)
)


async def _load_last_injected(
    session: AsyncSession, sealer: Sealer, leaf: Message, speaker: str
) -> InjectedContext | None:
    """Return the block in the prompt of a speaker's last reply up to `leaf`; usually `leaf`.

    The blocks of others say nothing about what this speaker was shown.
    """
    if leaf.is_active and leaf.sealed_injected_context is not None:
        injected = _read_injected(sealer, leaf.id, leaf.sealed_injected_context)
        if injected.shown.speaker == speaker:
            return injected
    asked = {
        "chat": leaf.chat_id,
        "leaf": leaf.position,
        "from": leaf.position - LOOK_BACK_MESSAGES,
    }
    for row in (await session.execute(_LAST_INJECTED, asked)).all():
        injected = _read_injected(sealer, row.id, row.sealed_injected_context or b"")
        if injected.shown.speaker == speaker:
            return injected
    return None


def _read_injected(sealer: Sealer, message_id: UUID, sealed: bytes) -> InjectedContext:
    data = sealer.open_bytes(MESSAGE_CONTEXT, message_id, sealed)
    return msgspec.json.decode(data, type=InjectedContext)


async def _load_recent(
    session: AsyncSession, sealer: Sealer, leaf: Message, viewpoint: Viewpoint
) -> list[str]:
    rows = await chats.list_active_page(
        session,
        leaf.chat_id,
        before=leaf.position + 1,
        limit=RECENT_LINES,
        with_hidden=False,
        viewpoint=viewpoint,
    )
    return [sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content) for row in rows]
