"""Finds the entities of a campaign in texts, and resolves mentions by name, title or role.

A wrong match is worse than a duplicate. So a contradicting detail rules an entity out: another
first name, a woman's title, "the younger", "Holt's sister". Words are looked up in an index, so the
cost of a mention depends on the entities that share its words, not on their total number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from ahocorasick_rs import AhoCorasick, MatchKind

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
from backend.core.text_forms import normalize
from backend.lorebooks.activation.keys import is_whole

MAX_TEXT = 50_000
"""Maximum number of characters of a text that are read."""


class NameIndex:
    """Finds names and aliases of entities in one pass over a text.

    Args:
        names: Pairs of an entity and one of its names.
    """

    def __init__(self, names: Iterable[tuple[UUID, str]]) -> None:
        by_name: dict[str, list[UUID]] = {}
        for entity_id, name in names:
            if folded := _fold_text(name).strip():
                by_name.setdefault(folded, []).append(entity_id)
        self._ids = list(by_name.values())
        self._automaton = AhoCorasick(
            by_name.keys(), matchkind=MatchKind.LeftmostLongest, store_patterns=False
        )

    def find(self, text: str) -> list[UUID]:
        """Return the entities that `text` names with whole words, in order of appearance.

        Possessives match, too ("Holt's", "Holts"). In scripts without spaces, a name matches at any
        place.
        """
        folded = _fold_text(text[:MAX_TEXT])
        found: dict[UUID, None] = {}
        for number, start, end in self._automaton.find_matches_as_indexes(folded):
            stop = end + 1 if folded[end : end + 1] == "s" else end
            if is_whole(folded, start, end) or is_whole(folded, start, stop):
                found.update(dict.fromkeys(self._ids[number]))
        return list(found)


def make_slug(name: str) -> str:
    """Return a name as one word for a status line or a file: `the-salty-sigil`."""
    words = "".join(char if char.isalnum() else " " for char in normalize("NFC", name)).split()
    return "-".join(words).lower() or "unnamed"


def _fold_text(text: str) -> str:
    return normalize("NFC", text).casefold()


SAME, PART, ROLE, NEAR = range(4)
"""Ranks of matches, the most certain first."""

MIN_WORD = 2
"""Minimum length of a word; a shorter one is an initial."""

Matches = tuple[int, Collection[UUID]]
"""A rank, and the entities that match."""


class Member(NamedTuple):
    """An entity. `names[0]` is its name, others are its aliases; `audience` is as it is stored."""

    id: UUID
    kind: str
    names: tuple[str, ...]
    role: str
    place_id: UUID | None
    audience: str


class WordIndex(ABC):
    """Entities of one kind: by the key of a full name (`whole`) and by each word of a name.

    `forms` has words of names by their grammatical cases and abbreviations, `genitives` men's names
    by a form that is also a woman's name.
    """

    def __init__(self) -> None:
        self.whole: defaultdict[str, dict[UUID, None]] = defaultdict(dict)
        self.by_word: defaultdict[str, dict[UUID, None]] = defaultdict(dict)
        self.forms: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self.genitives: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._near: defaultdict[str, dict[str, None]] = defaultdict(dict)

    @abstractmethod
    def add(self, member: Member) -> None:
        """Index an entity by its names."""

    @abstractmethod
    def find(self, words: Sequence[NameWord]) -> Matches:
        """Return the entities that a mention can mean, with the rank of the match."""

    def add_word(self, word: str, member_id: UUID) -> None:
        """Index an entity by a word of its name, its forms, and similar spellings."""
        if word not in self.by_word:
            for form in (*yield_case_forms(word), *yield_name_parts(word)):
                self.forms[form][word] = None
            for form in yield_genitives(word):
                self.genitives[form][word] = None
            keys = {f"={get_sound(word)}", f"~{get_consonants(word)}", *yield_shortened(word)}
            for key in keys - {"=", "~"} if len(word) >= MIN_WORD else ():
                self._near[key][word] = None
        self.by_word[word][member_id] = None

    def find_known(self, word: str) -> Collection[str]:
        """Return the words of names that have this form."""
        return (word,) if word in self.by_word else self.forms.get(word, ())

    def find_similar(self, word: str) -> set[str]:
        """Return words of names of which a word can be a short form, transcript or misspelling."""
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

    def find_members(self, words: Iterable[str]) -> dict[UUID, None]:
        """Return the entities with one of these words in their names."""
        return {each: None for word in words for each in self.by_word[word]}


def intersect(found: Sequence[Mapping[UUID, None]]) -> list[UUID]:
    """Return the entities that all of the mappings contain."""
    if not found:
        return []
    first, *others = sorted(found, key=len)
    return [each for each in first if all(each in other for other in others)]


def make_name_key(words: Iterable[NameWord]) -> str:
    """Join words in a form that ignores spaces, hyphens and articles: `saltysigil`."""
    parts = (part for word in words for part in word.text.replace("'", "").split("-"))
    return "".join(part for part in parts if part not in ARTICLES and part not in INDEFINITE)


_NO_ROLES = frozenset({"honour", "kin"})
_RANKS = frozenset({"king", "queen", "prince", "princess"})
"""Titles that exclude each other: different ranks mean different people."""

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
    """The parts of a person's name, or of a mention of a person.

    Attributes:
        key: All words without articles.
        titles: Roles that precede the name. `title_words` can be names as well: Smith.
        epithets: Roles that follow the name: the smith in "Tom the smith".
        generation: The number or age that separates two people of one name.
        is_another: True for words like "another", which mean an unknown person.
        is_described: True with an article or without capitals, which suggests a description.
        of: True if the person is described by someone else: Holt's sister.
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

    def add_word(self, text: str) -> None:
        """Add the next word. After a name, all words are names."""
        if is_unspaced(text):
            self._add_phrase(text)
        elif text in _GENERATIONS and (self.names or len(text) > len("iii")):
            self.generation = _GENERATIONS[text]
        elif self.names:
            self.names.append(text)
        elif text in ANOTHER:
            self.is_another = True
        elif text in TITLES:
            self._add_title(text)
        elif text not in NEUTRAL:
            self.names.append(text)

    def _add_phrase(self, text: str) -> None:
        """Add a phrase without spaces. Adjectives are at its start, titles at its end."""
        beginning = next((each for each in _BEGINNINGS if text.startswith(each)), "")
        self.is_another = self.is_another or beginning in ANOTHER
        self.is_described = self.is_described or bool(beginning)
        text = text.removeprefix(beginning)
        while title := next((text[at:] for at in range(len(text)) if text[at:] in TITLES), ""):
            self._add_title(title)
            text = text.removesuffix(title)
        if text:
            self.names.append(text)

    def _add_title(self, word: str) -> None:
        role, gender, is_inflected = TITLES[word]
        self.of = self.of or (self.is_kin and is_inflected)
        self.gender = gender or self.gender
        self.title_words.append(word)
        self.is_inflected = self.is_inflected or is_inflected
        self.is_kin = role == "kin"
        if role not in _NO_ROLES:
            self.titles.add(role)


class People(WordIndex):
    """An index of people by names, titles and roles."""

    def __init__(self) -> None:
        super().__init__()
        self._by_title: defaultdict[str, dict[UUID, None]] = defaultdict(dict)
        self._by_role: defaultdict[str, dict[UUID, None]] = defaultdict(dict)
        self._initials: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._said: dict[UUID, list[PersonMention]] = {}

    def add(self, member: Member) -> None:
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
        said = _read_person(words)
        for rank, found in self._search(said) if said.key else ():
            if fitting := [each for each in found if self._is_compatible(said, self._said[each])]:
                return rank, self._prefer_titled(said, fitting)
        return NEAR, ()

    def _search(self, said: PersonMention) -> Iterator[Matches]:
        """Yield possible matches, the most certain first."""
        yield SAME, self.whole.get(said.key, ())
        if said.of or said.is_another:
            yield ROLE, self._by_role.get(said.key, ())
        elif said.names:
            yield from self._match_names(said)
        else:
            yield PART, intersect([self.by_word[w] for w in said.title_words if w in self.by_word])
            if not said.is_indefinite:
                yield ROLE, intersect([self._by_title[title] for title in said.titles])

    def _match_names(self, said: PersonMention) -> Iterator[Matches]:
        known = [self._known_or_initial(word, len(said.names)) for word in said.names]
        if any(known) or said.is_inflected:
            known = [
                [*some, *self.genitives.get(word, ())]
                for word, some in zip(said.names, known, strict=True)
            ]
        is_form = bool(known[0]) and said.names[0] not in self.by_word
        if said.is_kin and is_form:  # Bruder Marlenas
            return
        yield PART, intersect([self.find_members(words) for words in known])
        if not (is_form and said.names[0].isascii()):  # Marlenas Mann
            yield PART, self._match_fewer_names(known)
        nearly = [
            words or self.find_similar(word) for word, words in zip(said.names, known, strict=True)
        ]
        yield NEAR, intersect([self.find_members(words) for words in nearly])
        if not any(known):
            yield ROLE, self._match_titles(said)
        if said.is_described and not said.is_indefinite:
            yield ROLE, self._by_role.get(said.names[-1], ())

    def _known_or_initial(self, word: str, count: int) -> Collection[str]:
        if len(word) >= MIN_WORD or count == 1:
            return self.find_known(word)
        return self._initials.get(word, ())

    def _match_fewer_names(self, known: Sequence[Collection[str]]) -> list[UUID]:
        """Return people with fewer names than the mention, all of which it contains.

        A name that several people share is skipped as a family name unless it comes first.
        """
        words = {each for some in known for each in some}
        found: list[UUID] = []
        for number, some in enumerate(known):
            sharing = self.find_members(some)
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

    def _match_titles(self, said: PersonMention) -> list[UUID]:
        """Return people who are known only by the title that the mention puts before a name."""
        return [
            each
            for each in intersect([self._by_title[title] for title in said.titles])
            if not any(own.names for own in self._said[each][:-1])
        ]

    def _prefer_titled(self, said: PersonMention, found: Sequence[UUID]) -> Sequence[UUID]:
        """Return the people who have the mention's titles, or all people if none has them."""
        titled = [
            each for each in found if all(each in self._by_title[title] for title in said.titles)
        ]
        return titled or found

    @staticmethod
    def _is_compatible(said: PersonMention, own: Sequence[PersonMention]) -> bool:
        """True if no detail of the mention contradicts a person's names and role (the last)."""
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
    """Read a role without its possessor, who is another person."""
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
        said.add_word(word.text)
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
            said.add_word(word.text)
    return said


class Things(WordIndex):
    """An index of entities that are no people. The end of a name can identify them."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[UUID, list[tuple[list[str], int]]] = {}

    def add(self, member: Member) -> None:
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
        said, _ = _read_thing(words)
        for rank, found in self._search(words, said) if said else ():
            if found:
                return rank, found
        return NEAR, ()

    def _search(self, words: Sequence[NameWord], said: Sequence[str]) -> Iterator[Matches]:
        known = [self.find_known(word) for word in said]
        yield SAME, self.whole.get(make_name_key(words), ())
        yield SAME, self._match_all(known)
        yield SAME, self._match_specific(said)
        is_new = words[0].text in INDEFINITE or words[0].text in ANOTHER
        if not is_new and not any(word.owns for word in words[:-1]):
            candidates = intersect([self.find_members(some) for some in known])
            yield PART, [each for each in candidates if self._is_head(each, known)]
        nearly = [some or self.find_similar(word) for word, some in zip(said, known, strict=True)]
        yield NEAR, self._match_all(nearly)

    def _match_all(self, known: Sequence[Collection[str]]) -> list[UUID]:
        """Return things with exactly these words as a name."""
        return [
            each
            for each in intersect([self.find_members(some) for some in known])
            if any(_match_words(known, name) for name, _ in self._names[each])
        ]

    def _match_specific(self, said: Sequence[str]) -> list[UUID]:
        """Return things with a name that matches except for a generic word, such as "tavern"."""
        wanted, kinds = _split_generic(said)
        if not wanted:
            return []
        known = [self.find_known(word) for word in wanted]
        return [
            each
            for each in intersect([self.find_members(some) for some in known])
            for own, own_kinds in (_split_generic(name) for name, _ in self._names[each])
            if _match_words(known, own) and (not kinds or not own_kinds or kinds == own_kinds)
        ]

    def _is_head(self, member_id: UUID, known: Sequence[Collection[str]]) -> bool:
        """True if words are the end of a name, or the words before its first "of"."""
        count = len(known)
        for name, cut in self._names[member_id]:
            ends = [name[max(0, cut - count) : cut]]
            # In Russian, the noun can come first: "tower of ash".
            if not name[0].isascii():
                ends.append(name[:count])
            if any(_match_words(known, end) for end in ends):
                return True
        return False


def _match_words(known: Sequence[Collection[str]], name: Sequence[str]) -> bool:
    """True if the words of a mention are those of a name, in the same order."""
    return len(name) == len(known) and all(a in b for a, b in zip(name, known, strict=True))


def _read_thing(words: Sequence[NameWord]) -> tuple[list[str], int]:
    """Return the identifying words of a name, and the number of them before an "of"."""
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


PEOPLE = frozenset({"pc", "npc"})


class Roster:
    """Resolves mentions to entities. Those that are `present` are preferred."""

    def __init__(self, members: Iterable[Member], *, present: Collection[UUID] = ()) -> None:
        self._members: dict[UUID, Member] = {}
        self._indexes: dict[str, WordIndex] = {}
        self._present = frozenset(present)
        for member in members:
            self.add(member)

    def add(self, member: Member) -> None:
        """Add an entity, or new names of one."""
        self._members[member.id] = member
        kind = "person" if member.kind in PEOPLE else member.kind
        if kind not in self._indexes:
            self._indexes[kind] = People() if kind == "person" else Things()
        self._indexes[kind].add(member)

    def resolve(self, mention: str, kind: str | None = None) -> Sequence[UUID]:
        """Return the entity that a mention means: none if it is new, several if it is ambiguous.

        `kind` is a kind of entity. `pc` and `npc` both mean people.
        """
        if kind is None:
            indexes = list(self._indexes.values())
        else:
            one = self._indexes.get("person" if kind in PEOPLE else kind)
            indexes = [one] if one else []
        words = read_words(mention)
        found = [answer for index in indexes if (answer := index.find(words))[1]]
        surest = min((rank for rank, _ in found), default=NEAR)
        return self._prefer_present([each for rank, ids in found if rank == surest for each in ids])

    def _prefer_present(self, found: Sequence[UUID]) -> Sequence[UUID]:
        """Return the entities that are present, else those at the same place, else all."""
        found = list(dict.fromkeys(found))
        if len(found) < 2:  # noqa: PLR2004  # one
            return found
        if here := [each for each in found if each in self._present]:
            return here
        places = {self._members[each].place_id for each in self._present & self._members.keys()}
        places -= {None}
        return [each for each in found if self._members[each].place_id in places] or found
