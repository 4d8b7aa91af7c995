"""Texts on their way into an embedder: cut to what it takes, in batches of what it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backend.generation.tokens import best_tokenizer, get_tokenizer, starting_ratio

LONGEST_TOKENS = 2048
"""What `gemini-embedding-001` reads of a text. Others read more, and chunks are far shorter.
Source: https://ai.google.dev/gemini-api/docs/embeddings"""

_VOCABULARY = "gemma3"
_NOTHING = "."
_MARGIN = 0.95
_CHARS_A_TOKEN = 16
"""More than any text has on average, so that the tokenizer need not see all of a long one."""

_REQUEST_CHARS = 100_000
"""Characters in one request: some 25,000 tokens, a quarter of a megabyte of JSON."""


def prepared(text: str, *, longest: int = LONGEST_TOKENS) -> str:
    """`text` as an embedder takes it: not blank, and at most `longest` tokens.

    Tokens are Gemini's, exact where its vocabulary is installed; else an estimate, with some
    margin. Providers refuse blank texts: one is embedded as a full stop.
    """
    text = repaired(text)
    if len(text.encode()) <= longest:  # no token is shorter than a byte
        return text if text.strip() else _NOTHING
    vocabulary = best_tokenizer(_VOCABULARY)
    tokenizer = get_tokenizer(vocabulary)
    most = longest / starting_ratio(_VOCABULARY, counted_with=vocabulary)
    if vocabulary != _VOCABULARY:
        most *= _MARGIN
    text = text[: longest * _CHARS_A_TOKEN]
    while (count := tokenizer.count(text)) > most:
        text = text[: int(len(text) * most / count * _MARGIN)]
    return text if text.strip() else _NOTHING


def repaired(text: str) -> str:
    """`text` without lone surrogates: half an emoji has no form on the wire."""
    return text.encode(errors="replace").decode()


def batches(texts: Sequence[str], *, most: int) -> Iterator[Sequence[str]]:
    """`texts` in order, at most `most` and about 100,000 characters in a batch."""
    start = size = 0
    for index, text in enumerate(texts):
        if index > start and (index - start == most or size + len(text) > _REQUEST_CHARS):
            yield texts[start:index]
            start, size = index, 0
        size += len(text)
    if start < len(texts):
        yield texts[start:]
