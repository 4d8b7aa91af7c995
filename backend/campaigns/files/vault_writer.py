"""A campaign as a vault of Markdown: what `vault_reader` reads back to the same. CPU-bound.

What the vault's own form has no place for stands in lists of the same kind as its threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from backend.campaigns.errors import CampaignFileError
from backend.campaigns.files import vault
from backend.campaigns.files.archive import OpenCampaign
from backend.campaigns.files.draft import MAX_FILES
from backend.campaigns.files.markdown import (
    detail_lines,
    document,
    encoded,
    entry,
    outline,
    plain_entry,
)
from backend.campaigns.files.vault_entities import write_entity
from backend.campaigns.ledger.changes import build_item, exists
from backend.campaigns.ledger.items import (
    Chapter,
    Clock,
    Echo,
    Entity,
    Fact,
    Item,
    Relation,
    Scene,
    Term,
    Thread,
    World,
)
from backend.campaigns.names.roster import make_slug
from backend.chronicles.repository import StoryEvent
from backend.core.audience import Audience, decode_audience
from backend.core.files import is_device

Details = list[tuple[str, str]]
Groups = dict[str, list[str]]
ItemT = TypeVar("ItemT", bound=Item)

_NAME_BYTES = 200


def write_vault(campaign: OpenCampaign) -> dict[str, bytes]:
    """The files of a campaign's vault, by path. Raises `CampaignFileError` for too many."""
    return _Writer(campaign).files()


def _file_name(entity: Entity) -> str:
    """Return the entity's name as a file name that every system can have."""
    name = make_slug(entity.name)[:100].encode()[:_NAME_BYTES].decode(errors="ignore")
    return f"{name}-{entity.kind}" if is_device(name) else name


class _Writer:
    """Writes items; entities are known by the names of their files."""

    def __init__(self, campaign: OpenCampaign) -> None:
        self._campaign = campaign
        self._items = {
            item_id: build_item(kind, state)
            for item_id, kind, state in campaign.items
            if exists(state)
        }
        self._stems: dict[UUID, str] = {}
        taken: set[str] = set()
        for item_id, entity in self._of(Entity):
            name = _file_name(entity)
            stem, number = name, 2
            while stem in taken:
                stem = f"{name}-{number}"
                number += 1
            taken.add(stem)
            self._stems[item_id] = stem
        if len(taken) > MAX_FILES:
            raise CampaignFileError(
                f"A vault can contain {MAX_FILES:,} named items; there are {len(taken):,}. "
                "Export the campaign as JSON."
            )
        pointed = {fact.superseded_by for _, fact in self._of(Fact)}
        pointed |= {thread.clock_id for _, thread in self._of(Thread)}
        pointed |= {clock.linked_id for _, clock in self._of(Clock)}
        pointed |= {each for _, chapter in self._of(Chapter) for each in chapter.scene_ids}
        self._handles = {
            item_id: f"{type(self._items[item_id]).__name__.lower()}-{number}"
            for number, item_id in enumerate(sorted(self._items.keys() & pointed), start=1)
        }

    def files(self) -> dict[str, bytes]:
        world = next((item for _, item in self._of(World)), World())
        index = {"current_day": world.day, "current_time": world.time_of_day}
        written = {
            vault.MAIN: self._main(world),
            vault.INDEX: msgspec.json.format(msgspec.json.encode(index), indent=2),
        }
        secrets = self._secrets()
        for item_id, entity in self._of(Entity):
            path = f"canon/{vault.FOLDERS[entity.kind]}/{self._stems[item_id]}.md"
            written[path] = write_entity(
                entity,
                location=self._stem(entity.location_id),
                secrets=[text for _, text in secrets[item_id]],
                audience="gm" if secrets[item_id] else self._audience(entity.audience),
            )
        told = {fact_id for texts in secrets.values() for fact_id, _ in texts}
        lists: dict[str, tuple[str, Groups]] = {
            vault.THREADS: ("Open threads", self._threads()),
            vault.TIMELINE: ("Timeline", {}),
            vault.CLOCKS: ("Clocks", self._clocks()),
            vault.FACTS: ("Facts", self._facts(told)),
            vault.RELATIONS: ("Relations", self._relations()),
            vault.GLOSSARY: ("Glossary", self._terms()),
            vault.SCENES: ("Scenes", self._scenes()),
            vault.CHAPTERS: ("Chapters", self._chapters()),
            vault.ECHOES: ("Echoes", self._echoes()),
        }
        for name, (title, groups) in lists.items():
            if name == vault.TIMELINE:
                written[f"canon/{name}.md"] = outline(title, self._days())
            elif groups or name == vault.THREADS:
                written[f"canon/{name}.md"] = outline(title, groups.items())
        return written

    def _of(self, kind: type[ItemT]) -> list[tuple[UUID, ItemT]]:
        return [(each, item) for each, item in self._items.items() if isinstance(item, kind)]

    def _main(self, world: World) -> bytes:
        fields = self._campaign.fields
        brief = msgspec.structs.asdict(fields.brief)
        body = brief.pop("setting")
        if body != body.strip() or "[[" in body or body.startswith("---") or "\r" in body:
            brief["setting"], body = body, ""
        meta: dict[str, Any] = {
            "name": fields.name,
            "rules": fields.rules,
            **brief,
            "settings": msgspec.to_builtins(fields.settings),
            "flags": world.flags,
            "attributes": world.attributes,
            "locked": world.locked,
        }
        return document({key: value for key, value in meta.items() if value}, body)

    def _secrets(self) -> defaultdict[UUID, list[tuple[UUID, str]]]:
        """Facts that stand with their entity: known to the game master alone, of a public one."""
        found: defaultdict[UUID, list[tuple[UUID, str]]] = defaultdict(list)
        for fact_id, fact in self._of(Fact):
            about = self._items.get(fact.about_id) if fact.about_id else None
            is_plain = fact_id not in self._handles and not fact.locked and not fact.superseded_by
            if (
                fact.about_id is not None
                and isinstance(about, Entity)
                and (about.audience, fact.audience) == ("public", "gm")
                and is_plain
                and fact.text == fact.text.strip()
                and "[[" not in fact.text
            ):
                found[fact.about_id].append((fact_id, fact.text))
        return found

    def _threads(self) -> Groups:
        groups: Groups = {}
        for item_id, thread in self._of(Thread):
            heading = vault.TENSION_HEADINGS[thread.tension]
            boxes = [("x" if each.done else " ", each.text) for each in thread.objectives]
            details = [
                ("next", thread.next_step),
                ("kind", thread.kind if thread.kind != "storyline" else ""),
                ("priority", thread.priority if thread.priority != "medium" else ""),
                ("status", thread.status if thread.status != "open" else ""),
                ("giver", self._link(thread.giver_id)),
                ("clock", self._handle(thread.clock_id)),
            ]
            lines = entry(thread.title, thread.summary, self._common(item_id, thread, details))
            lines += [f"  - objective: [{box}] {encoded(text)}" for box, text in boxes]
            groups.setdefault(heading, []).extend(lines)
        order = list(vault.TENSION_HEADINGS.values())
        return dict(sorted(groups.items(), key=lambda each: order.index(each[0])))

    def _days(self) -> Iterable[tuple[str, Sequence[str]]]:
        """Return the current events by day, in story order; those of no day first."""
        found: defaultdict[int | None, list[str]] = defaultdict(list)
        for event in self._campaign.events:
            if event.is_current:
                found[event.fields.day].extend(self._event(event))
        undated = [("", found.pop(None))] if None in found else []
        days = sorted((day, lines) for day, lines in found.items() if day is not None)
        return [*undated, *((f"Day {day}", lines) for day, lines in days)]

    def _event(self, event: StoryEvent) -> list[str]:
        fields = event.fields
        details = [
            ("kind", fields.kind if fields.kind != "event" else ""),
            ("time", fields.time),
            ("where", fields.where),
            *(("who", name) for name in fields.who),
            *(("keyword", word) for word in fields.keywords),
            ("significance", str(event.significance) if event.significance != 3 else ""),  # noqa: PLR2004  # the default
            ("pinned", "true" if event.is_pinned else ""),
        ]
        if event.audience != "public":
            details += self._known_to(decode_audience(event.audience))
        return plain_entry(fields.summary, _present(details))

    def _clocks(self) -> Groups:
        groups: Groups = {}
        for item_id, clock in self._of(Clock):
            details = [
                ("filled", f"{clock.filled}/{clock.segments}"),
                ("visible", "" if clock.visible else "false"),
                ("linked", self._handle(clock.linked_id)),
            ]
            lines = entry(clock.name, clock.consequence, self._common(item_id, clock, details))
            groups.setdefault(clock.kind.title(), []).extend(lines)
        return groups

    def _facts(self, told: set[UUID]) -> Groups:
        groups: Groups = {}
        for item_id, fact in self._of(Fact):
            if item_id in told:
                continue
            heading = self._link(fact.about_id) or vault.WORLD
            details = [("superseded by", self._handle(fact.superseded_by))]
            lines = plain_entry(fact.text, self._common(item_id, fact, details))
            groups.setdefault(heading, []).extend(lines)
        return groups

    def _relations(self) -> Groups:
        lines: list[str] = []
        for item_id, relation in self._of(Relation):
            ends = self._link(relation.from_id), self._link(relation.to_id)
            if not all(ends):
                continue
            lines.append(f"- {ends[0]} → {ends[1]}: {relation.score}")
            details = self._common(item_id, relation, [("note", relation.note)])
            lines += detail_lines(details)
        return {"": lines} if lines else {}

    def _terms(self) -> Groups:
        groups: Groups = {}
        for item_id, term in self._of(Term):
            details = [
                ("source", term.source if term.source != "manual" else ""),
                ("uses", str(self._campaign.uses.get(item_id) or "")),
            ]
            lines = entry(term.term, term.definition, self._common(item_id, term, details))
            groups.setdefault(term.status.title(), []).extend(lines)
        return groups

    def _scenes(self) -> Groups:
        groups: Groups = {}
        for item_id, scene in self._of(Scene):
            details = [
                ("location", self._link(scene.location_id)),
                *(("present", self._link(each)) for each in scene.present),
                ("stakes", scene.stakes),
                ("type", scene.type),
                ("mood", scene.mood),
                ("variant", scene.variant),
                ("beats", str(scene.beats) if scene.beats else ""),
            ]
            lines = entry(scene.title, scene.summary, self._common(item_id, scene, details))
            lines += [f"  - moment: {encoded(text)}" for text in scene.key_moments]
            groups.setdefault(scene.status.title(), []).extend(lines)
        return groups

    def _chapters(self) -> Groups:
        lines: list[str] = []
        for item_id, chapter in self._of(Chapter):
            details = [("scene", self._handle(each)) for each in chapter.scene_ids]
            lines += entry(chapter.title, chapter.summary, self._common(item_id, chapter, details))
        return {"": lines} if lines else {}

    def _echoes(self) -> Groups:
        groups: Groups = {}
        for item_id, echo in self._of(Echo):
            details = [("resolved", "true" if echo.resolved else "")]
            lines = plain_entry(echo.text, self._common(item_id, echo, details))
            groups.setdefault(f"{echo.kind.title()}s", []).extend(lines)
        return groups

    def _common(self, item_id: UUID, item: Any, details: Details) -> Details:
        """An item's details, those that all kinds have with them, without those that are empty."""
        locked = [("locked", each) for each in item.locked]
        known = self._known_to(item.audience) if item.audience != "public" else []
        return _present([*details, ("id", self._handle(item_id)), *locked, *known])

    def _known_to(self, audience: Audience) -> Details:
        if isinstance(audience, str):
            return [("audience", audience)]
        links = [("audience", link) for each in audience if (link := self._link(each))]
        return links or [("audience", "gm")]

    def _audience(self, audience: Audience) -> Any:
        """An audience as front matter."""
        names = [value for _, value in self._known_to(audience)]
        return names if not isinstance(audience, str) and names != ["gm"] else names[0]

    def _stem(self, item_id: UUID | None) -> str:
        return self._stems.get(item_id, "") if item_id else ""

    def _link(self, item_id: UUID | None) -> str:
        stem = self._stem(item_id)
        if item_id is None or not stem:
            return ""
        name = getattr(self._items[item_id], "name", "")
        plain = " ".join(each for each in name.split() if not set("[]|#^") & set(each))
        return f"[[{stem}|{plain}]]" if plain else f"[[{stem}]]"

    def _handle(self, item_id: UUID | None) -> str:
        return self._handles.get(item_id, "") if item_id else ""


def _present(details: Iterable[tuple[str, str]]) -> Details:
    return [(name, value) for name, value in details if value]
