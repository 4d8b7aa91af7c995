"""Entities as files of a vault: front matter for what is short, the body for what is told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from backend.campaigns.files.markdown import (
    Bullet,
    Document,
    Section,
    bullets,
    document,
    link_target,
    link_targets,
    read_document,
    sections,
    unlinked,
)
from backend.campaigns.files.vault import ATTRIBUTES, EntityKind
from backend.campaigns.items import Entity

_HELD = frozenset(
    {
        "name", "aliases", "status", "role", "disposition", "location", "description",
        "personality", "voice", "wants", "audience", "secret", "secrets", "locked", "attributes",
    }
)  # fmt: skip
"""Front matter that is not an attribute."""

_IN_BRACKETS = re.compile(r"\[([^\[\]\n]{1,1000})\]")
_SENTENCE_END = re.compile(r"\n|(?<=[.!?])\s")
_POINTS = re.compile(r"\s{0,5}(-?[0-9]{1,9})\s{0,5}(?:/\s{0,5}([0-9]{1,9}))?(?![0-9.,])")

NAME, LINE, TEXT = 200, 1_000, 20_000


class EntityFile:
    """What one file says of an entity, references still by name.

    `leftover` holds what found no place in it, and `warnings` what somebody should know.
    """

    def __init__(self, kind: EntityKind, stem: str, source: Document) -> None:
        self.kind: EntityKind = kind
        self.stem = stem
        self.warnings: list[str] = []
        self.leftover: list[str] = []
        self.links: list[tuple[str, str]] = []
        self._meta = meta = source.meta
        if source.broken:
            self.warnings.append(f"the front matter can't be read: {source.broken}")
        parts = sections(source.body)
        heading = parts[1].title if len(parts) > 1 and not parts[0].text else ""
        is_name = bool(heading) and parts[1].level == 1
        name = self._short(meta.get("name"), NAME, "name")
        self.name = name or (heading[:NAME] if is_name else "") or _spelled(stem)
        if is_name and heading.casefold() == self.name.casefold():
            parts = [Section("", 0, parts[1].text), *parts[2:]]
        self.location = link_target(_text(meta.get("location")))
        self.audience = meta.get("audience", "public")
        self.secrets = _texts(meta.get("secret")) + _texts(meta.get("secrets"))
        self.fields: dict[str, Any] = {
            "kind": kind,
            "name": self.name,
            "aliases": [self._short(each, NAME, "aliases") for each in _texts(meta.get("aliases"))],
            "locked": _texts(meta.get("locked")),
            "attributes": self._attributes(),
        }
        for name in ("status", "role", "disposition", "wants"):
            if meta.get(name) is not None:
                self.fields[name] = self._short(meta[name], LINE, name)
        self._read_body(parts)
        for name in ("description", "personality"):
            if name in meta:
                self.fields[name] = self._cut(_text(meta[name]), TEXT, name)
        if "voice" in meta:
            voice: Any = meta["voice"]
            self.fields["voice"] = self._lines(
                map(_text, cast("Any", voice)) if isinstance(voice, list) else _texts(voice)
            )

    def _read_body(self, parts: Iterable[Section]) -> None:
        described: list[str] = []
        for part in parts:
            match part.title.casefold():
                case "personality":
                    self._read_personality(part.text)
                case "voice":
                    self.fields["voice"] = self._lines(_said(bullets(part.text)))
                case "wants" | "goals" if "wants" not in self.fields:
                    said = " ".join(_said(bullets(part.text)))
                    self.fields["wants"] = self._short(said, LINE, "wants")
                case "secret" | "secrets":
                    self.secrets += _said(bullets(part.text))
                case "":
                    described.append(part.text)
                case _:
                    described.append(f"{'#' * part.level} {part.title}\n{part.text}".strip())
        text = "\n\n".join(filter(None, described))
        for sentence in _SENTENCE_END.split(text):
            self.links += [(target, unlinked(sentence)) for target in link_targets(sentence)]
        self.fields["description"] = self._cut(unlinked(text), TEXT, "description")

    def _read_personality(self, text: str) -> None:
        """List entries and text in brackets become the voice, other text the personality."""
        told: list[str] = []
        voice: list[str] = []
        for bullet in bullets(text):
            if bullet.is_listed:
                voice += _said([bullet])
                continue
            said = unlinked(bullet.text)
            for bracket in _IN_BRACKETS.finditer(said):
                voice += [each.strip() for each in bracket[1].split(";") if each.strip()]
            told.append(_IN_BRACKETS.sub("", said).strip())
        self.fields["voice"] = self._lines(voice)
        personality = "\n\n".join(filter(None, told))
        self.fields["personality"] = self._cut(personality, TEXT, "personality")

    def _attributes(self) -> dict[str, Any]:
        found = {
            key[:NAME]: _unwrapped(value)
            for key, value in self._meta.items()
            if key and key not in _HELD
        }
        self.warnings += [
            f"`{key}` is kept among the attributes" for key in found if key not in ATTRIBUTES
        ]
        for key in ("conditions", "inventory"):
            if isinstance(found.get(key), str):
                found[key] = [each.strip() for each in found[key].split(",") if each.strip()]
        for key in ("hp", "hp_max", "gold"):
            if isinstance(found.get(key), str):
                self._read_number(found, key)
        kept = self._meta.get("attributes")
        if isinstance(kept, dict):
            members = cast("dict[str, Any]", kept).items()
            found |= {key[:NAME]: value for key, value in members if key}
        elif kept is not None:
            self.leftover.append(f"attributes: {_text(kept)}")
        return found

    def _read_number(self, found: dict[str, Any], key: str) -> None:
        """Make a number of `13/13` or `15 gp`, else a fact."""
        points = _POINTS.match(found[key])
        if points is None:
            self.leftover.append(f"{key}: {found.pop(key)}")
            self.warnings.append(f"`{key}` is no number: it is kept as a fact")
            return
        found[key] = int(points[1])
        if key == "hp" and points[2] is not None:
            found.setdefault("hp_max", int(points[2]))

    def _short(self, value: Any, limit: int, where: str) -> str:
        return self._cut(unlinked(_text(value)).strip(), limit, where)

    def _cut(self, text: str, limit: int, where: str) -> str:
        if len(text) > limit:
            self.leftover.append(text[limit:])
            self.warnings.append(
                f"`{where}` is longer than {limit:,} characters: the rest is kept as facts"
            )
        return text[:limit]

    def _lines(self, lines: Iterable[str]) -> list[str]:
        found = [self._cut(each, LINE, "voice") for each in lines]
        self.leftover += found[200:]
        return found[:200]


def write_entity(entity: Entity, *, location: str, secrets: list[str], audience: Any) -> bytes:
    """The file of an entity: text in the body, and in the front matter what Markdown would change.

    Args:
        entity: Of whom.
        location: The link to where it is, if that is anywhere.
        secrets: What only the game master knows of it.
        audience: Who may know of it, as front matter.
    """
    attributes = {k: v for k, v in entity.attributes.items() if k not in _HELD and k != ""}
    meta: dict[str, Any] = {
        "name": entity.name,
        "aliases": entity.aliases,
        "role": entity.role,
        "status": entity.status,
        "disposition": entity.disposition,
        "location": location,
        "wants": entity.wants,
        **attributes,
        "attributes": {k: v for k, v in entity.attributes.items() if k not in attributes},
        "secret": secrets[0] if len(secrets) == 1 else secrets,
        "audience": audience,
        "locked": entity.locked,
    }
    meta = {
        key: value
        for key, value in meta.items()
        if key in attributes or key in {"name", "status"} or value not in ("", [], {}, "public")
    }
    body = entity.description
    if entity.personality or entity.voice:
        voice = [f"- {line}" for line in entity.voice]
        told = "\n\n".join(filter(None, [entity.personality, "\n".join(voice)]))
        body = f"{body}\n\n## Personality\n{told}".strip()
    if not _reads_back(entity, meta, body, ("attributes",)):
        for key in attributes:
            del meta[key]
        meta["attributes"] = entity.attributes
    if not _reads_back(entity, meta, body, ("description", "personality", "voice")):
        meta |= {
            "description": entity.description,
            "personality": entity.personality,
            "voice": entity.voice,
        }
        body = ""
    return document(meta, body)


def _reads_back(entity: Entity, meta: Mapping[str, Any], body: str, names: Iterable[str]) -> bool:
    """Whether a file with this front matter and body gives the entity's fields again."""
    text = document(dict(meta), body).decode()
    read = EntityFile(entity.kind, "", read_document(text)).fields
    return all(
        read.get(name, type(value)()) == value
        for name in names
        for value in [getattr(entity, name)]
    )


def _said(found: Iterable[Bullet]) -> list[str]:
    """Entries and what stands in them, each on its own."""
    return [unlinked(line) for bullet in found for line in (bullet.text, *bullet.details)]


def _unwrapped(value: Any) -> Any:
    """`[[Name]]` without quotes is a list in a list to YAML."""
    match value:
        case [[str() as name]]:
            return name
        case str():
            return unlinked(value)
        case list():
            return [_unwrapped(each) for each in cast("Any", value)]
        case _:
            return value


def _text(value: Any) -> str:
    plain: Any = value if isinstance(value, str) else _unwrapped(value)
    if isinstance(plain, list):
        return ", ".join(map(_text, cast("Any", plain)))
    return "" if plain is None else str(plain)


def _texts(value: Any) -> list[str]:
    """A list of texts, be it one, several, or none."""
    plain: Any = value if isinstance(value, str) else _unwrapped(value)
    many: list[Any] = cast("Any", plain) if isinstance(plain, list) else [plain]
    return [text for each in many if (text := _text(each).strip())]


def _spelled(stem: str) -> str:
    """A file's name as a person's or place's: `the-salty-sigil` is The Salty Sigil."""
    words = stem.replace("_", " ").replace("-", " ").split()
    return " ".join(word[:1].upper() + word[1:] for word in words)[:NAME] or "Unnamed"
