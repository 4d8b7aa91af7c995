"""Finds tags of a reply: a new person, an acquired item, another place, a decision.

A tag means that the world may have changed although its state has not. Rules find tags in English
and German. Most rules combine a verb with the protagonist: the reader or a player's character.
Questions, denials and possibilities have no tags. The cost is linear in the length of the text.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from backend.campaigns.glossary.coinages import get_sentence
from backend.campaigns.names.name_forms import TITLES, fold_word
from backend.campaigns.names.roster import MAX_TEXT
from backend.campaigns.names.words import CAPITALISED, to_plain

Tag = Literal["NEW_NPC", "ITEM_ACQUIRED", "LOCATION_CHANGE", "DECISION_MADE"]
TAGS: Sequence[Tag] = get_args(Tag)

_MAX_SENTENCES = 3
"""Maximum number of sentences for each tag, because the first match may be wrong."""

_MAX_WORDS = 100
"""Maximum number of words of a sentence that are read."""

_MAX_EXCLUDED_DISTANCE = 5
"""Number of words after a verb in which an excluded word cancels a rule."""

_QUOTES = '"“”„«»'  # as they are printed
_SENTENCE = re.compile(rf"[^.!?;:\u2026\n{_QUOTES}]+[.!?;:\u2026\n]*|[{_QUOTES}]")
_WORD = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
_MAX_FOLLOWING_WORDS = 12
_CAPITAL = "^"
"""In `TagRule.then`, any capitalised word."""

_NAME = r"(?P<name>[^\W\d_a-zäöüß][\w'-]+)"
_CALLED = re.compile(
    r"\b(?:[Nn]ame(?:'s| is|, it turns out, is| as)|[Cc]all me|I am|I'm|[Nn]amed|"
    r"(?:calls?|introduc\w+) (?:him|her|them)sel(?:f|ves)(?: as)?|"
    r"goes by|by the name of|called|[Tt]his is (?:my|our) [\w'-]+|turns out to be|"
    r"[Ii]ch heiße|[Nn]ame ist|sich|namens|stellt sich als|heißt|"
    r"[Dd]as ist (?:mein|meine|unser|unsere) [\w'-]+)\s"
    rf"(?:[^\W\d_a-zäöüß][\w'-]+\s)?{_NAME}"
)
_TITLED = re.compile(rf"\b(?P<title>[^\W\d_]+)\.?\s{_NAME}")


class TagMatch(NamedTuple):
    """A tag and a sentence that probably has it."""

    tag: Tag
    snippet: str


class _Word(NamedTuple):
    text: str
    is_capital: bool


@dataclass(frozen=True, slots=True)
class TagRule:
    """A verb and the words around it that make a tag.

    Attributes:
        is_mine: True if the protagonist acts. Otherwise the protagonist must follow the verb
            `within` so many words.
        then: Words of which one must follow `then_within` so many words, if there are any.
        never: Words of which none may follow.
    """

    tag: Tag
    verbs: frozenset[str]
    is_mine: bool
    within: int
    then: frozenset[str]
    then_within: int
    never: frozenset[str]


def _split(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _read_rule(rule: dict[str, Any]) -> TagRule:
    return TagRule(
        rule["tag"],
        _split(rule["verbs"]),
        rule["who"] == "mine",
        rule.get("within", 0),
        _split(rule.get("then", "")),
        rule.get("then_within", rule.get("within", 0)),
        _split(rule["never"]),
    )


def _index_phrases(phrases: dict[Tag, str]) -> dict[str, list[tuple[Tag, list[str]]]]:
    found: defaultdict[str, list[tuple[Tag, list[str]]]] = defaultdict(list)
    for tag, text in phrases.items():
        for phrase in (each.split() for line in text.splitlines() for each in line.split("|")):
            found[phrase[0]].append((tag, phrase))
    return found


_DATA = tomllib.loads(Path(__file__).with_name("tags.toml").read_text(encoding="utf-8"))
_RULES: defaultdict[str, list[TagRule]] = defaultdict(list)
for _each in map(_read_rule, _DATA["rule"]):
    for _verb in _each.verbs:
        _RULES[_verb].append(_each)

_MINE, _TO, _OTHERS, _DETERMINERS = (_split(each) for each in _DATA["who"].values())
_UNREAL = _split(_DATA["unreal"]["words"])
_ROLES = {word for word, title in TITLES.items() if title.role != "kin"}
_PERSONS = _split(_DATA["person"]["nouns"]) | _ROLES
_NEWCOMERS = _split(_DATA["person"]["after"])
_LIKENESS = _split(_DATA["person"]["likeness"])
_STORY, _SPEECH = _index_phrases(_DATA["phrases"]), _index_phrases(_DATA["speech"])


def find_tags(text: str, names: Iterable[str] = (), players: Iterable[str] = ()) -> list[TagMatch]:
    """Return the tags of a text in the order of `TAGS`, each with its first sentences.

    `names` are those of known entities, `players` those of players' characters.
    """
    text = to_plain(text[:MAX_TEXT])
    known = _split_names(names)
    mine = _split_names(players)
    found: defaultdict[Tag, list[str]] = defaultdict(list)
    for sentence, at, is_speech in _split_sentences(text):
        for tag in _find_sentence_tags(sentence, known, mine, is_speech=is_speech):
            if len(found[tag]) < _MAX_SENTENCES and (snippet := get_sentence(text, at)):
                found[tag].append(snippet)
    return [TagMatch(tag, snippet) for tag in TAGS for snippet in dict.fromkeys(found[tag])]


def _split_names(names: Iterable[str]) -> set[str]:
    return {fold_word(word) for name in names for word in _WORD.findall(to_plain(name))}


def _split_sentences(text: str) -> Iterator[tuple[str, int, bool]]:
    """Yield sentence parts except questions: text, position, and True inside quotation marks."""
    is_speech = False
    for match in _SENTENCE.finditer(text):
        if match[0] in _QUOTES:
            is_speech = not is_speech
            continue
        if "?" not in match[0]:
            yield match[0], match.start(), is_speech
        is_speech = is_speech and "\n" not in match[0]


def _find_sentence_tags(
    sentence: str, known: Collection[str], mine: Collection[str], *, is_speech: bool
) -> Iterator[Tag]:
    words = [
        _Word(fold_word(match[0].removesuffix("'s")), match[0][0].isupper())
        for match, _ in zip(_WORD.finditer(sentence), range(_MAX_WORDS), strict=False)
    ]
    if _has_named_newcomer(sentence, known) or (
        not is_speech and _has_described_newcomer(words, known)
    ):
        yield "NEW_NPC"
    unreal = (at for at, word in enumerate(words) if _is_unreal(word.text))
    words = words[: next(unreal, len(words))]
    texts = [word.text for word in words]
    phrases = _SPEECH if is_speech else _STORY
    is_mine = False
    for at, text in enumerate(texts):
        for tag, phrase in phrases.get(text, ()):
            if texts[at : at + len(phrase)] == phrase:
                yield tag
        if text in _MINE or text in mine:
            is_mine = True
        elif text in _OTHERS or text in known:
            is_mine = False
        for rule in () if is_speech else _RULES.get(text, ()):
            if _applies(rule, words, at, mine, is_mine=is_mine):
                yield rule.tag


def _is_unreal(text: str) -> bool:
    return text in _UNREAL or text.endswith("n't")


def _applies(
    rule: TagRule, words: Sequence[_Word], at: int, mine: Collection[str], *, is_mine: bool
) -> bool:
    after = words[at + 1 : at + 1 + _MAX_FOLLOWING_WORDS]
    if at and words[at - 1].text in _DETERMINERS:
        return False
    if any(word.text in rule.never for word in after[:_MAX_EXCLUDED_DISTANCE]):
        return False
    if rule.is_mine:
        if not is_mine and not (after and after[0].text in _MINE):  # findest du
            return False
    elif not any(word.text in _TO or word.text in mine for word in after[: rule.within]):
        return False
    return not rule.then or any(
        word.text in rule.then or (word.is_capital and _CAPITAL in rule.then)
        for word in after[: rule.then_within]
    )


def _has_described_newcomer(words: Sequence[_Word], known: Collection[str]) -> bool:
    """True if a sentence introduces a person without a name: a woman in a cloak."""
    for at, word in enumerate(words):
        if word.text not in _PERSONS or word.text in known:
            continue
        for begin in range(max(0, at - 4), at):
            if words[begin].text in _NEWCOMERS and not any(
                each.text in _LIKENESS for each in words[max(0, begin - 2) : at]
            ):
                return True
    return False


def _has_named_newcomer(sentence: str, known: Collection[str]) -> bool:
    """True if a sentence contains the name of an unknown person."""
    if any(_is_new(match["name"], known) for match in _CALLED.finditer(sentence)):
        return True
    return any(
        fold_word(match["title"]) in _ROLES and _is_new(match["name"], known)
        for match in _TITLED.finditer(sentence)
    )


def _is_new(name: str, known: Collection[str]) -> bool:
    word = fold_word(name.removesuffix("'s"))
    return word not in known and word not in CAPITALISED and word not in _ROLES
