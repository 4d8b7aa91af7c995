"""The blocks of a prompt preset: which parts a prompt has, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from backend.errors import ValidationError
from backend.generation.model import Role
from backend.generation.sampling import Sampling

USUAL_ORDER = 100
"""Of blocks among the messages: notes and lore stand behind those of a smaller order."""
MAX_BLOCKS = 200
MAX_CONTENT = 200_000
"""Characters that one block may have."""
MAX_TEXT = 1_000_000
"""Characters that all blocks of a preset may have together."""

Marker = Literal[
    "system_prompt",
    "persona",
    "lore_before",
    "character",
    "personality",
    "scenario",
    "lore_after",
    "examples",
    "campaign",
    "summary",
    "history",
    "memory",
    "authors_note",
    "post_history",
]
"""What Talekeeper makes of a chat, as it stands in a prompt."""

BlockTrigger = Literal["normal", "continue", "impersonate", "swipe", "regenerate", "quiet"]
"""A kind of turn."""

LorePlacement = Literal["after_history", "as_written"]
"""Where keyed lore stands whose place is around the character or the examples."""

ChosenBy = Literal["preview", "chat", "character", "account"]
"""What has chosen a preset: the nearest one counts. A `preview` tries one that is not saved."""

BLOCK_IDS: dict[Marker, str] = {
    "system_prompt": "main",
    "persona": "personaDescription",
    "lore_before": "worldInfoBefore",
    "character": "charDescription",
    "personality": "charPersonality",
    "scenario": "scenario",
    "lore_after": "worldInfoAfter",
    "examples": "dialogueExamples",
    "campaign": "talekeeperCampaign",
    "summary": "talekeeperSummary",
    "history": "chatHistory",
    "memory": "talekeeperMemory",
    "authors_note": "talekeeperAuthorsNote",
    "post_history": "jailbreak",
}
"""The id of the one block that has each marker: SillyTavern's, where it knows the marker."""

MARKERS: dict[str, Marker] = {block_id: marker for marker, block_id in BLOCK_IDS.items()}

TITLES: dict[Marker, str] = {
    "system_prompt": "System prompt",
    "persona": "Persona",
    "lore_before": "Lore before the character",
    "character": "Character",
    "personality": "Personality",
    "scenario": "Scenario",
    "lore_after": "Lore after the character",
    "examples": "Example dialogue",
    "campaign": "Campaign",
    "summary": "Summary",
    "history": "Chat history",
    "memory": "Memory",
    "authors_note": "Author's note",
    "post_history": "Post-history instructions",
}


class Block(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A piece of a prompt: a text of the user's, or a `marker` for one that Talekeeper makes.

    Macros in `content` are expanded. Of the markers, `system_prompt` and `post_history` have a
    content: chats and cards replace it, unless `forbid_overrides` keeps cards from that, and
    `{{original}}` in it is Talekeeper's own text. With a `depth` the block stands among the
    messages, as many from the end, and after those of a smaller `order`. With `triggers` it comes
    with turns of these kinds alone. The history is always there; its block says where.
    """

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    name: Annotated[str, msgspec.Meta(max_length=300)] = ""
    role: Role = "system"
    content: Annotated[str, msgspec.Meta(max_length=MAX_CONTENT)] = ""
    marker: Marker | None = None
    enabled: bool = True
    depth: Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None = None
    order: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] = USUAL_ORDER
    triggers: Annotated[tuple[BlockTrigger, ...], msgspec.Meta(max_length=10)] = ()
    forbid_overrides: bool = False

    @property
    def title(self) -> str:
        """What people call it."""
        return self.name or (TITLES[self.marker] if self.marker else self.id)


def marker_block(marker: Marker, content: str = "") -> Block:
    """The block of a marker, as it is in the default order."""
    return Block(id=BLOCK_IDS[marker], name=TITLES[marker], marker=marker, content=content)


DEFAULT_BLOCKS = (
    marker_block("system_prompt", "{{original}}"),
    marker_block("persona"),
    marker_block("lore_before"),
    marker_block("character"),
    marker_block("lore_after"),
    marker_block("examples"),
    marker_block("campaign"),
    marker_block("summary"),
    marker_block("history"),
    marker_block("memory"),
    marker_block("post_history"),
)
"""The order of a prompt without a preset.

The author's note has no block here: it stands where its own settings say.
"""


class PresetFields(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a preset says of prompts.

    `sampling` counts where neither the account nor the chat says anything, as far as the model
    takes it. With `squash_system_messages` neighbouring blocks of
    the role `system` are one message. `lore_placement` says where keyed lore whose place is around
    the character or the examples stands, in chats that do not say: behind the history, so that
    what comes before stays the same and providers' caches keep hitting, or as it is written.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
    blocks: Annotated[tuple[Block, ...], msgspec.Meta(min_length=1, max_length=MAX_BLOCKS)] = (
        DEFAULT_BLOCKS
    )
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    squash_system_messages: bool = True
    lore_placement: LorePlacement = "after_history"


def check_blocks(blocks: Sequence[Block]) -> None:
    """Raise `ValidationError` for blocks that make no prompt."""
    known: set[str] = set()
    for block in blocks:
        if block.id in known:
            raise ValidationError(f"blocks: two have the id `{block.id}`.")
        known.add(block.id)
        if block.marker != MARKERS.get(block.id):
            wanted = BLOCK_IDS[block.marker] if block.marker else None
            says = f"the block of `{block.marker}` has the id `{wanted}`" if wanted else ""
            raise ValidationError(
                f"blocks: {says or f'the id `{block.id}` is reserved for `{MARKERS[block.id]}`'}."
            )
    if BLOCK_IDS["history"] not in known:
        raise ValidationError("blocks: one block must be the `history`.")
    if (found := sum(len(block.content) for block in blocks)) > MAX_TEXT:
        raise ValidationError(
            f"blocks: they have {found:,} characters together; {MAX_TEXT:,} are allowed."
        )
