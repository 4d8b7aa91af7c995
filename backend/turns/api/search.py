"""The memory search of turns for users: `GET /search`."""

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
from backend.campaigns.state.viewpoints import (
    find_viewer_name,
    resolve_any_viewpoint,
    resolve_viewpoint,
)
from backend.characters import repository as characters
from backend.chats import repository as chats
from backend.chats.errors import ChatNotFoundError
from backend.chats.models import Chat
from backend.core.audience import GM, Viewpoint, ViewpointText, read_viewpoint
from backend.core.cpu_pool import CpuPool
from backend.core.reasons import Match, Reason, render_matches, render_reasons
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.http.schemas import RAISES
from backend.lorebooks.links import books_for_chat
from backend.memory.index.protocol import Kind, ScopePart
from backend.memory.indexing.sources import MemoryItem, Source
from backend.memory.search.request import Memory, SearchRequest, SearchResult, SharedWords
from backend.memory.search.search import MemorySearch, NearMiss, RowReader, near_misses
from backend.turns.prompt.retrieve import list_heard_parts

MAX_RESULTS = 100

SourceName = Literal["campaign", "event", "lore", "message"]
SOURCE_NAMES: tuple[SourceName, ...] = ("campaign", "event", "lore", "message")


class FoundMemory(msgspec.Struct, kw_only=True):
    """A search result. `signals` are the reasons for it, and `reason` describes them in English.

    `scores` are the scores of the index by signal, `score` is their combination. `container_id` is
    the campaign, chronicle, lorebook or chat. `position` is the position of a message in its chat.
    `story_time` is the day of a campaign's story, such as "Day 5", or the time of an event. It may
    be empty.
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
    """A near miss. `reason` describes the reason `why` in English.

    A result that does not apply at present has no `title` and no `text`.
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
    """Search results, best first. `notes` list limitations of the search.

    `near_misses` are null unless the request asks for them.
    """

    items: list[FoundMemory]
    notes: list[str]
    near_misses: list[MissedMemory] | None = None


class SearchService:
    """Searches all data of a user, or the data that a chat uses."""

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
        """Search for a text. Raises `ChatNotFoundError`, `ValidationError`."""
        async with self._database.read() as session:
            if chat_id is None:
                viewpoint = await resolve_any_viewpoint(session, identity, viewpoint)
                parts = await self._everywhere(session, identity, kinds)
                names: list[str] = []
            else:
                chat = await chats.get_chat(session, chat_id, owner_id=identity.user_id)
                viewpoint = await resolve_viewpoint(session, identity, chat, viewpoint)
                parts, names = await _find_chat_scope(session, identity, chat, kinds, viewpoint)
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
        viewpoint = result.request.viewpoint if result.request else GM
        missed = near_misses(result, memories)
        kinds: dict[UUID, Kind] = {each.payload.source_id: each.payload.kind for each in missed}
        texts = await self._rows.texts(identity.sealer, kinds, viewpoint=viewpoint)
        if viewpoint != GM:
            missed = await self._mark_unknown(identity, missed, viewpoint, texts)
        return [
            _view_missed(each, texts.get(each.payload.source_id))
            for each in missed
            if each.payload.source_id in texts
            or each.reason.kind == "unknown"
            or (each.reason.kind == "not_current" and viewpoint == GM)
        ]

    async def _mark_unknown(
        self,
        identity: Identity,
        missed: Sequence[NearMiss],
        viewpoint: Viewpoint,
        texts: Mapping[UUID, MemoryItem],
    ) -> list[NearMiss]:
        """Set the reason of near misses that apply, but that the viewpoint does not know."""
        unread: dict[UUID, Kind] = {
            each.payload.source_id: each.payload.kind
            for each in missed
            if each.payload.source_id not in texts
        }
        unknown = await self._rows.texts(identity.sealer, unread)
        async with self._database.read() as session:
            name = await find_viewer_name(session, identity.sealer, viewpoint)
        reason = Reason("unknown", name=name)
        return [
            each._replace(reason=reason) if each.payload.source_id in unknown else each
            for each in missed
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
    """Memory search."""

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

        The same search fills prompts, by words and by meaning, but with a threshold. Here the
        threshold is `min_relevance`, from 0 (all results) to 1. `near_misses` adds at most ten
        results that were left out, with the reason: not relevant enough, a duplicate, beyond
        `limit`, or not applicable at present.

        `sources` is a comma-separated list of `campaign`, `event`, `lore` and `message`. The
        default is all of them. `chat_id` limits the search to the messages, lorebooks, chronicle
        and campaign of a chat. Messages have to be on the active path and not hidden. Items that
        were made from messages have to be on the active path as well, and facts must not be
        superseded. `viewpoint` limits the search to the knowledge of `public`, of a character, or
        of an entity of a campaign. What it does not know is among the near misses without a text.
        """
        if not q.strip():
            raise ValidationError("q is blank.")
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


async def _find_chat_scope(
    session: AsyncSession,
    identity: Identity,
    chat: Chat,
    kinds: Sequence[Kind],
    viewpoint: Viewpoint,
) -> tuple[list[ScopePart], list[str]]:
    """Return the scopes that the chat's turns search, and the names of its characters."""
    owner_id = identity.user_id
    member_ids = (await chats.list_character_ids(session, [chat.id])).get(chat.id, [])
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
        parts += list_heard_parts(viewpoint, chat.id)
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
    """Return the kinds of a list of sources. Raises `ValidationError` for an unknown source."""
    named = [part.strip() for part in sources.split(",") if part.strip()]
    if unknown := sorted(set(named) - set(SOURCE_NAMES)):
        raise ValidationError(
            f"Unknown source {', '.join(unknown)}. Available: {', '.join(SOURCE_NAMES)}."
        )
    return [name for name in SOURCE_NAMES if not named or name in named]


def _view_missed(missed: NearMiss, recalled: MemoryItem | None) -> MissedMemory:
    payload, reason = missed
    return MissedMemory(
        kind=payload.kind,
        source_id=payload.source_id,
        container_id=payload.container_id,
        title=recalled.title if recalled else "",
        text=recalled.text if recalled else "",
        position=payload.position if payload.kind == "message" else None,
        why=reason,
        reason=render_reasons([reason]),
    )


def _view_found(
    asked: str, memories: Sequence[Memory], days: Mapping[UUID, str]
) -> list[FoundMemory]:
    """Return views of the results, with the words that they share with the query. CPU-bound."""
    words = SharedWords(asked)
    return [_view_memory(memory, words, days) for memory in memories]


def _view_memory(memory: Memory, words: SharedWords, days: Mapping[UUID, str]) -> FoundMemory:
    recalled = memory.recalled
    signals = words.add_words(memory.reason, recalled.text).signals
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
        scores={name: round(value, 4) for name, value in memory.signals.to_dict().items()},
        signals=signals,
        reason=render_matches(signals),
    )
