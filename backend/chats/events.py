"""Events of chats and messages, handled in the same transaction. See `backend.core.events`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
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
"""Translates the column value of an audience to that of another world."""


@runtime_checkable
class ChatCopied(Protocol):
    """A path of a chat was copied into a new chat."""

    async def chat_copied(
        self,
        session: AsyncSession,
        identity: Identity,
        source_id: UUID,
        fork_id: UUID,
        copied: Mapping[UUID, UUID],
    ) -> None:
        """Copy the data of the chat. `copied` maps messages to their copies."""
        ...


@runtime_checkable
class WorldShared(Protocol):
    """A copied chat shares the world of its source."""

    async def world_shared(
        self,
        session: AsyncSession,
        identity: Identity,
        source_id: UUID,
        fork_id: UUID,
        copied: Mapping[UUID, UUID],
    ) -> None:
        """Link changes of the world to the copied messages. See `ChatCopied`."""
        ...


StoreWorld = Callable[[AsyncSession, Chat, Mapping[UUID, UUID]], Awaitable[None]]
"""Stores a copied world for a copied chat, with the mapping from messages to their copies."""


@runtime_checkable
class WorldCopied(Protocol):
    """A copied chat needs a copy of its source's world."""

    async def world_copied(self, identity: Identity, chat_id: UUID, message_id: UUID) -> StoreWorld:
        """Copy the world in its state at a message of the chat, without storing it."""
        ...


@runtime_checkable
class WorldParted(Protocol):
    """A copied chat was moved to a copy of its world, where entities have new ids."""

    async def world_parted(
        self, session: AsyncSession, identity: Identity, fork: Chat, translate: AudienceMap
    ) -> None:
        """Translate audiences, and cut links to chats of the old world."""
        ...


@runtime_checkable
class ChatDeleted(Protocol):
    """A chat is about to be deleted."""

    async def chat_deleted(self, session: AsyncSession, identity: Identity, chat: Chat) -> None:
        """Delete data that must not remain without the chat."""
        ...


@runtime_checkable
class ChatClosed(Protocol):
    """A chat was deleted. Its rows are still there, but no one can find them."""

    async def chat_closed(self, chat_id: UUID) -> None:
        """Delete the rows."""
        ...


@runtime_checkable
class ConsentWithdrawn(Protocol):
    """A chat's chronicle is about to be disabled."""

    async def consent_withdrawn(self, session: AsyncSession, chat: Chat) -> None:
        """Stop the work that reads the chat for the chronicle."""
        ...


@runtime_checkable
class CampaignChosen(Protocol):
    """A chat joins or leaves a campaign."""

    async def campaign_chosen(
        self, session: AsyncSession, identity: Identity, chat: Chat, campaign_id: UUID | None
    ) -> None:
        """Check that the campaign belongs to the chat's owner, and link both."""
        ...


@runtime_checkable
class PresetChosen(Protocol):
    """A prompt preset is chosen for a chat."""

    async def preset_chosen(
        self, session: AsyncSession, identity: Identity, preset_id: UUID
    ) -> None:
        """Raise a not-found error if the preset does not exist or belongs to another user."""
        ...


@runtime_checkable
class CharactersNamed(Protocol):
    """The settings of a chat name characters."""

    async def characters_named(
        self, session: AsyncSession, identity: Identity, character_ids: Collection[UUID]
    ) -> None:
        """Raise `ValidationError` if one does not exist or belongs to another user."""
        ...


@runtime_checkable
class PathMoved(Protocol):
    """The active path of a chat has changed, or one of its messages was deleted."""

    async def path_moved(
        self, session: AsyncSession, sealer: Sealer | None, chat: Chat, *, above: int
    ) -> None:
        """Handle the change from position `above`. `sealer` is None if no key is available."""
        ...


@runtime_checkable
class AudienceChecked(Protocol):
    """The audience of a message is about to be set."""

    async def audience_checked(
        self,
        session: AsyncSession,
        sealer: Sealer,
        chat: Chat,
        audience: Audience,
        *,
        position: int | None,
    ) -> None:
        """Raise `ValidationError` or `MemberAbsentError` if a message cannot have this audience.

        `position` is that of the message. None checks only who can be named in the chat at all.
        """
        ...


@runtime_checkable
class AudienceChanged(Protocol):
    """The audience of a message has changed."""

    async def audience_changed(
        self, session: AsyncSession, identity: Identity, message: Message, *, before: str
    ) -> None:
        """Update data made from the message. `before` is the old column value."""
        ...


async def check_audience(
    participants: Participants,
    session: AsyncSession,
    sealer: Sealer,
    chat: Chat,
    audience: Audience,
    *,
    position: int | None = None,
) -> None:
    """Raise `ValidationError` or `MemberAbsentError` if a message cannot have this audience."""
    for handler in participants.find_handlers(AudienceChecked):
        await handler.audience_checked(session, sealer, chat, audience, position=position)


async def notify_path_moved(
    participants: Participants,
    session: AsyncSession,
    sealer: Sealer | None,
    chat: Chat,
    above: int | None,
) -> None:
    """Notify participants that the path changed from `above`; None: it only became longer."""
    if above is None:
        return
    await session.flush()
    for handler in participants.find_handlers(PathMoved):
        await handler.path_moved(session, sealer, chat, above=above)


@runtime_checkable
class MessageShown(Protocol):
    """A hidden message is included in prompts again."""

    async def message_shown(
        self, session: AsyncSession, identity: Identity, message: Message
    ) -> None:
        """Update data that was made without it."""
        ...


@runtime_checkable
class MessageRemoved(Protocol):
    """The text of a message was deleted. Its node and the messages below it stay."""

    async def message_removed(
        self, session: AsyncSession, identity: Identity, chat: Chat, message: Message
    ) -> None:
        """Delete data that was made from the text. The chat's row is locked."""
        ...


@runtime_checkable
class MessagesRewritten(Protocol):
    """The texts of messages are about to be replaced in place."""

    async def messages_rewritten(
        self,
        session: AsyncSession,
        identity: Identity,
        message_ids: Sequence[UUID],
        changed_at: datetime,
    ) -> None:
        """Keep the data made from the messages. `changed_at` will be their `updated_at`."""
        ...


async def translate_audiences(
    session: AsyncSession,
    column: InstrumentedAttribute[str],
    translate: AudienceMap,
    *rows: ColumnElement[bool],
) -> None:
    """Translate the audiences of the selected rows for another world."""
    limited, table = column.not_in((GM, PUBLIC)), get_table(column.parent.class_)
    for audience in (await session.scalars(select(column).where(*rows, limited).distinct())).all():
        translated = {"audience": translate(audience)}
        await session.execute(table.update().where(*rows, column == audience).values(translated))
