"""Evidence of a model's real context window: refused prompts, and usage reports of cut prompts.

Windows, prompts and readings are in the model's tokens unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from backend.generation.catalogue import MAX_WINDOW
from backend.generation.model import TokenUsage

SMALLEST_WINDOW = 256
"""Smaller values that a server reports are errors or placeholders: llama.cpp sends 0 for a model
that is not loaded."""

MIN_READ_SHARE = 0.6
"""A prompt counts as cut if its server read less than this share of it.

No vocabulary makes fewer than 0.68 tokens of one o200k_base token (see `tokens.RATIO_BOUNDS`), so a
different tokenizer alone never reports so little.
"""

MIN_READ_TOKENS = 1_000
"""A smaller report is not taken for a cut prompt, but for one that leaves cached tokens out.

Ollama keeps half of its window when it cuts, at least 1,024 tokens. A server that reports only the
tokens it has not cached usually reports the last exchange: some hundred.
"""


@dataclass(frozen=True, slots=True)
class PromptCut:
    """A prompt of about `sent` tokens of which the server read only `read`."""

    sent: int
    read: int


def is_window(value: object) -> TypeGuard[int]:
    """True if a value that a server reported can be a context window."""
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and SMALLEST_WINDOW <= value <= MAX_WINDOW
    )


def choose_window_after_refusal(window: int | None, *, needed: int, current: int) -> int:
    """Return the window to use after a server refused a prompt as too long.

    Args:
        window: The window that the refusal names, if it names one.
        needed: Length of the refused prompt with its reply, reported or estimated.
        current: The window that the prompt was built for.

    Returns:
        The named window. Without one, the largest power of two below `needed` and `current`,
        because most servers are started with a power of two.
    """
    if is_window(window):
        return window
    below = max(min(needed, current) - 1, SMALLEST_WINDOW)
    return 1 << (below.bit_length() - 1)


def find_cut(usage: TokenUsage, *, counted: int, ratio: float) -> PromptCut | None:
    """Return how a prompt was cut, or None if its usage report can be that of the whole prompt.

    Some servers cut a prompt that is longer than their window and report the tokens of the rest.
    A report is also small if the model's vocabulary is more efficient than the one that counted,
    or if the server leaves out the tokens that it had cached. Cached tokens are therefore added,
    although most servers include them, and `ratio` is taken into account only if it is above 1: it
    is learned from such reports, so it may have followed prompts that were cut more and more.

    Args:
        usage: The report of one request.
        counted: Tokens of the same request as Talekeeper counted them.
        ratio: Tokens of the model for one that is counted, as learned so far.
    """
    read, sent = usage.prompt_tokens, round(counted * max(ratio, 1.0))
    if read < MIN_READ_TOKENS or read + usage.cached_tokens >= sent * MIN_READ_SHARE:
        return None
    return PromptCut(sent=sent, read=read)


def choose_window_after_cut(cut: PromptCut, *, current: int) -> int:
    """Return the window to use after a server cut a prompt.

    Ollama keeps either half of its window or as many messages as fit, so the window is between
    the tokens read and their double: the next power of two, which is what it is usually set to.
    If that is no less than `current`, the tokens read are all that is certain.
    """
    rounded = 1 << (cut.read - 1).bit_length()
    return rounded if rounded < current else min(cut.read, current)
