"""Lorebooks in a turn: which books are scanned, what of them comes in, and where it stands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.accounts.settings import LoreOverrides, first_set
from backend.chats.models import Chat, Message
from backend.context.assembly import Item, LeftOut
from backend.context.macros import MacroContext, Variables, expand
from backend.context.sections import LoreSlots, Note
from backend.database.upsert import upsert
from backend.lorebooks.activation.cache import BookCache
from backend.lorebooks.activation.compiled import CompiledBook, compile_book
from backend.lorebooks.activation.outcome import (
    Activated,
    Outcome,
    Scan,
    ScannedLine,
    SemanticHit,
    lore_budget,
)
from backend.lorebooks.activation.regex_process import RegexProcess
from backend.lorebooks.activation.scan import activate
from backend.lorebooks.activation.timed import TimedState
from backend.lorebooks.entries import LoreSettings, MatchedField, Trigger
from backend.lorebooks.models import LORE_STATE, LoreState
from backend.lorebooks.reading import BookRef, books_for_chat, load_book
from backend.vault.sealing import Sealer

DEEPEST_SCAN = 1_000
"""Messages that a scan looks back at most, whatever entries ask for."""

IN_THREAD = 500
"""Entries from which a book is compiled in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredLore:
    """A chat's books, ready to be scanned, and what earlier turns mean for them."""

    books: Sequence[CompiledBook] = ()
    settings: LoreSettings = field(default_factory=LoreSettings)
    timed: TimedState = field(default_factory=TimedState)

    @property
    def depth(self) -> int:
        """Messages that a scan of these books looks back."""
        if not self.books:
            return 0
        wanted = [self.settings.scan_depth, *(book.deepest for book in self.books)]
        wanted += [book.fields.scan_depth or 0 for book in self.books]
        if self.settings.min_activations:
            wanted.append(self.settings.min_activations_depth or DEEPEST_SCAN)
        return min(max(wanted), DEEPEST_SCAN)


class LoreReader:
    """Reads a chat's books, compiled once a revision."""

    def __init__(self) -> None:
        self._cache = BookCache(clock=time.monotonic)
        self._regexes = RegexProcess()

    async def read(
        self,
        session: AsyncSession,
        identity: Identity,
        chat: Chat,
        *,
        character_ids: Sequence[UUID],
        persona_id: UUID | None,
        leaf: Message | None,
        overrides: Sequence[LoreOverrides],
    ) -> GatheredLore:
        """What a turn of a chat scans; `overrides` are the chat's settings, then the account's."""
        refs = await books_for_chat(
            session,
            owner_id=identity.user_id,
            chat_id=chat.id,
            character_ids=character_ids,
            persona_id=persona_id,
        )
        if not refs:
            return GatheredLore()
        return GatheredLore(
            books=[await self._book(session, identity, ref) for ref in refs],
            settings=_settings(overrides),
            timed=await _timed(session, identity, chat, leaf),
        )

    def scan(self, scan: Scan) -> Outcome:
        """Find what comes in. May take some milliseconds, more with patterns that RE2 refuses."""
        return activate(replace(scan, evaluator=self._regexes))

    def forget(self, user_id: UUID) -> None:
        """Drop a user's books."""
        self._cache.forget(user_id)

    def sweep(self) -> None:
        """Drop what nobody used for a while: it is text in the clear."""
        self._cache.sweep()

    def close(self) -> None:
        """End the process that searches with patterns which can't be trusted."""
        self._regexes.close()

    async def _book(self, session: AsyncSession, identity: Identity, ref: BookRef) -> CompiledBook:
        book = self._cache.get(identity.user_id, ref.id, ref.revision)
        if book is None:
            fields, entries = await load_book(session, identity.sealer, ref.id)
            if len(entries) >= IN_THREAD:
                book = await asyncio.to_thread(compile_book, ref.id, ref.revision, fields, entries)
            else:
                book = compile_book(ref.id, ref.revision, fields, entries)
            self._cache.put(identity.user_id, book)
        return book


@dataclass(slots=True)
class LoreExpander:
    """Expands macros of entries, one after the other: what one writes, the next one reads."""

    context: MacroContext
    variables: Variables

    def __call__(self, text: str) -> str:
        """A key or a content, expanded."""
        if "{{" not in text and "<" not in text:
            return text
        expansion = expand(text, self.context, self.variables, place="lore")
        self.variables = expansion.variables
        return expansion.text


@dataclass(frozen=True, slots=True, kw_only=True)
class LoreScene:
    """What of a chat a scan looks at, beside the books."""

    lines: Sequence[ScannedLine]
    message_count: int
    reply_count: int
    seed: int
    speaker: str
    tags: Sequence[str]
    fields: Mapping[MatchedField, str]
    trigger: Trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLore:
    """Activated lore by where it stands.

    `ranked` has no place among the fixed sections: it shares the memory's budget, best first.
    `semantic_ranks` says of those that were found by meaning alone at which rank of the search.
    """

    slots: LoreSlots = field(default_factory=LoreSlots)
    ranked: Sequence[Item] = ()
    semantic_ranks: Mapping[UUID, int] = field(default_factory=dict[UUID, int])
    left_out: Sequence[LeftOut] = ()
    timed: TimedState = field(default_factory=TimedState)
    notes: Sequence[str] = ()


def scan_of(
    gathered: GatheredLore,
    scene: LoreScene,
    *,
    semantic: Mapping[UUID, SemanticHit],
    context_tokens: int,
    count: Callable[[str], int],
    expander: LoreExpander,
) -> Scan:
    """What the activation is given."""
    return Scan(
        books=gathered.books,
        messages=scene.lines,
        settings=gathered.settings,
        budget=lore_budget(gathered.settings, context_tokens),
        room=context_tokens,
        count=count,
        message_count=scene.message_count,
        reply_count=scene.reply_count,
        seed=scene.seed,
        expand=expander,
        fields=scene.fields,
        speaker=scene.speaker,
        tags=scene.tags,
        trigger=scene.trigger,
        timed=gathered.timed,
        semantic=semantic,
    )


def place(outcome: Outcome, note: Note) -> PlacedLore:
    """Give each activated entry its place in the prompt."""
    slots: dict[str, list[Item]] = {name: [] for name in _SLOTS}
    ranked: list[tuple[tuple[bool, int], Item]] = []
    semantic: dict[UUID, int] = {}
    for number, entry in enumerate(outcome.activated):
        item = _item(entry, number)
        if entry.position == "at_depth" or entry.from_start is not None:
            depth = entry.depth if entry.from_start is None else entry.from_start
            from_start = entry.from_start is not None
            slots["at_depth"].append(
                replace(item, place="depth", depth=depth, from_start=from_start)
            )
        elif entry.position in {"note_top", "note_bottom"}:
            slots[entry.position].append(
                replace(item, place="depth", depth=note.depth, role=note.role)
            )
        elif entry.position == "outlet":
            slots["outlets"].append(replace(item, title=entry.outlet, place="outlet"))
        elif entry.is_constant:
            slots[entry.position].append(replace(item, place="head"))
        else:
            by_meaning = all(reason.startswith("semantic") for reason in entry.reasons)
            if by_meaning and entry.rank is not None:
                semantic[entry.entry_id] = entry.rank
            ranked.append(((by_meaning, -entry.order), item))
    ranked.sort(key=lambda each: each[0])
    left_out = [
        LeftOut(
            kind="lore",
            title=each.title,
            tokens=each.tokens,
            reason=each.reason,
            source_id=each.entry_id,
        )
        for each in outcome.left_out
    ]
    if more := outcome.not_found + outcome.left_out_more:
        left_out.append(
            LeftOut(kind="lore", title=f"{more:,} entries", tokens=0, reason="no key was said")
        )
    return PlacedLore(
        slots=LoreSlots(**slots),
        ranked=[item for _, item in ranked],
        semantic_ranks=semantic,
        left_out=left_out,
        timed=outcome.timed,
        notes=outcome.notes,
    )


class Outlets(Mapping[str, str]):
    """What stands in outlets, by name; remembers which of them were read."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._texts: dict[str, str] = {}
        for item in items:
            before = self._texts.get(item.title)
            self._texts[item.title] = f"{before}\n{item.text}" if before else item.text
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        text = self._texts[name]
        self.read.add(name)
        return text

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


_SLOTS = (
    "before_character",
    "after_character",
    "examples_top",
    "examples_bottom",
    "note_top",
    "note_bottom",
    "at_depth",
    "outlets",
)


def _item(entry: Activated, number: int) -> Item:
    return Item(
        kind="lore",
        title=entry.title,
        text=entry.content,
        place="memory",
        reason="; ".join(entry.reasons),
        role=entry.role,
        source_id=entry.entry_id,
        order=number,
    )


def _settings(chain: Sequence[LoreOverrides]) -> LoreSettings:
    """How books are scanned: the chat's word, else the account's, else the default."""
    default = LoreSettings()
    return LoreSettings(
        **{
            name: first_set(chain, name, getattr(default, name))
            for name in LoreOverrides.__struct_fields__
        }
    )


async def _timed(
    session: AsyncSession, identity: Identity, chat: Chat, leaf: Message | None
) -> TimedState:
    """The state behind the nearest message of the path that changed it."""
    if leaf is None:
        return TimedState()
    row = (
        await session.execute(
            select(LoreState.id, LoreState.sealed_state)
            .join(Message, Message.id == LoreState.id)
            .where(
                LoreState.chat_id == chat.id,
                LoreState.user_id == identity.user_id,
                LoreState.position <= leaf.position,
                Message.is_active,
            )
            .order_by(LoreState.position.desc())
            .limit(1)
        )
    ).one_or_none()
    if row is None:
        return TimedState()
    return TimedState.decode(identity.sealer.open_bytes(LORE_STATE, row.id, row.sealed_state))


async def store_state(
    session: AsyncSession,
    sealer: Sealer,
    message: Message,
    *,
    before: TimedState,
    after: TimedState,
) -> None:
    """Keep with a reply what it began and ended, where that is anything."""
    if dict(before.effects) == dict(after.effects):
        return
    row = {
        "id": message.id,
        "user_id": message.user_id,
        "chat_id": message.chat_id,
        "position": message.position,
        "sealed_state": sealer.seal_bytes(LORE_STATE, message.id, after.encode()),
    }
    update = {"sealed_state": row["sealed_state"]}
    await upsert(session, LoreState, row, key=["id"], update=update)
