"""Rolling summaries as they are stored.

A message has one for each audience that had news by then, sealed; the deepest active one counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import bindparam, delete, exists, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.accounts.auth.identity import Identity
from backend.campaigns.state.viewpoints import hides_information
from backend.chats.events import (
    AudienceChanged,
    AudienceMap,
    ChatCopied,
    MessageShown,
    WorldParted,
    translate_audiences,
)
from backend.chats.models import Chat, Message
from backend.chats.repository import FOREVER
from backend.chats.tree import make_ancestors, make_subtree
from backend.core.audience import GM, PUBLIC, Viewpoint, encode_viewpoint, may_all_know
from backend.database.base import Base, new_id, now, upsert
from backend.enrichment.models import CHAT_SUMMARY, ChatSummary, EnrichmentMark, EnrichmentRun
from backend.http.schemas import make_struct
from backend.vault.sealing import Sealer

MAX_SUMMARY_CHARS = 20_000
"""Characters of a summary, written by a model or by hand."""

_TELLS_ALL = Message.updated_at <= ChatSummary.updated_at
"""A reply may go on after it was summed up: what was added is in no summary through it."""

_FIRST = aliased(ChatSummary)


class StoredSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of the path down to and with a message; `id` is its row's.

    `position` and `path_tokens` are that message's, as they are now. `model` is who wrote it, where
    that is still known. `audience` is as its column holds it.
    """

    id: UUID
    message_id: UUID
    position: int
    path_tokens: int
    text: str
    is_edited: bool
    revision: int
    model: str | None
    audience: str
    created_at: datetime
    updated_at: datetime


async def find_current_summary(
    session: AsyncSession,
    sealer: Sealer,
    chat: Chat,
    *,
    up_to_position: int | None = None,
    viewpoint: Viewpoint = GM,
) -> StoredSummary | None:
    """The summary that reaches furthest down the active path, to `up_to_position` at most.

    It is the viewpoint's own, or the public one. Where that goes further, what happened since is
    public: the text is that of both.
    """
    column = encode_viewpoint(viewpoint)
    found = await list_active_summaries(
        session, sealer, chat, limit=1, up_to_position=up_to_position, audiences=(column, PUBLIC)
    )
    last = found[0] if found else None
    if last is None or last.audience == column or chat.campaign_id is None:
        return last
    own = await list_active_summaries(
        session, sealer, chat, limit=1, up_to_position=last.position, audiences=(column,)
    )
    if not own:
        return last
    return msgspec.structs.replace(last, text=f"{own[0].text}\n{last.text}", audience=column)


# Built once: every turn with a summary asks it.
_ACTIVE = (
    select(
        ChatSummary.id,
        ChatSummary.message_id,
        ChatSummary.sealed_summary,
        ChatSummary.is_edited,
        ChatSummary.revision,
        ChatSummary.audience,
        ChatSummary.created_at,
        ChatSummary.updated_at,
        Message.position,
        Message.path_tokens,
        EnrichmentRun.model,
    )
    .join(Message, Message.id == ChatSummary.message_id)
    .outerjoin(EnrichmentRun, EnrichmentRun.id == ChatSummary.run_id)
    .where(
        ChatSummary.chat_id == bindparam("chat"),
        ChatSummary.user_id == bindparam("owner"),
        ChatSummary.position <= bindparam("up_to"),
        Message.is_active,
        _TELLS_ALL,
    )
    .order_by(ChatSummary.position.desc())
    .limit(bindparam("limit"))
)
_ACTIVE_FOR = _ACTIVE.where(
    ChatSummary.audience.in_(bindparam("audiences", expanding=True)),
    or_(
        ChatSummary.audience == bindparam("first"),
        ~exists().where(
            _FIRST.message_id == ChatSummary.message_id, _FIRST.audience == bindparam("first")
        ),
    ),
)


async def list_active_summaries(
    session: AsyncSession,
    sealer: Sealer,
    chat: Chat,
    *,
    limit: int,
    up_to_position: int | None = None,
    audiences: Sequence[str] = (),
) -> list[StoredSummary]:
    """Summaries of messages on a chat's active path, the deepest first.

    Those for one of `audiences`, as columns hold them; of several of one message, that for the
    first audience. None given: all.
    """
    values = {
        "chat": chat.id,
        "owner": sealer.user_id,
        "limit": limit,
        "up_to": FOREVER if up_to_position is None else up_to_position,
    }
    if audiences:
        values |= {"audiences": audiences, "first": audiences[0]}
    return [
        make_struct(
            StoredSummary,
            row,
            text=sealer.open(CHAT_SUMMARY, row.id, row.sealed_summary),
        )
        for row in await session.execute(_ACTIVE_FOR if audiences else _ACTIVE, values)
    ]


async def store_summary(
    session: AsyncSession,
    sealer: Sealer,
    message: Message,
    text: str,
    *,
    audience: str | None = None,
    run_id: UUID | None = None,
    is_edited: bool = False,
) -> None:
    """Keep a text as an audience's summary through an active message, in place of what was there.

    Without an audience it is public if all messages that it covers are, else the game master's
    alone. The chat's row is locked.
    """
    at = now()
    if audience is None:
        audience = await _audience_through(session, message)
    before = select(ChatSummary.id).where(
        ChatSummary.message_id == message.id, ChatSummary.audience == audience
    )
    row_id = await session.scalar(before) or new_id()
    row = {
        "id": row_id,
        "message_id": message.id,
        "user_id": message.user_id,
        "chat_id": message.chat_id,
        "position": message.position,
        "run_id": run_id,
        "sealed_summary": sealer.seal(CHAT_SUMMARY, row_id, text),
        "is_edited": is_edited,
        "audience": audience,
        "revision": 1,
        "created_at": at,
        "updated_at": at,
    }
    update: tuple[str, ...] = ("sealed_summary", "is_edited", "updated_at")
    if run_id:
        update = (*update, "run_id")
    await upsert(session, ChatSummary, row, key=("id",), update=update, count_up=("revision",))


class ChatSummaries(AudienceChanged, ChatCopied, MessageShown, WorldParted):
    """Keeps summaries with their chats, in the transactions that change the chats."""

    async def audience_changed(
        self, session: AsyncSession, identity: Identity, message: Message, *, before: str
    ) -> None:
        """Let summaries through a message, and below it, be for those who may know all of it.

        The game master's are public once all that they cover is. What tells of the message to some
        who may know it no longer, or does not tell of it to those who now may, is written anew; an
        only summary, or a user's own, is the game master's then.
        """
        owned = ChatSummary.user_id == identity.user_id
        # The message is as new as this change: a summary through it still tells all of it.
        await session.execute(
            update(ChatSummary)
            .where(ChatSummary.message_id == message.id, owned)
            .values(updated_at=message.updated_at)
        )
        chat = await session.get_one(Chat, message.chat_id)
        is_only = not await hides_information(session, identity.sealer, chat)
        below = select(make_subtree(message.id).c.id)
        rows = await session.scalars(
            select(ChatSummary).where(ChatSummary.message_id.in_(below), owned)
        )
        found = {(row.message_id, row.audience): row for row in rows}
        for (message_id, column), row in list(found.items()):
            knew = may_all_know(column, before)
            knows = may_all_know(column, message.audience)
            wanted = column
            if column == GM and message.audience == PUBLIC:
                through = await session.get_one(Message, message_id)
                wanted = await _audience_through(session, through)
            elif knew and not knows and (is_only or row.is_edited):
                wanted = GM
            if wanted != column and (message_id, wanted) not in found:
                row.audience = wanted
                found[message_id, wanted] = row
            elif (knew and not knows) or (knows and not knew and not row.is_edited):
                await session.delete(row)

    async def message_shown(
        self, session: AsyncSession, identity: Identity, message: Message
    ) -> None:
        """Drop the summaries through the message and below it that nobody edited.

        They do not tell of it; the job behind the next reply writes them anew.
        """
        await session.execute(
            delete(ChatSummary).where(
                ChatSummary.message_id.in_(select(make_subtree(message.id).c.id)),
                ChatSummary.user_id == identity.user_id,
                ~ChatSummary.is_edited,
            )
        )

    async def chat_copied(
        self,
        session: AsyncSession,
        identity: Identity,
        source_id: UUID,
        fork_id: UUID,
        copied: Mapping[UUID, UUID],
    ) -> None:
        """Copy a chat's summaries, and how far the agent has read, along the copied path.

        `copied` leads from messages to their copies.
        """
        sealer = identity.sealer
        owner = {"user_id": sealer.user_id, "chat_id": fork_id}
        summaries = await session.scalars(
            select(ChatSummary)
            .join(Message, Message.id == ChatSummary.message_id)
            .where(
                ChatSummary.chat_id == source_id, ChatSummary.user_id == sealer.user_id, _TELLS_ALL
            )
        )
        ids = {row: new_id() for row in summaries if row.message_id in copied}
        rows: list[dict[str, Any]] = [
            {
                **owner,
                "id": copy_id,
                "message_id": copied[row.message_id],
                "position": row.position,
                "is_edited": row.is_edited,
                "audience": row.audience,
                "sealed_summary": sealer.seal(
                    CHAT_SUMMARY,
                    copy_id,
                    sealer.open(CHAT_SUMMARY, row.id, row.sealed_summary),
                ),
                "created_at": row.created_at,
                # Not before the copied message's, which is as new.
                "updated_at": now(),
            }
            for row, copy_id in ids.items()
        ]
        if rows:
            await session.execute(insert(ChatSummary), rows)
        table = Base.metadata.tables[EnrichmentMark.__tablename__]
        marks = await session.execute(
            select(table).where(table.c.chat_id == source_id, table.c.user_id == sealer.user_id)
        )
        read = [
            {**row, **owner, "id": copied[row["id"]]}
            for row in marks.mappings()
            if row["id"] in copied
        ]
        if read:
            await session.execute(insert(table), read)

    async def world_parted(
        self, session: AsyncSession, identity: Identity, fork: Chat, translate: AudienceMap
    ) -> None:
        """Translate the audiences of a copied chat's summaries; delete those of no one."""
        mine = ChatSummary.chat_id == fork.id, ChatSummary.user_id == identity.user_id
        columns = await session.scalars(select(ChatSummary.audience).where(*mine).distinct())
        gone = [each for each in columns if each != GM and translate(each) == GM]
        await session.execute(delete(ChatSummary).where(*mine, ChatSummary.audience.in_(gone)))
        await translate_audiences(session, ChatSummary.audience, translate, *mine)


async def _audience_through(session: AsyncSession, message: Message) -> str:
    """Who may know all from the root through a message, as a column holds it."""
    path = make_ancestors(message.id)
    limited = select(Message.id).where(
        Message.id.in_(select(path.c.id)), Message.audience != PUBLIC
    )
    return PUBLIC if await session.scalar(limited.limit(1)) is None else GM
