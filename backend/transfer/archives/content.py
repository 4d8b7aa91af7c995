"""Reads an account as the files of an archive, one after the other.

Each file is read in a separate short transaction, so that play continues. A change during the
export can be in one file and missing in another. An item that cannot be decrypted is left out.
"""

from __future__ import annotations

import mimetypes
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Select, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from backend.accounts.auth.identity import Identity
from backend.accounts.models import User
from backend.campaigns.files.transfer import CampaignTransfer
from backend.campaigns.models import (
    PROPOSAL,
    Campaign,
    CampaignMark,
    CampaignProposal,
    ProposalSource,
)
from backend.characters.models import (
    AVATAR_IMAGE,
    Avatar,
    Character,
    CharacterAsset,
    Persona,
    open_persona,
)
from backend.characters.service import CharacterService
from backend.chats.files import FileDescription, FileName, open_description, open_name
from backend.chats.members import load_group
from backend.chats.models import (
    BACKGROUND_IMAGE,
    CHAT_TITLE,
    FILE_DATA,
    MESSAGE_CONTEXT,
    Background,
    Chat,
    Message,
    MessageFile,
    StoredFile,
    decode_notices,
)
from backend.chats.schemas import ChatSettings
from backend.chats.service import read_settings
from backend.chats.transfer import LogOrigin, write_log
from backend.chronicles.models import Chronicle, ChronicleEvent, EventSource
from backend.chronicles.repository import open_chronicle
from backend.chronicles.transfer import ChronicleTransfer
from backend.core.cpu_pool import CpuPool
from backend.database.base import split_chunks, stream_rows
from backend.database.engine import Database
from backend.enrichment.models import CHAT_SUMMARY, ChatSummary, EnrichmentMark
from backend.llm.models import Provider, ProviderFields, open_provider
from backend.lorebooks.activation.timed import TimedState
from backend.lorebooks.models import (
    LORE_STATE,
    ChatLorebook,
    Lorebook,
    LorebookLink,
    LoreEntryRow,
    LoreState,
)
from backend.lorebooks.service import LorebookService
from backend.presets.models import Preset
from backend.presets.service import PresetService
from backend.regex.service import ScriptService
from backend.transfer.archives.manifest import FOLDERS, STATE_SUFFIX, EntryKind, PathChooser
from backend.transfer.archives.records import (
    CampaignState,
    CharacterLinks,
    ChatBookRecord,
    ChatState,
    CompactionMark,
    EntryOriginRecord,
    FileRecord,
    LinkList,
    LorebookLinksRecord,
    LoreEffect,
    LoreStateRecord,
    MessageDetail,
    MessagePlace,
    PersonaRecord,
    ProposalRecord,
    ProviderRecord,
    SettingsRecord,
    SummaryRecord,
    write_record,
)
from backend.transfer.archives.unreadable import Salvage
from backend.transfer.chats.origin import ChatOrigin
from backend.transfer.models import ImportedFile
from backend.turns.prompt.macros import read_chat_variables, read_global_variables

PICTURE_SUFFIXES = {
    "image/webp": ".webp",
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
}

SCRIPTS_PATH = "regex.json"
LINKS_PATH = "links.json"
SETTINGS_PATH = "settings.json"


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file of an archive, with the fields of its `ArchiveEntry`."""

    path: str
    kind: EntryKind
    data: bytes
    id: UUID | None = None
    name: str = ""
    chats: Sequence[UUID] = ()


class StoredPath(NamedTuple):
    """The place of a message's file in the archive."""

    path: str
    description: FileDescription


class AccountReader:
    """Reads an account for an archive. The files come in the order of an import."""

    def __init__(
        self,
        database: Database,
        pool: CpuPool,
        *,
        characters: CharacterService,
        lorebooks: LorebookService,
        presets: PresetService,
        scripts: ScriptService,
        chronicles: ChronicleTransfer,
        campaigns: CampaignTransfer,
    ) -> None:
        self._database = database
        self._pool = pool
        self._characters = characters
        self._lorebooks = lorebooks
        self._presets = presets
        self._scripts = scripts
        self._chronicles = chronicles
        self._campaigns = campaigns

    async def count(self, identity: Identity) -> int:
        """Return the approximate number of files, for the progress."""
        owner_id = identity.user_id
        async with self._database.read() as session:
            total = 3
            for table in (
                Provider,
                Preset,
                Persona,
                Character,
                Lorebook,
                StoredFile,
                Chat,
                Campaign,
            ):
                query = select(func.count()).select_from(table).where(table.user_id == owner_id)
                total += await session.scalar(query) or 0
        return total

    async def read(self, identity: Identity, salvage: Salvage) -> AsyncIterator[ArchiveFile]:
        """Yield all files except for the manifest. `salvage` notes the items that are left out."""
        paths = PathChooser()
        holders: dict[UUID, str] = {}
        for read in (
            self._read_providers,
            self._read_presets,
            self._read_scripts,
            self._read_personas,
            self._read_characters,
            self._read_lorebooks,
        ):
            async for file in read(identity, salvage, paths):
                _note_holders(file, holders)
                yield file
        stored: dict[UUID, StoredPath] = {}
        async for file in self._read_files(identity, salvage, stored):
            yield file
        stems: dict[UUID, str] = {}
        for read_chats in (self._read_chats, self._read_campaigns):
            async for file in read_chats(identity, salvage, paths, stems):
                _note_holders(file, holders)
                yield file
        async for file in self._read_backgrounds(identity, salvage, paths, holders):
            yield file
        async for file in self._read_chronicles(identity, salvage, paths):
            yield file
        async for file in self._read_states(identity, salvage, stems, stored):
            yield file
        yield await self._read_links(identity)
        yield await self._read_settings(identity, salvage)

    async def _list_ids(
        self,
        column: InstrumentedAttribute[UUID],
        *conditions: ColumnElement[bool] | InstrumentedAttribute[bool],
    ) -> list[UUID]:
        """Return ids in ascending order, so that an import creates the rows in this order."""
        async with self._database.read() as session:
            return list(await session.scalars(select(column).where(*conditions).order_by(column)))

    async def _read_providers(
        self, identity: Identity, salvage: Salvage, paths: PathChooser
    ) -> AsyncIterator[ArchiveFile]:
        query = select(Provider).where(Provider.user_id == identity.user_id).order_by(Provider.id)
        async with self._database.read() as session:
            rows = list(await session.scalars(query))
        for row in rows:
            with salvage.leave_out("provider", row.id):
                config = open_provider(identity.sealer, row)
                values = {name: getattr(config, name) for name in ProviderFields.__struct_fields__}
                values |= {"api_key": None, "extra_headers": {}}
                fields = ProviderFields(**values)
                record = ProviderRecord(
                    slug=row.slug, kind=row.kind, preset=config.preset, fields=fields
                )
                path = paths.choose("provider", row.slug, ".json")
                yield ArchiveFile(path, "provider", write_record(record), row.id, row.slug)

    async def _read_presets(
        self, identity: Identity, salvage: Salvage, paths: PathChooser
    ) -> AsyncIterator[ArchiveFile]:
        for preset_id in await self._list_ids(Preset.id, Preset.user_id == identity.user_id):
            # The file contains no name, because SillyTavern names presets by their files.
            with salvage.leave_out("preset", preset_id):
                file = await self._presets.export(identity, preset_id)
                path = paths.choose("preset", file.stem, ".json")
                yield ArchiveFile(path, "preset", file.data, preset_id, file.stem)

    async def _read_scripts(
        self, identity: Identity, salvage: Salvage, _: PathChooser
    ) -> AsyncIterator[ArchiveFile]:
        with salvage.leave_out("scripts", identity.user_id):
            scripts, _revision = await self._scripts.read(identity)
            if scripts:
                data = msgspec.json.format(msgspec.json.encode(scripts), indent=4)
                yield ArchiveFile(SCRIPTS_PATH, "scripts", data)

    async def _read_personas(
        self, identity: Identity, salvage: Salvage, paths: PathChooser
    ) -> AsyncIterator[ArchiveFile]:
        sealer = identity.sealer
        for persona_id in await self._list_ids(Persona.id, Persona.user_id == identity.user_id):
            async with self._database.read() as session:
                row = await session.get(Persona, persona_id)
                avatar = await session.scalar(select(Avatar).where(Avatar.persona_id == persona_id))
            if row is None:  # deleted since the list was read
                continue
            with salvage.leave_out("persona", persona_id):
                persona = open_persona(sealer, row.id, row.sealed_persona)
                stem = paths.choose("persona", persona.name, "")
                data = write_record(PersonaRecord(persona=persona))
                yield ArchiveFile(f"{stem}.json", "persona", data, persona_id, persona.name)
                if avatar is None:
                    continue
                with salvage.leave_out("avatar", persona_id):
                    picture = sealer.open_bytes(AVATAR_IMAGE, avatar.id, avatar.sealed_image)
                    suffix = PICTURE_SUFFIXES[avatar.media_type]
                    yield ArchiveFile(f"{stem}{suffix}", "avatar", picture, persona_id)

    async def _read_characters(
        self, identity: Identity, salvage: Salvage, paths: PathChooser
    ) -> AsyncIterator[ArchiveFile]:
        owned = Character.user_id == identity.user_id
        for character_id in await self._list_ids(Character.id, owned):
            async with self._database.read() as session:
                has_files = await session.scalar(
                    select(exists().where(CharacterAsset.character_id == character_id))
                )
                has_picture = await session.scalar(
                    select(exists().where(Avatar.character_id == character_id))
                )
            # A PNG of a character without a picture would come back with a placeholder.
            form: Literal["charx", "png", "json"] = (
                "charx" if has_files else "png" if has_picture else "json"
            )
            with salvage.leave_out("character", character_id):
                file = await self._characters.export(
                    identity, character_id, file_format=form, spec="v3"
                )
                path = paths.choose("character", file.stem, f".{file.extension}")
                yield ArchiveFile(path, "character", file.data, character_id, file.stem)

    async def _read_lorebooks(
        self, identity: Identity, salvage: Salvage, paths: PathChooser
    ) -> AsyncIterator[ArchiveFile]:
        """Yield the lorebooks, except for those of cards, which are in the cards."""
        mine = Lorebook.match_owner(identity.user_id), Lorebook.character_id.is_(None)
        for book_id in await self._list_ids(Lorebook.id, *mine):
            with salvage.leave_out("lorebook", book_id):
                file = await self._lorebooks.export(identity, book_id, "world_info")
                path = paths.choose("lorebook", file.stem, ".json")
                yield ArchiveFile(path, "lorebook", file.data, book_id, file.stem)

    async def _read_files(
        self, identity: Identity, salvage: Salvage, stored: dict[UUID, StoredPath]
    ) -> AsyncIterator[ArchiveFile]:
        """Yield the files of messages, named by their digests, and note their paths."""
        sealer = identity.sealer
        for file_id in await self._list_ids(StoredFile.id, StoredFile.user_id == identity.user_id):
            async with self._database.read() as session:
                row = await session.get(StoredFile, file_id)
            if row is None:
                continue
            with salvage.leave_out("file", file_id):
                description = open_description(sealer, row.id, row.sealed_description)
                data = sealer.open_bytes(FILE_DATA, row.id, row.sealed_data)
                suffix = mimetypes.guess_extension(description.media_type) or ".bin"
                path = f"{FOLDERS['file']}/{sha256(data).hexdigest()}{suffix}"
                stored[file_id] = StoredPath(path, description)
                yield ArchiveFile(path, "file", data)

    async def _read_chats(
        self,
        identity: Identity,
        salvage: Salvage,
        paths: PathChooser,
        stems: dict[UUID, str],
    ) -> AsyncIterator[ArchiveFile]:
        mine = Chat.user_id == identity.user_id, Chat.campaign_id.is_(None), Chat.is_ready
        for chat_id in await self._list_ids(Chat.id, *mine):
            found = await self._load_chat(salvage, chat_id)
            if found is None:
                continue
            title, data = found
            stems[chat_id] = paths.choose("chat", title, "")
            yield ArchiveFile(f"{stems[chat_id]}.jsonl", "chat", data, chat_id, title)

    async def _load_chat(self, salvage: Salvage, chat_id: UUID) -> tuple[str, bytes] | None:
        async with self._database.read() as session:
            chat = await session.get(Chat, chat_id)
            if chat is None:
                return None
            group = await load_group(session, chat_id)
            query = select(Message.__table__).where(Message.chat_id == chat_id)
            query = query.order_by(Message.position, Message.id)
            rows = [row async for row in stream_rows(session, query)]

        def write() -> tuple[str, bytes]:
            title = salvage.open_text(CHAT_TITLE, chat.id, chat.sealed_title) or ""
            return title, write_log(salvage.open_text, chat, group.members, rows)

        return await self._pool.run(salvage.sealer.user_id, write, is_job=True)

    async def _read_campaigns(
        self,
        identity: Identity,
        salvage: Salvage,
        paths: PathChooser,
        stems: dict[UUID, str],
    ) -> AsyncIterator[ArchiveFile]:
        owned = Campaign.match_owner(identity.user_id)
        for campaign_id in await self._list_ids(Campaign.id, owned):
            with salvage.leave_out("campaign", campaign_id):
                file = await self._campaigns.export(identity, campaign_id, "json")
                in_campaign = Chat.campaign_id == campaign_id, Chat.is_ready
                chats = await self._list_ids(Chat.id, *in_campaign)
                stem = stems[campaign_id] = paths.choose("campaign", file.stem, "")
                yield ArchiveFile(
                    f"{stem}.zip", "campaign", file.data, campaign_id, file.stem, chats
                )

    async def _read_backgrounds(
        self, identity: Identity, salvage: Salvage, paths: PathChooser, holders: Mapping[UUID, str]
    ) -> AsyncIterator[ArchiveFile]:
        """Yield the backgrounds of characters, and then those of chats.

        `holders` are the names of the characters and chats that the archive has.
        """
        mine, of_chat = Background.user_id == identity.user_id, Background.chat_id.is_not(None)
        ids = [
            *await self._list_ids(Background.id, mine, ~of_chat),
            *await self._list_ids(Background.id, mine, of_chat),
        ]
        for background_id in ids:
            async with self._database.read() as session:
                row = await session.get(Background, background_id)
            holder_id = (row.chat_id or row.character_id) if row else None
            if row is None or holder_id is None or holder_id not in holders:
                continue
            kind: EntryKind = "chat_background" if row.chat_id else "character_background"
            with salvage.leave_out("background", background_id):
                data = identity.sealer.open_bytes(BACKGROUND_IMAGE, row.id, row.sealed_image)
                name = holders[holder_id]
                path = paths.choose(kind, name, PICTURE_SUFFIXES[row.media_type])
                yield ArchiveFile(path, kind, data, holder_id, name)

    async def _read_chronicles(
        self, identity: Identity, salvage: Salvage, paths: PathChooser
    ) -> AsyncIterator[ArchiveFile]:
        """Yield the chronicles, except for those of campaigns, which are in the campaigns."""
        of_campaign = exists().where(
            Campaign.chronicle_id == Chronicle.id, Campaign.match_owner(identity.user_id)
        )
        mine = Chronicle.match_owner(identity.user_id), ~of_campaign
        for chronicle_id in await self._list_ids(Chronicle.id, *mine):
            sources = (
                select(EventSource.chat_id)
                .join(ChronicleEvent, ChronicleEvent.id == EventSource.event_id)
                .where(ChronicleEvent.chronicle_id == chronicle_id)
                .distinct()
                .order_by(EventSource.chat_id)
            )
            async with self._database.read() as session:
                chats = list(await session.scalars(sources))
            with salvage.leave_out("chronicle", chronicle_id):
                file = await self._chronicles.export(identity, chronicle_id)
                path = paths.choose("chronicle", file.stem, ".json")
                yield ArchiveFile(path, "chronicle", file.data, chronicle_id, file.stem, chats)

    async def _read_states(
        self,
        identity: Identity,
        salvage: Salvage,
        stems: dict[UUID, str],
        stored: Mapping[UUID, StoredPath],
    ) -> AsyncIterator[ArchiveFile]:
        """Yield the states of chats and campaigns. Chats with default settings have none."""
        owner_id = identity.user_id
        for chat_id in await self._list_ids(
            Chat.id, Chat.user_id == owner_id, Chat.campaign_id.is_(None)
        ):
            if chat_id not in stems:
                continue
            state = await self._read_chat_state(salvage, chat_id, stored)
            if state is not None and not state.is_default:
                data = write_record(state)
                yield ArchiveFile(f"{stems[chat_id]}{STATE_SUFFIX}", "chat_state", data, chat_id)
        for campaign_id in await self._list_ids(Campaign.id, Campaign.match_owner(owner_id)):
            if campaign_id not in stems:
                continue
            state_data = await self._read_campaign_state(salvage, campaign_id, stored)
            if state_data is not None:
                path = f"{stems[campaign_id]}{STATE_SUFFIX}"
                yield ArchiveFile(path, "campaign_state", state_data, campaign_id)

    async def _read_chat_state(
        self, salvage: Salvage, chat_id: UUID, stored: Mapping[UUID, StoredPath]
    ) -> ChatState | None:
        async with self._database.read() as session:
            chat = await session.get(Chat, chat_id)
            if chat is None:
                return None
            return await _load_chat_state(session, salvage, chat, stored)

    async def _read_campaign_state(
        self, salvage: Salvage, campaign_id: UUID, stored: Mapping[UUID, StoredPath]
    ) -> bytes | None:
        async with self._database.read() as session:
            campaign = await session.get(Campaign, campaign_id)
            if campaign is None:
                return None
            state = CampaignState(campaign_id=campaign_id, chronicle_id=campaign.chronicle_id)
            if campaign.chronicle_id is not None:
                chronicle = await session.get(Chronicle, campaign.chronicle_id)
                with salvage.leave_out("chronicle", campaign.chronicle_id):
                    state.chronicle = (
                        open_chronicle(salvage.sealer, chronicle) if chronicle else None
                    )
            state.proposals = await _load_proposals(session, salvage, campaign_id)
            in_campaign = Chat.campaign_id == campaign_id, Chat.is_ready
            chats = list(await session.scalars(select(Chat).where(*in_campaign).order_by(Chat.id)))
        for chat in chats:
            found = await self._read_chat_state(salvage, chat.id, stored)
            if found is not None:
                state.chats.append(found)
        return write_record(state)

    async def _read_links(self, identity: Identity) -> ArchiveFile:
        owner_id = identity.user_id
        links = LinkList()
        async with self._database.read() as session:
            books = (
                await session.execute(
                    select(
                        Lorebook.id,
                        Lorebook.character_id,
                        Lorebook.chronicle_id,
                        Lorebook.is_global,
                    )
                    .where(Lorebook.match_owner(owner_id))
                    .order_by(Lorebook.id)
                )
            ).all()
            of_cards = {row.character_id: row.id for row in books if row.character_id}
            query = select(
                Character.id,
                Character.scripts_allowed,
                Character.is_favourite,
                Character.preset_id,
            )
            query = query.where(Character.user_id == owner_id).order_by(Character.id)
            links.characters = [
                CharacterLinks(
                    id=character_id,
                    scripts_allowed=scripts_allowed,
                    is_favourite=is_favourite,
                    preset_id=preset_id,
                    book_id=of_cards.get(character_id),
                )
                for character_id, scripts_allowed, is_favourite, preset_id in await session.execute(
                    query
                )
            ]
            linked = await _load_book_links(session, owner_id)
            origins = await _load_origins(session, owner_id)
        for row in books:
            link = LorebookLinksRecord(
                id=row.id, is_global=row.is_global, chronicle_id=row.chronicle_id
            )
            for character_id, persona_id in linked.get(row.id, ()):
                if character_id is not None:
                    link.character_ids.append(character_id)
                if persona_id is not None:
                    link.persona_ids.append(persona_id)
            link.origins = origins.get(row.id, [])
            links.lorebooks.append(link)
        return ArchiveFile(LINKS_PATH, "links", write_record(links))

    async def _read_settings(self, identity: Identity, salvage: Salvage) -> ArchiveFile:
        async with self._database.read() as session:
            sealed = await session.scalar(
                select(User.sealed_variables).where(User.id == identity.user_id)
            )
        record = SettingsRecord()
        with salvage.leave_out("variables", identity.user_id):
            record.variables = read_global_variables(identity.sealer, sealed)
        with salvage.leave_out("settings", identity.user_id):
            settings = identity.settings
            # An embedding model gets all texts, so the user chooses it again elsewhere.
            tasks = msgspec.structs.replace(settings.task_models, embedding=None)
            record.settings = msgspec.structs.replace(settings, task_models=tasks)
        return ArchiveFile(SETTINGS_PATH, "settings", write_record(record))


def _note_holders(file: ArchiveFile, holders: dict[UUID, str]) -> None:
    """Note the name of each character and chat in a file. Chats of a campaign have its name."""
    if file.kind == "campaign":
        holders.update(dict.fromkeys(file.chats, file.name))
    elif file.kind in {"character", "chat"} and file.id is not None:
        holders[file.id] = file.name


async def _load_book_links(
    session: AsyncSession, owner_id: UUID
) -> dict[UUID, list[tuple[UUID | None, UUID | None]]]:
    query = select(LorebookLink.lorebook_id, LorebookLink.character_id, LorebookLink.persona_id)
    query = query.where(LorebookLink.user_id == owner_id).order_by(LorebookLink.id)
    found: defaultdict[UUID, list[tuple[UUID | None, UUID | None]]] = defaultdict(list)
    for book_id, character_id, persona_id in await session.execute(query):
        found[book_id].append((character_id, persona_id))
    return found


async def _load_origins(
    session: AsyncSession, owner_id: UUID
) -> dict[UUID, list[EntryOriginRecord]]:
    """Return the origins of the entries that the agent wrote, by book."""
    entry = LoreEntryRow
    written = select(entry.lorebook_id).where(
        entry.user_id == owner_id, entry.agent_run_id.is_not(None)
    )
    books = list(await session.scalars(written.distinct()))
    found: dict[UUID, list[EntryOriginRecord]] = {}
    for book_id in books:
        query = select(
            entry.agent_run_id,
            entry.agent_revision,
            entry.revision,
            entry.source_chat_id,
            entry.source_message_id,
        )
        query = query.where(entry.lorebook_id == book_id).order_by(entry.place, entry.id)
        rows = (await session.execute(query)).all()
        found[book_id] = [
            EntryOriginRecord(
                entry=number,
                is_agents=row.agent_revision == row.revision,
                chat_id=row.source_chat_id,
                message_id=row.source_message_id,
            )
            for number, row in enumerate(rows)
            if row.agent_run_id is not None
        ]
    return found


async def _load_chat_state(
    session: AsyncSession, salvage: Salvage, chat: Chat, stored: Mapping[UUID, StoredPath]
) -> ChatState:
    sealer = salvage.sealer
    state = ChatState(
        chat_id=chat.id,
        settings=ChatSettings(
            chronicle_enabled=chat.chronicle_enabled, chronicle_id=chat.chronicle_id
        ),
        chronicle_since=chat.chronicle_since,
    )
    with salvage.leave_out("chat_settings", chat.id):
        state.settings = read_settings(sealer, chat)
    with salvage.leave_out("chat_variables", chat.id):
        state.variables = read_chat_variables(sealer, chat)
    links = select(ChatLorebook.lorebook_id, ChatLorebook.state)
    links = links.where(ChatLorebook.chat_id == chat.id).order_by(ChatLorebook.lorebook_id)
    state.lorebooks = [
        ChatBookRecord(lorebook_id=book_id, state=link)
        for book_id, link in await session.execute(links)
    ]
    state.lore_states = await _load_lore_states(session, salvage, chat.id)
    state.summaries = await _load_summaries(session, salvage, chat.id)
    state.details = await _load_details(session, salvage, chat.id)
    state.files = await _load_message_files(session, salvage, chat.id, stored)
    state.imported = await _load_chat_origins(session, salvage, chat.id)
    marks = select(EnrichmentMark.id).where(EnrichmentMark.chat_id == chat.id)
    state.recorded = list(
        await session.scalars(marks.order_by(EnrichmentMark.position, EnrichmentMark.id))
    )
    compacted = select(CampaignMark.id, CampaignMark.version)
    compacted = compacted.where(CampaignMark.chat_id == chat.id)
    compacted = compacted.order_by(CampaignMark.position, CampaignMark.id)
    state.compacted = [
        CompactionMark(message_id=message_id, version=version)
        for message_id, version in await session.execute(compacted)
    ]
    return state


async def _load_summaries(
    session: AsyncSession, salvage: Salvage, chat_id: UUID
) -> list[SummaryRecord]:
    def open_row(row: ChatSummary) -> SummaryRecord:
        return SummaryRecord(
            message_id=row.message_id,
            text=salvage.sealer.open(CHAT_SUMMARY, row.id, row.sealed_summary),
            begins_at=row.begins_at,
            audience=row.audience,
            is_edited=row.is_edited,
            created_at=row.created_at,
            updated_at=row.updated_at,
        )

    query = select(ChatSummary).where(ChatSummary.chat_id == chat_id)
    query = query.order_by(ChatSummary.position, ChatSummary.created_at, ChatSummary.message_id)
    return salvage.open_rows("summary", await session.scalars(query), open_row)


async def _load_chat_origins(
    session: AsyncSession, salvage: Salvage, chat_id: UUID
) -> list[LogOrigin]:
    def open_row(row: ImportedFile) -> LogOrigin:
        origin = ChatOrigin.open(salvage.sealer, row.id, row.sealed_source or b"")
        return origin.to_log(row.message_id)

    query = select(ImportedFile).where(
        ImportedFile.item_id == chat_id,
        ImportedFile.user_id == salvage.sealer.user_id,
        ImportedFile.sealed_source.is_not(None),
    )
    rows = await session.scalars(query.order_by(ImportedFile.id))
    return salvage.open_rows("chat_source", rows, open_row)


async def _load_lore_states(
    session: AsyncSession, salvage: Salvage, chat_id: UUID
) -> list[LoreStateRecord]:
    sealer = salvage.sealer

    def open_row(row: Any) -> tuple[UUID, TimedState]:
        data = sealer.open_bytes(LORE_STATE, row.id, row.sealed_state)
        return row.id, TimedState.decode(data)

    query = select(LoreState.id, LoreState.sealed_state).where(LoreState.chat_id == chat_id)
    rows = (await session.execute(query.order_by(LoreState.position, LoreState.id))).all()
    states = dict(salvage.open_rows("lore_state", rows, open_row))
    entries = {each for state in states.values() for each in state.effects}
    places = await find_entry_places(session, entries, owner_id=sealer.user_id)
    return [
        LoreStateRecord(
            message_id=message_id,
            effects=sorted(
                (
                    LoreEffect(book_id=book_id, entry=number, effect=effect)
                    for entry_id, effect in state.effects.items()
                    if (place := places.get(entry_id))
                    for book_id, number in (place,)
                ),
                key=lambda each: (each.book_id, each.entry),
            ),
        )
        for message_id, state in states.items()
    ]


async def find_entry_places(
    session: AsyncSession, entry_ids: Iterable[UUID], *, owner_id: UUID
) -> dict[UUID, tuple[UUID, int]]:
    """Return the book of each entry, and the entry's place in it, from 0."""
    books: set[UUID] = set()
    for ids in split_chunks(list(entry_ids)):
        query = select(LoreEntryRow.lorebook_id).where(
            LoreEntryRow.id.in_(ids), LoreEntryRow.user_id == owner_id
        )
        books.update(await session.scalars(query.distinct()))
    found: dict[UUID, tuple[UUID, int]] = {}
    for book_id in books:
        ids = await list_entry_ids(session, book_id)
        found |= {entry_id: (book_id, number) for number, entry_id in enumerate(ids)}
    return found


async def list_entry_ids(session: AsyncSession, book_id: UUID) -> list[UUID]:
    """Return the entries of a book in order."""
    query = select(LoreEntryRow.id).where(LoreEntryRow.lorebook_id == book_id)
    return list(await session.scalars(query.order_by(LoreEntryRow.place, LoreEntryRow.id)))


async def _load_details(
    session: AsyncSession, salvage: Salvage, chat_id: UUID
) -> list[MessageDetail]:
    columns = Message.sealed_injected_context, Message.notices
    query = select(Message.id, *columns).where(
        Message.chat_id == chat_id, or_(*(each.is_not(None) for each in columns))
    )
    query = query.order_by(Message.position, Message.id)
    details: list[MessageDetail] = []
    async for row in stream_rows(session, query):
        detail = MessageDetail(message_id=row.id, notices=decode_notices(row.notices))
        if row.sealed_injected_context is not None:
            detail.injected_context = salvage.open_text(
                MESSAGE_CONTEXT, row.id, row.sealed_injected_context
            )
        details.append(detail)
    return details


async def _load_message_files(
    session: AsyncSession, salvage: Salvage, chat_id: UUID, stored: Mapping[UUID, StoredPath]
) -> list[FileRecord]:
    query = (
        select(
            MessageFile.id,
            MessageFile.message_id,
            MessageFile.file_id,
            MessageFile.place,
            MessageFile.sealed_reference,
        )
        .join(Message, Message.id == MessageFile.message_id)
        .where(Message.chat_id == chat_id)
        .order_by(Message.position, Message.id, MessageFile.place, MessageFile.id)
    )
    files: list[FileRecord] = []
    async for row in stream_rows(session, query):
        name = FileName(name="", path="")
        with salvage.leave_out("file_name", row.id):
            name = open_name(salvage.sealer, row.id, row.sealed_reference)
        found = stored.get(row.file_id)
        about = found.description if found else None
        files.append(
            FileRecord(
                message_id=row.message_id,
                place=row.place,
                file=found.path if found else None,
                media_type=about.media_type if about else "",
                name=name.name,
                path=name.path,
                width=about.width if about else None,
                height=about.height if about else None,
            )
        )
    return files


async def _load_proposals(
    session: AsyncSession, salvage: Salvage, campaign_id: UUID
) -> list[ProposalRecord]:
    query: Select[Any] = select(CampaignProposal).where(CampaignProposal.campaign_id == campaign_id)
    rows = list(await session.scalars(query.order_by(CampaignProposal.id)))
    sources: defaultdict[UUID, list[MessagePlace]] = defaultdict(list)
    of_campaign = (
        select(ProposalSource)
        .join(CampaignProposal, CampaignProposal.id == ProposalSource.proposal_id)
        .where(CampaignProposal.campaign_id == campaign_id)
        .order_by(ProposalSource.message_id)
    )
    for source in await session.scalars(of_campaign):
        place = MessagePlace(chat_id=source.chat_id, message_id=source.message_id)
        sources[source.proposal_id].append(place)

    def open_row(row: CampaignProposal) -> ProposalRecord:
        data = salvage.sealer.open_bytes(PROPOSAL, row.id, row.sealed_proposal)
        return ProposalRecord(
            item_id=row.item_id,
            kind=row.kind,
            reason=row.reason,
            state=row.state,
            audience=row.audience,
            content=msgspec.json.decode(data, type=dict[str, Any]),
            sources=sources[row.id],
            created_at=row.created_at,
        )

    return salvage.open_rows("proposal", rows, open_row)
