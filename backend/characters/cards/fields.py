"""The names of a card's fields, version by version."""

from __future__ import annotations

from typing import Final

V1_FIELDS: Final = (
    "name",
    "description",
    "personality",
    "scenario",
    "first_mes",
    "mes_example",
)

REQUIRED_FIELDS: Final = (
    *V1_FIELDS,
    "creator_notes",
    "system_prompt",
    "post_history_instructions",
    "alternate_greetings",
    "tags",
    "creator",
    "character_version",
    "extensions",
)
"""What V2 and V3 both ask for. V3 asks for `group_only_greetings` besides."""

OPTIONAL_FIELDS: Final = (
    "character_book",
    "nickname",
    "creator_notes_multilingual",
    "source",
    "group_only_greetings",
    "creation_date",
    "modification_date",
    "assets",
)

V3_ONLY_FIELDS: Final = frozenset(OPTIONAL_FIELDS) - {"character_book"}

CARD_FIELDS: Final = frozenset(REQUIRED_FIELDS) | frozenset(OPTIONAL_FIELDS)

FLAT_SYNONYMS: Final = {
    "name": ("char_name",),
    "description": ("char_persona", "context"),
    "scenario": ("world_scenario",),
    "first_mes": ("char_greeting", "greeting"),
    "mes_example": ("example_dialogue",),
    "creator_notes": ("creatorcomment",),
}
"""Names that flat cards use: Pygmalion's, text-generation-webui's, early SillyTavern's."""

KNOWN_EXTENSIONS: Final = frozenset({"depth_prompt", "talkativeness", "fav", "world"})
"""Those that can be edited: they can also be taken away, unlike those of other tools."""
