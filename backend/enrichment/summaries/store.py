"""Stored rolling summaries.

A message has at most one sealed summary for each audience. The deepest one on the active path
counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import msgspec
from sqlalchemy import (
    ColumnElement,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from backend.accounts.auth.identity import Identity
from backend.campaigns.ledger.records import open_campaign
from backend.campaigns.models import Campaign
from backend.campaigns.state.viewpoints import filter_players, hides_information
from backend.chats.events import (
    AudienceChanged,
    AudienceMap,
    ChatCopied,
    MessageRemoved,
    MessageShown,
    MessagesRewritten,
    WorldParted,
    translate_audiences,
)
from backend.chats.members import load_group
from backend.chats.models import Chat, Message
from backend.chats.repository import MAX_POSITION, find_first_after
from backend.chats.schemas import SummarySettings
from backend.chats.service import read_settings
from backend.chats.tree import make_ancestors, make_subtree
from backend.context.budget import compute_step, find_eviction_point
from backend.core.audience import (
    GM,
    PUBLIC,
    Viewpoint,
    Witness,
    encode_audience,
    list_entities,
    list_viewers,
    may_all_know,
    may_know,
)
from backend.database.base import UNSYNCHRONIZED, Base, new_id, now, split_chunks, upsert
from backend.enrichment.models import CHAT_SUMMARY, ChatSummary, EnrichmentMark, EnrichmentRun
from backend.enrichment.story import is_between, is_readable
from backend.http.schemas import make_struct
from backend.vault.sealing import Sealer

MAX_SUMMARY_CHARS = 20_000
"""Maximum characters of a summary, by a model or by hand."""

_IS_WHOLE = Message.updated_at <= ChatSummary.updated_at
"""A reply may have been continued after it was summarised. No summary through it has the new part.
"""

_OWN = aliased(ChatSummary)


class PathPlace(Protocol):
    """A message of the path: its position, and the stored tokens from the root to its end."""

    @property
    def position(self) -> int:
        """The position of the message."""
        ...

    @property
    def path_tokens(self) -> int:
        """The stored tokens from the root to the end of the message."""
        ...


class StoredSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of the path from position `begins_at` down to a message; `id` is its row's.

    `position` and `path_tokens` are those of the message now. `model` wrote it, if that is still
    known. `audience` is in the form of the database column.
    """

    id: UUID
    message_id: UUID
    position: int
    path_tokens: int
    begins_at: int
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
    """Return the summary that covers most of the active path, at most to `up_to_position`.

    It is the viewpoint's own or the public one. If the public one covers more, all later events are
    public, so that the text is a combination of both.
    """
    columns = list_own_columns(viewpoint)
    found = await list_active_summaries(
        session, sealer, chat, limit=1, up_to_position=up_to_position, viewpoint=viewpoint
    )
    last = found[0] if found else None
    if last is None or not columns or last.audience != PUBLIC or chat.campaign_id is None:
        return last
    own = await list_active_summaries(
        session,
        sealer,
        chat,
        limit=1,
        up_to_position=last.position,
        viewpoint=viewpoint,
        with_public=False,
    )
    if not own:
        return last
    text = f"{own[0].text}\n{last.text}"
    return msgspec.structs.replace(last, text=text, audience=own[0].audience)


def list_own_columns(viewpoint: Viewpoint) -> tuple[str, ...]:
    """Return the audiences of summaries that were written for a viewpoint alone.

    A character also has those of the entities that it plays, after its own.
    """
    if isinstance(viewpoint, str):
        return (GM,) if viewpoint == GM else ()
    others = (each for each in list_viewers(viewpoint) if each != get_viewer(viewpoint))
    return tuple(encode_audience([each]) for each in (get_viewer(viewpoint), *others))


def get_viewer(viewpoint: UUID | Witness) -> UUID:
    """Return the character or the entity of a viewpoint."""
    return viewpoint.character_id if isinstance(viewpoint, Witness) else viewpoint


def select_active(*columns: Any) -> Any:
    """Return the query for summaries along the path of `chat` for `owner`, the deepest first."""
    return (
        select(*columns)
        .select_from(ChatSummary)
        .join(Message, Message.id == ChatSummary.message_id)
        .where(
            ChatSummary.chat_id == bindparam("chat"),
            ChatSummary.user_id == bindparam("owner"),
            Message.is_active,
            _IS_WHOLE,
        )
        .order_by(ChatSummary.position.desc())
    )


# The statements are built once, because every turn with a summary executes one.
_STORED = select_active(
    ChatSummary.id,
    ChatSummary.message_id,
    ChatSummary.sealed_summary,
    ChatSummary.is_edited,
    ChatSummary.revision,
    ChatSummary.begins_at,
    ChatSummary.audience,
    ChatSummary.created_at,
    ChatSummary.updated_at,
    Message.position,
    Message.path_tokens,
    EnrichmentRun.model,
).outerjoin(EnrichmentRun, EnrichmentRun.id == ChatSummary.run_id)
_ACTIVE = _STORED.where(ChatSummary.position <= bindparam("up_to")).limit(bindparam("limit"))
_ACTIVE_FOR = _ACTIVE.where(
    ChatSummary.audience.in_(bindparam("audiences", expanding=True)),
    or_(
        ChatSummary.audience != PUBLIC,
        ~exists().where(
            _OWN.message_id == ChatSummary.message_id,
            _OWN.audience.in_(bindparam("own", expanding=True)),
        ),
    ),
)
_BY_ID = _STORED.where(ChatSummary.id.in_(bindparam("ids", expanding=True)))


async def list_active_summaries(
    session: AsyncSession,
    sealer: Sealer,
    chat: Chat,
    *,
    limit: int,
    up_to_position: int | None = None,
    viewpoint: Viewpoint | None = None,
    with_public: bool = True,
) -> list[StoredSummary]:
    """Return summaries along a chat's active path, the deepest first.

    With a `viewpoint` they are its own and the public ones. If a message has both, its own wins.
    """
    values: dict[str, Any] = {
        "chat": chat.id,
        "owner": sealer.user_id,
        "limit": limit,
        "up_to": MAX_POSITION if up_to_position is None else up_to_position,
    }
    if viewpoint is None:
        return _open_rows(sealer, await session.execute(_ACTIVE, values))
    own = list_own_columns(viewpoint)
    values |= {"own": own, "audiences": (*own, PUBLIC) if with_public else own}
    return _open_rows(sealer, await session.execute(_ACTIVE_FOR, values))


async def load_summaries(
    session: AsyncSession, sealer: Sealer, chat_id: UUID, ids: Sequence[UUID]
) -> dict[UUID, StoredSummary]:
    """Return summaries of the active path by id."""
    if not ids:
        return {}
    values = {"chat": chat_id, "owner": sealer.user_id, "ids": ids}
    return {each.id: each for each in _open_rows(sealer, await session.execute(_BY_ID, values))}


def _open_rows(sealer: Sealer, rows: Iterable[Any]) -> list[StoredSummary]:
    return [
        make_struct(
            StoredSummary,
            row,
            text=sealer.open(CHAT_SUMMARY, row.id, row.sealed_summary),
        )
        for row in rows
    ]


async def store_summary(
    session: AsyncSession,
    sealer: Sealer,
    message: Message,
    text: str,
    *,
    begins_at: int = 0,
    audience: str | None = None,
    run_id: UUID | None = None,
    is_edited: bool = False,
) -> None:
    """Store the summary of an audience through an active message, and replace an earlier one.

    Without an audience it is public if all its messages are, or else the game master's. The caller
    has locked the chat.
    """
    at = now()
    if audience is None:
        audience = await _find_audience(session, message, begins_at)
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
        "begins_at": begins_at,
        "run_id": run_id,
        "sealed_summary": sealer.seal(CHAT_SUMMARY, row_id, text),
        "is_edited": is_edited,
        "audience": audience,
        "revision": 1,
        "created_at": at,
        "updated_at": at,
    }
    update: tuple[str, ...] = ("sealed_summary", "begins_at", "is_edited", "updated_at")
    if run_id:
        update = (*update, "run_id")
    await upsert(session, ChatSummary, row, key=("id",), update=update, count_up=("revision",))


class ChatSummaries(
    AudienceChanged, ChatCopied, MessageRemoved, MessageShown, MessagesRewritten, WorldParted
):
    """Updates summaries in the transactions that change their chats."""

    async def audience_changed(
        self, session: AsyncSession, identity: Identity, message: Message, *, before: str
    ) -> None:
        """Update the audiences of summaries that cover a message.

        A game master's summary becomes public if all its messages are. A summary is deleted if its
        audience may no longer know the message, or may now know it and does not read of it. If it
        is the only one, or a user's own, the game master gets it instead.
        """
        owned = ChatSummary.user_id == identity.user_id
        # The message is as new as this change, so that summaries through it remain complete.
        await session.execute(
            update(ChatSummary)
            .where(ChatSummary.message_id == message.id, owned)
            .values(updated_at=message.updated_at)
        )
        chat = await session.get_one(Chat, message.chat_id)
        is_only = not (
            await hides_information(session, identity.sealer, chat)
            or (await load_group(session, chat.id)).is_group
        )
        rows = await session.scalars(select(ChatSummary).where(*_cover(message), owned))
        found = {(row.message_id, row.audience): row for row in rows}
        for (message_id, column), row in list(found.items()):
            knew = may_all_know(column, before)
            knows = may_all_know(column, message.audience)
            wanted = column
            if column == GM and message.audience == PUBLIC:
                through = await session.get_one(Message, message_id)
                wanted = await _find_audience(session, through, row.begins_at)
            elif knew and not knows and (is_only or row.is_edited):
                wanted = GM
            if wanted != column and (message_id, wanted) not in found:
                row.audience = wanted
                found[message_id, wanted] = row
            elif (knew and not knows) or (knows and not knew and not row.is_edited):
                await session.delete(row)

    async def messages_rewritten(
        self,
        session: AsyncSession,
        identity: Identity,
        message_ids: Sequence[UUID],
        changed_at: datetime,
    ) -> None:
        """Keep the summaries through these messages. They would seem to lack a continued part."""
        for ids in split_chunks(message_ids):
            await session.execute(
                update(ChatSummary)
                .where(
                    ChatSummary.message_id.in_(ids),
                    ChatSummary.user_id == identity.user_id,
                    exists().where(Message.id == ChatSummary.message_id, _IS_WHOLE),
                )
                .values(updated_at=changed_at),
                execution_options=UNSYNCHRONIZED,
            )

    async def message_removed(
        self,
        session: AsyncSession,
        identity: Identity,
        chat: Chat,  # noqa: ARG002  # summaries are found by the message
        message: Message,
    ) -> None:
        """Delete unedited summaries of a removed message. Those that users edited stay.

        The job of the next reply writes new ones.
        """
        await self.message_shown(session, identity, message)
        # The message is as new as this change, so that a summary through it remains complete.
        await session.execute(
            update(ChatSummary)
            .where(ChatSummary.message_id == message.id, ChatSummary.user_id == identity.user_id)
            .values(updated_at=message.updated_at)
        )

    async def message_shown(
        self, session: AsyncSession, identity: Identity, message: Message
    ) -> None:
        """Delete unedited summaries that would cover the message, because they lack it.

        The job of the next reply writes new ones.
        """
        await session.execute(
            delete(ChatSummary).where(
                *_cover(message), ChatSummary.user_id == identity.user_id, ~ChatSummary.is_edited
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
        """Copy summaries and read marks along the copied path of a chat.

        `copied` maps messages to their copies.
        """
        sealer = identity.sealer
        owner = {"user_id": sealer.user_id, "chat_id": fork_id}
        summaries = await session.scalars(
            select(ChatSummary)
            .join(Message, Message.id == ChatSummary.message_id)
            .where(
                ChatSummary.chat_id == source_id, ChatSummary.user_id == sealer.user_id, _IS_WHOLE
            )
        )
        ids = {row: new_id() for row in summaries if row.message_id in copied}
        rows: list[dict[str, Any]] = [
            {
                **owner,
                "id": copy_id,
                "message_id": copied[row.message_id],
                "position": row.position,
                "begins_at": row.begins_at,
                "is_edited": row.is_edited,
                "audience": row.audience,
                "sealed_summary": sealer.seal(
                    CHAT_SUMMARY,
                    copy_id,
                    sealer.open(CHAT_SUMMARY, row.id, row.sealed_summary),
                ),
                "created_at": row.created_at,
                # It must not be older than the copied message, which is as new.
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


def _cover(message: Message) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for summaries that cover a message, on all branches."""
    below = select(make_subtree(message.id).c.id)
    return ChatSummary.message_id.in_(below), ChatSummary.begins_at <= message.position


async def _find_audience(session: AsyncSession, message: Message, begins_at: int) -> str:
    """Return the audience that may know all messages from a position through this one."""
    path = make_ancestors(message.id)
    limited = select(Message.id).where(
        Message.id.in_(select(path.c.id).where(path.c.position >= begins_at)),
        Message.audience != PUBLIC,
    )
    return PUBLIC if await session.scalar(limited.limit(1)) is None else GM


CAMPAIGN_WORDS = 150
"""Approximate length in words of the summary of a campaign's chat."""

HOT_ROUNDS = 4
"""The latest rounds of a campaign's chat stay in its history and are not summarised."""

_MIN_MESSAGES = 4
"""Minimum messages between two summaries, however small the history is: two exchanges."""

_LAST_EXCHANGE = 2
"""Latest messages are swiped and edited most, so they are not summarised ahead of time."""


async def find_goal(
    session: AsyncSession,
    chat: Chat,
    current: PathPlace | None,
    *,
    history_budget: int,
    interval: int,
    is_begun: bool,
) -> int | None:
    """Return the position through which the path should be summarised; None if it is.

    The goal covers what the history loses with its next step and at least `interval` messages, as
    far as they are in its older half. If the history has already lost messages, `_MIN_MESSAGES`
    new ones are enough, in either half.

    `current` is the latest summary, `history_budget` is in stored tokens. With `is_begun` the
    previous step was just stored, and the rest does not wait.
    """
    query = (
        select(Message.path_tokens, Message.position)
        .where(Message.chat_id == chat.id, Message.is_active, Message.status != "streaming")
        .order_by(Message.position.desc())
        .limit(1)
    )
    last = (await session.execute(query)).one_or_none()
    if last is None:
        return None
    leaf = last.path_tokens
    reached, covered = (current.position, current.path_tokens) if current else (-1, 0)
    next_begin = find_eviction_point(leaf + compute_step(history_budget), history_budget)
    needed = await _find_last_before(session, chat, next_begin)
    if needed is None or needed <= reached:
        return None
    middle = max(next_begin, leaf - history_budget // 2)
    older = await _find_last_before(session, chat, middle, at_most=reached + interval)
    goal = max(needed, needed if older is None else older)
    if is_begun or goal - reached >= interval:
        return goal
    if covered >= find_eviction_point(leaf, history_budget):
        return None
    least = min(_MIN_MESSAGES, interval)
    goal = max(goal, min(reached + least, last.position - _LAST_EXCHANGE))
    return goal if goal - reached >= least else None


async def find_round_goal(
    session: AsyncSession, chat: Chat, current: PathPlace | None, *, interval: int
) -> int | None:
    """Return the goal of a campaign's chat: every `interval` rounds, without the last ones."""
    query = (
        select(Message.position)
        .where(is_readable(chat), Message.role == "user")
        .order_by(Message.position.desc())
        .limit(HOT_ROUNDS + interval)
    )
    begins = list(await session.scalars(query))
    reached = current.position if current else -1
    if sum(begin > reached for begin in begins) < HOT_ROUNDS + interval:
        return None
    return begins[HOT_ROUNDS - 1] - 1


async def read_summary_settings(
    session: AsyncSession, sealer: Sealer, chat: Chat
) -> SummarySettings:
    """Return the settings of the chat's summary, or those of its campaign."""
    own = read_settings(sealer, chat).summary
    if chat.campaign_id is None:
        return own
    campaign = await session.get_one(Campaign, chat.campaign_id)
    settings = open_campaign(sealer, campaign).settings
    if not settings.summaries:
        return own
    return SummarySettings(enabled=True, words=CAMPAIGN_WORDS, interval=settings.memory_interval)


async def find_next_audience(
    session: AsyncSession, sealer: Sealer, chat: Chat, *, through: int
) -> tuple[Viewpoint, StoredSummary | None] | None:
    """Return an audience with unsummarised news up to a position, and its summary.

    It is for campaigns with hidden information. Player characters and the game master have news if
    messages are for them and not for everyone. The public summary comes last, so that the others
    contain everything that it leaves out.
    """
    told = await find_current_summary(session, sealer, chat, viewpoint=PUBLIC)
    query = (
        select(Message.audience, func.max(Message.position))
        .where(*is_between(chat, told.position if told else -1, through))
        .group_by(Message.audience)
    )
    last = {row[0]: row[1] for row in await session.execute(query)}
    named = {each for column in last for each in list_entities(column)}
    players = await filter_players(session, named, chat.campaign_id)
    viewpoints: list[Viewpoint] = [*players, GM, PUBLIC]
    for viewpoint in viewpoints:
        current = await find_current_summary(session, sealer, chat, viewpoint=viewpoint)
        after = current.position if current else -1
        for column, position in last.items():
            is_new = position > after and may_know(viewpoint, column)
            if is_new and (column == PUBLIC) == (viewpoint == PUBLIC):
                return viewpoint, current
    return None


async def _find_last_before(
    session: AsyncSession, chat: Chat, begin: int, *, at_most: int | None = None
) -> int | None:
    """Return the position of the last message before a history that begins at `begin` tokens."""
    first = await find_first_after(session, chat.id, from_sum=begin)
    query = (
        select(Message.position).where(is_readable(chat)).order_by(Message.position.desc()).limit(1)
    )
    if first is not None:
        query = query.where(Message.position < first)
    if at_most is not None:
        query = query.where(Message.position <= at_most)
    return await session.scalar(query)
