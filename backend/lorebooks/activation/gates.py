"""What keeps an entry out, whatever its keys say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from backend.lorebooks.activation.compiled import CompiledEntry
from backend.lorebooks.activation.outcome import Scan
from backend.lorebooks.activation.timed import TimedEffect
from backend.lorebooks.entries import CharacterFilter
from backend.reasons import Reason


@dataclass(frozen=True, slots=True)
class Step:
    """One pass over the entries.

    Attributes:
        kind: The first; one over what the last one let in; or one that reads further back, because
            too few entries are in.
        number: 0 for the first, then the steps of recursion from 1.
        level: Entries that wait for recursion up to this level may come in.
    """

    kind: Literal["first", "recursion", "deeper"]
    number: int
    level: int


def is_forced(entry: CompiledEntry, effect: TimedEffect | None) -> bool:
    """Whether a decorator lets the entry in whatever else decorators and keys say."""
    return entry.says.activate or (entry.says.keep_activate_after_match and effect is not None)


def why_not(
    entry: CompiledEntry, scan: Scan, effect: TimedEffect | None, step: Step
) -> Reason | None:
    """Why the entry can't come in at this step; null where it can. The first reason counts."""
    return (
        _settings_gate(entry, scan)
        or _timed_gate(entry, scan, effect, step)
        or _decorator_gate(entry, scan, effect)
        or _counting_gate(entry, scan, effect)
    )


def _settings_gate(entry: CompiledEntry, scan: Scan) -> Reason | None:
    stored = entry.entry
    if not stored.enabled:
        return Reason("disabled")
    if stored.triggers and not any(trigger in stored.triggers for trigger in scan.triggers):
        return Reason("trigger")
    return None if _is_for(stored.character_filter, scan) else Reason("character_filter")


def _timed_gate(
    entry: CompiledEntry, scan: Scan, effect: TimedEffect | None, step: Step
) -> Reason | None:
    now, delay = scan.message_count, entry.entry.delay or 0
    if now < delay:
        return Reason("delay", count=delay - now)
    if effect is not None and now < effect.sticky_until:
        return None  # what is sticky asks no recursion either
    if effect is not None and effect.cooldown_until is not None and now < effect.cooldown_until:
        return Reason("cooldown", count=effect.cooldown_until - now)
    return _recursion_gate(entry, step)


def _is_for(wanted: CharacterFilter, scan: Scan) -> bool:
    """As World Info has it: names and tags must each let the character in, where they are given."""
    if wanted.names and (scan.speaker in wanted.names) == wanted.is_exclude:
        return False
    return not wanted.tags or set(wanted.tags).isdisjoint(scan.tags) == wanted.is_exclude


def _recursion_gate(entry: CompiledEntry, step: Step) -> Reason | None:
    level = entry.entry.delay_until_recursion
    if level and (step.kind != "recursion" or level > step.level):
        return Reason("recursion_level", count=level)
    if entry.entry.exclude_recursion and step.kind == "recursion":
        return Reason("recursion_excluded")
    return None


def _decorator_gate(entry: CompiledEntry, scan: Scan, effect: TimedEffect | None) -> Reason | None:
    says = entry.says
    if is_forced(entry, effect):
        return None
    if says.dont_activate:
        return Reason("dont_activate")
    if says.dont_activate_after_match and effect is not None:
        return Reason("dont_activate_after_match")
    is_other_greeting = scan.greeting is not None and scan.greeting != says.is_greeting
    if says.is_greeting is not None and is_other_greeting:
        return Reason("is_greeting")
    return None


def _counting_gate(entry: CompiledEntry, scan: Scan, effect: TimedEffect | None) -> Reason | None:
    says = entry.says
    if is_forced(entry, effect):
        return None
    if says.activate_only_after is not None and scan.reply_count < says.activate_only_after:
        return Reason("activate_only_after", count=says.activate_only_after - scan.reply_count)
    if says.activate_only_every is not None and scan.reply_count % says.activate_only_every:
        return Reason("activate_only_every")
    return None
