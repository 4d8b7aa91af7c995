"""Reads the lists of a vault: threads, days, clocks, facts and others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from uuid import UUID

import msgspec

from backend.campaigns.files import vault
from backend.campaigns.files.draft import VaultDraft
from backend.campaigns.files.markdown import (
    NEXT_STEP,
    Bullet,
    Document,
    HeadingGroup,
    decode_text,
    get_link_target,
    list_link_targets,
    read_groups,
    remove_links,
    split_title,
)
from backend.campaigns.files.vault import BOX, Outline, UnclearDetailError, read_number
from backend.campaigns.ledger.changes import State
from backend.campaigns.ledger.items import STRUCTS, Kind
from backend.campaigns.names.roster import make_slug
from backend.chronicles.transfer import EventRecord
from backend.core.audience import Audience, encode_audience
from backend.core.cpu_pool import check_stopped
from backend.database.base import now


class Entry:
    """An entry of a list. `said` has its details, `unknown` its parts that are no details."""

    def __init__(
        self, draft: VaultDraft, outline: Outline, *, group: str = "", text: str = ""
    ) -> None:
        self.group = remove_links(group)
        self.heading = group
        self.said: defaultdict[str, list[str]] = defaultdict(list)
        self.unknown: list[str] = []
        self._follow, self._outline = draft.follow, outline
        first, *lines = split_lines(text) if "next" in outline.details else text.split("\n")
        self.text = "\n".join([first, *(each for each in lines if not self.take(each))])

    def find_detail(self, text: str) -> tuple[str, str] | None:
        """Return the name and the value if a text is a detail."""
        known = self._outline.details
        if BOX.match(text) and "objective" in known:
            return "objective", text
        name, colon, value = text.partition(":")
        key = " ".join(name.strip(" *_→").removeprefix("->").split()).casefold()
        key = key if key in known else vault.OTHER_DETAILS.get(key, key)
        if not colon or key not in known:
            return None
        return key, value.removeprefix("**").strip()

    def take(self, text: str) -> bool:
        """Add a text to the details; return False if it is none."""
        found = self.find_detail(text)
        if found is None:
            return False
        key, value = found
        is_raw = key in self._outline.raw_details
        self.said[key].append(value if is_raw else decode_text(value, self._follow))
        return True

    def add_details(self, bullet: Bullet) -> None:
        """Add the details of a list entry. Unknown ones become part of the text."""
        for each in bullet.details:
            if not self.take(each):
                self.unknown.append(remove_links(each, self._follow))

    def add_cells(self, cells: Sequence[tuple[str, str]]) -> None:
        """Add a row of a table. The first cell that is no detail is the title or the text."""
        main = "title" if self._outline.is_titled else "text"
        has_main = False
        for header, cell in cells:
            name = header.strip(" *").casefold()
            name = name if name in self._outline.details else vault.COLUMNS.get(name, name)
            if name == main and not has_main:
                self.text, has_main = remove_links(cell, self._follow), True
            elif not self.take(f"{name}: {cell}"):
                if has_main or self.text:
                    self.unknown.append(remove_links(f"{header}: {cell}", self._follow))
                else:
                    self.text, has_main = remove_links(cell, self._follow), True

    def add_content(self, bullets: Iterable[Bullet]) -> None:
        """Add the content of a heading: details and text."""
        for bullet in bullets:
            for text in (*split_lines(bullet.text), *bullet.details):
                if text and not self.take(text):
                    self.said["text"].append(decode_text(text, self._follow))

    def get_last(self, key: str, default: str = "") -> str:
        """Return the last value of a detail."""
        return self.said[key][-1] if self.said[key] else default

    def split_title(self) -> tuple[str, str]:
        """Return the title, and the text with unknown details at its end."""
        title, text = split_title(self.text)
        title = self.get_last("title") or remove_links(title, self._follow)
        texts = [remove_links(text, self._follow), "\n".join(self.said["text"])]
        return title, " ".join(filter(None, [*texts, *self.unknown]))

    def join_text(self) -> str:
        """Return the text of an entry without a title, with unknown details at its end."""
        texts = [*self.said["title"], decode_text(self.text, self._follow), *self.said["text"]]
        return " ".join(filter(None, [*texts, *self.unknown]))


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
_THREAD_GROUPS = frozenset({*vault.TENSIONS, *vault.THREAD_ENDS})

MAX_EVENTS = 20_000
MAX_USES = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Section:
    """The bullets under a heading that groups entries, and under headings inside it."""

    group: str
    inside: Sequence[str]
    bullets: Sequence[Bullet]

    def has_part(self, other: _Section) -> bool:
        """True if the next section is inside this one."""
        return bool(self.inside) and len(other.inside) > 1 and other.inside[0] == self.inside[0]


class ListReader:
    """Reads lists into items. References to other entries are resolved at the end."""

    def __init__(self, draft: VaultDraft) -> None:
        self._draft = draft
        self._path = ""
        self._name = ""
        self._outline = vault.OUTLINES[vault.TIMELINE]
        self._by_name: dict[tuple[Kind, str], UUID] = {}
        self._references: list[tuple[UUID, str, Kind, str]] = []
        self._events: list[EventRecord] = []
        self._at = now()

    def read(self, name: str, path: str, document: Document) -> None:
        """Read one file. `name` is a key of `OUTLINES`."""
        self._path, self._name, self._outline = path, name, vault.OUTLINES[name]
        if document.broken:
            self._warn(f"the front matter can't be read: {document.broken}")
        for key, value in document.meta.items():
            self._warn(f"`{key[:200]}` is kept as a fact")
            self._draft.note(f"{key}: {value}", None)
        sections = self._sort_headings(read_groups(document.body))
        at = 0
        while at < len(sections):
            check_stopped()
            section, at = sections[at], at + 1
            has_parts = at < len(sections) and section.has_part(sections[at])
            if not self._is_title(section, has_parts=has_parts):
                self._read_bullets(section)
                continue
            entry = Entry(self._draft, self._outline, group=section.group)
            entry.said["title"].append(remove_links(section.inside[0]))
            entry.add_content(section.bullets)
            while at < len(sections) and section.has_part(sections[at]):
                self._add_part(entry, sections[at])
                at += 1
            self._read_entry(entry)

    def _sort_headings(self, found: Iterable[HeadingGroup]) -> list[_Section]:
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
        return words <= {*self._name.split("-"), *self._name.removesuffix("s").split("-")}

    def _is_group(self, heading: str, *, is_inside: bool) -> bool:
        plain = remove_links(heading).strip().casefold()
        match self._outline.kind:
            case "thread":
                words = _WORD.findall(plain)
                known = [each for each in words if each in _THREAD_GROUPS]
                is_only = set(words) <= vault.THREAD_WORDS
                leads = words[:1] == known[:1] and _LEADING.match(plain) is not None
                return bool(known) and (is_only or (leads and not is_inside))
            case "event":
                return _DAY.search(heading) is not None or plain == vault.NO_DAY.casefold()
            case "fact":
                is_world = plain in {vault.WORLD.casefold(), self._name}
                return is_world or self._draft.find(get_link_target(heading)) is not None
            case _:
                kinds = self._outline.headings
                return plain in kinds or plain.removesuffix("s") in kinds

    def _is_title(self, section: _Section, *, has_parts: bool) -> bool:
        """True if a heading is the title of one entry, and not of a list of entries."""
        if not self._outline.is_titled or not section.inside:
            return False
        if section.group:
            return True
        probe = Entry(self._draft, self._outline)
        listed = [each for each in section.bullets if each.is_listed]
        are_details = all(probe.find_detail(each.text) for each in listed)
        return are_details and bool(section.bullets or has_parts)

    def _add_part(self, entry: Entry, part: _Section) -> None:
        """Add the content of a heading inside an entry. The heading may name a detail."""
        heading = part.inside[-1]
        texts = [text for each in part.bullets for text in (each.text, *each.details)]
        if entry.find_detail(f"{heading}: x"):
            for text in texts:
                entry.take(text if entry.find_detail(text) else f"{heading}: {text}")
            return
        entry.said["text"].append(remove_links(heading))
        entry.add_content(part.bullets)

    def _read_bullets(self, section: _Section) -> None:
        """Read entries one by one. A paragraph of details belongs to the entry before it."""
        group = section.group
        inside = " / ".join(map(remove_links, section.inside))
        is_time = self._outline.kind == "event" and bool(group)
        is_about = self._outline.kind == "fact" and not group
        if inside and not (section.bullets and (is_time or is_about)):
            self._warn(f"the heading `{inside[:200]}` is not known")
        entries: list[Entry] = []
        for bullet in section.bullets:
            check_stopped()
            if entries and self._outline.is_titled and not _starts_entry(bullet):
                last = entries[-1]
                lines = split_lines(bullet.text)
                if all(map(last.find_detail, lines)) and not bullet.cells:
                    for line in lines:
                        last.take(line)
                    last.add_details(bullet)
                    continue
            entry = Entry(
                self._draft,
                self._outline,
                group=inside if is_about else group,
                text="" if bullet.cells else bullet.text,
            )
            entry.add_cells(bullet.cells)
            entry.add_details(bullet)
            if is_time and inside:
                entry.said["time"].insert(0, inside)
            elif inside and group and not self._outline.is_titled:
                entry.text = f"{inside}: {decode_text(entry.text)}"
            entries.append(entry)
        for entry in entries:
            self._read_entry(entry)

    def _read_entry(self, entry: Entry) -> None:
        for text in entry.unknown:
            self._warn(f"`{text[:200]}` is kept in the text of its entry")
        for key in entry.said.keys() - self._outline.repeated_details:
            if len(set(entry.said[key])) > 1:
                self._warn(f"`{key}` is there more than once: the last counts")
        match self._outline.kind:
            case "event":
                self._read_event(entry)
            case "fact":
                self._read_fact(entry)
            case "relation":
                self._read_relation(entry)
            case kind:
                self._read_item(kind, entry)

    def connect(self) -> None:
        """Resolve references between entries, and add the events to the draft."""
        draft = self._draft
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

    def _read_item(self, kind: Kind, entry: Entry) -> None:
        fields = self._read_thread_group(entry) if kind == "thread" else self._read_group(entry)
        if self._outline.is_titled:
            name, text = self._outline.texts
            fields[name], fields[text] = entry.split_title()
            is_untitled = fields[name] == vault.UNTITLED and not entry.said["title"]
            if is_untitled and self._outline.defaults.get(name) == "":
                fields[name] = ""
        else:
            [text] = self._outline.texts
            fields[text] = entry.join_text()
        if (said := entry.get_last("filled")) and (parts := _PARTS.search(said)):
            fields |= {"filled": int(parts[1]), "segments": int(parts[2])}
        elif said:
            self._warn_of_unclear("filled", said)
        item_id = self._add(kind, fields | self._read_fields(entry), entry)
        if isinstance(uses := read_number(entry.get_last("uses", "0")), str):
            self._warn_of_unclear("uses", uses)
        elif kind == "term" and item_id is not None:
            self._draft.uses[item_id] = min(uses, MAX_USES)

    def _read_group(self, entry: Entry) -> State:
        """Return the field that a heading contains, in the singular or the plural."""
        plain = entry.group.strip().casefold()
        found = next((each for each in self._outline.headings if plain in {each, f"{each}s"}), "")
        field = self._outline.heading_field
        return {field.key: found} if field and found else {}

    def _read_thread_group(self, entry: Entry) -> State:
        """Return tension, status and priority of a heading's words and of the box of a thread."""
        fields: State = {}
        words = _WORD.findall(entry.group.casefold())
        priorities = [each.casefold() for each in entry.said["priority"]]
        known = [each for each in words if each in vault.TENSIONS] or priorities
        if known and known[0] in vault.TENSIONS:
            fields["tension"] = vault.TENSIONS[known[0]]
        ends = [vault.THREAD_ENDS[each] for each in words if each in vault.THREAD_ENDS]
        if box := BOX.match(entry.text):
            entry.text = entry.text[box.end() :]
            ends += ["resolved"] if box[1] != " " else []
        if ends:
            fields["status"] = ends[0]
        if priority := next((each for each in ("high", "low") if each in words), ""):
            fields["priority"] = priority
        return fields

    def _read_fields(self, entry: Entry) -> State:
        """Return the fields that are written as details, except references between entries."""
        fields: State = {}
        for field in self._outline.fields:
            if field.target is None and (texts := self._list_texts(field, entry)):
                try:
                    value = field.codec.read(texts, partial(self._find, field.detail))
                except UnclearDetailError:
                    self._warn_of_unclear(field.detail, texts[-1])
                else:
                    fields[field.key] = value
        return fields

    @staticmethod
    def _list_texts(field: vault.DetailField, entry: Entry) -> list[str]:
        """Return the texts of a detail: all, or the last one unless it is empty."""
        texts = entry.said[field.detail]
        return texts if field.codec.is_repeated else list(filter(None, texts[-1:]))

    def _read_event(self, entry: Entry) -> None:
        found = _DAY.search(entry.group)
        rest = found[2].strip(" -:,–—") if found else ""  # noqa: RUF001  # dashes of every length
        day = found[1] if found else None
        if said := entry.get_last("day"):
            if cell := _DAY_CELL.fullmatch(said):
                day = cell[1]
            else:
                self._warn_of_unclear("day", said)
        fields: State = {
            **self._read_fields(entry),
            "summary": entry.join_text(),
            "day": int(day) if day else None,
            "time": " ".join(filter(None, [rest, *entry.said["time"]])),
            "happened_at": self._at,
            "audience": encode_audience(self._audience(entry)),
        }
        try:
            self._events.append(msgspec.convert(fields, EventRecord))
        except msgspec.ValidationError as error:
            self._keep(entry, str(error))

    def _read_fact(self, entry: Entry) -> None:
        heading = entry.get_last("about") or entry.heading
        target = get_link_target(heading)
        has_name = target.casefold() not in {"", vault.WORLD.casefold(), self._name}
        about = self._draft.find(target) if has_name or "[[" in heading else None
        text = entry.join_text()
        if about is None and has_name:
            self._warn(f"`{heading[:200]}` names nothing in the vault")
            text = f"{remove_links(heading)}: {text}"
        self._add("fact", {"text": text, "about_id": about}, entry)

    def _read_relation(self, entry: Entry) -> None:
        pair, _, said = entry.text.rpartition(":")
        names = _ARROW.split(pair or entry.text)
        links = list_link_targets(pair)
        if len(names) > 1 and len(links) == 2:  # noqa: PLR2004  # names may have arrows in them
            names = links
        if entry.said["from"]:
            names = [entry.get_last("from"), entry.get_last("to")]
            said = entry.get_last("score", "0")
        ends = [self._draft.find(get_link_target(each)) for each in names]
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

    def _add(self, kind: Kind, fields: State, entry: Entry) -> UUID | None:
        """Add an item and its references, and return its id; keep the text of an invalid one."""
        fields["audience"] = self._audience(entry)
        fields["locked"] = entry.said["locked"]
        try:
            item = msgspec.convert(fields, STRUCTS[kind])
        except msgspec.ValidationError as error:
            self._keep(entry, str(error))
            return None
        item_id = self._draft.add(kind, item)
        names = entry.said["id"] or [str(fields.get("name") or "")]
        for name in filter(None, names):
            self._by_name.setdefault((kind, name.casefold()), item_id)
        for field in self._outline.fields:
            if field.target is not None and (texts := self._list_texts(field, entry)):
                for handle in field.codec.read(texts, self._draft.find):
                    self._references.append((item_id, field.key, field.target, handle))
        return item_id

    def _find(self, detail: str, name: str) -> UUID | None:
        found = self._draft.find(get_link_target(name), "location" if detail == "location" else "")
        if found is None:
            self._warn(f"`{detail}` names nothing in the vault: {name[:200]}")
        return found

    def _audience(self, entry: Entry) -> Audience:
        said = entry.said["audience"]
        return self._draft.read_audience(said, self._path) if said else "public"

    def _keep(self, entry: Entry, why: str) -> None:
        """Keep an entry that is no valid item as a fact."""
        shown = entry.text or entry.get_last("title") or entry.get_last("text")
        self._warn(f"`{shown[:200]}` is kept as a fact: {why}")
        said = [f"{name}: {text}" for name, texts in entry.said.items() for text in texts]
        self._draft.note("\n".join([remove_links(entry.text), *said, *entry.unknown]), None)

    def _warn_of_unclear(self, detail: str, text: str) -> None:
        self._warn(f"`{detail}` is not clear, and is left out: {text[:200]}")

    def _warn(self, text: str) -> None:
        self._draft.warn(f"{self._path}: {text}")


def _starts_entry(bullet: Bullet) -> bool:
    """True if a bullet cannot be a detail of the entry before it."""
    return bullet.text.startswith("**") or BOX.match(bullet.text) is not None
