"""Reasons why an item is in a prompt or was left out, and why a character speaks.

Code that decides returns a `Reason`. The record of the prompt stores it, and the API returns it.
`render_reasons` turns reasons into sentences for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal
from uuid import UUID

import msgspec

ReasonKind = Literal[
    # Sources of sections.
    "default",
    "settings",
    "chat_settings",
    "card",
    "preset",
    "persona",
    "public_part",
    "speaker",
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
    "client",
    # Reasons to include a memory or a lorebook entry.
    "key",
    "secondary_key",
    "semantic",
    "words",
    "pinned",
    "named",
    "followed",
    "other_chat",
    "constant",
    "sticky",
    "activate",
    "keep_activate_after_match",
    # Reasons to leave out a lorebook entry.
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
    "client_replaces",
    # Limits of the budget.
    "budget",
    "budget_left",
    "book_budget",
    "gave_way",
    "no_room",
    "too_long",
    "truncated",
    "summary_no_room",
    "summary_too_old",
    "summary_older",
    "summary_unknown",
    "in_history",
    "not_listed",
    # Reasons of the viewpoint.
    "unknown",
    "state_unknown",
    # Reasons to leave out a search result.
    "not_near",
    "repeats",
    "same_evidence",
    "max_items",
    "not_current",
    # Reasons for the speaker of a turn.
    "speaker_asked",
    "speaker_kept",
    "speaker_named",
    "speaker_waiting",
    "speaker_drawn",
    "speaker_listed",
    "speaker_pooled",
    "speaker_redrawn",
    "speaker_alone",
    "speaker_by_model",
    "speaker_not_by_model",
    "speaker_by_model_later",
    "speaker_by_hand",
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
    """The text that contains an activation key.

    `number` is the position of a message, from 1, or the recursion step of an entry. `title` is
    that of the entry.
    """

    kind: FoundInKind
    number: int | None = None
    title: str = ""


PreferredBecause = Literal["in_prompt", "current", "says_more", "asked_words", "shorter"]
"""The rule by which one of two texts that say the same is preferred.

`in_prompt`: the prompt contains it anyway. `current`: it is a current fact, or a user wrote it.
`says_more`: it contains the other one. `asked_words`: it has more words of the query. `shorter`: it
says the same in fewer words.
"""

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
    """One search signal that supports a result.

    Attributes:
        kind: The part that matches: the text, the lines around it, an event or a fact made from it,
            its speaker, or its time. `question` and `scene` occur only in old records.
        strength: Score relative to the threshold; 1 or more is sufficient alone. For an event,
            relative to the best one; for speaker and time always 1.
        words: Query words in the text, if texts are shown.
        name: The speaker.
    """

    kind: MatchKind
    strength: float = 1.0
    words: tuple[str, ...] = ()
    name: str = ""


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reason. Its kind determines which other fields are set.

    Attributes:
        kind: The rule that decided.
        key: The activation key, as written.
        found_in: The text that contains the key.
        name: Name of a group, lorebook, outlet, entity, chat or exceeded macro limit; the form of
            the state block; the glossary terms that fit; the viewpoint that does not know an item.
        winner: Title of the entry or item that was chosen instead.
        source_id: The row of that item, if it has one.
        because: The rule by which it was preferred.
        count: Messages, replies or tokens left; recursion level; macro limit; position of a
            message, from 1: the last one of a summary, or the cause of a change.
        chance: Probability of the entry in per cent.
        score: Search score, about 0 to 1, or its share of the threshold.
        rank: Position in the search results, or of the repeated result, from 1.
        signals: Search signals that support the result.
    """

    kind: ReasonKind
    key: str = ""
    found_in: FoundIn | None = None
    name: str = ""
    winner: str = ""
    source_id: UUID | None = None
    because: PreferredBecause | None = None
    count: int | None = None
    chance: float | None = None
    score: float | None = None
    rank: int | None = None
    signals: tuple[Match, ...] = ()


_WORDS: Final[Mapping[ReasonKind, str]] = {
    "chat_settings": "chat settings",
    "public_part": "public part of the card",
    "client": "sent by the client",
    "summary": "summary through message {count}",
    "glossary": "glossary, {name} terms",
    "state": "state block: {name}",
    "named": "named: {name}",
    "followed": "changed by message {count}, in its current state",
    "other_chat": "from the chat '{name}'",
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
    "recursion_excluded": "excluded from recursion",
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
    "no_key": "no key matched",
    "note_not_due": "author's note, not due",
    "block_off": "the preset has no such block, or it is off",
    "client_replaces": "the client's messages replace it",
    "outlet_unread": 'no field reads the outlet "{name}"',
    "budget_left": "budget, {tokens} left",
    "book_budget": 'budget of the book "{name}"',
    "gave_way": "budget, @@ignore_on_max_context",
    "no_room": "no room in the context",
    "too_long": "more lore than the context could hold",
    "summary_no_room": "summary through message {count}: no room for it",
    "summary_too_old": "summary through message {count}: does not reach the oldest kept message",
    "summary_older": "summary through message {count}: only the latest parts are sent",
    "summary_unknown": "summary through message {count}: not known to {name}",
    "in_history": "already in history",
    "not_listed": "not listed",
    "unknown": "not known to {name}",
    "state_unknown": "why it would be sticky or cooling down is not known to {name}",
    "not_near": "not relevant enough ({score:.0%} of the threshold)",
    "repeats": "repeats rank {rank}",
    "same_evidence": '"{winner}" says the same and was preferred, because {because}',
    "max_items": "more memories than `max_items`",
    "not_current": "on another branch, hidden, disabled, or replaced",
    "speaker_asked": "asked to reply",
    "speaker_kept": "speaker of the reply",
    "speaker_named": "named in the last line",
    "speaker_waiting": "named in an earlier line, and has not spoken since",
    "speaker_drawn": "drawn by talkativeness",
    "speaker_listed": "next in the list",
    "speaker_pooled": "drawn from those who have not spoken since the user",
    "speaker_redrawn": "drawn, because all have spoken since the user",
    "speaker_alone": "no one else can reply",
    "speaker_by_model": "chosen by the task model",
    "speaker_not_by_model": "the task model chose no one",
    "speaker_by_model_later": "the task model chooses when the turn begins",
    "speaker_by_hand": "to be chosen by hand",
}

_PREFERENCES: Final[Mapping[PreferredBecause, str]] = {
    "in_prompt": "the prompt contains it anyway",
    "current": "it is current",
    "says_more": "it says more",
    "asked_words": "it has more of the query's words",
    "shorter": "it is shorter",
}

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
    "meaning": "similar meaning",
    "words": "contains the words",
    "meaning_around": "nearby lines have a similar meaning",
    "words_around": "nearby lines contain the words",
    "question": "answers a similar question",
    "scene": "its scene matches",
    "event": "an event made from it matches",
    "speaker": "{name} is the speaker",
    "time": "from the requested time",
}

NEARLY_SAME_STRENGTH = 2.0
"""Strength from which a text is called nearly the same."""


def render_reasons(reasons: Iterable[Reason]) -> str:
    return "; ".join(map(_render_reason, reasons))


def render_matches(matches: Iterable[Match]) -> str:
    return ", ".join(map(_render_match, matches))


def _render_match(match: Match) -> str:
    if match.words:
        noun = "word" if len(match.words) == 1 else "words"
        return f"contains the {noun} " + ", ".join(f'"{word}"' for word in match.words)
    if match.kind == "meaning" and match.strength >= NEARLY_SAME_STRENGTH:
        return "nearly the same meaning"
    if match.kind == "meaning" and match.strength < 1:
        return "slightly similar meaning"
    return _MATCHES[match.kind].format(name=match.name)


def _render_reason(reason: Reason) -> str:
    words = _render_kind(reason)
    return f"{words}: {render_matches(reason.signals)}" if reason.signals else words


def _render_kind(reason: Reason) -> str:
    key, count = reason.key, reason.count or 0
    return _WORDS.get(reason.kind, reason.kind).format(
        key=key if key.startswith("/") else f'"{key}"',  # a regex is written between slashes
        place=f" in {_place(reason.found_in)}" if reason.found_in else "",
        name=reason.name,
        winner=reason.winner,
        because=_PREFERENCES[reason.because] if reason.because else "",
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
