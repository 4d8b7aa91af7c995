"""Values of the wrong type, bent into the right one with a warning rather than refused."""

from __future__ import annotations

import json
from typing import Any, cast

from backend.characters.cards.limits import LIST_ITEMS, SHORT_TEXT, TAG, TAGS, TEXT, Limit

MAX_SECONDS = 2**53 - 1
"""The largest integer that every JSON reader takes exactly."""


class Coercion:
    """Coerces the fields of one card and collects what was done, once for each field."""

    def __init__(self) -> None:
        self._warnings: dict[str, None] = {}

    @property
    def warnings(self) -> list[str]:
        """The warnings so far, in order, none twice."""
        return list(self._warnings)

    def warn(self, sentence: str) -> None:
        """Note a sentence for the person who imports."""
        self._warnings[sentence] = None

    def text(self, field: str, value: object, limit: Limit = TEXT) -> str:
        """Any value as text; null is empty.

        Raises:
            CardLimitError: More characters than `limit` allows. Never cut silently.
        """
        text = value if isinstance(value, str) else self._as_text(field, value)
        limit.check(len(text), f"`{field}`")
        return text

    def _as_text(self, field: str, value: object) -> str:
        match value:
            case None:
                self.warn(f"`{field}` was null and is now empty.")
                return ""
            case list() if all(isinstance(item, str) for item in cast("list[object]", value)):
                self.warn(f"`{field}` was a list and is now its lines.")
                return "\n".join(cast("list[str]", value))
            case _:
                self.warn(f"`{field}` was no text and is now the text of its value.")
                return json.dumps(value, ensure_ascii=False)

    def texts(self, field: str, value: object, limit: Limit = TEXT) -> list[str]:
        """Any value as a list of texts; a single text is a list of one, null an empty list."""
        items = self._as_list(field, value)
        LIST_ITEMS.check(len(items), f"`{field}`")
        return [self.text(field, item, limit) for item in items if item is not None]

    def _as_list(self, field: str, value: object) -> list[object]:
        match value:
            case list():
                return cast("list[object]", value)
            case None:
                self.warn(f"`{field}` was null and is now an empty list.")
                return []
            case dict():
                self.warn(f"`{field}` was an object and is now the list of its values.")
                return list(cast("dict[str, object]", value).values())
            case "":
                return []
            case _:
                self.warn(f"`{field}` was a single value and is now a list.")
                return [value]

    def tags(self, field: str, value: object) -> list[str]:
        """A list of tags, none blank; a single text is split at its commas."""
        if isinstance(value, str) and value.strip():
            self.warn(f"`{field}` was a single text and was split at its commas.")
            value = value.split(",")
        tags = [tag.strip() for tag in self.texts(field, value, SHORT_TEXT) if tag.strip()]
        TAGS.check(len(tags), f"`{field}`")
        for tag in tags:
            TAG.check(len(tag), f"A tag of `{field}`")
        return tags

    def mapping(self, field: str, value: object) -> dict[str, Any]:
        """An object; anything else is an empty one (PHP writes an empty object as a list)."""
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        if value != []:
            self.warn(f"`{field}` was no object and was left out.")
        return {}

    def seconds(self, field: str, value: object) -> int:
        """A point in time in whole seconds; 0, which means unknown, for what is none."""
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                seconds = int(float(value))
            except (ValueError, OverflowError):
                seconds = -1
            if 0 <= seconds <= MAX_SECONDS:
                return seconds
        if value is not None:
            self.warn(f"`{field}` was no time in seconds and was left out.")
        return 0
