"""Campaigns out into files, and in out of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import CampaignView
from backend.campaigns.api.service import check_room
from backend.campaigns.files.archive import (
    CompactionRecord,
    OpenCampaign,
    SourceRecord,
    write_archive,
)
from backend.campaigns.files.draft import CampaignDraft, settle_ledger
from backend.campaigns.files.vault_writer import write_vault
from backend.campaigns.ledger.records import build_campaign_views, open_campaign, open_reading
from backend.campaigns.models import Campaign, CampaignChange, CampaignItem, ChangeSource
from backend.campaigns.rules.registry import find_rules
from backend.campaigns.state.viewpoints import check_viewpoint, filter_known_items
from backend.characters.card_rows import FileDownload
from backend.characters.cards.charx import pack
from backend.characters.models import Character, Persona
from backend.chats.models import Chat, ChatCharacter, Message
from backend.chats.repository import list_character_ids
from backend.chats.service import choose_counting_model
from backend.chats.token_counting import CountUnit
from backend.chats.transfer import write_log
from backend.chronicles.event_search import load_all_events
from backend.chronicles.events import ChronicleFields
from backend.chronicles.index_source import KIND as EVENTS
from backend.chronicles.repository import StoryEvent, make_chronicle
from backend.chronicles.transfer import write_events
from backend.core.audience import GM, Viewpoint, filter_known_to, may_know
from backend.core.cpu_pool import CpuPool
from backend.database.base import split_chunks, stream_rows
from backend.database.engine import Database
from backend.generation.tokens import best_tokenizer
from backend.llm.user_models import UserModels
from backend.memory.indexing.outbox import IndexOutbox
from backend.quotas.service import CheckAdded

ExportFormat = Literal["json", "vault"]

INSERT_BATCH_ROWS = 500
"""Rows that are written in one statement."""


class ImportedCampaign(CampaignView, kw_only=True):
    """A campaign that was made of a file. `warnings` say what of the file was not understood."""

    warnings: list[str]


class CampaignTransfer:
    """Exports campaigns, and imports what was exported, or what people keep as Markdown.

    Args:
        checks_added: Refuse an import after which its account holds more than it may.
    """

    def __init__(
        self,
        database: Database,
        outbox: IndexOutbox,
        pool: CpuPool,
        *,
        user_models: UserModels,
        checks_added: Collection[CheckAdded],
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._pool = pool
        self._user_models = user_models
        self._checks_added = checks_added

    async def export(
        self,
        identity: Identity,
        campaign_id: UUID,
        file_format: ExportFormat,
        *,
        viewpoint: Viewpoint = GM,
    ) -> FileDownload:
        """A zip of a campaign, or of its texts that prompts of a player can contain.

        A player's zip has no ledger, and only events and lines that count now.

        Raises `CampaignNotFoundError`, `ValidationError`.
        """
        sealer = identity.sealer
        async with open_reading(self._database, identity, campaign_id) as (session, campaign):
            await check_viewpoint(session, viewpoint, [campaign_id], owner_id=identity.user_id)
            fields = open_campaign(sealer, campaign)
            rows = await _load_items(session, campaign, viewpoint)
            events: Sequence[StoryEvent] = ()
            changes: Sequence[Any] = ()
            sources: Mapping[UUID, list[SourceRecord]] = {}
            chats: Sequence[tuple[Chat, list[UUID], Sequence[Any]]] = ()
            if campaign.chronicle_id is not None:
                events = await load_all_events(session, sealer, campaign.chronicle_id)
                if viewpoint != GM:
                    events = [_hide_keywords(each) for each in events if _is_known(each, viewpoint)]
            if file_format == "json":
                chats = await _load_chats(session, campaign)
            if file_format == "json" and viewpoint == GM:
                changes, sources = await _load_changes(session, campaign)

        def write() -> bytes:
            items, counters = open_items(sealer, rows), CompactionRecord()
            if viewpoint == GM:
                counters.version = campaign.version
                counters.edits = campaign.edits
                counters.compactions = campaign.compactions
            else:
                items = filter_existing_items(filter_known_items(items, find_rules(fields.rules)))
            found = OpenCampaign(
                id=campaign_id,
                fields=fields,
                counters=counters,
                items=items,
                uses={row.id: row.uses for row in rows if row.kind == "term"},
                changes=open_changes(sealer, changes, sources),
                chronicle=ChronicleFields(name=fields.name),
                events=events,
                chats=[write_log(sealer, *each, viewpoint) for each in chats],
            )
            files = write_archive(found) if file_format == "json" else write_vault(found)
            return pack(files, deflated=True)

        data = await self._pool.run(identity.user_id, write)
        return FileDownload(data, "application/zip", fields.name, "zip")

    async def import_new(self, identity: Identity, data: bytes, name: str) -> ImportedCampaign:
        """Make a campaign of a zip, with all that is in it or not at all.

        `name` is what it is called where the file does not say. Raises `CampaignFileError`,
        `CampaignFullError`, `ChronicleFullError`, `StorageQuotaExceededError`, `TooLargeError`.
        """
        sealer = identity.sealer
        draft, told = await self._pool.run(sealer.user_id, partial(read_campaign, data, name))
        draft.check_count()
        chats = await self._chat_rows(identity, draft)

        def make() -> CampaignRows:
            return make_campaign_rows(sealer, draft, settle_ledger(draft, told=told), chats)

        rows = await self._pool.run(sealer.user_id, make)
        async with self._database.write() as session:
            await self._store(session, identity, rows, chats)
            for check in self._checks_added:
                await check(session, identity.user_id)
            [view] = await build_campaign_views(session, sealer, [rows.campaign])
        return ImportedCampaign(**msgspec.structs.asdict(view), warnings=draft.warnings)

    async def _chat_rows(self, identity: Identity, draft: CampaignDraft) -> list[ChatRows]:
        if not draft.chats:
            return []
        async with self._database.read() as session:
            models = await self._user_models.of(session, identity.user, identity.sealer)
            people = await _load_people(session, identity, draft)
        tokenizer = best_tokenizer(choose_counting_model(models, identity).tokenizer)
        found: list[ChatRows] = []
        for log in draft.chats:
            unit = CountUnit(tokenizer, names=len(people.intersection(log.head.character_ids)) > 1)
            work = partial(make_chat_rows, identity.sealer, draft, log, unit=unit, people=people)
            found.append(await self._pool.run(identity.user_id, work))
        return found

    async def _store(
        self,
        session: AsyncSession,
        identity: Identity,
        rows: CampaignRows,
        chats: Sequence[ChatRows],
    ) -> None:
        campaign = rows.campaign
        await check_room(session, identity)
        fields = open_campaign(identity.sealer, campaign)
        chronicle = await make_chronicle(session, identity, ChronicleFields(name=fields.name))
        campaign.chronicle_id = chronicle.id
        await insert_campaign(session, identity, self._outbox, rows)
        for chat in chats:
            await _insert(session, Chat, [{**chat.chat, "chronicle_id": chronicle.id}])
            members = [
                {"chat_id": chat.chat["id"], "character_id": each, "place": place}
                for place, each in enumerate(chat.character_ids)
            ]
            await _insert(session, ChatCharacter, members)
            await _insert(session, Message, chat.messages)
            await self._outbox.changed(
                session, identity, kind="message", container_id=chat.chat["id"]
            )
        await _insert(session, ChangeSource, rows.sources)
        if await write_events(
            session, identity.sealer, chronicle.id, rows.events, rows.messages, known={}
        ):
            await self._outbox.changed(session, identity, kind=EVENTS, container_id=chronicle.id)


async def insert_campaign(
    session: AsyncSession, identity: Identity, outbox: IndexOutbox, rows: CampaignRows
) -> None:
    """Store a campaign with its items and its ledger, and queue its indexing."""
    session.add(rows.campaign)
    await session.flush()
    await _insert(session, CampaignItem, rows.items)
    await outbox.changed(session, identity, kind="campaign", container_id=rows.campaign.id)
    await _insert(session, CampaignChange, rows.changes)


async def _insert(session: AsyncSession, table: type[Any], rows: Sequence[dict[str, Any]]) -> None:
    for part in split_chunks(rows, INSERT_BATCH_ROWS):
        await session.execute(insert(table), list(part))


async def _load_items(
    session: AsyncSession, campaign: Campaign, viewpoint: Viewpoint
) -> Sequence[Any]:
    query = select(CampaignItem.id, CampaignItem.kind, CampaignItem.uses, CampaignItem.sealed_state)
    mine = CampaignItem.campaign_id == campaign.id, CampaignItem.user_id == campaign.user_id
    query = query.where(*mine, filter_known_to(viewpoint, CampaignItem.audience))
    return (await session.execute(query.order_by(CampaignItem.id))).all()


def _is_known(event: StoryEvent, viewpoint: Viewpoint) -> bool:
    return event.is_current and may_know(viewpoint, event.audience)


def _hide_keywords(event: StoryEvent) -> StoryEvent:
    """Return an event without the keywords that find it, because no prompt renders them."""
    fields = msgspec.structs.replace(event.fields, keywords=[])
    return msgspec.structs.replace(event, fields=fields)


async def _load_changes(
    session: AsyncSession, campaign: Campaign
) -> tuple[Sequence[Any], dict[UUID, list[SourceRecord]]]:
    """The ledger in order, and the messages that made its changes."""
    mine = CampaignChange.campaign_id == campaign.id, CampaignChange.user_id == campaign.user_id
    query = select(
        *(column for column in CampaignChange.__table__.c if column.key != "user_id"),
        CampaignItem.kind,
    ).join(CampaignItem, CampaignItem.id == CampaignChange.item_id)
    query = query.where(*mine).order_by(CampaignChange.seq)
    rows = [row async for row in stream_rows(session, query)]
    sources: defaultdict[UUID, list[SourceRecord]] = defaultdict(list)
    theirs = select(ChangeSource.change_id, ChangeSource.chat_id, ChangeSource.message_id).join(
        CampaignChange, CampaignChange.id == ChangeSource.change_id
    )
    theirs = theirs.where(*mine).order_by(ChangeSource.message_id)
    async for each in stream_rows(session, theirs):
        record = SourceRecord(chat_id=each.chat_id, message_id=each.message_id)
        sources[each.change_id].append(record)
    return rows, sources


async def _load_chats(
    session: AsyncSession, campaign: Campaign
) -> list[tuple[Chat, list[UUID], Sequence[Any]]]:
    """The sessions, oldest first: (chat, its characters, its messages)."""
    query = select(Chat).where(Chat.campaign_id == campaign.id, Chat.user_id == campaign.user_id)
    chats = (await session.scalars(query.order_by(Chat.id))).all()
    members = await list_character_ids(session, [chat.id for chat in chats])
    found: list[tuple[Chat, list[UUID], Sequence[Any]]] = []
    for chat in chats:
        messages = select(Message.__table__).where(Message.chat_id == chat.id)
        messages = messages.order_by(Message.position, Message.id)
        rows = [row async for row in stream_rows(session, messages)]
        found.append((chat, members.get(chat.id, []), rows))
    return found


async def _load_people(
    session: AsyncSession, identity: Identity, draft: CampaignDraft
) -> set[UUID]:
    """Of the characters and personas that the chats name, those that are the user's."""
    named: set[UUID | None] = set()
    for log in draft.chats:
        named |= {*log.head.character_ids, log.head.persona_id}
        named |= {each for line in log.lines for each in (line.character_id, line.persona_id)}
    wanted = [each for each in named if each is not None]
    found: set[UUID] = set()
    for table in (Character, Persona):
        for part in split_chunks(wanted):
            mine = select(table.id).where(table.id.in_(part), table.user_id == identity.user_id)
            found |= set(await session.scalars(mine))
    return found
