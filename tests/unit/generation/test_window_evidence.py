"""What refused prompts and usage reports say of a model's window."""

from __future__ import annotations

import pytest

from backend.generation.model import TokenUsage
from backend.generation.servers.window_evidence import (
    PromptCut,
    choose_window_after_cut,
    choose_window_after_refusal,
    find_cut,
    is_window,
)


@pytest.mark.parametrize(
    ("named", "needed", "current", "window"),
    [
        (4_096, 9_000, 32_768, 4_096),
        (16_384, 20_000, 4_096, 16_384),  # the server was started with more since
        (None, 5_000, 32_768, 4_096),
        (None, 9_000, 32_768, 8_192),
        (None, 8_192, 32_768, 4_096),
        (None, 32_768, 32_768, 16_384),
        (None, 60_000, 8_192, 4_096),
        (0, 9_000, 32_768, 8_192),  # no window at all
        (None, 10, 300, 256),
    ],
)
def test_a_refusal_leads_to_the_window_it_names_or_to_a_smaller_one(
    named: int | None, needed: int, current: int, window: int
) -> None:
    assert choose_window_after_refusal(named, needed=needed, current=current) == window


@pytest.mark.parametrize("value", [0, -1, 255, 10**9, 4096.0, "4096", True, None, [4096]])
def test_what_cannot_be_a_window_is_none(value: object) -> None:
    assert not is_window(value)


@pytest.mark.parametrize(
    ("read", "cached", "counted", "ratio", "is_cut"),
    [
        (2_050, 0, 20_000, 1.0, True),
        (3_974, 0, 20_000, 1.0, True),
        # The most efficient vocabulary that was measured makes 0.68 tokens of one counted.
        (6_500, 0, 10_000, 1.0, False),
        (6_500, 0, 10_000, 0.65, False),
        (5_000, 0, 10_000, 0.5, True),  # a ratio that followed cut prompts hides nothing
        (6_500, 0, 10_000, 1.3, True),
        # Reported beside the tokens that came from the cache.
        (2_050, 7_000, 10_000, 1.0, False),
        # Only what was new, or nothing at all, is reported.
        (300, 0, 20_000, 1.0, False),
        (0, 0, 20_000, 1.0, False),
    ],
)
def test_a_prompt_counts_as_cut_if_no_tokenizer_and_no_cache_explains_the_report(
    read: int, cached: int, counted: int, ratio: float, *, is_cut: bool
) -> None:
    usage = TokenUsage(read, 100, cached_tokens=cached)
    cut = find_cut(usage, counted=counted, ratio=ratio)
    expected = PromptCut(sent=round(counted * max(ratio, 1)), read=read)
    assert cut == (expected if is_cut else None)


@pytest.mark.parametrize(
    ("read", "current", "window"),
    [
        (2_050, 32_768, 4_096),  # half of the window, and two
        (2_048, 32_768, 2_048),
        (3_974, 32_768, 4_096),  # as many messages as fit
        (32_770, 131_072, 65_536),
        (3_000, 4_096, 3_000),  # a window that is not a power of two
        (5_000, 4_096, 4_096),
    ],
)
def test_the_window_after_a_cut_is_the_power_of_two_that_holds_what_was_read(
    read: int, current: int, window: int
) -> None:
    assert choose_window_after_cut(PromptCut(sent=100_000, read=read), current=current) == window
