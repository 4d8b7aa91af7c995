"""The lists of a vault under headings: threads, days, clocks, facts and others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar
from uuid import UUID

import msgspec

from backend.campaigns.files import vault
from backend.campaigns.files.draft import CampaignDraft
from backend.campaigns.files.markdown import (
    NEXT_STEP,
    Bullet,
    Document,
    Group,
    decoded,
    groups,
    link_target,
    link_targets,
    titled,
    unlinked,
)
from backend.campaigns.ledger.changes import State
from backend.campaigns.ledger.items import MAX_SCENES, STRUCTS, Item, Kind
from backend.campaigns.names.roster import make_slug
from backend.chronicles.transfer import EventRecord
from backend.core.audience import Audience, encode_audience
from backend.core.cpu_pool import check_stopped
from backend.database.base import now

BOX = re.compile(r"\[([ xX])\]\s{1,5}")


class VaultWorld(Protocol):
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
        self, world: VaultWorld, known: frozenset[str], *, group: str = "", text: str = ""
    ) -> None:
        self.group = unlinked(group)
        self.heading = group
        self.said: defaultdict[str, list[str]] = defaultdict(list)
        self.unknown: list[str] = []
        self._follow, self._known = world.follow, known
        first, *lines = split_lines(text) if "next" in known else text.split("\n")
        self.text = "\n".join([first, *(each for each in lines if not self.take(each))])

    def detail(self, text: str) -> tuple[str, str] | None:
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


_DAY = re.compile(r"day\s{1,5}(-?[0-9]{1,6})(.{0,300})", re.IGNORECASE)
_PARTS = re.compile(r"([0-9]{1,2})\s{0,5}/\s{0,5}([0-9]{1,2})")
_ARROW = re.compile(r"\s{1,5}(?:→|->)\s{1,5}")
_SCORE = re.compile(r"[-+]?[0-9]{1,3}")
_DAY_CELL = re.compile(r"(?:day\s{1,5})?(-?[0-9]{1,6})", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+")
_LEADING = re.compile(r"[^\w]*\w+\s*[^\w\s]")
_PRIORITIES = frozenset({*vault.TENSIONS, *vault.THREAD_ENDS})
_KINDS = {
    vault.CLOCKS: vault.CLOCK_KINDS,
    vault.GLOSSARY: vault.TERM_STATUSES,
    vault.SCENES: vault.SCENE_STATUSES,
    vault.ECHOES: vault.ECHO_KINDS,
}
"""Headings that group entries, in the singular."""

T = TypeVar("T")

MAX_EVENTS = 20_000
MAX_USES = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Section:
    """The bullets under a heading that groups entries, and under headings inside it."""

    group: str
    inside: Sequence[str]
    bullets: Sequence[Bullet]

    def has_part(self, other: _Section) -> bool:
        """True if a section that follows is inside this one."""
        return bool(self.inside) and len(other.inside) > 1 and other.inside[0] == self.inside[0]


class ListReader:
    """Reads lists into items. What refers to other entries is connected at the end."""

    def __init__(self, world: VaultWorld) -> None:
        self._world = world
        self._path = ""
        self._outline = ""
        self._known: frozenset[str] = frozenset()
        self._by_name: dict[tuple[Kind, str], UUID] = {}
        self._references: list[tuple[UUID, str, Kind, str]] = []
        self._events: list[EventRecord] = []
        self._at = now()

    def read(self, outline: str, path: str, document: Document) -> None:
        """Read one file."""
        self._path, self._outline = path, outline
        self._known = vault.DETAILS[outline] | vault.EVERYWHERE
        if document.broken:
            self._warn(f"the front matter can't be read: {document.broken}")
        for key, value in document.meta.items():
            self._warn(f"`{key[:200]}` is kept as a fact")
            self._world.note(f"{key}: {value}", None)
        sections = self._place(groups(document.body))
        at = 0
        while at < len(sections):
            check_stopped()
            section, at = sections[at], at + 1
            has_parts = at < len(sections) and section.has_part(sections[at])
            if not self._is_title(section, has_parts=has_parts):
                self._read_bullets(section)
                continue
            entry = Entry(self._world, self._known, group=section.group)
            entry.said["title"].append(unlinked(section.inside[0]))
            entry.add_content(section.bullets)
            while at < len(sections) and section.has_part(sections[at]):
                self._add_part(entry, sections[at])
                at += 1
            self._read_entry(entry)

    def _place(self, found: Iterable[Group]) -> list[_Section]:
        """Separate the heading that groups entries from the headings inside it."""
        # Each heading is repeated by all groups inside it.
        is_group, is_name = cache(self._is_group), cache(self._is_name)
        sections: list[_Section] = []
        for each in found:
            group = ""
            inside: list[str] = []
            for at, heading in enumerate(each.headings):
                if is_group(heading, is_inside=bool(group)):
                    group, inside = heading, []
                elif at or not is_name(heading):
                    inside.append(heading)
            sections.append(_Section(group, inside, each.bullets))
        return sections

    def _is_name(self, heading: str) -> bool:
        """True if a heading only repeats the name of its file."""
        words = set(make_slug(heading).split("-"))
        return words <= {*self._outline.split("-"), *self._outline.removesuffix("s").split("-")}

    def _is_group(self, heading: str, *, is_inside: bool) -> bool:
        plain = unlinked(heading).strip().casefold()
        match self._outline:
            case vault.THREADS:
                words = _WORD.findall(plain)
                known = [each for each in words if each in _PRIORITIES]
                is_only = set(words) <= vault.THREAD_WORDS
                leads = words[:1] == known[:1] and _LEADING.match(plain) is not None
                return bool(known) and (is_only or (leads and not is_inside))
            case vault.TIMELINE:
                return _DAY.search(heading) is not None or plain == vault.NO_DAY.casefold()
            case vault.FACTS:
                is_world = plain in {vault.WORLD.casefold(), vault.FACTS}
                return is_world or self._world.find(link_target(heading)) is not None
            case _:
                kinds = _KINDS.get(self._outline, ())
                return plain in kinds or plain.removesuffix("s") in kinds

    def _is_title(self, section: _Section, *, has_parts: bool) -> bool:
        """True if a heading is the title of one entry, and not of a list of entries."""
        if self._outline not in vault.TITLED or not section.inside:
            return False
        if section.group:
            return True
        probe = Entry(self._world, self._known)
        listed = [each for each in section.bullets if each.is_listed]
        are_details = all(probe.detail(each.text) for each in listed)
        return are_details and bool(section.bullets or has_parts)

    def _add_part(self, entry: Entry, part: _Section) -> None:
        """Add the content of a heading inside an entry. The heading may name a detail."""
        heading = part.inside[-1]
        texts = [text for each in part.bullets for text in (each.text, *each.details)]
        if entry.detail(f"{heading}: x"):
            for text in texts:
                entry.take(text if entry.detail(text) else f"{heading}: {text}")
            return
        entry.said["text"].append(unlinked(heading))
        entry.add_content(part.bullets)

    def _read_bullets(self, section: _Section) -> None:
        """Read entries one by one. A paragraph of details belongs to the entry before it."""
        group = section.group
        inside = " / ".join(map(unlinked, section.inside))
        is_time = self._outline == vault.TIMELINE and bool(group)
        is_about = self._outline == vault.FACTS and not group
        if inside and not (section.bullets and (is_time or is_about)):
            self._warn(f"the heading `{inside[:200]}` is not known")
        entries: list[Entry] = []
        for bullet in section.bullets:
            check_stopped()
            if entries and self._outline in vault.TITLED and not _starts_entry(bullet):
                last = entries[-1]
                lines = split_lines(bullet.text)
                if all(map(last.detail, lines)) and not bullet.cells:
                    for line in lines:
                        last.take(line)
                    last.add_details(bullet)
                    continue
            entry = Entry(
                self._world,
                self._known,
                group=inside if is_about else group,
                text="" if bullet.cells else bullet.text,
            )
            entry.add_cells(bullet.cells, "title" if self._outline in vault.TITLED else "text")
            entry.add_details(bullet)
            if is_time and inside:
                entry.said["time"].insert(0, inside)
            elif inside and group and self._outline not in vault.TITLED:
                entry.text = f"{inside}: {decoded(entry.text)}"
            entries.append(entry)
        for entry in entries:
            self._read_entry(entry)

    def _read_entry(self, entry: Entry) -> None:
        for text in entry.unknown:
            self._warn(f"`{text[:200]}` is kept in the text of its entry")
        for key in entry.said.keys() - vault.SEVERAL:
            if len(set(entry.said[key])) > 1:
                self._warn(f"`{key}` is there more than once: the last counts")
        {
            vault.THREADS: self._thread,
            vault.TIMELINE: self._event,
            vault.CLOCKS: self._clock,
            vault.FACTS: self._fact,
            vault.RELATIONS: self._relation,
            vault.GLOSSARY: self._term,
            vault.SCENES: self._scene,
            vault.CHAPTERS: self._chapter,
            vault.ECHOES: self._echo,
        }[self._outline](entry)

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

    def _thread(self, entry: Entry) -> None:
        box = BOX.match(entry.text)
        if box is not None:
            entry.text = entry.text[box.end() :]
        title, summary = entry.split_title()
        words = _WORD.findall(entry.group.casefold())
        known = [each for each in words if each in vault.TENSIONS]
        known += [each.casefold() for each in entry.said["priority"]] if not known else []
        ends = [vault.THREAD_ENDS[each] for each in words if each in vault.THREAD_ENDS]
        ends += ["resolved"] if box is not None and box[1] != " " else []
        priority = next((each for each in ("high", "low") if each in words), "medium")
        fields: State = {
            "tension": self._choice(
                entry, "tension", vault.TENSIONS, vault.TENSIONS.get("".join(known[:1]), "rising")
            ),
            "status": self._choice(
                entry, "status", vault.THREAD_STATUSES, next(iter(ends), "open")
            ),
            "priority": self._choice(entry, "priority", vault.PRIORITIES, priority),
            **entry.fields("kind"),
            "title": title,
            "summary": summary,
            "next_step": " ".join(filter(None, entry.said["next"])),
            "objectives": [_objective(text) for text in entry.said["objective"]],
            "giver_id": self._entity(entry, "giver"),
        }
        self._refer(self._add("thread", fields, entry), entry, "clock", "clock_id", "clock")

    def _event(self, entry: Entry) -> None:
        found = _DAY.search(entry.group)
        rest = found[2].strip(" -:,–—") if found else ""  # noqa: RUF001  # dashes of every length
        day = found[1] if found else None
        if said := entry.last("day"):
            told = _DAY_CELL.fullmatch(said)
            day = told[1] if told else self._unclear("day", said, day)
        fields: State = {
            "summary": entry.whole(),
            "day": int(day) if day else None,
            "time": " ".join(filter(None, [rest, *entry.said["time"]])),
            **entry.fields("kind", "where"),
            "who": entry.said["who"],
            "keywords": entry.said["keyword"],
            "happened_at": self._at,
            "pinned": self._truth(entry, "pinned", default=False),
            "audience": encode_audience(self._audience(entry)),
        }
        if entry.said["significance"]:
            fields["significance"] = _number(entry.last("significance"))
        try:
            self._events.append(msgspec.convert(fields, EventRecord))
        except msgspec.ValidationError as error:
            self._keep(entry, str(error))

    def _clock(self, entry: Entry) -> None:
        name, consequence = entry.split_title()
        parts = _PARTS.search(entry.last("filled"))
        fields: State = {
            "kind": _kind(entry.group, vault.CLOCK_KINDS, "threat"),
            **entry.fields("kind"),
            "name": name,
            "consequence": consequence,
            "visible": self._truth(entry, "visible", default=True),
        }
        if parts is not None:
            fields |= {"filled": int(parts[1]), "segments": int(parts[2])}
        elif said := entry.last("filled"):
            self._unclear("filled", said, None)
        clock_id = self._add("clock", fields, entry)
        self._refer(clock_id, entry, "linked", "linked_id", "clock")

    def _fact(self, entry: Entry) -> None:
        heading = entry.last("about") or entry.heading
        target = link_target(heading)
        is_told = target.casefold() not in {"", vault.WORLD.casefold(), vault.FACTS}
        about = self._world.find(target) if is_told or "[[" in heading else None
        text = entry.whole()
        if about is None and is_told:
            self._warn(f"`{heading[:200]}` names nothing in the vault")
            text = f"{unlinked(heading)}: {text}"
        fact_id = self._add("fact", {"text": text, "about_id": about}, entry)
        self._refer(fact_id, entry, "superseded by", "superseded_by", "fact")

    def _relation(self, entry: Entry) -> None:
        pair, _, said = entry.text.rpartition(":")
        names = _ARROW.split(pair or entry.text)
        links = link_targets(pair)
        if len(names) > 1 and len(links) == 2:  # noqa: PLR2004  # names may have arrows in them
            names = links
        if entry.said["from"]:
            names, said = [entry.last("from"), entry.last("to")], entry.last("score", "0")
        ends = [self._world.find(link_target(each)) for each in names]
        score = _SCORE.fullmatch(said.strip())
        if len(ends) != 2 or score is None:  # noqa: PLR2004  # from one to another
            self._keep(entry, "it is not `[[One]] → [[Another]]: score`")
            return
        rest = [*entry.said["title"], *entry.said["text"], *entry.unknown]
        if entry.said["from"]:
            rest.insert(0, entry.text)
        note = " ".join(filter(None, [*entry.said["note"], *rest]))
        fields = {"from_id": ends[0], "to_id": ends[1], "score": int(score[0]), "note": note}
        self._add("relation", fields, entry)

    def _term(self, entry: Entry) -> None:
        term, definition = entry.split_title()
        fields: State = {
            "status": _kind(entry.group, vault.TERM_STATUSES, "approved"),
            **entry.fields("source", "status"),
            "term": term,
            "definition": definition,
        }
        term_id = self._add("term", fields, entry)
        uses = _number(entry.last("uses", "0"))
        if not isinstance(uses, int):
            self._unclear("uses", uses, None)
        elif term_id is not None:
            self._world.draft.uses[term_id] = min(uses, MAX_USES)

    def _scene(self, entry: Entry) -> None:
        title, summary = entry.split_title()
        present = [self._find("present", name) for name in entry.said["present"]]
        fields: State = {
            "status": _kind(entry.group, vault.SCENE_STATUSES, "open"),
            **entry.fields("stakes", "type", "mood", "variant", "status"),
            "title": "" if title == vault.UNTITLED and not entry.said["title"] else title,
            "summary": summary,
            "location_id": self._entity(entry, "location"),
            "present": [each for each in present if each is not None],
            "beats": _number(entry.last("beats", "0")),
            "key_moments": entry.said["moment"],
        }
        self._add("scene", fields, entry)

    def _chapter(self, entry: Entry) -> None:
        title, summary = entry.split_title()
        is_untitled = title == vault.UNTITLED and not entry.said["title"]
        fields: State = {"title": "" if is_untitled else title, "summary": summary}
        if (chapter_id := self._add("chapter", fields, entry)) is not None:
            for told in entry.said["scene"][:MAX_SCENES]:
                self._references.append((chapter_id, "scene_ids", "scene", told))

    def _echo(self, entry: Entry) -> None:
        fields: State = {
            "kind": _kind(entry.group, vault.ECHO_KINDS, "cost"),
            **entry.fields("kind"),
            "text": entry.whole(),
            "resolved": self._truth(entry, "resolved", default=False),
        }
        self._add("echo", fields, entry)

    def _add(self, kind: Kind, fields: State, entry: Entry) -> UUID | None:
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
        self, item_id: UUID | None, entry: Entry, detail: str, field: str, kind: Kind
    ) -> None:
        if item_id is not None and entry.said[detail]:
            self._references.append((item_id, field, kind, entry.last(detail)))

    def _entity(self, entry: Entry, detail: str) -> UUID | None:
        return self._find(detail, entry.last(detail)) if entry.said[detail] else None

    def _find(self, detail: str, name: str) -> UUID | None:
        kind = "location" if detail == "location" else ""
        found = self._world.find(link_target(name), kind)
        if found is None:
            self._warn(f"`{detail}` names nothing in the vault: {name[:200]}")
        return found

    def _truth(self, entry: Entry, detail: str, *, default: bool) -> bool:
        said = entry.last(detail).casefold()
        if said in {"true", "yes", "false", "no"}:
            return said in {"true", "yes"}
        return self._unclear(detail, said, default) if said else default

    def _choice(self, entry: Entry, detail: str, choices: Mapping[str, str], default: str) -> str:
        said = entry.last(detail).casefold()
        if not said or said in choices:
            return choices[said] if said else default
        return self._unclear(detail, said, default)

    def _unclear(self, detail: str, said: str, default: T) -> T:
        """Warn about a detail that cannot be read, and return its default."""
        self._warn(f"`{detail}` is not clear, and is left out: {said[:200]}")
        return default

    def _audience(self, entry: Entry) -> Audience:
        said = entry.said["audience"]
        return self._world.audience(said, self._path) if said else "public"

    def _keep(self, entry: Entry, why: str) -> None:
        shown = entry.text or entry.last("title") or entry.last("text")
        self._warn(f"`{shown[:200]}` is kept as a fact: {why}")
        said = [f"{name}: {text}" for name, texts in entry.said.items() for text in texts]
        self._world.note("\n".join([unlinked(entry.text), *said, *entry.unknown]), None)

    def _warn(self, text: str) -> None:
        self._world.draft.warn(f"{self._path}: {text}")


def _objective(text: str) -> dict[str, Any]:
    box = BOX.match(text)
    if box is None:
        return {"text": decoded(text)}
    return {"text": decoded(text[box.end() :]), "done": box[1] != " "}


def _starts_entry(bullet: Bullet) -> bool:
    """True if a bullet cannot be a detail of the entry before it."""
    return bullet.text.startswith("**") or BOX.match(bullet.text) is not None


def _kind(heading: str, kinds: Sequence[str], default: str) -> str:
    """Return the kind that a heading names, also in the plural."""
    plain = heading.strip().casefold()
    return next((each for each in kinds if plain in {each, f"{each}s"}), default)


def _number(text: str) -> int | str:
    """A number, or what is no number, for whoever checks to refuse."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 12 else text  # noqa: PLR2004
