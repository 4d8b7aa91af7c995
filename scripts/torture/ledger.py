"""A ledger of one account: items that must exist, and items that may exist."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from scripts.torture.history import Outcome

ThingKind = Literal["chat", "character", "lorebook", "persona", "provider", "preset"]


@dataclass
class Line:
    """A message that was acknowledged.

    `text` is all of it where the client wrote it; `marks` are those of the model's outputs that
    must be in it as a whole, in this order.
    """

    id: str
    chat_id: str
    text: str | None
    marks: list[str] = field(default_factory=list[str])
    since: float = 0.0


@dataclass
class Thing:
    """An item with a unique name. It may be missing after a request to delete it.

    `values` is what it may say now: the last value that was acknowledged, and those that were sent
    after it without an answer. `has_key`: its request has an `Idempotency-Key`, and is sent again
    until it is answered. `was_lost`: an answer to it did not arrive. `slug`: what the ids of a
    provider's models begin with, where a server listens at its address.
    """

    kind: ThingKind
    name: str
    id: str | None = None
    outcome: Outcome = "unknown"
    deleted: Outcome = "refused"
    has_key: bool = False
    was_lost: bool = False
    values: list[str] = field(default_factory=list[str])
    slug: str = ""

    @property
    def is_usable(self) -> bool:
        """True if it certainly exists."""
        return self.id is not None and self.deleted == "refused"


@dataclass
class Choice:
    """Something that has one value at a time, which several workers set.

    `values` are those that it may have: after requests that overlapped, or were not answered, that
    is each of theirs.
    """

    values: list[Any]
    _begun: int = 0
    _under_way: int = 0

    def begin(self, value: Any) -> tuple[int, bool, bool]:
        """Record that it will be set; return the argument of `end`."""
        self._begun += 1
        self._under_way += 1
        is_new = value not in self.values
        if is_new:
            self.values.append(value)
        return self._begun, self._under_way == 1, is_new

    def end(self, ticket: tuple[int, bool, bool], value: Any, outcome: Outcome) -> None:
        self._under_way -= 1
        number, was_alone, is_new = ticket
        if not was_alone or number != self._begun:
            return
        if outcome == "ok":
            self.values = [value]
        elif outcome == "refused" and is_new:
            self.values.remove(value)


@dataclass
class Deletion:
    """A message was to be deleted, with all below it. `until` is when that was known to be over."""

    chat_id: str
    message_id: str
    outcome: Outcome = "unknown"
    until: float = math.inf


@dataclass
class Ledger:
    """The account's things, the lines of its chats, and all texts that were ever sent.

    `answered` counts, by chat, the turns that may have made a reply. `touched` are chats in which
    something happened since they were last compared with the database. `choices` are settings that
    were set.
    """

    things: dict[tuple[ThingKind, str], Thing] = field(
        default_factory=dict[tuple[ThingKind, str], Thing]
    )
    lines: dict[str, Line] = field(default_factory=dict[str, Line])
    deletions: list[Deletion] = field(default_factory=list[Deletion])
    parents: dict[str, str | None] = field(default_factory=dict[str, str | None])
    sent: set[str] = field(default_factory=set[str])
    answered: Counter[str] = field(default_factory=Counter[str])
    copies: set[str] = field(default_factory=set[str])
    touched: set[str] = field(default_factory=set[str])
    choices: dict[tuple[str, str], Choice] = field(default_factory=dict[tuple[str, str], Choice])
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def choice(self, place: str, member: str) -> Choice:
        """Possible values of each setting by path; null at first."""
        return self.choices.setdefault((place, member), Choice([None]))

    def thing(self, kind: ThingKind, name: str) -> Thing:
        """Record that an item will be created."""
        made = self.things[kind, name] = Thing(kind, name)
        return made

    def usable(self, kind: ThingKind) -> list[Thing]:
        """Return the items of a kind that certainly exist."""
        return [each for each in self.things.values() if each.kind == kind and each.is_usable]

    def find_chat(self, chat_id: str) -> Thing | None:
        chats = (each for each in self.things.values() if each.kind == "chat")
        return next((each for each in chats if each.id == chat_id), None)

    def may_be_missing(self, line: Line) -> bool:
        """True if the line, one above it, or its chat may have been deleted."""
        chat = self.find_chat(line.chat_id)
        if chat is not None and chat.deleted != "refused":
            return True
        asked = {
            each.message_id: each
            for each in self.deletions
            if each.chat_id == line.chat_id and each.outcome != "refused"
        }
        at: str | None = line.id
        while at is not None:
            if at in asked:
                return True
            if at not in self.parents:
                # The lines above it are unknown, so that any unfinished deletion may concern it.
                return any(each.until >= line.since for each in asked.values())
            at = self.parents[at]
        return False

    def must_be_missing(self) -> set[str]:
        """Return the messages with an acknowledged deletion."""
        return {each.message_id for each in self.deletions if each.outcome == "ok"}
