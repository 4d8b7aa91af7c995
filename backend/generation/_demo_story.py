"""What the demo model takes out of the lines of a story, by simple rules for English.

No understanding is behind it: a sentence with somebody's name (or `I`) and a verb of finding,
killing, promising and the like is an event, told again with the speaker's name for `I`.
"""

# ruff: noqa: RUF001  # typographic quotes and dashes are meant

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from backend.generation._demo_verbs import BASES, FORMS, present

DEMO_MARK = "Talekeeper's demo model"
"""In each reply of the demo model: its own lines are no news, and quote the user's."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LONGEST_SUMMARY = 400
_MOST_KEYWORDS = 6
_SHORTEST_KEYWORD = 4
_WORDS_OF_HEDGE = 3
_TIMES_TO_RECUR = 2

_LINE = re.compile(r"^#(\d+) (?:([^:\n]{1,80}): )?", re.MULTILINE)
_SENTENCE = re.compile(r"[^.!?…\n]+(?:[.!?…]+[\"”’']*|$|(?=\n))")
_WORD = re.compile(r"[\w'’-]+")
_PART = r"[A-Z][\w-]{1,40}"
_NAME = re.compile(rf"\b{_PART}(?: (?:of (?:the )?)?{_PART}){{0,4}}")
_PLACE = re.compile(
    r"\b(?:in|at|into|inside|under|beneath|below|near|on|to|behind|outside) the (" + _NAME.pattern
    + r")|\b(?:arrives?|arrived) (?:in|at) (" + _NAME.pattern + r")"
    + r"|\b(?:reach(?:es|ed)?|leaves?|left) (?:the )?(" + _NAME.pattern + ")"
)  # fmt: skip
_INTRODUCED = re.compile(
    rf"\b({_NAME.pattern})(?:, | is | was )((?:an?|the) [a-z][^.!?\n;,]{{5,200}})"
)
_TOLD_OUTRIGHT = re.compile(
    rf"(?:{_NAME.pattern}) is (?:an?|the) (?!bit\b|little\b|lot\b|few\b|one\b|same\b|only\b)[a-z]"
)
"""A sentence that begins with a name and says what that is: said once is enough."""

_ACTS = re.compile(r"\*([^*\n]+)\*")
_MARKS = re.compile(r"[*_\"“”]+")

_HEDGES = _words(
    """to not never n't if unless would could should might may want wants wanted will shall going
    gonna can cannot must need needs hope wish let let's don't doesn't didn't won't can't"""
)
_DETERMINERS = _words("the a an my your his her our their its to on at")
_IDLE = re.compile(
    r"\b(?:(?:take|took|taken|takes) (?:a|an|another|one|off|out|in|up|place|care|part)\b"
    r"|(?:give|gave|gives) (?:\w+ )?(?:a|an|another|up) ?(?:small |little |slow |short )?"
    r"(?:nod|smile|look|laugh|shrug|sigh|wink|hug|grin|bow)?\b(?! ?\w))",
    re.IGNORECASE,
)
"""Turns of phrase in which such a verb says nothing: `takes a breath`, `gives a nod`."""

_STARTERS = _words(
    """a about after again all also although an and another any are as at be because before behind
    both but by can come could day did do does each even every everything finally first for from
    go good had has have he hello her here hers his how however i if in inside into is it its just
    last later let like look maybe meanwhile my never next no nobody not nothing now of oh okay
    on once one only or our outside over perhaps please quickly she should since slowly so some
    somebody someone something soon still suddenly take tell thank that the their then there
    these they this those though through thus to today tomorrow tonight two under until up wait
    was we well were what when where which while who why will with without would yes yesterday
    yet you your"""
)
"""Words that are capitalised at the head of a sentence, and are no names."""

_FIRST_PERSON = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"\bI['’]m\b|\bI am\b", "{name} is"),
        (r"\bI['’]ve\b|\bI have\b", "{name} has"),
        (r"\bI['’]ll\b", "{name} will"),
        (r"\bI['’]d\b", "{name} would"),
        (r"\bI don['’]t\b|\bI do not\b", "{name} does not"),
        (r"\b[Mm]ine\b|\b[Mm]y\b", "{name}'s"),
        (r"\bmyself\b|\bme\b|\bI\b", "{name}"),
    )
)
_BASES = "|".join(sorted(BASES))
_PRESENT = re.compile(rf"\bI (?:{_BASES})\b")
_VERB_OF_I = re.compile(rf"\b(I|and) ({_BASES})\b")
_TOLD_TO = re.compile(
    rf"\b((?:{'|'.join(sorted(FORMS))}|to|for|with|from|about|tell|told|tells) )you\b"
)


@dataclass(frozen=True, slots=True)
class DemoLine:
    """One message: its mark (`#12`), who said it (or nobody), and what."""

    mark: str
    speaker: str
    text: str

    @property
    def is_own(self) -> bool:
        """Whether the demo model said it."""
        return DEMO_MARK in self.text


@dataclass(frozen=True, slots=True)
class Happening:
    """An event as the demo model sees it."""

    summary: str
    kind: str
    significance: int
    where: str
    who: list[str]
    keywords: list[str]
    mark: str


@dataclass(frozen=True, slots=True)
class Introduced:
    """A name, and what it was said to be."""

    title: str
    content: str


def section(text: str, name: str) -> str:
    """What stands between the last line `<name>` and `</name>`; empty where there is none."""
    _, opened, rest = f"\n{text}".rpartition(f"\n<{name}>\n")
    return rest.rpartition(f"</{name}>")[0] if opened else ""


def lines_of(text: str) -> list[DemoLine]:
    """The messages of a section, each `#12 Marlena: text`, over one line or more."""
    heads = list(_LINE.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)][: len(heads)]
    return [
        DemoLine(f"#{head[1]}", (head[2] or "").strip(), text[head.end() : end].strip())
        for head, end in zip(heads, ends, strict=True)
    ]


def sentences(text: str) -> list[str]:
    """A text's sentences, without the marks of speech and emphasis."""
    plain = (_MARKS.sub("", found.group()).strip(" \t-–—") for found in _SENTENCE.finditer(text))
    return [each for each in plain if each]


def happenings(lines: Sequence[DemoLine]) -> list[Happening]:
    """The events of these lines, in order."""
    speakers = list(dict.fromkeys(line.speaker for line in lines if line.speaker))
    found: dict[str, Happening] = {}
    for line in lines:
        if line.is_own:
            continue
        others = [each for each in speakers[:3] if each != line.speaker]
        addressed = others[0] if len(others) == 1 else ""
        for sentence in _told_sentences(line):
            made = _happening(sentence, line, addressed)
            if made is not None:
                found.setdefault(made.summary, made)
    return list(found.values())


def introductions(lines: Sequence[DemoLine], earlier: Sequence[DemoLine]) -> list[Introduced]:
    """Names that `lines` say something of.

    `X is an inn` is enough; of `X, an inn` the name has to come up before, or again.
    """
    told = [line for line in lines if not line.is_own]
    everything = [*told, *(line for line in earlier if not line.is_own)]
    times = Counter(name for line in everything for name in _names(line.text))
    speakers = {line.speaker for line in everything}
    found: dict[str, Introduced] = {}
    for line in told:
        for sentence in sentences(line.text):
            match = _INTRODUCED.search(sentence)
            name = _without_starters(match[1]) if match else ""
            is_told = _TOLD_OUTRIGHT.match(sentence) is not None and "?" not in sentence
            recurs = times[name] >= _TIMES_TO_RECUR
            if match and name and name not in speakers and (is_told or recurs):
                content = f"{name} is {match[2].strip(' ,')}."
                found.setdefault(name, Introduced(name, content))
    return list(found.values())


def _told_sentences(line: DemoLine) -> Iterator[str]:
    """Sentences; a bare `*hides the key*` has the speaker in front of it."""

    def with_speaker(act: re.Match[str]) -> str:
        inner = act[1].strip()
        head = inner.split(" ", 1)[0].lower()
        is_bare = head in FORMS and bool(line.speaker)
        return f"{line.speaker} {head}{inner[len(head) :]}. " if is_bare else act[0]

    yield from sentences(_ACTS.sub(with_speaker, line.text))


def _happening(sentence: str, line: DemoLine, addressed: str) -> Happening | None:
    found = _verb_in(sentence)
    if found is None:
        return None
    summary = _in_third_person(sentence, line.speaker, addressed)
    places = [next(filter(None, match.groups())) for match in _PLACE.finditer(summary)]
    names = _names(sentence)
    told = [name for name in (line.speaker, addressed) if name and name in summary]
    names = [*told, *(name for name in names if not any(name in each for each in told))]
    elsewhere = set(places)
    who = [name for name in dict.fromkeys(names) if name not in elsewhere]
    if not who:
        return None
    verb = FORMS[found]
    words = (re.sub("['’].*", "", word) for word in _WORD.findall(sentence) if word.islower())
    keywords = [
        word
        for word in dict.fromkeys(words)
        if len(word) >= _SHORTEST_KEYWORD and word not in _STARTERS and word not in FORMS
    ]
    return Happening(
        summary=summary,
        kind=verb.kind,
        significance=verb.significance,
        where=places[0] if places else "",
        who=who,
        keywords=keywords[:_MOST_KEYWORDS],
        mark=line.mark,
    )


def _verb_in(sentence: str) -> str | None:
    """The first verb of an event that is told as having happened; None for a question."""
    if "?" in sentence or _IDLE.search(sentence):
        return None
    words: list[str] = [word.lower() for word in _WORD.findall(sentence)]
    for at, word in enumerate(words):
        before = words[max(0, at - _WORDS_OF_HEDGE) : at]
        is_noun = bool(before) and before[-1] in _DETERMINERS
        if at and word in FORMS and not is_noun and not _HEDGES.intersection(before):
            return word
    return None


def _in_third_person(sentence: str, speaker: str, addressed: str) -> str:
    told = sentence.strip(" ,;:")
    if addressed:
        told = _TOLD_TO.sub(lambda match: f"{match[1]}{addressed}", told)
        told = re.sub(r"\b[Yy]our\b", lambda _: f"{addressed}'s", told)
    if speaker:
        if _PRESENT.search(told):
            told = _VERB_OF_I.sub(lambda match: f"{match[1]} {present(match[2])}", told)
        for pattern, words in _FIRST_PERSON:
            told = pattern.sub(_teller(words.format(name=speaker)), told)
    told = " ".join(told.split())
    if len(told) > _LONGEST_SUMMARY:
        told = f"{told[:_LONGEST_SUMMARY].rsplit(' ', 1)[0]}..."
    return told if told.endswith((".", "!", "…")) else f"{told}."


def _teller(words: str) -> Callable[[re.Match[str]], str]:
    """Puts these words in the place of a match, whatever signs are in them."""
    return lambda _: words


def _names(text: str) -> list[str]:
    """Capitalised names, in order, each as often as it stands there."""
    found: list[str] = []
    for sentence in sentences(text):
        for match in _NAME.finditer(sentence):
            name = _without_starters(match.group())
            if name[:1].isupper():
                found.append(name)
    return found


def _without_starters(name: str) -> str:
    """`The Moon Scepter` is `Moon Scepter`; `Then` is nothing."""
    while name and name.partition(" ")[0].lower() in _STARTERS:
        name = name.partition(" ")[2]
    return name
