"""A character card as Talekeeper uses it, whatever version and file it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast, get_args

import msgspec

from backend.characters.errors import CardLimitError
from backend.errors import TooLargeError

MEGABYTE = 1024 * 1024

MAX_FILE_BYTES = 20 * MEGABYTE


@dataclass(frozen=True, slots=True)
class Limit:
    """A count that may not be exceeded. `name` is for clients, `unit` for people."""

    name: str
    allowed: int
    unit: str

    def check(self, found: int, where: str = "The file") -> None:
        """Raise `CardLimitError` when `found` is over the limit; `where` opens the sentence."""
        if found > self.allowed:
            raise CardLimitError(
                f"{where} has {found:,} {self.unit}; {self.allowed:,} are allowed.",
                limit=self.name,
                allowed=self.allowed,
                found=found,
            )


PNG_CHUNKS = Limit("png_chunks", 1_000, "PNG chunks")
INFLATED_TEXT = Limit("inflated_text", 8 * MEGABYTE, "or more bytes of text once inflated")
"""All compressed text of a PNG together."""

JSON_BYTES = Limit("json_bytes", MAX_FILE_BYTES, "bytes of JSON")
JSON_DEPTH = Limit("json_depth", 64, "or more levels of nesting")
JSON_VALUES = Limit("json_values", 1_000_000, "or more values")
"""20 MB of `[[],[],...]` would become half a gigabyte of objects."""

YAML_BYTES = Limit("yaml_bytes", MEGABYTE, "bytes of YAML")
"""YAML takes some hundred times as long to read as JSON."""
YAML_VALUES = Limit("yaml_values", 100_000, "or more values")
"""1 MB of `{a,a,...}` would take 400 MB and many seconds. Keys count as well."""
YAML_EXPANDED = Limit("yaml_expanded", 2 * MEGABYTE, "characters or more with its aliases expanded")

ARCHIVE_ENTRIES = Limit("archive_entries", 1_000, "archive entries")
ARCHIVE_BYTES = Limit("archive_bytes", 100 * MEGABYTE, "or more bytes once unpacked")
ARCHIVE_RATIO = Limit("archive_ratio", 100, "times its own size or more once unpacked")
"""Of the whole archive: a single flat picture may well be packed more tightly."""

NAME = Limit("name_characters", 200, "characters")
SHORT_TEXT = Limit("short_text_characters", 2_000, "characters")
TEXT = Limit("text_characters", 200_000, "characters")
LIST_ITEMS = Limit("list_items", 1_000, "items")
TAGS = Limit("tags", 200, "tags")
TAG = Limit("tag_characters", 200, "characters")
"""Tags are in every list of characters."""

CARD_BYTES = Limit("card_bytes", 4 * MEGABYTE, "bytes of JSON without its lorebook")
"""A card is read whole whenever its character speaks."""


def check_file_size(size: int) -> None:
    """Raise `TooLargeError` (413) for an upload of more than `MAX_FILE_BYTES`."""
    if size > MAX_FILE_BYTES:
        raise TooLargeError(
            f"The file has {size:,} bytes; {MAX_FILE_BYTES:,} are allowed.",
            extra={"limit": "file_bytes", "allowed": MAX_FILE_BYTES, "found": size},
        )


Spec = Literal["v1", "v2", "v3"]
DepthRole = Literal["system", "user", "assistant"]

_ROLES: tuple[DepthRole, ...] = get_args(DepthRole)

DEFAULT_DEPTH = 4
MAX_DEPTH = 10_000


class CardAsset(msgspec.Struct, kw_only=True):
    """What the card says about a picture or sound of the character's.

    `uri` is `embeded://path` (the format spells it so) for a file in the CHARX archive,
    `ccdefault:` for the card's own picture, a `data:` URI, or an address, which is never fetched.
    """

    type: str = ""
    uri: str = ""
    name: str = ""
    ext: str = ""


@dataclass(frozen=True, slots=True)
class DepthPrompt:
    """A text that goes into the history `depth` messages above its end."""

    prompt: str
    depth: int = DEFAULT_DEPTH
    role: DepthRole = "system"


class Card(msgspec.Struct, kw_only=True):
    """The fields of Character Card V3; older versions leave the newer ones at their defaults.

    `creation_date` and `modification_date` are seconds since 1970, 0 where unknown.
    `character_book` is the embedded lorebook as it came. Stored cards have none: it is kept as a
    lorebook of its own (`CardBooks`). Those of older versions may have one still.

    Source: https://github.com/kwaroran/character-card-spec-v3 (SPEC_V3.md).
    """

    name: str
    nickname: str = ""
    description: str = ""
    personality: str = ""
    scenario: str = ""
    first_mes: str = ""
    mes_example: str = ""
    creator_notes: str = ""
    creator_notes_multilingual: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    system_prompt: str = ""
    post_history_instructions: str = ""
    alternate_greetings: list[str] = msgspec.field(default_factory=list[str])
    group_only_greetings: list[str] = msgspec.field(default_factory=list[str])
    tags: list[str] = msgspec.field(default_factory=list[str])
    creator: str = ""
    character_version: str = ""
    source: list[str] = msgspec.field(default_factory=list[str])
    creation_date: int = 0
    modification_date: int = 0
    extensions: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    character_book: dict[str, Any] | None = None
    assets: list[CardAsset] = msgspec.field(default_factory=list[CardAsset])

    @property
    def depth_prompt(self) -> DepthPrompt | None:
        """SillyTavern's `extensions.depth_prompt`, with its defaults; None where it says nothing.

        An unusable depth or role falls back to the default: 4, system.
        """
        stored: Any = self.extensions.get("depth_prompt")
        if not isinstance(stored, dict):
            return None
        settings = cast("dict[str, Any]", stored)
        prompt = settings.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            return None
        role = settings.get("role")
        return DepthPrompt(
            prompt,
            depth=_parse_depth(settings.get("depth")),
            role=role if role in _ROLES else "system",
        )


def _parse_depth(value: object) -> int:
    """`value` as a depth: SillyTavern writes numbers, some editors write them as text."""
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        return DEFAULT_DEPTH
    try:
        depth = int(value)
    except (ValueError, OverflowError):
        return DEFAULT_DEPTH
    return depth if 0 <= depth <= MAX_DEPTH else DEFAULT_DEPTH


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that came inside a CHARX archive.

    `media_type` follows from the extension of `path`, not from what is in the file; anything
    that a browser might run is `application/octet-stream`.
    """

    path: str
    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class CardImport:
    """A card and everything else that was read from a file.

    Attributes:
        card: The card, normalised.
        raw: The JSON object as it came, except for lone surrogates, which no text can contain.
            A file of another program is translated first. `writer` takes unknown members from it.
        spec: The version that the file is of.
        is_png: It is a PNG file.
        avatar: The picture: the PNG file itself, or the main icon of a CHARX or JSON card.
            As it came: not checked, not re-encoded.
        assets: Every other file of a CHARX archive, and the main icon too.
        warnings: Sentences about what had to be bent, for the person who imports.
    """

    card: Card
    raw: dict[str, Any]
    spec: Spec
    is_png: bool = False
    avatar: bytes | None = None
    assets: list[Asset] = field(default_factory=list[Asset])
    warnings: list[str] = field(default_factory=list[str])


MAX_GREETINGS_CHARACTERS: Final = 1_000_000
"""Characters that the greetings of one chat may have together: ten of the longest messages."""

MAX_GREETING_WARNINGS: Final = 10
"""Greetings that an import names one by one."""


def list_greetings(card: Card, *, is_group: bool) -> list[str]:
    """The greetings that a chat opens with, their macros not expanded; blank ones among them."""
    texts = [card.first_mes, *card.alternate_greetings]
    return [*texts, *card.group_only_greetings] if is_group else texts


def check_greetings(card: Card, *, known: Card | None = None, longest: int) -> None:
    """Raise `CardLimitError` for a greeting that no chat could open with.

    Those of `known` pass: an imported card stays editable. `longest` is a message's limit, in
    characters.
    """
    limit = Limit("greeting_characters", longest, "characters")
    before = frozenset(list_greetings(known, is_group=True)) if known else frozenset[str]()
    for name, text in _iterate_greetings(card):
        if text not in before:
            limit.check(len(text), name)


def describe_long_greetings(card: Card, *, longest: int) -> list[str]:
    """Sentences about greetings that keep a chat from being opened, for the person who imports."""
    too_long = [(name, text) for name, text in _iterate_greetings(card) if len(text) > longest]
    warnings = [
        f"{name} has {len(text):,} characters; a message may have {longest:,}. "
        "Shorten it before you open a chat."
        for name, text in too_long[:MAX_GREETING_WARNINGS]
    ]
    if (more := len(too_long) - MAX_GREETING_WARNINGS) > 0:
        warnings.append(f"{more} more greetings are too long.")
    together = sum(map(len, list_greetings(card, is_group=True)))
    if together > MAX_GREETINGS_CHARACTERS:
        warnings.append(
            f"The greetings have {together:,} characters together; a chat opens with "
            f"{MAX_GREETINGS_CHARACTERS:,} at most. Shorten or delete some before you open a chat."
        )
    return warnings


def _iterate_greetings(card: Card) -> Iterator[tuple[str, str]]:
    """Each greeting, and where it is in the card."""
    yield "`first_mes`", card.first_mes
    for name, texts in (
        ("alternate_greetings", card.alternate_greetings),
        ("group_only_greetings", card.group_only_greetings),
    ):
        for number, text in enumerate(texts, start=1):
            yield f"`{name}` {number}", text
