"""Tags of a reply: that it brings somebody new, an item, another place, or a decision.

They are found by rules, in English and in German, and mean that the world may have changed by more
than its state says. Most rules are a verb beside the one to whom the story happens: the reader, or
a player's character. What is asked, denied or only possible is no tag. All of it is linear in the
text.
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
"""Of each tag: the first one that the rules see may be none."""

_MAX_WORDS = 100
"""Words of a sentence that are read."""

_MAX_EXCLUDED_DISTANCE = 5
"""Words after a verb that may say that it means something else."""

_QUOTES = '"“”„«»'  # as they are printed
_SENTENCE = re.compile(rf"[^.!?;:\u2026\n{_QUOTES}]+[.!?;:\u2026\n]*|[{_QUOTES}]")
_WORD = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
_MAX_FOLLOWING_WORDS = 12
_CAPITAL = "^"
"""Among words that may come: any that has a capital."""

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
    """A tag, and a sentence that may have it."""

    tag: Tag
    snippet: str


class _Word(NamedTuple):
    text: str
    is_capital: bool


@dataclass(frozen=True, slots=True)
class TagRule:
    """A verb with what may stand beside it.

    Attributes:
        is_mine: The one to whom the story happens does it; else it is done to them, by `within`
            words after it.
        then: One of these comes by `then_within` words after it, where there are any.
        never: None of these comes right after it.
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
    """The tags of a text in the order of `TAGS`, each with the first sentences that have it.

    Args:
        text: A reply. Of a long one `MAX_TEXT` characters are read.
        names: Of those who are known already.
        players: Of players' characters, of whom a story may tell by name.
    """
    text = to_plain(text[:MAX_TEXT])
    known = _split_names(names)
    mine = _split_names(players)
    found: defaultdict[Tag, list[str]] = defaultdict(list)
    for sentence, at, is_speech in _split_sentences(text):
        for tag in _find_sentence_tags(sentence, known, mine, is_speech=is_speech):
            if len(found[tag]) < _MAX_SENTENCES and (snippet := get_sentence(text, at)):
                found[tag].append(snippet)
    return [TagMatch(tag, told) for tag in TAGS for told in dict.fromkeys(found[tag])]


def _split_names(names: Iterable[str]) -> set[str]:
    return {fold_word(word) for name in names for word in _WORD.findall(to_plain(name))}


def _split_sentences(text: str) -> Iterator[tuple[str, int, bool]]:
    """Parts of sentences that are no questions, their places, and whether somebody says them."""
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
    if _names_newcomer(sentence, known) or (not is_speech and _describes_newcomer(words, known)):
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


def _describes_newcomer(words: Sequence[_Word], known: Collection[str]) -> bool:
    """Whether a sentence introduces a person without a name: a woman in a cloak."""
    for at, word in enumerate(words):
        if word.text not in _PERSONS or word.text in known:
            continue
        for begin in range(max(0, at - 4), at):
            if words[begin].text in _NEWCOMERS and not any(
                each.text in _LIKENESS for each in words[max(0, begin - 2) : at]
            ):
                return True
    return False


def _names_newcomer(sentence: str, known: Collection[str]) -> bool:
    """Whether a sentence gives the name of somebody who is not known."""
    if any(_is_new(match["name"], known) for match in _CALLED.finditer(sentence)):
        return True
    return any(
        fold_word(match["title"]) in _ROLES and _is_new(match["name"], known)
        for match in _TITLED.finditer(sentence)
    )


def _is_new(name: str, known: Collection[str]) -> bool:
    word = fold_word(name.removesuffix("'s"))
    return word not in known and word not in CAPITALISED and word not in _ROLES
