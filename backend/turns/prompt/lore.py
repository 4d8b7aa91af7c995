"""Lorebooks in a turn: which books are scanned, and what earlier turns began in them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.events import UserSignedOut
from backend.accounts.profile.settings import LoreOverrides, first_set
from backend.chats import repository as chats
from backend.chats.models import Chat, Message
from backend.core.cpu_pool import INLINE_CHARACTERS, CpuPool
from backend.core.plain_cache import PlainCache
from backend.database.base import upsert
from backend.errors import ConflictError
from backend.lorebooks.activation.compiled import CompiledBook
from backend.lorebooks.activation.outcome import Scan, ScanOutcome
from backend.lorebooks.activation.places import PlaceFinder
from backend.lorebooks.activation.scan import activate
from backend.lorebooks.activation.timed import TimedState
from backend.lorebooks.authoring import inactive_entries
from backend.lorebooks.entries import LinkSource, LoreSettings
from backend.lorebooks.links import ChatBook, SealedBook, load_book, open_sealed
from backend.lorebooks.models import LORE_STATE, LoreState
from backend.regex.process import RegexProcess
from backend.vault.sealing import Sealer

T = TypeVar("T")

MAX_COMPILE_RETRIES = 20
"""How often a turn is begun again because a book of it was changed while it was compiled."""

MAX_CACHED_ENTRIES = 50_000
"""Entries of all compiled books that are kept together; a book without any counts as one."""

KEEP_SECONDS = 600.0
"""How long a compiled book is kept that nobody plays with."""

DEEPEST_SCAN = 1_000
"""Messages that a scan looks back at most, whatever entries ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLore:
    """A chat's books, ready to be scanned, and what earlier turns mean for them.

    `inactive` are entries of a chronicle's book that come from a branch which was left.
    """

    books: Sequence[CompiledBook] = ()
    inactive: Collection[UUID] = frozenset()
    settings: LoreSettings = field(default_factory=LoreSettings)
    timed: TimedState = field(default_factory=TimedState)
    reply_count: int = 0
    greeting: int | None = None
    sources: Mapping[UUID, LinkSource] = field(default_factory=dict[UUID, LinkSource])

    @property
    def depth(self) -> int:
        """Messages that a scan of these books looks back."""
        if not self.books:
            return 0
        wanted = [self.settings.scan_depth, *(book.deepest for book in self.books)]
        wanted += [book.fields.scan_depth or 0 for book in self.books]
        if self.settings.min_activations:
            # One beyond the limit: the step that goes there is still made.
            wanted.append((self.settings.min_activations_depth or DEEPEST_SCAN) + 1)
        return min(max(wanted), DEEPEST_SCAN)


class LoreReader(UserSignedOut):
    """Reads a chat's books, compiled once a revision."""

    def __init__(self, pool: CpuPool, regexes: RegexProcess) -> None:
        self._pool = pool
        self._compiling: dict[tuple[UUID, int], asyncio.Task[CompiledBook]] = {}
        self._ready: dict[tuple[UUID, int], CompiledBook] = {}
        self._cache: PlainCache[CompiledBook] = PlainCache(
            most=MAX_CACHED_ENTRIES, seconds=KEEP_SECONDS
        )
        self._regexes = regexes

    async def read(
        self,
        session: AsyncSession,
        identity: Identity,
        refs: Sequence[ChatBook],
        *,
        chat: Chat | None,
        leaf: Message | None,
        overrides: Sequence[LoreOverrides],
    ) -> LoadedLore:
        """These books, as a turn of `chat` scans them, within an attempt of `with_books`.

        `overrides` are the chat's settings, then the account's.
        """
        if not refs:
            return LoadedLore()
        books = await self._books(session, identity, refs)
        written = [ref.id for ref in refs if ref.is_chronicles]
        lore = LoadedLore(
            books=books,
            settings=_merge_settings(overrides),
            sources={ref.id: ref.source for ref in refs},
        )
        if written:
            inactive = await inactive_entries(session, written, owner_id=identity.user_id)
            lore = replace(lore, inactive=inactive)
        if chat and any(book.asks_greeting for book in books):
            lore = replace(lore, greeting=await chats.greeting_number(session, chat.id))
        if leaf and any(book.is_timed for book in books):
            lore = replace(lore, timed=await _load_timed_state(session, identity, leaf))
        if leaf and any(book.asks_replies for book in books):
            lore = replace(lore, reply_count=await chats.count_said(session, leaf, "assistant"))
        return lore

    def scan(self, scan: Scan) -> ScanOutcome:
        """Find what comes in: some milliseconds, a quarter of a second with hostile patterns."""
        if any(book.needs_process for book in scan.books):
            self._regexes.prepare()
        return activate(replace(scan, evaluator=self._regexes))

    def finder(self, scan: Scan) -> PlaceFinder:
        """What finds the places of keys in the messages of a scan that is over."""
        return PlaceFinder(replace(scan, evaluator=self._regexes))

    def user_signed_out(self, user_id: UUID) -> None:
        """Drop a user's books."""
        self._cache.forget(user_id)

    def sweep(self) -> None:
        """Drop what nobody used for a while: it is text in the clear."""
        self._cache.sweep()

    def close(self) -> None:
        """End the process that searches with patterns which can't be trusted."""
        self._regexes.close()

    async def with_books(self, identity: Identity, attempt: Callable[[], Awaitable[T]]) -> T:
        """What `attempt` gives, begun again once the books that it lacks are compiled.

        Between two attempts: while books wait for a thread, no transaction is open. Raises
        `ConflictError` where its books change again and again.
        """
        ready: list[tuple[UUID, int]] = []
        try:
            for _ in range(MAX_COMPILE_RETRIES):
                try:
                    return await attempt()
                except _NotCompiledError as missing:
                    for ref, sealed in missing.books:
                        # Kept here as well: one that is too large is not in the cache.
                        self._ready[ref.id, ref.revision] = await self._shared(
                            identity, ref, sealed
                        )
                        ready.append((ref.id, ref.revision))
        finally:
            for key in ready:
                self._ready.pop(key, None)
        raise ConflictError("Its lorebooks are being changed. Try again.")

    async def _books(
        self, session: AsyncSession, identity: Identity, refs: Sequence[ChatBook]
    ) -> list[CompiledBook]:
        """Compiled books. Raises `_NotCompiledError` where some have to be compiled first."""
        found: list[CompiledBook] = []
        missing: list[tuple[ChatBook, SealedBook]] = []
        for ref in refs:
            book = self._ready.get((ref.id, ref.revision)) or self._cache.get(
                identity.user_id, ref.id
            )
            if book is None or book.revision != ref.revision:
                sealed = await load_book(session, ref.id, owner_id=identity.user_id)
                if sealed.size > INLINE_CHARACTERS:
                    missing.append((ref, sealed))
                    continue
                book = _compile(identity, ref, sealed)
                self._keep(identity, book)
            found.append(book)
        if missing:
            raise _NotCompiledError(missing)
        return found

    def _keep(self, identity: Identity, book: CompiledBook) -> None:
        self._cache.put(identity.user_id, book.book_id, book, size=len(book.entries))

    async def _shared(self, identity: Identity, ref: ChatBook, sealed: SealedBook) -> CompiledBook:
        """A compiled book, compiled once however many turns wait for it."""

        async def compiled() -> CompiledBook:
            compiling = partial(_compile, identity, ref, sealed)
            book = await self._pool.run(identity.user_id, compiling)
            self._keep(identity, book)
            return book

        key = ref.id, ref.revision
        task = self._compiling.get(key)
        if task is None:
            task = self._compiling[key] = asyncio.create_task(compiled())
            task.add_done_callback(lambda _: self._compiling.pop(key, None))
        return await asyncio.shield(task)


class _NotCompiledError(Exception):
    """Books that have to be compiled before what needs them can be read."""

    def __init__(self, books: Sequence[tuple[ChatBook, SealedBook]]) -> None:
        super().__init__()
        self.books = books


def _compile(identity: Identity, ref: ChatBook, sealed: SealedBook) -> CompiledBook:
    return CompiledBook(ref.id, ref.revision, *open_sealed(identity.sealer, sealed))


def _merge_settings(chain: Sequence[LoreOverrides]) -> LoreSettings:
    """How books are scanned: the chat's word, else the account's, else the default."""
    default = LoreSettings()
    return LoreSettings(
        **{
            name: first_set(chain, name, getattr(default, name))
            for name in LoreSettings.__struct_fields__
        }
    )


async def _load_timed_state(session: AsyncSession, identity: Identity, leaf: Message) -> TimedState:
    """The state after the nearest message of the path that changed it."""
    row = (
        await session.execute(
            select(LoreState.id, LoreState.sealed_state)
            .join(Message, Message.id == LoreState.id)
            .where(
                LoreState.chat_id == leaf.chat_id,
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


async def store_timed_state(
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
    await upsert(session, LoreState, row, key=("id",), update=("sealed_state",))
