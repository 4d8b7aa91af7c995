"""Choices of a campaign's turn in a plain conversation: numbered options, and lines that choose.

A turn that waits for its player ends its answer with the options. For the client the answer, the
choice and the rest are three messages; for the chat they are one reply. `fold_choices` finds such
messages in a client's list and makes them one line again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from backend.openai_api.contracts import Line
from backend.turns.api.schemas import MAX_ANSWER_CHARACTERS, ChoiceRequest

OWN_WORDS = "Or answer in your own words."
CHOOSE_ONE = "Answer with the number of one of these:"

_NUMBER = re.compile(r"\W{0,3}(?:option|number|nr|no)?\W{0,3}(\d{1,2})(?!\w)", re.IGNORECASE)

MIN_WORDS_CHARACTERS = 3
"""Shorter words do not choose an option whose label merely contains them."""


def render_options(waiting: Mapping[str, Any]) -> str:
    """Return the options of a `turn.awaiting_choice` as text, below what the turn has said."""
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


def fold_choices(
    lines: Sequence[Line], replies: Sequence[UUID | None], texts: Mapping[UUID, str]
) -> list[Line]:
    """Replace the answers and choices of one reply by one line with the reply's stored text.

    Args:
        lines: The conversation of a client's list.
        replies: For each line, the reply that it is a part of, if an answer of a waiting turn is
            equal to it.
        texts: The stored texts of these replies.

    Returns:
        The conversation. A choice that no part follows stays a line.
    """
    folded: list[Line] = []
    at = 0
    while at < len(lines):
        reply_id, last = replies[at], at
        if reply_id is None or reply_id not in texts:
            folded.append(lines[at])
            at += 1
            continue
        while last + 2 < len(lines) and replies[last + 2] == reply_id:
            last += 2
        # The last message of the reply is its place, so that what follows it stays behind it.
        folded.append(replace(lines[last], text=texts[reply_id]))
        at = last + 1
    return folded


def _normalise(text: str) -> str:
    return " ".join(text.split()).casefold().strip(" .!")
