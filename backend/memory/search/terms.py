"""Terms of a text for the sparse vectors of the index.

Words are normalized (NFKC, case folding) and stemmed with Snowball and `morphology`. Stop words are
dropped. Korean and scripts without spaces between words are split into pairs of characters. Weights
are those of BM25 without IDF, which the index applies to queries.

**Language detection.** The script of a non-Latin word determines its language, if Snowball has it.
For Latin words, the stop words and irregular forms of the text vote. A document without votes is
treated as in the default language.

A short query has no reliable guess. It is stemmed in all languages with the most votes and in the
default language, so that it matches a document in any of them. Stems that no document has cost
nothing. Stems of all but the first language weigh half, because some are stems of other words.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import regex  # type: ignore[import-untyped]  # it has no types

from backend.core.text_forms import normalize
from backend.memory.index.protocol import Sparse
from backend.memory.search.morphology import (
    find_heads,
    find_parts,
    load_irregular_forms,
    make_stemmer,
    split_korean,
)
from backend.vault.blinding import Blinder

K1 = 1.2
B = 0.75
AVERAGE_LENGTH = 256
"""Length in terms at which BM25 does not change weights."""

OTHER_LANGUAGE_WEIGHT = 0.5
PART_WEIGHT = 0.5
"""Weight of a possible part of a compound of a query."""

ONE_CHARACTER_WEIGHT = 0.4
"""A single Chinese character of a query may be a word, but it is usually a part of one."""

MAX_TERM_CHARACTERS = 64

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
_TOKEN = regex.compile(
    rf"(?P<unspaced>[{_UNSPACED}]+)"
    r"|(?P<korean>\p{Hangul}+)"
    rf"|(?P<word>[[\p{{L}}\p{{M}}\p{{N}}]--[{_UNSPACED}\p{{Hangul}}]]+"
    rf"(?:'[[\p{{L}}\p{{M}}\p{{N}}]--[{_UNSPACED}\p{{Hangul}}]]+)*)",
    regex.VERSION1,
)
_LATIN_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_NOT_LATIN = re.compile(r"[^\0-\u02ff\u2010-\u205e]")
"""Matches anything except Latin letters and common punctuation. In texts without a match,
`_LATIN_WORD` finds the same words as `_TOKEN` in a quarter of the time."""

_HAN = regex.compile(r"\p{Han}")
_HANGUL = regex.compile(r"\p{Hangul}")
SCRIPT_LANGUAGES = {
    "CYRILLIC": "russian",
    "GREEK": "greek",
    "ARABIC": "arabic",
    "DEVANAGARI": "hindi",
    "TAMIL": "tamil",
    "ARMENIAN": "armenian",
}


def _load_stop_words() -> dict[str, frozenset[str]]:
    content = Path(__file__).with_name("stop_words.txt").read_text(encoding="utf-8")
    blocks = (block.partition(":") for block in content.split("\n\n"))
    return {language: frozenset(words.split()) for language, _, words in blocks}


STOP_WORDS = _load_stop_words()
"""Stop words by Snowball's names of languages, in lower case and with straight `'`.

docs/explanation/quality.md explains why no library is used.
"""

COMMON_WORDS = frozenset[str]().union(*STOP_WORDS.values())

ELISIONS = frozenset(
    "c d j l m n s t qu jusqu lorsqu puisqu all dall dell nell sull un quest".split()  # noqa: SIM905  # one name a line would say no more
)
"""Elided French and Italian words before `'`. Only the word after it is a term."""

LATIN_LANGUAGES = tuple(
    language for language in STOP_WORDS if language not in SCRIPT_LANGUAGES.values()
)


def _find_votes() -> dict[str, list[str]]:
    votes: defaultdict[str, list[str]] = defaultdict(list)
    for language in LATIN_LANGUAGES:
        irregular = chain.from_iterable(load_irregular_forms().get(language, ()))
        for word in STOP_WORDS[language].union(irregular):
            votes[word].append(language)
    return dict(votes)


_VOTES = _find_votes()
"""The languages that stop words and irregular forms indicate."""

_APOSTROPHES = tuple(map(chr, (0x2019, 0x02BC, 0xFF07, 0x60, 0xB4)))

DEFAULT_LANGUAGE = "english"

_local = threading.local()


def count_terms(text: str) -> Counter[str]:
    return _count_terms(text)[0]


def _count_terms(text: str) -> tuple[Counter[str], int]:
    """Count the terms of a document, and those of them that are heads of compounds."""
    tokens = tokenize(text)
    language = _rank_languages(tokens)[0]
    stop_words, stem = STOP_WORDS[language], get_stemmer(language)
    counts: Counter[str] = Counter()
    head_count = 0
    for (token, is_word), often in tokens.items():
        if is_word and token.isascii():  # `_list_terms` inlined: most words are ASCII
            if token not in stop_words:
                term = stem(token)
                counts[term] = counts.get(term, 0) + often
                for head in find_heads(token, language):
                    counts[stem(head)] += often
                    head_count += often
            continue
        found = _list_terms(token, language) if is_word else _split_run(token)
        head_count += often * (len(found) - 1) if is_word and found else 0
        if not is_word and len(token) > 1:
            # Words of one character are common in Chinese, and no pair represents them.
            found += _HAN.findall(token)
        for term in found:
            counts[term] += often
    return counts, head_count


NEGATION = "\0not"
"""The term of all negations in `list_terms`. No word has it."""

_NEGATIONS = frozenset(
    "no not never nor neither none nobody nothing nowhere without cannot nicht kein "  # noqa: SIM905  # as above
    "keine keinen keines "
    "keiner keinem nie niemals niemand nichts ohne ne pas jamais rien sans nunca nada nadie sin "
    "não nem sem non mai niente senza niet geen nooit inte ingen aldrig ikke aldri nie bez "
    "не нет ни никогда никто ничего без".split()
)
_RUN_NEGATION = re.compile(r"[没沒不未無无않]|ない|なかっ|ません|\A[안못]\Z")
"""Negations in Chinese, Japanese and Korean."""


def list_terms(texts: Sequence[str]) -> list[frozenset[str]]:
    """Return the terms of each text, all stemmed in the language of the texts together.

    Heads of compounds are left out, and negations have the term `NEGATION`. Each word is stemmed
    once, so this takes half of the time of `count_terms` for each text.
    """
    found = [list(tokenize(text)) for text in texts]
    words = dict.fromkeys(chain.from_iterable(found))
    language = _rank_languages(words)[0]
    terms = {
        (token, is_word): _list_compared_terms(token, language)
        if is_word
        else _list_run_terms(token)
        for token, is_word in words
    }
    return [frozenset(chain.from_iterable(map(terms.__getitem__, each))) for each in found]


def _list_run_terms(run: str) -> list[str]:
    """Return the terms of a text in a script without spaces."""
    return [*_split_run(run), *([NEGATION] if _RUN_NEGATION.search(run) else [])]


def _list_compared_terms(word: str, language: str) -> list[str]:
    if word in _NEGATIONS or word.endswith("n't"):
        return [NEGATION]
    return _list_terms(word, language)[:1]


def query_terms(text: str) -> dict[str, float]:
    """Return the terms of a query with their weights. Repeated terms count once."""
    weights: dict[str, float] = {}
    for terms in query_words(text).values():
        for term, weight in terms.items():
            weights[term] = max(weight, weights.get(term, 0.0))
    return weights


def query_words(text: str) -> dict[str, dict[str, float]]:
    """Return the normalized words of a query in order, each with its terms and their weights.

    A word has a term in each language that the query may be in. Stop words are left out. Possible
    parts of compounds are separate words. In scripts without spaces, each pair of characters and
    each Chinese character is a word.
    """
    tokens = tokenize(text)
    languages = _rank_languages(tokens)
    if DEFAULT_LANGUAGE not in languages:
        languages.append(DEFAULT_LANGUAGE)
    words: dict[str, dict[str, float]] = {}
    for token, is_word in tokens:
        if not is_word:
            words |= {each: {each: ONE_CHARACTER_WEIGHT} for each in _HAN.findall(token)} | words
            words |= {each: {each: 1.0} for each in _split_run(token)}
            continue
        terms: dict[str, float] = {}
        for rank, language in enumerate(languages):
            for term in _list_terms(token, language)[:1]:
                terms.setdefault(term, OTHER_LANGUAGE_WEIGHT if rank else 1.0)
        if terms:
            words[token] = terms
            for part in map(get_stemmer(languages[0]), find_parts(token, languages[0])):
                words.setdefault(part, {part: PART_WEIGHT})
    return words


def list_forms(word: str) -> list[str]:
    """Return a word and its stem in the default language. A common word may have rare forms."""
    return [word, *_list_terms(word, DEFAULT_LANGUAGE)]


def find_shared_words(asked: Collection[str], text: str, *, most: int = 6) -> tuple[str, ...]:
    """Return the first `most` words of a document whose terms are in `asked`, normalized.

    In scripts without spaces they are pairs of characters. O(n) for n characters.
    """
    tokens = tokenize(text)
    language = _rank_languages(tokens)[0]
    found: list[str] = []
    for token, is_word in tokens:
        if is_word:
            found += [token] if any(each in asked for each in _list_terms(token, language)) else []
        else:
            found += [pair for pair in _split_run(token) if pair in asked]
        if len(found) >= most:
            break
    return tuple(dict.fromkeys(found[:most]))


def detect_languages(text: str) -> list[str]:
    """Return the languages that a text's common words or its scripts indicate, if any."""
    tokens = tokenize(text)
    votes = [(word, is_word) for word, is_word in tokens if word in _VOTES]
    found = _rank_languages(votes) if votes else []
    others = {
        _detect_language(word, "") for word, is_word in tokens if is_word and not word.isascii()
    }
    return found + sorted(others - {"", *found})


def build_sparse_vector(text: str, blinder: Blinder) -> Sparse:
    """Return the BM25 vector of a document, without IDF. Source: Robertson & Zaragoza, 2009.

    Heads of compounds do not make a document longer.
    """
    counts, head_count = _count_terms(text)
    norm = K1 * (1 - B + B * (counts.total() - head_count) / AVERAGE_LENGTH)
    return blind_terms(
        {term: count * (K1 + 1) / (count + norm) for term, count in counts.items()}, blinder
    )


def _rank_languages(tokens: Collection[tuple[str, bool]]) -> list[str]:
    """Return the languages with the most votes, the default language first if it is one of them.

    Each word votes once. Without votes, return all languages.
    """
    votes = dict.fromkeys(LATIN_LANGUAGES, 0)
    for word, is_word in tokens:
        for language in _VOTES.get(word, ()) if is_word else ():
            votes[language] += 1
    most = max(votes.values())
    found = [language for language, count in votes.items() if count == most]
    return sorted(found, key=lambda language: language != DEFAULT_LANGUAGE)


def blind_terms(weights: Mapping[str, float], blinder: Blinder) -> Sparse:
    """Return the vector of terms with the user's ids. Weights of equal ids are added."""
    by_id: dict[int, float] = {}
    for term, weight in weights.items():
        number = blinder.term_id(term)
        by_id[number] = by_id.get(number, 0.0) + weight
    return Sparse(
        np.fromiter(by_id.keys(), dtype=np.uint32, count=len(by_id)),
        np.fromiter(by_id.values(), dtype=np.float32, count=len(by_id)),
    )


def tokenize(text: str) -> Counter[tuple[str, bool]]:
    """Count words (True), and runs of characters of scripts without spaces (False).

    They are in the order of their first occurrence.
    """
    folded = normalize("NFKC", text).casefold()
    for each in _APOSTROPHES:  # five times as fast as `translate`
        folded = folded.replace(each, "'")
    if not _NOT_LATIN.search(folded):
        found = Counter(_LATIN_WORD.findall(folded))
        if "'" not in folded and max(map(len, found), default=0) <= MAX_TERM_CHARACTERS:
            return Counter({(word, True): often for word, often in found.items()})
        words = ((word, True, often) for word, often in found.items())
    else:
        mixed = Counter((each.group(), each.lastgroup) for each in _TOKEN.finditer(folded))
        words = ((token, name == "word", often) for (token, name), often in mixed.items())
    tokens: Counter[tuple[str, bool]] = Counter()
    for token, is_word, often in words:
        tokens[_normalize_word(token) if is_word else token, is_word] += often
    return tokens


def _normalize_word(word: str) -> str:
    """Remove an elided word before `'`, and cut the word at the maximum length."""
    head, _, tail = word.partition("'")
    return (tail if tail and head in ELISIONS else word)[:MAX_TERM_CHARACTERS]


def _list_terms(word: str, language: str) -> list[str]:
    """Return the stem of a word, and those of its possible heads. Stop words have none."""
    if not word.isascii():
        language = _detect_language(word, language)
    if word in STOP_WORDS.get(language, ()):
        return []
    return (
        [*map(get_stemmer(language), [word, *find_heads(word, language)])] if language else [word]
    )


def _detect_language(word: str, latin: str) -> str:
    """Return the language of a word's script: `latin` for Latin, empty if it is unknown."""
    first = next((each for each in word if each.isalpha()), "")
    script = unicodedata.name(first, "").partition(" ")[0] if first else "LATIN"
    return latin if script == "LATIN" else SCRIPT_LANGUAGES.get(script, "")


def _split_run(run: str) -> list[str]:
    """Return the pairs of characters of a run of a script without spaces, or of a Korean word."""
    if _HANGUL.match(run):
        return split_korean(run)
    return [run[i : i + 2] for i in range(len(run) - 1)] or [run]


def get_stemmer(language: str) -> Callable[[str], str]:
    """Return the stemmer of a language for this thread.

    Stemmers are not thread-safe. They do not cache words, because these would be a user's and would
    remain after the sign-out.
    """
    stemmers: dict[str, Callable[[str], str]] | None = getattr(_local, "stemmers", None)
    if stemmers is None:
        stemmers = _local.stemmers = {}
    stem = stemmers.get(language)
    if stem is None:
        stem = stemmers[language] = make_stemmer(language)
    return stem
