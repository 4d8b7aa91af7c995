"""What a turn needs from the database, read in one view of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.accounts.models import USER_VARIABLES, User
from backend.characters import repository as characters
from backend.characters.cards.model import Card
from backend.characters.errors import CharacterNotFoundError
from backend.chats import repository as chats
from backend.chats.errors import ChatNotFoundError
from backend.chats.models import CHAT_VARIABLES, MESSAGE_AUTHOR, MESSAGE_CONTENT, Chat, Message
from backend.chats.repository import SealedHistory
from backend.chats.schemas import AuthorsNote, ChatSettings
from backend.chats.service import read_settings
from backend.chronicles.events import MAX_PINNED
from backend.chronicles.reading import StoryEvent, current_events
from backend.context.budget import eviction_point
from backend.context.macros import Variables
from backend.enrichment.summaries import StoredSummary, current_summary
from backend.reasons import ReasonKind
from backend.regex.scripts import Scripts
from backend.turns.authors_note import authors_note
from backend.turns.lore import LoadedLore, LoreReader
from backend.turns.schemas import TurnRequest
from backend.turns.target import Target, TargetFinder

NARRATOR = "Narrator"
"""Who speaks in a chat without a character."""

QUOTED = 20
"""Last lines that macros may quote."""

EXCHANGE = 2
"""Last lines that the search for memories goes by, beside the user's."""

RECENT_MACROS = ("last", "idle")
"""In the names of macros that quote the last lines, or ask how old they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """The character that speaks: its id (None in a chat without one), its card, its name."""

    id: UUID | None
    card: Card
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentLine:
    """One of the last lines: macros quote them, lorebooks are looked up in them."""

    role: str
    author: str
    text: str
    position: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedChat:
    """Everything about a chat that a prompt is made of, but its history.

    `user_lines` counts the user's lines before this turn's, where the author's note goes by them.
    `line` is what the user says now, as it is stored; `said` what is answered, as the model gets
    it, where scripts have changed it.
    """

    chat: Chat
    settings: ChatSettings
    speaker: Speaker
    others: Sequence[str]
    member_ids: Sequence[UUID]
    user_name: str
    persona: str
    persona_id: UUID | None
    target: Target
    variables: Variables
    recent: Sequence[RecentLine]
    lore: LoadedLore
    note: AuthorsNote
    note_reason: ReasonKind
    user_lines: int = 0
    pinned: Sequence[StoryEvent] = ()
    summary: StoredSummary | None = None
    line: str | None = None
    said: str | None = None
    scripts: Scripts | None = None

    @property
    def member_count(self) -> int:
        """How many characters take part."""
        return len(self.member_ids)

    @property
    def path_tokens(self) -> int:
        """Stored tokens of the whole path."""
        return self.target.leaf.path_tokens if self.target.leaf else 0


@dataclass(frozen=True, slots=True)
class HistoryStart:
    """Where the kept history begins: lines behind so many tokens from the root, if there are any.

    `first_position` is the first line's; None where the whole path is kept.
    """

    from_sum: int = 0
    first_position: int | None = None


class ChatLoader:
    """Reads what a turn needs, through a session of the caller's, for one user.

    A preview need not have anything to answer.
    """

    def __init__(
        self,
        session: AsyncSession,
        identity: Identity,
        *,
        user_name: str,
        lore: LoreReader,
        is_preview: bool = False,
    ) -> None:
        self._lore = lore
        self._session = session
        self._identity = identity
        self._user_name = user_name
        self._is_preview = is_preview

    async def load(self, chat_id: UUID, request: TurnRequest) -> LoadedChat:
        """Read the chat, its cast and the place in its tree.

        Raises `ChatNotFoundError`, `MessageNotFoundError`, `CharacterNotFoundError`,
        `NothingToAnswerError`, `NotContinuableError`, `ValidationError`.
        """
        owner_id, sealer = self._identity.user_id, self._identity.sealer
        chat, leaf, sealed_globals = await self._chat(chat_id)
        settings = read_settings(sealer, chat)
        finder = TargetFinder(self._session, owner_id=owner_id, is_preview=self._is_preview)
        target = await finder.find(chat, leaf, request)
        member_ids = (await chats.character_ids(self._session, [chat.id])).get(chat.id, [])
        names = await characters.find_names(
            self._session, member_ids, owner_id=owner_id, sealer=sealer
        )
        speaker = await self._speaker(names, request, target)
        persona_id = chat.persona_id or self._identity.settings.persona_id
        persona = (
            await characters.find_persona(
                self._session, persona_id, owner_id=owner_id, sealer=sealer
            )
            if persona_id
            else None
        )
        lore = await self._lore.read(
            self._session,
            self._identity,
            chat,
            character_ids=member_ids,
            persona_id=persona_id,
            leaf=target.leaf,
            overrides=(settings.lore, self._identity.settings.lore),
        )
        note, note_reason = authors_note(settings.authors_note, speaker.card)
        quoted = QUOTED if self._may_quote(settings, speaker.card, persona, note) else EXCHANGE
        return LoadedChat(
            chat=chat,
            settings=settings,
            speaker=speaker,
            others=[name for key, name in names.items() if key != speaker.id],
            member_ids=member_ids,
            user_name=persona.name if persona else self._user_name,
            persona=persona.description if persona else "",
            persona_id=persona.id if persona else None,
            target=target,
            variables=self._variables(chat, sealed_globals),
            recent=await self._recent(target, max(quoted, lore.depth)),
            lore=lore,
            note=note,
            note_reason=note_reason,
            user_lines=(
                await chats.count_said(self._session, target.leaf, "user")
                if target.leaf and note.text and note.interval > 1
                else 0
            ),
            pinned=await self._pinned(chat),
            summary=await self._summary(chat, settings, target.leaf),
            line=request.text,
        )

    async def history_start(self, loaded: LoadedChat, *, budget: int) -> HistoryStart:
        """Where history begins that fits `budget` stored tokens."""
        leaf = loaded.target.leaf
        from_sum = eviction_point(leaf.path_tokens, budget) if leaf else 0
        if leaf is None or from_sum == 0:
            return HistoryStart()
        first = await chats.first_behind(self._session, loaded.chat.id, from_sum=from_sum)
        return HistoryStart(from_sum, leaf.position + 1 if first is None else first)

    async def history(
        self, loaded: LoadedChat, start: HistoryStart, *, authors: bool
    ) -> SealedHistory:
        """The lines from where the kept history begins to the leaf."""
        leaf = loaded.target.leaf
        if leaf is None:
            return SealedHistory()
        return await chats.active_lines(
            self._session,
            loaded.chat.id,
            from_sum=start.from_sum,
            to_position=leaf.position,
            authors=authors,
        )

    async def _pinned(self, chat: Chat) -> Sequence[StoryEvent]:
        """Events of the chat's chronicle that every prompt of it holds."""
        if chat.chronicle_id is None:
            return ()
        return await current_events(
            self._session, self._identity.sealer, chat.chronicle_id, limit=MAX_PINNED, pinned=True
        )

    async def _summary(
        self, chat: Chat, settings: ChatSettings, leaf: Message | None
    ) -> StoredSummary | None:
        """What was summarised of the path down to `leaf`, where the chat has summaries."""
        if leaf is None or not settings.summary.enabled:
            return None
        return await current_summary(
            self._session, self._identity.sealer, chat, up_to_position=leaf.position
        )

    async def _chat(self, chat_id: UUID) -> tuple[Chat, Message | None, bytes | None]:
        """A chat, its leaf, and the user's global variables, still sealed: one query."""
        row = (
            await self._session.execute(
                select(Chat, Message, User.sealed_variables)
                .join(User, User.id == Chat.user_id)
                .outerjoin(Message, Message.id == Chat.leaf_id)
                .where(Chat.id == chat_id, Chat.user_id == self._identity.user_id)
            )
        ).one_or_none()
        if row is None:
            raise ChatNotFoundError
        return row[0], row[1], row[2]

    async def _speaker(
        self, names: dict[UUID, str], request: TurnRequest, target: Target
    ) -> Speaker:
        """Who speaks: as asked, else whoever spoke the reply, else the chat's first character."""
        if request.speaker is not None and request.speaker not in names:
            raise CharacterNotFoundError
        for character_id in (request.speaker, target.spoken_by, *names):
            if character_id is not None and character_id in names:
                card = await characters.get_card(
                    self._session,
                    character_id,
                    owner_id=self._identity.user_id,
                    sealer=self._identity.sealer,
                )
                return Speaker(id=character_id, card=card, name=names[character_id])
        return Speaker(id=None, card=Card(name=NARRATOR), name=NARRATOR)

    def _may_quote(
        self,
        settings: ChatSettings,
        card: Card,
        persona: characters.PersonaData | None,
        note: AuthorsNote,
    ) -> bool:
        """Whether a field may hold a macro that quotes the last lines, or asks how old they are."""
        account = self._identity.settings
        texts = (
            card.description,
            card.personality,
            card.scenario,
            card.system_prompt,
            card.post_history_instructions,
            card.mes_example,
            card.depth_prompt.prompt if card.depth_prompt else "",
            persona.description if persona else "",
            note.text,
            settings.system_prompt or account.system_prompt or "",
            settings.post_history_instructions or account.post_history_instructions or "",
        )
        return any(
            "{{" in text and any(name in text.casefold() for name in RECENT_MACROS)
            for text in texts
        )

    def _variables(self, chat: Chat, sealed_globals: bytes | None) -> Variables:
        sealer, user_id = self._identity.sealer, self._identity.user_id
        local = chat.sealed_variables
        return Variables(
            local=_decoded(sealer.open_bytes(CHAT_VARIABLES, chat.id, local) if local else None),
            global_=_decoded(
                sealer.open_bytes(USER_VARIABLES, user_id, sealed_globals)
                if sealed_globals
                else None
            ),
        )

    async def _recent(self, target: Target, limit: int) -> Sequence[RecentLine]:
        if target.leaf is None:
            return []
        rows = await chats.active_page(
            self._session,
            target.leaf.chat_id,
            before=target.leaf.position + 1,
            limit=limit,
            with_hidden=False,
        )
        return [
            RecentLine(
                role=row.role,
                author=author_of(self._identity, row),
                position=row.position,
                text=text_of(self._identity, row),
                created_at=row.created_at,
            )
            for row in rows
        ]


def author_of(identity: Identity, message: Message) -> str:
    """Who said a message, by name."""
    return identity.sealer.open(MESSAGE_AUTHOR, message.id, message.sealed_author)


def text_of(identity: Identity, message: Message) -> str:
    """What a message says."""
    return identity.sealer.open(MESSAGE_CONTENT, message.id, message.sealed_content)


def _decoded(data: bytes | None) -> dict[str, str]:
    return msgspec.json.decode(data, type=dict[str, str]) if data else {}
