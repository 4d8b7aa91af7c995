"""Counts of messages' tokens, and in which units they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backend.generation.tokens import MESSAGE_OVERHEAD, get_tokenizer

NAMES = "+names"


def line_text(author: str, text: str, *, names: bool) -> str:
    """A message as the model gets it: its text, after its author's name where chats need names."""
    return f"{author}: {text}" if names and author else text


@dataclass(frozen=True, slots=True)
class CountUnit:
    """What a stored count counts: tokens of one vocabulary, with or without the author's name.

    A chat's messages are all counted in one unit; `str()` of it is stored with the chat.
    """

    tokenizer: str
    names: bool

    @classmethod
    def parse(cls, text: str) -> CountUnit:
        """The unit that was stored."""
        return cls(text.removesuffix(NAMES), text.endswith(NAMES))

    def __str__(self) -> str:
        return self.tokenizer + (NAMES if self.names else "")

    def count(self, author: str, text: str) -> int:
        """Tokens of one message as it is sent."""
        return self.count_many([(author, text)])[0]

    def count_many(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Tokens of many messages (author, text) as they are sent, in order."""
        lines = [line_text(author, text, names=self.names) for author, text in messages]
        counts = get_tokenizer(self.tokenizer).count_many(lines)
        return [count + MESSAGE_OVERHEAD for count in counts]
