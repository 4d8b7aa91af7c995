"""Members of chats: who takes part, and who joins, leaves or is muted.

A change of presence is a hidden message at the end of the active path, so that swipes and branches
undo it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats import repository
from backend.chats.drafts import MessageDraft, seal_draft
from backend.chats.errors import (
    EmptyMessageError,
    MemberNotFoundError,
    MessageTooLongError,
)
from backend.chats.members import load_group
from backend.chats.models import Chat, ChatCharacter, Message, Presence
from backend.chats.presence import PresenceChanger, check_member_count
from backend.chats.schemas import DEFAULT_TALKATIVENESS, MemberPatch, MemberView
from backend.chats.service import read_settings
from backend.chats.token_counting import CountUnit
from backend.core.audience import encode_audience
from backend.core.cpu_pool import CpuPool
from backend.core.events import Participants
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import ConflictError, ValidationError
from backend.memory.indexing.outbox import IndexOutbox
from backend.settings import Settings
from backend.vault.sealing import Sealer

MAX_ATTEMPTS = 5
"""Limit of attempts to count a briefing, if the count unit of its chat changes at the same time."""


class NamedCard(Protocol):
    """The name of a character, and the revision of its card."""

    @property
    def name(self) -> str: ...

    @property
    def revision(self) -> int: ...


class FindCards(Protocol):
    """Finds the names and revisions of cards."""

    async def __call__(
        self,
        session: AsyncSession,
        character_ids: Sequence[UUID],
        /,
        *,
        owner_id: UUID,
        sealer: Sealer,
    ) -> Mapping[UUID, NamedCard]:
        """Return cards by character. Characters of other users are left out."""
        ...


class FindTalkativeness(Protocol):
    """Finds the talkativeness that cards have."""

    async def __call__(
        self, session: AsyncSession, sealer: Sealer, revisions: Mapping[UUID, int], /
    ) -> dict[UUID, float]:
        """Return the talkativeness by character. Cards without one are left out."""
        ...


class MemberService:
    """List the members of a chat, and change their presence. Each route lists its errors."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        index: IndexOutbox,
        *,
        pool: CpuPool,
        find_cards: FindCards,
        find_talkativeness: FindTalkativeness,
        participants: Participants,
    ) -> None:
        self._database = database
        self._index = index
        self._pool = pool
        self._find_cards = find_cards
        self._find_talkativeness = find_talkativeness
        self._participants = participants
        self._max_chars = settings.max_message_chars

    async def list_members(self, identity: Identity, chat_id: UUID) -> list[MemberView]:
        """Return the members of a chat at the end of its active path, in order."""
        owner_id, sealer = identity.user_id, identity.sealer
        async with self._database.read() as session:
            chat = await repository.get_chat(session, chat_id, owner_id=owner_id)
            group = await load_group(session, chat.id)
            settings = read_settings(sealer, chat).group
            members = list(group.members)
            cards = await self._find_cards(session, members, owner_id=owner_id, sealer=sealer)
            unset = cards.keys() - settings.talkativeness.keys()
            of_cards = await self._find_talkativeness(
                session, sealer, {each: cards[each].revision for each in unset}
            )
        talkativeness = of_cards | settings.talkativeness
        since = {change.character_id: change.position for change in group.changes}
        return [
            MemberView(
                character_id=each,
                name=cards[each].name if each in cards else "",
                presence=presence,
                since=since.get(each),
                talkativeness=talkativeness.get(each, DEFAULT_TALKATIVENESS),
                narrates=not group.is_group or each in settings.narrators,
            )
            for each, presence in group.presences.items()
        ]

    async def patch(
        self, identity: Identity, chat_id: UUID, character_id: UUID, change: MemberPatch
    ) -> list[MemberView]:
        """Change the presence of a member, or add one. Presence that is the same is not stored.

        Raises `ConflictError` if the chat's unit changes again and again.
        """
        briefing = self._check_briefing(change)
        owner_id = identity.user_id
        async with self._database.read() as session:
            chat = await repository.get_chat(session, chat_id, owner_id=owner_id)
            name = await self._get_name(session, identity, character_id)
        for _ in range(MAX_ATTEMPTS):
            unit = chat.count_unit
            sealed: dict[str, Any] | None = None
            if briefing is not None:
                draft = MessageDraft(
                    role="system", author=name, text=briefing, character_id=character_id
                )
                # Before the transaction, so that writers do not wait for a thread.
                sealed = await self._pool.run(
                    owner_id,
                    partial(seal_draft, identity.sealer, draft, unit=CountUnit.parse(unit)),
                    size=len(briefing),
                )
            async with self._database.write() as session:
                chat = await repository.get_chat(session, chat_id, owner_id=owner_id, lock=True)
                if chat.count_unit != unit:
                    continue
                await self._change(session, identity, chat, character_id, change.presence, sealed)
            return await self.list_members(identity, chat_id)
        raise ConflictError("The chat's tokens are being recounted. Send the change again.")

    async def _change(
        self,
        session: AsyncSession,
        identity: Identity,
        chat: Chat,
        character_id: UUID,
        presence: Presence,
        briefing: Mapping[str, Any] | None,
    ) -> None:
        group = await load_group(session, chat.id)
        # Read again, because the character may have been deleted.
        name = await self._get_name(session, identity, character_id)
        before = group.presences.get(character_id)
        if before == presence and briefing is None:
            return
        if character_id not in group.members:
            if presence == "absent":
                raise MemberNotFoundError(
                    f"{name} is not a member of the chat. Send `present` to add this character."
                )
            check_member_count(len(group.members) + 1)
            session.add(
                ChatCharacter(
                    chat_id=chat.id,
                    character_id=character_id,
                    place=len(group.members),
                    is_from_start=False,
                )
            )
            chat.revision += 1
        changer = PresenceChanger(session, identity.sealer, chat, self._participants)
        await changer.begin()
        if before != presence:
            await changer.change(character_id, name, presence, before=before)
        if briefing is not None:
            told = Message(**briefing, audience=encode_audience([character_id]))
            await changer.attach(told)
        chat.updated_at = now()
        await session.flush()
        await self._index.changed(
            session, identity, kind="message", container_id=chat.id, source_ids=changer.added
        )

    def _check_briefing(self, change: MemberPatch) -> str | None:
        briefing = change.briefing
        if briefing is None:
            return None
        if change.presence != "present":
            raise ValidationError("`briefing` is allowed only with the presence `present`.")
        if not briefing.strip():
            raise EmptyMessageError("Enter some text as `briefing`, or leave it out.")
        if len(briefing) > self._max_chars:
            raise MessageTooLongError(
                f"`briefing` has {len(briefing):,} characters; {self._max_chars:,} are allowed.",
                extra={"length": len(briefing), "limit": self._max_chars},
            )
        return briefing

    async def _get_name(self, session: AsyncSession, identity: Identity, character_id: UUID) -> str:
        cards = await self._find_cards(
            session, [character_id], owner_id=identity.user_id, sealer=identity.sealer
        )
        if character_id not in cards:
            raise MemberNotFoundError
        return cards[character_id].name
