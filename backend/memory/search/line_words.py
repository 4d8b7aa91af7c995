"""The words of a line, compared with the terms of indexed texts.

The index weighs a word by how rare it is among a user's points. In a young world no word is rare
there, and in a running chat the lines before a question contain its words. So two figures are
computed here from the terms of the texts that were found:

- a BM25 score with the rareness of a corpus of `MANY` texts, as a floor below the index's score;
- `aboutness`: the share of the line's words that the text has, where common words of the language
  count little.

The place of a word in the vocabulary that tokens are counted with says how common it is. The limits
and their effect: docs/explanation/quality.md.
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
from backend.memory.search.features import DENSE_SIGNALS, Found
from backend.memory.search.query import ParsedQuery
from backend.memory.search.ranking import MANY, find_corpus_factor
from backend.memory.search.terms import list_forms, query_terms, query_words
from backend.vault.blinding import Blinder

QUESTION = 0.48
"""The share of a question's words that a text must have."""

STATEMENT = 0.75
"""The same for other lines: they may mention many things, and be about none."""

MAX_WORDS = 64
"""Words of a line or a question that are compared, the first ones."""

VOCABULARY = "o200k_base"
COMMON, RARE = 1_000, 100_000
"""Places in the vocabulary: words up to `COMMON` count least, words from `RARE` on count fully."""

_LEAST = 0.05
"""The weight of the most common words; rare ones have 1."""


class Reading(NamedTuple):
    """One way to read a line: all of it, or one question in it.

    Attributes:
        words: The ids of each word's terms, and its weight: how rare it is in general, up to 1.
        enough: The share of them that a text must have.
    """

    words: Sequence[tuple[frozenset[int], float]]
    enough: float

    def measure(self, text_terms: frozenset[int]) -> float:
        """Return how much the reading is about a text with these terms; from 1 on it is.

        It is the weighted share of the words that the text has, times the length of the vector of
        their weights (at most 1): two common words are not one rare word.
        """
        shared = [weight for terms, weight in self.words if not terms.isdisjoint(text_terms)]
        if not shared:
            return 0.0
        share = sum(shared) / sum(weight for _, weight in self.words)
        return share * min(1.0, math.hypot(*shared)) / self.enough


@dataclass(frozen=True, slots=True)
class LineWords:
    """The words of a line, blinded as the index has them.

    Attributes:
        terms: The ids of its terms with their weights. Those of the last exchange are not in it.
        readings: The ways to read it.
    """

    terms: Mapping[int, float]
    readings: Sequence[Reading]

    def match(self, texts: Mapping[UUID, Sparse]) -> dict[UUID, WordMatch]:
        """Compare the line with texts, by their sparse vectors.

        A term is taken to be in no other text of the corpus. O(terms of all texts).
        """
        shared = {each: self._find_shared(text) for each, text in texts.items()}
        counts = Counter(term for terms in shared.values() for term in terms)
        rarity = {term: _compute_idf(count) for term, count in counts.items()}
        return {
            each: WordMatch(
                bm25=sum(
                    self.terms[term] * rarity[term] * weight for term, weight in terms.items()
                ),
                aboutness=max(
                    (reading.measure(frozenset(terms)) for reading in self.readings), default=0.0
                ),
            )
            for each, terms in shared.items()
        }

    def _find_shared(self, text: Sparse) -> dict[int, float]:
        pairs = zip(text.ids.tolist(), text.weights.tolist(), strict=True)
        return {term: weight for term, weight in pairs if term in self.terms}


class WordMatch(NamedTuple):
    """The two figures of a text: see the head of this module."""

    bm25: float
    aboutness: float


def read_words(parsed: ParsedQuery, blinder: Blinder) -> LineWords:
    """Read a line in several ways: as a whole, without names, and each question in it.

    The first call in a process loads the vocabulary, which takes half a second.
    """
    tokenizer = get_tokenizer(VOCABULARY)
    enough = QUESTION if parsed.questions else STATEMENT
    texts = [(each, QUESTION) for each in parsed.questions]
    texts += [(each, enough) for each in dict.fromkeys([parsed.lore_terms, parsed.terms])]
    terms: dict[int, float] = {}
    for text, _ in texts:
        for term, weight in query_terms(text).items():
            number = blinder.term_id(term)
            terms[number] = max(weight, terms.get(number, 0.0))
    return LineWords(
        terms=terms,
        readings=[Reading(_read_words(text, tokenizer, blinder), least) for text, least in texts],
    )


def scale_to_large_corpus(found: Found, points: int) -> Found:
    """Bring BM25 scores of a user with so many points to the scale of one with `MANY`."""
    factor = find_corpus_factor(points)
    if factor == 1:
        return found
    return {
        signal: hits
        if signal in DENSE_SIGNALS
        else [structs.replace(hit, score=hit.score * factor) for hit in hits]
        for signal, hits in found.items()
    }


def find_aboutness(found: Found, matches: Mapping[UUID, WordMatch]) -> dict[int, float]:
    """Return how much the line is about each row, by its best chunk and the number of its id."""
    best: dict[int, float] = {}
    for hit in found.get("sparse", ()):
        if hit.id in matches:
            row = hit.payload.source_id.int
            best[row] = max(matches[hit.id].aboutness, best.get(row, 0.0))
    return best


def apply_matches(found: Found, matches: Mapping[UUID, WordMatch]) -> Found:
    """Raise BM25 scores of hits to those of their matches; the best hits come first."""
    if not matches:
        return found
    hits = [
        structs.replace(hit, score=max(hit.score, matches[hit.id].bm25))
        if hit.id in matches
        else hit
        for hit in found["sparse"]
    ]
    return {**found, "sparse": sorted(hits, key=lambda hit: -hit.score)}


def _read_words(
    text: str, tokenizer: Tokenizer, blinder: Blinder
) -> list[tuple[frozenset[int], float]]:
    """Return the words of a text that have a term in its own language, with their weights."""
    found = ((word, terms) for word, terms in query_words(text).items() if max(terms.values()) == 1)
    return [
        (
            frozenset(map(blinder.term_id, terms)),
            min(_estimate_rareness(form, tokenizer) for form in list_forms(word)),
        )
        for word, terms in islice(found, MAX_WORDS)
    ]


def _estimate_rareness(word: str, tokenizer: Tokenizer) -> float:
    """Return the weight of a word by its place in the vocabulary: 1 for a rare one."""
    forms = [f" {word}"] if word.isascii() else [f" {word}", word]
    places = [place for form in forms if (place := tokenizer.rank(form)) is not None]
    if not places:
        return 1.0
    depth = math.log((min(places) + 1) / COMMON) / math.log(RARE / COMMON)
    return min(1.0, max(_LEAST, depth))


def _compute_idf(count: int) -> float:
    """Return the IDF of a term in so many of `MANY` texts, by the index's formula."""
    return math.log1p((MANY - count + 0.5) / (count + 0.5))
