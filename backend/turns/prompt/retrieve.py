"""The memory search of a turn, and the prompt items of its results."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import msgspec
from msgspec import structs

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.settings import MemorySettings, SourceWeights, find_first_set
from backend.chats.members import END
from backend.chronicles.events import render_event
from backend.chronicles.repository import StoryEvent
from backend.context.assembly import LeftOut, PromptItem
from backend.core.audience import (
    NAMELESS_MARKS,
    PUBLIC,
    AudienceMarks,
    Ranges,
    Viewpoint,
    Witness,
    list_viewers,
)
from backend.core.logs import get_logger
from backend.core.reasons import Reason
from backend.database.base import now
from backend.database.engine import Database
from backend.enrichment.cleaning import strip_tags
from backend.enrichment.reader import (
    choose_model,
    limit_output,
    open_budget,
    safe_sampling,
)
from backend.enrichment.runs.store import build_run, record_success
from backend.errors import AppError
from backend.generation.model import (
    Prompt,
    PromptMessage,
)
from backend.generation.tokens import MESSAGE_OVERHEAD
from backend.generation.tools.calls import simplify_schema
from backend.jobs.errors import RetryLaterError
from backend.llm.answers import RunBudget, ask
from backend.llm.server_slots import ModelSlots
from backend.llm.slot_rules import Rank, SlotWork
from backend.lorebooks.activation.outcome import SemanticHit
from backend.memory.index.protocol import Kind, ScopePart
from backend.memory.indexing.sources import MemoryItem
from backend.memory.search.evidence import find_summarised
from backend.memory.search.request import Memory, SearchRequest, SearchResult
from backend.memory.search.search import MemorySearch
from backend.prompts import PromptLibrary
from backend.settings import Settings
from backend.turns.prompt.context import LoadedChat, PromptWindow, RetrievedPrompt
from backend.turns.prompt.history import SUMMARY_KIND
from backend.turns.prompt.remembered import RememberedChats

MAX_ITEMS = 40
"""Default maximum of memories in a prompt."""

ROOM_TOKENS = 4_000
"""By default, messages that match by meaning alone are added up to this many tokens of memories.

This applies if no setting limits relevance or number."""

MAX_SHORT_ITEMS = 100
"""Default maximum of memories in a prompt if they are so short that they leave room."""

MAX_CONSEQUENCES = 10
"""Maximum number of campaign items that are added because recalled messages changed them."""

EXCHANGE_LINES = 2
"""Last messages that the search uses, in addition to the user's line."""

_SECTION_TAG = re.compile(
    r"<(?=\s*+(?:/\s*+)?(?:long_term_memory|lorebook_entries)\b)", re.IGNORECASE
)

_UNDATED = datetime.min.replace(tzinfo=UTC)

_TITLE_CHARACTERS = 60
"""Characters of the title that an event gets in the context record."""

_Time = tuple[datetime, int, UUID]
"""The order of memories: time, position in the chat, and id.

A line and its reply may have the same time."""

log = get_logger(__name__)

TIMEOUT_SECONDS = 2.5
"""Time limit for the model that rephrases the search."""

MAX_READ_CHARACTERS, MAX_WRITTEN_CHARACTERS = 4_000, 400
"""Maximum characters of the line and of the messages before it, and of the answer."""


def make_request(
    identity: Identity, loaded: LoadedChat, *, before: int | None, budget: int
) -> SearchRequest | None:
    """Return the search request of a turn. None if there is nothing to search or to search for.

    Only messages of the chat before position `before` are searched. Memories may take `budget`
    tokens.
    """
    chain: Sequence[MemorySettings] = (loaded.settings.memory, identity.settings.memory)
    limit = find_first_set(chain, "max_items", MAX_ITEMS)
    is_enabled = loaded.adds_memory and find_first_set(chain, "enabled", default=True)
    if not is_enabled or limit == 0:
        return None
    min_relevance: float | None = find_first_set(chain, "min_relevance", None)
    weights: SourceWeights = find_first_set(chain, "weights", SourceWeights())
    parts: list[ScopePart] = []
    kinds: list[Kind] = []
    by_keys = {"keys", None} if loaded.lore.settings.mode == "keys" else {"keys"}
    books = [book.book_id for book in loaded.lore.books if book.modes - by_keys]
    if books and weights.lore:
        parts.append(ScopePart(containers=books, kinds=("lore",)))
        kinds.append("lore")
    chronicles = [loaded.chat.chronicle_id] if loaded.chat.chronicle_id is not None else []
    if loaded.remembered is not None:
        chronicles += loaded.remembered.chronicle_ids
    if chronicles and weights.event:
        parts.append(ScopePart(containers=chronicles, kinds=("event",)))
        kinds.append("event")
    if loaded.chat.campaign_id is not None and weights.campaign:
        parts.append(ScopePart(containers=[loaded.chat.campaign_id], kinds=("campaign",)))
        kinds.append("campaign")
    if before and weights.message:
        parts += list_heard_parts(loaded.viewpoint, loaded.chat.id, before=before)
        kinds.append("message")
    recent = [each.text for each in loaded.recent[-EXCHANGE_LINES:]]
    text = _find_question(loaded)
    if not loaded.said and recent:
        recent.pop()
    if not parts or not text.strip():
        return None
    return SearchRequest(
        text=text,
        context="\n".join(recent),
        names=[loaded.cast.speaker.name, *loaded.cast.others, loaded.cast.user_name],
        parts=parts,
        kinds=kinds,
        weights={kind: getattr(weights, kind) for kind in kinds},
        limit=limit,
        min_relevance=min_relevance,
        room=min(ROOM_TOKENS, budget) if min_relevance is None else 0,
        most=find_first_set(chain, "max_items", MAX_SHORT_ITEMS),
        now=now(),
        activates_lore=True,
        viewpoint=loaded.viewpoint,
        limits=loaded.remembered.limits if loaded.remembered else {},
        joins_evidence=True,
        shown=[event.id for event in loaded.pinned],
    )


MAX_ABSENCES = 8
"""Absences of a character that a search excludes. More of them make it slower."""


def list_heard_parts(
    viewpoint: Viewpoint, chat_id: UUID, *, before: int | None = None
) -> list[ScopePart]:
    """Return the scope of a chat's messages before a position that a viewpoint may have heard.

    If most messages were said in a character's absence, they are excluded, because they would be
    most of the results. If there are few, it is faster to drop them when their rows are read.
    """
    whole = ScopePart(containers=[chat_id], before_position=before, kinds=("message",))
    absences = viewpoint.absences.get(chat_id, ()) if isinstance(viewpoint, Witness) else ()
    if not isinstance(viewpoint, Witness) or not absences:
        return [whole]
    end = absences[-1][1] if before is None else before
    excluded = _choose_absences([each for each in absences if each[0] < end], end)
    if not excluded:
        return [whole]
    # Someone who was not there may be told in private.
    parts = [whole._replace(audience=[str(each) for each in list_viewers(viewpoint)])]
    start = 0
    for begin, after in [*excluded, (before or END, END)]:
        if start < begin:
            parts.append(whole._replace(from_position=start, before_position=begin))
        start = after
    return parts


def _choose_absences(absences: Ranges, end: int) -> Ranges:
    """Return the longest absences before a position, until few missed messages are left."""
    lengths = {each: min(each[1], end) - each[0] for each in absences}
    missed = sum(lengths.values())
    heard, chosen = end - missed, list[tuple[int, int]]()
    for each in sorted(absences, key=lambda one: -lengths[one])[:MAX_ABSENCES]:
        if 2 * missed <= heard:
            break
        missed -= lengths[each]
        chosen.append(each)
    return sorted(chosen)


def find_semantic_hits(memories: Sequence[Memory]) -> dict[UUID, SemanticHit]:
    """Return the lorebook entries among the search results, by id."""
    return {
        memory.recalled.source_id: SemanticHit(
            memory.score,
            memory.rank,
            memory.reason.signals,
            "words" if memory.reason.kind == "words" else "semantic",
        )
        for memory in memories
        if memory.recalled.kind == "lore"
    }


def collect_items(
    prompt: RetrievedPrompt,
    lore: Sequence[PromptItem],
    *,
    told: Collection[UUID],
    count: Callable[[str], int],
) -> list[PromptItem]:
    """Return the items that share the memory budget, in their order; see `sort_by_rank`.

    `told` are ids of rows that another section contains.
    """
    loaded = prompt.loaded
    memories = make_memory_items(
        prompt.memories,
        count=count,
        pinned=loaded.pinned,
        told=told,
        marks=loaded.marks,
        days=prompt.days if loaded.story.campaign else None,
        remembered=loaded.remembered,
    )
    named = make_named_items(loaded, count=count)
    followed = make_consequence_items(prompt, count=count)
    counted = [count_item(item, count) for item in lore]
    return sort_by_rank([*named, *followed, *memories], counted, prompt.memories)


def make_memory_items(
    memories: Sequence[Memory],
    *,
    count: Callable[[str], int],
    pinned: Sequence[StoryEvent] = (),
    told: Collection[UUID] = (),
    marks: AudienceMarks = NAMELESS_MARKS,
    days: Mapping[UUID, str] | None = None,
    remembered: RememberedChats | None = None,
) -> list[PromptItem]:
    """Return the prompt items of pinned events, then of search results by rank, without lore.

    `told` are ids of rows that another section contains. `marks` describe limited audiences. `days`
    are days of a campaign's story; without them, memories carry their real date. Memories from
    `remembered` chats name the chat.
    """
    items: list[PromptItem] = []
    times: list[_Time] = []
    found = {memory.recalled.source_id: memory.reason for memory in memories}
    for event in pinned:
        reasons = [Reason("pinned"), *([found[event.id]] if event.id in found else [])]
        items.append(count_item(_make_pinned_item(event, reasons, marks, days), count))
        times.append((event.happened_at, event.place, event.id))
    elsewhere = {*told, *(event.id for event in pinned)}
    for memory in memories:
        source = memory.recalled
        if source.kind != "lore" and source.source_id not in elsewhere:
            item = _make_item(source, memory.reason, memory.rank, marks, days)
            if remembered is not None and (title := remembered.find_title(source)):
                item = _name_chat(item, title)
            items.append(count_item(item, count))
            times.append((source.said_at or _UNDATED, source.position, source.source_id))
    order = {time: number for number, time in enumerate(sorted(times))}
    return [
        structs.replace(item, order=order[time]) for item, time in zip(items, times, strict=True)
    ]


def make_named_items(loaded: LoadedChat, *, count: Callable[[str], int]) -> list[PromptItem]:
    """Return the campaign's items about entities that the last messages name."""
    if loaded.story.campaign is None:
        return []
    return [
        count_item(
            PromptItem(
                kind="entity",
                title=each.entity.name,
                text=loaded.marks.mark(each.text, each.entity.audience),
                place="memory",
                reasons=[Reason("named", name=each.entity.name)],
                source_id=each.id,
            ),
            count,
        )
        for each in loaded.story.campaign.named
    ]


def make_consequence_items(
    prompt: RetrievedPrompt, *, count: Callable[[str], int]
) -> list[PromptItem]:
    """Return the consequences of recalled messages, each before its message."""
    campaign = prompt.loaded.story.campaign
    known = {row.source_id for memory in prompt.memories for row in memory.rows}
    known |= campaign.told if campaign else frozenset()
    items: list[PromptItem] = []
    for memory, row in ((each, row) for each in prompt.memories for row in each.rows):
        for became in prompt.consequences.get(row.source_id, ()):
            if became.source_id not in known and len(items) < MAX_CONSEQUENCES:
                known.add(became.source_id)
                reason = Reason("followed", count=row.position + 1)
                item = _make_item(became, reason, memory.rank, prompt.loaded.marks, prompt.days)
                items.append(count_item(item, count))
    return items


def sort_by_rank(
    items: Sequence[PromptItem], lore: Sequence[PromptItem], memories: Sequence[Memory] = ()
) -> list[PromptItem]:
    """Sort items that share the memory budget: requested items first, then search results.

    Items about the campaign's present are short and current, so they precede messages. Its scenes
    and chapters are ranked like messages.
    """
    past = {memory.recalled.source_id for memory in memories if memory.recalled.is_past}

    def place(item: PromptItem) -> tuple[bool, int]:
        is_present = item.kind == "campaign" and item.source_id not in past
        return item.rank > 0 and not is_present, item.rank

    return sorted([*items, *lore], key=place)


def find_in_history(
    memories: Sequence[Memory], first: int | None, *, chat_id: UUID, sent: Collection[int] = ()
) -> frozenset[UUID]:
    """Return the found rows that the history already contains.

    `first` is the position of the first message in the prompt, and `sent` are those of messages
    that a client sends, which may be before it. If all messages of an event belong to this chat, it
    has the position of its first message.
    """

    def is_sent(row: MemoryItem) -> bool:
        if first is None or row.chat_id != chat_id:
            return False
        return row.position >= first or (row.kind == "message" and row.position in sent)

    return frozenset(row.source_id for each in memories for row in each.rows if is_sent(row))


def split_by_history(
    items: Sequence[PromptItem], in_history: Collection[UUID]
) -> tuple[list[PromptItem], list[LeftOut]]:
    """Split items into those outside the history, and those that it already contains."""
    kept: list[PromptItem] = []
    left_out: list[LeftOut] = []
    for item in items:
        if item.rank and item.source_id in in_history:
            left_out.append(item.left_out(Reason("in_history")))
        else:
            kept.append(item)
    return kept, left_out


def _find_question(loaded: LoadedChat) -> str:
    """Return the text that memories are searched for: the user's line, or else the last message."""
    return loaded.said or next((each.text for each in loaded.recent[-1:]), "")


def split_by_summary(
    items: Sequence[PromptItem], prompt: RetrievedPrompt, sections: Sequence[PromptItem]
) -> tuple[list[PromptItem], list[LeftOut]]:
    """Split items into those that a summary among the `sections` does not cover, and the others."""
    loaded, summary = prompt.loaded, prompt.loaded.summary
    shown = next((item for item in sections if item.kind == SUMMARY_KIND), None)
    if shown is None or summary is None:
        return list(items), []
    ranked = {item.source_id for item in items if item.rank}
    texts: dict[str, list[str]] = {}
    for part in summary.parts:
        audience = part.audience if summary.audience == PUBLIC else summary.audience
        texts.setdefault(audience, []).append(part.text)
    told: set[UUID] = set()
    for audience, parts in texts.items():
        places = [
            memory.rows
            for memory in prompt.memories
            if memory.recalled.source_id in ranked
            and all(
                row.chat_id == loaded.chat.id
                and row.last_position <= summary.position
                and row.audience == audience
                for row in memory.rows
            )
        ]
        told |= find_summarised(places, "\n".join(parts), _find_question(loaded))
    reason = Reason("same_evidence", winner=shown.title, because="in_prompt")
    kept = [item for item in items if item.source_id not in told]
    return kept, [item.left_out(reason) for item in items if item.source_id in told]


def list_repetitions(
    prompt: RetrievedPrompt, in_history: Collection[UUID], *, count: Callable[[str], int]
) -> list[LeftOut]:
    """Return the search results that say the same as a preferred one, which has their place.

    Those in the history are in the prompt, so they are not left out.
    """
    loaded = prompt.loaded
    shown = {event.id for event in loaded.pinned}.union(in_history)
    days = prompt.days if loaded.story.campaign else None
    left_out: list[LeftOut] = []
    for memory in prompt.memories:
        winner = memory.recalled
        for row, _, because in memory.repeated:
            if row.source_id not in shown:
                reason = Reason(
                    "same_evidence",
                    winner=_make_title(winner),
                    source_id=winner.source_id,
                    because=because,
                )
                item = _make_item(row, reason, memory.rank, loaded.marks, days)
                left_out.append(count_item(item, count).left_out(reason))
    return left_out


def list_near_misses(
    prompt: RetrievedPrompt, first: int | None, known: Collection[UUID | None]
) -> list[LeftOut]:
    """Return the search results that the prompt does not contain.

    `known` are rows in the prompt, and `first` is the position of its first message.
    """
    chat_id = prompt.loaded.chat.id
    return [
        LeftOut(
            kind="memory" if found.kind == "message" else found.kind,
            title=f"message {found.position + 1}" if found.kind == "message" else "",
            tokens=0,
            reasons=[reason],
            source_id=found.source_id,
        )
        for found, reason in prompt.near_misses
        if found.source_id not in known
        and (first is None or found.container_id != chat_id or found.position < first)
    ]


def group_memory_texts(items: Sequence[PromptItem]) -> dict[str, list[str]]:
    """Return the inputs of the memory section's prompt file: memories by time, lore by order.

    Tags of the section are disabled in the texts, because a message may contain them.
    """
    ordered = sorted(items, key=lambda item: item.order)
    texts = [(item.kind, _SECTION_TAG.sub("\u2039", item.text)) for item in ordered]
    return {
        "memories": [text for kind, text in texts if kind != "lore"],
        "lore": [text for kind, text in texts if kind == "lore"],
    }


def count_item(item: PromptItem, count: Callable[[str], int]) -> PromptItem:
    """Add the tokens of an item in the memory section."""
    return structs.replace(item, tokens=(item.tokens or count(item.text)) + MESSAGE_OVERHEAD)


def _make_item(
    source: MemoryItem,
    reason: Reason,
    rank: int,
    marks: AudienceMarks,
    days: Mapping[UUID, str] | None,
) -> PromptItem:
    return PromptItem(
        kind="memory" if source.kind == "message" else source.kind,
        title=_make_title(source),
        text=_add_date(
            marks.mark(source.line, source.audience), source.source_id, source.said_at, days
        ),
        place="memory",
        reasons=[reason],
        source_id=source.source_id,
        rank=rank,
    )


def _make_title(source: MemoryItem) -> str:
    is_message = source.kind == "message"
    return f"message {source.position + 1}" if is_message else _shorten(source.text)


def _name_chat(item: PromptItem, title: str) -> PromptItem:
    """Return the item of a memory from another chat, with the chat's title."""
    name = " ".join(title.split())
    return structs.replace(
        item,
        text=f"(from the chat '{name}') {item.text}",
        reasons=[*item.reasons, Reason("other_chat", name=name)],
    )


def _make_pinned_item(
    event: StoryEvent,
    reasons: Sequence[Reason],
    marks: AudienceMarks,
    days: Mapping[UUID, str] | None,
) -> PromptItem:
    text = render_event(event.fields)
    return PromptItem(
        kind="event",
        title=_shorten(text),
        text=_add_date(marks.mark(text, event.audience), event.id, event.happened_at, days),
        place="memory",
        reasons=reasons,
        source_id=event.id,
    )


def _shorten(text: str) -> str:
    words = " ".join(text[: 2 * _TITLE_CHARACTERS].split())
    if len(words) <= _TITLE_CHARACTERS and len(text) <= 2 * _TITLE_CHARACTERS:
        return words
    return words[: _TITLE_CHARACTERS - 3].rpartition(" ")[0] + "..."


def _add_date(
    text: str, source_id: UUID, said_at: datetime | None, days: Mapping[UUID, str] | None
) -> str:
    if days is None:
        date = f"{said_at.day} {said_at:%B %Y}" if said_at else ""
    else:
        date = days.get(source_id, "")
    return f"[{date}] {text}" if date else text


class _RephrasingAnswer(msgspec.Struct, kw_only=True):
    words: str


REPHRASING_SCHEMA = simplify_schema(_RephrasingAnswer)


class Rephraser:
    """Repeats a memory search with words of a model, if the user wants that (`memory.rephrase`).

    The task model gets little time. If it fails, the first search remains and a note says so. Its
    tokens count towards the daily limit of background work, and each use is stored as a run.
    """

    def __init__(
        self,
        database: Database,
        search: MemorySearch,
        settings: Settings,
        prompts: PromptLibrary,
        slots: ModelSlots,
    ) -> None:
        self._slots = slots
        self._database = database
        self._search = search
        self._settings = settings
        self._prompts = prompts

    async def search_again(
        self,
        identity: Identity,
        loaded: LoadedChat,
        window: PromptWindow,
        found: SearchResult,
        rank: Rank,
    ) -> SearchResult:
        """Return the results with the model's words, or the first results if there are none.

        `rank` is the rank of the prompt's own request, because this request is a part of it. Notes
        contain the words, or the reason why there are none.
        """
        chain = (loaded.settings.memory, identity.settings.memory)
        request = found.request
        if request is None or not find_first_set(chain, "rephrase", default=False):
            return found
        own, account = loaded.settings, identity.settings
        chosen = choose_model(window.models, self._settings, "triage", own, account, window.spec.id)
        try:
            async with self._database.read() as session:
                budget = await open_budget(session, self._settings, identity.user_id)
        except RetryLaterError:
            note = "query not rephrased: today's token limit is used up"
            return replace(found, notes=[*found.notes, note])
        words, problem, began = "", None, time.monotonic()
        work = SlotWork(
            use="turn" if rank == Rank.TURN else "suggestions",
            rank=rank,
            user_id=identity.user_id,
            chat_id=loaded.chat.id,
        )
        limit = window.models.find_limit(chosen)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS), self._slots.hold([limit], work):
                words = await self._rephrase(chosen, budget, loaded, window, request.text)
        except (AppError, TimeoutError) as error:
            problem = error.slug if isinstance(error, AppError) else "too-slow"
            log.info("memory.not_rephrased", problem=problem)
        if budget.calls:
            position = loaded.target.leaf.position if loaded.target.leaf else 0
            run = build_run(
                loaded.chat,
                "rephrasing",
                model=chosen,
                positions=(position, position),
                budget=budget,
                seconds=time.monotonic() - began,
                error=problem,
            )
            async with self._database.write() as session:
                await record_success(session, run)
        if problem:
            note = "query not rephrased: the task model returned no answer"
            return replace(found, notes=[*found.notes, note])
        if not words:
            return found
        text = f"{request.text}\n{words}"
        again = await self._search.find(identity.sealer, replace(request, text=text))
        return replace(again, notes=[*again.notes, f"also searched for: {words}"])

    async def _rephrase(
        self,
        chosen: str,
        budget: RunBudget,
        loaded: LoadedChat,
        window: PromptWindow,
        line: str,
    ) -> str:
        """Return other words for a line, none from the demo model. Raises `AppError`."""
        model = window.models.get(chosen)
        if model.spec.provider == "demo":
            return ""
        recent = "\n".join(f"{each.author}: {each.text}" for each in loaded.recent[-2:])
        asked = self._prompts["assist/rephrase"].render(
            line=strip_tags(line[:MAX_READ_CHARACTERS]),
            recent=strip_tags(recent[-MAX_READ_CHARACTERS:]),
        )
        sampling = limit_output(safe_sampling(model.spec, window.sampling.safety), model.spec)
        prompt = Prompt([PromptMessage("user", asked)])
        try:
            value = await ask(model, prompt, REPHRASING_SCHEMA, sampling=sampling, budget=budget)
        except asyncio.CancelledError:
            budget.count_call(None, prompt)  # the model has read the prompt
            raise
        try:
            words = msgspec.convert(value, _RephrasingAnswer).words
        except msgspec.ValidationError:
            return ""
        return " ".join(words[:MAX_WRITTEN_CHARACTERS].split())
