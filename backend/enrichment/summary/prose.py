"""What a model wrote in prose, as it is kept: text and nothing else, of the length agreed."""

from __future__ import annotations

from backend.enrichment.cleaning import without_tags

_SENTENCE_ENDS = ".!?…。\n"


def plain(text: str, limit: int) -> str:
    """A model's text as it may stand in a prompt: no tags, no blank lines, `limit` characters.

    Sections of a prompt stand in tags or between blank lines: what has neither can't end the one
    that it stands in. What is longer ends with a sentence, where there is one, or with a word.
    """
    lines = (line.strip() for line in without_tags(text).split("\n"))
    whole = "\n".join(line for line in lines if line)
    return whole if len(whole) <= limit else _cut(whole, limit)


def _cut(text: str, limit: int) -> str:
    head = text[: max(0, limit - 1)]
    end = max(head.rfind(mark) for mark in _SENTENCE_ENDS)
    if end >= limit // 2:
        return head[: end + 1].rstrip()
    words = head.rsplit(None, 1)
    return (words[0] if len(words) > 1 else head) + "…" if head else ""
