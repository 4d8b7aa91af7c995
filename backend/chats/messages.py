"""Messages: reading the active path, swipes, edits, branches, hiding, deleting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.chats import repository, tree
from backend.chats.counting import CountUnit
from backend.chats.drafts import Draft, draft_message
from backend.chats.errors import EmptyMessageError, MessageBusyError, MessageTooLongError
from backend.chats.models import (
    MESSAGE_AUTHOR,
    MESSAGE_CONTENT,
    MESSAGE_THINKING,
    Chat,
    Message,
)
from backend.chats.schemas import Deleted, MessagePage, MessageView
from backend.database.engine import Database
from backend.memory.outbox import IndexOutbox
from backend.settings import Settings
from backend.vault.sealing import Sealer

MAX_POSITION = 2**31 - 1
"""What the column holds; a client may ask for anything."""

OnShown = Callable[[AsyncSession, Identity, Message], Awaitable[None]]
"""What is to be done when a message is taken into prompts again, in the same transaction."""


class MessageService:
    """What a user does with the messages of a chat's tree."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        index: IndexOutbox,
        *,
        on_shown: Sequence[OnShown] = (),
    ) -> None:
        self._on_shown = on_shown
        self._database = database
        self._index = index
        self._max_chars = settings.max_message_chars

    def check_text(self, text: str) -> str:
        """The text, when it can be a message. Raises `EmptyMessageError`, `MessageTooLongError`."""
        if not text.strip():
            raise EmptyMessageError("It holds nothing but blanks.")
        if len(text) > self._max_chars:
            raise MessageTooLongError(
                f"It has {len(text):,} characters; {self._max_chars:,} are allowed.",
                extra={"length": len(text), "limit": self._max_chars},
            )
        return text

    async def page(
        self, identity: Identity, chat_id: UUID, *, before: int | None, limit: int
    ) -> MessagePage:
        """The end of the active path above position `before`. Raises `ChatNotFoundError`."""
        if before is not None:
            before = min(max(before, 0), MAX_POSITION)
        async with self._database.read() as session:
            chat = await repository.get_chat(session, chat_id, owner_id=identity.user_id)
            rows = await repository.active_page(session, chat.id, before=before, limit=limit)
            items = await view_messages(session, identity.sealer, rows)
        more = bool(rows) and rows[0].position > 0
        return MessagePage(items=items, previous=rows[0].position if more else None)

    async def get(self, identity: Identity, message_id: UUID) -> MessageView:
        """Raises `MessageNotFoundError`."""
        async with self._database.read() as session:
            message = await repository.get_message(session, message_id, owner_id=identity.user_id)
            return (await view_messages(session, identity.sealer, [message]))[0]

    async def siblings(self, identity: Identity, message_id: UUID) -> list[MessageView]:
        """A message and its swipes, in the order they were made. Raises `MessageNotFoundError`."""
        async with self._database.read() as session:
            message = await repository.get_message(session, message_id, owner_id=identity.user_id)
            rows = await tree.siblings(session, message)
            return await view_messages(session, identity.sealer, rows)

    async def activate(self, identity: Identity, message_id: UUID, *, follow: bool) -> MessageView:
        """Lead the active path through a message. Raises `MessageNotFoundError`."""
        async with self._database.write() as session:
            message, chat = await _locked(session, identity, message_id)
            leaf = await tree.last_path_below(session, message.id) if follow else message.id
            await tree.choose_leaf(session, chat, leaf)
            await session.flush()
            await self._changed(session, identity, chat, [message.id])
            return await _fresh_view(session, identity, message.id)

    async def edit(self, identity: Identity, message_id: UUID, text: str) -> MessageView:
        """Say it differently: a new sibling, active; the old text and what followed it stay.

        Raises `MessageNotFoundError`, `EmptyMessageError`, `MessageTooLongError`,
        `MessageBusyError`.
        """
        self.check_text(text)
        async with self._database.write() as session:
            message, chat = await _locked(session, identity, message_id)
            if message.status == "streaming":
                raise MessageBusyError("Stop it first, or wait until it is there.")
            edited = draft_message(
                identity.sealer,
                Draft(
                    role=message.role,
                    author=identity.sealer.open(MESSAGE_AUTHOR, message.id, message.sealed_author),
                    text=text,
                    character_id=message.character_id,
                    persona_id=message.persona_id,
                ),
                unit=CountUnit.parse(chat.count_unit),
            )
            edited.hidden = message.hidden
            parent = await session.get(Message, message.parent_id) if message.parent_id else None
            await tree.attach(session, chat, edited, parent=parent)
            await self._changed(session, identity, chat, [edited.id])
            return await _fresh_view(session, identity, edited.id)

    async def hide(self, identity: Identity, message_id: UUID, *, hidden: bool) -> MessageView:
        """Leave a message out of prompts, or take it in again. Raises `MessageNotFoundError`."""
        async with self._database.write() as session:
            message, _ = await _locked(session, identity, message_id)
            was_hidden = message.hidden
            await tree.set_hidden(session, message, hidden=hidden)
            if was_hidden and not hidden:
                for on_shown in self._on_shown:
                    await on_shown(session, identity, message)
            return await _fresh_view(session, identity, message_id)

    async def delete(self, identity: Identity, message_id: UUID) -> Deleted:
        """Delete a message and all below it. Raises `MessageNotFoundError`, `MessageBusyError`."""
        async with self._database.write() as session:
            message, chat = await _locked(session, identity, message_id)
            if await repository.is_streaming_below(session, message):
                raise MessageBusyError("Stop it first, or wait until it is there.")
            above = [message.parent_id] if message.parent_id else []
            gone = await tree.remove(session, chat, message)
            await self._changed(session, identity, chat, [*gone, *above])
            return Deleted(deleted=len(gone), leaf_id=chat.leaf_id)

    async def _changed(
        self, session: AsyncSession, identity: Identity, chat: Chat, message_ids: Sequence[UUID]
    ) -> None:
        await self._index.changed(
            session, identity, kind="message", container_id=chat.id, source_ids=message_ids
        )


async def view_messages(
    session: AsyncSession, sealer: Sealer, rows: Sequence[Message]
) -> list[MessageView]:
    """Messages of one chat as the API shows them."""
    families = await repository.sibling_ids(session, rows)
    return [_view(sealer, row, families[row.id]) for row in rows]


def _view(sealer: Sealer, row: Message, family: list[UUID]) -> MessageView:
    thinking = row.sealed_thinking
    return MessageView(
        id=row.id,
        chat_id=row.chat_id,
        parent_id=row.parent_id,
        position=row.position,
        role=row.role,
        author=sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author),
        character_id=row.character_id,
        persona_id=row.persona_id,
        text=sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content),
        thinking=sealer.open(MESSAGE_THINKING, row.id, thinking) if thinking else None,
        status=row.status,
        hidden=row.hidden,
        is_active=row.is_active,
        tokens=row.tokens,
        sibling=family.index(row.id) + 1,
        sibling_count=len(family),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


async def _fresh_view(session: AsyncSession, identity: Identity, message_id: UUID) -> MessageView:
    message = await repository.get_message(session, message_id, owner_id=identity.user_id)
    return (await view_messages(session, identity.sealer, [message]))[0]


async def _locked(
    session: AsyncSession, identity: Identity, message_id: UUID
) -> tuple[Message, Chat]:
    """A message, read once nobody else is changing its chat's tree."""
    owner_id = identity.user_id
    chat_id = (await repository.get_message(session, message_id, owner_id=owner_id)).chat_id
    chat = await repository.get_chat(session, chat_id, owner_id=owner_id, lock=True)
    return await repository.get_message(session, message_id, owner_id=owner_id), chat
