"""Lorebooks of a turn: load and compile books, build a scan, and place activated entries."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeVar
from uuid import UUID

from msgspec import structs
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.auth.identity import Identity
from backend.accounts.events import UserSignedOut
from backend.accounts.profile.settings import LoreOverrides, find_first_set
from backend.characters import repository as characters
from backend.chats import repository as chats
from backend.chats.members import load_group
from backend.chats.models import Chat, Message
from backend.chats.schemas import AuthorsNote
from backend.context.assembly import LeftOut, Place, PromptItem
from backend.context.macros import (
    MAX_CHARACTERS,
    MAX_MACROS,
    MacroBudget,
    MacroContext,
    Variables,
    expand,
)
from backend.core.audience import GM, Viewpoint
from backend.core.cpu_pool import INLINE_CHARACTERS, CpuPool
from backend.core.plain_cache import PlainCache
from backend.core.reasons import FoundIn, Reason
from backend.database.base import upsert
from backend.errors import ConflictError
from backend.lorebooks.activation.compiled import CompiledBook, CompiledEntry
from backend.lorebooks.activation.outcome import (
    ActiveEntry,
    Scan,
    ScannedLine,
    ScanOutcome,
    compute_lore_budget,
)
from backend.lorebooks.activation.places import PlaceFinder
from backend.lorebooks.activation.scan import activate
from backend.lorebooks.activation.timed import NO_EFFECTS, TimedState
from backend.lorebooks.authoring import inactive_entries
from backend.lorebooks.entries import CharacterFilter, LoreSettings, Position, Trigger
from backend.lorebooks.links import ChatBook, SealedBook, load_book, open_sealed
from backend.lorebooks.models import LORE_STATE, LoreState
from backend.regex.process import RegexProcess
from backend.turns.api.schemas import TurnRequest
from backend.turns.prompt.context import LoadedChat, LoadedLore, PromptWindow
from backend.turns.prompt.macros import make_seed
from backend.vault.sealing import Sealer

T = TypeVar("T")

MAX_COMPILE_RETRIES = 20
"""Maximum retries when a lorebook changes during compilation."""

MAX_CACHED_ENTRIES = 50_000
"""Entries of all cached books together. A book without entries counts as one."""

KEEP_SECONDS = 600.0
"""Time after the last use for which a compiled book is cached."""

EXAMPLE_MARK = re.compile(r"<START>", re.IGNORECASE)


class LoreReader(UserSignedOut):
    """Loads the lorebooks of chats. Each revision is compiled once."""

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
        viewpoint: Viewpoint = GM,
    ) -> LoadedLore:
        """Return the books of a chat. Call it within an attempt of `with_books`.

        `overrides` are the settings of the chat, then of the account. The state of replies that the
        viewpoint did not hear is left out.
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
            lore = replace(lore, greeting=await _find_greeting(session, identity, chat))
        if leaf and any(book.is_timed for book in books):
            stored = await _load_timed_state(session, identity, leaf)
            timed = await _keep_heard(session, stored, leaf, viewpoint)
            lore = replace(lore, timed=timed, stored_timed=stored)
        if leaf and any(book.asks_replies for book in books):
            lore = replace(lore, reply_count=await chats.count_messages(session, leaf, "assistant"))
        return lore

    def scan(self, scan: Scan) -> ScanOutcome:
        """Run a scan. Takes some milliseconds, or a quarter of a second with hostile patterns."""
        if any(book.needs_process for book in scan.books):
            self._regexes.prepare()
        return activate(replace(scan, evaluator=self._regexes))

    def make_finder(self, scan: Scan) -> PlaceFinder:
        """Return the object that finds the places of keys in the messages of a finished scan."""
        return PlaceFinder(replace(scan, evaluator=self._regexes))

    def user_signed_out(self, user_id: UUID) -> None:
        self._cache.forget(user_id)

    def sweep(self) -> None:
        """Drop books that have not been used for a while, because they contain unsealed text."""
        self._cache.sweep()

    def close(self) -> None:
        """Stop the process that runs untrusted patterns."""
        self._regexes.close()

    async def with_books(self, identity: Identity, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `attempt`. Compile missing books and run it again.

        No transaction is open while books are compiled. Raises `ConflictError` if the books change
        again and again.
        """
        ready: list[tuple[UUID, int]] = []
        try:
            for _ in range(MAX_COMPILE_RETRIES):
                try:
                    return await attempt()
                except _NotCompiledError as missing:
                    for ref, sealed in missing.books:
                        # A book that is too large for the cache is kept here.
                        self._ready[ref.id, ref.revision] = await self._compile_once(
                            identity, ref, sealed
                        )
                        ready.append((ref.id, ref.revision))
        finally:
            for key in ready:
                self._ready.pop(key, None)
        raise ConflictError("The lorebooks of the chat are being changed. Try again.")

    async def _books(
        self, session: AsyncSession, identity: Identity, refs: Sequence[ChatBook]
    ) -> list[CompiledBook]:
        """Return compiled books. Raises `_NotCompiledError` if large books are not compiled yet."""
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

    async def _compile_once(
        self, identity: Identity, ref: ChatBook, sealed: SealedBook
    ) -> CompiledBook:
        """Compile a book once, even if several turns wait for it."""

        async def compile_book() -> CompiledBook:
            compiling = partial(_compile, identity, ref, sealed)
            book = await self._pool.run(identity.user_id, compiling)
            self._keep(identity, book)
            return book

        key = ref.id, ref.revision
        task = self._compiling.get(key)
        if task is None:
            task = self._compiling[key] = asyncio.create_task(compile_book())
            task.add_done_callback(lambda _: self._compiling.pop(key, None))
        return await asyncio.shield(task)


async def _find_greeting(session: AsyncSession, identity: Identity, chat: Chat) -> int | None:
    """Return the number of the chat's greeting on the card: 0 is the first message.

    A group begins with the greetings for groups, which have the numbers after the others.
    """
    number = await chats.find_greeting_number(session, chat.id)
    members = (await load_group(session, chat.id)).members
    starters = [each for each, is_there in members.items() if is_there]
    if number is None or len(starters) <= 1:
        return number
    card = await characters.get_card(
        session, starters[0], owner_id=identity.user_id, sealer=identity.sealer
    )
    for_groups = sum(bool(each.strip()) for each in card.group_only_greetings)
    if number >= for_groups:
        return number - for_groups
    return 1 + len(card.alternate_greetings) + number


class _NotCompiledError(Exception):
    """Large books have to be compiled first."""

    def __init__(self, books: Sequence[tuple[ChatBook, SealedBook]]) -> None:
        super().__init__()
        self.books = books


def _compile(identity: Identity, ref: ChatBook, sealed: SealedBook) -> CompiledBook:
    return CompiledBook(ref.id, ref.revision, *open_sealed(identity.sealer, sealed))


def _merge_settings(chain: Sequence[LoreOverrides]) -> LoreSettings:
    default = LoreSettings()
    return LoreSettings(
        **{
            name: find_first_set(chain, name, getattr(default, name))
            for name in LoreSettings.__struct_fields__
        }
    )


async def _load_timed_state(session: AsyncSession, identity: Identity, leaf: Message) -> TimedState:
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


async def _keep_heard(
    session: AsyncSession, stored: TimedState, leaf: Message, viewpoint: Viewpoint
) -> TimedState:
    if not stored.effects or viewpoint == GM:
        return stored.keep_heard(lambda _: True)
    positions = stored.list_positions()
    heard = await chats.list_heard_positions(session, leaf.chat_id, positions, viewpoint)
    return stored.keep_heard(heard.__contains__)


def merge_timed_state(lore: LoadedLore, after: TimedState) -> TimedState:
    """Return the state to store in a group: that of a speaker, and that of the others.

    The others may have more books, and may have heard other replies.
    """
    scanned = {entry_id for book in lore.books for entry_id in book.by_id}
    return lore.stored_timed.replace_heard(lore.timed, after, scanned=scanned)


def list_unknown_state(
    lore: LoadedLore, outcome: ScanOutcome, *, now: int, viewer: str
) -> list[LeftOut]:
    """Return the entries that would be sticky or cooling down, if the viewpoint had heard why."""
    active = {each.entry_id for each in outcome.activated}
    unheard = {
        entry_id
        for entry_id, effect in lore.stored_timed.effects.items()
        if effect.is_cooling(now)
        and ((own := lore.timed.effects.get(entry_id)) is None or own.at != effect.at)
    }
    return [
        LeftOut(
            kind="lore",
            title=book.by_id[entry_id].title,
            tokens=0,
            reasons=[Reason("state_unknown", name=viewer)],
            source_id=entry_id,
        )
        for book in lore.books
        for entry_id in unheard - active
        if entry_id in book.by_id
    ]


async def store_timed_state(
    session: AsyncSession,
    sealer: Sealer,
    message: Message,
    *,
    before: TimedState,
    after: TimedState,
) -> None:
    """Store the timed state with a reply if the reply has changed it."""
    if dict(before.effects) == dict(after.effects):
        return
    after = after.place(message.position)
    row = {
        "id": message.id,
        "user_id": message.user_id,
        "chat_id": message.chat_id,
        "position": message.position,
        "sealed_state": sealer.seal_bytes(LORE_STATE, message.id, after.encode()),
    }
    await upsert(session, LoreState, row, key=("id",), update=("sealed_state",))


class LoreExpander:
    """Expands the macros of entries in order, so that an entry reads the variables set before it.

    All lore together may use the limits of one field. The rest of the macro budget is left to the
    fields.
    """

    def __init__(
        self, context: MacroContext, variables: Variables, macro_budget: MacroBudget
    ) -> None:
        self._context = context
        self._budget = macro_budget.share(characters=MAX_CHARACTERS, macros=MAX_MACROS)
        self.variables = variables

    def __call__(self, text: str) -> str:
        """Return a key or a content with its macros expanded. Raises `MacroLimitError`."""
        expansion = expand(text, self._context, self.variables, place="lore", budget=self._budget)
        self.variables = expansion.variables
        return expansion.text


def make_scan(
    lore: LoadedLore,
    window: PromptWindow,
    lines: Sequence[ScannedLine],
    *,
    count: Callable[[str], int],
    expander: LoreExpander,
    speaker: str,
    seed: int,
) -> Scan:
    """Return a scan of messages, newest first, without the state and the cast of a chat."""
    context_tokens = window.budget.prompt
    return Scan(
        books=lore.books,
        messages=lines,
        settings=lore.settings,
        budget=compute_lore_budget(lore.settings, context_tokens),
        room=context_tokens,
        count=count,
        vocabulary=window.unit.tokenizer,
        message_count=len(lines),
        reply_count=lore.reply_count,
        greeting=lore.greeting,
        seed=seed,
        expand=expander,
        speaker=speaker,
        timed=lore.timed,
        inactive=lore.inactive,
        sources=lore.sources,
    )


def make_turn_scan(
    loaded: LoadedChat,
    request: TurnRequest,
    window: PromptWindow,
    *,
    count: Callable[[str], int],
    expander: LoreExpander,
    is_quiet: bool = False,
) -> Scan:
    """Return the scan of a turn: its line, the last messages, and the texts of the cast."""
    leaf, card, note = loaded.target.leaf, loaded.cast.speaker.card, loaded.note
    lines = [
        ScannedLine(line.author, line.text, FoundIn("message", line.position + 1))
        for line in reversed(loaded.recent)
    ]
    if loaded.said:
        lines.insert(0, ScannedLine(loaded.cast.user_name, loaded.said, FoundIn("line")))
    scan = make_scan(
        loaded.lore,
        window,
        lines,
        count=count,
        expander=expander,
        speaker=loaded.cast.speaker.name,
        seed=make_seed(loaded.chat.id, leaf.id if leaf else None),
    )
    return replace(
        scan,
        message_count=(leaf.position + 1 if leaf else 0) + bool(loaded.said),
        fields={
            "persona_description": loaded.cast.persona,
            "character_description": card.description,
            "character_personality": card.personality,
            "character_depth_prompt": card.depth_prompt.prompt if card.depth_prompt else "",
            "scenario": card.scenario,
            "creator_notes": card.creator_notes,
        },
        tags=card.tags,
        triggers=list_triggers(request, is_quiet=is_quiet),
        note=note.fields.text if note.fields.scan and note.is_due else "",
    )


def list_triggers(request: TurnRequest, *, is_quiet: bool) -> Sequence[Trigger]:
    """Return the triggers of entries that match a request."""
    if is_quiet:
        return ["quiet"]
    if request.continue_:
        return ["continue"]
    if request.impersonate:
        return ["impersonate"]
    # Regenerating and swiping are two actions in other programs. Here they are the same.
    return ["regenerate", "swipe"] if request.regenerate_of else ["normal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLore:
    """Activated lore by its place in the prompt.

    Attributes:
        slots: Entries with a place among the fixed sections, in ascending order, with expanded
            texts. Around the character and the examples there are only constant entries, because
            the head of a prompt must stay the same from turn to turn.
        ranked: Entries without such a place, best first. They share the memory budget.
    """

    slots: Mapping[Position, Sequence[PromptItem]] = field(
        default_factory=dict[Position, list[PromptItem]]
    )
    ranked: Sequence[PromptItem] = ()
    left_out: Sequence[LeftOut] = ()
    timed: TimedState = NO_EFFECTS
    notes: Sequence[str] = ()


def place_lore(
    outcome: ScanOutcome,
    note: AuthorsNote,
    *,
    note_is_due: bool,
    as_written: bool,
    shared: Collection[UUID] | None = None,
) -> PlacedLore:
    """Give each activated entry its place in the prompt.

    With `as_written`, entries around the character and the examples always keep that place.
    Otherwise those that are not constant go to the memory section. If cards are joined, `shared`
    are the entries that may precede the history; the others follow it.
    """
    slots: defaultdict[Position, list[PromptItem]] = defaultdict(list)
    ranked: list[tuple[int, PromptItem]] = []
    left_out = [
        LeftOut(
            kind="lore",
            title=each.title,
            tokens=each.tokens,
            reasons=[each.reason],
            source_id=each.entry_id,
        )
        for each in outcome.left_out
    ]
    for number, entry in enumerate(outcome.activated):
        item = _make_item(entry, number)
        if entry.from_start is not None:
            slots["at_depth"].append(
                structs.replace(item, place="depth", depth=entry.from_start, from_start=True)
            )
        elif entry.position == "at_depth":
            slots["at_depth"].append(structs.replace(item, place="depth", depth=entry.depth))
        elif entry.position in {"note_top", "note_bottom"} and not note_is_due:
            left_out.append(item.left_out(Reason("note_not_due")))
        elif entry.position in {"note_top", "note_bottom"}:
            slots[entry.position].append(
                structs.replace(item, place=get_note_place(note), depth=note.depth, role=note.role)
            )
        elif entry.position == "outlet":
            # Only outlets are in descending order, as in World Info.
            slots["outlet"].insert(0, structs.replace(item, place="outlet", outlet=entry.outlet))
        elif entry.is_constant or as_written:
            is_shared = shared is None or entry.entry_id in shared
            place: Place = "head" if is_shared else "added"
            slots[entry.position].append(structs.replace(item, place=place))
        else:
            is_found = all(reason.kind in {"semantic", "words"} for reason in entry.reasons)
            rank = entry.rank or 0 if is_found else 0
            ranked.append((-entry.order, structs.replace(item, rank=rank)))
    ranked.sort(key=lambda each: each[0])
    for more, what, reason in (
        (outcome.left_out_more, "more ", Reason("not_listed")),
        (outcome.not_found, "", Reason("no_key")),
    ):
        if more:
            noun = "entry" if more == 1 else "entries"
            left_out.append(
                LeftOut(kind="lore", title=f"{more:,} {what}{noun}", tokens=0, reasons=[reason])
            )
    return PlacedLore(
        slots=slots,
        ranked=[item for _, item in ranked],
        left_out=left_out,
        timed=outcome.timed,
        notes=outcome.notes,
    )


def find_shared_entries(lore: LoadedLore) -> frozenset[UUID]:
    """Return the constant entries that are in the prompts of all speakers of a group, unchanged.

    Entries that depend on the speaker, the messages or a draw are excluded, because they would
    change the beginning of the prompt with each speaker.
    """
    return frozenset(
        entry.entry_id
        for book in lore.books
        if lore.sources.get(book.book_id) != "character"
        for entry in book.always
        if _is_shared(entry)
    )


def _is_shared(compiled: CompiledEntry) -> bool:
    entry, says = compiled.entry, compiled.says
    is_certain = entry.probability >= 100 or not entry.use_probability  # noqa: PLR2004  # per cent
    return (
        entry.constant
        and is_certain
        and not (compiled.has_macros or compiled.is_timed or compiled.groups or entry.delay)
        and not (entry.delay_until_recursion or compiled.additional or compiled.excluded)
        and not (says.counts_replies or says.is_greeting is not None)
        and entry.character_filter == CharacterFilter()
    )


def get_note_place(note: AuthorsNote) -> Literal["depth", "head"]:
    return "depth" if note.position == "at_depth" else "head"


class Outlets(Mapping[str, str]):
    """The texts of outlets by name. Records which of them were read."""

    def __init__(self, items: Sequence[PromptItem]) -> None:
        texts: dict[str, list[str]] = {}
        for item in items:
            texts.setdefault(item.outlet, []).append(item.text)
        self._texts = {name: "\n".join(parts) for name, parts in texts.items()}
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        text = self._texts[name]
        self.read.add(name)
        return text

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def split_examples(text: str) -> list[str]:
    """Split a text into its example dialogues, which begin with `<START>`."""
    return [part.strip() for part in EXAMPLE_MARK.split(text) if part.strip()]


def _make_item(entry: ActiveEntry, number: int) -> PromptItem:
    is_example = entry.position in {"examples_top", "examples_bottom"}
    return PromptItem(
        kind="lore",
        title=entry.title,
        text="\n\n".join(split_examples(entry.content)) if is_example else entry.content,
        place="memory",
        reasons=entry.reasons,
        role=entry.role,
        source_id=entry.entry_id,
        order=number,
        tokens=entry.tokens,
    )
