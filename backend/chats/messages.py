"""Read, add, edit, hide, branch, remove and delete messages."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol
from uuid import UUID

import msgspec
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats import repository, tree
from backend.chats.drafts import MessageDraft, seal_draft
from backend.chats.errors import (
    EmptyMessageError,
    MessageBusyError,
    MessagesFollowError,
    MessageTooLongError,
    NotOnlyThoughtsError,
)
from backend.chats.events import (
    AudienceChanged,
    MessageRemoved,
    MessageShown,
    check_audience,
    notify_path_moved,
)
from backend.chats.files import copy_references, delete_unused_files, load_file_views
from backend.chats.index_source import find_windows_below
from backend.chats.models import (
    MESSAGE_AUTHOR,
    MESSAGE_CONTENT,
    MESSAGE_CONTEXT,
    MESSAGE_THINKING,
    MESSAGE_TYPED,
    Chat,
    Message,
    MessageFile,
    decode_notices,
)
from backend.chats.presence import PresenceChanger
from backend.chats.rewrites import MessageRewriter
from backend.chats.schemas import Deleted, MessageFileView, MessagePage, MessageView
from backend.chats.speaker_labels import remove_label
from backend.chats.text_digests import TextDigester
from backend.chats.token_counting import CountUnit
from backend.core.audience import PUBLIC, Audience, decode_audience, encode_audience
from backend.core.cpu_pool import CpuPool
from backend.core.events import Participants
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import ConflictError
from backend.generation.model import Role
from backend.http.schemas import Page, make_page, make_struct
from backend.memory.indexing.outbox import IndexOutbox
from backend.settings import Settings
from backend.vault.sealing import OVERHEAD, Sealer

MAX_ATTEMPTS = 5
"""Limit of attempts to count an edit, if the count unit of its chat changes at the same time."""

TAG_CHARS = 20


class MessageScripts(Protocol):
    """Regex scripts for messages."""

    async def run_stored(
        self,
        identity: Identity,
        chat_id: UUID,
        *,
        role: Role,
        character_id: UUID | None,
        text: str,
        is_edit: bool,
    ) -> str:
        """Apply scripts to the new text of a message; with `is_edit`, the scripts for edits."""
        ...

    async def show(self, identity: Identity, views: Sequence[MessageView]) -> None:
        """Set the displayed texts of messages of one chat."""
        ...


class LineMacros(Protocol):
    """Expands macros in messages that the user edits or writes without a turn."""

    async def expand(
        self, identity: Identity, chat_id: UUID, *, parent_id: UUID | None, text: str
    ) -> str:
        """Return the text with its macros expanded. Raises `MacroLimitError`."""
        ...


class MessageService:
    """Read, add, edit, hide, branch, remove and delete messages. Each route lists its errors."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        index: IndexOutbox,
        *,
        pool: CpuPool,
        scripts: MessageScripts,
        macros: LineMacros,
        participants: Participants | None = None,
    ) -> None:
        self._pool = pool
        self._scripts = scripts
        self._macros = macros
        self._participants = participants or Participants()
        self._database = database
        self._index = index
        self._max_chars = settings.max_message_chars
        self.rewriter = MessageRewriter(database, index, pool, self._participants)

    def check_text(self, text: str) -> str:
        if not text.strip():
            raise EmptyMessageError("Enter some text.")
        if len(text) > self._max_chars:
            raise MessageTooLongError(
                f"It has {len(text):,} characters; {self._max_chars:,} are allowed.",
                extra={"length": len(text), "limit": self._max_chars},
            )
        return text

    async def page(
        self, identity: Identity, chat_id: UUID, *, before: int | None, limit: int
    ) -> MessagePage:
        """Return the end of the active path above position `before`."""
        if before is not None:
            before = min(max(before, 0), repository.MAX_POSITION)
        async with self._database.read() as session:
            chat = await repository.get_chat(session, chat_id, owner_id=identity.user_id)
            rows = await repository.list_active_page(session, chat.id, before=before, limit=limit)
            items = await view_messages(session, identity.sealer, rows)
        await self._scripts.show(identity, items)
        more = bool(rows) and rows[0].position > 0
        return MessagePage(items=items, previous=rows[0].position if more else None)

    async def find_path_tag(self, identity: Identity, chat_id: UUID) -> str:
        """Return an ETag that changes with the active path, but not while a reply grows."""
        async with self._database.read() as session:
            chat = await repository.get_chat(session, chat_id, owner_id=identity.user_id)
        state = (chat.leaf_id, chat.hidden_changes, chat.updated_at, chat.count_unit)
        return f'W/"{hashlib.sha256(repr(state).encode()).hexdigest()[:TAG_CHARS]}"'

    async def get(self, identity: Identity, message_id: UUID) -> MessageView:
        async with self._database.read() as session:
            message = await repository.get_message(session, message_id, owner_id=identity.user_id)
            (view,) = await view_messages(session, identity.sealer, [message])
        await self._scripts.show(identity, [view])
        return view

    async def siblings(
        self, identity: Identity, message_id: UUID, *, after: UUID | None, limit: int
    ) -> Page[MessageView]:
        async with self._database.read() as session:
            message = await repository.get_message(session, message_id, owner_id=identity.user_id)
            rows = await tree.list_siblings(session, message, after=after, limit=limit + 1)
            page, following = make_page(rows, limit)
            items = await view_messages(session, identity.sealer, page)
        await self._scripts.show(identity, items)
        return Page(items=items, next=following)

    async def activate(self, identity: Identity, message_id: UUID, *, follow: bool) -> MessageView:
        async with self._lock_message(identity, message_id) as (session, message, chat):
            leaf = await tree.find_last_leaf(session, message.id) if follow else message.id
            moved = await tree.choose_leaf(session, chat, leaf)
            await self._notify_moved(session, identity, chat, moved)
            await self._queue_index(session, identity, chat, [message.id])
            # Read before the commit, because jobs for the change start with it.
            current = await repository.get_message(session, message_id, owner_id=identity.user_id)
            (view,) = await view_messages(session, identity.sealer, [current])
        await self._scripts.show(identity, [view])
        return view

    async def edit(
        self, identity: Identity, message_id: UUID, text: str, audience: Audience | None = None
    ) -> MessageView:
        """Add another version of a message; the old one and all messages below it are kept.

        Macros in a line of the user are expanded. The new version has the message's audience,
        unless `audience` is given, and the same files. Raises `ConflictError` if the chat's unit
        changes again and again.
        """
        self.check_text(text)
        sealer, owner_id = identity.sealer, identity.user_id
        async with self._database.read() as session:
            message = await repository.get_message(session, message_id, owner_id=owner_id)
            repository.check_no_presence(message)
            chat = await repository.get_chat(session, message.chat_id, owner_id=owner_id)
        text = await self._scripts.run_stored(
            identity,
            chat.id,
            role=message.role,
            character_id=message.character_id,
            text=text,
            is_edit=True,
        )
        expanded = text
        if message.role == "user":
            expanded = await self._macros.expand(
                identity, chat.id, parent_id=message.parent_id, text=text
            )
        draft = MessageDraft(
            role=message.role,
            author=sealer.open(MESSAGE_AUTHOR, message.id, message.sealed_author),
            text=self.check_text(expanded),
            typed=text if expanded != text else None,
            character_id=message.character_id,
            persona_id=message.persona_id,
        )
        for _ in range(MAX_ATTEMPTS):
            unit = chat.count_unit
            # Before the transaction, so that writers do not wait for a thread.
            sealed = await self._pool.run(
                owner_id,
                partial(seal_draft, sealer, draft, unit=CountUnit.parse(unit)),
                size=len(text),
            )
            async with self._lock_message(identity, message_id) as (session, message, chat):
                repository.check_finished(message)
                if chat.count_unit != unit:
                    continue
                if audience is not None:
                    await self._check_audience(session, identity, chat, message, audience)
                edited = Message(
                    **sealed,
                    # A message without text is hidden because it has none.
                    hidden=message.hidden and _has_text(message),
                    audience=message.audience if audience is None else encode_audience(audience),
                )
                above = message.parent_id
                parent = await session.get(Message, above) if above else None
                moved = await tree.attach_message(session, chat, edited, parent=parent)
                await session.flush()
                await copy_references(session, sealer, {message.id: edited.id})
                await self._notify_moved(session, identity, chat, moved)
                await self._queue_index(session, identity, chat, [edited.id])
            return await self.get(identity, edited.id)
        raise ConflictError("The chat's tokens are being recounted. Send the change again.")

    async def append(
        self,
        identity: Identity,
        chat_id: UUID,
        draft: MessageDraft,
        *,
        audience: Audience = PUBLIC,
    ) -> MessageView:
        """Add a message at the end of the active path, without a model.

        Regex scripts and macros are applied to its text. Raises `ValidationError` and
        `MemberAbsentError` for the audience, and `ConflictError` if the chat's unit changes again
        and again.
        """
        self.check_text(draft.text)
        sealer, owner_id = identity.sealer, identity.user_id
        async with self._database.read() as session:
            chat = await repository.get_chat(session, chat_id, owner_id=owner_id)
        text = await self._scripts.run_stored(
            identity,
            chat_id,
            role=draft.role,
            character_id=draft.character_id,
            text=draft.text,
            is_edit=False,
        )
        expanded = self.check_text(
            await self._macros.expand(identity, chat_id, parent_id=chat.leaf_id, text=text)
        )
        # Only the user's lines are edited in the form in which they were typed.
        typed = text if draft.role == "user" and expanded != text else None
        draft = replace(draft, text=expanded, typed=typed)
        for _ in range(MAX_ATTEMPTS):
            unit = chat.count_unit
            # Before the transaction, so that writers do not wait for a thread.
            sealed = await self._pool.run(
                owner_id,
                partial(seal_draft, sealer, draft, unit=CountUnit.parse(unit)),
                size=len(expanded),
            )
            async with self._database.write() as session:
                chat = await repository.get_chat(session, chat_id, owner_id=owner_id, lock=True)
                if chat.count_unit != unit:
                    continue
                changer = PresenceChanger(session, sealer, chat, self._participants)
                await changer.begin()
                await check_audience(
                    self._participants,
                    session,
                    sealer,
                    chat,
                    audience,
                    position=changer.next_position,
                )
                await changer.attach(Message(**sealed, audience=encode_audience(audience)))
                chat.updated_at = now()
                await session.flush()
                await self._queue_index(session, identity, chat, changer.added)
            return await self.get(identity, sealed["id"])
        raise ConflictError("The chat's tokens are being recounted. Send the message again.")

    async def hide(self, identity: Identity, message_id: UUID, *, hidden: bool) -> MessageView:
        async with self._lock_message(identity, message_id) as (session, message, chat):
            if not hidden:
                repository.check_no_presence(message)
            if message.hidden and not hidden and not _has_text(message):
                raise EmptyMessageError("Its text is empty for a model. Enter some text.")
            await self._set_hidden(session, identity, chat, message, hidden=hidden)
        return await self.get(identity, message_id)

    async def use_thoughts(self, identity: Identity, message_id: UUID) -> MessageView:
        """Use the thoughts of a reply without text as its text.

        The message is changed in place, because it has no text to lose and its changes to the
        campaign remain. Raises `ConflictError` if the chat's unit changes again and again.
        """
        sealer, owner_id = identity.sealer, identity.user_id
        async with self._database.read() as session:
            message = await repository.get_message(session, message_id, owner_id=owner_id)
            chat = await repository.get_chat(session, message.chat_id, owner_id=owner_id)
        author = sealer.open(MESSAGE_AUTHOR, message.id, message.sealed_author)
        thoughts = _get_thoughts(sealer, message)
        text = await self._scripts.run_stored(
            identity,
            chat.id,
            role=message.role,
            character_id=message.character_id,
            text=remove_label(thoughts, author) or thoughts,
            is_edit=False,
        )
        text = text if text.strip() else thoughts
        for _ in range(MAX_ATTEMPTS):
            unit = chat.count_unit
            # Before the transaction, so that writers do not wait for a thread.
            tokens = await self._pool.run(
                owner_id, partial(CountUnit.parse(unit).count, author, text), size=len(text)
            )
            async with self._lock_message(identity, message_id) as (session, message, chat):
                if _get_thoughts(sealer, message) != thoughts:
                    raise ConflictError("The reply's thoughts have changed. Read it again.")
                if chat.count_unit != unit:
                    continue
                message.sealed_content = sealer.seal(MESSAGE_CONTENT, message.id, text)
                message.text_digest = TextDigester(sealer).compute(message.role, text)
                message.sealed_thinking = None
                message.token_counts = msgspec.json.encode({unit: tokens}).decode()
                message.updated_at = now()
                await tree.set_tokens(session, message, tokens)
                await self._set_hidden(session, identity, chat, message, hidden=False)
                below = await find_windows_below(session, [message.id])
                await self._queue_index(session, identity, chat, [message.id, *below])
            return await self.get(identity, message_id)
        raise ConflictError("The chat's tokens are being recounted. Send the request again.")

    async def set_audience(
        self, identity: Identity, message_id: UUID, audience: Audience
    ) -> MessageView:
        async with self._lock_message(identity, message_id) as (session, message, chat):
            repository.check_finished(message)
            repository.check_no_presence(message)
            await self._check_audience(session, identity, chat, message, audience)
            if message.audience != encode_audience(audience):
                # A summary or the agent that has read it must read it again.
                before = message.audience
                message.audience, message.updated_at = encode_audience(audience), now()
                chat.hidden_changes += 1
                await session.flush()
                for handler in self._participants.find_handlers(AudienceChanged):
                    await handler.audience_changed(session, identity, message, before=before)
                below = await find_windows_below(session, [message.id])
                await self._queue_index(session, identity, chat, [message.id, *below])
        return await self.get(identity, message_id)

    async def delete(
        self, identity: Identity, message_id: UUID, *, expected: Collection[UUID] | None = None
    ) -> Deleted:
        """Delete a message and all messages below it.

        Raises `MessagesFollowError` if one of them is not `expected`.
        """
        async with self._lock_message(identity, message_id) as (session, message, chat):
            if expected is not None and await tree.has_others_below(session, message.id, expected):
                raise MessagesFollowError
            if await repository.is_streaming_below(session, message):
                raise MessageBusyError("Stop it first, or wait until it is finished.")
            above = [message.parent_id] if message.parent_id else []
            deleted = await tree.remove_message(session, chat, message)
            await delete_unused_files(session, identity.user_id)
            await self._notify_moved(session, identity, chat, message.position)
            await self._queue_index(session, identity, chat, [*deleted, *above])
            return Deleted(deleted=len(deleted), leaf_id=chat.leaf_id)

    async def remove(self, identity: Identity, message_id: UUID) -> Deleted:
        """Delete the text of one message, its files, and everything made from it. Idempotent.

        Its node stays, hidden, so that its siblings and the messages below it keep their place.
        """
        async with self._lock_message(identity, message_id) as (session, message, chat):
            repository.check_finished(message)
            repository.check_no_presence(message)
            if message.removed_at is not None:
                return Deleted(deleted=0, leaf_id=chat.leaf_id)
            await tree.set_hidden(session, chat, message, hidden=True)
            await tree.set_tokens(session, message, 0)
            _clear_texts(identity.sealer, message)
            chat.hidden_changes += 1
            await session.execute(delete(MessageFile).where(MessageFile.message_id == message.id))
            await delete_unused_files(session, identity.user_id)
            await session.flush()
            for handler in self._participants.find_handlers(MessageRemoved):
                await handler.message_removed(session, identity, chat, message)
            below = await find_windows_below(session, [message.id])
            await self._queue_index(session, identity, chat, [message.id, *below])
            return Deleted(deleted=1, leaf_id=chat.leaf_id)

    @asynccontextmanager
    async def _lock_message(
        self, identity: Identity, message_id: UUID
    ) -> AsyncGenerator[tuple[AsyncSession, Message, Chat]]:
        """Begin a transaction that locks the tree of a message's chat."""
        async with self._database.write() as session:
            message, chat = await repository.lock_message(
                session, message_id, owner_id=identity.user_id
            )
            yield session, message, chat

    async def _check_audience(
        self,
        session: AsyncSession,
        identity: Identity,
        chat: Chat,
        message: Message,
        audience: Audience,
    ) -> None:
        await check_audience(
            self._participants,
            session,
            identity.sealer,
            chat,
            audience,
            position=message.position,
        )

    async def _set_hidden(
        self,
        session: AsyncSession,
        identity: Identity,
        chat: Chat,
        message: Message,
        *,
        hidden: bool,
    ) -> None:
        was_hidden = message.hidden
        await tree.set_hidden(session, chat, message, hidden=hidden)
        if was_hidden and not hidden:
            for handler in self._participants.find_handlers(MessageShown):
                await handler.message_shown(session, identity, message)

    async def _notify_moved(
        self, session: AsyncSession, identity: Identity, chat: Chat, above: int | None
    ) -> None:
        await notify_path_moved(self._participants, session, identity.sealer, chat, above)

    async def _queue_index(
        self, session: AsyncSession, identity: Identity, chat: Chat, message_ids: Sequence[UUID]
    ) -> None:
        await self._index.changed(
            session, identity, kind="message", container_id=chat.id, source_ids=message_ids
        )


def _clear_texts(sealer: Sealer, message: Message) -> None:
    """Delete all texts of a message except its author's name."""
    message.sealed_content = sealer.seal(MESSAGE_CONTENT, message.id, "")
    message.text_digest = TextDigester(sealer).compute(message.role, "")
    message.sealed_typed = message.sealed_thinking = None
    message.sealed_injected_context = message.sealed_source = message.notices = None
    message.token_counts, message.status = "{}", "complete"
    message.removed_at = message.updated_at = now()


def _has_text(message: Message) -> bool:
    return len(message.sealed_content) > OVERHEAD


def _get_thoughts(sealer: Sealer, message: Message) -> str:
    """Return the thoughts of a message without text.

    Raises `MessageBusyError`, `NotOnlyThoughtsError`, `PresenceMessageError`.
    """
    repository.check_no_presence(message)
    repository.check_finished(message)
    sealed = message.sealed_thinking
    thoughts = sealer.open(MESSAGE_THINKING, message.id, sealed).strip() if sealed else ""
    if _has_text(message) or not thoughts:
        raise NotOnlyThoughtsError("Edit the message instead.")
    return thoughts


async def view_messages(
    session: AsyncSession, sealer: Sealer, rows: Sequence[Message]
) -> list[MessageView]:
    places = await repository.number_siblings(session, rows)
    files = await load_file_views(session, sealer, [row.id for row in rows])
    return [_make_view(sealer, row, *places[row.id], files.get(row.id, [])) for row in rows]


def _make_view(
    sealer: Sealer,
    row: Message,
    sibling: int,
    sibling_count: int,
    files: list[MessageFileView],
) -> MessageView:
    thinking = row.sealed_thinking
    return make_struct(
        MessageView,
        row,
        author=sealer.open(MESSAGE_AUTHOR, row.id, row.sealed_author),
        text=sealer.open(MESSAGE_CONTENT, row.id, row.sealed_content),
        thinking=sealer.open(MESSAGE_THINKING, row.id, thinking) if thinking else None,
        typed=sealer.open(MESSAGE_TYPED, row.id, row.sealed_typed) if row.sealed_typed else None,
        injected_context=_open_injected_text(sealer, row),
        audience=decode_audience(row.audience),
        notices=decode_notices(row.notices),
        sibling=sibling,
        sibling_count=sibling_count,
        removed=row.removed_at is not None,
        shown=None,
        shown_thinking=None,
        files=files,
    )


def _open_injected_text(sealer: Sealer, row: Message) -> str | None:
    if row.sealed_injected_context is None:
        return None
    data = sealer.open_bytes(MESSAGE_CONTEXT, row.id, row.sealed_injected_context)
    return msgspec.json.decode(data, type=_Injected).text


class _Injected(msgspec.Struct):
    text: str
