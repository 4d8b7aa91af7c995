"""Estimates a model's real context window from refused prompts and from usage reports.

Sizes are in the model's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from backend.generation.catalogue import MAX_WINDOW
from backend.generation.model import TokenUsage

SMALLEST_WINDOW = 256
"""Smaller reported values are errors or placeholders. llama.cpp sends 0 for an unloaded model."""

MIN_READ_SHARE = 0.6
"""If a server reports a smaller share of the prompt, it has truncated the prompt.

A different vocabulary is no explanation, because all have at least 0.68 tokens per token of
o200k_base (see `tokens.RATIO_BOUNDS`).
"""

MIN_READ_TOKENS = 1_000
"""Smaller reports probably exclude cached tokens and are ignored.

Ollama truncates to half of its window, at least 1,024 tokens. Servers that exclude cached tokens
usually report the last exchange: a few hundred.
"""


@dataclass(frozen=True, slots=True)
class PromptCut:
    """A truncated prompt of about `sent` tokens, of which the server read only `read`."""

    sent: int
    read: int


def is_window(value: object) -> TypeGuard[int]:
    """True if a reported value can be a context window."""
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and SMALLEST_WINDOW <= value <= MAX_WINDOW
    )


def choose_window_after_refusal(window: int | None, *, needed: int, current: int) -> int:
    """Return the window to use after a server refused a prompt as too long.

    Without a reported `window`, it is the largest power of two below `needed` and `current`,
    because most servers are started with a power of two.

    Args:
        window: The window in the refusal, if there is one.
        needed: The length of the refused prompt with its reply, reported or estimated.
        current: The window for which the prompt was built.
    """
    if is_window(window):
        return window
    below = max(min(needed, current) - 1, SMALLEST_WINDOW)
    return 1 << (below.bit_length() - 1)


def find_cut(usage: TokenUsage, *, counted: int, ratio: float) -> PromptCut | None:
    """Return a truncation of the prompt; None if the usage report may be about the whole prompt.

    Some servers truncate long prompts and report the tokens of the rest. A report is also small if
    the model's vocabulary is more efficient, or if it excludes cached tokens. Therefore cached
    tokens are added, although most servers include them, and a `ratio` below 1 is ignored, because
    it may be learned from truncated prompts.

    Args:
        usage: The report of one request.
        counted: Talekeeper's count of the same request.
        ratio: The learned number of the model's tokens per counted token.
    """
    read, sent = usage.prompt_tokens, round(counted * max(ratio, 1.0))
    if read < MIN_READ_TOKENS or read + usage.cached_tokens >= sent * MIN_READ_SHARE:
        return None
    return PromptCut(sent=sent, read=read)


def choose_window_after_cut(cut: PromptCut, *, current: int) -> int:
    """Return the window to use after a server truncated a prompt.

    Ollama keeps half of its window, or as many messages as fit. So the window is between the tokens
    read and twice as many, probably the next power of two. If that is not below `current`, use the
    tokens read.
    """
    rounded = 1 << (cut.read - 1).bit_length()
    return rounded if rounded < current else min(cut.read, current)
