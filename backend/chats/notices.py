"""Notices about how a reply was made. They are stored and shown with it: numbers, no text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec


class PromptCutNotice(msgspec.Struct, frozen=True, tag_field="kind", tag="prompt_cut"):
    """The model's server cut the prompt of the reply and did not say so.

    `sent` is an estimate of the whole prompt and `read` the part that the server reports, in the
    model's tokens.
    """

    model: str
    sent: int
    read: int


class ReplyCutNotice(msgspec.Struct, frozen=True, tag_field="kind", tag="reply_cut"):
    """The model stopped before the reply was complete.

    `reason` is `length` if the reply or the context window reached its limit, and `safety` if the
    provider's content filter stopped it.
    """

    reason: Literal["length", "safety"]


Notice = PromptCutNotice | ReplyCutNotice


def encode_notices(notices: Sequence[Notice]) -> str | None:
    """Return notices as the column of a message holds them."""
    return msgspec.json.encode(notices).decode() if notices else None


def decode_notices(stored: str | None) -> list[Notice]:
    """Return the notices of a message's column."""
    return msgspec.json.decode(stored, type=list[Notice]) if stored else []
