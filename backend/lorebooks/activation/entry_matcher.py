"""Whether one entry comes up at one step of a scan, and for what."""

from __future__ import annotations

from backend.lorebooks.activation.compiled import CompiledBook, CompiledEntry
from backend.lorebooks.activation.gates import Step, is_forced, why_not
from backend.lorebooks.activation.groups import GroupCandidate
from backend.lorebooks.activation.keys import Key
from backend.lorebooks.activation.outcome import Scan
from backend.lorebooks.activation.timed import TimedEffect
from backend.lorebooks.activation.window import Look, Window
from backend.lorebooks.entries import LoreSettings
from backend.reasons import Reason, ReasonKind


def is_recursive(book: CompiledBook, settings: LoreSettings) -> bool:
    """Whether the book's entries are also found by what other entries say, of whatever book."""
    said = book.fields.recursive_scanning
    return settings.recursive if said is None else said


class EntryMatcher:
    """Holds an entry against the chat and the window, in the order in which World Info does."""

    def __init__(self, scan: Scan, window: Window) -> None:
        self._scan, self._window = scan, window
        self._looks: dict[tuple[object, ...], Look] = {}
        self._known = {
            entry
            for book in scan.books
            for entry_id in (*scan.semantic, *scan.timed.effects)
            if (entry := book.by_id.get(entry_id)) is not None
        }
        self._entry: CompiledEntry
        self._look: Look
        self._step = Step("first", 0, 0)
        self._further_back = 0

    def effect(self, entry: CompiledEntry) -> TimedEffect | None:
        """What is left of the entry's last activation."""
        if entry not in self._known:
            return None
        return self._scan.timed.past(
            entry.entry_id, entry.entry, keys=entry.keys, now=self._scan.message_count
        )

    def judge(
        self, entry: CompiledEntry, step: Step, *, further_back: int
    ) -> GroupCandidate | Reason | None:
        """Whether the entry comes up.

        Returns:
            `GroupCandidate` if it does; why not, if it was considered; None if nothing occurs.
        """
        if (step, further_back) != (self._step, self._further_back):
            self._step, self._further_back = step, further_back
            self._looks.clear()
        mode = (entry.mode or self._scan.settings.mode) if self._scan.by_meaning else "keys"
        if entry.is_plain and entry not in self._known:
            if mode == "meaning":
                return None
            self._face(entry, process=True)
            return self._by_keys(entry, None)
        effect = self.effect(entry)
        is_sticky = effect is not None and self._scan.message_count < effect.sticky_until
        unasked = self._unasked(entry, effect, is_sticky=is_sticky)
        gate = why_not(entry, self._scan, effect, step)
        meant = [] if mode == "keys" else self._meant(entry)
        self._face(entry, process=gate is None and not unasked)
        if not unasked and not meant:
            return None if mode == "meaning" else self._by_keys(entry, gate)
        keyed = [] if mode == "meaning" else self._key_reasons(entry)
        refused = gate or (None if is_forced(entry, effect) else self._decorated(entry))
        if refused is None and not unasked and not keyed:
            refused = self._excluded(entry)
        return refused or GroupCandidate(entry, [*unasked, *meant, *keyed], is_sticky)

    def _by_keys(self, entry: CompiledEntry, gate: Reason | None) -> GroupCandidate | Reason | None:
        primary = self._first(entry.primary, "key")
        if primary is None:
            return None
        if gate is not None:
            return gate
        refused = self._decorated(entry)
        if refused is not None:
            return refused
        secondary = self._secondary(entry)
        if secondary is None:
            return Reason("secondary_keys")
        return GroupCandidate(entry, [primary, *secondary], is_sticky=False)

    def score(self, entry: CompiledEntry) -> int:
        """How many keys of the entry occur, as World Info counts for groups."""
        self._face(entry, process=False)
        primary = self._count(entry.primary)
        secondary = self._count(entry.secondary)
        logic = entry.entry.logic
        if not entry.primary:
            return 0
        if not entry.secondary:
            return primary
        if logic == "and_any" or (logic == "and_all" and secondary == len(entry.secondary)):
            return primary + secondary
        return primary

    def _face(self, entry: CompiledEntry, *, process: bool) -> None:
        """Turn to an entry, whose keys are looked for from here on."""
        fields = tuple(entry.entry.match_fields)
        kind = (
            entry.book,
            entry.scan_depth,
            entry.has_own_depth,
            entry.sensitive,
            entry.whole,
            fields,
            process,
        )
        look = self._looks.get(kind)
        if look is None:
            look = self._looks[kind] = self._look_for(entry, process=process)
        self._entry, self._look = entry, look

    def _look_for(self, entry: CompiledEntry, *, process: bool) -> Look:
        depth = entry.scan_depth
        if depth is None:
            depth = self._scan.settings.scan_depth
        if not entry.has_own_depth:
            depth += self._further_back
        if depth == 0:  # as in World Info, nothing is looked at then: no fields, no recursion
            return Look((), sensitive=False, whole=False, process=False)
        recursion = self._step.kind != "deeper" and is_recursive(entry.book, self._scan.settings)
        return self._window.look(entry, depth, recursion=recursion, process=process)

    def _count(self, keys: tuple[Key, ...]) -> int:
        return sum(self._window.where(self._entry, key, self._look) is not None for key in keys)

    def _unasked(
        self, entry: CompiledEntry, effect: TimedEffect | None, *, is_sticky: bool
    ) -> list[Reason]:
        """Why the entry comes up whether its keys occur or not."""
        reasons: list[Reason] = []
        if entry.says.activate:
            reasons.append(Reason("activate"))
        elif is_forced(entry, effect):
            reasons.append(Reason("keep_activate_after_match"))
        if entry.entry.constant:
            reasons.append(Reason("constant"))
        if effect is not None and is_sticky:
            left = effect.sticky_until - self._scan.message_count
            reasons.append(Reason("sticky", count=left))
        return reasons

    def _meant(self, entry: CompiledEntry) -> list[Reason]:
        """Why the entry comes up by its meaning."""
        hit = self._scan.semantic.get(entry.entry_id)
        return [] if hit is None else [Reason("semantic", score=hit.score, rank=hit.rank)]

    def _excluded(self, entry: CompiledEntry) -> Reason | None:
        """Why secondary keys keep out an entry that no key of its own was said of."""
        excludes = entry.entry.logic in {"not_any", "not_all"}
        is_out = excludes and self._secondary(entry) is None
        return Reason("secondary_keys") if is_out else None

    def _key_reasons(self, entry: CompiledEntry) -> list[Reason]:
        """Reasons by key, for an entry that has others too. None where its keys do not hold."""
        if entry.entry.constant or entry.says.activate:
            return []
        primary = self._first(entry.primary, "key")
        secondary = self._secondary(entry) if primary else None
        return [] if primary is None or secondary is None else [primary, *secondary]

    def _decorated(self, entry: CompiledEntry) -> Reason | None:
        """Why decorators about keys keep the entry out."""
        for key in entry.excluded:
            if self._window.where(self._entry, key, self._look) is not None:
                return Reason("exclude_key", key.raw)
        if entry.additional and self._first(entry.additional, "key") is None:
            return Reason("additional_keys")
        return None

    def _secondary(self, entry: CompiledEntry) -> list[Reason] | None:
        """Reasons by secondary keys, if their logic lets the entry in; else null."""
        keys, logic = entry.secondary, entry.entry.logic
        if not keys:
            return []
        found = [self._said(key, "secondary_key") for key in keys]
        present = [reason for reason in found if reason is not None]
        if logic == "and_any":
            return present[:1] or None
        if logic == "and_all":
            return present if len(present) == len(keys) else None
        if logic == "not_all":
            return [] if len(present) < len(keys) else None
        return None if present else []

    def _first(self, keys: tuple[Key, ...], kind: ReasonKind) -> Reason | None:
        """The first of `keys` that occurs, and where.

        Keys that cost little to look for come first.
        """
        for key in keys:
            if key.pattern is None and (said := self._said(key, kind)) is not None:
                return said
        for key in keys:
            if key.pattern is not None and (said := self._said(key, kind)) is not None:
                return said
        return None

    def _said(self, key: Key, kind: ReasonKind) -> Reason | None:
        found_in = self._window.where(self._entry, key, self._look)
        return None if found_in is None else Reason(kind, key.raw, found_in)
