"""Which of the variables that macros wrote are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from backend.context.macros import Variables

MAX_BYTES: Final = 200_000
"""What the variables of a chat may take as JSON, and what a user's may."""


def kept(before: Variables, after: Variables) -> tuple[Variables, list[str]]:
    """The variables after a prompt, each scope as it was where it is too large; and what to say."""
    notes: list[str] = []
    local = _within(before.local, after.local, "the chat's", notes)
    global_ = _within(before.global_, after.global_, "the user's", notes)
    return (Variables(local, global_) if notes else after), notes


def _within(
    before: Mapping[str, str], after: Mapping[str, str], whose: str, notes: list[str]
) -> Mapping[str, str]:
    if after is before:
        return after
    size = len(msgspec.json.encode(dict(after)))
    if size <= MAX_BYTES:
        return after
    notes.append(
        f"{whose} variables stay as they were: they would have {size:,} bytes, "
        f"of {MAX_BYTES:,} allowed"
    )
    return before
