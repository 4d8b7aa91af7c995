"""Values of the wrong type, bent into the right one with a note rather than refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from backend.lorebooks.entries import (
    MAX_CONTENT,
    MAX_KEYS,
    CharacterFilter,
    MatchedField,
    Trigger,
)
from backend.lorebooks.errors import LoreLimitError

T = TypeVar("T")

MAX_KEY = 2_000
MAX_NAME = 500
_FALSE = frozenset({"", "0", "false", "no", "off"})
TRIGGERS: tuple[Trigger, ...] = (
    "normal",
    "continue",
    "impersonate",
    "swipe",
    "regenerate",
    "quiet",
)
MATCHED: dict[MatchedField, str] = {
    "persona_description": "matchPersonaDescription",
    "character_description": "matchCharacterDescription",
    "character_personality": "matchCharacterPersonality",
    "character_depth_prompt": "matchCharacterDepthPrompt",
    "scenario": "matchScenario",
    "creator_notes": "matchCreatorNotes",
}
"""World Info's flags for the fields that keys are looked for in, too."""


class Unusable(ValueError):  # noqa: N818  # a value's state, told to `Notes`; it never gets out
    """A value that can't be bent into what is wanted."""


class Notes:
    """Collects what had to be bent, each sentence once, with how often."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, sentence: str) -> None:
        """Note a sentence, without its full stop, for the person who imports."""
        self._counts[sentence] += 1

    @property
    def sentences(self) -> list[str]:
        """The sentences, in the order of their first occasion."""
        return [
            f"{sentence}." if count == 1 else f"{sentence} ({count:,} times)."
            for sentence, count in self._counts.items()
        ]

    def read(
        self, raw: Mapping[str, Any], name: str, read: Callable[[Any, Notes], T], default: T
    ) -> T:
        """The member `name` of an object, read; absent, null and unusable ones are `default`."""
        value = raw.get(name)
        if value is None:
            return default
        try:
            return read(value, self)
        except Unusable:
            self.add(f"A value of `{name}` could not be used, so the default stands in for it")
            return default


def flag(value: object, _: Notes) -> bool:
    """Anything as true or false."""
    if isinstance(value, str):
        return value.strip().lower() not in _FALSE
    return bool(value)


def number(low: float, high: float) -> Callable[[Any, Notes], float]:
    """A reader of numbers, also of those in texts; one out of bounds is put at the bound."""

    def read(value: object, notes: Notes) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise Unusable
        try:
            found = float(value)
        except (ValueError, OverflowError) as error:
            raise Unusable from error
        if not math.isfinite(found):
            raise Unusable
        bounded = min(max(found, low), high)
        if bounded != found:
            notes.add("A number was out of bounds and was put at the bound")
        return bounded

    return read


def whole(low: int, high: int) -> Callable[[Any, Notes], int]:
    """The same for whole numbers; fractions are rounded."""
    read_number = number(low, high)

    def read(value: object, notes: Notes) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        return round(read_number(value, notes))

    return read


def level(value: object, notes: Notes) -> int:
    """`delayUntilRecursion`: true is the first level."""
    return int(value) if isinstance(value, bool) else whole(0, 1_000)(value, notes)


def chosen(choices: tuple[T, ...]) -> Callable[[Any, Notes], T]:
    """A reader of one of `choices`: by its number, as World Info writes it, or by its name."""
    by_name = {str(choice): choice for choice in choices}

    def read(value: object, notes: Notes) -> T:
        if isinstance(value, str) and value in by_name:
            return by_name[value]
        place = number(-1, 1_000)(value, notes)
        if place != int(place) or not 0 <= place < len(choices):
            raise Unusable
        return choices[int(place)]

    return read


def text(value: object) -> str:
    """Any value as text, of any length."""
    match value:
        case str():
            return value
        case None:
            return ""
        case _:
            return json.dumps(value, ensure_ascii=False)


def name(value: object, notes: Notes) -> str:
    """A title or a label. The end of one that is too long stays in the source alone."""
    found = text(value)
    if len(found) > MAX_NAME:
        notes.add(f"A name was longer than {MAX_NAME} characters and is cut here")
        return found[:MAX_NAME]
    return found


def content(value: object, notes: Notes) -> str:
    """What an entry says. Raises `LoreLimitError`: it is never cut."""
    found = text(value)
    if isinstance(value, list):
        lines = cast("list[object]", value)
        if all(isinstance(line, str) for line in lines):
            notes.add("`content` was a list and is now its lines")
            found = "\n".join(map(str, lines))
    if len(found) > MAX_CONTENT:
        raise LoreLimitError(
            f"An entry has {len(found):,} characters of content; {MAX_CONTENT:,} are allowed. "
            "Split it.",
            limit="lore_content",
            allowed=MAX_CONTENT,
            found=len(found),
        )
    return found


def keys(value: object, notes: Notes, *, blank: bool = False) -> list[str]:
    """Keys: a list of them, or a text with commas between, which patterns may hold too.

    Blank ones are dropped, but for one in a list where `blank` says that it matters: as a secondary
    key it is one that is never said.
    """
    match value:
        case None:
            return []
        case str():
            items: list[object] = list(split_keys(value))
        case list():
            items = cast("list[object]", value)
        case dict():
            items = list(cast("dict[str, object]", value).values())
        case _:
            items = [value]
    texts = list(map(text, items))
    found = [key for key in texts if key.strip()]
    if blank and isinstance(value, list) and len(found) < len(texts):
        found.append("")
    usable = [key for key in found if len(key) <= MAX_KEY][:MAX_KEYS]
    if len(usable) < len(found):
        notes.add(
            f"An entry had more than {MAX_KEYS} keys, or one of more than {MAX_KEY:,} characters: "
            "those are not used"
        )
    return usable


def listed_keys(
    raw: Mapping[str, Any], member: str, notes: Notes, *, blank: bool = False
) -> list[str]:
    """The keys in a member of an object; none where there are none."""
    return keys(raw.get(member), notes, blank=blank)


def split_keys(value: str) -> list[str]:
    """The keys of a text with commas between; a whole text in slashes is one pattern."""
    stripped = value.strip()
    if len(stripped) > 1 and stripped.startswith("/") and stripped.rstrip("gimsuy").endswith("/"):
        return [stripped]
    return [key.strip() for key in value.split(",") if key.strip()]


def names(value: object, notes: Notes) -> list[str]:
    """A list of names, none blank, at most as many as the model takes."""
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    found = [name(item, notes) for item in items if text(item).strip()]
    if len(found) > MAX_KEYS:
        notes.add(f"A list of names had more than {MAX_KEYS}: those behind are not used")
    return found[:MAX_KEYS]


def character_filter(value: object, notes: Notes) -> CharacterFilter:
    """SillyTavern's filter; its names are those of picture files, without their extension."""
    if not isinstance(value, dict):
        raise Unusable
    raw = cast("dict[str, Any]", value)
    listed: list[str] = notes.read(raw, "names", names, list[str]())
    exclude = "isExclude" if "isExclude" in raw else "is_exclude"
    return CharacterFilter(
        is_exclude=notes.read(raw, exclude, flag, default=False),
        names=listed,
        tags=notes.read(raw, "tags", names, list[str]()),
    )


def triggers(value: object, notes: Notes) -> list[Trigger]:
    """The kinds of turn that an entry is for."""
    wanted = names(value, notes)
    known: list[Trigger] = [trigger for trigger in TRIGGERS if trigger in wanted]
    return known if set(wanted) <= set(known) else [*known, "other"]
