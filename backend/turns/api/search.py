"""The search of turns, given to people: `GET /search`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.state.story_clock import StoryClock
from backend.campaigns.state.viewpoints import check_viewpoint
from backend.characters import repository as characters
from backend.chats import repository as chats
from backend.chats.errors import ChatNotFoundError
from backend.chats.questions import has_questions
from backend.core.audience import GM, Viewpoint, ViewpointText, read_viewpoint
from backend.core.cpu_pool import CpuPool
from backend.core.reasons import Match, Reason, told, told_matches
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.http.schemas import RAISES
from backend.lorebooks.links import books_for_chat
from backend.memory.index.protocol import Kind, ScopePart
from backend.memory.indexing.sources import Recalled, Source
from backend.memory.search.request import Memory, SearchRequest, SearchResult, SharedWords
from backend.memory.search.search import MemorySearch, NearMiss, RowReader, near_misses

MAX_RESULTS = 100

SourceName = Literal["campaign", "event", "lore", "message"]
SOURCE_NAMES: tuple[SourceName, ...] = ("campaign", "event", "lore", "message")


class FoundMemory(msgspec.Struct, kw_only=True):
    """Something that was found. `signals` says what speaks for it, in `reason` in English.

    `scores` are those of the index, by signal, and `score` what they came to.
    `container_id` is the campaign, the chronicle, the lorebook or the chat. `position` is where in
    its chat a message stands. `story_time` is the day of a campaign's story, such as "Day 5", or
    the time that an event gives; it may be empty.
    """

    kind: str
    source_id: UUID
    container_id: UUID
    title: str
    text: str
    said_at: datetime | None
    story_time: str
    position: int | None
    rank: int
    score: float
    scores: dict[str, float]
    signals: tuple[Match, ...]
    reason: str


class MissedMemory(msgspec.Struct, kw_only=True):
    """Something that came close, and why it stayed out: `reason` is `why` in English.

    Of what does not count at this moment there is no `title` and no `text`.
    """

    kind: str
    source_id: UUID
    container_id: UUID
    title: str
    text: str
    position: int | None
    why: Reason
    reason: str


class SearchAnswer(msgspec.Struct, kw_only=True):
    """What was found, best first. `notes` tells what the search had to do without.

    `near_misses` are null where they were not asked for.
    """

    items: list[FoundMemory]
    notes: list[str]
    near_misses: list[MissedMemory] | None = None


class SearchService:
    """Searches everything of a user's, or what a chat would look in."""

    def __init__(
        self,
        database: Database,
        search: MemorySearch,
        sources: Sequence[Source],
        rows: RowReader,
        pool: CpuPool,
        clock: StoryClock,
    ) -> None:
        self._rows = rows
        self._pool = pool
        self._clock = clock
        self._database = database
        self._search = search
        self._sources = {source.kind: source for source in sources}

    async def search(
        self,
        identity: Identity,
        text: str,
        *,
        kinds: Sequence[Kind],
        chat_id: UUID | None,
        limit: int,
        viewpoint: Viewpoint = GM,
        min_relevance: float = 0,
        with_near_misses: bool = False,
    ) -> SearchAnswer:
        """Look for a text. Raises `ChatNotFoundError`, `ValidationError`."""
        async with self._database.read() as session:
            if chat_id is None:
                parts = await self._everywhere(session, identity, kinds)
                names: list[str] = []
            else:
                parts, names = await _find_chat_scope(session, identity, chat_id, kinds)
            await _check_viewpoint(session, identity, viewpoint, chat_id)
            if "message" in kinds and await has_questions(session, owner_id=identity.user_id):
                kinds = [*kinds, "question"]
        request = SearchRequest(
            text=text,
            names=names,
            parts=parts,
            kinds=kinds,
            limit=limit,
            min_relevance=min_relevance,
            now=now(),
            viewpoint=viewpoint,
        )
        result = await self._search.find(identity.sealer, request)
        days: dict[UUID, str] = {}

        async def date(session: AsyncSession, memories: Sequence[Memory]) -> None:
            recalled = [each.recalled for each in memories]
            days.update(await self._clock.find_days(session, identity.sealer, recalled))

        memories = await self._search.recall(self._database, identity.sealer, result, then=date)
        size = sum(len(memory.recalled.text) for memory in memories)
        items = await self._pool.run(
            identity.user_id, partial(_view_found, text, memories, days), size=size
        )
        answer = SearchAnswer(items=items, notes=list(result.notes))
        if with_near_misses:
            answer.near_misses = await self._near_misses(identity, result, memories)
        return answer

    async def _near_misses(
        self, identity: Identity, result: SearchResult, memories: Sequence[Memory]
    ) -> list[MissedMemory]:
        """What came close. To a viewpoint only what it may know: what is read for it."""
        viewpoint = result.request.viewpoint if result.request else GM
        missed = near_misses(result, memories)
        kinds: dict[UUID, Kind] = {each.payload.source_id: each.payload.kind for each in missed}
        texts = await self._rows.texts(identity.sealer, kinds, viewpoint=viewpoint)
        return [
            _view_missed(each, texts.get(each.payload.source_id))
            for each in missed
            if each.payload.source_id in texts
            or (each.reason.kind == "not_current" and viewpoint == GM)
        ]

    async def _everywhere(
        self, session: AsyncSession, identity: Identity, kinds: Sequence[Kind]
    ) -> list[ScopePart]:
        found: list[UUID] = []
        for kind in kinds:
            source = self._sources[kind]
            found += await source.containers(session, owner_id=identity.user_id)
        return [ScopePart(containers=found)] if found else []


class SearchController(Controller):
    """Searching memory."""

    path = "/search"
    tags = ("Memory",)

    @get(opt={RAISES: (ChatNotFoundError,)}, summary="Search campaigns, events, lore and messages")
    async def search(  # noqa: PLR0913, PLR0917  # each is a query parameter
        self,
        identity: NamedDependency[Identity],
        search_service: NamedDependency[SearchService],
        q: Annotated[str, QueryParameter(min_length=1, max_length=2000)],
        sources: Annotated[str, QueryParameter(max_length=100)] = "",
        chat_id: FromQuery[UUID | None] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=MAX_RESULTS)] = 20,
        viewpoint: FromQuery[ViewpointText] = GM,
        min_relevance: Annotated[float, QueryParameter(ge=0, le=1)] = 0,
        near_misses: FromQuery[bool] = False,  # noqa: FBT002  # a query parameter
    ) -> SearchAnswer:
        """Find entities, facts, threads, events, lorebook entries and messages, best first.

        It is the search that fills prompts, by words and by meaning, without its threshold: that is
        `min_relevance`, from 0 (all that was found) to 1. With `near_misses` it tells as well what
        came close and stayed out, at most ten, and why: what is not near enough, says the same as
        something found, is beyond `limit`, or does not count at this moment.
        `sources` names what to look for, with commas between (`campaign`, `event`, `lore`,
        `message`; all of them without it); `chat_id` keeps to that chat's messages, its lorebooks,
        its chronicle and its campaign. Messages count that are on a chat's active path and not
        hidden; what comes from messages counts while those are on it, and a fact while no other
        supersedes it. `viewpoint` finds only what `public`, or an entity of a campaign, may know.
        """
        if not q.strip():
            raise ValidationError("q holds nothing but blanks.")
        return await search_service.search(
            identity,
            q,
            kinds=_read_kinds(sources),
            chat_id=chat_id,
            limit=limit,
            viewpoint=read_viewpoint(viewpoint),
            min_relevance=min_relevance,
            with_near_misses=near_misses,
        )


async def _check_viewpoint(
    session: AsyncSession, identity: Identity, viewpoint: Viewpoint, chat_id: UUID | None
) -> None:
    """Raises `ValidationError`."""
    campaigns = None
    if chat_id is not None:
        chat = await chats.get_chat(session, chat_id, owner_id=identity.user_id)
        campaigns = [chat.campaign_id]
    await check_viewpoint(session, viewpoint, campaigns, owner_id=identity.user_id)


async def _find_chat_scope(
    session: AsyncSession, identity: Identity, chat_id: UUID, kinds: Sequence[Kind]
) -> tuple[list[ScopePart], list[str]]:
    """Where a chat's turns look, and who takes part in it."""
    owner_id = identity.user_id
    chat = await chats.get_chat(session, chat_id, owner_id=owner_id)
    member_ids = (await chats.character_ids(session, [chat.id])).get(chat.id, [])
    persona_id = chat.persona_id or identity.settings.persona_id
    names = await characters.find_names(
        session, member_ids, owner_id=owner_id, sealer=identity.sealer
    )
    parts: list[ScopePart] = []
    if "event" in kinds and chat.chronicle_id is not None:
        parts.append(ScopePart(containers=[chat.chronicle_id]))
    if "campaign" in kinds and chat.campaign_id is not None:
        parts.append(ScopePart(containers=[chat.campaign_id]))
    if "message" in kinds:
        parts.append(ScopePart(containers=[chat.id]))
    if "lore" in kinds:
        books = await books_for_chat(
            session,
            owner_id=owner_id,
            chat_id=chat.id,
            character_ids=member_ids,
            persona_id=persona_id,
        )
        if books:
            parts.append(ScopePart(containers=[book.id for book in books]))
    return parts, list(names.values())


def _read_kinds(sources: str) -> list[Kind]:
    """The kinds that a list names. Raises `ValidationError` for one that is none."""
    named = [part.strip() for part in sources.split(",") if part.strip()]
    if unknown := sorted(set(named) - set(SOURCE_NAMES)):
        raise ValidationError(
            f"There is no source {', '.join(unknown)}; there are {', '.join(SOURCE_NAMES)}."
        )
    return [name for name in SOURCE_NAMES if not named or name in named]


def _view_missed(missed: NearMiss, recalled: Recalled | None) -> MissedMemory:
    payload, reason = missed
    return MissedMemory(
        kind=payload.kind,
        source_id=payload.source_id,
        container_id=payload.container_id,
        title=recalled.title if recalled else "",
        text=recalled.text if recalled else "",
        position=payload.position if payload.kind == "message" else None,
        why=reason,
        reason=told([reason]),
    )


def _view_found(
    asked: str, memories: Sequence[Memory], days: Mapping[UUID, str]
) -> list[FoundMemory]:
    """What was found, with the words that it shares with what was asked. CPU-bound."""
    words = SharedWords(asked)
    return [_view_memory(memory, words, days) for memory in memories]


def _view_memory(memory: Memory, words: SharedWords, days: Mapping[UUID, str]) -> FoundMemory:
    recalled = memory.recalled
    signals = words.told(memory.reason, recalled.text).signals
    return FoundMemory(
        kind=recalled.kind,
        source_id=recalled.source_id,
        container_id=recalled.container_id,
        title=recalled.title,
        text=recalled.text,
        said_at=recalled.said_at,
        story_time=recalled.story_time or days.get(recalled.source_id, ""),
        position=recalled.position if recalled.kind == "message" else None,
        rank=memory.rank,
        score=round(memory.score, 4),
        scores={name: round(value, 4) for name, value in memory.signals.by_name().items()},
        signals=signals,
        reason=told_matches(signals),
    )
