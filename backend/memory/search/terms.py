"""Terms: what a text is about in words, as the sparse half of the index has it.

Words are folded (NFKC, case), freed of stop words and stemmed with Snowball. Scripts that put no
spaces between words are cut into pairs of characters. Weights are BM25's; how rare a term is, the
index weighs in when it is asked.

**Which language.** A word of another script than Latin says its language by itself, as far as
Snowball goes. For Latin words the text's stop words vote. A document that nobody votes for is
taken to be in the default language. A query of a few words has no safe guess, and need not have
one: it is stemmed in every language that got as many votes as any other, and in the default one, so
that a document is met whatever its language was found to be. Stems that no document has cost
nothing. Those of all but the first language weigh half, because a few are stems of other words.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import regex  # type: ignore[import-untyped]  # it has no types
import Stemmer

from backend.core.text_forms import normalize
from backend.memory.index.protocol import Sparse
from backend.vault.blinding import Blinder

K1 = 1.2
B = 0.75
AVERAGE_LENGTH = 256
"""Length, in terms, of the text whose terms are neither lifted nor lowered for its length."""

OTHER_LANGUAGE_WEIGHT = 0.5
ONE_CHARACTER_WEIGHT = 0.4
"""A Chinese character of a query may be a word by itself; as a rule it is part of one."""

LONGEST_TERM = 64
"""Characters of a word that count: nothing longer is a word."""

_UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
)
_TOKEN = regex.compile(
    rf"(?P<unspaced>[{_UNSPACED}]+)"
    rf"|(?P<word>[[\p{{L}}\p{{M}}\p{{N}}]--[{_UNSPACED}]]+"
    rf"(?:'[[\p{{L}}\p{{M}}\p{{N}}]--[{_UNSPACED}]]+)*)",
    regex.VERSION1,
)
_LATIN_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_NOT_LATIN = re.compile(r"[^\0-\u02ff\u2010-\u205e]")
"""Anything but Latin letters and usual punctuation: in texts without it `_LATIN_WORD` finds the
words that `_TOKEN` finds, in a quarter of the time."""

_HAN = regex.compile(r"\p{Han}")
_SCRIPTS = {
    "CYRILLIC": "russian",
    "GREEK": "greek",
    "ARABIC": "arabic",
    "DEVANAGARI": "hindi",
    "TAMIL": "tamil",
    "ARMENIAN": "armenian",
}


def _stop_words() -> dict[str, frozenset[str]]:
    content = Path(__file__).with_name("stop_words.txt").read_text(encoding="utf-8")
    blocks = (block.partition(":") for block in content.split("\n\n"))
    return {language: frozenset(words.split()) for language, _, words in blocks}


STOP_WORDS = _stop_words()
"""Words that say nothing about a text, but for its language: by Snowball's names of the languages.

Folded: small, with straight `'`. Why there is no library for them: docs/explanation/quality.md.
"""

COMMON_WORDS = frozenset[str]().union(*STOP_WORDS.values())
"""The stop words of all languages."""

ELIDED = frozenset(
    "c d j l m n s t qu jusqu lorsqu puisqu all dall dell nell sull un quest".split()  # noqa: SIM905  # one name a line would say no more
)
"""What French and Italian put in front of a word, with `'` between: the word is what counts."""

LATIN = tuple(language for language in STOP_WORDS if language not in _SCRIPTS.values())
"""Languages that can't be told by their letters."""

_VOTES = {
    word: [language for language in LATIN if word in STOP_WORDS[language]] for word in COMMON_WORDS
}
"""Of which of them each word is a stop word."""

_APOSTROPHES = tuple(map(chr, (0x2019, 0x02BC, 0xFF07, 0x60, 0xB4)))

DEFAULT_LANGUAGE = "english"
"""Of texts that do not say theirs."""

_here = threading.local()


def document_terms(text: str) -> Counter[str]:
    """How often each term is in a document."""
    tokens = _tokens(text)
    language = _likeliest(tokens)[0]
    stop_words, stem = STOP_WORDS[language], _stemmer(language)
    counts: Counter[str] = Counter()
    for (token, is_word), often in tokens.items():
        if is_word and token.isascii():  # `_terms` in place: most words are
            if token not in stop_words:
                term = stem(token)
                counts[term] = counts.get(term, 0) + often
            continue
        found: list[str] = [*_terms(token, language)] if is_word else _pairs(token)
        if not is_word and len(token) > 1:
            # A word of one character is common in Chinese, and no pair stands for it.
            found += _HAN.findall(token)
        for term in found:
            counts[term] += often
    return counts


def query_terms(text: str) -> dict[str, float]:
    """The terms of a query, each with its weight; a term that is said twice counts once."""
    weights: dict[str, float] = {}
    for terms in query_words(text).values():
        for term, weight in terms.items():
            weights[term] = max(weight, weights.get(term, 0.0))
    return weights


def query_words(text: str) -> dict[str, dict[str, float]]:
    """The words of a query, folded, in their order, each with its terms and their weights.

    A word has a term in each language that the query may be in; stop words have none. In scripts
    without spaces, each pair of characters and each Chinese character is a word.
    """
    tokens = _tokens(text)
    languages = _likeliest(tokens)
    if DEFAULT_LANGUAGE not in languages:
        languages.append(DEFAULT_LANGUAGE)
    words: dict[str, dict[str, float]] = {}
    for token, is_word in tokens:
        if not is_word:
            words |= {each: {each: ONE_CHARACTER_WEIGHT} for each in _HAN.findall(token)} | words
            words |= {each: {each: 1.0} for each in _pairs(token)}
            continue
        terms: dict[str, float] = {}
        for rank, language in enumerate(languages):
            for term in _terms(token, language):
                terms.setdefault(term, OTHER_LANGUAGE_WEIGHT if rank else 1.0)
        if terms:
            words[token] = terms
    return words


def list_forms(word: str) -> list[str]:
    """Return a folded word and its stem in the default language: a common word has rare forms."""
    return [word, *_terms(word, DEFAULT_LANGUAGE)]


def shared_words(asked: Collection[str], text: str, *, most: int = 6) -> tuple[str, ...]:
    """The words of a document that stand for terms which were asked for, folded, in their order.

    In scripts without spaces pairs of characters. `most` of them; O(n) for n characters.
    """
    tokens = _tokens(text)
    language = _likeliest(tokens)[0]
    found: list[str] = []
    for token, is_word in tokens:
        if is_word:
            found += [token] if any(each in asked for each in _terms(token, language)) else []
        else:
            found += [pair for pair in _pairs(token) if pair in asked]
        if len(found) >= most:
            break
    return tuple(dict.fromkeys(found[:most]))


def languages_of(text: str) -> list[str]:
    """Languages that a text's stop words speak for, or its letters; none where nothing does."""
    tokens = _tokens(text)
    votes = [word for word, _ in tokens if word in COMMON_WORDS]
    found = _likeliest([(word, True) for word in votes]) if any(map(_VOTES.get, votes)) else []
    others = {_language_of(word, "") for word, is_word in tokens if is_word and not word.isascii()}
    return found + sorted(others - {"", *found})


def sparse_vector(text: str, blinder: Blinder) -> Sparse:
    """A document's vector: BM25 without the rareness. Source: Robertson & Zaragoza, 2009."""
    counts = document_terms(text)
    norm = K1 * (1 - B + B * counts.total() / AVERAGE_LENGTH)
    return blinded(
        {term: count * (K1 + 1) / (count + norm) for term, count in counts.items()}, blinder
    )


def _likeliest(tokens: Collection[tuple[str, bool]]) -> list[str]:
    """Languages with as many votes as any other, the default first where it is among them.

    Each word votes once, however often it is said. Without a vote that is all languages.
    """
    votes = dict.fromkeys(LATIN, 0)
    for word, is_word in tokens:
        for language in _VOTES.get(word, ()) if is_word else ():
            votes[language] += 1
    most = max(votes.values())
    found = [language for language, count in votes.items() if count == most]
    return sorted(found, key=lambda language: language != DEFAULT_LANGUAGE)


def blinded(weights: Mapping[str, float], blinder: Blinder) -> Sparse:
    """A vector of terms under the user's ids. Two terms with one id become one, with their sum."""
    by_id: dict[int, float] = {}
    for term, weight in weights.items():
        number = blinder.term_id(term)
        by_id[number] = by_id.get(number, 0.0) + weight
    return Sparse(
        np.fromiter(by_id.keys(), dtype=np.uint32, count=len(by_id)),
        np.fromiter(by_id.values(), dtype=np.float32, count=len(by_id)),
    )


def _tokens(text: str) -> Counter[tuple[str, bool]]:
    """Words, and runs of characters without spaces between words, and how often; True for words.

    In the order in which they come first.
    """
    folded = normalize("NFKC", text).casefold()
    for each in _APOSTROPHES:  # a fifth of what `translate` takes
        folded = folded.replace(each, "'")
    if not _NOT_LATIN.search(folded):
        found = Counter(_LATIN_WORD.findall(folded))
        if "'" not in folded and max(map(len, found), default=0) <= LONGEST_TERM:
            return Counter({(word, True): often for word, often in found.items()})
        words = ((word, True, often) for word, often in found.items())
    else:
        mixed = Counter((each.group(), each.lastgroup) for each in _TOKEN.finditer(folded))
        words = ((token, name == "word", often) for (token, name), often in mixed.items())
    tokens: Counter[tuple[str, bool]] = Counter()
    for token, is_word, often in words:
        tokens[_counted(token) if is_word else token, is_word] += often
    return tokens


def _counted(word: str) -> str:
    """What of a word counts."""
    head, _, tail = word.partition("'")
    return (tail if tail and head in ELIDED else word)[:LONGEST_TERM]


def _terms(word: str, language: str) -> tuple[str, ...]:
    """A word's stem; nothing for a stop word."""
    if not word.isascii():
        language = _language_of(word, language)
    if word in STOP_WORDS.get(language, ()):
        return ()
    return (_stemmer(language)(word) if language else word,)


def _language_of(word: str, latin: str) -> str:
    """The language that a word's script stands for, `latin` where that is Latin; else ''."""
    first = next((each for each in word if each.isalpha()), "")
    script = unicodedata.name(first, "").partition(" ")[0] if first else "LATIN"
    return latin if script == "LATIN" else _SCRIPTS.get(script, "")


def _pairs(run: str) -> list[str]:
    return [run[i : i + 2] for i in range(len(run) - 1)] or [run]


def _stemmer(language: str) -> Callable[[str], str]:
    """Snowball's stem of a word in a language.

    A stemmer belongs to a thread: it keeps state while it works. It remembers no words: they would
    be a user's, and stay when the user has left.
    """
    stemmers: dict[str, Callable[[str], str]] | None = getattr(_here, "stemmers", None)
    if stemmers is None:
        stemmers = _here.stemmers = {}
    stem = stemmers.get(language)
    if stem is None:
        stem = cast("Callable[[str], str]", Stemmer.Stemmer(language, 0).stemWord)
        stemmers[language] = stem
    return stem
