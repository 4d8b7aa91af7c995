"""What the scripted model writes down, and how it repeats itself: rules, the same at each run.

A fact is one sentence of a line, told of its speaker in the third person. Whether a line holds one,
and whether the model repeats itself there, hangs on the line's own words alone: a run that is tried
again, over however many lines, tells the same.
"""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass

EVENTFUL = 3
"""Of so many lines that could hold a fact one does: about a third of stretches of two lines do."""
REPEATS = 1 / 3
"""Repetitions for each new fact: a quarter of what is told."""
DOUBT = "may say the same"
"""What the agent's desk says of an event that it wants to be sure of."""
OBSTINATE = 0.1
"""Of its repetitions that it is asked about, so many it still takes for news."""
SHORTEST, LONGEST = 7, 26
"""Words of a sentence that can be a fact."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\s*--\s*|\s*\([^)]*\)\s*|\s*[;:]\s*")
_WORD = re.compile(r"[A-Za-z][A-Za-z']*")
_SPEAKER = re.compile(r"([A-Z][\w ]{1,40}?): ")

_PLAIN = frozenset(
    re.findall(
        r"\S+",
        """
        a about all am an and are as at be been but by can could did do does don't for from get go
        going got had has have he her here him his how i i'll i'm if in into is it it's its just
        know like me my no not now of oh okay on one or our out over right she so some than that
        that's the their them then there there's these they they're this those to too up us was we
        we're well were what when where which who will with would yeah yes you you're your
        """,
    )
)

_PERSONS = (
    (r"\bI'm\b", "{name} is"),
    (r"\bI am\b", "{name} is"),
    (r"\bI've\b", "{name} has"),
    (r"\bI'll\b", "{name} will"),
    (r"\bI'd\b", "{name} would"),
    (r"\bI\b", "{name}"),
    (r"\bmyself\b", "{name}"),
    (r"\b[Mm]y\b", "{name}'s"),
    (r"\bme\b", "{name}"),
    (r"\b[Ww]e're\b", "they are"),
    (r"\b[Ww]e\b", "they"),
    (r"\b[Oo]ur\b", "their"),
    (r"\bus\b", "them"),
)

_TELLINGS = ("said", "told the others", "found", "noticed", "declared", "learned")
_RETELLINGS = {
    "said": "stated",
    "told the others": "let everyone know",
    "found": "discovered",
    "noticed": "became aware",
    "declared": "announced",
    "learned": "found out",
}

_SYNONYMS = {
    "able": "capable", "always": "forever", "asked": "inquired", "bad": "poor", "big": "large",
    "bit": "little", "bunch": "group", "came": "arrived", "city": "town", "come": "arrive",
    "feel": "sense", "feels": "senses", "felt": "sensed", "fight": "battle", "find": "discover",
    "friend": "companion", "friends": "companions", "front": "face", "gave": "handed",
    "give": "hand", "gold": "coin", "good": "fine", "great": "splendid", "guy": "man",
    "guys": "people", "hear": "catch", "heard": "caught", "help": "aid", "hold": "keep",
    "house": "home", "hurt": "injured", "kill": "slay", "killed": "slew", "kind": "sort",
    "large": "big", "leave": "depart", "left": "departed", "little": "small", "long": "lengthy",
    "look": "gaze", "looked": "gazed", "looking": "gazing", "looks": "gazes", "lot": "great deal",
    "made": "created", "make": "create", "makes": "creates", "maybe": "perhaps", "money": "coin",
    "need": "require", "nice": "pleasant", "night": "evening", "old": "aged", "people": "folk",
    "pretty": "rather", "pull": "draw", "pulls": "draws", "put": "place", "quick": "swift",
    "quickly": "swiftly", "really": "truly", "road": "path", "room": "chamber", "run": "dash",
    "saw": "spotted", "see": "spot", "seems": "appears", "sees": "spots", "side": "edge",
    "small": "tiny", "start": "begin", "started": "began", "starts": "begins", "stop": "halt",
    "take": "grab", "takes": "grabs", "talk": "speak", "talking": "speaking", "tell": "inform",
    "thing": "object", "things": "objects", "think": "believe", "thinks": "believes",
    "thought": "believed", "took": "grabbed", "town": "village", "trying": "attempting",
    "turn": "go round", "walk": "stroll", "walking": "strolling", "walks": "strolls",
    "want": "wish", "wants": "wishes", "way": "path", "whole": "entire", "work": "labour",
}  # fmt: skip
"""Words of these transcripts, and others that mean about the same there."""


@dataclass(frozen=True)
class Fact:
    """Something to write down. `key` is the ground truth: what it comes from."""

    key: str
    summary: str
    who: str
    keywords: tuple[str, ...]


def is_eventful(line: str) -> bool:
    """Whether a line holds a fact."""
    return _drawn(line, "eventful") % EVENTFUL == 0 and fact_of(line) is not None


def is_repetitive(line: str) -> bool:
    """Whether the model repeats itself where this line is new."""
    return _drawn(line, "repeats") % 1_000 < REPEATS * 1_000


def is_obstinate(summary: str) -> bool:
    """Whether the model takes what it repeats for news, though it sees what is there."""
    return _drawn(summary, "obstinate") % 1_000 < OBSTINATE * 1_000


def fact_of(line: str) -> Fact | None:
    """The most telling sentence of a line as a fact; None where there is none."""
    speaker = _SPEAKER.match(line)
    name = speaker[1] if speaker else "Somebody"
    text = line[speaker.end() :] if speaker else line
    sentences = [each.strip(" .,!?-\"'") for each in _SENTENCE_END.split(text)]
    fitting = [each for each in sentences if SHORTEST <= len(each.split()) <= LONGEST]
    if not fitting:
        return None
    best = max(fitting, key=lambda each: len(_telling(each)))
    words = _telling(best)
    if len(words) < 3:
        return None
    told = best[0].lower() + best[1:] if not best.startswith(("I ", "I'")) else best
    for pattern, person in _PERSONS:
        told = re.sub(pattern, person.format(name=name), told)
    verb = _TELLINGS[_drawn(line, "verb") % len(_TELLINGS)]
    longest = sorted(dict.fromkeys(words), key=lambda each: (-len(each), each))
    return Fact(best, f"{name} {verb} that {told}.", name, tuple(longest[:4]))


def in_other_words(fact: Fact, seed: str) -> Fact:
    """The same fact as a forgetful model tells it again: synonyms, another order, another voice."""
    draw = random.Random(f"{seed}/{fact.key}")
    head, _, told = fact.summary.rstrip(".").partition(" that ")
    name, verb = fact.who, head[len(fact.who) + 1 :]
    told = re.sub(r"[A-Za-z]+", lambda word: _SYNONYMS.get(word[0], word[0]), told)
    clauses = re.split(r", (?:and |but |so )?| and then ", told)
    if len(clauses) > 1 and draw.random() < 0.7:
        turn = draw.randrange(1, len(clauses))
        told = ", and ".join([", ".join(clauses[turn:]), ", ".join(clauses[:turn])])
    again = _RETELLINGS.get(verb, verb)
    told = draw.choice(
        (
            f"{name} {again} that {told}.",
            f"It was {name} who {again} that {told}.",
            f"{told[0].upper()}{told[1:]}, as {name} {again}.",
        )
    )
    return Fact(fact.key, told, name, fact.keywords)


def _telling(sentence: str) -> list[str]:
    words = [word.lower() for word in _WORD.findall(sentence)]
    return [word for word in words if len(word) > 2 and word not in _PLAIN]


def _drawn(line: str, what: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{what}/{line}".encode()).digest()[:6], "big")
