"""The prompt that a client of the OpenAI-compatible endpoint has built, and the parts to add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from backend.generation.model import PromptMessage
from backend.generation.sampling import Sampling

SystemPlacement = Literal["before", "instead"]
"""Position of the client's system messages: before Talekeeper's own sections, or in their place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMessage:
    """A message of a client's prompt.

    Attributes:
        message: Role, text and images as the client sent them.
        position: The position of the stored message on the path. None if nothing is stored.
    """

    message: PromptMessage
    position: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPrompt:
    """The prompt of a client, to which lore, memory, summary and campaign are added.

    Attributes:
        messages: All messages in order, with the line that is answered and what follows it.
        line: The index of the line that is answered, among `messages`. What follows it are
            instructions. None if no line is answered.
        prefill: The beginning of the reply.
        placement: The position of the client's system messages.
        max_context: The client's limit for prompt and reply together, in tokens.
        sampling: The client's sampling settings. They have precedence over all others, and are
            omitted if the model does not accept them.
        uses_memory: False to add nothing.
    """

    messages: Sequence[ClientMessage]
    line: int | None
    prefill: str = ""
    placement: SystemPlacement = "instead"
    max_context: int | None = None
    sampling: Sampling = Sampling()  # noqa: RUF009  # frozen
    uses_memory: bool = True
