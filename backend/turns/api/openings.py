"""Open chats and change their members. This needs characters, personas and chats together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from litestar import Controller, Response, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.service import AccountService
from backend.campaigns.errors import CampaignNotFoundError
from backend.campaigns.state.viewpoints import find_player_name
from backend.characters import repository as characters
from backend.characters.cards.model import MAX_GREETINGS_CHARACTERS, Card, list_greetings
from backend.characters.errors import CharacterNotFoundError, PersonaNotFoundError
from backend.chats import repository as chats
from backend.chats.drafts import MessageDraft
from backend.chats.errors import ChatNotFoundError, MessageBusyError, MessageTooLongError
from backend.chats.events import MessageRemoved
from backend.chats.models import Chat, Message, TitleOrigin
from backend.chats.schemas import ChatPatch, ChatView, NewChat
from backend.chats.service import ChatService
from backend.context.macros import MacroBudget, MacroContext, MacroLimitError, Variables, expand
from backend.core.cpu_pool import CpuPool
from backend.database.base import RecordCreated, record_nothing
from backend.database.engine import Database
from backend.enrichment.tasks.title import LINES_AFTER
from backend.enrichment.titles import find_first_line, set_title
from backend.errors import PreconditionFailedError, ValidationError
from backend.generation.registry import UnknownModelError
from backend.http.schemas import (
    EXAMPLE,
    PATCHES,
    RAISES,
    IfMatch,
    merge_patch,
    reject_unknown,
    tag_view,
)
from backend.regex.scripts import ScriptEngine, Scripts
from backend.regex.service import load_active_scripts, prepare_scripts
from backend.turns.errors import OpeningTooLongError
from backend.turns.prompt.cast import CastMember
from backend.turns.prompt.macros import estimate_expansion, make_card_macros, with_group

FALLBACK_TITLE = "New chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The beginning of a chat that is not stored yet. `names` are those of the characters."""

    title: str
    title_origin: TitleOrigin
    user_name: str
    names: Sequence[str]
    greetings: Sequence[MessageDraft]


class OpeningService:
    def __init__(
        self,
        database: Database,
        chats: ChatService,
        *,
        pool: CpuPool,
        scripts: ScriptEngine,
        accounts: AccountService,
        longest_message: int,
    ) -> None:
        self._scripts = scripts
        self._longest_message = longest_message
        self._pool = pool
        self._database = database
        self._chats = chats
        self._accounts = accounts

    async def open(
        self, identity: Identity, new: NewChat, *, record: RecordCreated = record_nothing
    ) -> ChatView:
        """Create a chat. The greetings of the first character become its first message and swipes.

        With several characters, its greetings for groups come first. Others greet no one.

        If a greeting is too long or its macros do too much, the chat is not created. No greeting is
        dropped or cut.

        Raises `CharacterNotFoundError`, `PersonaNotFoundError`, `ValidationError`,
        `MessageTooLongError`, `OpeningTooLongError`, `MacroLimitError`.
        """
        opening = await self.prepare(identity, new)
        return await self._chats.open(
            identity,
            title=opening.title,
            title_origin=opening.title_origin,
            character_ids=new.character_ids,
            persona_id=new.persona_id,
            greetings=opening.greetings,
            campaign_id=new.campaign_id,
            record=record,
        )

    async def prepare(self, identity: Identity, new: NewChat) -> Opening:
        """Return the title, the names and the greetings of a new chat. Raises as `open` does."""
        persona_id = new.persona_id or identity.settings.persona_id
        async with self._database.read() as session:
            names = await _check_members(session, identity, new.character_ids, new.persona_id)
            first = persona = None
            if new.character_ids:
                first = await characters.get_card(
                    session, new.character_ids[0], owner_id=identity.user_id, sealer=identity.sealer
                )
            if persona_id:
                persona = await characters.find_persona(
                    session, persona_id, owner_id=identity.user_id, sealer=identity.sealer
                )
            played = await find_player_name(session, identity.sealer, new.campaign_id)
            scripts = await load_active_scripts(session, identity, new.character_ids[:1])
        user = persona.name if persona else played or self._accounts.name_of(identity)
        greetings: list[MessageDraft] = []
        if first is not None:
            is_group = len(new.character_ids) > 1
            members = [
                CastMember(each, name, "present")
                for each, name in zip(new.character_ids, names, strict=True)
            ]
            greetings = await self._pool.run(
                identity.user_id,
                partial(
                    _draft_greetings,
                    first,
                    members,
                    user=user,
                    persona=persona.description if persona else "",
                    longest=self._longest_message,
                    scripts=partial(prepare_scripts, self._scripts, identity.user_id, scripts),
                ),
                size=estimate_expansion(list_greetings(first, is_group=is_group)),
            )
        own = (new.title or "").strip()
        return Opening(
            title=own or _make_title(names),
            title_origin="user" if own else "characters",
            user_name=user,
            names=names,
            greetings=greetings,
        )

    async def patch(
        self, identity: Identity, chat_id: UUID, patch: dict[str, Any], *, if_match: str | None
    ) -> ChatView:
        """Change members of a chat. Absent members stay, null clears.

        A title that is null or blank becomes the default title.

        Raises `ChatNotFoundError`, `CharacterNotFoundError`, `PersonaNotFoundError`,
        `ValidationError`, `PreconditionFailedError`, `MessageBusyError`.
        """
        reject_unknown(patch, ChatPatch)
        change = merge_patch(ChatPatch(), patch)
        origin: TitleOrigin = "user" if change.title.strip() else "characters"
        async with self._database.read() as session:
            names = await _check_members(session, identity, change.character_ids, change.persona_id)
            if "title" in patch and not change.title.strip():
                if "character_ids" not in patch:
                    members = (await chats.list_character_ids(session, [chat_id])).get(chat_id, [])
                    names = await _find_names(session, identity, members)
                change.title = _make_title(names)
        return await self._chats.patch(
            identity,
            chat_id,
            change,
            named=frozenset(patch),
            if_match=if_match,
            title_origin=origin,
        )


class TitleResets(MessageRemoved):
    """Names a chat after its characters again if its title was made from a removed message.

    The next reply gives it a title from the messages that are left.
    """

    async def message_removed(
        self, session: AsyncSession, identity: Identity, chat: Chat, message: Message
    ) -> None:
        """Reset the title if the message is among the lines that it was made from."""
        if chat.title_origin not in {"first_line", "model"}:
            return
        first = await find_first_line(session, chat)
        if chat.title_origin == "model":
            last = first.position + LINES_AFTER if first else None
        elif message.role == "user":
            last = first.position if first else None
        else:
            return
        if last is not None and message.position > last:
            return
        members = (await chats.list_character_ids(session, [chat.id])).get(chat.id, [])
        names = await _find_names(session, identity, members)
        set_title(identity.sealer, chat, _make_title(names), "characters")


class OpeningController(Controller):
    """Open chats and change their members."""

    path = "/chats"
    tags = ("Chats",)

    @post(
        opt={
            RAISES: (
                CharacterNotFoundError,
                PersonaNotFoundError,
                CampaignNotFoundError,
                MessageTooLongError,
                OpeningTooLongError,
                MacroLimitError,
                UnknownModelError,
            ),
            EXAMPLE: {"character_ids": [], "title": "The lighthouse"},
        },
        summary="Create a chat",
    )
    async def open_chat(
        self,
        data: JSONBody[NewChat],
        identity: NamedDependency[Identity],
        opening: NamedDependency[OpeningService],
    ) -> ChatView:
        """Open a chat. It begins with the first character's greetings."""
        return await opening.open(identity, data)

    @patch(
        "/{chat_id:uuid}",
        opt={
            RAISES: (
                ChatNotFoundError,
                CharacterNotFoundError,
                PersonaNotFoundError,
                CampaignNotFoundError,
                MessageBusyError,
                PreconditionFailedError,
            ),
            PATCHES: ChatPatch,
            EXAMPLE: {"title": "The storm", "persona_id": None},
        },
        summary="Change a chat",
    )
    async def patch_chat(
        self,
        chat_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        opening: NamedDependency[OpeningService],
        if_match: IfMatch = None,
    ) -> Response[ChatView]:
        """Change the title, the members, the campaign, pin, archive or tags of a chat.

        Absent members stay, null clears. In a chat with messages, new characters join now, and know
        nothing from before. If the title is null, the names of the characters become the title,
        until the chat gets an automatic one.
        """
        return tag_view(await opening.patch(identity, chat_id, data, if_match=if_match))


async def _check_members(
    session: AsyncSession,
    identity: Identity,
    character_ids: Sequence[UUID],
    persona_id: UUID | None,
) -> list[str]:
    """Return the names of the characters. Raises if one, or the persona, is not the user's."""
    if len(set(character_ids)) < len(character_ids):
        raise ValidationError("character_ids contains a character twice.")
    names = await _find_names(session, identity, character_ids)
    if len(names) < len(character_ids):
        raise CharacterNotFoundError
    if persona_id is not None and not await characters.find_persona(
        session, persona_id, owner_id=identity.user_id, sealer=identity.sealer
    ):
        raise PersonaNotFoundError
    return names


async def _find_names(
    session: AsyncSession, identity: Identity, character_ids: Sequence[UUID]
) -> list[str]:
    names = await characters.find_names(
        session, character_ids, owner_id=identity.user_id, sealer=identity.sealer
    )
    return list(names.values())


def _make_title(names: Sequence[str]) -> str:
    return ", ".join(names) or FALLBACK_TITLE


def _draft_greetings(
    card: Card,
    members: Sequence[CastMember],
    *,
    user: str,
    persona: str,
    longest: int,
    scripts: Callable[[MacroContext], Scripts],
) -> list[MessageDraft]:
    """Return a card's greetings as messages, with their macros expanded.

    `members` are the characters of the chat. The card is that of the first one. Regex scripts are
    applied as to replies. A greeting that they would empty is not changed.
    """
    seed = uuid4().int >> 64
    author = card.nickname or card.name
    context = make_card_macros(
        card, char=author, user=user, persona=persona, chat_seed=seed, message_seed=seed
    )
    character_id = members[0].id
    context = with_group(context, members, character_id)
    ready = scripts(context)
    macro_budget = MacroBudget()
    drafts: list[MessageDraft] = []
    together = 0
    for number, greeting in enumerate(list_greetings(card, is_group=len(members) > 1)):
        expansion = expand(
            greeting, context, Variables(), place=f"greeting:{number}", budget=macro_budget
        )
        text = expansion.text
        if not text.strip():
            continue
        scripted = ready.run(text, "reply", "stored")
        text = scripted if scripted.strip() else text
        if len(text) > longest:
            raise MessageTooLongError(
                f"Greeting {number + 1} has {len(text):,} characters; {longest:,} are allowed. "
                "Shorten it on the character's page.",
                extra={"greeting": number + 1, "length": len(text), "limit": longest},
            )
        together += len(text)
        if together > MAX_GREETINGS_CHARACTERS:
            raise OpeningTooLongError(
                f"Greetings 1 to {number + 1} have {together:,} characters; "
                f"{MAX_GREETINGS_CHARACTERS:,} are allowed. Shorten or delete some on the "
                "character's page.",
                extra={
                    "greeting": number + 1,
                    "length": together,
                    "limit": MAX_GREETINGS_CHARACTERS,
                },
            )
        drafts.append(
            MessageDraft(role="assistant", author=author, text=text, character_id=character_id)
        )
    return drafts
