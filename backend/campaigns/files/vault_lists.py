"""What a vault holds in lists under headings: threads, days, clocks, facts and the like."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any, Protocol
from uuid import UUID

import msgspec

from backend.audience import Audience, stored
from backend.campaigns.files import vault
from backend.campaigns.files.draft import CampaignDraft
from backend.campaigns.files.markdown import (
    Bullet,
    Document,
    bullets,
    decoded,
    link_target,
    titled,
    unlinked,
)
from backend.campaigns.items import MAX_SCENES, STRUCTS, Item, Kind
from backend.campaigns.ledger import State
from backend.chronicles.files import EventRecord
from backend.database.base import now

_DAY = re.compile(r"day\s{1,5}(-?[0-9]{1,6})(.{0,300})", re.IGNORECASE)
_PARTS = re.compile(r"([0-9]{1,2})\s{0,5}/\s{0,5}([0-9]{1,2})")
_BOX = re.compile(r"\[([ xX])\]\s{1,5}")
_ARROW = re.compile(r"\s{1,5}(?:→|->)\s{1,5}")
_SCORE = re.compile(r"-?[0-9]{1,3}")

MAX_EVENTS = 20_000
MAX_USES = 1_000_000_000


class World(Protocol):
    """What is known of a vault's entities, and takes in what lists say."""

    @property
    def draft(self) -> CampaignDraft:
        """What becomes of the vault."""
        ...

    def find(self, name: str, kind: str = "") -> UUID | None:
        """The entity that a link or a name means."""
        ...

    def follow(self, target: str) -> None:
        """Say so where a link leads nowhere."""
        ...

    def audience(self, value: Any, where: str) -> Audience:
        """Who may know something."""
        ...

    def add(self, kind: Kind, item: Item, item_id: UUID | None = None) -> UUID:
        """Take in an item."""
        ...

    def note(self, text: str, about: UUID | None) -> None:
        """Keep what has no other place."""
        ...


class _Entry:
    """An entry of a list: its text, and its details by their names."""

    def __init__(self, world: World, bullet: Bullet, known: frozenset[str]) -> None:
        self.group = unlinked(bullet.group)
        self.heading = bullet.group
        self.about = link_target(bullet.group)
        self.text = bullet.text
        self.said: defaultdict[str, list[str]] = defaultdict(list)
        self.unknown: list[str] = []
        self._follow = world.follow
        for detail in bullet.details:
            name, colon, value = detail.partition(":")
            key = name.strip(" *").casefold()
            if colon and key in known:
                bare = value.removeprefix("**").strip()
                self.said[key].append(bare if key in vault.RAW else decoded(bare, world.follow))
            elif _BOX.match(detail) and "objective" in known:
                self.said["objective"].append(detail)
            else:
                self.unknown.append(unlinked(detail, world.follow))

    def last(self, key: str, default: str = "") -> str:
        """What a detail says; of several of its name, the last."""
        return self.said[key][-1] if self.said[key] else default

    def titled(self) -> tuple[str, str]:
        """The title and the text of an entry that has a title, with what is not understood."""
        title, text = titled(self.text)
        title = self.last("title") or unlinked(title, self._follow)
        text = self.last("text") or unlinked(text, self._follow)
        return title, " ".join(filter(None, [text, *self.unknown]))

    def whole(self) -> str:
        """The text of an entry without a title, with what is not understood."""
        return " ".join([decoded(self.text, self._follow), *self.unknown])

    def fields(self, *names: str) -> dict[str, str]:
        """Those of the details that are there."""
        return {name: self.last(name) for name in names if self.said[name]}


class ListReader:
    """Reads lists into items. What refers to other entries is connected at the end."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._path = ""
        self._by_name: dict[tuple[Kind, str], UUID] = {}
        self._references: list[tuple[UUID, str, Kind, str]] = []
        self._events: list[EventRecord] = []
        self._at = now()

    def read(self, outline: str, path: str, document: Document) -> None:
        """Read one file."""
        self._path = path
        read = {
            vault.THREADS: self._thread,
            vault.TIMELINE: self._event,
            vault.CLOCKS: self._clock,
            vault.FACTS: self._fact,
            vault.RELATIONS: self._relation,
            vault.GLOSSARY: self._term,
            vault.SCENES: self._scene,
            vault.CHAPTERS: self._chapter,
            vault.ECHOES: self._echo,
        }[outline]
        for key, value in document.meta.items():
            self._warn(f"`{key[:200]}` is kept as a fact")
            self._world.note(f"{key}: {value}", None)
        for bullet in bullets(document.body):
            entry = _Entry(self._world, bullet, vault.DETAILS[outline] | vault.EVERYWHERE)
            for text in entry.unknown:
                self._warn(f"`{text[:200]}` is kept in the text of its entry")
            read(entry)

    def connect(self) -> None:
        """Let entries refer to each other, and take in the events."""
        draft = self._world.draft
        for item_id, field, kind, name in self._references:
            found = self._by_name.get((kind, name.casefold()))
            if found is None or found == item_id:
                draft.warn(f"`{field}` names no {kind}: {name[:200]}")
            elif isinstance(names := draft.states[item_id].get(field), list):
                names.append(str(found))
            else:
                draft.states[item_id][field] = str(found)
        if len(self._events) > MAX_EVENTS:
            draft.warn(f"Of the timeline, the last {MAX_EVENTS:,} events are kept")
        draft.events = self._events[-MAX_EVENTS:]

    def _thread(self, entry: _Entry) -> None:
        title, summary = entry.titled()
        words = entry.group.casefold().split()
        tension = next((vault.TENSIONS[each] for each in words if each in vault.TENSIONS), "")
        ends = (vault.THREAD_ENDS[each] for each in words if each in vault.THREAD_ENDS)
        fields: State = {
            "tension": tension or "rising",
            "status": next(ends, "open"),
            "priority": next((each for each in ("high", "low") if each in words), "medium"),
            **entry.fields("kind", "priority", "tension", "status"),
            "title": title,
            "summary": summary,
            "next_step": " ".join(entry.said["next"]),
            "objectives": [_objective(text) for text in entry.said["objective"]],
            "giver_id": self._entity(entry, "giver"),
        }
        self._refer(self._add("thread", fields, entry), entry, "clock", "clock_id", "clock")

    def _event(self, entry: _Entry) -> None:
        found = _DAY.search(entry.group)
        rest = found[2].strip(" -:,–—") if found else ""  # noqa: RUF001  # dashes of every length
        fields: State = {
            "summary": entry.whole(),
            "day": int(found[1]) if found else None,
            "time": rest,
            **entry.fields("kind", "time", "where"),
            "who": entry.said["who"],
            "keywords": entry.said["keyword"],
            "happened_at": self._at,
            "pinned": entry.last("pinned") == "true",
            "audience": stored(self._audience(entry)),
        }
        if entry.said["significance"]:
            fields["significance"] = _number(entry.last("significance"))
        try:
            self._events.append(msgspec.convert(fields, EventRecord))
        except msgspec.ValidationError as error:
            self._keep(entry, str(error))

    def _clock(self, entry: _Entry) -> None:
        name, consequence = entry.titled()
        parts = _PARTS.search(entry.last("filled"))
        fields: State = {
            "kind": entry.group.casefold(),
            **entry.fields("kind"),
            "name": name,
            "consequence": consequence,
            "visible": entry.last("visible", "true") != "false",
        }
        if fields["kind"] not in {"threat", "goal", "project"}:
            fields["kind"] = "threat"
        if parts is not None:
            fields |= {"filled": int(parts[1]), "segments": int(parts[2])}
        clock_id = self._add("clock", fields, entry)
        self._refer(clock_id, entry, "linked", "linked_id", "clock")

    def _fact(self, entry: _Entry) -> None:
        is_told = entry.about.casefold() not in {"", vault.WORLD.casefold(), vault.FACTS}
        about = self._world.find(entry.about) if is_told or "[[" in entry.heading else None
        text = entry.whole()
        if about is None and is_told:
            self._warn(f"`{entry.group[:200]}` names nothing in the vault")
            text = f"{entry.group}: {text}"
        fact_id = self._add("fact", {"text": text, "about_id": about}, entry)
        self._refer(fact_id, entry, "superseded by", "superseded_by", "fact")

    def _relation(self, entry: _Entry) -> None:
        pair, _, said = entry.text.rpartition(":")
        ends = [self._world.find(link_target(each)) for each in _ARROW.split(pair or entry.text)]
        score = _SCORE.fullmatch(said.strip())
        if len(ends) != 2 or score is None:  # noqa: PLR2004  # from one to another
            self._keep(entry, "it is not `[[One]] → [[Another]]: score`")
            return
        note = " ".join([*entry.said["note"], *entry.unknown])
        fields = {"from_id": ends[0], "to_id": ends[1], "score": int(score[0]), "note": note}
        self._add("relation", fields, entry)

    def _term(self, entry: _Entry) -> None:
        term, definition = entry.titled()
        status = entry.group.casefold()
        fields: State = {
            "status": status if status in {"proposed", "raw", "rejected"} else "approved",
            **entry.fields("source", "status"),
            "term": term,
            "definition": definition,
        }
        term_id = self._add("term", fields, entry)
        uses = _number(entry.last("uses", "0"))
        if term_id is not None and isinstance(uses, int):
            self._world.draft.uses[term_id] = min(uses, MAX_USES)

    def _scene(self, entry: _Entry) -> None:
        title, summary = entry.titled()
        present = [self._world.find(link_target(name)) for name in entry.said["present"]]
        fields: State = {
            "status": "closed" if entry.group.casefold() == "closed" else "open",
            **entry.fields("stakes", "type", "mood", "variant", "status"),
            "title": "" if title == vault.UNTITLED and not entry.said["title"] else title,
            "summary": summary,
            "location_id": self._entity(entry, "location"),
            "present": [each for each in present if each is not None],
            "beats": _number(entry.last("beats", "0")),
            "key_moments": entry.said["moment"],
        }
        self._add("scene", fields, entry)

    def _chapter(self, entry: _Entry) -> None:
        title, summary = entry.titled()
        is_untitled = title == vault.UNTITLED and not entry.said["title"]
        fields: State = {"title": "" if is_untitled else title, "summary": summary}
        if (chapter_id := self._add("chapter", fields, entry)) is not None:
            for told in entry.said["scene"][:MAX_SCENES]:
                self._references.append((chapter_id, "scene_ids", "scene", told))

    def _echo(self, entry: _Entry) -> None:
        kind = "threat" if entry.group.casefold().startswith("threat") else "cost"
        fields: State = {
            "kind": kind,
            **entry.fields("kind"),
            "text": entry.whole(),
            "resolved": entry.last("resolved") == "true",
        }
        self._add("echo", fields, entry)

    def _add(self, kind: Kind, fields: State, entry: _Entry) -> UUID | None:
        """Take in an item, or keep its text where it can't be one; its id, if it is one."""
        fields["audience"] = self._audience(entry)
        fields["locked"] = entry.said["locked"]
        try:
            item = msgspec.convert(fields, STRUCTS[kind])
        except msgspec.ValidationError as error:
            self._keep(entry, str(error))
            return None
        item_id = self._world.add(kind, item)
        names = entry.said["id"] or [str(fields.get("name") or "")]
        for name in filter(None, names):
            self._by_name.setdefault((kind, name.casefold()), item_id)
        return item_id

    def _refer(
        self, item_id: UUID | None, entry: _Entry, detail: str, field: str, kind: Kind
    ) -> None:
        if item_id is not None and entry.said[detail]:
            self._references.append((item_id, field, kind, entry.last(detail)))

    def _entity(self, entry: _Entry, detail: str) -> UUID | None:
        if not entry.said[detail]:
            return None
        kind = "location" if detail == "location" else ""
        found = self._world.find(link_target(entry.last(detail)), kind)
        if found is None:
            self._warn(f"`{detail}` names nothing in the vault: {entry.last(detail)[:200]}")
        return found

    def _audience(self, entry: _Entry) -> Audience:
        said = entry.said["audience"]
        return self._world.audience(said, self._path) if said else "public"

    def _keep(self, entry: _Entry, why: str) -> None:
        self._warn(f"`{entry.text[:200]}` is kept as a fact: {why}")
        said = [f"{name}: {text}" for name, texts in entry.said.items() for text in texts]
        self._world.note("\n".join([unlinked(entry.text), *said, *entry.unknown]), None)

    def _warn(self, text: str) -> None:
        self._world.draft.warn(f"{self._path}: {text}")


def _objective(text: str) -> dict[str, Any]:
    box = _BOX.match(text)
    if box is None:
        return {"text": decoded(text)}
    return {"text": decoded(text[box.end() :]), "done": box[1] != " "}


def _number(text: str) -> int | str:
    """A number, or what is no number, for whoever checks to refuse."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 12 else text  # noqa: PLR2004
