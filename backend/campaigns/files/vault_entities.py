"""Entities as files of a vault: front matter for short values, the body for texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from backend.campaigns.files.markdown import (
    Bullet,
    Document,
    Section,
    document,
    groups,
    link_target,
    link_targets,
    read_document,
    sections,
    unlinked,
)
from backend.campaigns.files.vault import ATTRIBUTES, EntityKind
from backend.campaigns.ledger.items import Entity

_HELD = frozenset(
    {
        "name", "aliases", "status", "role", "disposition", "location", "description",
        "personality", "voice", "wants", "audience", "secret", "secrets", "locked", "attributes",
    }
)  # fmt: skip
"""Front matter that is not an attribute."""

_OTHER_HELD = {"alias": "aliases", "goal": "wants", "goals": "wants"}
"""Other names of front matter, in the spelling of `_plain`."""

_OTHER_ATTRIBUTES = {
    "hp_current": "hp",
    "current_hp": "hp",
    "hit_points": "hp",
    "max_hp": "hp_max",
    "hp_maximum": "hp_max",
    "maximum_hp": "hp_max",
    "max_hit_points": "hp_max",
    "armor_class": "ac",
    "armour_class": "ac",
    "gp": "gold",
}
_CURRENT_HP = frozenset({"hp_current", "current_hp"})
_MAX_HP = frozenset(each for each, name in _OTHER_ATTRIBUTES.items() if name == "hp_max")
_MEASURES = frozenset({"hp", "stress"})
"""Attributes that may be an object of a current value and a maximum."""

_FIELDS = {
    "personality": "personality",
    "personality traits": "personality",
    "traits": "personality",
    "voice": "voice",
    "speech": "voice",
    "speech pattern": "voice",
    "speech patterns": "voice",
    "mannerisms": "voice",
    "voice and mannerisms": "voice",
    "voice and speech": "voice",
    "wants": "wants",
    "goals": "wants",
    "secret": "secret",
    "secrets": "secret",
    "gm notes": "secret",
    "gm only": "secret",
    "dm notes": "secret",
    "dm only": "secret",
}
"""Headings of a body, and the fields that their texts become."""

_IN_BRACKETS = re.compile(r"\[([^\[\]\n]{1,1000})\]")
_SENTENCE_END = re.compile(r"\n|(?<=[.!?])\s")
_UNIT = re.compile(r"\s{0,5}(?:gp|gold|gold pieces|coins?|hp|hit points|points)?\.?", re.IGNORECASE)
_POINTS = re.compile(r"\s{0,5}(-?[0-9]{1,9})\s{0,5}(?:/\s{0,5}([0-9]{1,9}))?(?![0-9.,])")

NAME, LINE, TEXT = 200, 1_000, 20_000
MAX_LINES = 200
MAX_LINKS = 1_000
"""Names that the text of one entity links to. Others make no relations."""
_SHOWN_LINKS = 3


class EntityFile:
    """The entity of one file, with references by name.

    `leftover` contains the texts that no field takes, and `warnings` the messages about the file.
    `links` has the first sentence that links to each name.
    """

    def __init__(self, kind: EntityKind, stem: str, source: Document) -> None:
        self.kind: EntityKind = kind
        self.stem = stem
        self.warnings: list[str] = []
        self.leftover: list[str] = []
        self.links: dict[str, str] = {}
        self._meta = meta = self._normalise_names(source.meta)
        if source.broken:
            self.warnings.append(f"the front matter can't be read: {source.broken}")
        parts = sections(source.body, lambda title: _field(title) is not None)
        heading = parts[1].title if len(parts) > 1 and not parts[0].text else ""
        is_name = bool(heading) and parts[1].level == 1
        name = self._short(meta.get("name"), NAME, "name")
        self.name = name or (heading[:NAME] if is_name else "") or _spelled(stem)
        if is_name and heading.casefold() == self.name.casefold():
            parts = [Section("", 0, parts[1].text), *parts[2:]]
        self.location = link_target(_to_text(meta.get("location")))
        self.audience = meta.get("audience", "public")
        self.secrets = _to_texts(meta.get("secret")) + _to_texts(meta.get("secrets"))
        self.fields: dict[str, Any] = {
            "kind": kind,
            "name": self.name,
            "aliases": [
                self._short(each, NAME, "aliases") for each in _to_texts(meta.get("aliases"))
            ],
            "locked": _to_texts(meta.get("locked")),
            "attributes": self._attributes(),
        }
        for name in ("status", "role", "disposition", "wants"):
            if meta.get(name) is not None:
                self.fields[name] = self._short(meta[name], LINE, name)
        self._read_body(parts)

    def _normalise_names(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        """Return front matter with the names of `_HELD` in their own spelling."""
        found: dict[str, Any] = {}
        for key, value in meta.items():
            plain = _plain(key)
            name = _OTHER_HELD.get(plain, plain if plain in _HELD else key)
            if name not in found:
                found[name] = value
            elif found[name] != value:
                self._keep_fact(key, value, "it is there more than once")
        return found

    def _keep_fact(self, key: str, value: Any, why: str) -> None:
        self.leftover.append(f"{key}: {_to_text(value)}")
        self.warnings.append(f"`{key[:NAME]}` is kept as a fact: {why}")

    def _read_body(self, parts: Iterable[Section]) -> None:
        """Read sections by their headings. Sections inside a secret are secret."""
        told = {
            name: [text] if (text := _to_text(self._meta.get(name))) else []
            for name in ("description", "personality")
        }
        voice = [_to_text(each) for each in _list_values(self._meta.get("voice"))]
        secret_level = 0
        described: list[str] = []
        for part in parts:
            field = _field(part.title)
            if secret_level and part.level > secret_level:
                self.secrets += _read_lines(f"# {part.title}\n{part.text}")
                continue
            secret_level = part.level if field == "secret" else 0
            if field == "personality":
                self._read_personality(part.text, told["personality"], voice)
            elif field == "voice":
                voice += _read_lines(part.text)
            elif field == "secret":
                self.secrets += _read_lines(part.text)
            elif field == "wants" and "wants" not in self.fields:
                self.fields["wants"] = self._short(" ".join(_read_lines(part.text)), LINE, "wants")
            elif part.title:
                described.append(f"{'#' * part.level} {part.title}\n{part.text}".strip())
            else:
                described.append(part.text)
        text = "\n\n".join(filter(None, described))
        self._read_links(text)
        told["description"].append(unlinked(text))
        for name, texts in told.items():
            self.fields[name] = self._cut("\n\n".join(filter(None, texts)), TEXT, name)
        self.fields["voice"] = self._lines(voice)

    def _read_links(self, text: str) -> None:
        found: dict[str, str] = {}
        for sentence in _SENTENCE_END.split(text):
            if targets := link_targets(sentence):
                note = unlinked(sentence).strip()[:LINE]
                for target in targets:
                    found.setdefault(target, note)
        names = list(found)
        self.links = {name: found[name] for name in names[:MAX_LINKS]}
        if left_out := names[MAX_LINKS:]:
            shown = ", ".join(f"[[{name[:NAME]}]]" for name in left_out[:_SHOWN_LINKS])
            more = " and others" if len(left_out) > _SHOWN_LINKS else ""
            self.warnings.append(
                f"it links to more than {MAX_LINKS:,} names: {len(left_out):,} of them make no "
                f"relations: {shown}{more}"
            )

    def _read_personality(self, text: str, told: list[str], voice: list[str]) -> None:
        """List entries, rows and text in brackets become the voice, other text the personality."""
        for group in groups(text):
            told += [unlinked(each) for each in group.headings[-1:]]
            for bullet in group.bullets:
                if bullet.is_listed:
                    voice += _said([bullet])
                    continue
                said = unlinked(bullet.text)
                for bracket in _IN_BRACKETS.finditer(said):
                    voice += [each.strip() for each in bracket[1].split(";") if each.strip()]
                told.append(_IN_BRACKETS.sub("", said).strip())

    def _attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, name in self._attribute_names().items():
            value = _unwrapped(self._meta[key])
            if not 0 < len(name) <= NAME:
                self._keep_fact(key[:NAME], value, f"its name has 0 or more than {NAME} characters")
            elif name in found and found[name] != value:
                self._keep_fact(key, value, f"`{name}` is there more than once")
            else:
                found[name] = value
        for key in _MEASURES & found.keys():
            self._read_measure(found, key)
        self.warnings += [
            f"`{key}` is kept among the attributes" for key in found if key not in ATTRIBUTES
        ]
        self._read_values(found)
        kept = self._meta.get("attributes")
        if isinstance(kept, dict):
            members = cast("dict[str, Any]", kept).items()
            found |= {key[:NAME]: value for key, value in members if key}
        elif kept is not None:
            self.leftover.append(f"attributes: {_to_text(kept)}")
        return found

    def _read_values(self, found: dict[str, Any]) -> None:
        """Make lists and numbers of texts."""
        for key in ("conditions", "inventory"):
            if isinstance(found.get(key), str):
                found[key] = [each.strip() for each in found[key].split(",") if each.strip()]
        for key in ("hp", "hp_max", "gold"):
            if isinstance(found.get(key), str):
                self._read_number(found, key)

    def _attribute_names(self) -> dict[str, str]:
        """Return the attributes that front matter becomes, by its own names."""
        plain_keys = {key: _plain(key) for key in self._meta if key not in _HELD}
        plains = set(plain_keys.values())
        names = dict(_OTHER_ATTRIBUTES)
        if plains & _CURRENT_HP and not plains & {"hp_max", *_MAX_HP}:
            # With a current value in another member, `hp` is the maximum.
            names["hp"] = "hp_max"
        return {
            key: names.get(plain, plain if plain in ATTRIBUTES else key)
            for key, plain in plain_keys.items()
        }

    def _read_measure(self, found: dict[str, Any], key: str) -> None:
        """Make two attributes of `{current: 9, max: 13}`. Its other members are attributes, too."""
        value = found[key]
        if not isinstance(value, dict):
            return
        del found[key]
        for member, each in cast("dict[str, Any]", value).items():
            part = _plain(member)
            name = key if part in {"current", "now", "value"} else f"{key}_{part}"
            name = f"{key}_max" if part in {"max", "maximum", "total"} else name
            if name in found and found[name] != each:
                self._keep_fact(f"{key}.{member}", each, f"`{name}` is there more than once")
            else:
                found[name] = each

    def _read_number(self, found: dict[str, Any], key: str) -> None:
        """Make a number of `13/13` or `15 gp`, else a fact."""
        points = _POINTS.match(found[key])
        if points is None:
            self.leftover.append(f"{key}: {found.pop(key)}")
            self.warnings.append(f"`{key}` is no number: it is kept as a fact")
            return
        whole, maximum = found[key], points[2]
        found[key] = int(points[1])
        is_held = (
            key == "hp" and maximum and found.setdefault("hp_max", int(maximum)) == int(maximum)
        )
        if (maximum and not is_held) or not _UNIT.fullmatch(whole[points.end() :]):
            self._keep_fact(key, whole, f"as a number it is {found[key]:,}")

    def _short(self, value: Any, limit: int, where: str) -> str:
        return self._cut(unlinked(_to_text(value)).strip(), limit, where)

    def _cut(self, text: str, limit: int, where: str) -> str:
        if len(text) > limit:
            self.leftover.append(text[limit:])
            self.warnings.append(
                f"`{where}` is longer than {limit:,} characters: the rest is kept as facts"
            )
        return text[:limit]

    def _lines(self, lines: Iterable[str]) -> list[str]:
        found = [self._cut(each, LINE, "voice") for each in lines]
        if len(found) > MAX_LINES:
            self.leftover += found[MAX_LINES:]
            self.warnings.append(f"`voice` has more than {MAX_LINES} lines: the rest are facts")
        return found[:MAX_LINES]


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
    if not _is_read_back(entity, meta, body, ("attributes",)):
        for key in attributes:
            del meta[key]
        meta["attributes"] = entity.attributes
    if not _is_read_back(entity, meta, body, ("description", "personality", "voice")):
        meta |= {
            "description": entity.description,
            "personality": entity.personality,
            "voice": entity.voice,
        }
        body = ""
    return document(meta, body)


def _is_read_back(entity: Entity, meta: Mapping[str, Any], body: str, names: Iterable[str]) -> bool:
    """Whether a file with this front matter and body gives the entity's fields again."""
    text = document(dict(meta), body).decode()
    read = EntityFile(entity.kind, "", read_document(text)).fields
    return all(
        read.get(name, type(value)()) == value
        for name in names
        for value in [getattr(entity, name)]
    )


def _read_lines(text: str) -> list[str]:
    """Return the entries, paragraphs and rows of a text, after the heading that they are under."""
    found: list[str] = []
    for group in groups(text):
        heading = "".join(map(unlinked, group.headings[-1:]))
        lines = _said(group.bullets)
        found += [f"{heading}: {line}" for line in lines] if heading else lines
        if heading and not lines:
            found.append(heading)
    return found


def _field(title: str) -> str | None:
    """Return the field that a heading names."""
    return _FIELDS.get(title.casefold().replace("&", "and").strip(" *_:"))


def _plain(key: str) -> str:
    """Return a name of front matter in one spelling."""
    return "_".join(key.casefold().replace("-", " ").replace("_", " ").split())


def _list_values(value: Any) -> list[Any]:
    if isinstance(value, list):
        many: list[Any] = cast("Any", value)
        return many
    return [] if value is None or value == "" else [value]


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


def _to_text(value: Any) -> str:
    plain: Any = value if isinstance(value, str) else _unwrapped(value)
    if isinstance(plain, list):
        return ", ".join(map(_to_text, cast("Any", plain)))
    if isinstance(plain, dict):
        members = cast("dict[str, Any]", plain).items()
        return ", ".join(f"{name}: {_to_text(each)}" for name, each in members)
    return "" if plain is None else str(plain)


def _to_texts(value: Any) -> list[str]:
    """A list of texts, be it one, several, or none."""
    plain: Any = value if isinstance(value, str) else _unwrapped(value)
    many: list[Any] = cast("Any", plain) if isinstance(plain, list) else [plain]
    return [text for each in many if (text := _to_text(each).strip())]


def _spelled(stem: str) -> str:
    """A file's name as a person's or place's: `the-salty-sigil` is The Salty Sigil."""
    words = stem.replace("_", " ").replace("-", " ").split()
    return " ".join(word[:1].upper() + word[1:] for word in words)[:NAME] or "Unnamed"
