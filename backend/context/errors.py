"""What can go wrong while a prompt is put together."""

from __future__ import annotations

from typing import Any

from backend.errors import AppError


class ContextOverflowError(AppError):
    """What must be in the prompt does not fit the window; nothing was stored.

    `sections` itemises it: `{kind, title, tokens}` each.
    """

    status, slug, title = 422, "context-overflow", "It does not fit the context window"

    def __init__(self, *, needed: int, available: int, sections: list[dict[str, Any]]) -> None:
        super().__init__(
            f"{needed:,} tokens are needed and {available:,} are left for the prompt. Shorten one "
            "of the sections below, or raise the budget.",
            extra={"needed": needed, "available": available, "sections": sections},
        )
        self.needed, self.available, self.sections = needed, available, sections

    def scaled(self, ratio: float) -> ContextOverflowError:
        """The same in other tokens, `ratio` of them for each of these."""
        return ContextOverflowError(
            needed=round(self.needed * ratio),
            available=round(self.available * ratio),
            sections=[
                {**section, "tokens": round(section["tokens"] * ratio)} for section in self.sections
            ],
        )
