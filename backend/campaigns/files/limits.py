"""How much the zip of a campaign may hold."""

from __future__ import annotations

from backend.characters.cards.limits import Limit

ZIP_ENTRIES = Limit("archive_entries", 5_000, "archive entries")
MAX_FILES = 4_900
"""Files of entities in a vault: with its lists, it can be imported again."""
