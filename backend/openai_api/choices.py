"""Choices of a campaign's turn in a plain conversation: numbered options, and lines that choose.

A turn that waits for its player ends its answer with the options. For the client the answer, the
choice and the rest are three messages; for the chat they are one reply. `fold_choices` finds such
messages in a client's list and makes them one line again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from backend.openai_api.contracts import Line
from backend.turns.api.schemas import MAX_ANSWER_CHARACTERS, ChoiceRequest

OWN_WORDS = "Or answer in your own words."
CHOOSE_ONE = "Answer with the number of one of these:"

_NUMBER = re.compile(r"\W{0,3}(?:option|number|nr|no)?\W{0,3}(\d{1,2})(?!\w)", re.IGNORECASE)

_SENTENCE_ENDS = ".!?*\"'`)}]~\u2026\u201d\u2019"

MIN_WORDS_CHARACTERS = 3
"""Shorter words do not choose an option if its label only contains them."""


def render_options(waiting: Mapping[str, Any]) -> str:
    """Return the options of a `turn.awaiting_choice` as text, to be added to that of the turn."""
    lines = [waiting["prompt"]] if waiting["prompt"] else []
    for number, option in enumerate(waiting["options"], 1):
        detail = f" ({option['detail']})" if option.get("detail") else ""
        lines.append(f"{number}. {option['label']}{detail}")
    if waiting.get("own"):
        lines.append(OWN_WORDS)
    return "\n".join(lines)


def parse_choice(waiting: Mapping[str, Any], text: str) -> ChoiceRequest | None:
    """Return the choice that a line makes: by number, by the label, or in its own words.

    None if the line names no option and own words are not allowed.
    """
    options, said = waiting["options"], _normalise(text)
    number = _NUMBER.match(said)
    if number and 1 <= int(number[1]) <= len(options):
        return ChoiceRequest(option=options[int(number[1]) - 1]["id"])
    labels = [_normalise(option["label"]) for option in options]
    matches = [at for at, label in enumerate(labels) if label == said]
    if not matches and len(said) >= MIN_WORDS_CHARACTERS:
        matches = [at for at, label in enumerate(labels) if label and (said in label)]
    if not matches and not waiting.get("own"):
        matches = [at for at, label in enumerate(labels) if label and label in said]
    if len(matches) == 1:
        return ChoiceRequest(option=options[matches[0]]["id"])
    if waiting.get("own") and said:
        return ChoiceRequest(option=waiting["own"], text=text.strip()[:MAX_ANSWER_CHARACTERS])
    return None


def list_part_forms(text: str) -> Sequence[str]:
    """Return the forms in which clients send a part again: whole, or without its last sentence.

    SillyTavern can cut an incomplete sentence at the end of a message.
    """
    end = max(text.rfind(sign) for sign in _SENTENCE_ENDS) + 1
    trimmed = text[:end].strip()
    return (text, trimmed) if trimmed else (text,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyParts:
    """A reply that was sent in parts.

    Attributes:
        chat_id: Its chat.
        is_waiting: True if its turn waits for a choice.
        text: Its stored text.
        digests: The digests of its parts in order, all forms of each. Empty for a choice that no
            part has followed yet.
    """

    chat_id: UUID
    is_waiting: bool
    text: str
    digests: Sequence[Collection[bytes]]

    def find(self, digest: bytes, after: int = -1) -> int | None:
        """Return the index of the first part with a digest, after that of another part."""
        parts = enumerate(self.digests)
        return next((at for at, forms in parts if at > after and digest in forms), None)


_Matches = list[tuple[ReplyParts, int]]


def fold_choices(
    lines: Sequence[Line], digests: Sequence[bytes], replies: Sequence[ReplyParts]
) -> list[Line]:
    """Replace the parts and choices of one reply by one line with the reply's stored text.

    If the last choice is not followed by its part, the client wants another rest of the reply, or
    has got it as another reply. The parts and the choice are left out then: the list ends with the
    line before the reply, or the other reply follows that line.

    Args:
        lines: The conversation of a client's list.
        digests: The digests of its lines.
        replies: Replies with parts among the lines. Of several that fit, the last one wins.
    """
    hits = Counter(
        reply.chat_id for digest in digests for reply in replies if reply.find(digest) is not None
    )
    remaining = sorted(replies, key=lambda reply: hits[reply.chat_id])  # stable
    folded: list[Line] = []
    at = 0
    while at < len(lines):
        found = _find_run(digests, at, remaining)
        if found is None:
            folded.append(lines[at])
            at += 1
            continue
        reply, last = found
        remaining.remove(reply)
        is_cut = not reply.is_waiting and digests[last] not in reply.digests[-1]
        if is_cut and last + 1 < len(lines) and lines[last + 1].role == "user":
            at = last + 2
            continue
        # The last message of the reply is its place, so that later messages follow it.
        folded.append(replace(lines[last], text=reply.text))
        at = last + 1
    return folded


def _find_run(
    digests: Sequence[bytes], first: int, replies: Sequence[ReplyParts]
) -> tuple[ReplyParts, int] | None:
    """Return the reply with most parts from a line on, and the last of its lines."""

    def match_part(at: int, before: Sequence[tuple[ReplyParts, int]]) -> _Matches:
        parts = ((reply, reply.find(digests[at], after)) for reply, after in before)
        return [(reply, part) for reply, part in parts if part is not None]

    found, last = match_part(first, [(reply, -1) for reply in replies]), first
    while last + 2 < len(digests) and (longer := match_part(last + 2, found)):
        found, last = longer, last + 2
    return (found[-1][0], last) if found else None


def _normalise(text: str) -> str:
    return " ".join(text.split()).casefold().strip(" .!")
