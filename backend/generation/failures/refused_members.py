"""Finds out which member of a request a server refuses, from the words of its answer.

The words are searched here and go no further: they may quote the prompt, or the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus

from backend.generation.client.client import ServerError

_LONGEST = 8_000
"""Characters of an answer that are searched."""

_UNKNOWN = re.compile(
    r"unsupported|unknown|unrecogni[sz]ed|unexpected|not (?:be )?(?:supported?|permitted|allowed)"
    r"|does ?n[o']t support|extra_forbidden|extra inputs|no such (?:field|parameter)|not enabled"
    r"|deprecated",
    re.IGNORECASE,
)
"""Words for a member that a server does not know at all; without them its value is refused."""

_TOO_LONG = frozenset({"context_length_exceeded", "string_above_max_length"})
_STATUSES = frozenset({HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})


@dataclass(frozen=True, slots=True)
class Refusal:
    """A member of a request that a server does not take: never (`for_good`), or not this value."""

    member: str
    for_good: bool


def read_refusal(error: ServerError, members: Iterable[str]) -> Refusal | None:
    """Return the refused one of a request's `members`; None if the server names none of them.

    A member is named if the answer's `param` is its name, if a sentence quotes it, has a colon
    after it or ends with a colon and the name, or if it is a word that no sentence has (`top_k`,
    `topK`). If several are named, the last one in `members` is returned.
    """
    fault = error.fault
    if error.status not in _STATUSES or fault.get("code") in _TOO_LONG:
        return None
    text = error.text[:_LONGEST]
    param = fault.get("param")
    param = param.rpartition(".")[2] if isinstance(param, str) else ""
    named = [name for name in members if name == param or _names(text, name)]
    return Refusal(named[-1], for_good=_UNKNOWN.search(text) is not None) if named else None


def _names(text: str, member: str) -> bool:
    name = re.escape(member)
    if "_" in member or not member.islower():
        first, *rest = member.split("_")
        camel = re.escape(first + "".join(map(str.title, rest)))
        return re.search(rf"\b(?:{name}|{camel})\b", text) is not None
    return re.search(rf"[\"'`]{name}[\"'`.\[]|\b{name}:|: {name}[\"'`.]", text) is not None
