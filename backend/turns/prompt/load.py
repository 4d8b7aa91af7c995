"""Load everything that a turn needs from the database, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from msgspec import structs
from sqlalchemy import and_, bindparam, case, select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.models import User
from backend.accounts.profile.settings import find_first_set
from backend.campaigns.errors import StaleCampaignError
from backend.campaigns.ledger.paths import count_unread_rounds, find_first_unread
from backend.campaigns.ledger.records import open_campaign
from backend.campaigns.models import Campaign
from backend.campaigns.play.store import build_table
from backend.campaigns.state.situations import RECENT_LINES, SituationService
from backend.campaigns.state.snapshot import PlayedEntities
from backend.campaigns.state.state_block import render_played_block
from backend.campaigns.state.viewpoints import (
    find_player,
    find_witness,
)
from backend.characters import repository as characters
from backend.characters.public_cards import KeptCard, PublicCards, SealedCard
from backend.characters.repository import NamedCharacter
from backend.chats import repository as chats
from backend.chats.errors import ChatNotFoundError
from backend.chats.members import (
    Group,
    load_group,
)
from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, Chat, Message
from backend.chats.schemas import AuthorsNote, ChatSettings
from backend.chats.service import read_settings
from backend.chronicles.events import MAX_PINNED
from backend.chronicles.repository import StoryEvent, current_events
from backend.context.blocks import ChosenBy, PresetFields
from backend.core.audience import (
    GM,
    PUBLIC,
    Viewpoint,
    Witness,
    may_know,
)
from backend.enrichment.summaries.pieces import load_path_summary
from backend.enrichment.summaries.store import HOT_ROUNDS
from backend.lorebooks.links import books_for_chat
from backend.presets.models import Preset, open_preset
from backend.turns.api.schemas import TurnRequest
from backend.turns.models import TurnKind
from backend.turns.prompt.cast import Cast, Speaker, list_cast, load_speaker, name_members
from backend.turns.prompt.client import ClientParts, ClientPrompt, split_prompt
from backend.turns.prompt.context import (
    LoadedChat,
    LoadedLore,
    LoadedPreset,
    Note,
    RecentLine,
    Story,
    TurnTarget,
    choose_authors_note,
)
from backend.turns.prompt.history import HistoryCache
from backend.turns.prompt.images import has_files
from backend.turns.prompt.lore import LoreReader
from backend.turns.prompt.macros import read_variables, replace_scenario
from backend.turns.prompt.remembered import load_remembered
from backend.turns.prompt.retrieve import EXCHANGE_LINES
from backend.turns.prompt.speaker_choice import (
    ChainEndedError,
    SpeakerFinder,
    SpeakerPick,
    TurnSpeaker,
    draw_seed,
)
from backend.turns.prompt.target import (
    check_answerable,
    find_audience,
    find_target,
    find_viewpoint,
    follow_briefing,
)
from backend.turns.prompt.viewed_path import KnownPath, ViewedPath

MAX_QUOTED_LINES = 20
"""The number of last messages that macros may quote."""

PLAYED_KINDS: tuple[TurnKind, ...] = ("reply", "regenerate")
"""Kinds of turns in which the model may use tools."""

RECENT_MACROS = ("last", "idle")
"""Parts of the names of macros that quote the last messages or use their age."""

_CHAT = (
    select(
        Chat,
        Message,
        Campaign,
        User.sealed_variables,
        User.sealed_scripts.is_not(None),
        has_files(Message),
    )
    .join(User, User.id == Chat.user_id)
    .outerjoin(Message, Message.id == Chat.leaf_id)
    .outerjoin(Campaign, and_(Campaign.id == Chat.campaign_id, Campaign.match_owner(Chat.user_id)))
    .where(Chat.id == bindparam("chat_id"), Chat.user_id == bindparam("owner_id"), Chat.is_ready)
)

_PRESET = select(Preset.sealed_preset, Preset.revision).where(
    Preset.id == bindparam("preset_id"), Preset.user_id == bindparam("owner_id")
)


class ChatLoader:
    """Loads the data of a turn for one user, through the caller's session.

    A preview may have no line to answer, and may try a preset. Without `cards`, those of a group
    are not joined. Without `situations`, the campaign is left out. `with_campaign` loads its state
    later, while memory is searched. With the prompt of a `client`, its own messages are the
    history, and it may exclude everything that is added. `speaker` is what is known of the choice
    of the speaker; without it, a draw depends on the path.
    """

    def __init__(  # noqa: PLR0913  # one reader of everything that a turn needs
        self,
        session: AsyncSession,
        identity: Identity,
        *,
        user_name: str,
        lore: LoreReader,
        cards: PublicCards | None = None,
        histories: HistoryCache | None = None,
        situations: SituationService | None = None,
        is_preview: bool = False,
        tried: PresetFields | None = None,
        client: ClientPrompt | None = None,
        speaker: TurnSpeaker | None = None,
    ) -> None:
        self._client = client
        self._speaker = speaker
        self._remembers = client is None or client.uses_memory
        self._lore = lore
        self._cards = cards
        self._histories = histories or HistoryCache()
        self._situations = situations if self._remembers else None
        self._session = session
        self._identity = identity
        self._user_name = user_name
        self._is_preview = is_preview
        self._tried = tried
        self._campaign: Campaign | None = None

    async def load(self, chat_id: UUID, request: TurnRequest) -> LoadedChat:
        """Read the chat, its cast and the place in its message tree.

        Raises `ChatNotFoundError`, `MessageNotFoundError`, `CharacterNotFoundError`,
        `NothingToAnswerError`, `NotContinuableError`, `ValidationError`, `StaleCampaignError`, and
        the errors of `SpeakerFinder.find`.
        """
        session, identity = self._session, self._identity
        owner_id, sealer, account = identity.user_id, identity.sealer, identity.settings
        asked = {"chat_id": chat_id, "owner_id": owner_id}
        row = (await session.execute(_CHAT, asked)).one_or_none()
        if row is None:
            raise ChatNotFoundError
        chat, leaf, campaign, sealed_globals, has_scripts, are_files = row
        self._campaign = campaign if self._situations else None
        client = split_prompt(self._client) if self._client else None
        settings = read_settings(sealer, chat)
        turn = self._speaker or TurnSpeaker(seed=draw_seed(chat))
        if turn.automatic is not None and chat.leaf_id != turn.automatic.after:
            raise ChainEndedError
        group = await load_group(session, chat.id)
        member_ids = list(group.members)
        target = await find_target(
            session,
            chat,
            leaf,
            request,
            is_preview=self._is_preview,
            may_follow=group.is_group and settings.group.next_speaker != "by_hand",
        )
        audience = await find_audience(session, sealer, chat, request, target)
        found = await characters.find_named(session, member_ids, owner_id=owner_id, sealer=sealer)
        names = {each: named.name for each, named in found.items()}
        finder = SpeakerFinder(
            session,
            identity,
            chat,
            settings,
            group,
            found,
            self._cards or PublicCards(),
            turn=turn,
            may_ask=not self._is_preview,
            has_client=client is not None,
        )
        pick = await finder.find(request, target, audience)
        played = await self._find_played()
        cast, viewpoint = await self._load_cast(
            chat, settings, request, group, target, found, pick, played
        )
        target = await follow_briefing(session, target, viewpoint)
        if request.audience is None:
            audience = target.audience
            if target.line_kind == "next" and not pick.has_heard:
                audience = PUBLIC  # the others' whisper goes on without this speaker
        target = check_answerable(
            target, viewpoint, audience if request.text else PUBLIC, is_preview=self._is_preview
        )
        lore = await self._load_lore(chat, settings, target, cast, member_ids, viewpoint)
        fields, reason = choose_authors_note(settings.authors_note, cast.speaker.card)
        is_due = await self._is_note_due(fields, target, request)
        variables = read_variables(sealer, chat, sealed_globals)
        pinned: Sequence[StoryEvent] = ()
        if chat.chronicle_id and self._remembers:
            pinned = await current_events(
                session,
                sealer,
                chat.chronicle_id,
                limit=MAX_PINNED,
                pinned=True,
                viewpoint=viewpoint,
            )
        remembered, speaker = None, cast.speaker
        keeps_memories = speaker.card.remembers_chats and not request.impersonate
        if speaker.id is not None and keeps_memories and self._remembers:
            remembered = await load_remembered(
                session, sealer, chat, group, speaker.id, speaker.name, viewpoint
            )
        summary = None
        if self._remembers and target.leaf and (settings.summary.enabled or chat.campaign_id):
            summary = await load_path_summary(
                session,
                sealer,
                chat,
                group,
                viewpoint=viewpoint,
                up_to_position=target.leaf.position,
                words=settings.summary.words,
            )
        if self._tried:
            preset: LoadedPreset | None = LoadedPreset(None, 0, "preview", self._tried)
        else:
            preset = await find_preset(session, identity, settings, cast.speaker)
        loaded = LoadedChat(
            chat=chat,
            settings=settings,
            system_prompt=settings.system_prompt or account.system_prompt or "",
            post_history=(
                settings.post_history_instructions or account.post_history_instructions or ""
            ),
            cast=cast,
            target=target,
            group=group,
            members=name_members(
                group, names, target.leaf.position + 1 if target.leaf else 0, played
            ),
            variables=variables,
            stored_variables=variables,
            lore=lore,
            note=Note(fields=fields, reason=reason, is_due=is_due),
            pinned=pinned,
            remembered=remembered,
            summary=summary,
            line=request.text,
            said=self._read_line(target, request),
            viewpoint=viewpoint,
            audience=audience,
            keeps_other_speakers=find_first_set(
                (settings, account), "keep_other_speakers", default=False
            ),
            expands_macros=(
                # A client has expanded the macros of its user's line.
                client is None
                and find_first_set((settings, account), "expand_macros", default=True)
            ),
            has_scripts=has_scripts,
            has_files=are_files,
            preset=preset,
            client=client,
            is_automatic=turn.automatic is not None,
        )
        return await self._add_path(loaded)

    async def _add_path(self, loaded: LoadedChat) -> LoadedChat:
        """Add the last messages, the rounds, and the messages that the viewpoint does not know."""
        target, client = loaded.target, loaded.client
        texts = [*loaded.macro_texts, loaded.line or ""]
        quoted = MAX_QUOTED_LINES if any(map(_may_quote, texts)) else EXCHANGE_LINES
        limit = max(quoted, loaded.lore.depth, RECENT_LINES)
        path = None
        if target.leaf is not None and loaded.viewpoint != GM:
            columns = await self._histories.read_path(self._session, loaded.chat, target.leaf)
            path = ViewedPath.view(columns, loaded.viewpoint, loaded.chat.id)
            loaded = replace(loaded, unknown=path.list_unknown())
        rows = await self._load_recent(target, limit, path)
        if path is None:
            loaded = replace(loaded, last_rows=rows)
        recent: Sequence[RecentLine] = [self._read_recent(row) for row in rows]
        if client is not None:
            if self._client is not None and loaded.unknown:
                unknown_at = {each.position for each in loaded.unknown}
                client = split_prompt(self._client.without(unknown_at))
            recent = _take_sent_lines(recent, client)
            begin = await self._find_sent_begin(target, client)
            loaded = replace(loaded, client=client, sent_begin=begin)
        loaded = await self._add_rounds(replace(loaded, recent=recent), path)
        return _add_known_path(loaded)

    async def _find_sent_begin(self, target: TurnTarget, client: ClientParts) -> int:
        """Return the stored tokens from the root before the first message that a client sends."""
        if target.leaf is None:
            return 0
        if client.first is None:
            return target.leaf.path_tokens
        query = select(Message.path_tokens - case((Message.hidden, 0), else_=Message.tokens)).where(
            Message.chat_id == target.leaf.chat_id,
            Message.is_active,
            Message.position == client.first,
        )
        return await self._session.scalar(query) or 0

    async def _load_cast(
        self,
        chat: Chat,
        settings: ChatSettings,
        request: TurnRequest,
        group: Group,
        target: TurnTarget,
        found: Mapping[UUID, NamedCharacter],
        pick: SpeakerPick,
        played: PlayedEntities | None,
    ) -> tuple[Cast, Viewpoint]:
        """Return the cast and the viewpoint. They depend on each other through the user's name."""
        session, identity = self._session, self._identity
        owner_id, sealer = identity.user_id, identity.sealer
        names = {each: named.name for each, named in found.items()}
        speaker = await load_speaker(session, identity, names, pick.character_id)
        persona_id = chat.persona_id or identity.settings.persona_id
        persona = player = None
        if persona_id:
            persona = await characters.find_persona(
                session, persona_id, owner_id=owner_id, sealer=sealer
            )
        if persona is None:
            player = await find_player(session, sealer, chat.campaign_id)
        user_name = persona.name if persona else player.name if player else self._user_name
        viewpoint = await find_viewpoint(
            session, identity, chat, request, user_name, usual=settings.viewpoint, played=played
        )
        is_asked = request.impersonate or request.viewpoint or settings.viewpoint
        narrates = speaker.id is None or speaker.id in settings.group.narrators
        if group.is_group and speaker.id and not narrates and not is_asked:
            viewpoint = await self._find_witness(chat, group, speaker.id, speaker, played)
        if player is not None and not may_know(viewpoint, player.audience):
            user_name = self._user_name
        last = target.line or target.leaf
        members = list_cast(group, names, last.position + 1 if last else 0)
        public_cards: Mapping[UUID, KeptCard | SealedCard] = {}
        is_joined = settings.group.cards == "joined" and len(members) > 1
        if self._cards is not None and is_joined:
            revisions = {each.id: found[each.id].revision for each in members}
            public_cards = await self._cards.load(session, revisions, owner_id=owner_id)
        cast = Cast(
            speaker=replace(speaker, card=replace_scenario(speaker.card, settings)),
            others=[name for key, name in names.items() if key != speaker.id],
            member_count=len(group.members),
            user_name=user_name,
            persona=persona.description if persona else "",
            persona_id=persona.id if persona else None,
            reasons=pick.reasons,
            waiting=pick.waiting,
            members=members,
            public_cards=public_cards,
        )
        return cast, viewpoint

    async def _find_witness(
        self,
        chat: Chat,
        group: Group,
        speaker_id: UUID,
        speaker: Speaker,
        played: PlayedEntities | None,
    ) -> Witness:
        """Return the speaker's viewpoint. Other chats matter only if it remembers them."""
        has_others = chat.chronicle_id is not None or speaker.card.remembers_chats
        if has_others or (played is None and chat.campaign_id is not None):
            return await find_witness(
                self._session,
                self._identity.sealer,
                chat,
                speaker_id,
                speaker.name,
                played=played,
            )
        own = played.find(speaker_id, speaker.name) if played else ()
        absences = group.find_absences(speaker_id)
        ids = frozenset({speaker_id, *own})
        return Witness(speaker_id, ids, {chat.id: absences} if absences else {})

    async def _find_played(self) -> PlayedEntities | None:
        """Return the entities that cards play. None if this turn does not read the campaign."""
        if self._situations is None or self._campaign is None:
            return None
        if self._campaign.is_stale:
            raise StaleCampaignError(self._campaign.id)
        return await self._situations.find_played(self._session, self._identity, self._campaign)

    async def _load_lore(
        self,
        chat: Chat,
        settings: ChatSettings,
        target: TurnTarget,
        cast: Cast,
        member_ids: Sequence[UUID],
        viewpoint: Viewpoint,
    ) -> LoadedLore:
        if not self._remembers:
            return LoadedLore()
        account = self._identity.settings
        member_books = find_first_set(
            (settings.lore, account.lore), "member_books", default="speaker"
        )
        speaker_ids = [cast.speaker.id] if cast.speaker.id is not None else []
        books = await books_for_chat(
            self._session,
            owner_id=self._identity.user_id,
            chat_id=chat.id,
            character_ids=member_ids if member_books == "all" else speaker_ids,
            persona_id=chat.persona_id or account.persona_id,
        )
        return await self._lore.read(
            self._session,
            self._identity,
            books,
            chat=chat,
            leaf=target.leaf,
            overrides=(settings.lore, account.lore),
            viewpoint=viewpoint,
        )

    async def _add_rounds(self, loaded: LoadedChat, path: ViewedPath | None) -> LoadedChat:
        """Add the campaign's rounds, and the position up to which they were read."""
        campaign = self._campaign
        if campaign is None:
            return loaded
        fields, leaf = open_campaign(self._identity.sealer, campaign), loaded.target.leaf
        if leaf is None:
            return replace(loaded, story=Story(fields=fields))
        limit = HOT_ROUNDS + fields.settings.memory_interval
        all_rounds = await chats.list_round_starts(self._session, leaf, limit=limit)
        rounds = path.list_round_starts(limit) if path else all_rounds
        covered = loaded.summary.path_tokens if loaded.summary else 0
        story = Story(
            fields=fields,
            rounds=rounds,
            untold_rounds=sum(begin >= covered for begin in all_rounds),
            # After a compaction, the campaign's state may replace messages.
            unread=(
                await find_first_unread(
                    self._session, leaf, after=loaded.summary.position if loaded.summary else -1
                )
                if campaign.compactions > 0
                else None
            ),
            unread_rounds=(
                await count_unread_rounds(self._session, loaded.chat, leaf)
                if loaded.chat.chronicle_enabled
                else 0
            ),
        )
        return replace(loaded, story=story)

    async def with_campaign(self, loaded: LoadedChat) -> LoadedChat:
        if self._situations is None or self._campaign is None:
            return loaded
        campaign = await self._situations.load_layers(
            self._session,
            self._identity,
            self._campaign,
            loaded.chat,
            loaded.target.leaf,
            line=loaded.said or "",
            recent=[each.text for each in loaded.recent],
            until=loaded.target.rewritten,
            viewpoint=loaded.viewpoint,
            player=loaded.cast.user_name,
            members=loaded.members,
        )
        # More people know the changes that tools make than know of a private turn.
        hides = campaign.fields.settings.hidden_information or loaded.group.is_group
        is_private = hides and loaded.audience != PUBLIC
        table = (
            build_table(campaign, loaded.viewpoint, is_private=is_private)
            if _is_played(loaded.target)
            else None
        )
        if table is not None and not is_private:
            block = render_played_block(campaign.block, campaign.now)
            campaign = structs.replace(campaign, block=block)
        story = replace(loaded.story, campaign=campaign, table=table)
        return replace(loaded, story=story)

    def _read_line(self, target: TurnTarget, request: TurnRequest) -> str | None:
        if target.line_kind != "user_line":
            return None
        return read_text(self._identity, target.line) if target.line else request.text

    async def _is_note_due(
        self, note: AuthorsNote, target: TurnTarget, request: TurnRequest
    ) -> bool:
        """True if this turn sends the author's note, which may come with every n-th line."""
        if not note.text or note.interval <= 1:
            return note.interval == 1
        before = (
            await chats.count_messages(self._session, target.leaf, "user") if target.leaf else 0
        )
        said = before + (target.line is not None or bool(request.text))
        return bool(said) and said % note.interval == 0

    async def _load_recent(
        self, target: TurnTarget, limit: int, path: ViewedPath | None
    ) -> Sequence[Message]:
        if target.leaf is None:
            return []
        chat_id = target.leaf.chat_id
        if path is None:
            end = target.leaf.position + 1
            return await chats.list_active_page(
                self._session, chat_id, before=end, limit=limit, with_hidden=False
            )
        positions = path.list_last_positions(limit)
        return await chats.list_at_positions(self._session, chat_id, positions)

    def _read_recent(self, row: Message) -> RecentLine:
        return RecentLine(
            role=row.role,
            author=read_author(self._identity, row),
            position=row.position,
            text=read_text(self._identity, row),
            created_at=row.created_at,
        )


def _add_known_path(loaded: LoadedChat) -> LoadedChat:
    """Count only messages that the viewpoint knows."""
    if not loaded.unknown:
        return loaded
    path = KnownPath.without((each.begin, each.tokens) for each in loaded.unknown)
    summary, unread = loaded.summary, loaded.story.unread
    sent_begin = path.to_known(loaded.sent_begin)
    if summary is not None:
        summary = structs.replace(summary, path_tokens=path.to_known(summary.path_tokens))
    if unread is not None:
        unread = unread._replace(path_tokens=path.to_known(unread.path_tokens))
    rounds = list(map(path.to_known, loaded.story.rounds))
    story = replace(loaded.story, unread=unread, rounds=rounds)
    return replace(loaded, known_path=path, summary=summary, story=story, sent_begin=sent_begin)


def _take_sent_lines(recent: Sequence[RecentLine], client: ClientParts) -> list[RecentLine]:
    """Return the last messages that a client sends, with its texts."""
    sent = dict(zip(client.positions, client.history, strict=True))
    return [
        replace(each, text=sent[each.position].text) for each in recent if each.position in sent
    ]


def _is_played(target: TurnTarget) -> bool:
    """True if the model may use tools.

    A reply that was cut off continues with tools, because its turn has not ended. A complete reply
    continues with text alone.
    """
    cut_off = target.continued is not None and target.continued.status != "complete"
    return target.kind in PLAYED_KINDS or cut_off


def _may_quote(field: str) -> bool:
    """True if a text may contain a macro that quotes the last messages or uses their age."""
    return "{{" in field and any(name in field.casefold() for name in RECENT_MACROS)


def read_author(identity: Identity, message: Message) -> str:
    return identity.sealer.open(MESSAGE_AUTHOR, message.id, message.sealed_author)


def read_text(identity: Identity, message: Message) -> str:
    return identity.sealer.open(MESSAGE_CONTENT, message.id, message.sealed_content)


async def find_preset(
    session: AsyncSession, identity: Identity, settings: ChatSettings, speaker: Speaker
) -> LoadedPreset | None:
    """Return the nearest preset that is chosen and exists. None for the default order."""
    choices: tuple[tuple[ChosenBy, UUID | None], ...] = (
        ("chat", settings.preset_id),
        ("character", speaker.preset_id),
        ("account", identity.settings.preset_id),
    )
    for chosen_by, preset_id in choices:
        if preset_id is not None:
            values = {"preset_id": preset_id, "owner_id": identity.user_id}
            row = (await session.execute(_PRESET, values)).one_or_none()
            if row is not None:
                fields = open_preset(identity.sealer, preset_id, row.sealed_preset)
                return LoadedPreset(preset_id, row.revision, chosen_by, fields)
    return None
