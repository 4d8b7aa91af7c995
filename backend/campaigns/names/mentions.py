"""Names found in a text: which entities the story speaks of."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from ahocorasick_rs import AhoCorasick, MatchKind

from backend.core.text_forms import normalize
from backend.lorebooks.activation.keys import is_whole

MAX_TEXT = 50_000
"""Characters of a text that are read."""


class NameIndex:
    """The names and aliases of a campaign's entities, found in one pass over a text."""

    def __init__(self, names: Iterable[tuple[UUID, str]]) -> None:
        """Take pairs of an entity and a name or alias of it."""
        by_name: dict[str, list[UUID]] = {}
        for entity_id, name in names:
            if folded := _folded(name).strip():
                by_name.setdefault(folded, []).append(entity_id)
        self._ids = list(by_name.values())
        self._automaton = AhoCorasick(
            by_name.keys(), matchkind=MatchKind.LeftmostLongest, store_patterns=False
        )

    def find(self, text: str) -> list[UUID]:
        """Entities named in `text` as whole words, in the order of their first mention.

        A possessive counts ("Holt's", "Holts"). In scripts without spaces a name counts wherever it
        stands.
        """
        folded = _folded(text[:MAX_TEXT])
        found: dict[UUID, None] = {}
        for number, start, end in self._automaton.find_matches_as_indexes(folded):
            stop = end + 1 if folded[end : end + 1] == "s" else end
            if is_whole(folded, start, end) or is_whole(folded, start, stop):
                found.update(dict.fromkeys(self._ids[number]))
        return list(found)


def slug(name: str) -> str:
    """A name as one word for a status line, and as a file name: `the-salty-sigil`."""
    words = "".join(char if char.isalnum() else " " for char in normalize("NFC", name)).split()
    return "-".join(words).lower() or "unnamed"


def _folded(text: str) -> str:
    return normalize("NFC", text).casefold()
