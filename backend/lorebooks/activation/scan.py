"""The scan that selects the lorebook entries of a prompt and explains the rejected ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from backend.accounts.profile.settings import LoreStrategy
from backend.context.macros import MacroLimitError
from backend.core.reasons import Reason
from backend.lorebooks.activation.compiled import CompiledBook, CompiledEntry
from backend.lorebooks.activation.entry_matcher import EntryMatcher, Step, is_recursive
from backend.lorebooks.activation.outcome import (
    TOO_MANY_MACROS,
    ActiveEntry,
    Scan,
    ScanOutcome,
    SkippedEntry,
)
from backend.lorebooks.activation.selection import (
    GAVE_WAY,
    TOO_LONG,
    GroupCandidate,
    GroupRules,
    LoreBudget,
    find_losers,
    percentage,
)
from backend.lorebooks.activation.timed import TimedEffect, TimedState, start_effect
from backend.lorebooks.activation.window import ScanWindow
from backend.lorebooks.entries import LinkSource

MAX_STEPS: Final = 100
"""Recursion steps of a scan if the settings have no limit."""

INACTIVE: Final = Reason("inactive")
"""The entry comes from a branch that is no longer active."""

_FIRST: Final[Mapping[LinkSource, int]] = {"chat": 0, "chronicle": 1, "persona": 2}
_THEN: Final[Mapping[LoreStrategy, Mapping[LinkSource, int]]] = {
    "evenly": {"character": 3, "global": 3},
    "character_first": {"character": 3, "global": 4},
    "global_first": {"character": 4, "global": 3},
}
"""Precedence of books by their source, regardless of the order of their entries."""

MAX_LEFT_OUT: Final = 1_000
"""Entries listed with a reason why they were left out. Further ones are only counted."""


def activate(scan: Scan) -> ScanOutcome:
    """Find the entries of the prompt.

    Deterministic: all random draws use the seed of the scan. The time depends on the matches in the
    texts, not on the size of the books, except for constant entries and regexes.
    """
    books = {book.book_id: book for book in reversed(scan.books)}
    if len(books) != len(scan.books):  # a book that is linked twice counts at its first position
        kept = {id(book) for book in books.values()}
        scan = replace(scan, books=[book for book in scan.books if id(book) in kept])
    return _Activation(scan).run()


@dataclass(slots=True)
class _Admission:
    """An active entry with its expanded content and its tokens."""

    found: GroupCandidate
    content: str
    tokens: int


class _Activation:
    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self.tiers, self.books = _rank_books(scan)
        self.window = ScanWindow(scan)
        self.matcher = EntryMatcher(scan, self.window)
        self.budget = LoreBudget(scan.budget, scan.room)
        self.candidates: set[CompiledEntry] = set()
        self.inside: dict[CompiledEntry, _Admission] = {}
        self.settled: set[CompiledEntry] = set()
        self.unasked: set[CompiledEntry] = set()  # checked even if no key occurs
        self.lost: set[CompiledEntry] = set()
        self.out: dict[CompiledEntry, tuple[int, Reason]] = {}
        self.groups: dict[str, CompiledEntry] = {}
        self.notes: list[str] = []
        self.levels = sorted({level for book in scan.books for level in book.levels})
        self.step = Step("first", 0, self.levels.pop(0) if self.levels else 0, 0)
        self.is_recursive = any(is_recursive(book, scan.settings) for book in scan.books)

    def run(self) -> ScanOutcome:
        for book in self.scan.books:
            self.unasked.update(book.always)
            for entry_id in (*self.scan.semantic, *self.scan.timed.effects):
                if entry_id in book.by_id:
                    self.unasked.add(book.by_id[entry_id])
        self.candidates |= self.unasked
        step: Step | None = self.step
        while step is not None:
            step = self._next(step, self._pass(step))
        return self._outcome()

    def _place(self, entry: CompiledEntry) -> tuple[int, int, int, int]:
        """Return the sort key of an entry: source of its book, then larger orders first."""
        tier = self.tiers[entry.book]
        return tier, -entry.entry.order, self.books[entry.book], entry.place

    def _pass(self, step: Step) -> list[_Admission]:
        """Check all due candidates once. Return the entries that became active."""
        deepest = max((book.deepest for book in self.scan.books), default=0)
        self.window.read(max(deepest, self._reach() + step.further_back))
        found: list[GroupCandidate] = []
        for entry in sorted(self._due(step), key=self._place):
            verdict = self.matcher.match(entry, step)
            if isinstance(verdict, GroupCandidate):
                if entry.entry_id in self.scan.inactive:
                    self._drop(entry, INACTIVE)
                else:
                    found.append(verdict)
            elif verdict:
                self.out[entry] = (0, verdict)
        return self._admit(found)

    def _due(self, step: Step) -> set[CompiledEntry]:
        """Return the candidates whose result may have changed since the last step."""
        primary, other = self.window.fresh()
        primary -= self.settled
        due = primary | (other & self.candidates)
        self.candidates |= primary
        before, self.step = self.step, step
        if "deeper" in {step.kind, before.kind}:
            due = set(self.candidates)
        else:
            due |= self.candidates & self.unasked
            due |= {
                entry
                for entry in self.candidates
                if not entry.is_indexed or entry.entry.delay_until_recursion
            }
        due |= self.lost
        self.lost.clear()
        return due

    def _reach(self) -> int:
        """Return the scan depth of entries that do not set one."""
        depths = [book.fields.scan_depth for book in self.scan.books]
        return max(
            (self.scan.settings.scan_depth if depth is None else depth for depth in depths),
            default=0,
        )

    def _admit(self, found: list[GroupCandidate]) -> list[_Admission]:
        rules = GroupRules(self.scan.seed, self.scan.settings.use_group_scoring, self.matcher.score)
        lost = find_losers(found, self.groups, rules)
        new: list[_Admission] = []
        # Constant entries come first, so the budget cannot end before them. Then sticky ones.
        found.sort(
            key=lambda one: (
                not one.entry.entry.constant,
                not one.is_sticky,
                one.entry.says.ignore_on_max_context,
            )
        )
        for one in found:
            entry = one.entry
            if entry.entry_id in lost:
                # Retry it at the next step because the winner may fail its probability.
                self.out[entry] = (0, lost[entry.entry_id])
                self.lost.add(entry)
            elif (
                entry.entry.use_probability
                and not one.is_sticky
                and percentage(self.scan.seed, entry.entry_id) >= entry.entry.probability
            ):
                self._drop(entry, Reason("probability", chance=entry.entry.probability))
            elif (inside := self._pay(one)) is not None:
                new.append(inside)
        return [one for one in new if one.found.entry in self.inside]

    def _pay(self, found: GroupCandidate) -> _Admission | None:
        """Activate an entry if there are tokens for it. Cheap checks come first."""
        entry = found.entry
        refused = self.budget.refusal(entry)
        if refused is not None:
            is_counted = not entry.has_macros and self.budget.may_read(len(entry.content))
            self._drop(entry, refused, self._count(entry, entry.content) if is_counted else 0)
            return None
        content = self._expand(entry)
        if content is None:
            return None
        if not self.budget.may_read(len(content)):
            self._drop(entry, TOO_LONG)
            return None
        tokens = self._count(entry, content)
        refused, gave_way = self.budget.ask(entry, tokens)
        if refused is not None:
            self._drop(entry, refused, tokens)
            return None
        for other in gave_way:
            paid = self.inside.pop(other)
            self._drop(other, GAVE_WAY, paid.tokens)
        inside = self.inside[entry] = _Admission(found, content, tokens)
        self.candidates.discard(entry)
        self.out.pop(entry, None)
        self.settled.add(entry)
        for name in entry.groups:
            self.groups.setdefault(name, entry)
        return inside

    def _expand(self, entry: CompiledEntry) -> str | None:
        """Return the expanded content. Beyond a macro limit, drop the entry and return None."""
        if not entry.has_macros:
            return entry.content
        try:
            return self.scan.expand(entry.content)
        except MacroLimitError as error:
            self._drop(entry, Reason("macros", name=error.limit, count=error.most))
            self.notes.append(TOO_MANY_MACROS)
            return None

    def _count(self, entry: CompiledEntry, content: str) -> int:
        if not content.strip():
            return 0
        if entry.has_macros or not self.scan.vocabulary:
            return self.scan.count(content)
        known = entry.counts.get(self.scan.vocabulary)
        if known is None:
            known = entry.counts[self.scan.vocabulary] = self.scan.count(content)
        return known

    def _drop(self, entry: CompiledEntry, reason: Reason, tokens: int = 0) -> None:
        """Leave an entry out for the rest of the scan."""
        self.out[entry] = (tokens, reason)
        self.candidates.discard(entry)
        self.settled.add(entry)

    def _next(self, step: Step, new: list[_Admission]) -> Step | None:
        """Return the next step: recursion, older messages, or the next recursion level."""
        settings = self.scan.settings
        number = step.number + 1
        if number >= (settings.max_recursion_steps or MAX_STEPS) or self.budget.is_over:
            return None
        spoken = [one for one in new if not one.found.entry.entry.prevent_recursion]
        if self.is_recursive and spoken:
            for one in spoken:
                self.window.add_entry(one.found.entry.title, one.content, number)
            return step._replace(kind="recursion", number=number)
        if len(self.inside) < settings.min_activations and self._may_read_on(step):
            return step._replace(kind="deeper", further_back=step.further_back + 1)
        if self.levels:
            return step._replace(kind="recursion", number=number, level=self.levels.pop(0))
        return None

    def _may_read_on(self, step: Step) -> bool:
        """True if older messages may be read. As in World Info, one step exceeds the limit."""
        limit = self.scan.settings.min_activations_depth or len(self.scan.messages)
        return self._reach() + step.further_back <= min(limit, len(self.scan.messages))

    def _outcome(self) -> ScanOutcome:
        for one in self.inside.values():
            if not one.content.strip():
                self.out[one.found.entry] = (0, Reason("empty"))
        left_out = [
            SkippedEntry(entry_id=entry.entry_id, title=entry.title, tokens=tokens, reason=reason)
            for entry, (tokens, reason) in sorted(
                self.out.items(), key=lambda one: self._place(one[0])
            )
        ]
        # As in World Info, the entry that activated last comes first among those of equal order.
        inside = sorted(
            (one for one in reversed(self.inside.values()) if one.content.strip()),
            key=lambda one: one.found.entry.entry.order,
        )
        entries = sum(len(book.entries) for book in self.scan.books)
        notes = [note for book in self.scan.books for note in book.notes]
        return ScanOutcome(
            activated=[self._build_entry(one) for one in inside],
            left_out=left_out[:MAX_LEFT_OUT],
            left_out_more=max(0, len(left_out) - MAX_LEFT_OUT),
            not_found=entries - len(inside) - len(left_out),
            timed=self._build_timed(),
            notes=list(dict.fromkeys(notes + self.window.notes + self.notes)),
            tokens=self.budget.used,
        )

    def _build_entry(self, inside: _Admission) -> ActiveEntry:
        entry, stored = inside.found.entry, inside.found.entry.entry
        semantic = self.scan.semantic.get(entry.entry_id)
        return ActiveEntry(
            entry_id=entry.entry_id,
            book_id=entry.book.book_id,
            title=entry.title,
            content=inside.content,
            tokens=inside.tokens,
            position=entry.position,
            depth=entry.depth,
            from_start=entry.from_start,
            role=entry.role,
            outlet=stored.outlet,
            order=stored.order,
            reasons=inside.found.reasons,
            is_constant=stored.constant,
            rank=semantic.rank if semantic else None,
        )

    def _build_timed(self) -> TimedState:
        now = self.scan.message_count
        effects: dict[UUID, TimedEffect] = {}
        for book in self.scan.books:
            for entry_id in self.scan.timed.effects:
                entry = book.by_id.get(entry_id)
                effect = self.matcher.effect(entry) if entry else None
                if entry and effect and (effect.is_cooling(now) or entry.is_remembered):
                    effects[entry_id] = effect
        for one in self.inside.values():
            entry, known = one.found.entry, effects.get(one.found.entry.entry_id)
            # A running effect is not restarted, so an entry cannot keep itself sticky.
            if entry.is_timed and (known is None or not known.is_cooling(now)):
                effects[entry.entry_id] = start_effect(entry.entry, now=now, keys=entry.keys)
        return TimedState(effects)


def _rank_books(scan: Scan) -> tuple[dict[CompiledBook, int], dict[CompiledBook, int]]:
    """Return the precedence of each book and its position among books of equal precedence.

    As in World Info: the books of the chat, then of the persona, then character books and global
    books in the order of `strategy`. With "evenly", global books win ties.
    """
    ranks = {**_FIRST, **_THEN[scan.settings.strategy]}
    sources = {book: scan.sources.get(book.book_id, "chat") for book in scan.books}
    tied = sorted(scan.books, key=lambda book: sources[book] != "global")
    return (
        {book: ranks[source] for book, source in sources.items()},
        {book: place for place, book in enumerate(tied)},
    )
