"""Input, result and limits of macro expansion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

from backend.errors import ValidationError

MAX_CHARACTERS: Final = 1_000_000
"""Characters of one field: its text and all texts that macros read and insert."""

MAX_MACROS: Final = 10_000
"""Macros expanded for one field, including those in inserted fields."""

MAX_DEPTH: Final = 32
"""Levels of nesting: arguments, conditionals, and fields within fields."""

MAX_REQUEST_CHARACTERS: Final = 2 * MAX_CHARACTERS
"""Characters of all fields of one request, including the search for macros.

A prompt of 150,000 tokens has some 700,000 characters. Most of them are history, in which no macros
are expanded. Read once and written once, even a window full of macros stays below the limit.
"""

MAX_REQUEST_MACROS: Final = 2 * MAX_MACROS
"""Macros expanded for all fields of one request."""

MAX_DICE: Final = 1_000
MAX_SIDES: Final = 1_000_000


class MacroLimitError(ValidationError):
    """The macros of a field exceed a limit.

    `place` is the field. `scope` is `request` if all fields together reached the limit, else
    `field`.
    """

    status, slug, title = 422, "macro-limit", "Macro limit exceeded"

    def __init__(
        self, *, place: str, limit: str, most: int, scope: Literal["field", "request"] = "field"
    ) -> None:
        subject = (
            f"The macros in {place}"
            if scope == "field"
            else f"Together with the fields before it, the macros in {place}"
        )
        super().__init__(
            f"{subject} need more than {most:,} {limit}. Shorten or simplify them.",
            extra={"place": place, "limit": limit, "most": most, "scope": scope},
        )
        self.place, self.limit, self.most = place, limit, most


class MacroBudget:
    """Limits shared by all fields of one request.

    Every `expand` of a request reserves from the same budget before it does the work. If a field
    fails, its share stays spent. Not thread-safe.
    """

    __slots__ = ("_characters", "_macros", "_most_characters", "_most_macros", "_whole", "ignored")

    def __init__(
        self,
        *,
        characters: int = MAX_REQUEST_CHARACTERS,
        macros: int = MAX_REQUEST_MACROS,
        whole: MacroBudget | None = None,
    ) -> None:
        self._most_characters, self._most_macros = characters, macros
        self._characters = self._macros = 0
        self._whole = whole
        self.ignored: set[str] = whole.ignored if whole else set()
        """Names of macros that were expanded to nothing, as they mean nothing here."""

    @property
    def characters(self) -> int:
        return self._characters

    @property
    def macros(self) -> int:
        return self._macros

    def share(self, *, characters: int, macros: int) -> MacroBudget:
        """Return a smaller budget that also spends from this one."""
        return MacroBudget(characters=characters, macros=macros, whole=self)

    def spend(self, *, characters: int = 0, macros: int = 0, place: str) -> None:
        """Reserve the cost of work. Raises `MacroLimitError` if a limit is exceeded."""
        self._characters += characters
        self._macros += macros
        if self._characters > self._most_characters:
            raise self._error("characters", self._most_characters, place)
        if self._macros > self._most_macros:
            raise self._error("macros", self._most_macros, place)
        if self._whole is not None:
            self._whole.spend(characters=characters, macros=macros, place=place)

    def _error(self, limit: str, most: int, place: str) -> MacroLimitError:
        return MacroLimitError(place=place, limit=limit, most=most, scope="request")


@dataclass(frozen=True, slots=True, kw_only=True)
class MacroContext:
    """Values of the macros of one prompt. Field names are the macro names in snake case.

    There are three kinds of values. Only the first may contain macros itself:

    - stored fields of the card, the persona and the author's note, which are expanded when they are
      inserted
    - texts inserted unchanged: names, messages, the summary and the outlets, after their lore was
      expanded
    - numbers

    Args:
        original: The text that the expanded field replaces. None inserts nothing.
        now: Time in the user's zone. `{{time}}` uses it unchanged.
        idle: Time since the user's last message, or zero.
        chat_seed: Constant for the chat. Used by `{{pick}}`.
        message_seed: Constant for all attempts at one reply, so that a regenerated or previewed
            prompt is the same. Used by `{{random}}` and `{{roll}}`.
        max_prompt: Maximum tokens of a prompt. `max_response` is that of a reply.
        greetings: The first message, then the alternate greetings.
        group: The names of all characters. Empty if there is only one.
        group_not_muted: The names of those that are there and not muted, if there is a group.
        not_char: The names of all others that are there and not muted, and of the persona. Empty if
            that is only the persona.
        last_message_id: Index of the latest message from 0, or empty.
        last_swipe_id: Number of swipes of that message.
        current_swipe_id: Number of its selected swipe, from 1.
        last_generation_type: Kind of the turn that made the previous reply: `normal`, `swipe`, ...
    """

    user: str
    char: str
    now: datetime
    chat_seed: int
    message_seed: int
    model: str
    max_prompt: int

    persona: str = ""
    description: str = ""
    personality: str = ""
    scenario: str = ""
    mes_examples: str = ""
    char_prompt: str = ""
    char_instruction: str = ""
    char_depth_prompt: str = ""
    creator_notes: str = ""
    greetings: Sequence[str] = ()
    original: str | None = None
    authors_note: str = ""

    max_response: int = 0
    group: str = ""
    group_not_muted: str = ""
    not_char: str = ""
    last_message_id: str = ""
    last_swipe_id: str = ""
    current_swipe_id: str = ""
    last_generation_type: str = ""
    char_version: str = ""
    last_message: str = ""
    last_user_message: str = ""
    last_char_message: str = ""
    summary: str = ""
    outlets: Mapping[str, str] = field(default_factory=dict[str, str])

    idle: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Variables:
    """The variables of a chat (`local`) and of a user (`global_`), by name. Immutable.

    Names are case-sensitive. Missing variables are empty.
    """

    local: Mapping[str, str] = field(default_factory=dict[str, str])
    global_: Mapping[str, str] = field(default_factory=dict[str, str])


class Expansion(NamedTuple):
    """The expanded text and the variables after it, the same object if none was written."""

    text: str
    variables: Variables
