"""Why something is in a prompt, or is not: what was decided as data, and the same in words.

What decides gives a `Reason`; the record of a prompt keeps it, and the API shows it. Only what
people read is made into a sentence, by `render_reasons`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

ReasonKind = Literal[
    # Where a section comes from.
    "default",
    "settings",
    "chat_settings",
    "card",
    "preset",
    "persona",
    "summary",
    "campaign",
    "glossary",
    "state",
    "turn",
    "opening",
    "continue",
    "next",
    "impersonate",
    "suggestions",
    # What brought a memory or an entry of a lorebook in.
    "key",
    "secondary_key",
    "semantic",
    "words",
    "pinned",
    "named",
    "followed",
    "constant",
    "sticky",
    "activate",
    "keep_activate_after_match",
    # What kept an entry out.
    "disabled",
    "trigger",
    "character_filter",
    "delay",
    "cooldown",
    "recursion_level",
    "recursion_excluded",
    "dont_activate",
    "dont_activate_after_match",
    "is_greeting",
    "activate_only_after",
    "activate_only_every",
    "exclude_key",
    "additional_keys",
    "secondary_keys",
    "group",
    "probability",
    "inactive",
    "empty",
    "macros",
    "no_key",
    "note_not_due",
    "outlet_unread",
    "block_off",
    # What there was no room for.
    "budget",
    "budget_left",
    "book_budget",
    "gave_way",
    "no_room",
    "too_long",
    "truncated",
    "summary_no_room",
    "summary_too_old",
    "in_history",
    "not_listed",
    # What a search found and did not bring up.
    "not_near",
    "repeats",
    "max_items",
    "not_current",
]

FoundInKind = Literal[
    "line",
    "message",
    "text",
    "entry",
    "authors_note",
    "persona_description",
    "character_description",
    "character_personality",
    "character_depth_prompt",
    "scenario",
    "creator_notes",
]


class FoundIn(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a key was found in.

    Attributes:
        kind: What kind of text it is.
        number: Of a message, from 1; of an entry, the step of recursion.
        title: Of an entry.
    """

    kind: FoundInKind
    number: int | None = None
    title: str = ""


MatchKind = Literal[
    "meaning",
    "words",
    "meaning_around",
    "words_around",
    "question",
    "scene",
    "event",
    "speaker",
    "time",
]


class Match(msgspec.Struct, frozen=True, omit_defaults=True):
    """One signal of a search that speaks for what it found.

    Attributes:
        kind: What is near: the text itself, the lines around it, a question that it answers, its
            scene, an event or a fact that was made from it, who says it, when.
        strength: How much of what is enough by itself there is, from 1 on all of it. Of a scene and
            an event how near it is against the best one; of who and when always 1.
        words: Which words it has of those that were asked for, where texts are shown.
        name: Who says it.
    """

    kind: MatchKind
    strength: float = 1.0
    words: tuple[str, ...] = ()
    name: str = ""


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reason. Which fields are set goes by its kind.

    Attributes:
        kind: What decided.
        key: The key that was said, as it was written.
        found_in: What it was said in.
        name: Of a group, a lorebook, an outlet, an entity, or the limit that macros went beyond;
            why the state block has its form; which terms of a glossary found room.
        winner: The title of the entry that came in instead.
        count: Messages, replies or tokens left; the level of recursion; the last message of a
            summary, or the one that something followed from, from 1; the most that macros may do.
        chance: How often the entry comes in, in per cent.
        score: What a search made of it, from 0 to 1 about; how much it has of what it takes.
        rank: Where the search has it, or what it repeats, from 1.
        signals: What of the search speaks for it.
    """

    kind: ReasonKind
    key: str = ""
    found_in: FoundIn | None = None
    name: str = ""
    winner: str = ""
    count: int | None = None
    chance: float | None = None
    score: float | None = None
    rank: int | None = None
    signals: tuple[Match, ...] = ()


_WORDS: Final[Mapping[ReasonKind, str]] = {
    "chat_settings": "chat settings",
    "summary": "summary through message {count}",
    "glossary": "glossary, {name} terms",
    "state": "state block: {name}",
    "named": "named: {name}",
    "followed": "what message {count} changed, as it is now",
    "key": "key {key}{place}",
    "secondary_key": "secondary key {key}{place}",
    "semantic": "semantic {score:.2f}, rank {rank}",
    "words": "words {score:.2f}, rank {rank}",
    "sticky": "sticky, {messages} left",
    "activate": "decorator @@activate",
    "keep_activate_after_match": "decorator @@keep_activate_after_match",
    "character_filter": "character filter",
    "delay": "delay, {messages} to go",
    "cooldown": "cooldown, {messages} left",
    "recursion_level": "recursion, waits for level {count}",
    "recursion_excluded": "recursion, excluded from it",
    "dont_activate": "decorator @@dont_activate",
    "dont_activate_after_match": "decorator @@dont_activate_after_match",
    "is_greeting": "decorator @@is_greeting",
    "activate_only_after": "decorator @@activate_only_after, {replies} to go",
    "activate_only_every": "decorator @@activate_only_every",
    "exclude_key": "exclude key {key}",
    "additional_keys": "additional keys",
    "secondary_keys": "secondary keys",
    "group": 'group "{name}" lost to "{winner}"',
    "probability": "probability {chance:g}%",
    "inactive": "not on the active path",
    "empty": "empty content",
    "macros": "macros: more than {count:,} {name}",
    "no_key": "no key was said",
    "note_not_due": "author's note, not due",
    "block_off": "the preset has no such block, or it is off",
    "outlet_unread": 'no field reads the outlet "{name}"',
    "budget_left": "budget, {tokens} left",
    "book_budget": 'budget of the book "{name}"',
    "gave_way": "budget, @@ignore_on_max_context",
    "no_room": "no room in the context",
    "too_long": "more lore than the context could hold",
    "summary_no_room": "summary through message {count}: no room for it",
    "summary_too_old": "summary through message {count}: does not reach the oldest kept message",
    "in_history": "already in history",
    "not_listed": "not listed",
    "not_near": "too far from what was asked, {score:.0%} of what it takes",
    "repeats": "says the same as rank {rank}",
    "max_items": "more memories than `max_items`",
    "not_current": "on another branch, hidden, switched off, or replaced",
}
"""What is said of each kind. Those that are missing are the word itself."""

_PLACES: Final[Mapping[FoundInKind, str]] = {
    "line": "the line",
    "text": "the text",
    "authors_note": "the author's note",
    "persona_description": "the persona's description",
    "character_description": "the character's description",
    "character_personality": "the character's personality",
    "character_depth_prompt": "the character's note",
    "scenario": "the scenario",
    "creator_notes": "the creator's notes",
}


_MATCHES: Final[Mapping[MatchKind, str]] = {
    "meaning": "is about the same",
    "words": "has its words",
    "meaning_around": "the lines around it are about this",
    "words_around": "the lines around it have its words",
    "question": "a question that this line answers",
    "scene": "the scene is about it",
    "event": "what came of it is about this",
    "speaker": "{name} says it",
    "time": "said in the time that was asked for",
}

NEARLY = 2.0
"""Strength from which a text says nearly what was asked."""


def render_reasons(reasons: Iterable[Reason]) -> str:
    """The reasons in English, with semicolons between."""
    return "; ".join(map(_told, reasons))


def render_matches(matches: Iterable[Match]) -> str:
    """What speaks for something that was found, in English, with commas between."""
    return ", ".join(map(_told_match, matches))


def _told_match(match: Match) -> str:
    if match.words:
        noun = "word" if len(match.words) == 1 else "words"
        return f"has the {noun} " + ", ".join(f'"{word}"' for word in match.words)
    if match.kind == "meaning" and match.strength >= NEARLY:
        return "says nearly the same"
    if match.kind == "meaning" and match.strength < 1:
        return "is a little about it"
    return _MATCHES[match.kind].format(name=match.name)


def _told(reason: Reason) -> str:
    words = _told_kind(reason)
    return f"{words}: {render_matches(reason.signals)}" if reason.signals else words


def _told_kind(reason: Reason) -> str:
    key, count = reason.key, reason.count or 0
    return _WORDS.get(reason.kind, reason.kind).format(
        key=key if key.startswith("/") else f'"{key}"',  # a regex stands between its slashes
        place=f" in {_place(reason.found_in)}" if reason.found_in else "",
        name=reason.name,
        winner=reason.winner,
        count=count,
        messages="1 message" if count == 1 else f"{count} messages",
        replies="1 reply" if count == 1 else f"{count} replies",
        tokens="1 token" if count == 1 else f"{count} tokens",
        chance=reason.chance or 0,
        score=reason.score or 0,
        rank=reason.rank,
    )


def _place(found_in: FoundIn) -> str:
    if found_in.kind == "message":
        return f"message {found_in.number}"
    if found_in.kind == "entry":
        return f'entry "{found_in.title}" (recursion {found_in.number})'
    return _PLACES[found_in.kind]
