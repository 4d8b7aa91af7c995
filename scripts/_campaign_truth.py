"""What is so in a made-up campaign, and questions that ask for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scripts._campaign_words import NEWCOMERS, PEOPLE, PLAYERS

AGE = 9
"""Rounds that are at least between what is told and a question about it."""
QUESTIONS = 12
"""Asked at once, at most, beside those about secrets."""
SECRETS_ASKED = 3

Words = tuple[str, ...]
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Update:
    """A call of an updater tool. `replaces` is the text of a fact that the new one makes untrue."""

    tool: str
    name: str = ""
    set: Fields = field(default_factory=dict[str, Any])
    add: Fields = field(default_factory=dict[str, Any])
    remove: Fields = field(default_factory=dict[str, Any])
    replaces: str = ""


@dataclass(frozen=True)
class Question:
    """A question, and what a line of the prompt has to say: all words of one of the `answers`.

    A line with all words of one of `stale` tells what is no longer so. `hidden` is what the
    `asker`, a name or "gm", may not know.
    """

    kind: str
    asks: str
    answers: Sequence[Words] = ()
    stale: Sequence[Words] = ()
    hidden: Words = ()
    asker: str = "gm"


@dataclass
class Truth:
    """What is so: items by kind and name with their fields, facts with whom they are for."""

    items: dict[tuple[str, str], dict[str, Any]] = field(
        default_factory=dict[tuple[str, str], dict[str, Any]]
    )
    facts: dict[str, str] = field(default_factory=dict[str, str])
    over: set[str] = field(default_factory=set[str])
    events: list[str] = field(default_factory=list[str])
    changed: dict[tuple[str, str, str], int] = field(
        default_factory=dict[tuple[str, str, str], int]
    )
    was: dict[tuple[str, str, str], Any] = field(default_factory=dict[tuple[str, str, str], Any])


def short(name: str) -> str:
    """The part of a name by which somebody is called, too: the last one."""
    return name.rpartition(" ")[2]


class Questioner:
    """Asks for what was told some rounds ago, and is so or is so no more."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._asked: set[str] = set()
        self._truth = Truth()
        self._by_kind: Mapping[str, Callable[[str, str, Any, Any], Question | None]] = {
            "pc": self._player,
            "npc": self._person,
            "location": self._thing,
            "item": self._thing,
            "ability": self._ability,
            "quest": self._quest,
            "threat": self._threat,
            "clock": self._clock,
            "topic": self._fact,
            "world": self._day,
        }

    def questions(self, truth: Truth, number: int) -> Sequence[Question]:
        """Questions after a round, those that were not asked yet first."""
        self._truth = truth
        places = [place for place, at in truth.changed.items() if number - at >= AGE]
        self._draw.shuffle(places)
        found: list[Question] = []
        for kind, name, key in places:
            ask, item = self._by_kind.get(kind), truth.items.get((kind, name), {})
            asked = ask(name, key, item.get(key), truth.was.get((kind, name, key))) if ask else None
            found += [asked] if asked else []
        found.sort(key=lambda each: each.asks in self._asked)
        self._asked.update(each.asks for each in found[:QUESTIONS])
        return [*found[:QUESTIONS], *self._secrets()]

    def _secrets(self) -> list[Question]:
        """Each is asked for by one who knows it, and by one who may not."""
        found: list[Question] = []
        secrets = [each for each in self._truth.facts.items() if each[1] != "public"]
        for text, audience in self._draw.sample(secrets, k=min(SECRETS_ASKED, len(secrets))):
            stranger = self._draw.choice([each for each in PLAYERS if each != audience])
            who = next(each for each in (*PEOPLE, *NEWCOMERS) if text.startswith(each))
            does = text.removeprefix(f"{who} ").rstrip(".")
            asks = f"What do I know of {who}, and of who {does}?"
            found.append(Question("secret", asks, [(short(who), does)], asker=audience))
            found.append(Question("secret", asks, hidden=(short(who), does), asker=stranger))
        return found

    def _about(self, name: str) -> str:
        return self._draw.choice((f"What about {name}?", f"I ask around about {name}."))

    def _place(self, name: str, place: str, old: str | None) -> Question:
        who = short(name)
        asks = f"Where is {self._draw.choice((name, who))} now?"
        return Question("place", asks, [(who, place)], [(who, f"at {old}")] if old else ())

    def _player(self, name: str, key: str, value: Any, old: Any) -> Question | None:
        who = short(name)
        match key:
            case "location":
                return self._place(name, value, old)
            case "hp":
                said = [(who, f"HP {value}"), (who, f"{value} hit points")]
                return Question("number", f"How is {name} doing?", said, [(who, f"HP {old}")])
            case "gold":
                said, over = [(who, f"{value} gold")], [(who, f"{old} gold")]
                return Question("number", f"How much can {name} pay?", said, over)
            case _:
                return self._list(name, key, value, old or [])

    def _list(
        self, name: str, key: str, held: Sequence[str], before: Sequence[str]
    ) -> Question | None:
        """What somebody has, by the newest of it; what no player has any more is over."""
        if not held:
            return None
        everybody = {one for each in PLAYERS for one in self._truth.items["pc", each][key]}
        gone = [each for each in before if each not in everybody]
        who = short(name)
        if key == "inventory":
            over = [("Inventory", each) for each in gone]
            return Question(key, f"What does {name} carry?", [(held[-1],)], over)
        lost = [(who, "conditions", each) for each in gone]
        return Question(key, f"What ails {name}?", [(who, held[-1])], lost)

    def _person(self, name: str, key: str, value: Any, old: Any) -> Question | None:
        if key == "location":
            return self._place(name, value, old)
        if value == "active":
            return None
        over = [(short(name), old)] if old and old != "active" else ()
        return Question("person", self._about(name), [(short(name), value)], over)

    def _thing(self, name: str, key: str, value: Any, _: Any) -> Question | None:
        if key == "description":
            return Question("thing", self._about(name), [(name, value[3:-1])])
        if value == "active":
            return None
        return Question("thing", self._about(name), [(name, value)])

    def _ability(self, name: str, _: str, value: Any, __: Any) -> Question:
        return Question("thing", f"Who of us has {name}?", [(name, short(value))])

    def _quest(self, name: str, key: str, value: Any, old: Any) -> Question | None:
        asks = f"Let us go on with the {name}."
        if self._truth.items["quest", name]["status"] != "open":
            said = [(name, "done with"), (name, "settles"), (name, "resolved")]
            return Question("thread", asks, said, [(name, "Next")])
        if key != "next_step":
            return None
        return Question("thread", asks, [(name, value)], [(name, old)] if old else ())

    def _threat(self, name: str, key: str, value: Any, _: Any) -> Question | None:
        if key != "tension" or value == "simmering":
            return None
        return Question("thread", f"How bad is it with the {name}?", [(name, value)])

    def _clock(self, name: str, key: str, value: Any, old: Any) -> Question | None:
        if key != "filled":
            return None
        most = self._truth.items["clock", name]["segments"]
        over = [(name, f"{old}/{most}")] if old else ()
        return Question("clock", f"How far is the {name}?", [(name, f"{value}/{most}")], over)

    def _fact(self, name: str, key: str, value: Any, old: Any) -> Question | None:
        if key != "value":
            return None
        asks = f"Does anybody remember: {name[0].lower()}{name[1:]} what?"
        return Question("fact", asks, [(name, value)], [(name, old)] if old else ())

    def _day(self, _: str, __: str, value: Any, ___: Any) -> Question:
        return Question("day", "Which day is it today?", [(f"Day {value}",)])
