"""Entries of the lists in a vault: their text, and their details by name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Protocol
from uuid import UUID

from backend.audience import Audience
from backend.campaigns.files import vault
from backend.campaigns.files.draft import CampaignDraft
from backend.campaigns.files.markdown import (
    NEXT_STEP,
    Bullet,
    decoded,
    titled,
    unlinked,
)
from backend.campaigns.items import Item, Kind

BOX = re.compile(r"\[([ xX])\]\s{1,5}")


class World(Protocol):
    """The entities of a vault, and the draft that its lists are added to."""

    @property
    def draft(self) -> CampaignDraft:
        """The campaign that is read."""
        ...

    def find(self, name: str, kind: str = "") -> UUID | None:
        """The entity that a link or a name means."""
        ...

    def follow(self, target: str) -> None:
        """Warn if a link leads nowhere."""
        ...

    def audience(self, value: Any, where: str) -> Audience:
        """Return the audience that a value names."""
        ...

    def add(self, kind: Kind, item: Item, item_id: UUID | None = None) -> UUID:
        """Take in an item."""
        ...

    def note(self, text: str, about: UUID | None) -> None:
        """Keep a text as a fact for the game master."""
        ...


class Entry:
    """An entry of a list: its text, and its details by their names."""

    def __init__(
        self, world: World, known: frozenset[str], *, group: str = "", text: str = ""
    ) -> None:
        self.group = unlinked(group)
        self.heading = group
        self.said: defaultdict[str, list[str]] = defaultdict(list)
        self.unknown: list[str] = []
        self._follow, self._known = world.follow, known
        first, *lines = split_lines(text) if "next" in known else text.split("\n")
        self.text = "\n".join([first, *(each for each in lines if not self.take(each))])

    def detail(self, text: str) -> tuple[str, str] | None:
        """Return a text as a known detail and its value; None if it is no detail."""
        if BOX.match(text) and "objective" in self._known:
            return "objective", text
        name, colon, value = text.partition(":")
        key = " ".join(name.strip(" *_→").removeprefix("->").split()).casefold()
        key = key if key in self._known else vault.OTHER_NAMES.get(key, key)
        if not colon or key not in self._known:
            return None
        return key, value.removeprefix("**").strip()

    def take(self, text: str) -> bool:
        """Take a text as a detail; return False if it is none."""
        found = self.detail(text)
        if found is None:
            return False
        key, value = found
        self.said[key].append(value if key in vault.RAW else decoded(value, self._follow))
        return True

    def add_details(self, bullet: Bullet) -> None:
        """Take the details of a list's entry. Others are kept in the text."""
        for each in bullet.details:
            if not self.take(each):
                self.unknown.append(unlinked(each, self._follow))

    def add_cells(self, cells: Sequence[tuple[str, str]], main: str) -> None:
        """Take a row of a table. The first cell that is no detail is `main`: title or text."""
        has_main = False
        for header, cell in cells:
            name = header.strip(" *").casefold()
            name = name if name in self._known else vault.COLUMNS.get(name, name)
            if name == main and not has_main:
                self.text, has_main = unlinked(cell, self._follow), True
            elif not self.take(f"{name}: {cell}"):
                if has_main or self.text:
                    self.unknown.append(unlinked(f"{header}: {cell}", self._follow))
                else:
                    self.text, has_main = unlinked(cell, self._follow), True

    def add_content(self, bullets: Iterable[Bullet]) -> None:
        """Take the content of a heading: details, and text."""
        for bullet in bullets:
            for text in (*split_lines(bullet.text), *bullet.details):
                if text and not self.take(text):
                    self.said["text"].append(decoded(text, self._follow))

    def last(self, key: str, default: str = "") -> str:
        """Return the last value of a detail."""
        return self.said[key][-1] if self.said[key] else default

    def split_title(self) -> tuple[str, str]:
        """Return the title and the text, which ends with unknown details."""
        title, text = titled(self.text)
        title = self.last("title") or unlinked(title, self._follow)
        texts = [unlinked(text, self._follow), "\n".join(self.said["text"])]
        return title, " ".join(filter(None, [*texts, *self.unknown]))

    def whole(self) -> str:
        """Return the text of an entry without a title, with unknown details at its end."""
        texts = [*self.said["title"], decoded(self.text, self._follow), *self.said["text"]]
        return " ".join(filter(None, [*texts, *self.unknown]))

    def fields(self, *names: str) -> dict[str, str]:
        """Return the details among `names` that the entry has."""
        return {name: self.last(name) for name in names if self.said[name]}


def split_lines(text: str) -> list[str]:
    """Return the lines of a text. A next step becomes a separate line."""
    return [part for line in text.split("\n") for part in NEXT_STEP.split(line, maxsplit=1)]
