"""Change who is in a chat, and who of them is there, with messages of its tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.chats import tree
from backend.chats.drafts import MessageDraft, make_message
from backend.chats.errors import MessageBusyError, TooManyMembersError
from backend.chats.events import notify_path_moved
from backend.chats.members import find_last_line, load_group
from backend.chats.models import Chat, ChatCharacter, Message, Presence
from backend.chats.schemas import MAX_MEMBERS
from backend.chats.token_counting import CountUnit
from backend.core.events import Participants
from backend.vault.sealing import Sealer


class FindNames(Protocol):
    """Finds the names of characters."""

    async def __call__(
        self,
        session: AsyncSession,
        character_ids: Sequence[UUID],
        /,
        *,
        owner_id: UUID,
        sealer: Sealer,
    ) -> dict[UUID, str]:
        """Return names by character. Characters of other users are left out."""
        ...


class PresenceChanger:
    """Adds messages to the end of a chat's active path. The chat's row is locked.

    `added` are the new messages.
    """

    def __init__(
        self, session: AsyncSession, sealer: Sealer, chat: Chat, participants: Participants
    ) -> None:
        self._session = session
        self._sealer = sealer
        self._chat = chat
        self._participants = participants
        self._leaf: Message | None = None
        self.added: list[UUID] = []

    async def begin(self) -> None:
        """Load the end of the path. Raises `MessageBusyError` if a reply is being written there."""
        leaf_id = self._chat.leaf_id
        self._leaf = await self._session.get(Message, leaf_id) if leaf_id else None
        line = await find_last_line(self._session, self._leaf)
        if line is not None and line.status == "streaming":
            raise MessageBusyError("Stop it first, or wait until it is finished.")

    @property
    def next_position(self) -> int:
        return self._leaf.position + 1 if self._leaf else 0

    async def change(
        self, character_id: UUID, name: str, presence: Presence, *, before: Presence | None
    ) -> None:
        """Add the message with which a character joins, leaves or is muted."""
        message = make_message(
            self._sealer,
            MessageDraft(
                role="system",
                author=name,
                text=describe_change(name, presence, before=before),
                character_id=character_id,
            ),
            unit=CountUnit.parse(self._chat.count_unit),
        )
        message.presence, message.hidden = presence, True
        await self.attach(message)

    async def attach(self, message: Message) -> None:
        chat = self._chat
        moved = await tree.attach_message(self._session, chat, message, parent=self._leaf)
        await notify_path_moved(self._participants, self._session, self._sealer, chat, moved)
        self._leaf = message
        self.added.append(message.id)


async def replace_members(
    session: AsyncSession,
    identity: Identity,
    chat: Chat,
    character_ids: Sequence[UUID],
    *,
    find_names: FindNames,
    participants: Participants,
) -> list[UUID]:
    """Set the members of a chat, in order. The chat's row is locked.

    In a chat with messages, those who are new join now, and those who are not listed leave. Returns
    the messages that were added.

    Raises `TooManyMembersError`, `MessageBusyError`.
    """
    check_member_count(len(character_ids))
    group, is_empty = await load_group(session, chat.id), chat.leaf_id is None
    await session.execute(delete(ChatCharacter).where(ChatCharacter.chat_id == chat.id))
    add_members(
        session,
        chat.id,
        {each: is_empty or group.members.get(each, False) for each in character_ids},
    )
    changes: dict[UUID, Presence] = {}
    if not is_empty:
        there = [each for each, presence in group.presences.items() if presence != "absent"]
        changes.update((each, "absent") for each in there if each not in character_ids)
        changes.update((each, "present") for each in character_ids if each not in group.members)
    changer = PresenceChanger(session, identity.sealer, chat, participants)
    if changes:
        names = await find_names(
            session, list(changes), owner_id=identity.user_id, sealer=identity.sealer
        )
        await changer.begin()
        for each, presence in changes.items():
            await changer.change(each, names[each], presence, before=group.presences.get(each))
    return changer.added


def add_members(session: AsyncSession, chat_id: UUID, members: Mapping[UUID, bool]) -> None:
    """Add members to a chat without any, in order. True for those that are there from the start."""
    session.add_all(
        ChatCharacter(chat_id=chat_id, character_id=each, place=place, is_from_start=is_there)
        for place, (each, is_there) in enumerate(members.items())
    )


def describe_change(name: str, presence: Presence, *, before: Presence | None) -> str:
    """Return the text of a change of presence, which people read and no model."""
    match presence:
        case "absent":
            return f"{name} leaves."
        case "muted":
            return f"{name} only listens."
        case "present" if before == "muted":
            return f"{name} speaks again."
        case _:
            return f"{name} joins."


def check_member_count(count: int) -> None:
    """Raise `TooManyMembersError` if a chat may not have so many members."""
    if count > MAX_MEMBERS:
        raise TooManyMembersError(f"A chat can have at most {MAX_MEMBERS} members.")
