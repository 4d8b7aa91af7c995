"""Imports the archive of an account into an empty account, or adds it to a used one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from sqlalchemy import select

from backend.backgrounds.service import BackgroundHolder
from backend.campaigns.models import Campaign
from backend.characters.models import Character, Persona
from backend.chats.models import Chat
from backend.chats.transfer import ChatLog, read_log
from backend.chronicles.models import Chronicle
from backend.database.base import RecordCreated
from backend.llm.models import Provider
from backend.llm.providers.schemas import NewProvider
from backend.llm.providers.service import SlugTakenError
from backend.lorebooks.models import Lorebook
from backend.presets.models import Preset
from backend.transfer.archives.ids import (
    ArchiveIds,
    NewMessage,
    read_file,
    translate_audience,
)
from backend.transfer.archives.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    PART_KINDS,
    ArchiveEntry,
    ArchiveManifest,
    EntryKind,
    is_manifest,
    list_in_order,
    read_manifest,
)
from backend.transfer.archives.records import (
    CampaignState,
    ChatState,
    LinkList,
    PersonaRecord,
    ProviderRecord,
    SettingsRecord,
    read_record,
)
from backend.transfer.archives.settings_rows import read_script_list
from backend.transfer.archives.state_rows import (
    FileBatch,
    StateWriter,
    replace_texts,
    store_details,
    store_files,
)
from backend.transfer.contracts import FileTree, ImportContext, ImportStep, StepResult
from backend.transfer.errors import TransferFileError
from backend.transfer.imported import digest_parts, find_imported, is_owned, make_recorder
from backend.transfer.models import ItemKind, Outcome
from backend.transfer.services import ImportServices

T = TypeVar("T")

ITEM_KINDS: Mapping[EntryKind, ItemKind] = {
    "provider": "provider",
    "preset": "preset",
    "scripts": "scripts",
    "persona": "persona",
    "avatar": "persona",
    "character": "character",
    "lorebook": "lorebook",
    "chat": "chat",
    "chat_state": "chat",
    "campaign": "campaign",
    "character_background": "character",
    "chat_background": "chat",
    "campaign_state": "campaign",
    "chronicle": "chronicle",
    "links": "settings",
    "settings": "settings",
}

_TABLES: Mapping[
    ItemKind,
    type[Campaign | Character | Chat | Chronicle | Lorebook | Persona | Preset | Provider],
] = {
    "campaign": Campaign,
    "character": Character,
    "chat": Chat,
    "chronicle": Chronicle,
    "lorebook": Lorebook,
    "persona": Persona,
    "preset": Preset,
    "provider": Provider,
}

CHANGED_WARNING = "The file was changed after the archive was made."


class ArchivePlanner:
    """Plans the import of an account's archive. Implements `ImportPlanner`.

    An item that is already in this account, because the archive is its own, is not imported again.
    """

    def __init__(self, services: ImportServices) -> None:
        self._services = services

    def matches(self, tree: FileTree) -> bool:
        if MANIFEST not in tree.list_paths():
            return False
        try:
            with tree.open(MANIFEST) as file:
                return is_manifest(file.read(1_000))
        except TransferFileError:
            return False

    def count(self, tree: FileTree) -> int:
        manifest = _load_manifest(tree)
        return len(list_in_order(manifest)) + bool(manifest.unreadable)

    async def plan(self, context: ImportContext) -> AsyncIterator[ImportStep]:
        """Yield a step for each file of the manifest. Raises `TransferFileError`.

        If items were left out of the archive, another step reports it.
        """
        manifest = await asyncio.to_thread(_load_manifest, context.tree)
        services = self._services
        paths = await asyncio.to_thread(lambda: frozenset(context.tree.list_paths()))
        ids = ArchiveIds(services.database, services.pool, context, manifest)
        archive = ArchiveImport(services, ids, paths)
        for entry in list_in_order(manifest):
            yield ImportStep(path=entry.path, run=partial(archive.run, entry))
            await archive.note_earlier(entry, context)
        if manifest.unreadable:
            yield ImportStep(path=MANIFEST, run=partial(_report_unreadable, manifest))


async def _report_unreadable(manifest: ArchiveManifest, _: ImportContext) -> StepResult:
    kinds = Counter(each.kind.replace("_", " ") for each in manifest.unreadable)
    counts = ", ".join(f"{kind} ({count:,})" for kind, count in kinds.items())
    detail = (
        "Items that could not be decrypted when the archive was made are missing or empty: "
        f"{counts}."
    )
    return StepResult(outcome="skipped", detail=detail)


def _load_manifest(tree: FileTree) -> ArchiveManifest:
    with tree.open(MANIFEST) as file:
        data = file.read(MAX_MANIFEST_BYTES + 1)
    if len(data) > MAX_MANIFEST_BYTES:
        raise TransferFileError(f"{MANIFEST} has more than {MAX_MANIFEST_BYTES:,} bytes.")
    return read_manifest(data)


@dataclass(slots=True)
class _Step:
    """A file that is being imported."""

    context: ImportContext
    entry: ArchiveEntry
    data: bytes
    record: RecordCreated
    outcome: Outcome = "imported"
    warnings: list[str] = field(default_factory=list[str])

    @property
    def name(self) -> str:
        return self.entry.name or PurePosixPath(self.entry.path).stem


Import = Callable[[_Step], Awaitable[UUID | None]]
"""Stores a file, and returns its item, or None if nothing was left to store."""


class ArchiveImport:
    """Imports the files of one archive. `paths` are the files of its tree."""

    def __init__(self, services: ImportServices, ids: ArchiveIds, paths: frozenset[str]) -> None:
        self._services = services
        self._ids = ids
        self._paths = paths
        self._imports: Mapping[EntryKind, Import] = {
            "provider": self._import_provider,
            "preset": self._import_preset,
            "scripts": self._import_scripts,
            "persona": self._import_persona,
            "avatar": self._import_avatar,
            "character": self._import_character,
            "lorebook": self._import_lorebook,
            "chat": self._import_chat,
            "campaign": self._import_campaign,
            "character_background": partial(self._import_background, "character"),
            "chat_background": partial(self._import_background, "chat"),
            "chronicle": self._import_chronicle,
            "links": self._import_links,
            "chat_state": self._import_chat_state,
            "campaign_state": self._import_campaign_state,
            "settings": self._import_settings,
        }

    async def run(self, entry: ArchiveEntry, context: ImportContext) -> StepResult:
        kind = ITEM_KINDS[entry.kind]
        if entry.path not in self._paths:
            return StepResult(
                outcome="failed", kind=kind, detail="The file is missing in the archive."
            )
        data = await asyncio.to_thread(read_file, context.tree, entry.path)
        found_sha256, digest = await self._run(context, lambda: _digest(context, entry, data))
        known = None if context.options.copy else await self._find_known(context, entry, digest)
        if known is not None:
            await self._note(entry, known)
            if entry.id is not None:
                self._ids.note_known(kind, entry.id)
            return StepResult(outcome="already_there", kind=kind, item_id=known)
        step = _Step(context, entry, data, make_recorder(context.identity.sealer, kind, digest))
        if found_sha256 != entry.sha256:
            step.warnings.append(CHANGED_WARNING)
        item_id = await self._imports[entry.kind](step)
        if item_id is None:
            detail = "It belongs to an item that was not imported."
            return StepResult(outcome="skipped", kind=kind, detail=detail, warnings=step.warnings)
        await self._note(entry, item_id)
        return StepResult(outcome=step.outcome, kind=kind, item_id=item_id, warnings=step.warnings)

    async def note_earlier(self, entry: ArchiveEntry, context: ImportContext) -> None:
        """Note the item of a file that an earlier run of the same import has imported."""
        kind = ITEM_KINDS[entry.kind]
        earlier = context.found.get((kind, entry.path))
        if earlier is not None and self._ids.find(kind, entry.id) is None:
            await self._note(entry, earlier)

    async def _find_known(
        self, context: ImportContext, entry: ArchiveEntry, digest: bytes
    ) -> UUID | None:
        """Return the item of a file if the account has it already."""
        owner_id = context.identity.user_id
        table = _TABLES.get(ITEM_KINDS[entry.kind])
        async with self._services.database.read() as session:
            if table is not None and entry.id is not None:
                # One that is being deleted comes back with a new id, as every imported item.
                own = select(table.id).where(table.id == entry.id, is_owned(table, owner_id))
                if (found := await session.scalar(own)) is not None:
                    return found
            row = await find_imported(session, owner_id, digest)
        return row.item_id if row is not None else None

    async def _note(self, entry: ArchiveEntry, item_id: UUID) -> None:
        if entry.id is None or entry.kind in PART_KINDS:
            return
        self._ids.note(ITEM_KINDS[entry.kind], entry.id, item_id)
        if entry.kind == "campaign":
            await self._ids.note_campaign(entry, item_id)

    async def _run(self, context: ImportContext, work: Callable[[], T]) -> T:
        return await self._services.pool.run(context.identity.user_id, work, is_job=True)

    async def _read(self, step: _Step, kind: type[T]) -> T:
        return await self._run(step.context, lambda: read_record(step.data, kind))

    async def _import_provider(self, step: _Step) -> UUID | None:
        record = await self._read(step, ProviderRecord)
        values: dict[str, Any] = msgspec.structs.asdict(record.fields)
        values |= {"api_key": None, "extra_headers": {}}
        new = NewProvider(kind=record.kind, preset=record.preset, slug=record.slug, **values)
        try:
            made = await self._services.providers.create(
                step.context.identity, new, may_lack_key=True, record=step.record
            )
        except SlugTakenError:
            step.outcome = "already_there"
            step.warnings.append("The account has another provider with this name. It was kept.")
            return step.context.identity.user_id
        step.warnings.append("Archives contain no keys. Enter its key under Models.")
        return made.id

    async def _import_preset(self, step: _Step) -> UUID | None:
        made = await self._services.presets.import_file(
            step.context.identity, step.data, step.name, record=step.record
        )
        step.warnings += made.warnings
        return made.preset.id

    async def _import_scripts(self, step: _Step) -> UUID | None:
        scripts = await self._run(step.context, lambda: read_script_list(step.data))
        await self._services.accounts.add_scripts(step.context.identity, scripts, step.record)
        return step.context.identity.user_id

    async def _import_persona(self, step: _Step) -> UUID | None:
        record = await self._read(step, PersonaRecord)
        made = await self._services.personas.create(
            step.context.identity, record.persona, record=step.record
        )
        return made.id

    async def _import_avatar(self, step: _Step) -> UUID | None:
        persona_id = self._ids.find("persona", step.entry.id)
        if persona_id is None:
            return None
        await self._services.avatars.replace(
            step.context.identity, "persona", persona_id, step.data
        )
        async with self._services.database.write() as session:
            await step.record(session, persona_id)
        return persona_id

    async def _import_background(self, kind: BackgroundHolder, step: _Step) -> UUID | None:
        holder_id = self._ids.find(kind, step.entry.id)
        if holder_id is None:
            return None
        await self._services.backgrounds.replace(
            step.context.identity, kind, holder_id, step.data, record=step.record
        )
        return holder_id

    async def _import_character(self, step: _Step) -> UUID | None:
        made = await self._services.characters.import_file(
            step.context.identity, step.data, record=step.record
        )
        step.warnings += made.warnings
        return made.character.id

    async def _import_lorebook(self, step: _Step) -> UUID | None:
        made = await self._services.lorebooks.import_file(
            step.context.identity, step.data, step.name, record=step.record
        )
        step.warnings += made.warnings
        return made.lorebook.id

    async def _import_chat(self, step: _Step) -> UUID | None:
        people = self._ids.list_people()

        def read() -> ChatLog:
            log = read_log(step.data)
            log.rename_people(people)
            return log

        log = await self._run(step.context, read)
        return await self._services.chat_trees.store(
            step.context.identity,
            log,
            listeners=people,
            report=step.context.report,
            record=step.record,
        )

    async def _import_campaign(self, step: _Step) -> UUID | None:
        made = await self._services.campaigns.import_new(
            step.context.identity,
            step.data,
            step.name,
            people=self._ids.list_people(),
            record=step.record,
        )
        step.warnings += made.warnings
        return made.id

    async def _import_chronicle(self, step: _Step) -> UUID | None:
        texts: dict[str, str] = {}
        for chat_id in step.entry.chats:
            messages = await self._ids.find_messages(chat_id)
            texts |= {str(old): str(new.id) for old, new in messages.items()}

        def translate() -> bytes:
            file: Any = read_record(step.data, dict[str, Any])
            return msgspec.json.encode(replace_texts(file, texts))

        data = await self._run(step.context, translate)
        made = await self._services.chronicles.import_new(
            step.context.identity,
            data,
            step.name,
            translate=partial(translate_audience, items=self._ids.list_people()),
            record=step.record,
        )
        if made.skipped:
            step.warnings.append(
                f"{made.skipped} events were left out, because their messages are missing."
            )
        return made.chronicle_id

    async def _import_links(self, step: _Step) -> UUID | None:
        links = await self._read(step, LinkList)
        await self._services.accounts.store_links(
            step.context.identity, links, self._ids, step.record
        )
        return step.context.identity.user_id

    async def _import_settings(self, step: _Step) -> UUID | None:
        record = await self._read(step, SettingsRecord)
        step.warnings += await self._services.accounts.add_settings(
            step.context.identity, record, self._ids, step.record
        )
        return step.context.identity.user_id

    async def _import_chat_state(self, step: _Step) -> UUID | None:
        state = await self._read(step, ChatState)
        chat_id = self._ids.find("chat", state.chat_id)
        if chat_id is None:
            return None
        if self._ids.is_known("chat", state.chat_id) and await self._has_changed([chat_id]):
            step.outcome = "already_there"
            return chat_id
        messages = await self._ids.find_messages(state.chat_id)
        books = await self._find_books([state])
        await self._store_parts(step, state, messages, {})
        identity = step.context.identity
        async with self._services.database.write() as session:
            writer = StateWriter(session, identity.sealer, self._ids)
            await writer.store_chat(state, chat_id, messages, books)
            await step.record(session, chat_id)
        step.warnings += writer.warnings
        return chat_id

    async def _import_campaign_state(self, step: _Step) -> UUID | None:
        state = await self._read(step, CampaignState)
        campaign_id = self._ids.find("campaign", state.campaign_id)
        if campaign_id is None:
            return None
        identity = step.context.identity
        chats = self._ids.find_all("chat", (each.chat_id for each in state.chats))
        if self._ids.is_known("campaign", state.campaign_id) and (
            await self._has_changed(chats) or not chats
        ):
            step.outcome = "already_there"
            return campaign_id
        items = await self._ids.find_items(state.campaign_id)
        messages: dict[UUID, Mapping[UUID, NewMessage]] = {}
        for chat in state.chats:
            messages[chat.chat_id] = await self._ids.find_messages(chat.chat_id)
            await self._store_parts(step, chat, messages[chat.chat_id], items)
        books = await self._find_books(state.chats)
        async with self._services.database.write() as session:
            campaign = await session.get(Campaign, campaign_id)
            if campaign is None:
                return None
            writer = StateWriter(session, identity.sealer, self._ids, items)
            for chat in state.chats:
                chat_id = self._ids.find("chat", chat.chat_id)
                if chat_id is not None:
                    known = messages[chat.chat_id]
                    await writer.store_chat(chat, chat_id, known, books, campaign_id)
            everywhere = {old: new for each in messages.values() for old, new in each.items()}
            await writer.store_campaign(state, campaign, everywhere)
            await step.record(session, campaign_id)
        step.warnings += writer.warnings
        return campaign_id

    async def _has_changed(self, chat_ids: Sequence[UUID]) -> bool:
        """True if a chat has got its state, or was changed by the user."""
        changed = select(Chat.id).where(Chat.id.in_(chat_ids), Chat.revision > 1).limit(1)
        async with self._services.database.read() as session:
            return await session.scalar(changed) is not None

    async def _store_parts(
        self,
        step: _Step,
        state: ChatState,
        messages: Mapping[UUID, NewMessage],
        items: Mapping[UUID, UUID],
    ) -> None:
        """Store details and files of messages in batches. Repeating it changes nothing."""
        services, identity = self._services, step.context.identity
        ids = {**self._ids.list_people(), **items}
        await store_details(services.database, identity.sealer, state, messages, ids)
        batch = FileBatch(self._paths, step.context.tree)
        missing = await store_files(
            services.database, services.pool, identity.sealer, state, messages, batch
        )
        if missing:
            step.warnings.append(f"{missing} files of messages are missing in the archive.")

    async def _find_books(self, states: Sequence[ChatState]) -> dict[UUID, UUID]:
        named = {each.lorebook_id for state in states for each in state.lorebooks}
        named |= {
            effect.book_id
            for state in states
            for row in state.lore_states
            for effect in row.effects
        }
        found = {old: await self._ids.find_book(old) for old in named}
        return {old: new for old, new in found.items() if new is not None}


def _digest(context: ImportContext, entry: ArchiveEntry, data: bytes) -> tuple[str, bytes]:
    """Return the SHA-256 of a file, and the keyed digest of the file as a part of an archive."""
    found = sha256(data)
    item = entry.id.bytes if entry.id else b""
    parts = (entry.kind.encode(), item, found.digest())
    return found.hexdigest(), digest_parts(context.identity.sealer, "archive", parts)
