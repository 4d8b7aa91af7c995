"""Test a lorebook on texts, with the scan of a turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.service import AccountService
from backend.characters.cards.model import Card
from backend.chats.schemas import ChatSettings
from backend.chats.service import ChatService
from backend.context.assembly import Counter
from backend.context.macros import MacroBudget, Variables
from backend.core.cpu_pool import CpuPool
from backend.core.reasons import FoundIn, Reason, render_reasons
from backend.database.engine import Database
from backend.errors import ValidationError
from backend.generation.model import Role
from backend.lorebooks.activation.compiled import CompiledEntry
from backend.lorebooks.activation.outcome import Scan, ScannedLine, ScanOutcome
from backend.lorebooks.activation.places import PlaceFinder
from backend.lorebooks.entries import Position
from backend.lorebooks.links import load_single_book
from backend.turns.api.schemas import TurnRequest
from backend.turns.prompt.assemble import CountCache
from backend.turns.prompt.builder import PromptBuilder
from backend.turns.prompt.cast import NARRATOR
from backend.turns.prompt.context import PromptWindow
from backend.turns.prompt.load import ChatLoader
from backend.turns.prompt.lore import LoreExpander, LoreReader, make_scan, make_turn_scan
from backend.turns.prompt.macros import make_card_macros, make_macros, make_seed

MAX_MESSAGES = 100

MAX_CHARACTERS = 100_000
"""Limit for all messages together."""

TestedText = Annotated[str, msgspec.Meta(max_length=MAX_CHARACTERS)]

MAX_LISTED = 1_000
"""Activated entries beyond this number are only counted."""

POSITIONS: tuple[Position, ...] = (
    "before_character",
    "after_character",
    "examples_top",
    "examples_bottom",
    "note_top",
    "at_depth",
    "note_bottom",
    "outlet",
)
"""The order of positions in a prompt."""


class LoreTestRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts to test a lorebook on: new messages, the newest last.

    With `chat_id` they are lines of that chat, by the user and the character in turns. Its cast,
    names, settings and timed effects apply. The same `seed` makes the same random draws.
    """

    texts: Annotated[list[TestedText], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    chat_id: UUID | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] | None = None


class LoreMatch(msgspec.Struct, kw_only=True):
    """A key in the text: the number of the message from 0, and the characters in Unicode's NFC."""

    key: str
    is_secondary: bool
    message: int
    start: int
    end: int


class TestedEntry(msgspec.Struct, kw_only=True):
    """An activated entry with its reasons, for programs and as text.

    `matches` are the first places of its keys in the text. `roll` is the random number of an entry
    with a probability, in percent. Numbers below the probability activate it. `depth` is set if the
    position uses it.
    """

    id: UUID
    title: str
    reasons: list[Reason]
    reason: str
    matches: list[LoreMatch]
    roll: float | None
    tokens: int
    position: Position
    depth: int | None
    role: Role
    outlet: str
    order: int


class MissedEntry(msgspec.Struct, kw_only=True):
    """An entry that was nearly activated, and the reason. `tokens` is 0 if none were counted."""

    id: UUID
    title: str
    reasons: list[Reason]
    reason: str
    matches: list[LoreMatch]
    roll: float | None
    tokens: int


class LoreTest(msgspec.Struct, kw_only=True):
    """Activated entries in the order of the prompt, and entries that were nearly activated.

    `tokens` is their size, `budget` the limit of the chat, else of the account, or of the book if
    that is lower. `more` is the number of unlisted entries, `not_found` the number of entries
    without any match. `notes` are about unusable keys.
    """

    entries: list[TestedEntry]
    left_out: list[MissedEntry]
    more: int
    not_found: int
    tokens: int
    budget: int
    notes: list[str]


class LoreTester:
    """Scans one lorebook with the given texts, like a turn. Stores nothing."""

    def __init__(
        self,
        database: Database,
        builder: PromptBuilder,
        lore: LoreReader,
        counts: CountCache,
        chats: ChatService,
        accounts: AccountService,
        pool: CpuPool,
    ) -> None:
        self._pool = pool
        self._database = database
        self._builder = builder
        self._lore = lore
        self._counts = counts
        self._chats = chats
        self._accounts = accounts

    async def test(self, identity: Identity, book_id: UUID, request: LoreTestRequest) -> LoreTest:
        """Run the test. Raises `LorebookNotFoundError` and the errors of `ChatLoader.load`."""
        if sum(map(len, request.texts)) > MAX_CHARACTERS:
            raise ValidationError(f"The text has more than {MAX_CHARACTERS:,} characters.")
        window, scan = await self._lore.with_books(
            identity, partial(self._read, identity, book_id, request)
        )
        if request.seed is not None:
            scan = replace(scan, seed=request.seed)
        # Untrusted patterns may take a quarter of a second together.
        return await self._pool.run(
            identity.user_id,
            lambda: _view_outcome(
                scan, self._lore.scan(scan), self._lore.make_finder(scan), window
            ),
        )

    async def _read(
        self, identity: Identity, book_id: UUID, request: LoreTestRequest
    ) -> tuple[PromptWindow, Scan]:
        async with self._database.read() as session:
            if request.chat_id is None:
                return await self._load_empty_scan(session, identity, book_id, request)
            return await self._load_chat_scan(session, identity, book_id, request, request.chat_id)

    async def _load_chat_scan(
        self,
        session: AsyncSession,
        identity: Identity,
        book_id: UUID,
        request: LoreTestRequest,
        chat_id: UUID,
    ) -> tuple[PromptWindow, Scan]:
        loader = ChatLoader(
            session,
            identity,
            user_name=self._accounts.name_of(identity),
            lore=self._lore,
            is_preview=True,
        )
        # The text is a new line, independent of the chat's last message.
        turn = TurnRequest(text=request.texts[-1])
        loaded = await loader.load(chat_id, turn)
        # The book is scanned like a linked one.
        book = await load_single_book(session, book_id, owner_id=identity.user_id)
        lore = await self._lore.read(
            session,
            identity,
            [book],
            chat=loaded.chat,
            leaf=loaded.target.leaf,
            overrides=(loaded.settings.lore, identity.settings.lore),
        )
        loaded = replace(loaded, lore=lore, said=request.texts[-1] or " ")
        window = await self._builder.make_window(session, identity, loaded.settings)
        scan = make_turn_scan(
            loaded,
            turn,
            window,
            count=self._counter(identity, window),
            expander=LoreExpander(make_macros(loaded, window), loaded.variables, MacroBudget()),
        )
        return window, replace(
            scan,
            messages=_scan_lines(request.texts, (loaded.cast.user_name, loaded.cast.speaker.name)),
        )

    async def _load_empty_scan(
        self, session: AsyncSession, identity: Identity, book_id: UUID, request: LoreTestRequest
    ) -> tuple[PromptWindow, Scan]:
        """Build a scan for an empty chat without characters."""
        book = await load_single_book(session, book_id, owner_id=identity.user_id)
        lore = await self._lore.read(
            session,
            identity,
            [book],
            chat=None,
            leaf=None,
            overrides=(identity.settings.lore,),
        )
        window = await self._builder.make_window(session, identity, ChatSettings())
        seed = make_seed(book_id)
        macros = make_card_macros(
            Card(name=NARRATOR),
            char=NARRATOR,
            user=self._accounts.name_of(identity),
            persona="",
            chat_seed=seed,
            message_seed=seed,
        )
        return window, make_scan(
            lore,
            window,
            _scan_lines(request.texts, ("", "")),
            count=self._counter(identity, window),
            expander=LoreExpander(macros, Variables(), MacroBudget()),
            speaker=NARRATOR,
            seed=seed,
        )

    def _counter(self, identity: Identity, window: PromptWindow) -> Counter:
        return partial(self._counts.count, identity.user_id, window.unit.tokenizer)


def _scan_lines(messages: Sequence[str], speakers: tuple[str, str]) -> list[ScannedLine]:
    last = len(messages) - 1
    return [
        ScannedLine(
            speakers[back % 2],
            messages[last - back],
            FoundIn("message", last - back + 1) if last else FoundIn("text"),
        )
        for back in range(len(messages))
    ]


def _view_outcome(
    scan: Scan, outcome: ScanOutcome, finder: PlaceFinder, window: PromptWindow
) -> LoreTest:
    book = scan.books[0]
    last = len(scan.messages) - 1

    def to_model_tokens(tokens: int) -> int:
        return round(tokens * window.ratio)

    def matches(entry: CompiledEntry) -> list[LoreMatch]:
        return [
            LoreMatch(
                key=place.key,
                is_secondary=place.is_secondary,
                message=last - place.message,
                start=place.start,
                end=place.end,
            )
            for place in finder.places(entry)
        ]

    def drawn(entry: CompiledEntry) -> float | None:
        roll = finder.roll(entry)
        return None if roll is None else round(roll, 1)

    entries = book.by_id
    activated = sorted(outcome.activated, key=lambda one: POSITIONS.index(one.position))
    own = book.fields.token_budget
    return LoreTest(
        entries=[
            TestedEntry(
                id=one.entry_id,
                title=one.title,
                reasons=one.reasons,
                reason=render_reasons(one.reasons),
                matches=matches(entries[one.entry_id]),
                roll=drawn(entries[one.entry_id]),
                tokens=to_model_tokens(one.tokens),
                position=one.position,
                depth=one.depth if one.position == "at_depth" else None,
                role=one.role,
                outlet=one.outlet,
                order=one.order,
            )
            for one in activated[:MAX_LISTED]
        ],
        left_out=[
            MissedEntry(
                id=one.entry_id,
                title=one.title,
                reasons=[one.reason],
                reason=render_reasons([one.reason]),
                matches=matches(entries[one.entry_id]),
                roll=drawn(entries[one.entry_id]),
                tokens=to_model_tokens(one.tokens),
            )
            for one in outcome.left_out
        ],
        more=max(0, len(activated) - MAX_LISTED) + outcome.left_out_more,
        not_found=outcome.not_found,
        tokens=to_model_tokens(outcome.tokens),
        budget=to_model_tokens(min(scan.budget, scan.budget if own is None else own)),
        notes=outcome.notes,
    )
