"""A campaign of many rounds, made up by rules: what each line changes, and what is true after it.

Four players, a game master, and a cast. Each reply ends with sentences that change something, in
one of several phrasings, by a full name or a part of one; each comes with the calls by which a
compactor that misses nothing writes it down. Some replies are regenerated with other sentences,
and some lines are for one player's character, or the game master, alone.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts._campaign_truth import Fields, Question, Questioner, Truth, Update, short
from scripts._campaign_words import (
    ABILITIES,
    CLOCKS,
    CONDITIONS,
    FATES,
    FEELINGS,
    FOUND_PLACES,
    HAPPENED,
    NEWCOMERS,
    PEOPLE,
    PLACES,
    PLAYERS,
    QUESTS,
    RELICS,
    ROLES,
    SECRETS,
    STEPS,
    THINGS,
    THREATS,
    TOPICS,
)

SEED = 16
BLOCK = 10
"""Rounds after which questions are asked."""
SWIPED = 12
"""Every so many rounds a reply is regenerated once what followed from it is written down."""
SECRET = 4
"""Every so many rounds a line is for some alone."""


@dataclass(frozen=True)
class Scripted:
    """A round. `discarded` is the reply that is regenerated; `aside`: a text, and who it is for."""

    speaker: str
    line: str
    reply: str
    discarded: str = ""
    aside: tuple[str, str] | None = None
    questions: Sequence[Question] = ()


@dataclass(frozen=True)
class Script:
    """All rounds, the calls by the sentence that they come from, and what is so in the end."""

    rounds: Sequence[Scripted]
    updates: Mapping[str, Sequence[Update]]
    truth: Truth
    cast: Mapping[tuple[str, str], Fields]


def write_script(fillers: Iterator[tuple[str, str]], rounds: int, seed: int = SEED) -> Script:
    """A script of so many rounds. `fillers` are a player's line and a reply without meaning."""
    return _Author(seed).write(fillers, rounds)


class _Author:
    """Draws what happens. Each `_…` method tells one thing and makes it true."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._updates: dict[str, list[Update]] = {}
        self._truth = Truth()
        self._round = 0
        for name in PLAYERS:
            self._truth.items["pc", name] = {
                "location": PLACES[0], "hp": 20, "hp_max": 20, "gold": 50,
                "inventory": [], "conditions": [],
            }  # fmt: skip
        for place, name in enumerate(PEOPLE):
            location = PLACES[1 + place % (len(PLACES) - 1)]
            self._truth.items["npc", name] = {"location": location, "status": "active"}
        for name in PLACES:
            self._truth.items["location", name] = {}
        self._truth.items["world", ""] = {"day": 1}
        self._cast = copy.deepcopy(self._truth.items)

    def write(self, fillers: Iterator[tuple[str, str]], rounds: int) -> Script:
        """The whole script."""
        told: list[Scripted] = []
        questioner = Questioner(random.Random(self._draw.random()))
        for number in range(1, rounds + 1):
            self._round = number
            line, filler = next(fillers)
            discarded = ""
            if number % SWIPED == 0:
                before = copy.deepcopy(self._truth)
                discarded = f"{filler} {self._tellings()}"
                self._truth = before
            reply = f"{filler} {self._tellings()}"
            aside = self._secret() if number % SECRET == 0 else None
            is_last = number % BLOCK == 0
            questions = questioner.questions(self._truth, number) if is_last else ()
            told.append(
                Scripted(
                    speaker=PLAYERS[number % len(PLAYERS)],
                    line=line,
                    reply=reply,
                    discarded=discarded,
                    aside=aside,
                    questions=questions,
                )
            )
        return Script(told, self._updates, self._truth, self._cast)

    def _tellings(self) -> str:
        """Two sentences of different kinds."""
        kinds = self._draw.sample(
            [each for each, weight in self._effects() for _ in range(weight)], k=40
        )
        told: list[str] = []
        used: set[Callable[[], str]] = set()
        for tell in kinds:
            if tell not in used and (text := tell()):
                used.add(tell)
                told.append(text)
            if len(told) == 2:  # see above
                break
        return " ".join(told)

    def _effects(self) -> Sequence[tuple[Callable[[], str], int]]:
        return (
            (self._travel, 6), (self._wound, 3), (self._find, 4), (self._lose, 2), (self._pay, 3),
            (self._suffer, 2), (self._recover, 1), (self._feel, 4), (self._fate, 2),
            (self._meet, 3), (self._discover, 2), (self._relic, 2), (self._break, 1),
            (self._quest, 3), (self._step, 3), (self._end, 1), (self._threat, 2), (self._rise, 2),
            (self._clock, 2), (self._tick, 3), (self._learn, 5), (self._revise, 3),
            (self._ability, 2), (self._day, 2), (self._happen, 3), (self._scene, 2),
        )  # fmt: skip

    def _tell(self, phrasings: Sequence[str], updates: Sequence[Update], **words: str) -> str:
        """One of the phrasings; a sentence that was told before says the round, too."""
        text = self._draw.choice(phrasings).format(**words)
        text = text[0].upper() + text[1:]
        if text in self._updates:
            text = f"{text[:-1]}, again in round {self._round}."
        self._updates[text] = list(updates)
        return text

    def _put(self, kind: str, name: str, **fields: Any) -> None:
        item = self._truth.items.setdefault((kind, name), {})
        for key, value in fields.items():
            place = kind, name, key
            if key in item and item[key] != value:
                self._truth.was[place] = item[key]
            item[key] = value
            self._truth.changed[place] = self._round

    def _of(self, *kinds: str) -> list[str]:
        return [name for kind, name in self._truth.items if kind in kinds]

    def _new(self, kind: str, names: Sequence[str]) -> str:
        """A name that is not in use yet; empty where all are."""
        free = [name for name in names if (kind, name) not in self._truth.items]
        return self._draw.choice(free) if free else ""

    def _one(self, *kinds: str) -> tuple[str, str, str]:
        """(kind, name, what the line calls them) of somebody who is about."""
        alive = [
            (kind, name)
            for (kind, name), item in self._truth.items.items()
            if kind in kinds and item.get("status", "active") == "active"
        ]
        kind, name = self._draw.choice(alive)
        return kind, name, self._draw.choice((name, short(name)))

    def _travel(self) -> str:
        kind, name, called = self._one("pc", "npc")
        place = self._draw.choice([
            each
            for each in self._of("location")
            if each != self._truth.items[kind, name].get("location")
        ])  # fmt: skip
        self._put(kind, name, location=place)
        return self._tell(
            ("{who} sets out and by evening is at {at}.", "{who} stays at {at} from now on.",
             "Nobody knows why, but {who} has moved to {at}."),
            [Update(_tool(kind), called, {"location": place})], who=called, at=place,
        )  # fmt: skip

    def _wound(self) -> str:
        _, name, called = self._one("pc")
        points = self._draw.randint(1, 20)
        self._put("pc", name, hp=points)
        return self._tell(
            ("{who} now has {n} hit points.", "After that {who} stands at {n} hit points."),
            [Update(_tool("pc"), called, {"hp": points})], who=called, n=str(points),
        )  # fmt: skip

    def _find(self) -> str:
        held = {
            one for each in self._of("pc") for one in self._truth.items["pc", each]["inventory"]
        }
        free = [each for each in THINGS if each not in held]
        if not free:
            return ""
        _, name, called = self._one("pc")
        thing = self._draw.choice(free)
        self._put("pc", name, inventory=[*self._truth.items["pc", name]["inventory"], thing])
        return self._tell(
            ("{who} pockets the {what}.", "The {what} is given to {who}.",
             "{who} finds a {what} and keeps it."),
            [Update(_tool("pc"), called, add={"inventory": [thing]})], who=called, what=thing,
        )  # fmt: skip

    def _lose(self) -> str:
        _, name, called = self._one("pc")
        held = self._truth.items["pc", name]["inventory"]
        if not held:
            return ""
        thing = self._draw.choice(held)
        self._put("pc", name, inventory=[each for each in held if each != thing])
        return self._tell(
            ("{who} loses the {what} in the river.", "The {what} is stolen from {who}."),
            [Update(_tool("pc"), called, remove={"inventory": [thing]})], who=called, what=thing,
        )  # fmt: skip

    def _pay(self) -> str:
        _, name, called = self._one("pc")
        gold, amount = self._truth.items["pc", name]["gold"], self._draw.randint(1, 9)
        gains = gold < amount or self._draw.random() < 0.5  # one or the other
        self._put("pc", name, gold=gold + (amount if gains else -amount))
        change = {"gold": amount}
        update = (
            Update(_tool("pc"), called, add=change)
            if gains
            else Update(_tool("pc"), called, remove=change)
        )
        said = ("{who} earns {n} gold.", "{n} gold change hands, to {who}.")
        lost = ("{who} pays {n} gold.", "It costs {who} {n} gold.")
        return self._tell(said if gains else lost, [update], who=called, n=str(amount))

    def _suffer(self) -> str:
        _, name, called = self._one("pc")
        free = [e for e in CONDITIONS if e not in self._truth.items["pc", name]["conditions"]]
        if not free:
            return ""
        what = self._draw.choice(free)
        self._put("pc", name, conditions=[*self._truth.items["pc", name]["conditions"], what])
        return self._tell(
            ("{who} is {what} now.", "From then on {who} is {what}."),
            [Update(_tool("pc"), called, add={"conditions": [what]})], who=called, what=what,
        )  # fmt: skip

    def _recover(self) -> str:
        _, name, called = self._one("pc")
        has = self._truth.items["pc", name]["conditions"]
        if not has:
            return ""
        what = self._draw.choice(has)
        self._put("pc", name, conditions=[each for each in has if each != what])
        return self._tell(
            ("{who} is no longer {what}.", "{who} wakes and is not {what} any more."),
            [Update(_tool("pc"), called, remove={"conditions": [what]})], who=called, what=what,
        )  # fmt: skip

    def _feel(self) -> str:
        _, name, called = self._one("npc")
        feeling = self._draw.choice(FEELINGS)
        self._put("npc", name, disposition=feeling)
        return self._tell(
            ("{who} is {how} towards them now.", "They have made {who} {how}."),
            [Update(_tool("npc"), called, {"disposition": feeling})], who=called, how=feeling,
        )  # fmt: skip

    def _fate(self) -> str:
        _, name, called = self._one("npc")
        fate = self._draw.choice(FATES)
        self._put("npc", name, status=fate)
        return self._tell(
            ("Word comes that {who} is {how}.", "{who} is {how}, the whole town says."),
            [Update(_tool("npc"), called, {"status": fate})], who=called, how=fate,
        )  # fmt: skip

    def _meet(self) -> str:
        if not (name := self._new("npc", NEWCOMERS)):
            return ""
        place, role = self._draw.choice(self._of("location")), self._draw.choice(ROLES)
        self._put("npc", name, location=place, role=role, status="active")
        return self._tell(
            ("They meet {who}, a {role}, at {at}.", "{at} has a {role}, {who} by name."),
            [Update(_tool("npc"), name, {"role": role, "location": place})],
            who=name, role=role, at=place,
        )  # fmt: skip

    def _discover(self) -> str:
        if not (name := self._new("location", FOUND_PLACES)):
            return ""
        looks = self._draw.choice(("smells of cloves", "is full of clocks", "has no north wall"))
        self._put("location", name, description=f"It {looks}.")
        return self._tell(
            ("They come upon the {what}: it {looks}.", "Behind a wall is the {what}; it {looks}."),
            [Update(_tool("location"), name, {"description": f"It {looks}."})],
            what=name, looks=looks,
        )  # fmt: skip

    def _relic(self) -> str:
        if not (name := self._new("item", RELICS)):
            return ""
        does = self._draw.choice(("cuts iron", "sings at dawn", "burns liars", "stops clocks"))
        self._put("item", name, description=f"It {does}.", status="active")
        return self._tell(
            ("The thing is called {what}, and it {does}.", "So this is {what}, which {does}."),
            [Update(_tool("item"), name, {"description": f"It {does}."})], what=name, does=does,
        )  # fmt: skip

    def _break(self) -> str:
        whole = [
            each
            for each in self._of("item")
            if self._truth.items["item", each]["status"] == "active"
        ]
        if not whole:
            return ""
        name = self._draw.choice(whole)
        self._put("item", name, status="broken")
        return self._tell(
            ("{what} breaks in two.", "Nothing can save {what}: it is broken."),
            [Update(_tool("item"), name, {"status": "broken"})], what=name,
        )  # fmt: skip

    def _quest(self) -> str:
        if not (name := self._new("quest", QUESTS)):
            return ""
        _, giver, called = self._one("npc")
        step = self._draw.choice(STEPS)
        self._put("quest", name, giver=giver, next_step=step, status="open", tension="rising")
        return self._tell(
            ("{who} asks them to solve the {what}; first they must {step}.",
             "The {what} is theirs now, {who} has asked for it: {step}, and soon."),
            [Update("quest_updater_tool", name, {"giver": called, "next_step": step})],
            who=called, what=name, step=step,
        )  # fmt: skip

    def _step(self) -> str:
        if not (name := self._open("quest")):
            return ""
        step = self._draw.choice(STEPS)
        self._put("quest", name, next_step=step)
        return self._tell(
            ("For the {what} the next thing is to {step}.", "The {what} now needs them to {step}."),
            [Update("quest_updater_tool", name, {"next_step": step})], what=name, step=step,
        )  # fmt: skip

    def _end(self) -> str:
        if not (name := self._open("quest")):
            return ""
        self._put("quest", name, status="resolved")
        return self._tell(
            ("The {what} is done with, for good.", "That settles the {what}."),
            [Update("quest_updater_tool", name, {"status": "resolved"})], what=name,
        )  # fmt: skip

    def _threat(self) -> str:
        if not (name := self._new("threat", THREATS)):
            return ""
        self._put("threat", name, tension="simmering", status="open")
        return self._tell(
            ("Something is wrong in town: the {what}.", "They hear of the {what}, for once."),
            [Update("thread_updater_tool", name, {"kind": "threat", "tension": "simmering"})],
            what=name,
        )  # fmt: skip

    def _rise(self) -> str:
        if not (name := self._open("threat")):
            return ""
        tension = self._draw.choice(("rising", "urgent", "critical"))
        self._put("threat", name, tension=tension)
        return self._tell(
            ("Things with the {what} are {how} now.", "The {what} can't be ignored: it is {how}."),
            [Update("thread_updater_tool", name, {"tension": tension})], what=name, how=tension,
        )  # fmt: skip

    def _open(self, kind: str) -> str:
        found = [
            name
            for (each, name), item in self._truth.items.items()
            if each == kind and item["status"] == "open"
        ]
        return self._draw.choice(found) if found else ""

    def _clock(self) -> str:
        if not (name := self._new("clock", CLOCKS)):
            return ""
        segments = self._draw.choice((4, 6, 8))
        self._put("clock", name, segments=segments, filled=1)
        return self._tell(
            ("A clock begins, the {what}, of {n} segments, and one of them is full.",),
            [Update("clock_updater_tool", name, {"segments": segments, "filled": 1})],
            what=name, n=str(segments),
        )  # fmt: skip

    def _tick(self) -> str:
        ticking = [
            name
            for (kind, name), item in self._truth.items.items()
            if kind == "clock" and item["filled"] < item["segments"]
        ]
        if not ticking:
            return ""
        name = self._draw.choice(ticking)
        self._put("clock", name, filled=self._truth.items["clock", name]["filled"] + 1)
        return self._tell(
            ("The {what} moves on by one.", "Tick: the {what} is one further."),
            [Update("clock_updater_tool", name, add={"filled": 1})], what=name,
        )  # fmt: skip

    def _learn(self) -> str:
        free = [each for each in TOPICS if ("topic", each[0]) not in self._truth.items]
        if not free:
            return ""
        return self._record(self._draw.choice(free), 0)

    def _revise(self) -> str:
        known = [
            (each, at + 1)
            for each in TOPICS
            for at in [self._truth.items.get(("topic", each[0]), {}).get("at", len(each[1]))]
            if at + 1 < len(each[1])
        ]
        return self._record(*self._draw.choice(known)) if known else ""

    def _record(self, topic: tuple[str, Sequence[str]], at: int) -> str:
        subject, values = topic
        old = f"{subject} {values[at - 1]}." if at else ""
        text = f"{subject} {values[at]}."
        self._put("topic", subject, at=at, value=values[at])
        if old:
            self._truth.facts.pop(old)
            self._truth.over.add(old)
        self._truth.facts[text] = "public"
        new = ("{text}", "It is certain: {low}", "An old woman tells them: {low}")
        phrasings = ("That has changed. {text}", "It is another now: {low}") if old else new
        low = text[0].lower() + text[1:]
        update = Update("fact_recorder_tool", "", {"text": text}, replaces=old)
        return self._tell(phrasings, [update], text=text, low=low)

    def _ability(self) -> str:
        if not (name := self._new("ability", ABILITIES)):
            return ""
        _, owner, called = self._one("pc")
        self._put("ability", name, role=owner)
        return self._tell(
            ("{who} has learned {what}.", "{what} is what {who} can do now."),
            [Update("ability_updater_tool", name, {"role": owner})], who=called, what=name,
        )  # fmt: skip

    def _day(self) -> str:
        day = self._truth.items["world", ""]["day"] + self._draw.randint(1, 2)
        self._put("world", "", day=day)
        return self._tell(
            ("Day {n} begins.", "When they look up again it is day {n}."),
            [Update(_tool("location"), "", {"day": day})], n=str(day),
        )  # fmt: skip

    def _happen(self) -> str:
        free = [each for each in HAPPENED if not any(each in told for told in self._truth.events)]
        if not free:
            return ""
        what = self._draw.choice(free)
        summary = f"In round {self._round} {what}."
        self._truth.events.append(summary)
        return self._tell(
            ("Then {what}.", "Everybody will remember how {what}."),
            [Update("chronicle_event_tool", "", {"summary": summary, "significance": 4})],
            what=what,
        )  # fmt: skip

    def _scene(self) -> str:
        place = self._draw.choice(self._of("location"))
        title = f"What happened at {place}"
        self._put("scene", "", title=title, location=place)
        return self._tell(
            ("All of it plays at {at} now.", "The story goes on at {at}."),
            [Update("scene_narrative_updater_tool", "", {"title": title, "location": place})],
            at=place,
        )  # fmt: skip

    def _secret(self) -> tuple[str, str] | None:
        """A line for one player's character, or the game master, and whom it is for."""
        told = {text for text, audience in self._truth.facts.items() if audience != "public"}
        _, name, _ = self._one("npc")
        free = [each for each in SECRETS if not any(each in text for text in told)]
        if not free:
            return None
        audience = self._draw.choice((*PLAYERS, "gm"))
        fact = f"{name} {self._draw.choice(free)}."
        self._truth.facts[fact] = audience
        update = Update("fact_recorder_tool", name, {"text": fact})
        self._truth.changed["secret", fact, "text"] = self._round
        return self._tell(("Only you learn this: {text}",), [update], text=fact), audience


def _tool(kind: str) -> str:
    names = {"pc": "character", "npc": "npc", "location": "environment", "item": "item"}
    return f"{names[kind]}_updater_tool"
