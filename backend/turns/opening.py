"""Opening a chat: the one act that needs characters, personas and chats together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.characters import repository as characters
from backend.characters.cards.model import Card
from backend.characters.errors import CharacterNotFoundError, PersonaNotFoundError
from backend.chats import repository as chats
from backend.chats.drafts import Draft
from backend.chats.schemas import ChatPatch, ChatView, NewChat
from backend.chats.service import ChatService
from backend.context.macros import Variables, expand
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.turns.macro_fields import macros_of
from backend.wire import merge_patch, reject_unknown

FALLBACK_TITLE = "New chat"


class OpeningService:
    """Opens chats, and changes who takes part as the user."""

    def __init__(
        self, database: Database, chats: ChatService, *, name_of: Callable[[Identity], str]
    ) -> None:
        self._database = database
        self._chats = chats
        self._name_of = name_of

    async def open(self, identity: Identity, new: NewChat) -> ChatView:
        """Make a chat; the first character's greetings become its first message and its swipes.

        Raises `CharacterNotFoundError`, `PersonaNotFoundError`, `ValidationError`.
        """
        persona_id = new.persona_id or identity.settings.persona_id
        async with self._database.read() as session:
            names = await self._check_cast(session, identity, new.character_ids, new.persona_id)
            first = (
                await characters.get_card(
                    session,
                    new.character_ids[0],
                    owner_id=identity.user_id,
                    sealer=identity.sealer,
                )
                if new.character_ids
                else None
            )
            persona = (
                await characters.find_persona(
                    session, persona_id, owner_id=identity.user_id, sealer=identity.sealer
                )
                if persona_id
                else None
            )
        user = persona.name if persona else self._name_of(identity)
        greetings = (
            _greetings(
                first,
                new.character_ids[0],
                user=user,
                persona=persona.description if persona else "",
                is_group=len(new.character_ids) > 1,
            )
            if first
            else []
        )
        return await self._chats.open(
            identity,
            title=(new.title or "").strip() or _default_title(names),
            character_ids=new.character_ids,
            persona_id=new.persona_id,
            greetings=greetings,
        )

    async def patch(
        self, identity: Identity, chat_id: UUID, patch: dict[str, Any], *, if_match: str | None
    ) -> ChatView:
        """Change title, persona or characters; what is absent stays, null clears.

        A title of null, or a blank one, is the default again, as on opening.

        Raises `ChatNotFoundError`, `CharacterNotFoundError`, `PersonaNotFoundError`,
        `ValidationError`, `PreconditionFailedError`.
        """
        reject_unknown(patch, ChatPatch)
        change = merge_patch(ChatPatch(), patch)
        async with self._database.read() as session:
            names = await self._check_cast(
                session, identity, change.character_ids, change.persona_id
            )
            if "title" in patch and not change.title.strip():
                if "character_ids" not in patch:
                    names = await self._names(session, identity, chat_id)
                change.title = _default_title(names)
        return await self._chats.patch(
            identity, chat_id, change, named=frozenset(patch), if_match=if_match
        )

    async def _names(self, session: AsyncSession, identity: Identity, chat_id: UUID) -> list[str]:
        """The names of a chat's characters."""
        members = (await chats.character_ids(session, [chat_id])).get(chat_id, [])
        names = await characters.find_names(
            session, members, owner_id=identity.user_id, sealer=identity.sealer
        )
        return list(names.values())

    async def _check_cast(
        self,
        session: AsyncSession,
        identity: Identity,
        character_ids: Sequence[UUID],
        persona_id: UUID | None,
    ) -> list[str]:
        """The names of characters who are the user's, as the persona has to be."""
        if len(set(character_ids)) < len(character_ids):
            raise ValidationError("character_ids names a character twice.")
        owner_id, sealer = identity.user_id, identity.sealer
        names = await characters.find_names(
            session, character_ids, owner_id=owner_id, sealer=sealer
        )
        if len(names) < len(character_ids):
            raise CharacterNotFoundError
        if persona_id is not None and not await characters.find_persona(
            session, persona_id, owner_id=owner_id, sealer=sealer
        ):
            raise PersonaNotFoundError
        return list(names.values())


def _default_title(names: Sequence[str]) -> str:
    return ", ".join(names) or FALLBACK_TITLE


def _greetings(
    card: Card, character_id: UUID, *, user: str, persona: str, is_group: bool
) -> list[Draft]:
    """A card's greetings, their macros expanded once and for all: they are messages from now on."""
    texts = [card.first_mes, *card.alternate_greetings]
    if is_group:
        texts += card.group_only_greetings
    seed = uuid4().int >> 64
    context = macros_of(
        card,
        char=card.nickname or card.name,
        user=user,
        persona=persona,
        chat_seed=seed,
        message_seed=seed,
    )
    expanded = [
        expand(text, context, Variables(), place=f"greeting:{number}").text
        for number, text in enumerate(texts)
    ]
    return [
        Draft(
            role="assistant",
            author=card.nickname or card.name,
            text=text,
            character_id=character_id,
        )
        for text in expanded
        if text.strip()
    ]
