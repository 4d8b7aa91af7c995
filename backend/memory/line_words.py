"""The words of a line, and how much of what it says or asks an indexed text has.

The index weighs a word by how rare it is among a user's points. In a young world no word is rare
there, and in a running chat the lines before a question hold its words. So two things are
computed here from the terms of the texts that were found:

- a BM25 score whose rareness is that of a corpus of `MANY` texts, a floor below the index's score;
- how much a line is about a text (`aboutness`): the share of its words that the text has, where a
  common word of the language counts little, even if no other text of the user's has it.

How common a word is in general is read from the place that it has in the vocabulary that tokens
are counted with. The thresholds and what they bring: docs/retrieval.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from msgspec import structs

from backend.generation.tokens import Tokenizer, get_tokenizer
from backend.memory.index.protocol import Sparse
from backend.memory.parsed_query import ParsedQuery
from backend.memory.signals import DENSE_SIGNALS, Found
from backend.memory.terms import query_terms, query_words
from backend.memory.thresholds import MANY, corpus_factor
from backend.vault.blinding import Blinder

QUESTION = 0.48
"""How much of a question's words a text has that the question is about."""

STATEMENT = 0.75
"""The same for a line that asks nothing: it may mention many things, and be about none."""

MAX_WORDS = 64
"""Words of a line or a question; the others are not looked at."""

VOCABULARY = "o200k_base"
COMMON, RARE = 1_000, 100_000
"""Places in the vocabulary: words up to `COMMON` count least, words from `RARE` on count fully."""

_LEAST = 0.05
"""How much the most common words count."""


class Reading(NamedTuple):
    """One way to read a line: all of it, or one question in it.

    Attributes:
        words: Of each word the ids of its terms, and how rare it is in general, up to 1.
        enough: The share of them that a text must have for the reading to be about it.
    """

    words: Sequence[tuple[frozenset[int], float]]
    enough: float

    def aboutness(self, there: frozenset[int]) -> float:
        """How much of what is enough a text has, from its terms; 1 is enough.

        The share of the words, by their rareness, times how much the shared ones weigh at all
        (the root of the sum of their squares, at most 1): two common words are not one rare one.
        """
        shared = [weight for terms, weight in self.words if not terms.isdisjoint(there)]
        if not shared:
            return 0.0
        share = sum(shared) / sum(weight for _, weight in self.words)
        return share * min(1.0, math.hypot(*shared)) / self.enough


@dataclass(frozen=True, slots=True)
class LineWords:
    """The words of a line, blinded as the index has them.

    Attributes:
        terms: The ids of the terms that are asked for, with their weights; without the context's.
        readings: The ways to read it.
    """

    terms: Mapping[int, float]
    readings: Sequence[Reading]

    def match(self, texts: Mapping[UUID, Sparse]) -> dict[UUID, WordMatch]:
        """How well each of some texts matches, by their sparse vectors.

        A term that many of these texts have is as common as that. O(terms of all texts).
        """
        shared = {each: self._shared(text) for each, text in texts.items()}
        counts = Counter(term for terms in shared.values() for term in terms)
        rarity = {term: _idf(count) for term, count in counts.items()}
        return {
            each: WordMatch(
                bm25=sum(
                    self.terms[term] * rarity[term] * weight for term, weight in terms.items()
                ),
                aboutness=max(
                    (reading.aboutness(frozenset(terms)) for reading in self.readings), default=0.0
                ),
            )
            for each, terms in shared.items()
        }

    def _shared(self, text: Sparse) -> dict[int, float]:
        pairs = zip(text.ids.tolist(), text.weights.tolist(), strict=True)
        return {term: weight for term, weight in pairs if term in self.terms}


class WordMatch(NamedTuple):
    """What the words of a line say of a text: see the head of this module."""

    bm25: float
    aboutness: float


def read_words(parsed: ParsedQuery, blinder: Blinder) -> LineWords:
    """The words of a line for texts that are no lines of a chat.

    The first call in a process loads the vocabulary, which takes half a second.
    """
    tokenizer = get_tokenizer(VOCABULARY)
    enough = QUESTION if parsed.questions else STATEMENT
    texts = [(each, QUESTION) for each in parsed.questions]
    texts += [(each, enough) for each in dict.fromkeys([parsed.lore_terms, parsed.terms])]
    weights = query_terms(parsed.lore_terms)
    return LineWords(
        terms={blinder.term_id(term): weight for term, weight in weights.items()},
        readings=[Reading(_words(text, tokenizer, blinder), least) for text, least in texts],
    )


def in_large_corpus(found: Found, points: int) -> Found:
    """Hits with the scores by words that a corpus of `MANY` points would give them.

    `points` are those of the user. Cosines do not change.
    """
    factor = corpus_factor(points)
    if factor == 1:
        return found
    return {
        signal: hits
        if signal in DENSE_SIGNALS
        else [structs.replace(hit, score=hit.score * factor) for hit in hits]
        for signal, hits in found.items()
    }


def with_matches(found: Found, matches: Mapping[UUID, WordMatch]) -> Found:
    """Hits whose scores by words are at least those of their matches, best first."""
    if not matches:
        return found
    hits = [
        structs.replace(hit, score=max(hit.score, matches[hit.id].bm25))
        if hit.id in matches
        else hit
        for hit in found["sparse"]
    ]
    return {**found, "sparse": sorted(hits, key=lambda hit: -hit.score)}


def _words(text: str, tokenizer: Tokenizer, blinder: Blinder) -> list[tuple[frozenset[int], float]]:
    """The first words of a text that have a term in its own language."""
    found = ((word, terms) for word, terms in query_words(text).items() if max(terms.values()) == 1)
    return [
        (
            frozenset(map(blinder.term_id, terms)),
            min(_rareness(form, tokenizer) for form in _forms(word, terms)),
        )
        for word, terms in islice(found, MAX_WORDS)
    ]


def _forms(word: str, terms: Mapping[str, float]) -> list[str]:
    """A word and its stem: of a rare form of a common word the stem is common."""
    return [word, *(term for term, weight in terms.items() if weight == 1)]


def _rareness(word: str, tokenizer: Tokenizer) -> float:
    """How much a word counts, from its place in the vocabulary: 1 for a rare one."""
    forms = [f" {word}"] if word.isascii() else [f" {word}", word]
    places = [place for form in forms if (place := tokenizer.rank(form)) is not None]
    if not places:
        return 1.0
    depth = math.log((min(places) + 1) / COMMON) / math.log(RARE / COMMON)
    return min(1.0, max(_LEAST, depth))


def _idf(count: int) -> float:
    """The IDF of a term that so many of `MANY` texts have, by the index's formula."""
    return math.log1p((MANY - count + 0.5) / (count + 0.5))
