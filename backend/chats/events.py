"""What happens to chats and messages, in the transaction of each; see `backend.core.events`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, runtime_checkable
from uuid import UUID

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from backend.accounts.auth.identity import Identity
from backend.chats.models import Chat, Message
from backend.core.audience import GM, PUBLIC, Audience
from backend.core.events import Participants
from backend.database.base import get_table
from backend.vault.sealing import Sealer

AudienceMap = Callable[[str], str]
"""Translates a stored audience to the same one in another world."""


@runtime_checkable
class ChatCopied(Protocol):
    """A path of a chat was copied into a chat of its own."""

    async def chat_copied(
        self,
        session: AsyncSession,
        identity: Identity,
        source_id: UUID,
        fork_id: UUID,
        copied: Mapping[UUID, UUID],
    ) -> None:
        """Copy what belongs to the chat; `copied` leads from messages to their copies."""
        ...


@runtime_checkable
class WorldShared(Protocol):
    """A copy of a chat stays in the chat's world."""

    async def world_shared(
        self,
        session: AsyncSession,
        identity: Identity,
        source_id: UUID,
        fork_id: UUID,
        copied: Mapping[UUID, UUID],
    ) -> None:
        """Link changes of the world to the copied messages as well; see `ChatCopied`."""
        ...


StoreWorld = Callable[[AsyncSession, Chat, Mapping[UUID, UUID]], Awaitable[None]]
"""Stores a copied world for the copy of a chat. The mapping is from messages to their copies."""


@runtime_checkable
class WorldCopied(Protocol):
    """A copy of a chat is to get a copy of the chat's world."""

    async def world_copied(self, identity: Identity, chat_id: UUID, message_id: UUID) -> StoreWorld:
        """Copy the world as it is at a message of the chat. Nothing is stored yet."""
        ...


@runtime_checkable
class WorldParted(Protocol):
    """A copy of a chat was moved to a copy of its world. Entities have new ids there."""

    async def world_parted(
        self, session: AsyncSession, identity: Identity, fork: Chat, translate: AudienceMap
    ) -> None:
        """Translate audiences, and cut links to chats of the old world."""
        ...


@runtime_checkable
class ChatDeleted(Protocol):
    """A chat is about to go."""

    async def chat_deleted(self, session: AsyncSession, identity: Identity, chat: Chat) -> None:
        """See to what is not to stay without it."""
        ...


@runtime_checkable
class ConsentWithdrawn(Protocol):
    """A chat's chronicle is about to be switched off."""

    async def consent_withdrawn(self, session: AsyncSession, chat: Chat) -> None:
        """Stop the work that reads the chat for the chronicle."""
        ...


@runtime_checkable
class CampaignChosen(Protocol):
    """A chat becomes a session of a campaign, or of none."""

    async def campaign_chosen(
        self, session: AsyncSession, identity: Identity, chat: Chat, campaign_id: UUID | None
    ) -> None:
        """Let the chat belong to it, if it is the chat owner's."""
        ...


@runtime_checkable
class PresetChosen(Protocol):
    """A prompt preset is chosen for a chat."""

    async def preset_chosen(
        self, session: AsyncSession, identity: Identity, preset_id: UUID
    ) -> None:
        """Raise a not-found error if it is not there, or someone else's."""
        ...


@runtime_checkable
class PathMoved(Protocol):
    """A chat's active path leads elsewhere than before, or a message of it is gone."""

    async def path_moved(
        self, session: AsyncSession, sealer: Sealer | None, chat: Chat, *, above: int
    ) -> None:
        """Follow the path from position `above` on. Without a sealer, no key is at hand."""
        ...


@runtime_checkable
class AudienceChecked(Protocol):
    """Somebody says who may know a message."""

    async def audience_checked(self, session: AsyncSession, chat: Chat, audience: Audience) -> None:
        """Raise `ValidationError` where a message of the chat can't have this audience."""
        ...


@runtime_checkable
class AudienceChanged(Protocol):
    """A message is for others than before."""

    async def audience_changed(
        self, session: AsyncSession, identity: Identity, message: Message, *, before: str
    ) -> None:
        """Follow, where something was made from the message; `before` is what its column held."""
        ...


async def check_audience(
    participants: Participants, session: AsyncSession, chat: Chat, audience: Audience
) -> None:
    """Raise `ValidationError` where a message of the chat can't have this audience."""
    for part in participants.of(AudienceChecked):
        await part.audience_checked(session, chat, audience)


async def notify_path_moved(
    participants: Participants,
    session: AsyncSession,
    sealer: Sealer | None,
    chat: Chat,
    above: int | None,
) -> None:
    """Tell those who take part that the path moved from `above` on; None: it only became longer."""
    if above is None:
        return
    await session.flush()
    for part in participants.of(PathMoved):
        await part.path_moved(session, sealer, chat, above=above)


@runtime_checkable
class MessageShown(Protocol):
    """A hidden message is taken into prompts again."""

    async def message_shown(
        self, session: AsyncSession, identity: Identity, message: Message
    ) -> None:
        """See to what was made without it."""
        ...


async def translate_audiences(
    session: AsyncSession,
    column: InstrumentedAttribute[str],
    translate: AudienceMap,
    *rows: ColumnElement[bool],
) -> None:
    """Translate the audiences of some rows for another world."""
    limited, table = column.not_in((GM, PUBLIC)), get_table(column.parent.class_)
    for audience in (await session.scalars(select(column).where(*rows, limited).distinct())).all():
        there = {"audience": translate(audience)}
        await session.execute(table.update().where(*rows, column == audience).values(there))
