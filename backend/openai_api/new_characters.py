"""Make a character from a client's system messages, if the account wants this."""

from __future__ import annotations

import re
from collections.abc import Sequence

from backend.accounts.auth.identity import Identity
from backend.characters.cards.model import Card
from backend.characters.service import CharacterService
from backend.openai_api.model_names import CharacterTarget

FALLBACK_NAME = "Unnamed"
MAX_DESCRIPTION_CHARACTERS = 100_000
_SEARCHED_CHARACTERS = 20_000
_MAX_NAME = 60

_NAME = r"(?P<name>\w[^\n.,;:!?\"(){}\[\]<>|]{0,59}?)"
_END = r"(?=[\s.,;:!?(]|$)"
_FORMS = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"\bwrite {_NAME}['\u2019]s? (?:next )?(?:reply|response|message)",
        rf"(?:^|\n)\W{{0,9}}(?:character )?name\s?[:=]\s?[\"']?{_NAME}\W{{0,3}}(?:\n|$)",
        rf"\b(?:role-?play(?:ing)?|act(?:ing)?|respond|reply|play(?:ing)?) as {_NAME}{_END}",
        rf"\b(?:you are|you're) (?:now )?(?!an? |the |now ){_NAME}(?=[.,;:!?(\n]|$)",
    )
)
"""Forms of main prompts that name the character, those that are certain first."""


class CharacterMaker:
    """Creates characters of clients' system messages."""

    def __init__(self, characters: CharacterService) -> None:
        self._characters = characters

    async def make(self, identity: Identity, texts: Sequence[str]) -> CharacterTarget:
        """Create a character with the first system message as its description."""
        description = texts[0][:MAX_DESCRIPTION_CHARACTERS]
        name = find_character_name("\n".join(texts)[:_SEARCHED_CHARACTERS])
        card = Card(name=name or FALLBACK_NAME, description=description)
        made = await self._characters.create(identity, card)
        return CharacterTarget(made.id, card.name)


def find_character_name(text: str) -> str:
    """Return the name of the character in a main prompt, or "" if there is none."""
    for form in _FORMS:
        if found := form.search(text):
            return " ".join(found["name"].split())[:_MAX_NAME]
    return ""
