"""How a message stands in a prompt."""

from __future__ import annotations


def line_text(author: str, text: str, *, names: bool) -> str:
    """A message as the model gets it: its text, behind its author's name where chats need names."""
    return f"{author}: {text}" if names and author else text
