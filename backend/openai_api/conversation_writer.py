"""Bring a stored chat in line with a client's list."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.service import AccountService
from backend.campaigns.state.viewpoints import find_player_name
from backend.characters import repository as characters
from backend.chats import repository, tree
from backend.chats.drafts import MessageDraft, seal_draft
from backend.chats.events import notify_path_moved
from backend.chats.files import SealedFile, SealedReference, insert_files, seal_images
from backend.chats.messages import MessageService
from backend.chats.models import Chat, Message
from backend.chats.rewrites import MessageChanges, SealedChanges
from backend.chats.token_counting import CountUnit
from backend.core.cpu_pool import CpuPool, check_stopped
from backend.core.events import Participants
from backend.database.base import now
from backend.database.engine import Database
from backend.generation.model import PromptImage
from backend.memory.indexing.outbox import IndexOutbox
from backend.openai_api.chat_state import load_state, save_state
from backend.openai_api.contracts import ChatPlacement, Line, StoredConversation
from backend.openai_api.conversations import make_version
from backend.quotas.service import CheckAdded
from backend.vault.sealing import Sealer

MAX_HIDDEN: Final = 10_000
"""Hidden messages that a chat remembers. The newest are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChatSpeakers:
    """The names of a chat's people, and its characters by name."""

    user_name: str
    persona_id: UUID | None
    members: dict[str, UUID]

    def draft(self, line: Line) -> MessageDraft:
        """Return a line as a message. An unknown author of a reply has no character."""
        if line.role == "user":
            author = line.author or self.user_name
            return MessageDraft(
                role="user", author=author, text=line.text, persona_id=self.persona_id
            )
        author = line.author or next(iter(self.members), "")
        character_id = self.members.get(author)
        if character_id is None and len(self.members) == 1:
            [character_id] = self.members.values()
        return MessageDraft(
            role="assistant", author=author, text=line.text, character_id=character_id
        )


@dataclass(frozen=True, slots=True)
class _SealedClientLine:
    """A line to store, with its images."""

    columns: dict[str, Any]
    has_text: bool
    files: list[SealedFile]
    references: list[SealedReference]


class ConversationWriter:
    """Changes chats so that their active path is a client's list.

    Args:
        checks_added: Quotas that can refuse lines and their images.
    """

    def __init__(
        self,
        database: Database,
        index: IndexOutbox,
        pool: CpuPool,
        *,
        messages: MessageService,
        accounts: AccountService,
        participants: Participants,
        checks_added: Collection[CheckAdded],
    ) -> None:
        self._database = database
        self._index = index
        self._pool = pool
        self._messages = messages
        self._accounts = accounts
        self._participants = participants
        self._checks_added = checks_added

    async def apply(
        self,
        identity: Identity,
        placement: ChatPlacement,
        lines: Sequence[Line],
        *,
        keeps_rest: bool = False,
    ) -> StoredConversation | None:
        """Apply the changes of a placement, go to its last message, and store lines below it.

        `lines` are those of the tail that the turn does not store itself. With `keeps_rest`, the
        messages after the last one stay on the active path, for a swipe of the first of them.

        One transaction, in which the chat is locked. Returns None, and changes nothing, if the chat
        has changed since it was read: find the place again.

        Raises `ChatNotFoundError`, `MessageBusyError`, `MessageTooLongError`, `EmptyMessageError`,
        `StorageQuotaExceededError`.
        """
        if placement.chat_id is None or placement.version is None:
            raise ValueError("The lines are of no chat: create one.")
        changes = MessageChanges(
            texts=placement.edits, hides=placement.hides, shows=placement.shows
        )
        for text in (*changes.texts.values(), *(line.text for line in lines if not line.images)):
            self._messages.check_text(text)
        leaf_id = placement.parent_id if placement.last else placement.version.leaf_id
        moves = leaf_id != placement.version.leaf_id and not (keeps_rest and placement.rest)
        if not changes and not lines and not moves:
            return StoredConversation(chat_id=placement.chat_id, leaf_id=leaf_id)
        sealed = await self._messages.rewriter.seal(identity, placement.chat_id, changes)
        unit, sealed_lines = await self._seal_lines(identity, placement.chat_id, lines)
        async with self._database.write() as session:
            chat = await repository.get_chat(
                session, placement.chat_id, owner_id=identity.user_id, lock=True
            )
            if make_version(chat) != placement.version or {chat.count_unit} != {unit, sealed.unit}:
                return None
            if changes:
                await self._change(session, identity, chat, sealed)
            if moves:
                await self._choose_leaf(session, identity, chat, leaf_id)
            if sealed_lines:
                leaf_id = await self._add_lines(session, identity, chat, leaf_id, sealed_lines)
            return StoredConversation(chat_id=chat.id, leaf_id=leaf_id, lines=lines)

    async def _seal_lines(
        self, identity: Identity, chat_id: UUID, lines: Sequence[Line]
    ) -> tuple[str, list[_SealedClientLine]]:
        """Seal and count lines in the chat's present unit, which is returned."""
        async with self._database.read() as session:
            chat = await repository.get_chat(session, chat_id, owner_id=identity.user_id)
            speakers = None
            if lines:
                speakers = await self._load_speakers(session, identity, chat)
        if speakers is None:
            return chat.count_unit, []
        sealed = await self._pool.run(
            identity.user_id,
            partial(
                _seal_lines,
                identity.sealer,
                [(speakers.draft(line), line.images) for line in lines],
                CountUnit.parse(chat.count_unit),
            ),
        )
        return chat.count_unit, sealed

    async def _load_speakers(
        self, session: AsyncSession, identity: Identity, chat: Chat
    ) -> _ChatSpeakers:
        owner_id, sealer = identity.user_id, identity.sealer
        member_ids = (await repository.list_character_ids(session, [chat.id])).get(chat.id, [])
        names = await characters.find_names(session, member_ids, owner_id=owner_id, sealer=sealer)
        persona_id = chat.persona_id or identity.settings.persona_id
        persona = persona_id and await characters.find_persona(
            session, persona_id, owner_id=owner_id, sealer=sealer
        )
        user_name = persona.name if persona else None
        if user_name is None:
            user_name = await find_player_name(session, sealer, chat.campaign_id)
        return _ChatSpeakers(
            user_name=user_name or self._accounts.name_of(identity),
            persona_id=persona.id if persona else None,
            members={name: character_id for character_id, name in names.items()},
        )

    async def _change(
        self, session: AsyncSession, identity: Identity, chat: Chat, sealed: SealedChanges
    ) -> None:
        """Apply changes, and remember the messages that are hidden by them."""
        await self._messages.rewriter.apply(session, identity, chat, sealed)
        changes = sealed.changes
        if changes.hides or changes.shows:
            state = await load_state(session, identity.sealer, chat.id)
            kept = [each for each in state.hidden if each not in changes.shows]
            hidden = tuple(dict.fromkeys([*kept, *changes.hides]))[-MAX_HIDDEN:]
            state = msgspec.structs.replace(state, hidden=hidden)
            await save_state(session, identity.sealer, chat.id, state)

    async def _choose_leaf(
        self, session: AsyncSession, identity: Identity, chat: Chat, leaf_id: UUID | None
    ) -> None:
        moved = await tree.choose_leaf(session, chat, leaf_id)
        await notify_path_moved(self._participants, session, identity.sealer, chat, moved)
        if leaf_id is not None:
            await self._queue_index(session, identity, chat, [leaf_id])
        chat.updated_at = now()

    async def _add_lines(
        self,
        session: AsyncSession,
        identity: Identity,
        chat: Chat,
        leaf_id: UUID | None,
        lines: Sequence[_SealedClientLine],
    ) -> UUID | None:
        """Store lines below the leaf, one below the other. Returns the last one."""
        parent = None
        if leaf_id is not None:
            # Read again, because its sums may have changed.
            parent = await repository.get_message(session, leaf_id, owner_id=chat.user_id)
        for line in lines:
            message = Message(**line.columns, hidden=not line.has_text)
            await tree.attach_message(session, chat, message, parent=parent)
            parent = message
        await session.flush()
        files = [file for line in lines for file in line.files]
        references = [reference for line in lines for reference in line.references]
        if references:
            await insert_files(session, chat.user_id, files, references)
        added = [line.columns["id"] for line in lines]
        await self._queue_index(session, identity, chat, added)
        chat.updated_at = now()
        await self._check(session, identity)
        return chat.leaf_id

    async def _queue_index(
        self, session: AsyncSession, identity: Identity, chat: Chat, message_ids: Sequence[UUID]
    ) -> None:
        await self._index.changed(
            session, identity, kind="message", container_id=chat.id, source_ids=message_ids
        )

    async def _check(self, session: AsyncSession, identity: Identity) -> None:
        for check in self._checks_added:
            await check(session, identity.user_id)


def _seal_lines(
    sealer: Sealer,
    drafts: Sequence[tuple[MessageDraft, Sequence[PromptImage]]],
    unit: CountUnit,
) -> list[_SealedClientLine]:
    """CPU-bound."""
    sealed: list[_SealedClientLine] = []
    for draft, images in drafts:
        check_stopped()
        columns = seal_draft(sealer, draft, unit=unit)
        files, references = seal_images(sealer, columns["id"], images)
        sealed.append(
            _SealedClientLine(
                columns=columns,
                files=files,
                references=references,
                has_text=bool(draft.text.strip()),
            )
        )
    return sealed
