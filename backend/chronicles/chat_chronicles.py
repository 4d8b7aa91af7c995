"""Chronicles of chats: assignment, copying with a chat, and clean-up after deletion."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Select, delete, exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats.events import (
    AudienceChanged,
    AudienceMap,
    ChatCopied,
    ChatDeleted,
    MessageRemoved,
    WorldParted,
    translate_audiences,
)
from backend.chats.members import load_group
from backend.chats.models import CHAT_TITLE, Chat, Message
from backend.chats.repository import get_chat
from backend.chronicles.errors import ChronicleFullError, ChronicleNotFoundError
from backend.chronicles.event_search import load_all_events
from backend.chronicles.event_writer import (
    NewEvent,
    find_told_audience,
    insert_events,
    mark_superseded,
    remove_events,
    remove_telling,
    touch,
)
from backend.chronicles.events import ChronicleFields
from backend.chronicles.index_source import KIND
from backend.chronicles.models import Chronicle, ChronicleEvent, EventSource
from backend.chronicles.repository import (
    DEFAULT_NAME,
    FOLLOWS_MESSAGES,
    SourceMessage,
    StoryEvent,
    counting,
    find_witnesses,
    group_tellings,
    load_sources,
    make_chronicle,
    open_chronicle,
)
from backend.core.audience import (
    GM,
    PUBLIC,
    intersect_audiences,
    limit_audience,
    unite_audiences,
)
from backend.core.cpu_pool import iterate_in_slices
from backend.database.base import UNSYNCHRONIZED
from backend.memory.indexing.outbox import IndexOutbox

_IS_KEPT = exists().where(
    Chronicle.id == ChronicleEvent.chronicle_id, Chronicle.deleted_at.is_(None)
)
"""The chronicle of an event is not being deleted. Otherwise a job may delete the event before it is
updated here."""

MAX_NOTED = 1_000
"""Maximum number of deleted events that the index is told individually."""


class ChatChronicles(AudienceChanged, ChatCopied, ChatDeleted, MessageRemoved, WorldParted):
    """Updates chronicles in the same transaction as their chats."""

    def __init__(self, outbox: IndexOutbox) -> None:
        self._outbox = outbox

    async def choose(
        self, session: AsyncSession, identity: Identity, chat: Chat, wanted: UUID | None
    ) -> UUID:
        """Return the chronicle for a chat. If `wanted` is None, create one named after the chat.

        Raises `ChronicleNotFoundError`, and `ChronicleFullError` if the account has the maximum
        number.
        """
        if wanted is not None:
            owned = Chronicle.id == wanted, Chronicle.match_owner(identity.user_id)
            # Locked, so that it cannot be deleted before the chat refers to it.
            query = select(Chronicle.id).where(*owned)
            held = query.with_for_update(read=True, key_share=True)
            if await session.scalar(held) is None:
                raise ChronicleNotFoundError
            return wanted
        name = identity.sealer.open(CHAT_TITLE, chat.id, chat.sealed_title)
        fields = ChronicleFields(name=name.strip() or DEFAULT_NAME)
        return (await make_chronicle(session, identity, fields)).id

    async def chat_deleted(self, session: AsyncSession, identity: Identity, chat: Chat) -> None:
        """Delete the events with only inactive source messages in the chat.

        Active events stay permanently, because the database removes their source messages. They
        keep the audience of those who heard them. If an event also has sources elsewhere, only its
        inactive sources are removed. Events of chronicles that are being deleted stay as they are.
        """
        event, source = ChronicleEvent, EventSource
        on_path = exists().where(Message.id == source.message_id, Message.is_active)
        left = exists().where(source.event_id == event.id, source.chat_id == chat.id, ~on_path)
        own = event.user_id == identity.user_id
        told_here = exists().where(source.event_id == event.id, source.chat_id == chat.id)
        await _lock_chronicles(session, select(event).where(own, told_here))
        rows = await session.scalars(select(event).where(own, left, _IS_KEPT))
        ended = {row.id: row for row in rows}
        sources = await load_sources(session, list(ended))
        active = await find_witnesses(session, [each for told in sources.values() for each in told])
        changed: defaultdict[UUID, list[UUID]] = defaultdict(list)
        removed: list[UUID] = []
        for event_id, row in ended.items():
            changed[row.chronicle_id].append(event_id)
            is_kept = True
            for number, telling in group_tellings(sources[event_id]).items():
                if any(each.chat_id == chat.id and each.id not in active for each in telling):
                    is_kept = await remove_telling(session, row, number)
            if not is_kept:
                removed.append(event_id)
        await remove_events(session, removed, owner_id=identity.user_id)
        for row in await self._keep_audiences(session, identity, chat):
            changed[row.chronicle_id].append(row.id)
        for chronicle_id, event_ids in changed.items():
            # For a large number, compare the whole chronicle instead, because that is quicker to
            # record.
            noted = event_ids if len(event_ids) <= MAX_NOTED else None
            await self._outbox.changed(
                session, identity, kind=KIND, container_id=chronicle_id, source_ids=noted
            )

    async def _keep_audiences(
        self, session: AsyncSession, identity: Identity, chat: Chat
    ) -> Sequence[ChronicleEvent]:
        """Limit public events to those who were there, because that is unknown without the chat."""
        group = await load_group(session, chat.id)
        if not group.changes and all(group.members.values()):
            return []
        rows = (
            await session.scalars(
                select(ChronicleEvent).where(
                    ChronicleEvent.user_id == identity.user_id,
                    ChronicleEvent.audience == PUBLIC,
                    _IS_KEPT,
                    exists().where(
                        EventSource.event_id == ChronicleEvent.id, EventSource.chat_id == chat.id
                    ),
                )
            )
        ).all()
        sources = await load_sources(session, [row.id for row in rows])
        heard = await find_witnesses(session, [each for told in sources.values() for each in told])
        limited: list[ChronicleEvent] = []
        for row in rows:
            audience = unite_audiences(
                [
                    intersect_audiences([heard.get(each.id, GM) for each in telling])
                    for telling in group_tellings(sources[row.id]).values()
                ]
            )
            if audience != PUBLIC:
                row.audience = audience
                touch(row)
                limited.append(row)
        return limited

    async def audience_changed(
        self,
        session: AsyncSession,
        identity: Identity,
        message: Message,
        *,
        before: str,  # noqa: ARG002  # events always follow the new audience
    ) -> None:
        """Restrict events written from a message to the audience of the message.

        If an event was also told in other messages, those who heard them still know it. Events that
        users wrote or edited keep their audience.
        """
        rows = await _lock_events(
            session,
            identity,
            message,
            ChronicleEvent.source.in_(("agent", "campaign")),
            ~ChronicleEvent.is_edited,
        )
        sources = await load_sources(session, [row.id for row in rows])
        for row in rows:
            limit = message.audience
            if len(group_tellings(sources[row.id])) > 1:
                await session.flush()
                limit = await find_told_audience(session, sources[row.id])
            audience = limit_audience(row.audience, limit)
            if audience == row.audience:
                continue
            row.audience = audience
            touch(row)
            await self._outbox.changed(
                session,
                identity,
                kind=KIND,
                container_id=row.chronicle_id,
                source_ids=[row.id],
            )

    async def message_removed(
        self,
        session: AsyncSession,
        identity: Identity,
        chat: Chat,  # noqa: ARG002  # the sources name the message
        message: Message,
    ) -> None:
        """Delete the events that were written from a removed message.

        Of an event that was also told elsewhere, only this telling ends. Events that users wrote or
        edited stay, without the message, and no one else gets to know them.
        """
        rows = await _lock_events(session, identity, message)
        sources = await load_sources(session, [row.id for row in rows])
        changed: defaultdict[UUID, list[UUID]] = defaultdict(list)
        removed: list[UUID] = []
        for row in rows:
            changed[row.chronicle_id].append(row.id)
            told = next(each for each in sources[row.id] if each.id == message.id)
            if row.source not in FOLLOWS_MESSAGES or row.is_edited:
                if row.audience == PUBLIC:
                    row.audience = await find_told_audience(session, sources[row.id])
                await session.execute(
                    delete(EventSource).where(
                        EventSource.event_id == row.id, EventSource.message_id == message.id
                    ),
                    execution_options=UNSYNCHRONIZED,
                )
                touch(row)
            elif not await remove_telling(session, row, told.telling):
                removed.append(row.id)
        await remove_events(session, removed, owner_id=identity.user_id)
        for chronicle_id, event_ids in changed.items():
            await self._outbox.changed(
                session, identity, kind=KIND, container_id=chronicle_id, source_ids=event_ids
            )

    async def chat_copied(
        self,
        session: AsyncSession,
        identity: Identity,
        source_id: UUID,
        fork_id: UUID,
        copied: Mapping[UUID, UUID],
    ) -> None:
        """Give the copy of a chat its own chronicle if the original has one.

        The two stories differ from here on, so neither may read the events of the other. Events
        with source messages in this chat are copied only if all of those messages of one telling
        were copied, and then refer to the copies. All other events are copied unchanged, including
        sources in other chats. `copied` maps messages to their copies.

        The chat's consent is copied too. The marks of what was read are copied elsewhere, so
        nothing is read again. Raises `ChronicleFullError`.
        """
        owner_id = identity.user_id
        source = await get_chat(session, source_id, owner_id=owner_id)
        if source.chronicle_id is None:
            return
        chronicle = await session.scalar(
            select(Chronicle).where(
                Chronicle.id == source.chronicle_id, Chronicle.match_owner(owner_id)
            )
        )
        if chronicle is None:
            return
        fields = open_chronicle(identity.sealer, chronicle)
        try:
            copy_id = (await make_chronicle(session, identity, fields)).id
        except ChronicleFullError as error:
            detail = f"The copy of this chat needs a chronicle of its own. {error.detail}"
            raise ChronicleFullError(detail, extra=error.extra) from error
        events = await load_all_events(session, identity.sealer, chronicle.id)
        await _copy_events(session, identity, events, copy_id, source_id, fork_id, copied)
        fork = await get_chat(session, fork_id, owner_id=owner_id)
        fork.chronicle_id = copy_id
        fork.chronicle_enabled = source.chronicle_enabled
        fork.chronicle_since = source.chronicle_since
        await session.flush()
        await self._outbox.changed(session, identity, kind=KIND, container_id=copy_id)

    async def world_parted(
        self, session: AsyncSession, identity: Identity, fork: Chat, translate: AudienceMap
    ) -> None:
        """Translate the audiences of a copied chat's events.

        Events from other chats of the old world become permanent if they are active. Otherwise they
        are deleted.
        """
        mine = (
            ChronicleEvent.chronicle_id == fork.chronicle_id,
            ChronicleEvent.user_id == identity.user_id,
        )
        left = (await session.scalars(select(ChronicleEvent.id).where(*mine, ~counting()))).all()
        await remove_events(session, left, owner_id=identity.user_id)
        elsewhere = EventSource.event_id.in_(select(ChronicleEvent.id).where(*mine))
        await session.execute(
            delete(EventSource).where(elsewhere, EventSource.chat_id != fork.id),
            execution_options=UNSYNCHRONIZED,
        )
        await translate_audiences(session, ChronicleEvent.audience, translate, *mine)


async def _lock_events(
    session: AsyncSession, identity: Identity, message: Message, *where: ColumnElement[bool]
) -> Sequence[ChronicleEvent]:
    """Return the events that come from a message, after locking their chronicles in one order."""
    events = (
        select(ChronicleEvent)
        .join(EventSource, EventSource.event_id == ChronicleEvent.id)
        .where(
            EventSource.message_id == message.id,
            ChronicleEvent.user_id == identity.user_id,
            _IS_KEPT,
            *where,
        )
    )
    await _lock_chronicles(session, events)
    return (await session.scalars(events)).all()


async def _lock_chronicles(session: AsyncSession, events: Select[ChronicleEvent]) -> None:
    """Lock the chronicles of events in one order, so that two requests cannot deadlock.

    Those that are being deleted are not locked, because the job that deletes them locks them.
    """
    theirs = events.with_only_columns(ChronicleEvent.chronicle_id)
    kept = Chronicle.id.in_(theirs), Chronicle.deleted_at.is_(None)
    chronicles = select(Chronicle.id).where(*kept).order_by(Chronicle.id)
    await session.execute(chronicles.with_for_update())


async def _copy_events(
    session: AsyncSession,
    identity: Identity,
    events: Sequence[StoryEvent],
    chronicle_id: UUID,
    source_id: UUID,
    fork_id: UUID,
    copied: Mapping[UUID, UUID],
) -> None:
    """Copy the events of a copied path. The copies belong to no run."""
    copies: dict[UUID, NewEvent] = {}
    async for event in iterate_in_slices(events):
        kept = [
            each
            for telling in group_tellings(event.sources).values()
            if all(each.id in copied for each in telling if each.chat_id == source_id)
            for each in telling
        ]
        if event.sources and not kept:
            continue
        audience = event.stored_audience
        if len(kept) < len(event.sources):
            audience = limit_audience(audience, await find_told_audience(session, kept))
        copies[event.id] = NewEvent(
            fields=event.fields,
            significance=event.significance,
            source=event.source,
            happened_at=event.happened_at,
            place=event.place,
            sources=[_map_source(each, fork_id, copied) for each in kept],
            is_pinned=event.is_pinned,
            is_edited=event.is_edited,
            audience=audience,
        )
    await insert_events(session, identity.sealer, chronicle_id, list(copies.values()))
    marks: dict[UUID, UUID | None] = {}
    for event in events:
        copy, by = copies.get(event.id), event.superseded_by
        if copy is not None and by is not None and by in copies:
            marks[copy.id] = copies[by].id
    await mark_superseded(session, marks)


def _map_source(source: SourceMessage, fork_id: UUID, copied: Mapping[UUID, UUID]) -> SourceMessage:
    copy_id = copied.get(source.id)
    return msgspec.structs.replace(source, id=copy_id, chat_id=fork_id) if copy_id else source
