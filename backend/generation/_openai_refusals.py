"""Which member of a request a server refuses, out of what it answers.

Its sentences are read here and go no further: they may quote the prompt, or the key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openai import APIError  # noqa: TID251 - the adapter's own part

_LONGEST = 4000
"""Characters of an answer that are read."""

_UNKNOWN = re.compile(
    r"unsupported|unknown|unrecogni[sz]ed|unexpected|not (?:be )?(?:supported?|permitted|allowed)"
    r"|does ?n[o']t support|extra_forbidden|extra inputs|no such (?:field|parameter)",
    re.IGNORECASE,
)
"""Words for what a server doesn't know at all, next to a value that it finds wrong."""

RENAMED = {"max_tokens": "max_completion_tokens"}
"""Members that some models know by another name. OpenAI's reasoning models refuse the old one."""

SPARED = frozenset({"stream_options", *RENAMED})
"""Members of ours that a request can do without, or with another in their place."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A member of a request that a server does not take: never (`for_good`), or not this value."""

    member: str
    for_good: bool


_STATUSES = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})
_OTHER_TROUBLE = frozenset({"context_length_exceeded", "string_above_max_length"})


def read_refusal(error: APIError, members: Iterable[str]) -> Refusal | None:
    """The refused one of a request's `members`; None where the server names none of them.

    A member counts as named where the answer's `param` is its name, or a sentence has it in
    quotation marks, or it is a word that no sentence has (`top_k`).
    """
    if getattr(error, "status_code", None) not in _STATUSES or error.code in _OTHER_TROUBLE:
        return None
    text = f"{error.message[:_LONGEST]} {json.dumps(error.body, default=str)[:_LONGEST]}"
    param = (error.param or "").rpartition(".")[2]
    named = next((name for name in members if name == param or _names(text, name)), None)
    return None if named is None else Refusal(named, for_good=_UNKNOWN.search(text) is not None)


def _names(text: str, member: str) -> bool:
    edge = r"\b" if "_" in member else r"[\"'`]"
    return re.search(f"{edge}{re.escape(member)}{edge}", text) is not None
