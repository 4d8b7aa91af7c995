"""Stores the states of imported chats and campaigns: the parts that their files do not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Protocol, cast
from uuid import UUID

import msgspec
from msgspec import Raw
from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.profile.settings import UserSettings
from backend.campaigns.ledger.changes import apply_operations, exists
from backend.campaigns.ledger.items import Kind
from backend.campaigns.models import (
    PROPOSAL,
    Campaign,
    CampaignItem,
    CampaignMark,
    CampaignProposal,
    ProposalSource,
)
from backend.campaigns.proposals.authority import ProposalContent
from backend.chats.files import MAX_FILE_BYTES as MAX_MESSAGE_FILE_BYTES
from backend.chats.files import (
    FileDescription,
    FileName,
    SealedFile,
    SealedReference,
    insert_files,
    seal_file,
    seal_reference,
)
from backend.chats.models import (
    CHAT_SETTINGS,
    CHAT_VARIABLES,
    MESSAGE_CONTEXT,
    Chat,
    Message,
    MessageFile,
    encode_notices,
)
from backend.chats.repository import get_chat
from backend.chats.schemas import ChatSettings, GroupSettings
from backend.chats.transfer import LogOrigin
from backend.chronicles.models import CHRONICLE
from backend.chronicles.repository import get_chronicle
from backend.core.audience import list_entities
from backend.core.cpu_pool import CpuPool, iterate_in_slices
from backend.database.base import new_id, split_chunks
from backend.database.engine import Database
from backend.enrichment.models import CHAT_SUMMARY, ChatSummary, EnrichmentMark
from backend.errors import ValidationError
from backend.lorebooks.activation.timed import TimedState
from backend.lorebooks.models import LORE_STATE, ChatLorebook, LoreState
from backend.transfer.archives.content import list_entry_ids
from backend.transfer.archives.ids import NewMessage, read_file, translate_audience
from backend.transfer.archives.records import (
    ID_PATTERN,
    CampaignState,
    ChatState,
    FileRecord,
    ProposalRecord,
    read_record,
)
from backend.transfer.chats.origin import ChatOrigin
from backend.transfer.contracts import FileTree
from backend.transfer.errors import TransferFileError
from backend.transfer.imported import digest_parts, record_imported
from backend.transfer.models import ItemKind
from backend.vault.sealing import Column, Sealer

INSERT_BATCH_ROWS = 500

Messages = Mapping[UUID, NewMessage]


class FindItem(Protocol):
    """Finds items of the account. `ArchiveIds` is one."""

    def find(self, kind: ItemKind, old: UUID | None) -> UUID | None:
        """Return the new id of an item, or None if it was not imported."""
        ...


def translate_settings(
    settings: UserSettings | ChatSettings, ids: FindItem, items: Mapping[UUID, UUID]
) -> tuple[dict[str, Any], list[str]]:
    """Return the changed members of settings with new ids, and warnings about missing items."""
    changes: dict[str, Any] = {}
    warnings: list[str] = []
    if settings.preset_id is not None:
        changes["preset_id"] = ids.find("preset", settings.preset_id)
        if changes["preset_id"] is None:
            warnings.append("Its prompt preset was not imported.")
    if isinstance(settings, UserSettings):
        if settings.persona_id is not None:
            changes["persona_id"] = ids.find("persona", settings.persona_id)
            if changes["persona_id"] is None:
                warnings.append("Its persona was not imported.")
        return changes, warnings
    if settings.viewpoint not in {None, "gm", "public"}:
        seen_by = UUID(settings.viewpoint)
        found = items.get(seen_by) or ids.find("character", seen_by)
        changes["viewpoint"] = str(found) if found is not None else None
    if settings.group != GroupSettings():
        changes["group"] = _translate_group(settings.group, ids)
    if settings.chronicle_id is not None:
        changes["chronicle_id"] = ids.find("chronicle", settings.chronicle_id)
        if changes["chronicle_id"] is None:
            warnings.append("Its chronicle was not imported.")
    return changes, warnings


def _translate_group(group: GroupSettings, ids: FindItem) -> GroupSettings:
    """Return the settings of a group with new ids, without characters that were not imported."""
    named = {*group.narrators, *group.talkativeness}
    found = {each: new for each in named if (new := ids.find("character", each)) is not None}
    return msgspec.structs.replace(
        group,
        narrators=[found[each] for each in group.narrators if each in found],
        talkativeness={
            found[each]: share for each, share in group.talkativeness.items() if each in found
        },
    )


class StateWriter:
    """Stores the state of chats and of a campaign in one transaction.

    `items` are the items of the campaign by their old ids.
    """

    def __init__(
        self,
        session: AsyncSession,
        sealer: Sealer,
        ids: FindItem,
        items: Mapping[UUID, UUID] | None = None,
    ) -> None:
        self._session = session
        self._sealer = sealer
        self._ids = ids
        self._items = items or {}
        self.warnings: list[str] = []

    async def store_chat(
        self,
        state: ChatState,
        chat_id: UUID,
        messages: Messages,
        books: Mapping[UUID, UUID],
        campaign_id: UUID | None = None,
    ) -> None:
        """Store the state of a chat. `books` are the lorebooks that it names, by their old ids."""
        sealer, session = self._sealer, self._session
        chat = await get_chat(session, chat_id, owner_id=sealer.user_id, lock=True)
        changes, warnings = translate_settings(state.settings, self._ids, self._items)
        self.warnings += warnings
        settings = msgspec.structs.replace(state.settings, **changes)
        chat.chronicle_id = settings.chronicle_id
        chat.chronicle_enabled = settings.chronicle_enabled and chat.chronicle_id is not None
        chat.chronicle_since = state.chronicle_since
        kept = msgspec.structs.replace(settings, chronicle_enabled=False, chronicle_id=None)
        if kept != ChatSettings():
            chat.sealed_settings = sealer.seal_bytes(
                CHAT_SETTINGS, chat.id, msgspec.json.encode(kept)
            )
        if state.variables:
            chat.sealed_variables = sealer.seal_bytes(
                CHAT_VARIABLES, chat.id, msgspec.json.encode(state.variables)
            )
        chat.revision += 1
        linked = {
            books[each.lorebook_id]: each.state
            for each in state.lorebooks
            if each.lorebook_id in books
        }
        await self._insert(
            ChatLorebook,
            [
                {"chat_id": chat.id, "lorebook_id": book_id, "state": link}
                for book_id, link in linked.items()
            ],
        )
        await self._store_lore_states(state, chat, messages, books)
        await self._store_summaries(state, chat, messages)
        await self._store_marks(state, chat, messages, campaign_id)
        await self._store_sources(state, chat, messages)

    async def _store_lore_states(
        self, state: ChatState, chat: Chat, messages: Messages, books: Mapping[UUID, UUID]
    ) -> None:
        entries = {
            old: await list_entry_ids(self._session, new)
            for old, new in books.items()
            if any(each.book_id == old for row in state.lore_states for each in row.effects)
        }
        rows: list[dict[str, Any]] = []
        for record in state.lore_states:
            message = messages.get(record.message_id)
            if message is None:
                continue
            effects = {
                entries[each.book_id][each.entry]: each.effect
                for each in record.effects
                if each.entry < len(entries.get(each.book_id, ()))
            }
            data = TimedState(effects).encode()
            rows.append(
                {
                    "id": message.id,
                    "user_id": self._sealer.user_id,
                    "chat_id": chat.id,
                    "position": message.position,
                    "sealed_state": self._sealer.seal_bytes(LORE_STATE, message.id, data),
                }
            )
        await self._insert(LoreState, rows)

    async def _store_summaries(self, state: ChatState, chat: Chat, messages: Messages) -> None:
        rows: dict[tuple[UUID, str], dict[str, Any]] = {}
        for record in state.summaries:
            message = messages.get(record.message_id)
            if message is None:
                continue
            row_id, audience = new_id(), self._translate_readers(record.audience)
            rows[message.id, audience] = {
                "id": row_id,
                "message_id": message.id,
                "user_id": self._sealer.user_id,
                "chat_id": chat.id,
                "position": message.position,
                "begins_at": min(record.begins_at, message.position),
                "is_edited": record.is_edited,
                "sealed_summary": self._sealer.seal(CHAT_SUMMARY, row_id, record.text),
                "audience": audience,
                "created_at": record.created_at,
                "updated_at": record.updated_at,
            }
        await self._insert(ChatSummary, list(rows.values()))

    def _translate_readers(self, column: str) -> str:
        """Return an audience of entities and characters with their new ids."""
        new = {
            each: self._items.get(each) or self._ids.find("character", each)
            for each in list_entities(column)
        }
        return translate_audience(column, {old: each for old, each in new.items() if each})

    async def _store_marks(
        self, state: ChatState, chat: Chat, messages: Messages, campaign_id: UUID | None
    ) -> None:
        place = {"user_id": self._sealer.user_id, "chat_id": chat.id}
        await self._insert(
            EnrichmentMark,
            [
                {**place, "id": found.id, "position": found.position}
                for each in dict.fromkeys(state.recorded)
                if (found := messages.get(each)) is not None
            ],
        )
        if campaign_id is None:
            return
        compacted = {each.message_id: each.version for each in state.compacted}
        await self._insert(
            CampaignMark,
            [
                {
                    **place,
                    "id": found.id,
                    "campaign_id": campaign_id,
                    "position": found.position,
                    "version": version,
                }
                for each, version in compacted.items()
                if (found := messages.get(each)) is not None
            ],
        )

    async def _store_sources(self, state: ChatState, chat: Chat, messages: Messages) -> None:
        """Store the headers of the files that the chat was imported from, for an export."""
        for number, each in enumerate(state.imported):
            message = messages.get(each.message_id) if each.message_id else None
            if each.message_id is not None and message is None:
                continue
            # The digests of these files are not known here, so they can be imported once more.
            parts = chat.id.bytes, str(number).encode()
            await record_imported(
                self._session,
                self._sealer,
                digest=digest_parts(self._sealer, "archived-source", parts),
                kind="chat",
                item_id=chat.id,
                message_id=message.id if message else None,
                source=_make_origin(each).encode(),
            )

    async def store_campaign(
        self, state: CampaignState, campaign: Campaign, messages: Messages
    ) -> None:
        """Store the name of a campaign's chronicle, and its proposals.

        `messages` are those of all its chats that were imported.
        """
        sealer = self._sealer
        if state.chronicle is not None and campaign.chronicle_id is not None:
            chronicle = await get_chronicle(
                self._session, campaign.chronicle_id, owner_id=sealer.user_id, lock=True
            )
            chronicle.sealed_chronicle = sealer.seal_bytes(
                CHRONICLE, chronicle.id, msgspec.json.encode(state.chronicle)
            )
        kinds = await self._load_kinds(campaign)
        texts = {str(old): str(new) for old, new in self._items.items()}
        proposals: list[dict[str, Any]] = []
        sources: list[dict[str, Any]] = []
        for record in state.proposals:
            proposal_id = new_id()
            found = {
                messages[each.message_id].id: self._ids.find("chat", each.chat_id)
                for each in record.sources
                if each.message_id in messages
            }
            row = self._make_proposal(record, campaign, proposal_id, texts, kinds)
            if row is None or not found:
                self.warnings.append("A proposal was left out, because its item is missing.")
                continue
            proposals.append(row)
            sources += [
                {"proposal_id": proposal_id, "message_id": message_id, "chat_id": chat_id}
                for message_id, chat_id in found.items()
                if chat_id is not None
            ]
        await self._insert(CampaignProposal, proposals)
        await self._insert(ProposalSource, sources)

    async def _load_kinds(self, campaign: Campaign) -> dict[UUID, Kind]:
        query = select(CampaignItem.id, CampaignItem.kind).where(
            CampaignItem.campaign_id == campaign.id, CampaignItem.user_id == campaign.user_id
        )
        return {row.id: row.kind for row in await self._session.execute(query)}

    def _make_proposal(
        self,
        record: ProposalRecord,
        campaign: Campaign,
        proposal_id: UUID,
        texts: Mapping[str, str],
        kinds: Mapping[UUID, Kind],
    ) -> dict[str, Any] | None:
        """Return the row of a proposal, or None if it does not fit the items of the campaign."""
        try:
            content = msgspec.convert(replace_texts(record.content, texts), ProposalContent)
        except msgspec.ValidationError as error:
            raise TransferFileError(f"A proposal is damaged: {error}.") from error
        # The id of a new item is not known yet, so any free one will do.
        item_id = self._items.get(record.item_id) or new_id()
        if kinds.get(item_id, record.kind) != record.kind:
            return None
        if content.replaces is not None and kinds.get(content.replaces) != "fact":
            return None
        if exists(content.operations.set):
            try:
                apply_operations(record.kind, {}, content.operations)
            except ValidationError:
                return None
        return {
            "id": proposal_id,
            "user_id": campaign.user_id,
            "campaign_id": campaign.id,
            "item_id": item_id,
            "kind": record.kind,
            "reason": record.reason,
            "state": record.state,
            "audience": self._translate_readers(record.audience),
            "sealed_proposal": self._sealer.seal_bytes(
                PROPOSAL, proposal_id, msgspec.json.encode(content)
            ),
            "created_at": record.created_at,
            "updated_at": record.created_at,
        }

    async def _insert(self, table: type[Any], rows: list[dict[str, Any]]) -> None:
        for part in split_chunks(rows, INSERT_BATCH_ROWS):
            await self._session.execute(insert(table), list(part))


def _make_origin(origin: LogOrigin) -> ChatOrigin:
    """Raises `TransferFileError` if the header or the members of a message are not JSON."""
    parts = [origin.header] if origin.header is not None else []
    for part in (*parts, *origin.messages.values()):
        read_record(part.encode(), Raw)
    return ChatOrigin(
        name=origin.name,
        header=origin.header.encode() if origin.header is not None else None,
        is_joined=origin.is_joined,
        messages={place: data.encode() for place, data in origin.messages.items()},
    )


def replace_texts(value: Any, texts: Mapping[str, str]) -> Any:
    """Return a JSON value in which whole strings are replaced."""
    if isinstance(value, str):
        return texts.get(value, value)
    if isinstance(value, list):
        return [replace_texts(each, texts) for each in cast("Any", value)]
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {key: replace_texts(member, texts) for key, member in members.items()}
    return value


DETAIL_BATCH_ROWS = 500
FILE_BATCH_BYTES = 8 * 1024 * 1024

_STORE_DETAIL = (
    update(Message)
    .where(Message.id == bindparam("message_id"))
    .values(
        notices=bindparam("notices"),
        sealed_injected_context=bindparam("context"),
    )
)


async def store_details(
    database: Database,
    sealer: Sealer,
    state: ChatState,
    messages: Messages,
    ids: Mapping[UUID, UUID],
) -> None:
    """Store the details of a chat's messages, in a transaction for each batch.

    `ids` are the items of its campaign and the account's characters by their old ids. The
    campaign's part of a prompt names items that were shown, and its viewpoint.
    """
    texts = {str(old): str(new) for old, new in ids.items()}

    def translate(text: str | None) -> str | None:
        if text is None or not texts:
            return text
        return ID_PATTERN.sub(lambda found: texts.get(found[0], found[0]), text)

    def seal(column: Column, message_id: UUID, text: str | None) -> bytes | None:
        return None if text is None else sealer.seal(column, message_id, text)

    for part in split_chunks(state.details, DETAIL_BATCH_ROWS):
        rows = [
            {
                "message_id": message.id,
                "notices": encode_notices(each.notices),
                "context": seal(MESSAGE_CONTEXT, message.id, translate(each.injected_context)),
            }
            async for each in iterate_in_slices(part)
            if (message := messages.get(each.message_id)) is not None
        ]
        if rows:
            async with database.write() as session:
                connection = await session.connection()
                await connection.execute(_STORE_DETAIL, rows)


@dataclass(frozen=True, slots=True)
class FileBatch:
    """The files of messages in an archive."""

    paths: frozenset[str]
    tree: FileTree

    def read(self, path: str | None) -> bytes | None:
        """Return a file, or None if it is missing or damaged. In a thread."""
        if path is None or path not in self.paths:
            return None
        try:
            data = read_file(self.tree, path)
        except TransferFileError:
            return None
        return data if len(data) <= MAX_MESSAGE_FILE_BYTES else None


async def store_files(
    database: Database,
    pool: CpuPool,
    sealer: Sealer,
    state: ChatState,
    messages: Messages,
    batch: FileBatch,
) -> int:
    """Store the files of a chat's messages in batches. Return the number of missing files."""
    wanted = [each for each in state.files if each.message_id in messages]
    missing = 0
    for part in _split_by_size(wanted, batch.tree, batch.paths):

        def seal(part: Sequence[FileRecord]) -> tuple[list[SealedFile], list[SealedReference]]:
            files: list[SealedFile] = []
            references: list[SealedReference] = []
            for each in part:
                data = batch.read(each.file)
                if data is not None:
                    about = FileDescription(
                        media_type=each.media_type,
                        size=len(data),
                        width=each.width,
                        height=each.height,
                    )
                    files.append(seal_file(sealer, data, description=about))
                name = FileName(name=each.name, path=each.path)
                digest = files[-1].digest if data is not None else None
                message_id = messages[each.message_id].id
                references.append(
                    seal_reference(sealer, message_id, name, place=each.place, digest=digest)
                )
            return files, references

        files, references = await pool.run(sealer.user_id, partial(seal, part), is_job=True)
        missing += sum(
            each.digest is None and record.file is not None
            for each, record in zip(references, part, strict=True)
        )
        async with database.write() as session:
            changed = {each.message_id for each in references}
            await session.execute(
                delete(MessageFile).where(
                    MessageFile.message_id.in_(changed), MessageFile.user_id == sealer.user_id
                )
            )
            await insert_files(session, sealer.user_id, files, references)
    return missing


def _split_by_size(
    records: Sequence[FileRecord], tree: FileTree, paths: frozenset[str]
) -> Iterator[Sequence[FileRecord]]:
    """Split the records by message into batches of bounded size."""
    part: list[FileRecord] = []
    size = 0
    for _, group in groupby(records, key=lambda each: each.message_id):
        of_message = list(group)
        part += of_message
        size += sum(
            tree.get_size(each.file) for each in of_message if each.file and each.file in paths
        )
        if size >= FILE_BATCH_BYTES or len(part) >= DETAIL_BATCH_ROWS:
            yield part
            part, size = [], 0
    if part:
        yield part
