"""The order of a prompt: the blocks of the preset that is chosen, or those by default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from uuid import UUID

from backend.chats.schemas import ChatSettings
from backend.context.blocks import (
    DEFAULT_BLOCKS,
    Block,
    ChosenBy,
    Marker,
    PresetFields,
)
from backend.generation.model import ModelSpec
from backend.lorebooks.entries import Trigger


@dataclass(frozen=True, slots=True)
class LoadedPreset:
    """The preset that a prompt is made by, and what has chosen it.

    `id` and `revision` are None and 0 where it is not saved.
    """

    id: UUID | None
    revision: int
    chosen_by: ChosenBy
    fields: PresetFields

    def refused_by(self, spec: ModelSpec) -> list[str]:
        """What to say of samplers that a model does not take: they are left out."""
        names = [name for name in self.fields.sampling.set_fields() if name not in spec.accepts]
        return [f"The model does not take the preset's {', '.join(names)}."] if names else []


@dataclass(frozen=True)
class PromptOrder:
    """Which blocks are sent with a turn, and what follows from where they stand.

    `triggers` are the kinds of turns that it is.
    """

    preset: LoadedPreset | None
    settings: ChatSettings
    triggers: Sequence[Trigger]

    @cached_property
    def blocks(self) -> Sequence[Block]:
        """All blocks, in order."""
        return self.preset.fields.blocks if self.preset else DEFAULT_BLOCKS

    @cached_property
    def sent(self) -> Sequence[Block]:
        """Those that are sent. The history always is."""
        return [block for block in self.blocks if block.marker == "history" or self._is_sent(block)]

    @cached_property
    def markers(self) -> frozenset[Marker | None]:
        """Markers of blocks that are there, sent or not."""
        return frozenset(block.marker for block in self.blocks)

    @property
    def places_note(self) -> bool:
        """Whether a block says where the author's note stands, and not the note itself."""
        return "authors_note" in self.markers

    @property
    def sends_memory(self) -> bool:
        """Whether there is a place for what is retrieved."""
        return self._place("memory") is not None

    @property
    def memory_first(self) -> bool:
        """Whether the memory stands before the history."""
        memory = self._place("memory")
        is_before = memory is not None and memory < (self._place("history") or 0)
        return is_before or self.settings.memory_placement == "before_history"

    @property
    def lore_as_written(self) -> bool:
        """Whether lore by key stands around the character and the examples.

        It has to where there is no memory that it could stand in.
        """
        said = {self.settings.lore_placement}
        if self.preset:
            said.add(self.preset.fields.lore_placement)
        return "as_written" in said or not self.sends_memory

    @property
    def squashes(self) -> bool:
        """Whether neighbouring blocks of the role `system` are one message."""
        return self.preset is None or self.preset.fields.squash_system_messages

    def title(self, block: Block) -> str:
        """What a record says of where a piece comes from; nothing where no preset is chosen."""
        return block.title if self.preset else ""

    def _is_sent(self, block: Block) -> bool:
        is_turn = not block.triggers or not set(block.triggers).isdisjoint(self.triggers)
        return block.enabled and is_turn

    def _place(self, marker: Marker) -> int | None:
        places = [place for place, block in enumerate(self.sent) if block.marker == marker]
        return places[0] if places else None
