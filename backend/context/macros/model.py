"""What macros are expanded with, what comes out, and how far an expansion may go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

from backend.errors import ValidationError

MAX_CHARACTERS: Final = 1_000_000
"""Characters that come together for one field: its text, and all that macros read and bring in."""

MAX_MACROS: Final = 10_000
"""Macros expanded for one field, with those in the fields that they bring in."""

MAX_DEPTH: Final = 32
"""Levels of nesting: arguments, conditionals, and fields within fields."""

MAX_REQUEST_CHARACTERS: Final = 2 * MAX_CHARACTERS
"""The same for all fields of one request together, with reading them for macros.

A prompt of 150,000 tokens has some 700,000 characters, most of them history, in which nothing is
expanded. Read once and written once, even a window full of macros stays below this.
"""

MAX_REQUEST_MACROS: Final = 2 * MAX_MACROS
"""Macros expanded for all fields of one request together."""

MAX_DICE: Final = 1_000
MAX_SIDES: Final = 1_000_000


class MacroLimitError(ValidationError):
    """The macros of a field exceed a limit.

    `place` is the field. `scope` is `field`, or `request` if all fields together reached the limit
    there.
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
    """What the macros of one request may take, over all its fields.

    Every `expand` of a request spends from the same budget, before it does the work. What a field
    spent stays spent when it fails. Not for two threads at once.
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
        """Characters spent."""
        return self._characters

    @property
    def macros(self) -> int:
        """Macros spent."""
        return self._macros

    def share(self, *, characters: int, macros: int) -> MacroBudget:
        """A part that spends from this budget too, and leaves the rest of it to others."""
        return MacroBudget(characters=characters, macros=macros, whole=self)

    def spend(self, *, characters: int = 0, macros: int = 0, place: str) -> None:
        """Take what the work will cost. Raises `MacroLimitError` if that is too much."""
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
    """What the macros of one prompt stand for. Field names are the macros', in snake case.

    Three kinds of text, for only the first may hold macros of its own:

    - the fields of the card, the persona and the author's note, as they are stored: they are
      expanded where they are put in
    - texts that are put in as they are: names, messages, the summary, and the outlets (lore in
      them is expanded before, entry by entry)
    - figures

    Args:
        original: What the field being expanded replaces; None stands as nothing.
        now: Aware, in the user's own zone: `{{time}}` reads it as it is.
        idle: Since the user's last message; zero where there is none.
        chat_seed: The same for the life of the chat; `{{pick}}` draws from it.
        message_seed: The same for every attempt at one reply, so that a regenerated or previewed
            prompt comes out the same; `{{random}}` and `{{roll}}` draw from it.
        max_prompt: Tokens that a prompt may have; `max_response`, a reply.
        greetings: The first message, then the alternate greetings.
        group: The names of all characters; empty where there is but one.
        not_char: The names of everyone else; empty where that is the persona alone.
        last_message_id: The place of the latest message, from 0; empty where there is none.
        last_swipe_id: How many swipes that message has.
        current_swipe_id: Which of them is chosen, from 1.
        last_generation_type: What made the reply before: `normal`, `swipe`, ...
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
    """The variables of a chat (`local`) and of a user (`global_`), by name. A value: never changed.

    Names are case-sensitive. What is not there reads as nothing.
    """

    local: Mapping[str, str] = field(default_factory=dict[str, str])
    global_: Mapping[str, str] = field(default_factory=dict[str, str])


class Expansion(NamedTuple):
    """A field's text, and the variables after it: the very same object where none was written."""

    text: str
    variables: Variables
