"""The service of the routes of rolling summaries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import delete, update
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.state.viewpoints import resolve_viewpoint
from backend.chats import repository as chats
from backend.chats.errors import MessageBusyError
from backend.chats.members import load_group
from backend.chats.models import Chat, Message
from backend.chats.service import read_settings
from backend.core.audience import GM, PUBLIC, Viewpoint, encode_audience
from backend.database.base import now
from backend.database.engine import Database
from backend.enrichment.errors import SummaryNotFoundError
from backend.enrichment.models import CHAT_SUMMARY, ChatSummary
from backend.enrichment.schemas import NewSummary, SummaryView
from backend.enrichment.summaries.pieces import (
    Piece,
    Pieces,
    load_path_summary,
    load_pieces,
)
from backend.enrichment.summaries.store import (
    StoredSummary,
    find_current_summary,
    list_active_summaries,
    list_own_columns,
    load_summaries,
    store_summary,
)
from backend.errors import ValidationError
from backend.http.schemas import Page, check_revision

InPrompt = Callable[[Identity, UUID, Viewpoint], Awaitable[bool]]
"""Returns True if the chat's next prompt from a viewpoint would contain its summary."""


@dataclass(frozen=True, slots=True)
class _SeenChat:
    """A chat as a viewpoint sees it. `pieces` are those of a group."""

    chat: Chat
    asked: Viewpoint
    viewpoint: Viewpoint
    pieces: Pieces | None

    @property
    def column(self) -> str:
        """The audience of a summary that is written for the viewpoint."""
        return self.asked if isinstance(self.asked, str) else encode_audience([_get_id(self.asked)])


def _get_id(viewpoint: Viewpoint) -> UUID:
    assert isinstance(viewpoint, UUID)  # noqa: S101  # a route reads no other one
    return viewpoint


class SummaryService:
    """Reads and edits the summaries of a user's chats.

    A `viewpoint` sees its own summaries and public ones. In a group these are pieces, of which it
    sees those that it witnessed completely.
    """

    def __init__(self, database: Database, *, in_prompt: InPrompt) -> None:
        self._database = database
        self._in_prompt = in_prompt

    async def get(
        self, identity: Identity, chat_id: UUID, *, viewpoint: Viewpoint = GM
    ) -> SummaryView:
        """Return the current summary.

        Raises `ChatNotFoundError`, `SummaryNotFoundError`, `ValidationError`.
        """
        async with self._database.read() as session:
            place = await _find_place(session, identity, chat_id, viewpoint)
            summary = await _find_current(session, identity, place)
        return await self._build_view(identity, place, summary)

    async def list_page(
        self,
        identity: Identity,
        chat_id: UUID,
        *,
        limit: int,
        before: int | None,
        viewpoint: Viewpoint = GM,
    ) -> Page[SummaryView]:
        """Return a page of the summaries along the active path above position `before`.

        The deepest comes first. Summaries through the same message are on the same page. Raises
        `ChatNotFoundError`, `ValidationError`.
        """
        end = None if before is None else before - 1
        async with self._database.read() as session:
            place = await _find_place(session, identity, chat_id, viewpoint)
            if place.pieces is None:
                found = await list_active_summaries(
                    session,
                    identity.sealer,
                    place.chat,
                    limit=limit + 1,
                    up_to_position=end,
                    viewpoint=place.viewpoint,
                )
                has_more = len(found) > limit
                found = found[:limit]
            else:
                readable = place.pieces.list_readable(place.viewpoint)
                rest = [each for each in readable if end is None or each.position <= end]
                wanted = _take_page(rest, limit)
                texts = await load_summaries(
                    session, identity.sealer, chat_id, [each.id for each in wanted]
                )
                found = [texts[each.id] for each in wanted if each.id in texts]
                has_more = len(wanted) < len(rest)
            used = await self._find_used(session, identity, place) if found else set[UUID]()
        is_used = bool(used) and await self._is_used(identity, place)
        items = [_build_view(place, each, is_used=is_used and each.id in used) for each in found]
        return Page(items=items, next=str(items[-1].through_position) if has_more else None)

    async def put(
        self,
        identity: Identity,
        chat_id: UUID,
        new: NewSummary,
        *,
        if_match: str | None,
        viewpoint: Viewpoint | None = None,
    ) -> SummaryView:
        """Change the current summary, or write one through another message.

        It belongs to the viewpoint. Without one, it is for everyone who may know all its messages.
        In a group, the piece through the message is changed, or its stretch of the path gets one.

        Raises `ChatNotFoundError`, `MessageNotFoundError`, `MessageBusyError`, `ValidationError`,
        `PreconditionFailedError`.
        """
        text = _clean(new.text)
        sealer = identity.sealer
        async with self._database.write() as session:
            place = await _find_place(session, identity, chat_id, viewpoint or GM, lock=True)
            current = await _find_current(session, identity, place)
            message = await _get_last_message(
                session, identity, place.chat, current, new.through_message_id
            )
            begins_at, audience = 0, None if viewpoint is None else place.column
            if place.pieces is not None:
                current = await _find_piece(session, identity, place, message)
                stretch = place.pieces.find_stretch(message.position)
                begins_at = current.begins_at if current else stretch.begin
                if audience is None:
                    audience = PUBLIC if message.audience == PUBLIC else GM
                    if current is not None and current.message_id == message.id:
                        audience = current.audience
            check_revision(if_match, current.revision if current else 0)
            if current is not None and message.position < current.position:
                raise ValidationError(
                    "There is a summary that covers more. Change that one, or delete it first.",
                    extra={"through_message_id": str(current.message_id)},
                )
            await _drop_combinations(session, identity, place, message.position)
            await store_summary(
                session,
                sealer,
                message,
                text,
                begins_at=begins_at,
                audience=audience,
                is_edited=True,
            )
            place = await _find_place(session, identity, chat_id, viewpoint or GM)
            if place.pieces is None:
                summary = await _find_current(session, identity, place)
            else:
                summary = await _find_piece(session, identity, place, message)
        return await self._build_view(identity, place, summary)

    async def delete(
        self,
        identity: Identity,
        chat_id: UUID,
        *,
        if_match: str | None,
        viewpoint: Viewpoint = GM,
    ) -> None:
        """Delete the current summary. The one before it becomes the current one.

        Raises `ChatNotFoundError`, `SummaryNotFoundError`, `PreconditionFailedError`,
        `ValidationError`.
        """
        async with self._database.write() as session:
            place = await _find_place(session, identity, chat_id, viewpoint, lock=True)
            current = await _find_current(session, identity, place)
            await self._delete(session, identity, place, current, if_match=if_match)

    async def get_one(self, identity: Identity, chat_id: UUID, summary_id: UUID) -> SummaryView:
        """Return one of the summaries along the active path.

        Raises `ChatNotFoundError`, `SummaryNotFoundError`.
        """
        async with self._database.read() as session:
            place = await _find_place(session, identity, chat_id, GM)
            summary = await _get_summary(session, identity, place, summary_id)
            used = await self._find_used(session, identity, place)
        is_used = summary.id in used and await self._is_used(identity, place)
        return _build_view(place, summary, is_used=is_used)

    async def change_one(
        self,
        identity: Identity,
        chat_id: UUID,
        summary_id: UUID,
        text: str,
        *,
        if_match: str | None,
    ) -> SummaryView:
        """Change the text of one of the summaries along the active path.

        Raises `ChatNotFoundError`, `SummaryNotFoundError`, `PreconditionFailedError`,
        `ValidationError`.
        """
        text = _clean(text)
        async with self._database.write() as session:
            place = await _find_place(session, identity, chat_id, GM, lock=True)
            summary = await _get_summary(session, identity, place, summary_id)
            check_revision(if_match, summary.revision)
            await session.execute(
                update(ChatSummary)
                .where(ChatSummary.id == summary.id, ChatSummary.user_id == identity.user_id)
                .values(
                    sealed_summary=identity.sealer.seal(CHAT_SUMMARY, summary.id, text),
                    is_edited=True,
                    revision=ChatSummary.revision + 1,
                    updated_at=now(),
                )
            )
            await _drop_combinations(session, identity, place, summary.position, besides=summary.id)
        return await self.get_one(identity, chat_id, summary_id)

    async def delete_one(
        self, identity: Identity, chat_id: UUID, summary_id: UUID, *, if_match: str | None
    ) -> None:
        """Delete one of the summaries along the active path.

        Raises `ChatNotFoundError`, `SummaryNotFoundError`, `PreconditionFailedError`.
        """
        async with self._database.write() as session:
            place = await _find_place(session, identity, chat_id, GM, lock=True)
            summary = await _get_summary(session, identity, place, summary_id)
            await self._delete(session, identity, place, summary, if_match=if_match)

    async def _delete(
        self,
        session: AsyncSession,
        identity: Identity,
        place: _SeenChat,
        summary: StoredSummary | None,
        *,
        if_match: str | None,
    ) -> None:
        if summary is None:
            raise SummaryNotFoundError
        check_revision(if_match, summary.revision)
        await _drop_combinations(session, identity, place, summary.position)
        await session.execute(
            delete(ChatSummary).where(
                ChatSummary.id == summary.id, ChatSummary.user_id == identity.user_id
            )
        )

    async def _find_used(
        self, session: AsyncSession, identity: Identity, place: _SeenChat
    ) -> set[UUID]:
        """Return the summaries that a prompt contains if it has room for them."""
        found = await load_path_summary(
            session,
            identity.sealer,
            place.chat,
            await load_group(session, place.chat.id),
            viewpoint=place.viewpoint,
            words=read_settings(identity.sealer, place.chat).summary.words,
        )
        return {each.id for each in found.parts if each.id} if found else set()

    async def _build_view(
        self, identity: Identity, place: _SeenChat, summary: StoredSummary | None
    ) -> SummaryView:
        if summary is None:
            raise SummaryNotFoundError
        return _build_view(place, summary, is_used=await self._is_used(identity, place))

    async def _is_used(self, identity: Identity, place: _SeenChat) -> bool:
        settings = read_settings(identity.sealer, place.chat)
        is_wanted = settings.summary.enabled or place.chat.campaign_id is not None
        return is_wanted and await self._in_prompt(identity, place.chat.id, place.asked)


async def _find_place(
    session: AsyncSession,
    identity: Identity,
    chat_id: UUID,
    viewpoint: Viewpoint,
    *,
    lock: bool = False,
) -> _SeenChat:
    chat = await chats.get_chat(session, chat_id, owner_id=identity.user_id, lock=lock)
    seen = await resolve_viewpoint(session, identity, chat, viewpoint)
    group = await load_group(session, chat.id)
    pieces = await load_pieces(session, identity.sealer, group) if group.is_group else None
    return _SeenChat(chat, viewpoint, seen, pieces)


async def _find_current(
    session: AsyncSession, identity: Identity, place: _SeenChat
) -> StoredSummary | None:
    """Return the current summary of a viewpoint: in a group, its last piece."""
    if place.pieces is None:
        return await find_current_summary(
            session, identity.sealer, place.chat, viewpoint=place.viewpoint
        )
    return await _open(session, identity, place, place.pieces.choose(place.viewpoint)[-1:])


async def _find_piece(
    session: AsyncSession, identity: Identity, place: _SeenChat, message: Message
) -> StoredSummary | None:
    """Return the piece through a message, else the last piece of its stretch."""
    assert place.pieces is not None  # noqa: S101  # callers check it
    own = list_own_columns(place.viewpoint)
    here = [
        each
        for each in place.pieces.list_readable(place.viewpoint)
        if each.message_id == message.id and not place.pieces.is_combined(each)
    ]
    here.sort(key=lambda each: each.audience in own)
    stretch = place.pieces.find_stretch(message.position)
    chosen = here or place.pieces.choose_here(place.viewpoint, stretch)
    return await _open(session, identity, place, chosen[-1:])


async def _get_summary(
    session: AsyncSession, identity: Identity, place: _SeenChat, summary_id: UUID
) -> StoredSummary:
    found = await load_summaries(session, identity.sealer, place.chat.id, [summary_id])
    if summary_id not in found:
        raise SummaryNotFoundError
    return found[summary_id]


async def _open(
    session: AsyncSession, identity: Identity, place: _SeenChat, pieces: Sequence[Piece]
) -> StoredSummary | None:
    ids = [each.id for each in pieces]
    found = await load_summaries(session, identity.sealer, place.chat.id, ids)
    return next(iter(found.values()), None)


async def _drop_combinations(
    session: AsyncSession,
    identity: Identity,
    place: _SeenChat,
    position: int,
    *,
    besides: UUID | None = None,
) -> None:
    """Delete unedited combinations of a piece that changes, because they have its old text."""
    if place.pieces is None:
        return
    ids = place.pieces.find_combinations(position)
    if ids := [each for each in ids if each != besides]:
        await session.execute(
            delete(ChatSummary).where(
                ChatSummary.id.in_(ids),
                ChatSummary.user_id == identity.user_id,
                ~ChatSummary.is_edited,
            )
        )


def _take_page(pieces: Sequence[Piece], limit: int) -> Sequence[Piece]:
    """Return the first pieces, and further ones through the same message as the last of them."""
    last = pieces[min(limit, len(pieces)) - 1].position if pieces else 0
    return [each for each in pieces if each.position >= last]


def _build_view(place: _SeenChat, summary: StoredSummary, *, is_used: bool) -> SummaryView:
    audience = None
    if place.pieces is not None:
        audience = place.pieces.describe_hearers(summary)
    return SummaryView.from_summary(summary, is_used=is_used, audience=audience)


def _clean(text: str) -> str:
    text = text.strip()
    if not text:
        raise ValidationError("text must not be empty.")
    return text


async def _get_last_message(
    session: AsyncSession,
    identity: Identity,
    chat: Chat,
    current: StoredSummary | None,
    message_id: UUID | None,
) -> Message:
    if message_id is None:
        if current is None:
            raise ValidationError(
                "There is no summary yet. Name its last message in through_message_id."
            )
        message_id = current.message_id
    message = await chats.get_message(session, message_id, owner_id=identity.user_id)
    if message.chat_id != chat.id:
        raise ValidationError("through_message_id must be a message of this chat.")
    if not message.is_active:
        raise ValidationError("through_message_id must be on the active path.")
    if message.status == "streaming":
        raise MessageBusyError("Wait for the end of the reply.")
    return message
