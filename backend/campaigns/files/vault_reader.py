"""Reads a vault of Markdown as a campaign. CPU-bound.

Unknown texts are kept as facts that only the game master knows, with a warning.
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
from backend.campaigns.files.draft import CampaignDraft, VaultDraft, check_items
from backend.campaigns.files.markdown import (
    Document,
    read_document,
    read_groups,
    remove_links,
)
from backend.campaigns.files.vault_entities import EntityFile
from backend.campaigns.files.vault_lists import ListReader
from backend.campaigns.ledger.changes import State, build_creation, build_item
from backend.campaigns.ledger.items import MAX_DAY, MAX_MEMBERS, Relation, World
from backend.campaigns.names.roster import make_slug
from backend.campaigns.rules.protocol import DEFAULT_RULES, find_rules, load_rules
from backend.characters.cards.text import parse_json
from backend.characters.errors import CardError, CardLimitError
from backend.core.cpu_pool import check_stopped
from backend.database.base import new_id
from backend.errors import ValidationError

MAX_BYTES = 8_000_000
MAX_LINES = 100_000
"""Maximum number of lines of all files, which take about ten seconds to read."""

_BRIEF = ("setting", "hook", "roster", "city")
_WORLD = ("flags", "attributes", "locked")
_CAMPAIGN = frozenset({"name", "rules", "settings", *_WORLD, *_BRIEF})


def is_vault(files: Mapping[str, bytes]) -> bool:
    """True if the files are a vault."""
    paths = [path.casefold() for path in files]
    return any(
        path in {vault.MAIN, vault.INDEX}
        or (
            path.endswith(".md") and (vault.find_entity_kind(path) or vault.find_outline_name(path))
        )
        for path in paths
    )


def read_vault(files: Mapping[str, bytes], name: str) -> CampaignDraft:
    """Read a vault. `name` is used if the vault has no name of the campaign.

    Raises `CampaignFileError` if the vault or an item is too large or invalid.
    """
    reader = VaultReader(name)
    texts = {path: reader.decode(path, files[path]) for path in sorted(files) if _is_markdown(path)}
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
    """Combines the files of a vault in a draft."""

    def __init__(self, name: str) -> None:
        fields = CampaignFields(name=name.strip()[:200] or "Campaign")
        self.draft = VaultDraft(id=new_id(), fields=fields)
        self._world = World()
        self._files: dict[UUID, EntityFile] = {}

    def decode(self, path: str, data: bytes) -> str:
        """Decode a file as UTF-8, else as cp1252, which Windows writes."""
        try:
            return data.decode("utf-8-sig").replace("\0", "")
        except UnicodeDecodeError:
            self.draft.warn(f"{path} is not UTF-8: some letters may be wrong")
            return data.decode("cp1252", errors="replace").replace("\0", "")

    def read(self, documents: Mapping[str, Document]) -> None:
        """Read all Markdown: entities first, because the other files refer to them."""
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
        reader = ListReader(self.draft)
        lists.sort(key=lambda each: list(vault.OUTLINES).index(each[0]))
        for outline, path, document in lists:
            reader.read(outline, path, document)
        reader.connect()
        for path, document in others:
            self.draft.warn(f"{path} is not known: its text is kept as facts for the game master")
            self._keep_text(path, document)

    def read_index(self, path: str, data: bytes) -> None:
        """Read the day and time of the story."""
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
            self.draft.note(f"{path}: {key}: {members[key]}", None)
            self.draft.warn(f"{path}: `{key[:200]}` is kept as a fact")

    def finish(self) -> None:
        """Add the world, and check all items."""
        self.draft.kinds = {self.draft.id: "world", **self.draft.kinds}
        self.draft.states[self.draft.id] = build_creation(self._world).set
        check_items(self.draft)

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
        brief.setdefault("setting", remove_links(document.body))
        try:
            fields.brief = msgspec.convert(brief, Brief)
            fields.settings = msgspec.convert(meta.get("settings") or {}, CampaignSettings)
            world = {key: meta[key] for key in _WORLD if meta.get(key) is not None}
            self._world = msgspec.convert(world, World)
        except msgspec.ValidationError as error:
            raise CampaignFileError(f"{path}: {error}.") from error
        for key in meta.keys() - _CAMPAIGN:
            self.draft.warn(f"{path}: `{key[:200]}` is kept as a fact")
            self.draft.note(f"{key}: {meta[key]}", None)

    def _add_entity(self, path: str, file: EntityFile) -> None:
        entity_id = new_id()
        self._files[entity_id] = file
        names = [file.name, make_slug(file.name)]
        self.draft.add_entity(entity_id, file.kind, [file.stem], names, file.fields["aliases"])
        for warning in file.warnings:
            self.draft.warn(f"{path}: {warning}")

    def _finish_entity(self, entity_id: UUID, file: EntityFile) -> None:
        fields, attributes = dict(file.fields), dict(file.fields["attributes"])
        if file.location:
            place = self.draft.find(file.location, "location")
            if place is None:
                attributes["location"] = file.location
                self.draft.warn(f"{file.name}: `location` names no place of the vault")
            fields["location_id"] = place
        audience = self.draft.read_audience(file.audience, file.name)
        # If a file has a secret, `audience` is that of the secret.
        secret_to = audience if file.secrets and audience != "public" else "gm"
        fields["audience"] = "public" if file.secrets else audience
        fields["attributes"] = self._keep_valid(file, {**fields, "attributes": {}}, attributes)
        try:
            item = build_item("entity", msgspec.to_builtins(fields))
        except ValidationError as error:
            raise CampaignFileError(f"{file.name}: {error.detail}") from error
        self.draft.add("entity", item, entity_id)
        for secret in file.secrets:
            self.draft.add_facts(secret, entity_id, secret_to)
        for text in file.leftover:
            self.draft.note(text, entity_id)
        self._relate(entity_id, file)

    def _keep_valid(
        self, file: EntityFile, fields: State, attributes: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the valid attributes of an entity; the others become facts."""
        kept: dict[str, Any] = {}
        for key, value in attributes.items():
            error = self._find_error({**fields, "attributes": {**kept, key: value}})
            if error:
                file.leftover.append(f"{key}: {value}")
                self.draft.warn(f"{file.name}: `{key}` is kept as a fact: {error}")
            else:
                kept[key] = value
        return kept

    def _find_error(self, fields: State) -> str:
        """Return the reason why an entity with these fields is invalid, or ""."""
        if len(fields["attributes"]) > MAX_MEMBERS:
            return f"there are more than {MAX_MEMBERS}"
        try:
            build_item("entity", msgspec.to_builtins(fields))
            find_rules(self.draft.fields.rules).validate("entity", {}, fields)
        except ValidationError as error:
            return error.detail
        return ""

    def _relate(self, entity_id: UUID, file: EntityFile) -> None:
        """Add a relation for each link to a person or faction, with the sentence as its note."""
        related: set[UUID] = set()
        for target, note in file.links.items():
            check_stopped()
            self.draft.follow(target)
            found = self.draft.find(target)
            if found is None or found == entity_id or found in related:
                continue
            if {file.kind, self._files[found].kind} <= {"pc", "npc", "faction"}:
                related.add(found)
                self.draft.add("relation", Relation(from_id=entity_id, to_id=found, note=note))

    def _keep_text(self, path: str, document: Document) -> None:
        if document.broken:
            self.draft.warn(f"{path}: the front matter can't be read: {document.broken}")
        for key, value in document.meta.items():
            self.draft.note(f"{path}: {key}: {value}", None)
        for group in read_groups(document.body):
            heading = "".join(map(remove_links, group.headings[-1:]))
            if not group.bullets:
                self.draft.note(heading, None)
            for bullet in group.bullets:
                check_stopped()
                said = remove_links("\n".join([bullet.text, *bullet.details]))
                self.draft.note(": ".join(filter(None, [heading, said])), None)


def _is_markdown(path: str) -> bool:
    return path.casefold().endswith(".md")
