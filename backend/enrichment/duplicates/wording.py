"""What the words of an event say, and in what the words of two events differ.

Two events of one story share their people and their places, and may still be two: another was
killed, the door is closed now, the promise was kept. Embeddings hardly tell such apart. So the
words are looked at: who acts, what is denied, what is done and what only announced, numbers, and
names that one has and the other has not. Beyond terms and numbers the rules are for English.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from backend.chronicles.events import EventFields
from backend.enrichment.duplicates.same_words import (
    CONVERSE,
    LIGHT,
    MEANINGS,
    NUMBERS,
    OPPOSITES,
    PHRASES,
)
from backend.memory.terms import TermCounter

Difference = Literal[
    "day", "numbers", "negation", "names", "subject", "done", "opposite"
]  # fmt: skip
"""What tells two events apart, whatever else they share."""

NAME_WEIGHT = 0.5
"""What a name counts beside another word: events of one story share their names."""

_WORD = re.compile(r"\w+(?:['’]\w+)*")  # noqa: RUF001  # a typographic apostrophe
_POSSESSIVE = re.compile(r"['’]s?$")  # noqa: RUF001
_DENIAL = re.compile(r"n['’]t$")  # noqa: RUF001
_CLAUSE_END = re.compile(r"[.;:!?]")


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEGATIONS = _set(
    """not no never nobody none nothing nowhere neither nor without cannot hardly fail failed fails
    unable refuse refused refuses decline declined declines deny denied denies"""
)
_ANNOUNCING = _set("to would will shall should must may might i'll he'll she'll they'll")
_BETWEEN = _set("be have not soon never surely")
_PREPOSITIONS = _set(
    """of by with from to for about in at on under beneath near into through against before after
    below behind across outside inside towards over upon like as when while that because since"""
)
_NO_SUBJECT_AFTER = _PREPOSITIONS - {"of"}
_TITLES = _set("the a an her his their this that old young little late dear whole")
_AUXILIARIES = _set("is was are were been be being got gets")
_PARTICLES = (("up", "down"), ("on", "off"), ("before", "after"), ("above", "below"))
"""Stop words, which are no terms; but of which one is not the other."""
_ALL_PARTICLES = frozenset(word for pair in _PARTICLES for word in pair)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """An event's terms (those that mean the same are one), and what of it decides by itself.

    `subject` is who does what the event is about. `sides` has the meanings that can be told from
    either side, with the side that is told. `undone` are terms of what is announced or ordered,
    `done` all others.
    """

    text: str
    terms: frozenset[str]
    particles: frozenset[str]
    names: frozenset[str]
    numbers: frozenset[str]
    subject: frozenset[str]
    sides: frozenset[tuple[str, int]]
    undone: frozenset[str]
    done: frozenset[str]
    is_negated: bool
    day: int | None


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    term: str
    side: int
    is_name: bool
    is_possessive: bool


def worded(fields: EventFields, terms: TermCounter) -> Wording:
    """The words of an event."""
    summary = fields.summary
    for pattern, word in PHRASES:
        summary = pattern.sub(word, summary)
    cast = frozenset(word for name in fields.who for word in _words_of(name))
    tokens = _tokens(summary, cast)
    numbers = {NUMBERS.get(token.text, token.text) for token in tokens}
    stems = {_meaning(term)[0] for term in terms.document(summary)}
    announced = _announced(tokens)
    return Wording(
        text=" ".join(fields.summary.casefold().split()),
        terms=frozenset(stems - _light()),
        particles=_ALL_PARTICLES.intersection(token.text for token in tokens),
        names=frozenset(token.term for token in tokens if token.is_name),
        numbers=frozenset(each for each in numbers if each.isdigit() and each not in {"0", "1"}),
        subject=_subject(tokens),
        sides=frozenset((token.term, token.side) for token in tokens if token.term in _converse()),
        undone=frozenset(tokens[at].term for at in announced) - {""},
        done=frozenset(token.term for at, token in enumerate(tokens) if at not in announced),
        is_negated=sum(_is_negation(token.text) for token in tokens) % 2 == 1,
        day=fields.day,
    )


def overlap(new: Wording, old: Wording) -> float:
    """How much of what `new` says `old` says as well, in [0, 1].

    Names do not count, where there are other words. An event that tells more than an old one does
    is not contained in it.
    """
    told = new.terms - new.names or new.terms
    return len(told & old.terms) / len(told) if told else 0.0


def likeness(one: Wording, other: Wording) -> float:
    """How many of the words of either are in both (Jaccard), in [0, 1]. Names count half."""
    names = one.names | other.names

    def weight(terms: frozenset[str]) -> float:
        return sum(NAME_WEIGHT if term in names else 1.0 for term in terms)

    either = weight(one.terms | other.terms)
    if not either:
        return float(one.text == other.text)
    return weight(one.terms & other.terms) / either


def differences(one: Wording, other: Wording) -> frozenset[Difference]:
    """What speaks against their saying the same."""
    found: dict[Difference, bool] = {
        "day": one.day is not None and other.day is not None and one.day != other.day,
        "numbers": one.numbers != other.numbers,
        "negation": one.is_negated != other.is_negated,
        "names": bool(one.names - other.names) and bool(other.names - one.names),
        "subject": _other_subject(one, other),
        "done": bool(_really(one) & other.undone - other.done)
        or bool(_really(other) & one.undone - one.done),
        "opposite": _are_opposite(one, other) or _are_opposite(other, one),
    }
    return frozenset(name for name, differs in found.items() if differs)


def _really(wording: Wording) -> frozenset[str]:
    return wording.done - wording.undone - wording.names


def _are_opposite(one: Wording, other: Wording) -> bool:
    """Whether `one` says a word of a pair, and `other` the second one, which `one` does not."""
    return any(
        first in one.terms and second in other.terms and second not in one.terms
        for first, second in _opposites()
    ) or any(
        one.particles.intersection(pair) == frozenset(pair[:1])
        and other.particles.intersection(pair) == frozenset(pair[1:])
        for pair in _PARTICLES
    )


def _other_subject(one: Wording, other: Wording) -> bool:
    """Whether somebody else does it: the same side of it told of another, or the other of one."""
    if not one.subject or not other.subject:
        return False
    is_other = not one.subject & other.subject
    turned = any((term, -side) in other.sides for term, side in one.sides) and not (
        one.sides & other.sides
    )
    return is_other != turned


def _tokens(summary: str, cast: frozenset[str]) -> list[_Token]:
    tokens: list[_Token] = []
    end = 0
    for match in _WORD.finditer(summary):
        word = match.group()
        begins = not tokens or bool(_CLAUSE_END.search(summary, end, match.start()))
        end = match.end()
        plain = _POSSESSIVE.sub("", word)
        small = plain.casefold()
        is_name = small in cast or (word[0].isupper() and not begins)
        term, side = _meaning(_stem(small))
        tokens.append(_Token(small, term, side, is_name, plain != word))
    return tokens


def _subject(tokens: Sequence[_Token]) -> frozenset[str]:
    """Names of who acts: after `by` where it is told in the passive, else the first."""
    for at, token in enumerate(tokens):
        if token.text == "by" and any(
            each.text in _AUXILIARIES for each in tokens[max(0, at - 5) : at]
        ):
            named = _name_from(tokens, at + 1)
            if named:
                return named
    before = ""  # the last word that is neither a title nor a name
    for at, token in enumerate(tokens):
        if token.is_name and not token.is_possessive and before not in _NO_SUBJECT_AFTER:
            return _name_from(tokens, at)
        if not token.is_name and token.text not in _TITLES:
            before = token.text
    return frozenset()


def _name_from(tokens: Sequence[_Token], at: int) -> frozenset[str]:
    """The names that begin there, with those that `and` joins to them."""
    found: set[str] = set()
    for place in range(at, len(tokens)):
        token = tokens[place]
        if token.is_possessive:
            break
        if token.is_name:
            found.add(token.term)
        elif token.text not in _TITLES and token.text != "and":
            break
    return frozenset(found)


def _announced(tokens: Sequence[_Token]) -> set[int]:
    """Places of the words that stand after `to`, `will` and the like: it has not happened."""
    found: set[int] = set()
    is_announced = False
    for at, token in enumerate(tokens):
        if is_announced and not token.is_name:
            found.add(at)
        if token.text not in _BETWEEN:
            is_announced = token.text in _ANNOUNCING
    return found


def _is_negation(word: str) -> bool:
    return word in _NEGATIONS or bool(_DENIAL.search(word))


def _words_of(name: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(name) if word[0].isupper()]


_stem = TermCounter("english").stem


@cache
def _meanings() -> dict[str, tuple[str, int]]:
    return {_stem(word): (_stem(like), side) for word, (like, side) in MEANINGS.items()}


@cache
def _converse() -> frozenset[str]:
    return frozenset(_stem(word) for word in CONVERSE)


@cache
def _light() -> frozenset[str]:
    """Stems that do not count: words that say little, and numbers, which are compared apart."""
    return frozenset(_meaning(_stem(word))[0] for word in [*LIGHT, *NUMBERS])


@cache
def _opposites() -> tuple[tuple[str, str], ...]:
    return tuple((_stem(one), _stem(other)) for one, other in OPPOSITES)


def _meaning(stem: str) -> tuple[str, int]:
    """What a stem stands for, and from which side."""
    return _meanings().get(stem, (stem, 1))
