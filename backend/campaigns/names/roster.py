"""Which entity of a campaign a mention means: by name, title, role, or a spelling near it.

Two entities made one are worse than one that is there twice, so a mention that says something of
somebody which does not fit (another first name, a woman's title, "the younger", "Holt's sister")
is not theirs. Words are looked up in an index: what a mention costs does not grow with the roster,
but with those who share its words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from backend.campaigns.names.name_forms import (
    ANOTHER,
    ARTICLES,
    ELDER,
    GENERIC,
    INDEFINITE,
    LINKING,
    NEUTRAL,
    SHORT_NAMES,
    TITLES,
    YOUNGER,
    NameWord,
    get_consonants,
    get_sound,
    is_misspelling,
    is_unspaced,
    read_words,
    yield_adjective_forms,
    yield_case_forms,
    yield_genitives,
    yield_name_parts,
    yield_oblique_stems,
    yield_shortened,
)

SAME, PART, ROLE, NEAR = range(4)
"""How a mention means somebody, the surest first."""

MIN_WORD = 2
"""Characters of a word that is no initial."""

Matches = tuple[int, Collection[UUID]]


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
    def find(self, words: Sequence[NameWord]) -> Matches:
        """Those whom a mention of these words may mean, and how sure that is."""

    def add_word(self, word: str, member_id: UUID) -> None:
        """Have an entity found by a word of its name, its forms, and spellings near it."""
        if word not in self.by_word:
            for form in (*yield_case_forms(word), *yield_name_parts(word)):
                self.forms[form][word] = None
            for form in yield_genitives(word):
                self.genitives[form][word] = None
            keys = {f"={get_sound(word)}", f"~{get_consonants(word)}", *yield_shortened(word)}
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
        found.update(self._near.get(f"={get_sound(word)}", ()))
        for key in yield_shortened(word):
            found.update(each for each in self._near.get(key, ()) if is_misspelling(word, each))
        return found or {
            other
            for spelling in (word, *yield_oblique_stems(word))
            for other in self._near.get(f"~{get_consonants(spelling)}", ())
            if word.isascii() != other.isascii()
        }

    def having(self, words: Iterable[str]) -> dict[UUID, None]:
        """Those in whose names any of these words is."""
        return {each: None for word in words for each in self.by_word[word]}


def intersect(found: Sequence[Mapping[UUID, None]]) -> list[UUID]:
    """Those who are in all of several sets; none of none."""
    if not found:
        return []
    first, *others = sorted(found, key=len)
    return [each for each in first if all(each in other for other in others)]


def make_name_key(words: Iterable[NameWord]) -> str:
    """Words as one, however they are joined: `saltysigil`."""
    yield_name_parts = (part for word in words for part in word.text.replace("'", "").split("-"))
    return "".join(
        part for part in yield_name_parts if part not in ARTICLES and part not in INDEFINITE
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
class PersonMention:
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
        self._said: dict[UUID, list[PersonMention]] = {}

    def add(self, member: Member) -> None:
        """Have a person found by names, titles and role."""
        names = [_read_person(read_words(name)) for name in member.names]
        role = read_words(member.role)
        own = self._said[member.id] = [*names, _read_role(role)]
        for said in names:
            self.whole[said.key][member.id] = None
            for word in said.names:
                self.add_word(word, member.id)
                self._initials[word[0]][word] = None
        for said in own:
            for title in said.titles:
                self._by_title[title][member.id] = None
        self._by_role[make_name_key(role)][member.id] = None
        if own[-1].names:
            self._by_role[own[-1].names[-1]][member.id] = None
        elif own[-1].title_words:
            self._by_role[own[-1].title_words[-1]][member.id] = None

    def find(self, words: Sequence[NameWord]) -> Matches:
        """Those whom a mention of these words may mean, and how sure that is."""
        said = _read_person(words)
        for rank, found in self._ways(said) if said.key else ():
            if fitting := [each for each in found if self._fits(said, self._said[each])]:
                return rank, self._called(said, fitting)
        return NEAR, ()

    def _ways(self, said: PersonMention) -> Iterator[Matches]:
        """Those who may be meant, the surest way to mean somebody first."""
        yield SAME, self.whole.get(said.key, ())
        if said.of or said.is_another:
            yield ROLE, self._by_role.get(said.key, ())
        elif said.names:
            yield from self._named(said)
        else:
            yield PART, intersect([self.by_word[w] for w in said.title_words if w in self.by_word])
            if not said.is_indefinite:
                yield ROLE, intersect([self._by_title[title] for title in said.titles])

    def _named(self, said: PersonMention) -> Iterator[Matches]:
        known = [self._known_or_initial(word, len(said.names)) for word in said.names]
        if any(known) or said.is_inflected:
            known = [
                [*some, *self.genitives.get(word, ())]
                for word, some in zip(said.names, known, strict=True)
            ]
        is_form = bool(known[0]) and said.names[0] not in self.by_word
        if said.is_kin and is_form:  # Bruder Marlenas
            return
        yield PART, intersect([self.having(words) for words in known])
        if not (is_form and said.names[0].isascii()):  # Marlenas Mann
            yield PART, self._lesser(known)
        nearly = [
            words or self.spelled_nearly(word)
            for word, words in zip(said.names, known, strict=True)
        ]
        yield NEAR, intersect([self.having(words) for words in nearly])
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

    def _nameless(self, said: PersonMention) -> list[UUID]:
        """Those who are known by a title alone, which a mention puts before a name."""
        return [
            each
            for each in intersect([self._by_title[title] for title in said.titles])
            if not any(own.names for own in self._said[each][:-1])
        ]

    def _called(self, said: PersonMention, found: Sequence[UUID]) -> Sequence[UUID]:
        """Of several those whom the mention calls what they are."""
        titled = [
            each for each in found if all(each in self._by_title[title] for title in said.titles)
        ]
        return titled or found

    @staticmethod
    def _fits(said: PersonMention, own: Sequence[PersonMention]) -> bool:
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


def _read_role(words: Sequence[NameWord]) -> PersonMention:
    """A role without whose it is: that is somebody else's name."""
    ends = [number for number, word in enumerate(words) if word.owns]
    said = _read_person(words[ends[-1] + 1 :] if ends else words)
    said.key = make_name_key(words)
    return said


def _read_person(words: Sequence[NameWord]) -> PersonMention:
    said = PersonMention(make_name_key(words))
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


class Things(WordIndex):
    """Whatever is no person: of its name its end may stand for it, not its beginning."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[UUID, list[tuple[list[str], int]]] = {}

    def add(self, member: Member) -> None:
        """Have a thing found by its names."""
        self._names[member.id] = []
        for name in member.names:
            words = read_words(name)
            said, cut = _read_thing(words)
            self._names[member.id].append((said, cut))
            self.whole[make_name_key(words)][member.id] = None
            for word in said:
                self.add_word(word, member.id)
            for word in said[:-1]:
                for form in yield_adjective_forms(word):
                    self.forms[form][word] = None

    def find(self, words: Sequence[NameWord]) -> Matches:
        """Those that a mention of these words may mean, and how sure that is."""
        said, _ = _read_thing(words)
        for rank, found in self._ways(words, said) if said else ():
            if found:
                return rank, found
        return NEAR, ()

    def _ways(self, words: Sequence[NameWord], said: Sequence[str]) -> Iterator[Matches]:
        known = [self.known(word) for word in said]
        yield SAME, self.whole.get(make_name_key(words), ())
        yield SAME, self._all_words(known)
        yield SAME, self._generic(said)
        is_new = words[0].text in INDEFINITE or words[0].text in ANOTHER
        if not is_new and not any(word.owns for word in words[:-1]):
            candidates = intersect([self.having(some) for some in known])
            yield PART, [each for each in candidates if self._is_head(each, known)]
        nearly = [some or self.spelled_nearly(word) for word, some in zip(said, known, strict=True)]
        yield NEAR, self._all_words(nearly)

    def _all_words(self, known: Sequence[Collection[str]]) -> list[UUID]:
        """Those whose name is these words and no others."""
        return [
            each
            for each in intersect([self.having(some) for some in known])
            if any(_match_words(known, name) for name, _ in self._names[each])
        ]

    def _generic(self, said: Sequence[str]) -> list[UUID]:
        """Those who are called so but for a word for what all such places are."""
        wanted, kinds = _split_generic(said)
        if not wanted:
            return []
        known = [self.known(word) for word in wanted]
        return [
            each
            for each in intersect([self.having(some) for some in known])
            for own, own_kinds in (_split_generic(name) for name, _ in self._names[each])
            if _match_words(known, own) and (not kinds or not own_kinds or kinds == own_kinds)
        ]

    def _is_head(self, member_id: UUID, known: Sequence[Collection[str]]) -> bool:
        """Whether words are the end of a name, or what stands before its first `of`."""
        count = len(known)
        for name, cut in self._names[member_id]:
            ends = [name[max(0, cut - count) : cut]]
            if not name[0].isascii():  # what it is may come first: Tower of Ash, in Russian
                ends.append(name[:count])
            if any(_match_words(known, end) for end in ends):
                return True
        return False


def _match_words(known: Sequence[Collection[str]], name: Sequence[str]) -> bool:
    """Whether words are those of a name, in its order."""
    return len(name) == len(known) and all(a in b for a, b in zip(name, known, strict=True))


def _read_thing(words: Sequence[NameWord]) -> tuple[list[str], int]:
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


def _split_generic(name: Sequence[str]) -> tuple[list[str], set[str]]:
    kept = [word for word in name if word not in GENERIC]
    return kept, {GENERIC[word] for word in name if word in GENERIC}


__all__ = ["PEOPLE", "Member", "Roster"]

PEOPLE = frozenset({"pc", "npc"})


class Roster:
    """The entities of a campaign, by what they may be called."""

    def __init__(self, members: Iterable[Member], *, present: Collection[UUID] = ()) -> None:
        """Take the entities that may be meant; those who are `present` are, where several may."""
        self._members: dict[UUID, Member] = {}
        self._indexes: dict[str, WordIndex] = {}
        self._present = frozenset(present)
        for member in members:
            self.add(member)

    def add(self, member: Member) -> None:
        """Have an entity found from now on, also by names that it did not have before."""
        self._members[member.id] = member
        kind = "person" if member.kind in PEOPLE else member.kind
        if kind not in self._indexes:
            self._indexes[kind] = People() if kind == "person" else Things()
        self._indexes[kind].add(member)

    def resolve(self, mention: str, kind: str | None = None) -> Sequence[UUID]:
        """The entity that is meant: one, none (it is new), or several where it is not clear.

        A `kind` is that of entities; players' characters and other people are found as one.
        """
        if kind is None:
            indexes = list(self._indexes.values())
        else:
            one = self._indexes.get("person" if kind in PEOPLE else kind)
            indexes = [one] if one else []
        words = read_words(mention)
        found = [answer for index in indexes if (answer := index.find(words))[1]]
        surest = min((rank for rank, _ in found), default=NEAR)
        return self._narrowed([each for rank, ids in found if rank == surest for each in ids])

    def _narrowed(self, found: Sequence[UUID]) -> Sequence[UUID]:
        """Those who are present, or where they are, if that leaves any."""
        found = list(dict.fromkeys(found))
        if len(found) < 2:  # noqa: PLR2004  # one
            return found
        if here := [each for each in found if each in self._present]:
            return here
        places = {self._members[each].place_id for each in self._present & self._members.keys()}
        places -= {None}
        return [each for each in found if self._members[each].place_id in places] or found
