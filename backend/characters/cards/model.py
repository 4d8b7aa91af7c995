"""The model of a character card, independent of its version and file, and the limits of cards."""

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
    """A limit of a count. `name` is for clients, `unit` for people."""

    name: str
    allowed: int
    unit: str

    def check(self, found: int, where: str = "The file") -> None:
        """Raise `CardLimitError` if `found` exceeds the limit. `where` begins the sentence."""
        if found > self.allowed:
            raise CardLimitError(
                f"{where} has {found:,} {self.unit}; {self.allowed:,} are allowed.",
                limit=self.name,
                allowed=self.allowed,
                found=found,
            )


PNG_CHUNKS = Limit("png_chunks", 1_000, "PNG chunks")
INFLATED_TEXT = Limit("inflated_text", 8 * MEGABYTE, "or more bytes of text once inflated")
"""The limit of all compressed texts of a PNG together."""

JSON_BYTES = Limit("json_bytes", MAX_FILE_BYTES, "bytes of JSON")
JSON_DEPTH = Limit("json_depth", 64, "or more levels of nesting")
JSON_VALUES = Limit("json_values", 1_000_000, "or more values")
"""Without it, 20 MB of `[[],[],...]` would take half a gigabyte."""

YAML_BYTES = Limit("yaml_bytes", MEGABYTE, "bytes of YAML")
"""YAML takes about a hundred times as long to read as JSON."""
YAML_VALUES = Limit("yaml_values", 100_000, "or more values")
"""Without it, 1 MB of `{a,a,...}` would take 400 MB and many seconds. Keys count as well."""
YAML_EXPANDED = Limit("yaml_expanded", 2 * MEGABYTE, "characters or more with its aliases expanded")

ARCHIVE_ENTRIES = Limit("archive_entries", 1_000, "archive entries")
ARCHIVE_BYTES = Limit("archive_bytes", 100 * MEGABYTE, "or more bytes once unpacked")
ARCHIVE_RATIO = Limit("archive_ratio", 100, "times its own size or more once unpacked")
"""The ratio of the whole archive, because a single flat picture can compress further."""

NAME = Limit("name_characters", 200, "characters")
SHORT_TEXT = Limit("short_text_characters", 2_000, "characters")
TEXT = Limit("text_characters", 200_000, "characters")
LIST_ITEMS = Limit("list_items", 1_000, "items")
TAGS = Limit("tags", 200, "tags")
TAG = Limit("tag_characters", 200, "characters")
"""Short, because every list of characters contains tags."""

CARD_BYTES = Limit("card_bytes", 4 * MEGABYTE, "bytes of JSON without its lorebook")
"""Small, because a card is read whole whenever its character speaks."""


def check_file_size(size: int) -> None:
    """Raise `TooLargeError` (413) if an upload has more than `MAX_FILE_BYTES`."""
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
    """The card's entry about a picture or sound of the character.

    `uri` is `embeded://path` (the spelling of the format) for a file in the CHARX archive,
    `ccdefault:` for the card's own picture, a `data:` URI, or an address, which is never fetched.
    """

    type: str = ""
    uri: str = ""
    name: str = ""
    ext: str = ""


@dataclass(frozen=True, slots=True)
class DepthPrompt:
    """A text placed in the history, `depth` messages above its end."""

    prompt: str
    depth: int = DEFAULT_DEPTH
    role: DepthRole = "system"


class Card(msgspec.Struct, kw_only=True):
    """The fields of Character Card V3. Older versions leave the newer fields at their defaults.

    `creation_date` and `modification_date` are seconds since 1970, or 0 if unknown.
    `character_book` is the embedded lorebook as imported. Stored cards have none, because it is
    stored as a separate lorebook (`CardBooks`). Cards stored by older versions may still have one.

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
    def remembers_chats(self) -> bool:
        """True if the character keeps its memories: `extensions.talekeeper.keeps_memories`."""
        own: Any = self.extensions.get("talekeeper")
        return isinstance(own, dict) and cast("dict[str, Any]", own).get("keeps_memories") is True

    @property
    def talkativeness(self) -> float | None:
        """SillyTavern's `extensions.talkativeness` from 0 to 1, or None if it is unusable.

        SillyTavern writes text, and other programs write numbers.
        """
        stored: Any = self.extensions.get("talkativeness")
        if not isinstance(stored, int | float | str) or isinstance(stored, bool):
            return None
        try:
            value = float(stored)
        except (ValueError, OverflowError):
            return None
        return value if 0 <= value <= 1 else None

    @property
    def depth_prompt(self) -> DepthPrompt | None:
        """SillyTavern's `extensions.depth_prompt`, or None if it has no text.

        An unusable depth or role is replaced by the default: 4, system.
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
    """Parse a depth. SillyTavern writes numbers, and some editors write text."""
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        return DEFAULT_DEPTH
    try:
        depth = int(value)
    except (ValueError, OverflowError):
        return DEFAULT_DEPTH
    return depth if 0 <= depth <= MAX_DEPTH else DEFAULT_DEPTH


@dataclass(frozen=True, slots=True)
class Asset:
    """A file from a CHARX archive.

    `media_type` follows from the extension of `path`, not from the content. It is
    `application/octet-stream` for anything that a browser might run.
    """

    path: str
    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class CardImport:
    """A card and all other data read from a file.

    Attributes:
        card: The card, normalised.
        raw: The JSON object of the file, with lone surrogates replaced. A file of another program
            is translated first. `writer` takes unknown members from it.
        spec: The version of the card.
        is_png: The file is a PNG.
        avatar: The picture: the PNG file itself, or the main icon of a CHARX or JSON card. It is
            not checked and not encoded again.
        assets: All files of a CHARX archive except the card, including the main icon.
        warnings: Sentences for the user about data that was changed or left out.
    """

    card: Card
    raw: dict[str, Any]
    spec: Spec
    is_png: bool = False
    avatar: bytes | None = None
    assets: list[Asset] = field(default_factory=list[Asset])
    warnings: list[str] = field(default_factory=list[str])


MAX_GREETINGS_CHARACTERS: Final = 1_000_000
"""Limit of the greetings of one chat together: ten of the longest messages."""

MAX_GREETING_WARNINGS: Final = 10
"""Limit of greetings that an import names."""


def list_greetings(card: Card, *, is_group: bool) -> list[str]:
    """Return the greetings that a chat opens with, even blank ones. Macros are not expanded.

    In a group, those for groups come first.
    """
    texts = [card.first_mes, *card.alternate_greetings]
    return [*card.group_only_greetings, *texts] if is_group else texts


def check_greetings(card: Card, *, known: Card | None = None, longest: int) -> None:
    """Raise `CardLimitError` for a greeting that is too long for a chat.

    Greetings of `known` are accepted, so that an imported card can be edited. `longest` is the
    limit of a message in characters.
    """
    limit = Limit("greeting_characters", longest, "characters")
    before = frozenset(list_greetings(known, is_group=True)) if known else frozenset[str]()
    for name, text in _iterate_greetings(card):
        if text not in before:
            limit.check(len(text), name)


def describe_long_greetings(card: Card, *, longest: int) -> list[str]:
    """Return sentences for the user about greetings that prevent a chat from being opened."""
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
    """Yield the place of each greeting in the card, and its text."""
    yield "`first_mes`", card.first_mes
    for name, texts in (
        ("alternate_greetings", card.alternate_greetings),
        ("group_only_greetings", card.group_only_greetings),
    ):
        for number, text in enumerate(texts, start=1):
            yield f"`{name}` {number}", text
