"""Notices about how a reply was made. They are stored and shown with it: numbers, no text."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class PromptCutNotice(msgspec.Struct, frozen=True, tag_field="kind", tag="prompt_cut"):
    """The model's server cut the prompt of the reply and did not say so.

    `sent` is an estimate of the whole prompt and `read` the part that the server reports, in the
    model's tokens.
    """

    model: str
    sent: int
    read: int


def encode_notices(notices: Sequence[PromptCutNotice]) -> str | None:
    """Return notices as the column of a message holds them."""
    return msgspec.json.encode(notices).decode() if notices else None


def decode_notices(stored: str | None) -> list[PromptCutNotice]:
    """Return the notices of a message's column."""
    return msgspec.json.decode(stored, type=list[PromptCutNotice]) if stored else []
