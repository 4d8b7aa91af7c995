"""Exports campaigns to files, and imports them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.api.schemas import CampaignView
from backend.campaigns.api.service import check_room
from backend.campaigns.errors import CampaignFileError
from backend.campaigns.files.archive import (
    MAIN,
    ChangeRecord,
    CompactionRecord,
    OpenCampaign,
    SourceRecord,
    list_covered_items,
    read_archive,
    write_archive,
)
from backend.campaigns.files.draft import ZIP_ENTRIES, CampaignDraft, settle_ledger
from backend.campaigns.files.vault import FOLDER_KINDS
from backend.campaigns.files.vault_reader import is_vault, read_vault
from backend.campaigns.files.vault_writer import write_vault
from backend.campaigns.ledger import store as ledger_store
from backend.campaigns.ledger.changes import State, exists
from backend.campaigns.ledger.items import Kind
from backend.campaigns.ledger.records import (
    build_campaign_views,
    keep_references,
    open_campaign,
    open_reading,
    seal_campaign,
)
from backend.campaigns.ledger.store import build_item_row, read_state
from backend.campaigns.models import (
    OPERATIONS,
    Campaign,
    CampaignChange,
    CampaignItem,
    ChangeSource,
)
from backend.campaigns.rules.protocol import find_rules
from backend.campaigns.state.knowledge import ItemScope, load_known_items, take_known_states
from backend.campaigns.state.viewpoints import filter_known_items, resolve_campaign_viewpoint
from backend.characters.card_rows import FileDownload
from backend.characters.cards.charx import is_archive, pack, unpack
from backend.characters.cards.model import check_file_size
from backend.characters.errors import CardError, CardLimitError
from backend.characters.models import Character, Persona
from backend.chats.members import load_group
from backend.chats.models import CHAT_TITLE, Chat, ChatCharacter, Message
from backend.chats.service import choose_counting_model
from backend.chats.token_counting import CountUnit
from backend.chats.transfer import ChatLog, build_message_rows, get_list_columns, write_log
from backend.chronicles.event_search import load_all_events
from backend.chronicles.events import ChronicleFields
from backend.chronicles.index_source import KIND as EVENTS
from backend.chronicles.repository import SourceMessage, StoryEvent, make_chronicle
from backend.chronicles.transfer import IncomingEvent, incoming_event, write_events
from backend.core.audience import GM, Viewpoint, Witness, filter_known_to
from backend.core.cpu_pool import CpuPool, check_stopped
from backend.database.base import (
    RecordCreated,
    new_id,
    record_nothing,
    split_chunks,
    stream_rows,
)
from backend.database.engine import Database
from backend.generation.tokens import choose_tokenizer
from backend.llm.user_models import UserModels
from backend.memory.indexing.outbox import IndexOutbox
from backend.quotas.service import CheckAdded
from backend.vault.sealing import Sealer

ExportFormat = Literal["json", "vault"]

INSERT_BATCH_ROWS = 500
"""Maximum number of rows in one statement."""

OWN_FOLDERS = frozenset({"canon", "chats", *FOLDER_KINDS})
MAX_FOLDERS = 3
"""Maximum number of outer folders that are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRows:
    """The rows of a chat with its messages. `members` are true if they are there from the start."""

    chat: dict[str, Any]
    members: Mapping[UUID, bool]
    messages: Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignRows:
    """The rows of a campaign with its items, its ledger and the events of its chronicle.

    `messages` are the messages of its chats by their ids in the file.
    """

    campaign: Campaign
    items: Sequence[dict[str, Any]]
    changes: Sequence[dict[str, Any]]
    sources: Sequence[dict[str, Any]]
    events: Sequence[IncomingEvent]
    messages: Mapping[UUID, SourceMessage]


def make_chat_rows(
    sealer: Sealer, draft: CampaignDraft, log: ChatLog, *, unit: CountUnit, people: Collection[UUID]
) -> ChatRows:
    """Return the rows of a chat. `people` are the owner's characters and personas."""
    chat_id, head = new_id(), log.head
    rows = build_message_rows(
        sealer,
        log,
        chat_id=chat_id,
        unit=unit,
        ids=draft.ids,
        audience=draft.audience,
        people=people,
    )
    chat = {
        "id": chat_id,
        "user_id": sealer.user_id,
        "sealed_title": sealer.seal(CHAT_TITLE, chat_id, head.title),
        **get_list_columns(head),
        "persona_id": head.persona_id if head.persona_id in people else None,
        "campaign_id": draft.id,
        "leaf_id": draft.ids[head.leaf_id] if head.leaf_id else None,
        "count_unit": str(unit),
        "created_at": head.created_at.astimezone(UTC),
        "updated_at": head.created_at.astimezone(UTC),
    }
    members = {each: is_there for each, is_there in log.members.items() if each in people}
    return ChatRows(chat=chat, members=members, messages=rows)


def make_campaign_rows(
    sealer: Sealer,
    draft: CampaignDraft,
    settled: Mapping[UUID, tuple[State, int]],
    chats: Iterable[ChatRows],
    *,
    keeps_sources: bool = False,
) -> CampaignRows:
    """Return the rows of a campaign. `settled` has each item's state and last active change.

    With `keeps_sources`, the events of its chronicle keep their authors.
    """
    campaign = Campaign(
        id=draft.id,
        user_id=sealer.user_id,
        version=max(draft.version, 1),
        last_seq=draft.lines[-1].seq if draft.lines else 0,
        edits=draft.edits,
        compactions=draft.compactions,
    )
    seal_campaign(sealer, campaign, draft.fields)
    messages = {
        row["id"]: SourceMessage(id=row["id"], chat_id=row["chat_id"], position=row["position"])
        for chat in chats
        for row in chat.messages
    }
    items = [
        {
            **build_item_row(sealer, campaign, item_id, draft.kinds[item_id], state, seq),
            "uses": draft.uses.get(item_id, 0),
        }
        for item_id, (state, seq) in settled.items()
    ]
    changes: list[dict[str, Any]] = []
    sources: list[dict[str, Any]] = []
    for line in draft.lines:
        check_stopped()
        change_id = new_id()
        changes.append(
            {
                "id": change_id,
                "user_id": sealer.user_id,
                "campaign_id": draft.id,
                "item_id": line.item_id,
                "seq": line.seq,
                "version": line.version,
                "actor": line.actor,
                "is_on_path": line.is_on_path,
                "is_undone": line.is_undone,
                "sealed_operations": sealer.seal_bytes(
                    OPERATIONS, change_id, msgspec.json.encode(line.operations)
                ),
                "created_at": line.created_at,
            }
        )
        sources += [
            {
                "change_id": change_id,
                "message_id": each,
                "chat_id": messages[each].chat_id,
                "position": messages[each].position,
            }
            for each in line.messages
        ]
    return CampaignRows(
        campaign=campaign,
        items=items,
        changes=changes,
        sources=sources,
        events=[
            incoming_event(
                sealer,
                record,
                audience=draft.audience(record.audience),
                keeps_source=keeps_sources,
            )
            for record in draft.events
        ],
        messages={old: messages[new] for old, new in draft.ids.items() if new in messages},
    )


def open_items(sealer: Sealer, rows: Iterable[Any]) -> list[tuple[UUID, Kind, State]]:
    """Unseal items from rows of `id`, `kind` and `sealed_state`."""
    return [(row.id, row.kind, read_state(sealer, row.id, row.sealed_state)) for row in rows]


def filter_existing_items(
    items: Iterable[tuple[UUID, Kind, State]], characters: Iterable[UUID] = ()
) -> list[tuple[UUID, Kind, State]]:
    """Return the items that exist, without references to other items or other characters."""
    known = [each for each in items if exists(each[2])]
    found = {*(str(item_id) for item_id, *_ in known), *map(str, characters)}
    kept: list[tuple[UUID, Kind, State]] = []
    for item_id, kind, state in known:
        if kind != "relation" or {state["from_id"], state["to_id"]} <= found:
            kept.append((item_id, kind, keep_references(state, found)))
    return kept


def open_changes(
    sealer: Sealer, rows: Iterable[Any], sources: Mapping[UUID, list[SourceRecord]]
) -> list[ChangeRecord]:
    """Unseal changes from rows, which include the `kind` of the item."""
    records: list[ChangeRecord] = []
    for row in rows:
        check_stopped()
        operations = ledger_store.read_operations(sealer, row.id, row.sealed_operations)
        records.append(
            ChangeRecord(
                seq=row.seq,
                version=row.version,
                actor=row.actor,
                kind=row.kind,
                item_id=row.item_id,
                created_at=row.created_at,
                set=operations.set,
                add=operations.add,
                remove=operations.remove,
                because=operations.because,
                on_path=row.is_on_path,
                undone=row.is_undone,
                sources=sources.get(row.id, []),
            )
        )
    return records


def read_campaign(data: bytes, name: str) -> tuple[CampaignDraft, Collection[UUID]]:
    """Read a zip. Return its campaign, and the items of kinds that its files list completely.

    `name` is used if neither the files nor a folder around them name the campaign. Raises
    `CampaignFileError`, `TooLargeError`.
    """
    check_file_size(len(data))
    if not is_archive(data):
        raise CampaignFileError("This is not a zip file.")
    try:
        files, folder = _remove_folders(unpack(data, label="zip file", entries=ZIP_ENTRIES))
    except CardLimitError as error:
        limit = {"limit": error.limit, "allowed": error.allowed, "found": error.found}
        raise CampaignFileError(error.detail, extra=limit) from error
    except CardError as error:
        raise CampaignFileError(error.detail) from error
    if MAIN in files:
        draft = read_archive(files)
        return draft, list_covered_items(files, draft)
    if is_vault(files):
        return read_vault(files, folder.strip() or name), ()
    raise CampaignFileError(
        f"The zip file contains no campaign: neither `{MAIN}` nor a vault with `campaign.md` or "
        "a folder `canon`."
    )


def unpack_campaign(data: bytes) -> dict[str, bytes]:
    """Return the files of an exported zip. CPU-bound. Raises `CampaignFileError`."""
    try:
        return unpack(data, label="zip file", entries=ZIP_ENTRIES)
    except CardError as error:
        raise CampaignFileError(error.detail) from error


def is_campaign(paths: Iterable[str]) -> bool:
    """True if a zip with these paths is an exported campaign or a vault."""
    files, _ = _remove_folders(dict.fromkeys(paths, b""))
    return MAIN in files or is_vault(files)


def _remove_folders(files: Mapping[str, bytes]) -> tuple[dict[str, bytes], str]:
    """Remove hidden files and folders that contain all others; return the innermost name, too."""
    kept = {path: data for path, data in files.items() if not _is_hidden(path)}
    folder = ""
    for _ in range(MAX_FOLDERS):
        tops = {path.partition("/")[0] for path in kept}
        if (
            len(tops) != 1
            or {*map(str.casefold, tops)} <= OWN_FOLDERS
            or any("/" not in path for path in kept)
        ):
            break
        [folder] = tops
        kept = {path.partition("/")[2]: data for path, data in kept.items()}
    return kept, folder


def _is_hidden(path: str) -> bool:
    """True for files of other programs: `.obsidian/`, `__MACOSX/`, `.DS_Store`."""
    return any(part.startswith(".") or part == "__MACOSX" for part in path.split("/"))


class ImportedCampaign(CampaignView, kw_only=True):
    """A campaign from a file. `warnings` name the parts that were not understood."""

    warnings: list[str]


class CampaignTransfer:
    """Exports campaigns, and imports exported ones and vaults of Markdown.

    Args:
        checks_added: Quotas that can refuse an import.
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
        """Return a zip of a campaign, or of its texts that prompts of a player can contain.

        A player's zip has no ledger, and only current events and messages. Raises
        `CampaignNotFoundError`, `ValidationError`.
        """
        sealer = identity.sealer
        async with open_reading(self._database, identity, campaign_id) as (session, campaign):
            viewpoint = await resolve_campaign_viewpoint(session, identity, campaign_id, viewpoint)
            fields = open_campaign(sealer, campaign)
            rows = await _load_items(session, campaign, viewpoint)
            known = await load_known_items(
                session, sealer, [viewpoint], ItemScope(campaign_id=campaign_id)
            )
            events: Sequence[StoryEvent] = ()
            changes: Sequence[Any] = ()
            sources: Mapping[UUID, list[SourceRecord]] = {}
            chats: Sequence[tuple[Chat, Mapping[UUID, bool], Sequence[Any]]] = ()
            if campaign.chronicle_id is not None:
                events = await load_all_events(
                    session, sealer, campaign.chronicle_id, viewpoint=viewpoint
                )
                if viewpoint != GM:
                    events = [_hide_keywords(each) for each in events if each.is_current]
            if file_format == "json":
                chats = await _load_chats(session, campaign)
                if isinstance(viewpoint, Witness):
                    chats = [each for each in chats if viewpoint.character_id in each[1]]
            if file_format == "json" and viewpoint == GM:
                changes, sources = await _load_changes(session, campaign)

        def write() -> bytes:
            items, counters = open_items(sealer, rows), CompactionRecord()
            if viewpoint == GM:
                counters.version = campaign.version
                counters.edits = campaign.edits
                counters.compactions = campaign.compactions
            else:
                items = take_known_states(items, known)
                items = filter_known_items(items, find_rules(fields.rules), viewpoint)
                items = filter_existing_items(items)
            found = OpenCampaign(
                id=campaign_id,
                fields=fields,
                counters=counters,
                items=items,
                uses={row.id: row.uses for row in rows if row.kind == "term"},
                changes=open_changes(sealer, changes, sources),
                chronicle=ChronicleFields(name=fields.name),
                events=events,
                chats=[write_log(sealer.open, *each, viewpoint) for each in chats],
            )
            files = write_archive(found) if file_format == "json" else write_vault(found)
            return pack(files, deflated=True)

        data = await self._pool.run(identity.user_id, write)
        return FileDownload(data, "application/zip", fields.name, "zip")

    async def import_new(
        self,
        identity: Identity,
        data: bytes,
        name: str,
        *,
        people: Mapping[UUID, UUID] | None = None,
        record: RecordCreated = record_nothing,
    ) -> ImportedCampaign:
        """Store the campaign of a zip in one transaction.

        `name` is used if the file names no campaign. `people` are the user's characters and
        personas by their ids in the file, if the file is part of an archive of the same user: then
        events keep their authors. Without it, they have the same ids here. Raises
        `CampaignFileError`, `CampaignFullError`, `ChronicleFullError`,
        `StorageQuotaExceededError`, `TooLargeError`.
        """
        sealer = identity.sealer
        draft, covered = await self._pool.run(sealer.user_id, partial(read_campaign, data, name))
        draft.check_count()
        if people is not None:
            for log in draft.chats:
                log.rename_people(people)
        known = await self._find_people(identity, draft) if people is None else people
        await self._pool.run(sealer.user_id, partial(draft.rename_people, known))
        chats = await self._chat_rows(identity, draft)

        def make() -> CampaignRows:
            settled = settle_ledger(draft, covered=covered)
            return make_campaign_rows(
                sealer, draft, settled, chats, keeps_sources=people is not None
            )

        rows = await self._pool.run(sealer.user_id, make)
        async with self._database.write() as session:
            await self._store(session, identity, rows, chats)
            for check in self._checks_added:
                await check(session, identity.user_id)
            await record(session, rows.campaign.id)
            [view] = await build_campaign_views(session, sealer, [rows.campaign])
        return ImportedCampaign(**msgspec.structs.asdict(view), warnings=draft.warnings)

    async def _find_people(self, identity: Identity, draft: CampaignDraft) -> dict[UUID, UUID]:
        """Return the user's characters that items and audiences of the file name."""
        named = await self._pool.run(identity.user_id, draft.list_people)
        async with self._database.read() as session:
            return {each: each for each in await _load_own(session, identity, Character, named)}

    async def _chat_rows(self, identity: Identity, draft: CampaignDraft) -> list[ChatRows]:
        if not draft.chats:
            return []
        async with self._database.read() as session:
            models = await self._user_models.of(session, identity.user, identity.sealer)
            people = await _load_people(session, identity, draft)
        tokenizer = choose_tokenizer(choose_counting_model(models, identity).tokenizer)
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
                {
                    "chat_id": chat.chat["id"],
                    "character_id": each,
                    "place": place,
                    "is_from_start": is_there,
                }
                for place, (each, is_there) in enumerate(chat.members.items())
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


def _hide_keywords(event: StoryEvent) -> StoryEvent:
    """Return an event without the keywords that find it, because no prompt renders them."""
    fields = msgspec.structs.replace(event.fields, keywords=[])
    return msgspec.structs.replace(event, fields=fields)


async def _load_changes(
    session: AsyncSession, campaign: Campaign
) -> tuple[Sequence[Any], dict[UUID, list[SourceRecord]]]:
    """Return the ledger in order, and the messages that made its changes."""
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
) -> list[tuple[Chat, Mapping[UUID, bool], Sequence[Any]]]:
    """Return the chats, oldest first: (chat, members, messages)."""
    query = select(Chat).where(Chat.campaign_id == campaign.id, Chat.user_id == campaign.user_id)
    chats = (await session.scalars(query.order_by(Chat.id))).all()
    found: list[tuple[Chat, Mapping[UUID, bool], Sequence[Any]]] = []
    for chat in chats:
        messages = select(Message.__table__).where(Message.chat_id == chat.id)
        messages = messages.order_by(Message.position, Message.id)
        rows = [row async for row in stream_rows(session, messages)]
        found.append((chat, (await load_group(session, chat.id)).members, rows))
    return found


async def _load_people(
    session: AsyncSession, identity: Identity, draft: CampaignDraft
) -> set[UUID]:
    """Return the user's characters and personas among those of the imported chats."""
    named: set[UUID | None] = set()
    for log in draft.chats:
        named |= {*log.head.character_ids, log.head.persona_id}
        named |= {each for line in log.lines for each in (line.character_id, line.persona_id)}
    wanted = [each for each in named if each is not None]
    found: set[UUID] = set()
    for table in (Character, Persona):
        found |= await _load_own(session, identity, table, wanted)
    return found


async def _load_own(
    session: AsyncSession,
    identity: Identity,
    table: type[Character | Persona],
    ids: Collection[UUID],
) -> set[UUID]:
    found: set[UUID] = set()
    for part in split_chunks(list(ids)):
        mine = select(table.id).where(table.id.in_(part), table.user_id == identity.user_id)
        found |= set(await session.scalars(mine))
    return found
