"""Decides if one entry activates at one step of a scan, and gives the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from backend.core.reasons import Reason, ReasonKind
from backend.lorebooks.activation.compiled import CompiledBook, CompiledEntry
from backend.lorebooks.activation.keys import Key
from backend.lorebooks.activation.outcome import Scan
from backend.lorebooks.activation.selection import GroupCandidate
from backend.lorebooks.activation.timed import TimedEffect
from backend.lorebooks.activation.window import Look, ScanWindow
from backend.lorebooks.entries import CharacterFilter, LoreSettings


class Step(NamedTuple):
    """One pass over the entries.

    Attributes:
        kind: "first"; "recursion", which scans the entries added by the last step; or "deeper",
            which reads older messages because too few entries are active.
        number: 0 for the first step, then recursion steps from 1.
        level: Delayed entries up to this recursion level may activate.
        further_back: Messages to scan beyond the scan depths of the entries.
    """

    kind: Literal["first", "recursion", "deeper"]
    number: int
    level: int
    further_back: int


def is_recursive(book: CompiledBook, settings: LoreSettings) -> bool:
    """True if contents of other entries can activate the entries of the book."""
    said = book.fields.recursive_scanning
    return settings.recursive if said is None else said


class EntryMatcher:
    """Match entries against the chat and the window in the order of World Info."""

    def __init__(self, scan: Scan, window: ScanWindow) -> None:
        self._scan, self._window = scan, window
        self._looks: dict[tuple[object, ...], Look] = {}
        self._known = {
            entry
            for book in scan.books
            for entry_id in (*scan.semantic, *scan.timed.effects)
            if (entry := book.by_id.get(entry_id)) is not None
        }
        self._step = Step("first", 0, 0, 0)

    def effect(self, entry: CompiledEntry) -> TimedEffect | None:
        """Return the remaining effect of the entry's last activation."""
        if entry not in self._known:
            return None
        return self._scan.timed.past(
            entry.entry_id, entry.entry, keys=entry.keys, now=self._scan.message_count
        )

    def match(self, entry: CompiledEntry, step: Step) -> GroupCandidate | Reason | None:
        """Return the result for one entry.

        Returns:
            A `GroupCandidate` if the entry activates, the reason if it was considered and rejected,
            or None if nothing of it occurs.
        """
        if step != self._step:
            self._step = step
            self._looks.clear()
        mode = entry.mode or self._scan.settings.mode
        if mode == "meaning" and not self._scan.by_meaning:
            mode = "keys_and_meaning"
        if entry.is_plain and entry not in self._known:
            if mode == "meaning":
                return None
            return self._match_keys(entry, self._look(entry, process=True), None)
        effect = self.effect(entry)
        is_sticky = effect is not None and self._scan.message_count < effect.sticky_until
        unasked = self._find_unconditional(entry, effect, is_sticky=is_sticky)
        gate = _check_gates(entry, self._scan, effect, step)
        hit = None if mode == "keys" else self._scan.semantic.get(entry.entry_id)
        meant = [Reason(**hit._asdict())] if hit else []
        look = self._look(entry, process=gate is None and not unasked)
        if not unasked and not meant:
            return None if mode == "meaning" else self._match_keys(entry, look, gate)
        keyed = [] if mode == "meaning" else self._key_reasons(entry, look)
        refused = gate or (
            None if _is_forced(entry, effect) else self._check_key_decorators(entry, look)
        )
        if refused is None and not unasked and not keyed:
            refused = self._check_exclusion(entry, look)
        return refused or GroupCandidate(entry, [*unasked, *meant, *keyed], is_sticky)

    def score(self, entry: CompiledEntry) -> int:
        """Count the entry's matching keys as World Info does for group scoring."""
        look = self._look(entry, process=False)
        primary = sum(self._window.where(entry, key, look) is not None for key in entry.primary)
        secondary = sum(self._window.where(entry, key, look) is not None for key in entry.secondary)
        logic = entry.entry.logic
        if not entry.primary:
            return 0
        if logic == "and_any" or (logic == "and_all" and secondary == len(entry.secondary)):
            return primary + secondary
        return primary

    def _look(self, entry: CompiledEntry, *, process: bool) -> Look:
        """Return where and how to search for the keys of the entry. Cached per step."""
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
            look = self._looks[kind] = self._new_look(entry, process=process)
        return look

    def _new_look(self, entry: CompiledEntry, *, process: bool) -> Look:
        depth = entry.scan_depth
        if depth is None:
            depth = self._scan.settings.scan_depth
        if not entry.has_own_depth:
            depth += self._step.further_back
        if depth == 0:  # as in World Info, fields and recursion are skipped too
            return Look((), sensitive=False, whole=False, process=False)
        recursion = self._step.kind != "deeper" and is_recursive(entry.book, self._scan.settings)
        return self._window.look(entry, depth, recursion=recursion, process=process)

    def _match_keys(
        self, entry: CompiledEntry, look: Look, gate: Reason | None
    ) -> GroupCandidate | Reason | None:
        primary = self._first(entry, entry.primary, look)
        if primary is None:
            return None
        refused = gate or self._check_key_decorators(entry, look)
        if refused is not None:
            return refused
        secondary = self._secondary(entry, look)
        if secondary is None:
            return Reason("secondary_keys")
        return GroupCandidate(entry, [primary, *secondary], is_sticky=False)

    def _find_unconditional(
        self, entry: CompiledEntry, effect: TimedEffect | None, *, is_sticky: bool
    ) -> list[Reason]:
        """Return the reasons to activate the entry regardless of its keys."""
        reasons: list[Reason] = []
        if entry.says.activate:
            reasons.append(Reason("activate"))
        elif _is_forced(entry, effect):
            reasons.append(Reason("keep_activate_after_match"))
        if entry.entry.constant:
            reasons.append(Reason("constant"))
        if effect is not None and is_sticky:
            left = effect.sticky_until - self._scan.message_count
            reasons.append(Reason("sticky", count=left))
        return reasons

    def _check_exclusion(self, entry: CompiledEntry, look: Look) -> Reason | None:
        """Return a reason if secondary keys exclude an entry that did not activate by its keys."""
        excludes = entry.entry.logic in {"not_any", "not_all"}
        is_out = excludes and self._secondary(entry, look) is None
        return Reason("secondary_keys") if is_out else None

    def _key_reasons(self, entry: CompiledEntry, look: Look) -> list[Reason]:
        """Return the matching keys as reasons, or an empty list if they do not match.

        Used for entries that also activate for other reasons.
        """
        if entry.entry.constant or entry.says.activate:
            return []
        primary = self._first(entry, entry.primary, look)
        secondary = self._secondary(entry, look) if primary else None
        return [] if primary is None or secondary is None else [primary, *secondary]

    def _check_key_decorators(self, entry: CompiledEntry, look: Look) -> Reason | None:
        for key in entry.excluded:
            if self._window.where(entry, key, look) is not None:
                return Reason("exclude_key", key.raw)
        if entry.additional and self._first(entry, entry.additional, look) is None:
            return Reason("additional_keys")
        return None

    def _secondary(self, entry: CompiledEntry, look: Look) -> list[Reason] | None:
        """Return the matching secondary keys, or None if their logic rejects the entry."""
        keys, logic = entry.secondary, entry.entry.logic
        if not keys:
            return []
        found = [self._found(entry, key, look, "secondary_key") for key in keys]
        present = [reason for reason in found if reason is not None]
        if logic == "and_any":
            return present[:1] or None
        if logic == "and_all":
            return present if len(present) == len(keys) else None
        if logic == "not_all":
            return [] if len(present) < len(keys) else None
        return None if present else []

    def _first(self, entry: CompiledEntry, keys: Sequence[Key], look: Look) -> Reason | None:
        """Return the first matching key. Plain keys are tried first because they are cheaper."""
        for is_pattern in (False, True):
            for key in keys:
                if (key.pattern is not None) == is_pattern:
                    found = self._found(entry, key, look, "key")
                    if found is not None:
                        return found
        return None

    def _found(self, entry: CompiledEntry, key: Key, look: Look, kind: ReasonKind) -> Reason | None:
        found_in = self._window.where(entry, key, look)
        return None if found_in is None else Reason(kind, key.raw, found_in)


def _is_forced(entry: CompiledEntry, effect: TimedEffect | None) -> bool:
    """True if a decorator activates the entry regardless of other decorators and keys."""
    return entry.says.activate or (entry.says.keep_activate_after_match and effect is not None)


def _check_gates(
    entry: CompiledEntry, scan: Scan, effect: TimedEffect | None, step: Step
) -> Reason | None:
    """Return the first reason, apart from keys, why the entry cannot activate at this step."""
    refused = _check_settings(entry, scan) or _check_timing(entry, scan, effect, step)
    if refused or _is_forced(entry, effect):
        return refused
    return _check_decorators(entry, scan, effect) or _check_counts(entry, scan)


def _check_settings(entry: CompiledEntry, scan: Scan) -> Reason | None:
    stored = entry.entry
    if not stored.enabled:
        return Reason("disabled")
    if stored.triggers and not any(trigger in stored.triggers for trigger in scan.triggers):
        return Reason("trigger")
    return None if _passes_filter(stored.character_filter, scan) else Reason("character_filter")


def _passes_filter(wanted: CharacterFilter, scan: Scan) -> bool:
    """True if the names and the tags of the filter, if set, both admit the character."""
    if wanted.names and (scan.speaker in wanted.names) == wanted.is_exclude:
        return False
    return not wanted.tags or set(wanted.tags).isdisjoint(scan.tags) == wanted.is_exclude


def _check_timing(
    entry: CompiledEntry, scan: Scan, effect: TimedEffect | None, step: Step
) -> Reason | None:
    now, delay = scan.message_count, entry.entry.delay or 0
    if now < delay:
        return Reason("delay", count=delay - now)
    if effect is not None and now < effect.sticky_until:
        return None  # sticky entries skip the recursion rules
    if effect is not None and effect.cooldown_until is not None and now < effect.cooldown_until:
        return Reason("cooldown", count=effect.cooldown_until - now)
    level = entry.entry.delay_until_recursion
    if level and (step.kind != "recursion" or level > step.level):
        return Reason("recursion_level", count=level)
    if entry.entry.exclude_recursion and step.kind == "recursion":
        return Reason("recursion_excluded")
    return None


def _check_decorators(
    entry: CompiledEntry, scan: Scan, effect: TimedEffect | None
) -> Reason | None:
    says = entry.says
    if says.dont_activate:
        return Reason("dont_activate")
    if says.dont_activate_after_match and effect is not None:
        return Reason("dont_activate_after_match")
    is_other_greeting = scan.greeting is not None and scan.greeting != says.is_greeting
    if says.is_greeting is not None and is_other_greeting:
        return Reason("is_greeting")
    return None


def _check_counts(entry: CompiledEntry, scan: Scan) -> Reason | None:
    after, every = entry.says.activate_only_after, entry.says.activate_only_every
    if after is not None and scan.reply_count < after:
        return Reason("activate_only_after", count=after - scan.reply_count)
    if every is not None and scan.reply_count % every:
        return Reason("activate_only_every")
    return None
