"""Writes a campaign as a vault of Markdown, which `vault_reader` reads back. CPU-bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from backend.campaigns.errors import CampaignFileError
from backend.campaigns.files import vault
from backend.campaigns.files.archive import OpenCampaign
from backend.campaigns.files.draft import MAX_FILES
from backend.campaigns.files.markdown import (
    encode_text,
    is_plain,
    render_document,
    render_outline,
)
from backend.campaigns.files.vault import OUTLINES, TIMELINE, UNTITLED, Outline
from backend.campaigns.files.vault_entities import write_entity
from backend.campaigns.ledger.changes import build_item, exists
from backend.campaigns.ledger.items import Entity, Fact, Item, World
from backend.campaigns.names.roster import make_slug
from backend.chronicles.repository import StoryEvent
from backend.core.audience import Audience, decode_audience
from backend.core.files import is_device

Details = list[tuple[str, str]]
ItemT = TypeVar("ItemT", bound=Item)

_NAME_BYTES = 200


def write_vault(campaign: OpenCampaign) -> dict[str, bytes]:
    """Return the files of a vault by path. Raises `CampaignFileError` if there are too many."""
    return _Writer(campaign).write()


class _Writer:
    """Writes items. Links name entities by file, handles name other items by kind and number."""

    def __init__(self, campaign: OpenCampaign) -> None:
        self._campaign = campaign
        self._items = {
            item_id: (kind, build_item(kind, state))
            for item_id, kind, state in campaign.items
            if exists(state)
        }
        self._stems = self._name_files()
        self._handles = self._number_targets()

    def _name_files(self) -> dict[UUID, str]:
        """Return a different file name for each entity."""
        stems: dict[UUID, str] = {}
        taken: set[str] = set()
        for item_id, entity in self._list(Entity):
            stem = name = _make_file_name(entity)
            number = 1
            while stem in taken:
                number += 1
                stem = f"{name}-{number}"
            taken.add(stem)
            stems[item_id] = stem
        if len(taken) > MAX_FILES:
            raise CampaignFileError(
                f"A vault can contain {MAX_FILES:,} named items; there are {len(taken):,}. "
                "Export the campaign as JSON."
            )
        return stems

    def _number_targets(self) -> dict[UUID, str]:
        """Return a handle for each item that others refer to by a handle."""
        targets: set[UUID | None] = set()
        for outline in OUTLINES.values():
            names = [each.key for each in outline.fields if each.target]
            for kind, item in self._items.values() if names else ():
                if kind == outline.kind:
                    for name in names:
                        value: UUID | list[UUID] | None = getattr(item, name)
                        targets |= {*value} if isinstance(value, list) else {value}
        return {
            item_id: f"{self._items[item_id][0]}-{number}"
            for number, item_id in enumerate(sorted(self._items.keys() & targets), start=1)
        }

    def write(self) -> dict[str, bytes]:
        world = next((item for _, item in self._list(World)), World())
        index = {"current_day": world.day, "current_time": world.time_of_day}
        written = {
            vault.MAIN: self._render_main(world),
            vault.INDEX: msgspec.json.format(msgspec.json.encode(index), indent=2),
        }
        secrets = self._find_secrets()
        for item_id, entity in self._list(Entity):
            path = f"canon/{vault.FOLDERS[entity.kind]}/{self._stems[item_id]}.md"
            written[path] = write_entity(
                entity,
                location=self._get_stem(entity.location_id),
                secrets=[text for _, text in secrets[item_id]],
                audience="gm" if secrets[item_id] else self._render_audience(entity.audience),
            )
        skipped = {fact_id for texts in secrets.values() for fact_id, _ in texts}
        for name, outline in OUTLINES.items():
            groups = self._group_events() if name == TIMELINE else self._group(outline, skipped)
            if groups or outline.kind in {"thread", "event"}:
                written[f"canon/{name}.md"] = render_outline(outline.title, groups)
        return written

    def _list(self, struct: type[ItemT]) -> list[tuple[UUID, ItemT]]:
        return [(each, item) for each, (_, item) in self._items.items() if isinstance(item, struct)]

    def _render_main(self, world: World) -> bytes:
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
        return render_document({key: value for key, value in meta.items() if value}, body)

    def _find_secrets(self) -> defaultdict[UUID, list[tuple[UUID, str]]]:
        """Return facts that are written as secrets of their entity.

        The game master alone knows them, while the entity is public.
        """
        entities = dict(self._list(Entity))
        found: defaultdict[UUID, list[tuple[UUID, str]]] = defaultdict(list)
        for fact_id, fact in self._list(Fact):
            is_simple = fact_id not in self._handles and not fact.locked and not fact.superseded_by
            if (
                fact.about_id is not None
                and (about := entities.get(fact.about_id)) is not None
                and (about.audience, fact.audience) == ("public", "gm")
                and is_simple
                and fact.text == fact.text.strip()
                and "[[" not in fact.text
            ):
                found[fact.about_id].append((fact_id, fact.text))
        return found

    def _group(
        self, outline: Outline, skipped: Collection[UUID]
    ) -> list[tuple[str, Sequence[str]]]:
        """Return the lines of a list by their headings."""
        groups: dict[str, list[str]] = {heading: [] for heading in outline.headings.values()}
        for item_id, (kind, item) in self._items.items():
            if kind == outline.kind and item_id not in skipped:
                fields = msgspec.structs.asdict(item)
                lines = self._render_item(outline, item_id, fields)
                groups.setdefault(self._get_heading(outline, fields), []).extend(lines)
        return [(heading, lines) for heading, lines in groups.items() if lines]

    def _get_heading(self, outline: Outline, fields: Mapping[str, Any]) -> str:
        if outline.kind == "fact":
            return self._link(fields["about_id"]) or vault.WORLD
        field = outline.heading_field
        return outline.headings[fields[field.key]] if field else ""

    def _render_item(self, outline: Outline, item_id: UUID, fields: Mapping[str, Any]) -> list[str]:
        is_clock = outline.kind == "clock"
        details = [
            *([("filled", f"{fields['filled']}/{fields['segments']}")] if is_clock else ()),
            *outline.write(fields, self._refer),
            ("uses", str(self._campaign.uses.get(item_id) or "")),
            ("id", self._get_handle(item_id)),
            *(("locked", encode_text(each)) for each in fields["locked"]),
            *self._list_audience(fields["audience"]),
        ]
        if outline.kind == "relation":
            ends = self._link(fields["from_id"]), self._link(fields["to_id"])
            line = f"- {ends[0]} → {ends[1]}: {fields['score']}"
            return [line, *_render_details(details)] if all(ends) else []
        texts = [fields[name] for name in outline.texts]
        return _render_entry(texts[-1], details, title=texts[0] if outline.is_titled else None)

    def _group_events(self) -> list[tuple[str, Sequence[str]]]:
        """Return the lines of the current events by day, in story order; undated ones first."""
        found: defaultdict[int | None, list[str]] = defaultdict(list)
        for event in self._campaign.events:
            if event.is_current:
                found[event.fields.day].extend(self._render_event(event))
        undated = [("", found.pop(None))] if None in found else []
        days = sorted((day, lines) for day, lines in found.items() if day is not None)
        return [*undated, *((f"Day {day}", lines) for day, lines in days)]

    def _render_event(self, event: StoryEvent) -> list[str]:
        fields = {
            **msgspec.structs.asdict(event.fields),
            "significance": event.significance,
            "pinned": event.is_pinned,
        }
        audience = self._list_audience(decode_audience(event.audience))
        details = [*OUTLINES[TIMELINE].write(fields, self._refer), *audience]
        return _render_entry(event.fields.summary, details)

    def _list_audience(self, audience: Audience) -> Details:
        """Return an audience as details; none for the default, `public`."""
        if audience == "public":
            return []
        if isinstance(audience, str):
            return [("audience", audience)]
        links = [("audience", link) for each in audience if (link := self._link(each))]
        return links or [("audience", "gm")]

    def _render_audience(self, audience: Audience) -> Any:
        """Return an audience as front matter."""
        names = [value for _, value in self._list_audience(audience)] or ["public"]
        return names if not isinstance(audience, str) and names != ["gm"] else names[0]

    def _get_stem(self, item_id: UUID | None) -> str:
        return self._stems.get(item_id, "") if item_id else ""

    def _link(self, item_id: UUID | None) -> str:
        stem = self._get_stem(item_id)
        if item_id is None or not stem:
            return ""
        name = getattr(self._items[item_id][1], "name", "")
        plain = " ".join(each for each in name.split() if not set("[]|#^") & set(each))
        return f"[[{stem}|{plain}]]" if plain else f"[[{stem}]]"

    def _refer(self, item_id: UUID | None) -> str:
        return self._link(item_id) or self._get_handle(item_id)

    def _get_handle(self, item_id: UUID | None) -> str:
        return self._handles.get(item_id, "") if item_id else ""


def _make_file_name(entity: Entity) -> str:
    """Return the entity's name as a file name that is valid on every system."""
    name = make_slug(entity.name)[:100].encode()[:_NAME_BYTES].decode(errors="ignore")
    return f"{name}-{entity.kind}" if is_device(name) else name


def _render_entry(text: str, details: Details, *, title: str | None = None) -> list[str]:
    """Return the lines of an entry. Texts that Markdown would change become details."""
    if title is None:
        return [f"- {encode_text(text)}", *_render_details(details)]
    more: Details = []
    if not is_plain(title) or "*" in title or title.endswith(":") or title == UNTITLED:
        more.append(("title", encode_text(title) if title else ""))
        title = UNTITLED
    if text and not is_plain(text):
        more.insert(0, ("text", encode_text(text)))
        text = ""
    line = f"- **{title}**: {text}" if text else f"- **{title}**"
    return [line, *_render_details([*more, *details])]


def _render_details(details: Iterable[tuple[str, str]]) -> list[str]:
    return [f"  - {name}: {value}" for name, value in details if value]
