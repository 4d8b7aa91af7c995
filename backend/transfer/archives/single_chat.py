"""Imports the archive of one chat: all its branches, with its settings, pictures and files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.characters.errors import ImageError
from backend.characters.models import Character, Persona
from backend.chats.models import Background, Chat
from backend.chats.schemas import ChatSettings
from backend.chats.transfer import ChatLog, read_log
from backend.database.base import split_chunks
from backend.errors import TooLargeError
from backend.http.schemas import MAX_PAGE
from backend.presets.models import Preset
from backend.transfer.archives.ids import NewMessage, read_file
from backend.transfer.archives.records import ChatState, FileRecord
from backend.transfer.archives.state_rows import FileBatch, StateWriter, store_files
from backend.transfer.contracts import FileTree, ImportContext, ImportStep, StepResult
from backend.transfer.errors import TransferFileError
from backend.transfer.imported import digest_parts, find_imported, make_recorder
from backend.transfer.models import ItemKind
from backend.transfer.services import ImportServices
from backend.turns.prompt.macros import MAX_VARIABLE_BYTES

T = TypeVar("T")

CHAT_LOG: Final = "chat.jsonl"
BACKGROUND: Final = "background.webp"
_HEAD_BYTES: Final = 200
_MARK: Final = b'"format":"talekeeper-chat"'


class ChatArchivePlanner:
    """Plans the import of a zip that `/chats/{chat_id}/export` has made."""

    def __init__(self, services: ImportServices) -> None:
        self._services = services

    def matches(self, tree: FileTree) -> bool:
        if CHAT_LOG not in tree.list_paths():
            return False
        try:
            with tree.open(CHAT_LOG) as file:
                return _MARK in file.read(_HEAD_BYTES).replace(b" ", b"")
        except TransferFileError:
            return False

    def count(self, tree: FileTree) -> int:  # noqa: ARG002  # the same for each archive
        return 1

    async def plan(self, context: ImportContext) -> AsyncIterator[ImportStep]:
        """Yield one step, because the other files are parts of the chat."""
        del context
        yield ImportStep(path=CHAT_LOG, run=_ChatArchiveImport(self._services).run)


@dataclass(slots=True)
class _KnownItems:
    """Items of the account that a chat refers to, by their ids in its file."""

    ids: dict[UUID, UUID]

    def find(self, kind: ItemKind, old: UUID | None) -> UUID | None:  # noqa: ARG002  # ids suffice
        return self.ids.get(old) if old else None


class _ChatArchiveImport:
    """The import of one archive."""

    def __init__(self, services: ImportServices) -> None:
        self._services = services

    async def run(self, context: ImportContext) -> StepResult:
        identity = context.identity
        data = await self._run(identity, lambda: read_file(context.tree, CHAT_LOG))
        digest = await self._run(
            identity,
            lambda: digest_parts(identity.sealer, "chat-archive", [sha256(data).digest()]),
        )
        log = await self._run(identity, lambda: read_log(data))
        if not context.options.copy and (found := await self._find(identity, log, digest)):
            return StepResult(outcome="already_there", kind="chat", item_id=found)
        people, warnings = await self._choose_people(context, log)
        state = await self._run(identity, lambda: _make_state(log, warnings))
        items = await self._find_items(identity, state.settings, people)
        batch = FileBatch(frozenset(context.tree.list_paths()), context.tree)
        record = make_recorder(identity.sealer, "chat", digest)
        stored: dict[UUID, NewMessage] = {}
        background: Background | None = None

        async def store_parts(chat_id: UUID, messages: Mapping[UUID, NewMessage]) -> None:
            nonlocal background
            stored.update(messages)
            background = await self._prepare_background(context, chat_id, warnings)
            missing = await store_files(
                self._services.database,
                self._services.pool,
                identity.sealer,
                state,
                messages,
                batch,
            )
            if missing:
                warnings.append(f"{missing:,} files of messages are missing in the archive.")

        async def complete(session: AsyncSession, chat_id: UUID) -> None:
            writer = StateWriter(session, identity.sealer, items)
            await writer.store_chat(state, chat_id, stored, {})
            warnings.extend(writer.warnings)
            if background is not None:
                session.add(background)
            await record(session, chat_id)

        chat_id = await self._services.chat_trees.store(
            identity,
            log,
            listeners=people,
            report=context.report,
            record=complete,
            store_parts=store_parts,
        )
        return StepResult(outcome="imported", kind="chat", item_id=chat_id, warnings=warnings)

    async def _prepare_background(
        self, context: ImportContext, chat_id: UUID, warnings: list[str]
    ) -> Background | None:
        """Return the background of the archive, if it has one that can be read."""
        if BACKGROUND not in context.tree.list_paths():
            return None
        identity = context.identity
        try:
            data = await self._run(identity, lambda: read_file(context.tree, BACKGROUND))
            return await self._services.backgrounds.prepare(identity, "chat", chat_id, data)
        except (ImageError, TooLargeError, TransferFileError) as error:
            warnings.append(f"The background was left out: {error.title}.")
        return None

    async def _find(self, identity: Identity, log: ChatLog, digest: bytes) -> UUID | None:
        """Return the chat that the archive was made of or has become, if it exists."""
        own = select(Chat.id).where(
            Chat.id == log.head.id, Chat.user_id == identity.user_id, Chat.is_ready
        )
        async with self._services.database.read() as session:
            found = await find_imported(session, identity.user_id, digest)
            return found.item_id if found else await session.scalar(own)

    async def _choose_people(
        self, context: ImportContext, log: ChatLog
    ) -> tuple[dict[UUID, UUID], list[str]]:
        """Replace characters and personas by those of the account.

        Return these by their ids in the file, and warnings.

        Characters of another account are found by their names.
        """
        identity, head = context.identity, log.head
        authors = {line.character_id: line.author for line in log.lines if line.character_id}
        named = log.list_people() | log.list_listeners()
        async with self._services.database.read() as session:
            people = {
                each: each
                for table in (Character, Persona)
                for each in await _find_own(session, table, identity, named)
            }
        if context.options.character_ids:
            wanted = list(dict.fromkeys([*head.character_ids, *authors]))
            people |= dict(zip(wanted, context.options.character_ids, strict=False))
        for old, name in authors.items():
            if old not in people and old in head.character_ids:
                new = await self._find_by_name(identity, name)
                people |= {old: new} if new else {}
        log.rename_people(people)
        head.character_ids = head.character_ids or list(context.options.character_ids)
        if head.character_ids:
            return people, []
        warning = (
            "None of the chat's characters is here, so the chat has none. Add one in the chat."
        )
        return people, [warning]

    async def _find_by_name(self, identity: Identity, name: str) -> UUID | None:
        page = await self._services.characters.list_page(
            identity, limit=MAX_PAGE, after=None, search=name
        )
        return next((each.id for each in page.items if each.name == name), None)

    async def _find_items(
        self, identity: Identity, settings: ChatSettings, people: Mapping[UUID, UUID]
    ) -> _KnownItems:
        known = _KnownItems(dict(people))
        if settings.preset_id is not None:
            async with self._services.database.read() as session:
                presets = await _find_own(session, Preset, identity, {settings.preset_id})
                known.ids |= {each: each for each in presets}
        return known

    async def _run(self, identity: Identity, work: Callable[[], T]) -> T:
        return await self._services.pool.run(identity.user_id, work, is_job=True)


def _make_state(log: ChatLog, warnings: list[str]) -> ChatState:
    """Return the parts of a chat that are not in its messages.

    The consent to a chronicle belongs to the account, and is not in the file of a chat.
    """
    head = log.head
    variables: dict[str, str] = head.variables
    if len(msgspec.json.encode(variables)) > MAX_VARIABLE_BYTES:
        warnings.append("The variables of the chat are too large. They were left out.")
        variables = {}
    settings = head.settings or ChatSettings()
    without: dict[str, Any] = {"chronicle_enabled": False, "chronicle_id": None}
    return ChatState(
        chat_id=head.id,
        settings=msgspec.structs.replace(settings, **without),
        variables=variables,
        imported=head.origins,
        files=[
            FileRecord(
                message_id=line.id,
                place=place,
                file=each.stored,
                media_type=each.media_type,
                name=each.name,
                path=each.path,
                width=each.width,
                height=each.height,
            )
            for line in log.lines
            for place, each in enumerate(line.files)
        ],
    )


async def _find_own(
    session: AsyncSession,
    table: type[Character | Persona | Preset],
    identity: Identity,
    ids: set[UUID],
) -> list[UUID]:
    found: list[UUID] = []
    for part in split_chunks(list(ids)):
        query = select(table.id).where(table.id.in_(part), table.user_id == identity.user_id)
        found += await session.scalars(query)
    return found
