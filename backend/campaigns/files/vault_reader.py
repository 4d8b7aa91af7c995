"""A vault of Markdown, as people keep a campaign in, into a campaign. CPU-bound.

It takes what it understands, keeps the rest as facts that only the game master knows, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, cast
from uuid import UUID

import msgspec

from backend.campaigns.api.schemas import Brief, CampaignFields, CampaignSettings
from backend.campaigns.errors import CampaignFileError
from backend.campaigns.files import vault
from backend.campaigns.files.draft import CampaignDraft, check_items
from backend.campaigns.files.markdown import (
    Document,
    groups,
    link_target,
    read_document,
    unlinked,
)
from backend.campaigns.files.vault_entities import EntityFile
from backend.campaigns.files.vault_lists import ListReader
from backend.campaigns.ledger.changes import State, build_creation, build_item
from backend.campaigns.ledger.items import MAX_DAY, MAX_MEMBERS, Fact, Item, Kind, Relation, World
from backend.campaigns.names.roster import make_slug
from backend.campaigns.rules.registry import DEFAULT_RULES, find_rules, load_rules
from backend.characters.cards.text import parse_json
from backend.characters.errors import CardError, CardLimitError
from backend.core.audience import Audience
from backend.core.cpu_pool import check_stopped
from backend.database.base import new_id
from backend.errors import ValidationError

MAX_BYTES = 8_000_000
MAX_LINES = 100_000
"""Of all Markdown: what is read in some ten seconds."""
MAX_KNOWING = 50
"""Entities that one audience names."""
MAX_NOTES = 1_000
"""Facts that are made of what was not understood."""

_NOTE = 2_000
_BRIEF = ("setting", "hook", "roster", "city")
_WORLD = ("flags", "attributes", "locked")
_CAMPAIGN = frozenset({"name", "rules", "settings", *_WORLD, *_BRIEF})


def is_vault(files: Mapping[str, bytes]) -> bool:
    """Whether files are those of a vault."""
    paths = [path.casefold() for path in files]
    return any(
        path in {vault.MAIN, vault.INDEX}
        or (
            path.endswith(".md") and (vault.find_entity_kind(path) or vault.find_outline_name(path))
        )
        for path in paths
    )


def read_vault(files: Mapping[str, bytes], name: str) -> CampaignDraft:
    """Read a vault. `name` is what the campaign is called where the vault does not say.

    Raises `CampaignFileError` for what is too large, or not what its limits let it be.
    """
    reader = VaultReader(name)
    texts = {path: reader.text(path, files[path]) for path in sorted(files) if _is_told(path)}
    if sum(map(len, texts.values())) > MAX_BYTES:
        raise CampaignFileError(f"The vault has more than {MAX_BYTES:,} characters of text.")
    if sum(text.count("\n") for text in texts.values()) > MAX_LINES:
        raise CampaignFileError(f"The vault has more than {MAX_LINES:,} lines of text.")
    documents: dict[str, Document] = {}
    for path, text in texts.items():
        check_stopped()
        try:
            documents[path] = read_document(text)
        except CardLimitError as error:
            raise CampaignFileError(f"{path}: {error.detail}") from error
    reader.read(documents)
    for path in sorted(files.keys() - documents.keys()):
        if path.casefold() == vault.INDEX.casefold():
            reader.read_index(path, files[path])
        else:
            reader.draft.warn(f"{path} is no Markdown: it is left out")
    reader.finish()
    return reader.draft


class VaultReader:
    """Puts together what a vault's files say."""

    def __init__(self, name: str) -> None:
        fields = CampaignFields(name=name.strip()[:200] or "Campaign")
        self.draft = CampaignDraft(id=new_id(), fields=fields)
        self._world = World()
        self._files: dict[UUID, EntityFile] = {}
        # What a file is called comes before a name, and that before an alias.
        # For each name, the first entity of each kind.
        self._names: tuple[dict[str, dict[str, UUID]], ...] = ({}, {}, {})
        self._notes = 0

    def text(self, path: str, data: bytes) -> str:
        """A file's text. What is not UTF-8 is taken for what Windows writes."""
        try:
            return data.decode("utf-8-sig").replace("\0", "")
        except UnicodeDecodeError:
            self.draft.warn(f"{path} is not UTF-8: some letters may be wrong")
            return data.decode("cp1252", errors="replace").replace("\0", "")

    def read(self, documents: Mapping[str, Document]) -> None:
        """Read all Markdown: entities first, which the rest refers to."""
        lists: list[tuple[str, str, Document]] = []
        others: list[tuple[str, Document]] = []
        for path, document in documents.items():
            check_stopped()
            kind, outline = vault.find_entity_kind(path), vault.find_outline_name(path)
            if path.casefold() == vault.MAIN:
                self._read_campaign(path, document)
            elif outline is not None:
                lists.append((outline, path, document))
            elif kind is not None:
                self._add_entity(path, EntityFile(kind, PurePosixPath(path).stem, document))
            else:
                others.append((path, document))
        for entity_id, file in self._files.items():
            self._finish_entity(entity_id, file)
        reader = ListReader(self)
        lists.sort(key=lambda each: vault.OUTLINES.index(each[0]))
        for outline, path, document in lists:
            reader.read(outline, path, document)
        reader.connect()
        for path, document in others:
            self.draft.warn(f"{path} is not known: its text is kept as facts for the game master")
            self._keep_text(path, document)

    def read_index(self, path: str, data: bytes) -> None:
        """The story's day and time."""
        try:
            index: Any = parse_json(data)
        except CardError as error:
            raise CampaignFileError(f"{path}: {error.detail}") from error
        members = cast("dict[str, Any]", index) if isinstance(index, dict) else {}
        if members is not index:
            self.draft.warn(f"{path} is no object: it is left out")
        day = members.get("current_day", 1)
        if type(day) is int and 1 <= day <= MAX_DAY:
            self._world.day = day
        else:
            self.draft.warn(f"{path}: `current_day` is no day of the story")
        self._world.time_of_day = str(members.get("current_time") or "")[:1_000]
        for key in members.keys() - {"current_day", "current_time"}:
            self.note(f"{path}: {key}: {members[key]}", None)
            self.draft.warn(f"{path}: `{key[:200]}` is kept as a fact")

    def finish(self) -> None:
        """Take in the world, and check everything."""
        self.draft.kinds = {self.draft.id: "world", **self.draft.kinds}
        self.draft.states[self.draft.id] = build_creation(self._world).set
        check_items(self.draft)

    def find(self, name: str, kind: str = "") -> UUID | None:
        """The entity that a link or a name means: by its file, its name or an alias.

        Of several, one of that `kind` comes first.
        """
        said = name.rpartition("/")[2].strip().casefold()
        spelled = (names.get(each) for names in self._names for each in (said, make_slug(name)))
        found = next(filter(None, spelled), None)
        if found is None:
            return None
        return found.get(kind) or next(iter(found.values()))

    def follow(self, target: str) -> None:
        """Say so where a link leads nowhere."""
        if target and self.find(target) is None:
            self.draft.warn(f"[[{target[:200]}]] names nothing in the vault")

    def audience(self, value: Any, where: str) -> Audience:
        """Who may know something; for what can't be told, the game master alone."""
        names: list[Any] = cast("Any", value) if isinstance(value, list) else [value]
        if names in (["public"], ["gm"]):
            return cast("Audience", names[0])
        found = [self.find(link_target(str(each))) for each in names]
        if not found or None in found or len(found) > MAX_KNOWING:
            self.draft.warn(f"{where}: `audience` is not clear: the game master alone knows it")
            return "gm"
        return [each for each in found if each is not None]

    def add(self, kind: Kind, item: Item, item_id: UUID | None = None) -> UUID:
        """Take in an item. Raises `CampaignFileError` if there are too many."""
        check_stopped()
        item_id = item_id or new_id()
        self.draft.kinds[item_id] = kind
        self.draft.check_count()
        self.draft.states[item_id] = build_creation(item).set
        return item_id

    def note(self, text: str, about: UUID | None) -> None:
        """Keep what has no other place, as facts that only the game master knows."""
        for start in range(0, len(text), _NOTE):
            part = text[start : start + _NOTE].strip()
            if not part:
                continue
            self._notes += 1
            if self._notes > MAX_NOTES:
                self.draft.warn(f"Of what was not understood, {MAX_NOTES:,} facts stay")
                return
            self.add("fact", Fact(text=part, about_id=about, audience="gm"))

    def _read_campaign(self, path: str, document: Document) -> None:
        plain = {key: key.strip().casefold() for key in document.meta}
        meta = {
            plain[key] if plain[key] in _CAMPAIGN else key: value
            for key, value in document.meta.items()
        }
        fields = self.draft.fields
        if document.broken:
            self.draft.warn(f"{path}: the front matter can't be read: {document.broken}")
        if name := str(meta.get("name") or "").strip():
            fields.name = name[:200]
        rules = str(meta.get("rules") or DEFAULT_RULES)
        if rules not in load_rules():
            self.draft.warn(f"{path}: there are no rules named {rules[:50]}; it is {DEFAULT_RULES}")
            rules = DEFAULT_RULES
        fields.rules = rules
        brief = {key: str(meta[key]) for key in _BRIEF if meta.get(key) is not None}
        brief.setdefault("setting", unlinked(document.body))
        try:
            fields.brief = msgspec.convert(brief, Brief)
            fields.settings = msgspec.convert(meta.get("settings") or {}, CampaignSettings)
            world = {key: meta[key] for key in _WORLD if meta.get(key) is not None}
            self._world = msgspec.convert(world, World)
        except msgspec.ValidationError as error:
            raise CampaignFileError(f"{path}: {error}.") from error
        for key in meta.keys() - _CAMPAIGN:
            self.draft.warn(f"{path}: `{key[:200]}` is kept as a fact")
            self.note(f"{key}: {meta[key]}", None)

    def _add_entity(self, path: str, file: EntityFile) -> None:
        entity_id = new_id()
        self._files[entity_id] = file
        self.draft.kinds[entity_id] = "entity"
        spelled = [file.stem], [file.name, make_slug(file.name)], file.fields["aliases"]
        for names, known in zip(spelled, self._names, strict=True):
            for name in dict.fromkeys(each.casefold() for each in names):
                known.setdefault(name, {}).setdefault(file.kind, entity_id)
        for warning in file.warnings:
            self.draft.warn(f"{path}: {warning}")

    def _finish_entity(self, entity_id: UUID, file: EntityFile) -> None:
        fields, attributes = dict(file.fields), dict(file.fields["attributes"])
        if file.location:
            place = self.find(file.location, "location")
            if place is None:
                attributes["location"] = file.location
                self.draft.warn(f"{file.name}: `location` names no place of the vault")
            fields["location_id"] = place
        audience = self.audience(file.audience, file.name)
        # Beside a secret it says who knows that, as people write it.
        secret_to = audience if file.secrets and audience != "public" else "gm"
        fields["audience"] = "public" if file.secrets else audience
        fields["attributes"] = self._allowed(file, {**fields, "attributes": {}}, attributes)
        try:
            item = build_item("entity", msgspec.to_builtins(fields))
        except ValidationError as error:
            raise CampaignFileError(f"{file.name}: {error.detail}") from error
        self.add("entity", item, entity_id)
        for secret in file.secrets:
            for start in range(0, len(secret), _NOTE):
                part = secret[start : start + _NOTE]
                self.add("fact", Fact(text=part, about_id=entity_id, audience=secret_to))
        for text in file.leftover:
            self.note(text, entity_id)
        self._relate(entity_id, file)

    def _allowed(
        self, file: EntityFile, fields: State, attributes: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Those attributes that an entity may have; the others become facts."""
        kept: dict[str, Any] = {}
        for key, value in attributes.items():
            refused = self._refused({**fields, "attributes": {**kept, key: value}})
            if refused:
                file.leftover.append(f"{key}: {value}")
                self.draft.warn(f"{file.name}: `{key}` is kept as a fact: {refused}")
            else:
                kept[key] = value
        return kept

    def _refused(self, fields: State) -> str:
        """Why an entity can't be as these fields say; nothing if it can."""
        if len(fields["attributes"]) > MAX_MEMBERS:
            return f"there are more than {MAX_MEMBERS}"
        try:
            build_item("entity", msgspec.to_builtins(fields))
            find_rules(self.draft.fields.rules).validate("entity", {}, fields)
        except ValidationError as error:
            return error.detail
        return ""

    def _relate(self, entity_id: UUID, file: EntityFile) -> None:
        """A link to somebody in an entity's text is a relation; the sentence is its note."""
        related: set[UUID] = set()
        for target, note in file.links.items():
            check_stopped()
            self.follow(target)
            found = self.find(target)
            if found is None or found == entity_id or found in related:
                continue
            if {file.kind, self._files[found].kind} <= {"pc", "npc", "faction"}:
                related.add(found)
                self.add("relation", Relation(from_id=entity_id, to_id=found, note=note))

    def _keep_text(self, path: str, document: Document) -> None:
        if document.broken:
            self.draft.warn(f"{path}: the front matter can't be read: {document.broken}")
        for key, value in document.meta.items():
            self.note(f"{path}: {key}: {value}", None)
        for group in groups(document.body):
            heading = "".join(map(unlinked, group.headings[-1:]))
            if not group.bullets:
                self.note(heading, None)
            for bullet in group.bullets:
                check_stopped()
                said = unlinked("\n".join([bullet.text, *bullet.details]))
                self.note(": ".join(filter(None, [heading, said])), None)


def _is_told(path: str) -> bool:
    return path.casefold().endswith(".md")
