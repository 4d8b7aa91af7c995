"""Counting tokens: which vocabularies are at hand, and what their counts are worth.

A count is in the units of one vocabulary. Where the model's own is installed the count is exact;
elsewhere it is o200k_base's, times a ratio that starts from a table and learns from the `usage`
that the provider reports. Nothing here touches the network, ever.
"""

from __future__ import annotations

from backend.generation._vocabularies import (
    Tokenizer,
    TokenizerUnavailableError,
    VocabularyDamagedError,
    best_tokenizer,
    get_tokenizer,
)

__all__ = [
    "MESSAGE_OVERHEAD",
    "SHARED_BOUNDS",
    "Tokenizer",
    "TokenizerUnavailableError",
    "VocabularyDamagedError",
    "best_tokenizer",
    "get_tokenizer",
    "learn_ratio",
    "starting_ratio",
]

MESSAGE_OVERHEAD = 4
"""Tokens that a message costs beside its text: its role and the marks around it.

Gemma's chat template spends `<start_of_turn>`, the role, a newline, `<end_of_turn>` and another
newline, one of which merges with its neighbour; OpenAI's chat format spends 3 to 4.
"""

RATIO_BOUNDS = (0.65, 3.0)
"""A learned ratio never leaves these. Measured against o200k_base, with eleven vocabularies and
eight languages: 0.68 (Chinese, DeepSeek V3) to 3.06 (Hindi, Mistral 7B); English 1.0 to 1.12."""

SHARED_BOUNDS = (0.65, 1.9)
"""The same for a ratio that others learned: all that was measured but Hindi and Arabic in the
oldest vocabularies, which only those need who write in them."""

_STARTING_RATIOS = {
    ("gemma3", "o200k_base"): 1.06,
}
"""(real vocabulary, vocabulary counted with): real tokens for one counted, on English prose."""

_TINY_PROMPT = 256
"""Below this many counted tokens, what a provider adds to every request outweighs the text."""

_MEMORY = 50
"""Reports that the running mean remembers: later ones weigh a fiftieth each."""

_SETTLED = 5
"""From this many reports on, one that is far off is taken for a fluke."""

_LEAP = 1.25
"""The factor by which a settled ratio lets a single report differ from it."""


def starting_ratio(vocabulary: str, *, counted_with: str) -> float:
    """What one token counted with `counted_with` is expected to be in `vocabulary`.

    1.0 for a vocabulary and itself, and for pairs about which nothing is known.
    """
    if (forward := _STARTING_RATIOS.get((vocabulary, counted_with))) is not None:
        return forward
    if (backward := _STARTING_RATIOS.get((counted_with, vocabulary))) is not None:
        return 1 / backward
    return 1.0


def learn_ratio(ratio: float, samples: int, *, counted: int, reported: int) -> tuple[float, int]:
    """Take one report of the provider's into the ratio of real tokens to counted ones.

    A running mean. The table's value weighs as much as the first report; after 50 reports the
    newest always weighs a fiftieth, so that the ratio follows a change of language or model. Once
    it is settled, a report that is more than a quarter off moves it no further than one that is
    a quarter off: a provider that leaves cached tokens out of its count does not spoil it.

    Args:
        ratio: Its present value, from `starting_ratio` or from the last call.
        samples: How many reports it has learned from.
        counted: Tokens of the whole prompt in the counting vocabulary, unscaled.
        reported: Tokens of the same prompt as the provider reported them.

    Returns:
        The new ratio, within `RATIO_BOUNDS`, and the new number of samples. Both unchanged when the
        prompt is tiny (under 256 tokens) or nothing was reported.
    """
    if counted < _TINY_PROMPT or reported <= 0:
        return ratio, samples
    seen = reported / counted
    if samples >= _SETTLED:
        seen = min(max(seen, ratio / _LEAP), ratio * _LEAP)
    learned = ratio + (seen - ratio) / min(samples + 2, _MEMORY)
    low, high = RATIO_BOUNDS
    return min(max(learned, low), high), samples + 1
