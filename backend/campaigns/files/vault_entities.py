"""Entities as files of a vault: front matter for short values, the body for texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast
from uuid import UUID

from backend.campaigns.files.markdown import (
    Bullet,
    Document,
    Section,
    get_link_target,
    list_link_targets,
    read_document,
    read_groups,
    remove_links,
    render_document,
    split_sections,
)
from backend.campaigns.files.vault import EntityKind
from backend.campaigns.ledger.items import Entity

_FRONT_MATTER = frozenset(
    {
        "name", "aliases", "status", "role", "disposition", "location", "description",
        "personality", "voice", "wants", "audience", "secret", "secrets", "locked", "attributes",
        "character_id",
    }
)  # fmt: skip
"""Front matter that is not an attribute."""

_OTHER_NAMES = {"alias": "aliases", "goal": "wants", "goals": "wants"}
"""Front matter by other names for it, in the spelling of `_normalize`."""

_ATTRIBUTES = frozenset(
    {
        "class", "level", "race", "species", "background", "hp", "hp_max", "ac", "gold",
        "conditions", "inventory", "abilities", "speed", "xp", "stress", "trauma", "heat", "wanted",
    }
)  # fmt: skip
"""Front matter that becomes an attribute without a warning."""

_OTHER_ATTRIBUTES = {
    **dict.fromkeys(("hp_current", "current_hp", "hit_points"), "hp"),
    **dict.fromkeys(("max_hp", "hp_maximum", "maximum_hp", "max_hit_points"), "hp_max"),
    **dict.fromkeys(("armor_class", "armour_class"), "ac"),
    "gp": "gold",
}
_CURRENT_HP = frozenset({"hp_current", "current_hp"})
_MAX_HP = frozenset(each for each, name in _OTHER_ATTRIBUTES.items() if name == "hp_max")
_MEASURES = frozenset({"hp", "stress"})
"""Attributes that can be an object with a current value and a maximum."""

_FIELDS = {
    **dict.fromkeys(("personality", "personality traits", "traits"), "personality"),
    **dict.fromkeys(("voice", "speech", "speech pattern", "speech patterns"), "voice"),
    **dict.fromkeys(("mannerisms", "voice and mannerisms", "voice and speech"), "voice"),
    **dict.fromkeys(("wants", "goals"), "wants"),
    **dict.fromkeys(("secret", "secrets", "gm notes", "gm only", "dm notes", "dm only"), "secret"),
}
"""Fields by the headings of their texts."""

_IN_BRACKETS = re.compile(r"\[([^\[\]\n]{1,1000})\]")
_SENTENCE_END = re.compile(r"\n|(?<=[.!?])\s")
_UNIT = re.compile(r"\s{0,5}(?:gp|gold|gold pieces|coins?|hp|hit points|points)?\.?", re.IGNORECASE)
_POINTS = re.compile(r"\s{0,5}(-?[0-9]{1,9})\s{0,5}(?:/\s{0,5}([0-9]{1,9}))?(?![0-9.,])")

NAME, LINE, TEXT = 200, 1_000, 20_000
MAX_LINES = 200
MAX_LINKS = 1_000
"""Maximum number of links in the text of one entity that become relations."""
_SHOWN_LINKS = 3


class EntityFile:
    """The entity of one file, with references by name.

    `leftover` has texts that fit in no field, `links` the first sentence with each link.
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
        parts = split_sections(source.body, lambda title: _find_field(title) is not None)
        heading = parts[1].title if len(parts) > 1 and not parts[0].text else ""
        is_name = bool(heading) and parts[1].level == 1
        name = self._short(meta.get("name"), NAME, "name")
        self.name = name or (heading[:NAME] if is_name else "") or _make_name(stem)
        if is_name and heading.casefold() == self.name.casefold():
            parts = [Section("", 0, parts[1].text), *parts[2:]]
        self.location = get_link_target(_to_text(meta.get("location")))
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
        self._read_card(meta.get("character_id"))
        self._read_body(parts)

    def _read_card(self, value: Any) -> None:
        if value is None:
            return
        try:
            self.fields["character_id"] = UUID(_to_text(value))
        except ValueError:
            self._keep_fact("character_id", value, "it is not the id of a character")

    def _normalise_names(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        """Return front matter with the names of `_FRONT_MATTER` in their own spelling."""
        found: dict[str, Any] = {}
        for key, value in meta.items():
            plain = _normalize(key)
            name = _OTHER_NAMES.get(plain, plain if plain in _FRONT_MATTER else key)
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
        texts = {
            name: [text] if (text := _to_text(self._meta.get(name))) else []
            for name in ("description", "personality")
        }
        voice = [_to_text(each) for each in _list_values(self._meta.get("voice"))]
        secret_level = 0
        described: list[str] = []
        for part in parts:
            field = _find_field(part.title)
            if secret_level and part.level > secret_level:
                self.secrets += _read_lines(f"# {part.title}\n{part.text}")
                continue
            secret_level = part.level if field == "secret" else 0
            if field == "personality":
                self._read_personality(part.text, texts["personality"], voice)
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
        texts["description"].append(remove_links(text))
        for name, found in texts.items():
            self.fields[name] = self._cut("\n\n".join(filter(None, found)), TEXT, name)
        self.fields["voice"] = self._lines(voice)

    def _read_links(self, text: str) -> None:
        found: dict[str, str] = {}
        for sentence in _SENTENCE_END.split(text):
            if targets := list_link_targets(sentence):
                note = remove_links(sentence).strip()[:LINE]
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

    def _read_personality(self, text: str, personality: list[str], voice: list[str]) -> None:
        """List entries, rows and text in brackets become the voice, other text the personality."""
        for group in read_groups(text):
            personality += [remove_links(each) for each in group.headings[-1:]]
            for bullet in group.bullets:
                if bullet.is_listed:
                    voice += _list_lines([bullet])
                    continue
                said = remove_links(bullet.text)
                for bracket in _IN_BRACKETS.finditer(said):
                    voice += [each.strip() for each in bracket[1].split(";") if each.strip()]
                personality.append(_IN_BRACKETS.sub("", said).strip())

    def _attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, name in self._attribute_names().items():
            value = _strip_links(self._meta[key])
            if not 0 < len(name) <= NAME:
                self._keep_fact(key[:NAME], value, f"its name has 0 or more than {NAME} characters")
            elif name in found and found[name] != value:
                self._keep_fact(key, value, f"`{name}` is there more than once")
            else:
                found[name] = value
        for key in _MEASURES & found.keys():
            self._read_measure(found, key)
        self.warnings += [
            f"`{key}` is kept among the attributes" for key in found if key not in _ATTRIBUTES
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
        """Convert texts to lists and numbers."""
        for key in ("conditions", "inventory"):
            if isinstance(found.get(key), str):
                found[key] = [each.strip() for each in found[key].split(",") if each.strip()]
        for key in ("hp", "hp_max", "gold"):
            if isinstance(found.get(key), str):
                self._read_number(found, key)

    def _attribute_names(self) -> dict[str, str]:
        """Return the names of attributes by the keys of the front matter."""
        plain_keys = {key: _normalize(key) for key in self._meta if key not in _FRONT_MATTER}
        plains = set(plain_keys.values())
        names = dict(_OTHER_ATTRIBUTES)
        if plains & _CURRENT_HP and not plains & {"hp_max", *_MAX_HP}:
            # With a current value in another member, `hp` is the maximum.
            names["hp"] = "hp_max"
        return {
            key: names.get(plain, plain if plain in _ATTRIBUTES else key)
            for key, plain in plain_keys.items()
        }

    def _read_measure(self, found: dict[str, Any], key: str) -> None:
        """Convert `{current: 9, max: 13}` to two attributes, and other members to further ones."""
        value = found[key]
        if not isinstance(value, dict):
            return
        del found[key]
        for member, each in cast("dict[str, Any]", value).items():
            part = _normalize(member)
            name = key if part in {"current", "now", "value"} else f"{key}_{part}"
            name = f"{key}_max" if part in {"max", "maximum", "total"} else name
            if name in found and found[name] != each:
                self._keep_fact(f"{key}.{member}", each, f"`{name}` is there more than once")
            else:
                found[name] = each

    def _read_number(self, found: dict[str, Any], key: str) -> None:
        """Convert `13/13` or `15 gp` to a number, and other texts to facts."""
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
        return self._cut(remove_links(_to_text(value)).strip(), limit, where)

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
    """Return the file of an entity. Texts that Markdown would change are in the front matter.

    `location` is the name of a file, or "". `secrets` are facts for the game master.
    """
    attributes = {k: v for k, v in entity.attributes.items() if k not in _FRONT_MATTER and k != ""}
    meta: dict[str, Any] = {
        "name": entity.name,
        "aliases": entity.aliases,
        "role": entity.role,
        "status": entity.status,
        "disposition": entity.disposition,
        "location": location,
        "wants": entity.wants,
        "character_id": str(entity.character_id or ""),
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
        section = "\n\n".join(filter(None, [entity.personality, "\n".join(voice)]))
        body = f"{body}\n\n## Personality\n{section}".strip()
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
    return render_document(meta, body)


def _is_read_back(entity: Entity, meta: Mapping[str, Any], body: str, names: Iterable[str]) -> bool:
    """True if reading this front matter and body returns the same fields."""
    text = render_document(dict(meta), body).decode()
    read = EntityFile(entity.kind, "", read_document(text)).fields
    return all(
        read.get(name, type(value)()) == value
        for name in names
        for value in [getattr(entity, name)]
    )


def _read_lines(text: str) -> list[str]:
    """Return the entries, paragraphs and rows of a text with their headings as prefixes."""
    found: list[str] = []
    for group in read_groups(text):
        heading = "".join(map(remove_links, group.headings[-1:]))
        lines = _list_lines(group.bullets)
        found += [f"{heading}: {line}" for line in lines] if heading else lines
        if heading and not lines:
            found.append(heading)
    return found


def _find_field(title: str) -> str | None:
    return _FIELDS.get(title.casefold().replace("&", "and").strip(" *_:"))


def _normalize(key: str) -> str:
    """Return a name of front matter in one spelling."""
    return "_".join(key.casefold().replace("-", " ").replace("_", " ").split())


def _list_values(value: Any) -> list[Any]:
    if isinstance(value, list):
        many: list[Any] = cast("Any", value)
        return many
    return [] if value is None or value == "" else [value]


def _list_lines(found: Iterable[Bullet]) -> list[str]:
    """Return the lines of entries and of their inner entries."""
    return [remove_links(line) for bullet in found for line in (bullet.text, *bullet.details)]


def _strip_links(value: Any) -> Any:
    """Return a value without links. In YAML, `[[Name]]` without quotes is a list in a list."""
    match value:
        case [[str() as name]]:
            return name
        case str():
            return remove_links(value)
        case list():
            return [_strip_links(each) for each in cast("Any", value)]
        case _:
            return value


def _to_text(value: Any) -> str:
    plain: Any = value if isinstance(value, str) else _strip_links(value)
    if isinstance(plain, list):
        return ", ".join(map(_to_text, cast("Any", plain)))
    if isinstance(plain, dict):
        members = cast("dict[str, Any]", plain).items()
        return ", ".join(f"{name}: {_to_text(each)}" for name, each in members)
    return "" if plain is None else str(plain)


def _to_texts(value: Any) -> list[str]:
    """Return the texts of a value that is a list, a single text or None."""
    plain: Any = value if isinstance(value, str) else _strip_links(value)
    many: list[Any] = cast("Any", plain) if isinstance(plain, list) else [plain]
    return [text for each in many if (text := _to_text(each).strip())]


def _make_name(stem: str) -> str:
    """Return a file's name as a proper name: `the-salty-sigil` becomes The Salty Sigil."""
    words = stem.replace("_", " ").replace("-", " ").split()
    return " ".join(word[:1].upper() + word[1:] for word in words)[:NAME] or "Unnamed"
