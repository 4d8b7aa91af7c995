"""The words in which servers say that a prompt is longer than the context window.

Each pattern was seen in an answer of the servers that it names. Where an answer has numbers, they
are read: the window, and the tokens that the request needs. Patterns are searched in one line of
lower case and at most some thousand characters; their gaps are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

MAX_WINDOW = 10_000_000
"""Tokens: several times the largest window. A larger number is not one."""

_NUMBER = r"\d[\d,]{0,11}"

OVERFLOW_CODES = frozenset(
    {
        *("context_length_exceeded", "exceed_context_size_error", "string_above_max_length"),
        *("model_context_window_exceeded", "request_too_large", "context_window_exceeded"),
    }
)

_WITH_NUMBERS = tuple(
    re.compile(re.sub("WINDOW|NEEDED|REPLY", lambda name: f"(?P<{name[0]}>{_NUMBER})", words))
    for words in (
        # vLLM since 0.10, and services that run it
        r"maximum context length is WINDOW tokens.{0,200}for a total of(?: at least)? NEEDED",
        # vLLM, if the limit of the reply is too large
        r"too large: REPLY\. .{0,40}context length is WINDOW tokens.{0,40}has NEEDED input tokens",
        # OpenAI, Azure, OpenRouter, DeepSeek, vLLM, llama-cpp-python, SGLang
        r"context length (?:is|of) WINDOW tokens.{0,60}requested(?: about| a total of)? NEEDED",
        r"maximum context length is WINDOW tokens.{0,60}resulted in NEEDED",
        # xAI
        r"maximum prompt length is WINDOW but the request contains NEEDED",
        # Anthropic
        r"prompt is too long: NEEDED tokens > WINDOW maximum",
        r"exceed context limit: NEEDED \+ REPLY > WINDOW",
        # Gemini
        r"input token count \(NEEDED\) exceeds the maximum number of tokens allowed \(WINDOW",
        r"input token count exceeds the maximum number of tokens allowed \(?WINDOW",
        # llama.cpp
        r"request \(NEEDED tokens\) exceeds the available context size \(WINDOW tokens\)",
        # llama-cpp-python
        r"requested tokens \(NEEDED\) exceed context window of WINDOW",
        # LM Studio
        r"keep the first NEEDED tokens when .{0,90}context length of only WINDOW tokens",
        r"n_keep:? \(?NEEDED\)?\s?>= n_ctx:? \(?WINDOW",
        r"reached context length of WINDOW tokens",
        # Mistral
        r"contains NEEDED tokens .{0,40}too large for model with WINDOW maximum context",
        # vLLM's engine
        r"length NEEDED\) is longer than the maximum model length of WINDOW",
        r"length NEEDED\) is too long to fit into the model \(context length WINDOW",
        r"prompt \(NEEDED tokens\) is too long and exceeds limit of WINDOW",
        # SGLang, Together
        r"input \(NEEDED tokens\) is longer than the model's context length \(WINDOW tokens\)",
        # TabbyAPI
        r"length NEEDED \+ REPLY is greater than max_seq_len WINDOW",
        r"length NEEDED is greater than max_seq_len WINDOW",
        # Text Generation Inference
        r"`max_new_tokens` must be <= WINDOW\. given: NEEDED `inputs` tokens and REPLY",
        r"`inputs` must have less than WINDOW tokens\. given: NEEDED",
        # Moonshot, GitHub, OpenAI, Poolside, DS4, DashScope, Cohere
        r"exceeded model token limit: WINDOW \(requested: NEEDED\)",
        r"token count of NEEDED exceeds the limit of WINDOW",
        r"exceed the configured limit of WINDOW tokens\. your messages resulted in NEEDED",
        r"input length NEEDED exceeds the maximum allowed input length of WINDOW",
        r"prompt has NEEDED tokens, but the configured context size is WINDOW",
        r"range of input length should be \[\d{1,6}, WINDOW\]",
        r"tokens in the prompt cannot exceed WINDOW\D{1,10}received NEEDED",
        # Others that name the window alone
        r"maximum (?:context|prompt|input) length (?:is|of) WINDOW",
    )
)

_WITHOUT_NUMBERS = re.compile(
    r"exceed(?:s|ed)?.{0,40}context[ _](?:size|length|window|limit)"
    r"|context[ _](?:size|length|window|limit).{0,20}(?:exceed|too small|overflow|is full)"
    r"|(?:longer|greater|larger|more) than the (?:model'?s )?(?:maximum )?context"
    r"|context window exceeds limit|does not fit (?:in|into) the context"
    r"|(?:prompt|input|request|conversation) (?:is|was) too (?:long|large to process)"
    r"|prompt too long|prompt exceeds max length|too many (?:input |prompt )?tokens"
    r"|(?:reduce|shorten) the (?:length|size) of (?:the|your) (?:messages|prompt|input)"
    r"|token limit exceeded"
)


def says_overflow(text: str, codes: Collection[str]) -> bool:
    """True if a provider's codes or its words (in lower case) say that the prompt is too long."""
    return (
        not OVERFLOW_CODES.isdisjoint(codes)
        or any(pattern.search(text) for pattern in _WITH_NUMBERS)
        or _WITHOUT_NUMBERS.search(text) is not None
    )


def read_sizes(text: str, numbers: Mapping[str, int]) -> tuple[int | None, int | None]:
    """Return the window and the tokens that the request needs, each None if it is not reported.

    Args:
        text: The provider's words in lower case.
        numbers: Members of the body: `n_ctx` and `n_prompt_tokens` of llama.cpp.
    """
    window, needed = _size(numbers.get("n_ctx")), _size(numbers.get("n_prompt_tokens"))
    match = next(filter(None, (pattern.search(text) for pattern in _WITH_NUMBERS)), None)
    if match is not None:
        said = {name: int(size.replace(",", "")) for name, size in match.groupdict().items()}
        window = window or _size(said["WINDOW"])
        if needed is None and "NEEDED" in said:
            needed = _size(said["NEEDED"] + said.get("REPLY", 0))
    return window, needed


def _size(number: int | None) -> int | None:
    return number if number is not None and 0 < number <= MAX_WINDOW else None
