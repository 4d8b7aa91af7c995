"""Lorebooks in a turn: which books are scanned, and what earlier turns left behind in them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.accounts.settings import LoreOverrides, first_set
from backend.chats import repository as chats
from backend.chats.models import Chat, Message
from backend.database.upsert import upsert
from backend.lorebooks.activation.cache import BookCache
from backend.lorebooks.activation.compiled import CompiledBook, compile_book
from backend.lorebooks.activation.outcome import (
    Outcome,
    Scan,
)
from backend.lorebooks.activation.places import PlaceFinder
from backend.lorebooks.activation.regex_process import RegexProcess
from backend.lorebooks.activation.scan import activate
from backend.lorebooks.activation.timed import TimedState
from backend.lorebooks.authoring import inactive_entries
from backend.lorebooks.entries import LoreSettings
from backend.lorebooks.models import LORE_STATE, LoreState
from backend.lorebooks.reading import BookRef, book_by_itself, books_for_chat, load_book
from backend.vault.sealing import Sealer

DEEPEST_SCAN = 1_000
"""Messages that a scan looks back at most, whatever entries ask for."""

IN_THREAD = 500
"""Entries from which a book is compiled in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredLore:
    """A chat's books, ready to be scanned, and what earlier turns mean for them.

    `inactive` are entries of a chronicle's book that come from a branch which was left.
    """

    books: Sequence[CompiledBook] = ()
    inactive: Collection[UUID] = frozenset()
    settings: LoreSettings = field(default_factory=LoreSettings)
    timed: TimedState = field(default_factory=TimedState)
    reply_count: int = 0
    greeting: int | None = None

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
        return await self._gather(session, identity, refs, chat, leaf, overrides)

    async def read_one(
        self,
        session: AsyncSession,
        identity: Identity,
        book_id: UUID,
        *,
        chat: Chat | None,
        leaf: Message | None,
        overrides: Sequence[LoreOverrides],
    ) -> GatheredLore:
        """One book by itself, linked or not, as a turn of `chat` would scan it.

        Raises `LorebookNotFoundError`.
        """
        ref = await book_by_itself(session, book_id, owner_id=identity.user_id)
        return await self._gather(session, identity, [ref], chat, leaf, overrides)

    async def _gather(
        self,
        session: AsyncSession,
        identity: Identity,
        refs: Sequence[BookRef],
        chat: Chat | None,
        leaf: Message | None,
        overrides: Sequence[LoreOverrides],
    ) -> GatheredLore:
        books = [await self._book(session, identity, ref) for ref in refs]
        written = [ref.id for ref in refs if ref.is_chronicles]
        is_timed = any(book.is_timed for book in books)
        counts = any(book.asks_replies for book in books)
        asks = any(book.asks_greeting for book in books)
        return GatheredLore(
            books=books,
            inactive=await _inactive(session, identity, written),
            settings=_settings(overrides),
            timed=(
                await _timed(session, identity, chat, leaf) if chat and is_timed else TimedState()
            ),
            reply_count=await chats.count_replies(session, leaf) if counts and leaf else 0,
            greeting=await chats.greeting_number(session, chat.id) if chat and asks else None,
        )

    def scan(self, scan: Scan) -> Outcome:
        """Find what comes in: some milliseconds, a quarter of a second with hostile patterns."""
        if any(book.needs_process for book in scan.books):
            self._regexes.prepare()
        return activate(replace(scan, evaluator=self._regexes))

    def finder(self, scan: Scan) -> PlaceFinder:
        """What finds the places of keys in the messages of a scan that is over."""
        return PlaceFinder(replace(scan, evaluator=self._regexes))

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


async def _inactive(
    session: AsyncSession, identity: Identity, book_ids: Sequence[UUID]
) -> Collection[UUID]:
    """Entries of chronicles' books that do not count at this moment."""
    if not book_ids:
        return frozenset()
    return await inactive_entries(session, book_ids, owner_id=identity.user_id)


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
