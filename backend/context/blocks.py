"""The blocks of a prompt preset, which define the parts of a prompt and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from backend.errors import ValidationError
from backend.generation.model import Role
from backend.generation.sampling import Sampling

USUAL_ORDER = 100
"""Default order of blocks among the messages. Notes and lore come after smaller orders."""
MAX_BLOCKS = 200
MAX_CONTENT = 200_000
"""Characters of one block."""
MAX_TEXT = 1_000_000
"""Characters of all blocks of a preset together."""

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
"""Parts of a prompt that Talekeeper generates from the chat."""

BlockTrigger = Literal["normal", "continue", "impersonate", "swipe", "regenerate", "quiet"]
"""A kind of turn."""

LorePlacement = Literal["after_history", "as_written"]
"""Position of keyed lore that belongs around the character or the examples."""

ChosenBy = Literal["preview", "chat", "character", "account"]
"""Source of the choice of a preset. The first applies. A `preview` tries an unsaved preset."""

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
"""The id of the only block with each marker: SillyTavern's id, if it has the marker."""

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
    """A piece of a prompt: a text of the user, or a `marker` for a generated part.

    Macros in `content` are expanded. The markers `system_prompt` and `post_history` have a content,
    which chats and cards may replace. `forbid_overrides` excludes cards from that. In the content,
    `{{original}}` is Talekeeper's default text. If `depth` is set, the block comes that many
    messages before the end, after blocks of a smaller `order`. If `triggers` is set, it is used
    only in turns of these kinds. The history is always sent, and its block sets the position.
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
        """The name shown to users."""
        return self.name or (TITLES[self.marker] if self.marker else self.id)


def marker_block(marker: Marker, content: str = "") -> Block:
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

The author's note has no block, because its own settings define the position.
"""


class PresetFields(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A preset's settings of prompts.

    `sampling` applies to values that neither the account nor the chat sets, as far as the model
    supports them. `squash_system_messages` merges neighbouring blocks of the role `system`.
    `lore_placement` is the position of keyed lore around the character or the examples, unless the
    chat sets it. After the history, the text before it stays stable and providers' caches keep
    hitting. The alternative is the position in the lorebook.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
    blocks: Annotated[tuple[Block, ...], msgspec.Meta(min_length=1, max_length=MAX_BLOCKS)] = (
        DEFAULT_BLOCKS
    )
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    squash_system_messages: bool = True
    lore_placement: LorePlacement = "after_history"


def check_blocks(blocks: Sequence[Block]) -> None:
    """Raise `ValidationError` if the blocks are not a valid prompt."""
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
