"""People by their names, titles and roles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from backend.campaigns.name_forms import (
    ANOTHER,
    ARTICLES,
    ELDER,
    INDEFINITE,
    LINKING,
    NEUTRAL,
    TITLES,
    YOUNGER,
    NameWord,
    is_unspaced,
    words_of,
)
from backend.campaigns.roster_words import (
    MIN_WORD,
    NEAR,
    PART,
    ROLE,
    SAME,
    Found,
    Member,
    WordIndex,
    all_of,
    key_of,
)

_NO_ROLES = frozenset({"honour", "kin"})
_RANKS = frozenset({"king", "queen", "prince", "princess"})
"""Nobody has two of these ranks at once: different ranks mean different people."""

_GENERATIONS = {
    **dict.fromkeys(YOUNGER, "younger"),
    **dict.fromkeys(ELDER, "elder"),
    **{each: each for each in ("ii", "iii", "iv", "v")},
}
_ARTICLES = ARTICLES | INDEFINITE
_SMALL = _ARTICLES | LINKING
_BEGINNINGS = [each for each in (*ANOTHER, *ARTICLES) if is_unspaced(each)]


@dataclass
class _Said:
    """What a name or a mention says of a person.

    Attributes:
        key: All of it, without articles.
        names: The words that are names.
        titles: What it calls them.
        epithets: Words after the name: the smith, of Tom the smith.
        title_words: The words that say so: they may be names too, as Smith is.
        gender: `m`, `f` or nothing.
        generation: Which of two of the same name.
        is_another: It says that it is not the one who is known.
        is_described: It begins with an article, or is in small letters: no name perhaps.
        of: It is said by whose, or by what of, as Holt's sister is.
    """

    key: str
    names: list[str] = field(default_factory=list[str])
    titles: set[str] = field(default_factory=set[str])
    title_words: list[str] = field(default_factory=list[str])
    epithets: set[str] = field(default_factory=set[str])
    gender: str = ""
    generation: str = ""
    is_another: bool = False
    is_described: bool = False
    is_indefinite: bool = False
    is_inflected: bool = False
    is_kin: bool = False
    of: bool = False

    def say(self, text: str) -> None:
        """Read one more word. After a name come names alone."""
        if is_unspaced(text):
            self._say_phrase(text)
        elif text in _GENERATIONS and (self.names or len(text) > len("iii")):
            self.generation = _GENERATIONS[text]
        elif self.names:
            self.names.append(text)
        elif text in ANOTHER:
            self.is_another = True
        elif text in TITLES:
            self._call(text)
        elif text not in NEUTRAL:
            self.names.append(text)

    def _say_phrase(self, text: str) -> None:
        """The same of a phrase without spaces: its adjective in front, its titles at its end."""
        beginning = next((each for each in _BEGINNINGS if text.startswith(each)), "")
        self.is_another = self.is_another or beginning in ANOTHER
        self.is_described = self.is_described or bool(beginning)
        text = text.removeprefix(beginning)
        while title := next((text[at:] for at in range(len(text)) if text[at:] in TITLES), ""):
            self._call(title)
            text = text.removesuffix(title)
        if text:
            self.names.append(text)

    def _call(self, word: str) -> None:
        role, gender, is_inflected = TITLES[word]
        self.of = self.of or (self.is_kin and is_inflected)
        self.gender = gender or self.gender
        self.title_words.append(word)
        self.is_inflected = self.is_inflected or is_inflected
        self.is_kin = role == "kin"
        if role not in _NO_ROLES:
            self.titles.add(role)


class People(WordIndex):
    """People by their names, by what they are called, and by what they are."""

    def __init__(self) -> None:
        super().__init__()
        self._by_title: defaultdict[str, dict[UUID, None]] = defaultdict(dict)
        self._by_role: defaultdict[str, dict[UUID, None]] = defaultdict(dict)
        self._initials: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._said: dict[UUID, list[_Said]] = {}

    def add(self, member: Member) -> None:
        """Have a person found by names, titles and role."""
        names = [_said(words_of(name)) for name in member.names]
        role = words_of(member.role)
        own = self._said[member.id] = [*names, _role_said(role)]
        for said in names:
            self.whole[said.key][member.id] = None
            for word in said.names:
                self.add_word(word, member.id)
                self._initials[word[0]][word] = None
        for said in own:
            for title in said.titles:
                self._by_title[title][member.id] = None
        self._by_role[key_of(role)][member.id] = None
        if own[-1].names:
            self._by_role[own[-1].names[-1]][member.id] = None
        elif own[-1].title_words:
            self._by_role[own[-1].title_words[-1]][member.id] = None

    def find(self, words: Sequence[NameWord]) -> Found:
        """Those whom a mention of these words may mean, and how sure that is."""
        said = _said(words)
        for rank, found in self._ways(said) if said.key else ():
            if fitting := [each for each in found if self._fits(said, self._said[each])]:
                return rank, self._called(said, fitting)
        return NEAR, ()

    def _ways(self, said: _Said) -> Iterator[Found]:
        """Those who may be meant, the surest way to mean somebody first."""
        yield SAME, self.whole.get(said.key, ())
        if said.of or said.is_another:
            yield ROLE, self._by_role.get(said.key, ())
        elif said.names:
            yield from self._named(said)
        else:
            yield PART, all_of([self.by_word[w] for w in said.title_words if w in self.by_word])
            if not said.is_indefinite:
                yield ROLE, all_of([self._by_title[title] for title in said.titles])

    def _named(self, said: _Said) -> Iterator[Found]:
        known = [self._known_or_initial(word, len(said.names)) for word in said.names]
        if any(known) or said.is_inflected:
            known = [
                [*some, *self.genitives.get(word, ())]
                for word, some in zip(said.names, known, strict=True)
            ]
        is_form = bool(known[0]) and said.names[0] not in self.by_word
        if said.is_kin and is_form:  # Bruder Marlenas
            return
        yield PART, all_of([self.having(words) for words in known])
        if not (is_form and said.names[0].isascii()):  # Marlenas Mann
            yield PART, self._lesser(known)
        nearly = [
            words or self.spelled_nearly(word)
            for word, words in zip(said.names, known, strict=True)
        ]
        yield NEAR, all_of([self.having(words) for words in nearly])
        if not any(known):
            yield ROLE, self._nameless(said)
        if said.is_described and not said.is_indefinite:
            yield ROLE, self._by_role.get(said.names[-1], ())

    def _known_or_initial(self, word: str, count: int) -> Collection[str]:
        if len(word) >= MIN_WORD or count == 1:
            return self.known(word)
        return self._initials.get(word, ())

    def _lesser(self, known: Sequence[Collection[str]]) -> list[UUID]:
        """Those of whom fewer names are known than a mention has, and no others.

        Where several share a name that is not the first one, it is a family's.
        """
        words = {each for some in known for each in some}
        found: list[UUID] = []
        for number, some in enumerate(known):
            sharing = self.having(some)
            if number and len(sharing) > 1:
                continue
            found += [
                each
                for each in sharing
                if any(
                    said.names and words.issuperset(said.names) for said in self._said[each][:-1]
                )
            ]
        return found

    def _nameless(self, said: _Said) -> list[UUID]:
        """Those who are known by a title alone, which a mention puts before a name."""
        return [
            each
            for each in all_of([self._by_title[title] for title in said.titles])
            if not any(own.names for own in self._said[each][:-1])
        ]

    def _called(self, said: _Said, found: Sequence[UUID]) -> Sequence[UUID]:
        """Of several those whom the mention calls what they are."""
        titled = [
            each for each in found if all(each in self._by_title[title] for title in said.titles)
        ]
        return titled or found

    @staticmethod
    def _fits(said: _Said, own: Sequence[_Said]) -> bool:
        """Whether nothing that is said speaks against somebody of these names and this role."""
        genders = {each.gender for each in own} - {""}
        if said.gender and genders and said.gender not in genders:
            return False
        if said.generation and said.generation not in {each.generation for each in own}:
            return False
        titles = {title for each in own for title in each.titles}
        if said.epithets and any(each.key for each in own[-1:]) and not said.epithets & titles:
            return False
        ranks = titles & _RANKS
        return not (said.titles & _RANKS and ranks and not said.titles & ranks)


def _role_said(words: Sequence[NameWord]) -> _Said:
    """A role without whose it is: that is somebody else's name."""
    ends = [number for number, word in enumerate(words) if word.owns]
    said = _said(words[ends[-1] + 1 :] if ends else words)
    said.key = key_of(words)
    return said


def _said(words: Sequence[NameWord]) -> _Said:
    said = _Said(key_of(words))
    begin = next((at for at, word in enumerate(words) if word.text not in _SMALL), len(words))
    end = next((at for at in range(begin, len(words)) if words[at].text in _SMALL), len(words))
    led = {word.text for word in words[:begin]}
    said.is_indefinite = not led.isdisjoint(INDEFINITE)
    said.is_described = not led.isdisjoint(_ARTICLES) or all(word.is_small for word in words)
    said.of = any(word.owns for word in words[:-1])
    for word in words[begin:end]:
        said.say(word.text)
    if end == len(words):
        return said
    if words[end].text not in LINKING:
        for word in words[end + 1 :]:
            said.generation = _GENERATIONS.get(word.text, said.generation)
            if word.text in TITLES:
                said.epithets.add(TITLES[word.text].role)
    elif said.is_kin and not said.names:
        said.of = True
    elif not said.names and not said.titles:
        for word in words[end + 1 :]:  # Frau von Ahlen
            said.say(word.text)
    return said
