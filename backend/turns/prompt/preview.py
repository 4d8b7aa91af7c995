"""Context views: the prompt of the next turn, and the prompts of stored replies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from textwrap import shorten
from typing import NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.campaigns.state.viewpoints import resolve_viewpoint
from backend.chats import repository as chats
from backend.chats.models import MESSAGE_AUTHOR, MESSAGE_CONTENT, MESSAGE_THINKING, Chat, Message
from backend.chats.token_counting import format_line
from backend.chronicles.events import MAX_PINNED
from backend.chronicles.repository import current_events
from backend.context.assembly import History, LeftOut
from backend.context.budget import ContextOverflowError
from backend.context.record import (
    ContextRecord,
    RecordedHistory,
    RecordedItem,
    RecordError,
    rebuild,
    restore_texts,
)
from backend.core.audience import GM, PUBLIC, Viewpoint, Witness, put_mark, read_viewpoint
from backend.core.cpu_pool import SEALED_FACTOR, CpuPool
from backend.core.reasons import Reason, render_reasons
from backend.database.base import now
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.generation.model import PromptMessage
from backend.memory.index.protocol import Kind
from backend.memory.indexing.sources import MemoryItem
from backend.memory.search.request import SharedWords
from backend.memory.search.search import RowReader
from backend.prompts import PromptLibrary
from backend.turns import repository
from backend.turns.api.schemas import (
    ContextRequest,
    ContextView,
    HistoryView,
    PromptDifference,
    PromptLayers,
    ShownMessage,
    TurnRequest,
    TurnUsage,
)
from backend.turns.errors import ContextNotFoundError
from backend.turns.models import CONTEXT_RECORD, CONTEXT_TEXT
from backend.turns.prompt.assemble import render_memory, render_omitted
from backend.turns.prompt.builder import PromptBuilder
from backend.turns.prompt.built_prompt import make_record
from backend.turns.prompt.history import SUMMARY_KIND, prefix_thoughts
from backend.turns.prompt.images import name_images
from backend.vault.sealing import Sealer

REPEATED_KINDS = frozenset({"lore", "event", "memory", "campaign", "entity", "public_part"})
"""Kinds that a prompt may contain several times."""

COLD_KINDS = frozenset({"chapters", "summary", "scenes"})
"""Kinds of sections about past events."""

_SHARED_FIELDS = {*ContextView.__struct_fields__} & {*ContextRecord.__struct_fields__} - {"history"}

_ROW_KINDS: dict[str, Kind] = {
    "memory": "message",
    "lore": "lore",
    "event": "event",
    "campaign": "campaign",
}
"""Kinds of rows by kinds of items."""

MAX_LOOK_BACK = 1000
"""The earlier reply is searched among so many messages."""


def view_context(record: ContextRecord) -> ContextView:
    """Return the view of a record, without the prompt and with its reasons in words."""
    history = record.history
    for item in (*record.items, *record.retrieved):
        item.reason = render_reasons(item.reasons)
    for left_out in (*record.left_out, *record.near_misses):
        left_out.reason = render_reasons(left_out.reasons)
    if record.speaker is not None:
        record.speaker.reason = render_reasons(record.speaker.reasons)
    shared = {name: getattr(record, name) for name in _SHARED_FIELDS}
    return ContextView(
        **shared,
        history=(
            HistoryView(
                first=history.first,
                last=history.last,
                count=history.count,
                tokens=history.tokens,
                hidden=history.without,
                changed=sorted(history.changed),
                images=sum(
                    (*history.images.values(), *(each.images for each in history.changed.values()))
                ),
                omitted_first=history.omitted_first,
                omitted_last=history.omitted_last,
                reason="history",
            )
            if history
            else None
        ),
        layers=_count_layers(record),
    )


def add_words(record: ContextRecord, asked: str) -> ContextRecord:
    """Add to the reasons which words of `asked` each text contains. Changes the record."""
    words = SharedWords(asked)
    for item in (*record.items, *record.retrieved):
        item.reasons = [words.add_words(reason, item.text or "") for reason in item.reasons]
    return record


def add_near_misses(
    record: ContextRecord, texts: Mapping[UUID, MemoryItem], *, is_all: bool
) -> ContextRecord:
    """Add the texts of near misses. Changes the record.

    Near misses without a text are dropped. With `is_all`, those that no longer apply stay.
    """
    kept: list[LeftOut] = []
    for each in record.near_misses:
        recalled = texts.get(each.source_id) if each.source_id else None
        if recalled is not None:
            each.text = recalled.text
            each.title = each.title or recalled.title or shorten(recalled.text, 60)
        is_past = is_all and any(one.kind == "not_current" for one in each.reasons)
        if recalled is not None or is_past:
            kept.append(each)
    record.near_misses = kept
    return record


def _count_layers(record: ContextRecord) -> PromptLayers | None:
    if not any(item.kind == "campaign" for item in record.items):
        return None
    cold = sum(item.tokens for item in record.items if item.kind in COLD_KINDS)
    head = [item for item in record.items if item.place == "head"]
    frozen = sum(item.tokens for item in head if item.kind not in COLD_KINDS)
    rest = record.totals.prompt - record.totals.retrieved - frozen - cold
    return PromptLayers(frozen=frozen, cold=cold, search=record.totals.retrieved, hot=rest)


def view_messages(messages: Sequence[PromptMessage]) -> list[ShownMessage]:
    return [ShownMessage(role=message.role, text=message.text) for message in messages]


def compare_prompts(
    earlier_id: UUID,
    before: ContextView,
    before_messages: Sequence[PromptMessage],
    after: ContextView,
    after_messages: Sequence[PromptMessage],
) -> PromptDifference:
    old = {_get_identity(item): item for item in (*before.items, *before.retrieved)}
    new = {_get_identity(item): item for item in (*after.items, *after.retrieved)}
    shared = 0
    for one, other in zip(before_messages, after_messages, strict=False):
        if (one.role, one.text) != (other.role, other.text):
            break
        shared += 1
    characters = sum(len(message.text) for message in after_messages)
    same = sum(len(message.text) for message in after_messages[:shared])
    return PromptDifference(
        previous_message_id=earlier_id,
        added=[item for key, item in new.items() if key not in old],
        removed=[item for key, item in old.items() if key not in new],
        changed=[item for key, item in new.items() if key in old and old[key].text != item.text],
        history_first=(_get_first(before), _get_first(after)),
        history_last=(_get_last(before), _get_last(after)),
        shared_prefix=shared,
        shared_tokens=round(after.totals.prompt * same / characters) if characters else 0,
    )


def _get_identity(item: RecordedItem) -> tuple[str, str]:
    """Return the key of an item. Entries and memories may share a title, so their id is used."""
    has_own_key = item.kind in REPEATED_KINDS and item.source_id
    return item.kind, str(item.source_id) if has_own_key else item.title


def _get_first(view: ContextView) -> int | None:
    return view.history.first if view.history else None


def _get_last(view: ContextView) -> int | None:
    return view.history.last if view.history else None


class _LoadedRecord(NamedTuple):
    """The record of a reply with its texts, and the sealed messages of its history."""

    message_id: UUID
    record: ContextRecord
    lines: Sequence[Message]


class ContextService:
    """Explains prompts: their items, and the reasons for them."""

    def __init__(
        self,
        database: Database,
        builder: PromptBuilder,
        prompts: PromptLibrary,
        pool: CpuPool,
        rows: RowReader,
        *,
        kept_days: int,
    ) -> None:
        self._kept_days = kept_days
        self._rows = rows
        self._prompts = prompts
        self._pool = pool
        self._database = database
        self._builder = builder

    async def preview(
        self, identity: Identity, chat_id: UUID, request: ContextRequest
    ) -> ContextView:
        """Return the context of the next turn. Asks no model and stores nothing.

        Raises the errors of `PromptBuilder.build`, and `ValidationError` if the budgets leave no
        room for a prompt.
        """
        text = request.text if request.text and request.text.strip() else None
        turn = TurnRequest(
            text=text, files=request.files, viewpoint=request.viewpoint, speaker=request.speaker
        )
        built = await self._builder.build(identity, chat_id, name_images(turn), tried=request)
        messages = built.sent_messages
        loaded = built.loaded
        record = await self._explain(
            identity, make_record(built), messages, loaded.chat, loaded.viewpoint
        )
        view = view_context(record)
        if request.prompt:
            view.prompt = view_messages(messages)
        leaf = loaded.target.leaf
        if request.diff is not None and leaf is not None:
            async with self._database.read() as session:
                earlier = await self._load_earlier(session, identity, leaf)
            if earlier is not None:
                view.difference = await self._compare(identity, earlier, view, messages)
        await self._add_containers(identity, view)
        return view

    async def has_summary(self, identity: Identity, chat_id: UUID, viewpoint: Viewpoint) -> bool:
        """Return True if the prompt of the next turn would contain the chat's summary.

        Raises the errors of `PromptBuilder.build` except for `ContextOverflowError`.
        """
        asked = viewpoint.character_id if isinstance(viewpoint, Witness) else viewpoint
        request = TurnRequest(viewpoint=str(asked))
        try:
            built = await self._builder.build(identity, chat_id, request, tried=ContextRequest())
        except ContextOverflowError:
            return False
        return any(item.kind == SUMMARY_KIND for item in built.assembled.items)

    async def read_stored(
        self, identity: Identity, message_id: UUID, *, with_difference: bool
    ) -> ContextView:
        """Return the context of a stored reply with its exact prompt.

        Raises `MessageNotFoundError`, `ContextNotFoundError`, `RecordError`.
        """
        async with self._database.read() as session:
            message = await chats.get_message(session, message_id, owner_id=identity.user_id)
            loaded = await self._load(session, identity, message)
            earlier: _LoadedRecord | None = None
            if with_difference and message.parent_id is not None:
                leaf = await session.get(Message, message.parent_id)
                earlier = await self._load_earlier(session, identity, leaf) if leaf else None
            usage = await repository.find_usage(session, message, owner_id=identity.user_id)
            chat = await chats.get_chat(session, message.chat_id, owner_id=identity.user_id)
            viewpoint = await _read_viewpoint(session, identity, chat, loaded.record)
        # The transaction has ended, because the rebuild waits for a thread.
        messages = await self._rebuild(identity, loaded)
        record = await self._explain(identity, loaded.record, messages, chat, viewpoint)
        view = view_context(record)
        view.prompt = view_messages(messages)
        if earlier is not None:
            view.difference = await self._compare(identity, earlier, view, messages)
        await self._add_containers(identity, view)
        view.usage = msgspec.json.decode(usage, type=TurnUsage) if usage else None
        return view

    async def _load(
        self, session: AsyncSession, identity: Identity, message: Message
    ) -> _LoadedRecord:
        """Load the record of a reply and the sealed messages of its history."""
        row = await repository.find_record(session, message.id, owner_id=identity.user_id)
        if row is None:
            raise ContextNotFoundError(self._explain_absence(message))
        data = identity.sealer.open_bytes(CONTEXT_RECORD, row.id, row.sealed_record)
        record = msgspec.json.decode(data, type=ContextRecord)
        digests = [bytes.fromhex(each.text_hash) for each in record.find_texts()]
        texts = {
            text.digest.hex(): identity.sealer.open(CONTEXT_TEXT, text.id, text.sealed_text)
            for text in await repository.find_texts(session, message.chat_id, digests)
        }
        restore_texts(record, texts)
        recalled = _find_source_ids([*record.items, *record.retrieved], "memory")
        if await chats.has_removed(session, recalled, owner_id=message.user_id):
            raise RecordError("A message in it was deleted.")
        lines = await _load_lines(session, message, record.history) if record.history else ()
        return _LoadedRecord(message.id, record, lines)

    def _explain_absence(self, message: Message) -> str:
        age = now() - message.created_at
        if message.role == "assistant" and self._kept_days and age.days >= self._kept_days:
            return f"It was deleted, because such records are kept for {self._kept_days} days."
        return "Only replies of a model have a context record."

    async def _load_earlier(
        self, session: AsyncSession, identity: Identity, leaf: Message
    ) -> _LoadedRecord | None:
        """Load the record of the last reply at or above `leaf`. None if it is absent or broken."""
        earlier = await repository.find_last_recorded(
            session, leaf, owner_id=identity.user_id, look_back=MAX_LOOK_BACK
        )
        if earlier is None:
            return None
        try:
            return await self._load(session, identity, earlier)
        except (ContextNotFoundError, RecordError):
            return None

    async def _rebuild(self, identity: Identity, loaded: _LoadedRecord) -> list[PromptMessage]:
        def rebuild_prompt() -> list[PromptMessage]:
            return rebuild(
                loaded.record,
                _open_lines(identity.sealer, loaded.lines, loaded.record.history),
                render_omitted=partial(render_omitted, self._prompts),
                render_memory=partial(render_memory, self._prompts),
            )

        sealed = sum(len(line.sealed_content) for line in loaded.lines)
        return await self._pool.run(identity.user_id, rebuild_prompt, size=sealed // SEALED_FACTOR)

    async def _explain(
        self,
        identity: Identity,
        record: ContextRecord,
        messages: Sequence[PromptMessage],
        chat: Chat,
        viewpoint: Viewpoint,
    ) -> ContextRecord:
        """Add matched words, the texts of near misses, and what the viewpoint does not know."""
        kinds: dict[UUID, Kind] = {
            each.source_id: _ROW_KINDS[each.kind]
            for each in record.near_misses
            if each.source_id is not None
        }
        texts = await self._rows.texts(identity.sealer, kinds, viewpoint=viewpoint)
        if viewpoint != GM and record.viewpoint is not None:
            reason = Reason("unknown", name=record.viewpoint.name)
            unread: dict[UUID, Kind] = {
                key: kind for key, kind in kinds.items() if key not in texts
            }
            unknown = await self._rows.texts(identity.sealer, unread)
            record = _mark_unknown(record, unknown, reason)
            async with self._database.read() as session:
                pinned = await _list_unknown_pinned(session, identity, chat, viewpoint)
            record.left_out += [
                LeftOut(kind="event", title="event", tokens=0, reasons=[reason], source_id=each)
                for each in pinned
            ]
        record = add_near_misses(record, texts, is_all=viewpoint == GM)
        asked = next((each.text for each in reversed(messages) if each.role == "user"), "")
        size = len(asked) + sum(len(item.text or "") for item in record.retrieved)
        worded = partial(add_words, record, asked)
        return await self._pool.run(identity.user_id, worded, size=size)

    async def _compare(
        self,
        identity: Identity,
        earlier: _LoadedRecord,
        view: ContextView,
        messages: Sequence[PromptMessage],
    ) -> PromptDifference | None:
        try:
            before = await self._rebuild(identity, earlier)
        except RecordError:
            return None
        return compare_prompts(
            earlier.message_id, view_context(earlier.record), before, view, messages
        )

    async def _add_containers(self, identity: Identity, view: ContextView) -> None:
        removed = view.difference.removed if view.difference else ()
        named = [*view.items, *view.retrieved, *view.left_out, *view.near_misses, *removed]
        async with self._database.read() as session:
            view.containers = await repository.find_containers(
                session,
                entry_ids=_find_source_ids(named, "lore"),
                event_ids=_find_source_ids(named, "event"),
                item_ids=_find_source_ids(named, "campaign"),
                owner_id=identity.user_id,
            )


def _mark_unknown(
    record: ContextRecord, unknown: Collection[UUID], reason: Reason
) -> ContextRecord:
    """Move near misses that the viewpoint does not know to the items that are left out."""
    known: list[LeftOut] = []
    for each in record.near_misses:
        if each.source_id in unknown:
            each.reasons = [reason]
            record.left_out.append(each)
        else:
            known.append(each)
    record.near_misses = known
    return record


async def _list_unknown_pinned(
    session: AsyncSession, identity: Identity, chat: Chat, viewpoint: Viewpoint
) -> list[UUID]:
    """Return the pinned events of a chat's chronicle that a viewpoint does not know."""
    if chat.chronicle_id is None:
        return []
    pinned, known = [
        await current_events(
            session,
            identity.sealer,
            chat.chronicle_id,
            limit=MAX_PINNED,
            pinned=True,
            viewpoint=each,
        )
        for each in (GM, viewpoint)
    ]
    known_ids = {each.id for each in known}
    return [each.id for each in pinned if each.id not in known_ids]


async def _read_viewpoint(
    session: AsyncSession, identity: Identity, chat: Chat, record: ContextRecord
) -> Viewpoint:
    """Return the viewpoint of a stored prompt; the public one if it does not exist any more."""
    if record.viewpoint is None:
        return GM
    try:
        viewpoint = read_viewpoint(record.viewpoint.id)
        return await resolve_viewpoint(session, identity, chat, viewpoint)
    except ValidationError:
        return PUBLIC


def _find_source_ids(named: Sequence[RecordedItem | LeftOut], kind: str) -> set[UUID]:
    return {each.source_id for each in named if each.kind == kind and each.source_id is not None}


async def _load_lines(
    session: AsyncSession, message: Message, recorded: RecordedHistory
) -> Sequence[Message]:
    if message.is_active:
        # This reads one range of an index, however long the chat is.
        path = await repository.list_active_messages(
            session,
            message.chat_id,
            owner_id=message.user_id,
            first=recorded.first,
            last=recorded.last,
        )
    else:
        path = await chats.list_path(session, message)
    present = set(range(recorded.first, recorded.last + 1)).difference(recorded.without)
    return [row for row in path if row.position in present]


def _open_lines(
    sealer: Sealer, rows: Sequence[Message], recorded: RecordedHistory | None
) -> History:
    """Unseal the messages of a recorded history as they were sent. CPU-bound."""
    if recorded is None:
        return History()
    lines = sealer.open_many(MESSAGE_CONTENT, ((row.id.bytes, row.sealed_content) for row in rows))
    if recorded.names:
        sealed = ((row.id.bytes, row.sealed_author) for row in rows)
        authors = sealer.open_many(MESSAGE_AUTHOR, sealed)
        lines = [
            format_line(author, line, names=True)
            for author, line in zip(authors, lines, strict=True)
        ]
    lines = [
        put_mark(line, recorded.marks.get(row.position, ""))
        for row, line in zip(rows, lines, strict=True)
    ]
    if recorded.cut is not None and rows and rows[-1].position == recorded.last:
        lines[-1] = lines[-1][: recorded.cut]
    for at, row in enumerate(rows):
        if row.position in recorded.thoughts and row.sealed_thinking is not None:
            thoughts = sealer.open(MESSAGE_THINKING, row.id, row.sealed_thinking)
            lines[at] = prefix_thoughts(lines[at], thoughts)
    changed = {
        position: PromptMessage(message.role, message.text or "")
        for position, message in recorded.changed.items()
    }
    return History(
        [
            changed.get(row.position) or PromptMessage(row.role, line)
            for row, line in zip(rows, lines, strict=True)
        ],
        [row.tokens for row in rows],
        [row.position for row in rows],
    )
