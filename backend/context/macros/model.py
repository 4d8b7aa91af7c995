"""What macros are expanded with, what comes out, and how far an expansion may go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from backend.errors import ValidationError

MAX_CHARACTERS: Final = 1_000_000
"""Characters that come together for one field: its text, and all that macros read and bring in."""

MAX_MACROS: Final = 10_000
"""Macros expanded for one field, with those in the fields that they bring in."""

MAX_DEPTH: Final = 32
"""Levels of nesting: arguments, conditionals, and fields within fields."""

MAX_DICE: Final = 1_000
MAX_SIDES: Final = 1_000_000


class MacroLimitError(ValidationError):
    """A field's macros ask for more than the limits allow; `place` is the field."""

    status, slug, title = 422, "macro-limit", "The macros of a field go beyond a limit"

    def __init__(self, *, place: str, limit: str, most: int) -> None:
        super().__init__(
            f"The macros in {place} need more than {most:,} {limit}. Shorten or simplify them.",
            extra={"place": place, "limit": limit, "most": most},
        )
        self.place, self.limit, self.most = place, limit, most


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
        max_prompt: Tokens that a prompt may have.
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
    original: str | None = None
    authors_note: str = ""

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
