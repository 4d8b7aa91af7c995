"""Add messages without a model. This needs characters, personas and chats together."""

from uuid import UUID

from litestar import Controller, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.service import AccountService
from backend.campaigns.state.viewpoints import find_player_name
from backend.characters import repository as characters
from backend.characters.errors import PersonaNotFoundError
from backend.chats import repository as chats
from backend.chats.drafts import MessageDraft
from backend.chats.errors import (
    ChatNotFoundError,
    EmptyMessageError,
    MemberAbsentError,
    MemberNotFoundError,
    MessageBusyError,
    MessageTooLongError,
)
from backend.chats.members import load_group
from backend.chats.messages import MessageService
from backend.chats.models import Chat
from backend.chats.schemas import MessageView, NewLine
from backend.context.macros import MacroLimitError
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.http.schemas import EXAMPLE, RAISES
from backend.turns.prompt.cast import NARRATOR


class NewLineService:
    def __init__(
        self, database: Database, messages: MessageService, *, accounts: AccountService
    ) -> None:
        self._database = database
        self._messages = messages
        self._accounts = accounts

    async def add(self, identity: Identity, chat_id: UUID, new: NewLine) -> MessageView:
        """Add a message at the end of the active path.

        Its character is added to an audience of some. Raises `ChatNotFoundError`,
        `MemberNotFoundError`, `MemberAbsentError`,
        `PersonaNotFoundError`, `ValidationError`, `EmptyMessageError`, `MessageTooLongError`,
        `MacroLimitError`, `MessageBusyError`.
        """
        if new.character_id is not None and new.role != "assistant":
            raise ValidationError("`character_id` is allowed only with the role `assistant`.")
        if new.persona_id is not None and new.role != "user":
            raise ValidationError("`persona_id` is allowed only with the role `user`.")
        async with self._database.read() as session:
            chat = await chats.get_chat(session, chat_id, owner_id=identity.user_id)
            match new.role:
                case "user":
                    draft = await self._draft_as_user(session, identity, chat, new)
                case "assistant":
                    draft = await _draft_as_character(session, identity, chat, new)
                case "system":
                    draft = MessageDraft(role="system", author=NARRATOR, text=new.text)
        audience = new.audience
        if isinstance(audience, list) and draft.character_id is not None:
            audience = [*audience, draft.character_id]
        return await self._messages.append(identity, chat_id, draft, audience=audience)

    async def _draft_as_user(
        self, session: AsyncSession, identity: Identity, chat: Chat, new: NewLine
    ) -> MessageDraft:
        persona_id = new.persona_id or chat.persona_id or identity.settings.persona_id
        persona = persona_id and await characters.find_persona(
            session, persona_id, owner_id=identity.user_id, sealer=identity.sealer
        )
        if new.persona_id is not None and not persona:
            raise PersonaNotFoundError
        name = (
            persona.name
            if persona
            else await find_player_name(session, identity.sealer, chat.campaign_id)
        )
        return MessageDraft(
            role="user",
            author=name or self._accounts.name_of(identity),
            text=new.text,
            persona_id=persona.id if persona else None,
        )


async def _draft_as_character(
    session: AsyncSession, identity: Identity, chat: Chat, new: NewLine
) -> MessageDraft:
    presences = (await load_group(session, chat.id)).presences
    character_id = new.character_id
    if character_id is None:
        if len(presences) > 1:
            raise ValidationError(
                "The chat has several characters. Send the `character_id` of one."
            )
        character_id = next(iter(presences), None)
        if character_id is None:
            return MessageDraft(role="assistant", author=NARRATOR, text=new.text)
    names = await characters.find_names(
        session, [character_id], owner_id=identity.user_id, sealer=identity.sealer
    )
    if character_id not in presences or character_id not in names:
        raise MemberNotFoundError("Send the id of a character of this chat.")
    if presences[character_id] == "absent":
        raise MemberAbsentError(character_id, names[character_id])
    return MessageDraft(
        role="assistant",
        author=names[character_id],
        text=new.text,
        character_id=character_id,
    )


class NewLineController(Controller):
    """Messages that no model writes."""

    path = "/chats/{chat_id:uuid}/messages"
    tags = ("Chats",)

    @post(
        opt={
            RAISES: (
                ChatNotFoundError,
                MemberNotFoundError,
                MemberAbsentError,
                PersonaNotFoundError,
                EmptyMessageError,
                MessageTooLongError,
                MacroLimitError,
                MessageBusyError,
            ),
            EXAMPLE: {"role": "system", "text": "Night falls."},
        },
        summary="Add a message",
    )
    async def add_message(
        self,
        chat_id: FromPath[UUID],
        data: JSONBody[NewLine],
        identity: NamedDependency[Identity],
        new_lines: NamedDependency[NewLineService],
    ) -> MessageView:
        """Add a message at the end of the active path. No model is asked.

        Regex scripts and macros apply to it as to other messages of its role.
        """
        return await new_lines.add(identity, chat_id, data)
