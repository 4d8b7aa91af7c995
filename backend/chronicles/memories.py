"""Memories of a character: the events that it knows, of one chat or also of its others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.characters.repository import find_names, get_character
from backend.chats.members import filter_heard_anywhere
from backend.chats.models import CHAT_TITLE, Chat, ChatCharacter, Message
from backend.chats.repository import get_chat
from backend.chronicles.chat_chronicles import ChatChronicles
from backend.chronicles.event_search import Cursor, find_known_page
from backend.chronicles.event_service import WitnessSource, load_views
from backend.chronicles.event_writer import NewEvent, insert_events
from backend.chronicles.events import EventFields
from backend.chronicles.index_source import KIND
from backend.chronicles.repository import (
    SourceMessage,
    StoryEvent,
    get_chronicle,
    get_events,
    group_tellings,
)
from backend.chronicles.schemas import CharacterMemory, MemorySource, NewMemory
from backend.core.audience import Witness, encode_audience
from backend.database.base import now, split_chunks
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.http.schemas import Page
from backend.memory.indexing.outbox import IndexOutbox
from backend.vault.sealing import Sealer

MAX_REMEMBERED = 50
"""Maximum chronicles of other chats that a character remembers, the latest ones."""


class RemembererSource(Protocol):
    """Finds the viewpoint of a character across all its chats."""

    async def __call__(
        self, session: AsyncSession, sealer: Sealer, chat: Chat, character_id: UUID, name: str, /
    ) -> Witness: ...


async def find_remembered(
    session: AsyncSession, chat: Chat, character_id: UUID
) -> dict[UUID, dict[UUID, bytes]]:
    """Return the chronicles of a character's other chats, with the sealed titles of these chats.

    The latest chats are first. There are at most `MAX_REMEMBERED` chronicles.
    """
    query = (
        select(Chat.chronicle_id, Chat.id, Chat.sealed_title)
        .join(ChatCharacter, ChatCharacter.chat_id == Chat.id)
        .where(
            ChatCharacter.character_id == character_id,
            Chat.user_id == chat.user_id,
            Chat.id != chat.id,
            Chat.is_ready,
            Chat.chronicle_id.is_not(None),
            Chat.chronicle_id.is_distinct_from(chat.chronicle_id),
        )
        .order_by(Chat.updated_at.desc(), Chat.id)
        .limit(10 * MAX_REMEMBERED)
    )
    found: dict[UUID, dict[UUID, bytes]] = {}
    for chronicle_id, chat_id, sealed_title in await session.execute(query):
        if chronicle_id is not None and (chronicle_id in found or len(found) < MAX_REMEMBERED):
            found.setdefault(chronicle_id, {})[chat_id] = sealed_title
    return found


class CharacterMemoryService:
    """Operations of a user on the memories of a character. The routes list the errors.

    Args:
        find_rememberer: Returns the viewpoint of a character.
        find_witnesses: Returns the viewpoints of the characters that share a chronicle.
    """

    def __init__(
        self,
        database: Database,
        outbox: IndexOutbox,
        chronicles: ChatChronicles,
        *,
        find_rememberer: RemembererSource,
        find_witnesses: WitnessSource,
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._chronicles = chronicles
        self._find_rememberer = find_rememberer
        self._find_witnesses = find_witnesses

    async def list_page(
        self,
        identity: Identity,
        character_id: UUID,
        chat_id: UUID | None,
        *,
        limit: int,
        after: str | None,
    ) -> Page[CharacterMemory]:
        """List the events that a character knows in a chat, newest first.

        Without a chat, it is the one that was changed last.
        """
        sealer, cursor = identity.sealer, None if after is None else Cursor.parse(after)
        async with self._database.read() as session:
            character = await get_character(session, character_id, owner_id=identity.user_id)
            if chat_id is None:
                chat_id = await _find_last_chat(session, identity, character_id)
            if chat_id is None:
                return Page(items=[], next=None)
            chat = await get_chat(session, chat_id, owner_id=identity.user_id)
            await _check_member(session, chat_id, character_id)
            others = (
                await find_remembered(session, chat, character_id)
                if character.keeps_memories
                else {}
            )
            chronicles = [*([chat.chronicle_id] if chat.chronicle_id else []), *others]
            if not chronicles:
                return Page(items=[], next=None)
            names = await find_names(
                session, [character_id], owner_id=identity.user_id, sealer=sealer
            )
            witness = await self._find_rememberer(
                session, sealer, chat, character_id, names[character_id]
            )
            ids, follows = await find_known_page(
                session, sealer, chronicles, witness, limit=limit, after=cursor
            )
            found = await get_events(session, sealer, ids, viewpoint=witness)
            events = [found[each] for each in ids if each in found]
            views = await load_views(session, sealer, events, self._find_witnesses)
            sources = await _find_sources(session, sealer, events, witness, others)
        items = [CharacterMemory(event=view, source=sources[view.id]) for view in views]
        return Page(items=items, next=str(follows) if follows else None)

    async def add(self, identity: Identity, character_id: UUID, new: NewMemory) -> CharacterMemory:
        """Add an event that only this character knows.

        A chat without a chronicle gets one, which is no consent to write events into it.
        """
        sealer, owner_id = identity.sealer, identity.user_id
        async with self._database.write() as session:
            await get_character(session, character_id, owner_id=owner_id)
            chat = await get_chat(session, new.chat_id, owner_id=owner_id, lock=True)
            await _check_member(session, chat.id, character_id)
            if chat.chronicle_id is None:
                chat.chronicle_id = await self._chronicles.choose(session, identity, chat, None)
                chat.revision += 1
                await session.flush()
            chronicle_id = chat.chronicle_id
            await get_chronicle(session, chronicle_id, owner_id=owner_id, lock=True)
            event = NewEvent(
                fields=EventFields(summary=new.text.strip()),
                source="user",
                happened_at=now(),
                audience=encode_audience([character_id]),
            )
            await insert_events(session, sealer, chronicle_id, [event])
            await self._outbox.changed(
                session, identity, kind=KIND, container_id=chronicle_id, source_ids=[event.id]
            )
            found = await get_events(session, sealer, [event.id])
            [view] = await load_views(session, sealer, list(found.values()), self._find_witnesses)
        return CharacterMemory(event=view, source=MemorySource())


async def _find_last_chat(
    session: AsyncSession, identity: Identity, character_id: UUID
) -> UUID | None:
    query = (
        select(Chat.id)
        .join(ChatCharacter, ChatCharacter.chat_id == Chat.id)
        .where(
            ChatCharacter.character_id == character_id,
            Chat.user_id == identity.user_id,
            Chat.is_ready,
        )
        .order_by(Chat.updated_at.desc(), Chat.id)
    )
    return await session.scalar(query.limit(1))


async def _check_member(session: AsyncSession, chat_id: UUID, character_id: UUID) -> None:
    query = select(ChatCharacter.character_id).where(
        ChatCharacter.chat_id == chat_id, ChatCharacter.character_id == character_id
    )
    if await session.scalar(query) is None:
        raise ValidationError("The character is not a member of the chat.")


async def _find_sources(
    session: AsyncSession,
    sealer: Sealer,
    events: Sequence[StoryEvent],
    witness: Witness,
    others: Mapping[UUID, Mapping[UUID, bytes]],
) -> dict[UUID, MemorySource]:
    """Return where a character learned of events: the first telling that it heard.

    An event that the user has written comes from no messages. In another chat's chronicle, that
    chat is its source.
    """
    heard: set[UUID] = set()
    for ids in split_chunks([each.id for event in events for each in event.sources]):
        known = Message.id.in_(ids), Message.is_active, filter_heard_anywhere(witness)
        heard |= set(await session.scalars(select(Message.id).where(*known)))
    told: dict[UUID, Sequence[SourceMessage]] = {}
    for event in events:
        for _, telling in sorted(group_tellings(event.sources).items()):
            if event.id not in told and all(each.id in heard for each in telling):
                told[event.id] = telling
    chats = {each[0].chat_id for each in told.values()}
    query = select(Chat.id, Chat.sealed_title).where(
        Chat.id.in_(chats), Chat.user_id == sealer.user_id
    )
    titles = {chat_id: sealed for own in others.values() for chat_id, sealed in own.items()}
    titles |= {row.id: row.sealed_title for row in await session.execute(query)}
    found: dict[UUID, MemorySource] = {}
    for event in events:
        first = told[event.id][0] if event.id in told else None
        origins = [first.chat_id] if first else others.get(event.chronicle_id, ())
        chat_id = next(iter(origins), None)
        title = titles.get(chat_id) if chat_id else None
        found[event.id] = MemorySource(
            chat_id=chat_id,
            chat_title=sealer.open(CHAT_TITLE, chat_id, title) if chat_id and title else "",
            position=first.position if first else None,
            message_ids=[each.id for each in told.get(event.id, ())],
        )
    return found
