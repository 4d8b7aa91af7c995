"""Store a chat that is read from a file as a message tree.

Messages are read, counted and sealed in batches, and inserted in short transactions, below a chat
that no one sees yet. The last transaction makes the chat visible, or moves its messages below the
chat that they branch from. So a chat is either complete or not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, delete, exists, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.accounts.auth.identity import Identity
from backend.characters.models import Character, Persona
from backend.chats import repository
from backend.chats.deletion import delete_hidden_chat
from backend.chats.events import ChatDeleted, MessageRemoved
from backend.chats.files import insert_files
from backend.chats.models import (
    CHAT_SETTINGS,
    CHAT_TITLE,
    CHAT_VARIABLES,
    Chat,
    ChatCharacter,
    Message,
)
from backend.chats.presence import describe_change
from backend.chats.schemas import AuthorsNote, ChatSettings, GroupSettings
from backend.chats.service import choose_counting_model
from backend.chats.token_counting import CountUnit
from backend.chats.tree import make_ancestors
from backend.core.cpu_pool import CpuPool
from backend.database.base import UNSYNCHRONIZED, get_table, new_id, now, split_chunks
from backend.database.engine import Database
from backend.errors import ConflictError
from backend.generation.tokens import choose_tokenizer
from backend.llm.user_models import UserModels
from backend.lorebooks.models import ChatLorebook, Lorebook
from backend.memory.indexing.outbox import IndexOutbox
from backend.quotas.service import CheckAdded
from backend.settings import Settings
from backend.transfer.chats.joining import BranchFinder, Junction
from backend.transfer.chats.origin import ChatOrigin
from backend.transfer.chats.tree_rows import RowBatch, TreeBuilder, TreePlace, clean_time
from backend.transfer.contracts import ChatTarget, ReportMessages, StepResult
from backend.transfer.formats.chat_file import (
    CARD_EXTENSION,
    ChatHead,
    ChatReading,
    FileGroup,
    FileMessage,
    FileSwipe,
    find_characters,
)
from backend.transfer.imported import is_owned, record_imported
from backend.transfer.models import ImportedFile
from backend.turns.prompt.macros import MAX_VARIABLE_BYTES

MAX_TITLE_CHARACTERS: Final = 300
MAX_MEMBERS: Final = 20
MAX_SCENARIO_CHARACTERS: Final = 200_000

_INSERT: Final = insert(get_table(Message))
"""An insert by the model takes 42 µs of the event loop for each row; one by the table takes 12."""


class ChatImporter:
    """Stores chats that are read from files.

    Args:
        checks_added: Quotas that can refuse a chat.
    """

    def __init__(
        self,
        database: Database,
        outbox: IndexOutbox,
        pool: CpuPool,
        settings: Settings,
        *,
        user_models: UserModels,
        checks_added: Collection[CheckAdded],
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._pool = pool
        self._max_characters = settings.max_message_chars
        self._user_models = user_models
        self._checks_added = checks_added

    async def store(
        self,
        identity: Identity,
        reading: ChatReading,
        target: ChatTarget,
        *,
        report: ReportMessages,
    ) -> StepResult:
        """Store a chat as a new one, or as a branch of `target.joins`.

        If it fails or is cancelled, nothing of it remains. Raises `TransferFileError`,
        `ConflictError`, `StorageQuotaExceededError`, `QuotaExceededError`.
        """
        junction = None
        if target.joins is not None:
            finder = BranchFinder(self._database, self._pool, identity.sealer, target.joins)
            junction, pending = await finder.find(reading)
            if junction is not None and junction.rest is not None:
                pending = [junction.rest]
            reading = replace(reading, messages=chain(pending, reading.messages))
        target = await self._keep_own(identity, target)
        if junction is None and reading.head.group is not None:
            reading = replace(reading, messages=chain(reading.messages, _mute(reading.head.group)))
        chat = await self._make_chat(identity, reading.head, target, junction)
        try:
            async with self._database.write() as session:
                # The quota counts a new chat now, before its messages are read.
                chat.is_ready = junction is None
                session.add(chat)
                await session.flush()
                await self._check(session, identity)
                chat.is_ready = False
            last, count = await self._store_messages(
                identity, chat, reading, target, junction, report
            )
            async with self._database.write() as session:
                if junction is None:
                    await self._publish(session, identity, chat, reading, target, last)
                else:
                    await self._join(session, identity, chat, junction)
                chat_id = junction.chat.id if junction else chat.id
                origin = ChatOrigin(
                    name=target.file_name,
                    header=reading.head.source,
                    is_joined=junction is not None,
                    messages=junction.messages if junction else {},
                )
                await self._record(session, identity, chat_id, origin, target, last)
                await self._outbox.record_import(
                    session, identity, kind="message", container_id=chat_id
                )
                await self._check(session, identity)
        except BaseException:
            await asyncio.shield(delete_hidden_chat(self._database, chat.id))
            raise
        return StepResult(
            outcome="imported",
            kind="chat",
            item_id=chat_id,
            detail=_describe(count, junction),
            warnings=reading.warnings,
        )

    async def _keep_own(self, identity: Identity, target: ChatTarget) -> ChatTarget:
        """Return a target without ids that are not, or no longer, the user's."""
        people = {*target.members, *target.speakers.values()}
        async with self._database.read() as session:
            characters = await _find_own(session, Character, people, identity.user_id)
            personas = await _find_own(session, Persona, target.personas.values(), identity.user_id)
        return replace(
            target,
            members=[each for each in dict.fromkeys(target.members) if each in characters],
            speakers={name: each for name, each in target.speakers.items() if each in characters},
            personas={name: each for name, each in target.personas.items() if each in personas},
        )

    async def _make_chat(
        self, identity: Identity, head: ChatHead, target: ChatTarget, junction: Junction | None
    ) -> Chat:
        """Build the row of a chat that no one sees yet. A branch has its chat's unit of counts."""
        sealer, chat_id, at = identity.sealer, new_id(), now()
        if junction is not None:
            unit = junction.chat.count_unit
        else:
            async with self._database.read() as session:
                models = await self._user_models.of(session, identity.user, sealer)
            tokenizer = choose_tokenizer(choose_counting_model(models, identity).tokenizer)
            unit = str(CountUnit(tokenizer, names=len(target.members) > 1))
        title = (head.title or target.file_name)[:MAX_TITLE_CHARACTERS]
        return Chat(
            id=chat_id,
            user_id=identity.user_id,
            sealed_title=sealer.seal(CHAT_TITLE, chat_id, title),
            title_origin=target.title_origin,
            count_unit=unit,
            created_at=clean_time(head.created_at) or at,
            updated_at=at,
        )

    async def _store_messages(
        self,
        identity: Identity,
        chat: Chat,
        reading: ChatReading,
        target: ChatTarget,
        junction: Junction | None,
        report: ReportMessages,
    ) -> tuple[TreePlace | None, int]:
        """Insert all messages. Return the last one of the file's path, and their number."""
        builder = TreeBuilder(
            identity.sealer,
            CountUnit.parse(chat.count_unit),
            chat.id,
            reading,
            target,
            max_characters=self._max_characters,
            start=junction.last if junction else None,
            start_swipes=junction.swipes if junction else (),
        )
        count = 0
        while True:
            batch = await self._pool.run(identity.user_id, builder.build, is_job=True)
            if not batch.rows:
                return batch.last, count
            async with self._database.write() as session:
                await touch_unfinished(session, chat.id)
                await _insert_batch(session, identity.user_id, batch, junction)
                await self._check(session, identity)
            count += batch.messages
            await report(count)

    async def _publish(
        self,
        session: AsyncSession,
        identity: Identity,
        chat: Chat,
        reading: ChatReading,
        target: ChatTarget,
        last: TreePlace | None,
    ) -> None:
        """Make the chat visible, with its members and settings."""
        await touch_unfinished(session, chat.id)
        sealer, head = identity.sealer, reading.head
        settings = _make_settings(head, target.speakers)
        sealed_settings = msgspec.json.encode(settings) if settings != ChatSettings() else None
        values: dict[str, Any] = {
            "is_ready": True,
            "leaf_id": last.id if last else None,
            "persona_id": target.personas.get(head.persona) or target.personas.get(head.user_name),
            "updated_at": now(),
        }
        if sealed_settings is not None:
            values["sealed_settings"] = sealer.seal_bytes(CHAT_SETTINGS, chat.id, sealed_settings)
        if head.created_at is None and last is not None:
            values["created_at"] = await session.scalar(
                select(func.min(Message.created_at)).where(
                    Message.chat_id == chat.id, Message.position == 0
                )
            )
        variables = msgspec.json.encode(dict(head.variables))
        if len(variables) > MAX_VARIABLE_BYTES:
            reading.warnings.append("Its variables are too large, and were left out.")
        elif head.variables:
            values["sealed_variables"] = sealer.seal_bytes(CHAT_VARIABLES, chat.id, variables)
        await session.execute(
            update(Chat).where(Chat.id == chat.id).values(values), execution_options=UNSYNCHRONIZED
        )
        members = await _find_own(session, Character, target.members, identity.user_id)
        later = head.group.joined_later if head.group else ()
        joined_later = find_characters(target.speakers, later)
        session.add_all(
            ChatCharacter(
                chat_id=chat.id,
                character_id=each,
                place=place,
                is_from_start=each not in joined_later,
            )
            for place, each in enumerate(target.members[:MAX_MEMBERS])
            if each in members
        )
        books = [target.lorebook_id] if target.lorebook_id else []
        for book_id in await _find_own(session, Lorebook, books, identity.user_id):
            session.add(ChatLorebook(chat_id=chat.id, lorebook_id=book_id, state="linked"))
        await session.flush()

    async def _join(
        self, session: AsyncSession, identity: Identity, chat: Chat, junction: Junction
    ) -> None:
        """Move the messages of a branch into the tree of its main chat.

        The active path and the settings of the main chat do not change.
        """
        await touch_unfinished(session, chat.id)
        main = await repository.find_chat(
            session, junction.chat.id, owner_id=identity.user_id, lock=True
        )
        found = await session.execute(
            select(Message.path_tokens).where(
                Message.id == junction.last.id, Message.chat_id == junction.chat.id
            )
        )
        tokens = found.scalar_one_or_none()
        if main is None or main.count_unit != chat.count_unit or tokens is None:
            raise ConflictError("The chat that it branches from has changed. Import it again.")
        first = junction.last.position + 1
        sibling = aliased(Message)
        is_chosen = exists().where(
            sibling.parent_id == junction.last.id,
            sibling.chat_id == main.id,
            sibling.is_selected,
        )
        is_first = Message.chat_id == chat.id, Message.position == first
        if await session.scalar(select(is_chosen)):
            await _update_messages(session, is_first, is_selected=False)
        await _update_messages(session, is_first, parent_id=junction.last.id)
        change = tokens - junction.last.path_tokens
        await _update_messages(
            session,
            (Message.chat_id == chat.id,),
            chat_id=main.id,
            path_tokens=Message.path_tokens + change,
        )
        await session.execute(delete(Chat).where(Chat.id == chat.id))

    async def _record(
        self,
        session: AsyncSession,
        identity: Identity,
        chat_id: UUID,
        origin: ChatOrigin,
        target: ChatTarget,
        last: TreePlace | None,
    ) -> None:
        if target.digest is None:
            return
        await record_imported(
            session,
            identity.sealer,
            digest=target.digest,
            kind="chat",
            item_id=chat_id,
            message_id=last.id if last else None,
            source=origin.encode(),
        )

    async def _check(self, session: AsyncSession, identity: Identity) -> None:
        for check in self._checks_added:
            await check(session, identity.user_id)


class ImportedChats(ChatDeleted, MessageRemoved):
    """Deletes the headers of a chat's files with the chat."""

    async def message_removed(
        self, session: AsyncSession, identity: Identity, chat: Chat, message: Message
    ) -> None:
        """Delete the members of a removed message that joined branches keep of their files."""
        rows = await session.scalars(
            select(ImportedFile).where(
                ImportedFile.item_id == chat.id,
                ImportedFile.user_id == identity.user_id,
                ImportedFile.kind == "chat",
                ImportedFile.message_id.is_not(None),
                ImportedFile.sealed_source.is_not(None),
            )
        )
        for row in rows.all():
            origin = ChatOrigin.open(identity.sealer, row.id, row.sealed_source or b"")
            if row.message_id is None or message.position not in origin.messages:
                continue
            path = make_ancestors(row.message_id)
            if await session.scalar(select(path.c.id).where(path.c.id == message.id)) is None:
                continue
            kept = {at: data for at, data in origin.messages.items() if at != message.position}
            row.sealed_source = replace(origin, messages=kept).seal(identity.sealer, row.id)

    async def chat_deleted(self, session: AsyncSession, identity: Identity, chat: Chat) -> None:
        await session.execute(
            delete(ImportedFile).where(
                ImportedFile.item_id == chat.id, ImportedFile.user_id == identity.user_id
            ),
            execution_options=UNSYNCHRONIZED,
        )


def _describe(count: int, junction: Junction | None) -> str:
    if junction is None:
        return ""
    if not count:
        return "It is already part of the chat that it branches from."
    return f"{count:,} messages were added as a branch of the chat that it belongs to."


def _mute(group: FileGroup) -> Iterator[FileMessage]:
    """Yield messages that mute members, because presence belongs to the message tree."""
    for file in group.muted:
        name = file.removesuffix(CARD_EXTENSION)
        swipe = FileSwipe(text=describe_change(name, "muted", before="present"))
        yield FileMessage(
            role="system", author=name, swipes=[swipe], hidden=True, speaker=file, presence="muted"
        )


def _make_settings(head: ChatHead, characters: Mapping[str, UUID]) -> ChatSettings:
    scenario = head.scenario[:MAX_SCENARIO_CHARACTERS] if head.scenario else None
    return ChatSettings(
        authors_note=head.authors_note or AuthorsNote(),
        scenario=scenario,
        group=head.group.find_settings(characters) if head.group else GroupSettings(),
    )


async def _find_own(
    session: AsyncSession,
    table: type[Character | Persona | Lorebook],
    ids: Collection[UUID],
    owner_id: UUID,
) -> set[UUID]:
    found: set[UUID] = set()
    for part in split_chunks(list(set(ids))):
        query = select(table.id).where(table.id.in_(part), is_owned(table, owner_id))
        found |= set(await session.scalars(query))
    return found


async def touch_unfinished(session: AsyncSession, chat_id: UUID) -> None:
    """Show that an unfinished chat is growing. Raises `ConflictError` if it was deleted."""
    found = await session.execute(
        update(Chat)
        .where(Chat.id == chat_id, ~Chat.is_ready)
        .values(updated_at=now())
        .returning(Chat.id),
        execution_options=UNSYNCHRONIZED,
    )
    if found.scalar_one_or_none() is None:
        raise ConflictError("The import was interrupted for too long. Import the chat again.")


async def _insert_batch(
    session: AsyncSession, owner_id: UUID, batch: RowBatch, junction: Junction | None
) -> None:
    rows = batch.rows
    if junction is not None:
        # The first messages are connected at the end, so that the tree does not show them yet.
        rows = [
            {**row, "parent_id": None} if row["parent_id"] == junction.last.id else row
            for row in rows
        ]
    await session.execute(_INSERT, rows)
    if batch.references:
        await insert_files(session, owner_id, batch.files, batch.references)


async def _update_messages(
    session: AsyncSession, where: Sequence[ColumnElement[bool]], **values: Any
) -> None:
    await session.execute(
        update(Message).where(*where).values(values), execution_options=UNSYNCHRONIZED
    )
