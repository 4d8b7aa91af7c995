"""How much a card may hold. Every figure is exact: it is allowed, and one more is refused."""

from __future__ import annotations

from dataclasses import dataclass

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
