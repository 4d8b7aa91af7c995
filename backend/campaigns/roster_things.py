"""Places, things, factions and abilities by their names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from uuid import UUID

from backend.campaigns.name_forms import (
    ANOTHER,
    ARTICLES,
    GENERIC,
    INDEFINITE,
    LINKING,
    NEUTRAL,
    NameWord,
    declined,
    words_of,
)
from backend.campaigns.roster_words import (
    NEAR,
    PART,
    SAME,
    Found,
    Member,
    WordIndex,
    all_of,
    key_of,
)


class Things(WordIndex):
    """Whatever is no person: of its name its end may stand for it, not its beginning."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[UUID, list[tuple[list[str], int]]] = {}

    def add(self, member: Member) -> None:
        """Have a thing found by its names."""
        self._names[member.id] = []
        for name in member.names:
            words = words_of(name)
            said, cut = _thing(words)
            self._names[member.id].append((said, cut))
            self.whole[key_of(words)][member.id] = None
            for word in said:
                self.add_word(word, member.id)
            for word in said[:-1]:
                for form in declined(word):
                    self.forms[form][word] = None

    def find(self, words: Sequence[NameWord]) -> Found:
        """Those that a mention of these words may mean, and how sure that is."""
        said, _ = _thing(words)
        for rank, found in self._ways(words, said) if said else ():
            if found:
                return rank, found
        return NEAR, ()

    def _ways(self, words: Sequence[NameWord], said: Sequence[str]) -> Iterator[Found]:
        known = [self.known(word) for word in said]
        yield SAME, self.whole.get(key_of(words), ())
        yield SAME, self._all_words(known)
        yield SAME, self._generic(said)
        is_new = words[0].text in INDEFINITE or words[0].text in ANOTHER
        if not is_new and not any(word.owns for word in words[:-1]):
            candidates = all_of([self.having(some) for some in known])
            yield PART, [each for each in candidates if self._is_head(each, known)]
        nearly = [some or self.spelled_nearly(word) for word, some in zip(said, known, strict=True)]
        yield NEAR, self._all_words(nearly)

    def _all_words(self, known: Sequence[Collection[str]]) -> list[UUID]:
        """Those whose name is these words and no others."""
        return [
            each
            for each in all_of([self.having(some) for some in known])
            if any(_are(known, name) for name, _ in self._names[each])
        ]

    def _generic(self, said: Sequence[str]) -> list[UUID]:
        """Those who are called so but for a word for what all such places are."""
        wanted, kinds = _specific(said)
        if not wanted:
            return []
        known = [self.known(word) for word in wanted]
        return [
            each
            for each in all_of([self.having(some) for some in known])
            for own, own_kinds in (_specific(name) for name, _ in self._names[each])
            if _are(known, own) and (not kinds or not own_kinds or kinds == own_kinds)
        ]

    def _is_head(self, member_id: UUID, known: Sequence[Collection[str]]) -> bool:
        """Whether words are the end of a name, or what stands before its first `of`."""
        count = len(known)
        for name, cut in self._names[member_id]:
            ends = [name[max(0, cut - count) : cut]]
            if not name[0].isascii():  # what it is may come first: Tower of Ash, in Russian
                ends.append(name[:count])
            if any(_are(known, end) for end in ends):
                return True
        return False


def _are(known: Sequence[Collection[str]], name: Sequence[str]) -> bool:
    """Whether words are those of a name, in its order."""
    return len(name) == len(known) and all(a in b for a, b in zip(name, known, strict=True))


def _thing(words: Sequence[NameWord]) -> tuple[list[str], int]:
    """The words that say which thing it is, and how many of them stand before an `of`."""
    said: list[str] = []
    cut = 0
    for word in words:
        if word.text in LINKING:
            cut = cut or len(said)
        elif (
            word.text not in ARTICLES
            and word.text not in INDEFINITE
            and not (word.is_small and word.text in NEUTRAL)
        ):
            said.append(word.text)
    return said, cut or len(said)


def _specific(name: Sequence[str]) -> tuple[list[str], set[str]]:
    kept = [word for word in name if word not in GENERIC]
    return kept, {GENERIC[word] for word in name if word in GENERIC}
