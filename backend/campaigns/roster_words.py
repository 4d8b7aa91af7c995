"""The words of entities' names, each with the entities that have it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from backend.campaigns.name_forms import (
    ARTICLES,
    INDEFINITE,
    SHORT_NAMES,
    NameWord,
    genitive,
    inflected,
    is_misspelt,
    oblique_stems,
    parts,
    shortened,
    skeleton,
    sound,
)

SAME, PART, ROLE, NEAR = range(4)
"""How a mention means somebody, the surest first."""

MIN_WORD = 2
"""Characters of a word that is no initial."""

Found = tuple[int, Collection[UUID]]


class Member(NamedTuple):
    """An entity. `names[0]` is its name, others are its aliases; `audience` is as it is stored."""

    id: UUID
    kind: str
    names: tuple[str, ...]
    role: str
    place_id: UUID | None
    audience: str


class WordIndex(ABC):
    """Entities of one kind by the words of their names.

    Attributes:
        whole: By all words of a name as one.
        by_word: By each word of a name.
        forms: Words of names by their forms in other cases, and by parts that may stand for them.
        genitives: Men's names by a form that is a woman's name too.
    """

    def __init__(self) -> None:
        self.whole: defaultdict[str, dict[UUID, None]] = defaultdict(dict)
        self.by_word: defaultdict[str, dict[UUID, None]] = defaultdict(dict)
        self.forms: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self.genitives: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._near: defaultdict[str, dict[str, None]] = defaultdict(dict)

    @abstractmethod
    def add(self, member: Member) -> None:
        """Have an entity found by its names."""

    @abstractmethod
    def find(self, words: Sequence[NameWord]) -> Found:
        """Those whom a mention of these words may mean, and how sure that is."""

    def add_word(self, word: str, member_id: UUID) -> None:
        """Have an entity found by a word of its name, its forms, and spellings near it."""
        if word not in self.by_word:
            for form in (*inflected(word), *parts(word)):
                self.forms[form][word] = None
            for form in genitive(word):
                self.genitives[form][word] = None
            keys = {f"={sound(word)}", f"~{skeleton(word)}", *shortened(word)}
            for key in keys - {"=", "~"} if len(word) >= MIN_WORD else ():
                self._near[key][word] = None
        self.by_word[word][member_id] = None

    def known(self, word: str) -> Collection[str]:
        """The words of names that a word is, or is a form of."""
        return (word,) if word in self.by_word else self.forms.get(word, ())

    def spelled_nearly(self, word: str) -> set[str]:
        """Words of names that a word may be a short form, a transcript or a misspelling of."""
        if len(word) < MIN_WORD or not word.isalpha():
            return set()
        found = {each for each in SHORT_NAMES.get(word, ()) if each in self.by_word}
        found.update(self._near.get(f"={sound(word)}", ()))
        for key in shortened(word):
            found.update(each for each in self._near.get(key, ()) if is_misspelt(word, each))
        return found or {
            other
            for spelling in (word, *oblique_stems(word))
            for other in self._near.get(f"~{skeleton(spelling)}", ())
            if word.isascii() != other.isascii()
        }

    def having(self, words: Iterable[str]) -> dict[UUID, None]:
        """Those in whose names any of these words is."""
        return {each: None for word in words for each in self.by_word[word]}


def all_of(found: Sequence[Mapping[UUID, None]]) -> list[UUID]:
    """Those who are in all of several sets; none of none."""
    if not found:
        return []
    first, *others = sorted(found, key=len)
    return [each for each in first if all(each in other for other in others)]


def key_of(words: Iterable[NameWord]) -> str:
    """Words as one, however they are joined: `saltysigil`."""
    parts = (part for word in words for part in word.text.replace("'", "").split("-"))
    return "".join(part for part in parts if part not in ARTICLES and part not in INDEFINITE)
