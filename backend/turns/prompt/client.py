"""The prompt that a client of the OpenAI-compatible endpoint has built, and the parts to add.

A client sends its whole prompt with each request. Its messages are sent to the model unchanged and
in their order. Everything that is added comes after the client's history, so that the next request
begins with the same messages and a provider's prefix cache can reuse them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal, NamedTuple

from msgspec import structs

from backend.generation.model import ModelSpec, PromptMessage
from backend.generation.sampling import Sampling, SamplingField

SystemPlacement = Literal["before", "instead"]
"""Position of the client's system messages: before Talekeeper's own sections, or in their place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMessage:
    """A message of a client's prompt.

    Attributes:
        message: Role, text and images as the client sent them.
        position: The position of the stored message on the path, or of the first one if the client
            has merged several. None if nothing is stored.
    """

    message: PromptMessage
    position: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPrompt:
    """The prompt of a client, to which lore, memory, summary and campaign are added.

    Attributes:
        messages: All messages in order, with the line that is answered and those after it.
        line: The index of the line that is answered, among `messages`. Those after it are
            instructions. None if no line is answered.
        prefill: The beginning of the reply.
        placement: The position of the client's system messages.
        window_start: The position of the first message in the client's window. A client may keep
            the first messages of the chat in front of it. None if the first position in `messages`
            is the start.
        max_context: The client's limit for prompt and reply together, in tokens.
        sampling: The client's sampling settings. They have precedence over all others, and are
            omitted if the model does not accept them.
        uses_memory: False to add nothing.
    """

    messages: Sequence[ClientMessage]
    line: int | None
    prefill: str = ""
    placement: SystemPlacement = "instead"
    window_start: int | None = None
    max_context: int | None = None
    sampling: Sampling = Sampling()  # noqa: RUF009  # frozen
    uses_memory: bool = True

    @property
    def replaces_sections(self) -> bool:
        """True if Talekeeper's own sections, such as the character, are not sent."""
        return self.placement == "instead" or not self.uses_memory

    def without(self, positions: Collection[int]) -> ClientPrompt:
        """Return the prompt without the stored messages at some positions."""
        kept = [at for at, each in enumerate(self.messages) if each.position not in positions]
        line = None if self.line is None else bisect_left(kept, self.line)
        return replace(self, messages=[self.messages[at] for at in kept], line=line)

    def choose_sampling(
        self, spec: ModelSpec, usual: Sampling
    ) -> tuple[Sampling, Sequence[SamplingField]]:
        """Return the usual settings with the client's, and the names that the model refuses."""
        wanted = self.sampling
        if self.prefill:
            wanted = structs.replace(wanted, start_reply_with=self.prefill)
        names = wanted.set_fields()
        values = {name: getattr(wanted, name) for name in names if name in spec.accepts}
        unsent: list[SamplingField] = [name for name in names if name not in spec.accepts]
        return structs.replace(usual, **values), unsent


class ClientNote(NamedTuple):
    """A message that is not stored, such as an author's note.

    `place` is the number of history messages before it.
    """

    place: int
    message: PromptMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientParts:
    """The messages of a client's prompt by their place in the prompt.

    Attributes:
        prompt: The client's prompt.
        head: The leading system messages.
        history: The stored messages before the line that is answered.
        positions: The positions of `history` on the path, in ascending order.
        notes: The other messages among them.
        line: The line that is answered.
        tail: The messages after it, such as a post-history instruction.
        first: The position of the first message in the client's window. None if it sends no stored
            message.
    """

    prompt: ClientPrompt
    head: Sequence[PromptMessage]
    history: Sequence[PromptMessage]
    positions: Sequence[int]
    notes: Sequence[ClientNote]
    line: PromptMessage | None
    tail: Sequence[PromptMessage]
    first: int | None

    @property
    def characters(self) -> int:
        """The characters of all messages."""
        return sum(len(each.message.text) for each in self.prompt.messages)


def split_prompt(prompt: ClientPrompt) -> ClientParts:
    """Sort the messages of a client's prompt by their place.

    If no line is answered, the messages after the last stored one are instructions.
    """
    messages = prompt.messages
    leading = list(takewhile(_is_leading, messages[: prompt.line]))
    end = prompt.line
    if end is None:
        stored = [at for at, each in enumerate(messages) if each.position is not None]
        end = max(len(leading), stored[-1] + 1 if stored else 0)
    history: list[PromptMessage] = []
    positions: list[int] = []
    notes: list[ClientNote] = []
    for each in messages[len(leading) : end]:
        # A position counts only in order. A message that the client repeats is a note.
        if each.position is None or (positions and each.position <= positions[-1]):
            notes.append(ClientNote(len(history), each.message))
        else:
            history.append(each.message)
            positions.append(each.position)
    after = end if prompt.line is None else end + 1
    first = prompt.window_start
    if first is None:
        sent = (each.position for each in messages if each.position is not None)
        first = min(sent, default=None)
    return ClientParts(
        prompt=prompt,
        head=[each.message for each in leading],
        history=history,
        positions=positions,
        notes=notes,
        line=None if prompt.line is None else messages[prompt.line].message,
        tail=[each.message for each in messages[after:]],
        first=first,
    )


def _is_leading(each: ClientMessage) -> bool:
    return each.message.role == "system" and each.position is None
