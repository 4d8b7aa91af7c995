"""Finds the cause of a provider's refusal by its codes and sentences, and then by its status.

The status is unreliable: 400 may mean that the account has no credit, 404 that privacy settings
exclude a model, 429 that a balance is used up, and local servers return 500 for a long prompt.
Sentences are searched only at the statuses at which they are known, because they may quote the
prompt.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from backend.generation.client.client import ServerError
from backend.generation.failures.provider_faults import ProviderFault

MAX_WINDOW = 10_000_000
"""Maximum tokens of a window: several times the largest one."""

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
        # Others that name only the window
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
    """True if codes or a lowercase text report that the prompt is too long."""
    return (
        not OVERFLOW_CODES.isdisjoint(codes)
        or any(pattern.search(text) for pattern in _WITH_NUMBERS)
        or _WITHOUT_NUMBERS.search(text) is not None
    )


def read_sizes(text: str, numbers: Mapping[str, int]) -> tuple[int | None, int | None]:
    """Return the reported window and the tokens of the request, None if unknown.

    `text` is in lower case. `numbers` are members of the body, such as llama.cpp's `n_ctx`.
    """
    window, needed = _check_size(numbers.get("n_ctx")), _check_size(numbers.get("n_prompt_tokens"))
    match = next(filter(None, (pattern.search(text) for pattern in _WITH_NUMBERS)), None)
    if match is not None:
        said = {name: int(size.replace(",", "")) for name, size in match.groupdict().items()}
        window = window or _check_size(said["WINDOW"])
        if needed is None and "NEEDED" in said:
            needed = _check_size(said["NEEDED"] + said.get("REPLY", 0))
    return window, needed


def _check_size(number: int | None) -> int | None:
    return number if number is not None and 0 < number <= MAX_WINDOW else None


Cause = Literal[
    "overflow",
    "credit",
    "filter",
    "region",
    "data_policy",
    "missing_model",
    "key",
    "rate_limit",
    "loading",
    "busy",
    "address",
    "tunnel",
    "timeout",
    "web_page",
    "redirect",
    "too_large",
    "request",
    "server",
    "foreign",
]


_STATUS_OF_CODE: Mapping[str, int] = {
    **dict.fromkeys(("invalid_request_error", "invalid_argument", "badrequesterror"), 400),
    **dict.fromkeys(("authentication_error", "invalid_api_key", "unauthenticated"), 401),
    **dict.fromkeys(("billing_error", "insufficient_quota"), 402),
    **dict.fromkeys(("permission_error", "permission_denied"), 403),
    **dict.fromkeys(("not_found_error", "model_not_found", "not_found"), 404),
    "request_too_large": 413,
    **dict.fromkeys(("rate_limit_error", "rate_limit_exceeded", "resource_exhausted"), 429),
    **dict.fromkeys(("api_error", "server_error", "internal_server_error", "internal"), 500),
    **dict.fromkeys(("unavailable", "unavailable_error", "service_unavailable"), 503),
    **dict.fromkeys(("timeout_error", "deadline_exceeded"), 504),
    "overloaded_error": 529,
}
"""Statuses of errors within a stream, whose HTTP status is 200.

Sources: https://platform.claude.com/docs/en/api/errors,
https://ai.google.dev/gemini-api/docs/troubleshooting
"""

_TUNNEL_STATUSES = frozenset({520, 521, 522, 523, 525, 526, 530})
"""Cloudflare's statuses if the origin server cannot be reached or sends an invalid answer.

Source: https://developers.cloudflare.com/support/troubleshooting/http-status-codes/
"""

_TIMEOUT_STATUSES = frozenset({408, 504, 524})

_BY_STATUS: Mapping[int, Cause] = {
    **dict.fromkeys((401, 403, 407), "key"),
    402: "credit",
    **dict.fromkeys((405, 410), "address"),
    413: "overflow",
    429: "rate_limit",
    451: "region",
    **dict.fromkeys((498, 503, 529), "busy"),
    **dict.fromkeys(_TIMEOUT_STATUSES, "timeout"),
    **dict.fromkeys(_TUNNEL_STATUSES, "tunnel"),
}

_PAGE_BY_STATUS: Mapping[int, Cause] = {
    **dict.fromkeys((404, 405, 410), "address"),
    413: "too_large",
    429: "rate_limit",
    **dict.fromkeys((502, 503), "tunnel"),
    **dict.fromkeys(_TIMEOUT_STATUSES, "timeout"),
    **dict.fromkeys(_TUNNEL_STATUSES, "tunnel"),
}
"""Causes by the status of a web page, which comes from a proxy."""

_RATE_CODES = frozenset(
    {
        *("rate_limit_error", "rate_limit_exceeded", "resource_exhausted", "too_many_requests"),
        "rate_limited",
    }
)

_PATH_WORDS = re.compile(
    r"invalid url|unknown (?:request )?url|unexpected endpoint|cannot (?:post|get) |no route"
    r"|404 page not found|file not found|^(?:404 )?not found\.?$|method not allowed"
    r"|resource not found"
)
"""Words of servers without the requested path. LM Studio sends them with status 200."""

_FORM_WORDS = re.compile(
    r"no endpoints found that (?:support|can handle)|tools param requires"
    r"|unsupported param: tools|\bjinja\b|chat[ _]template|roles? must alternate"
)
"""Words of refusals of the request's form. OpenRouter sends them with status 404, and llama.cpp
with 500 (https://github.com/ggml-org/llama.cpp/issues/10920)."""

_QUOTA_WORDS = re.compile(r"exceeded your current quota|check your plan and billing")
"""OpenAI's words for used-up credit. Gemini uses them for rate limits."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """A cause, and its codes, or its words with one of the statuses."""

    cause: Cause
    codes: frozenset[str]
    statuses: frozenset[int]
    words: re.Pattern[str]


def _make_rule(cause: Cause, *statuses: int, codes: str = "", words: str) -> _Rule:
    return _Rule(cause, frozenset(codes.split()), frozenset(statuses), re.compile(words))


RULES = (
    _make_rule(
        "credit",
        *(400, 401, 402, 403, 429),
        codes="insufficient_quota billing_error billing_hard_limit_reached billing_not_active "
        "billing_disabled insufficient_balance insufficient_credits insufficient_user_quota "
        "exceeded_current_quota_error credit_exhausted arrearage",
        words=r"credit balance is too low|insufficient (?:account )?(?:balance|credit|funds|quota)"
        r"|(?:n'?t|not) have (?:any|enough|sufficient) (?:credits?|balance|funds)"
        r"|(?:requires?|need) more credits|(?:no|out of) credits?\b|payment required"
        r"|credits? (?:have |has |are |is )?(?:been )?(?:depleted|exhausted|used up)"
        r"|(?:monthly|included|prepayment) credits|key limit exceeded|spending (?:limit|cap)"
        r"|specified api usage limits|requires billing|billing (?:hard )?limit"
        r"|account is not active|in good standing|余额不足|欠费",
    ),
    _make_rule(
        "filter",
        *(400, 403, 422),
        codes="content_filter content_policy_violation responsibleaipolicyviolation contentfilter "
        "moderation_blocked data_inspection_failed datainspectionfailed content_blocked "
        "prohibited_content unsafe_content",
        words=r"requires moderation|(?:input|prompt|content) (?:was|has been) flagged"
        r"|flagged (?:as|by|for) |content management policy|content filter|usage polic(?:y|ies)"
        r"|content exists risk|inappropriate content|safety system",
    ),
    _make_rule(
        "region",
        *(400, 401, 403, 451),
        codes="unsupported_country_region_territory unsupported_country",
        words=r"location is not supported|country, region,? or territory|request not allowed"
        r"|not (?:available|supported) in (?:your|this) (?:country|region|location)",
    ),
    _make_rule(
        "data_policy",
        *(400, 403, 404, 502, 503),
        words=r"data policy|no allowed providers|guardrail restrictions|zero data retention"
        r"|no endpoints .{0,80}privacy",
    ),
    _make_rule(
        "missing_model",
        *(400, 403, 404, 422, 500, 503),
        codes="model_not_found model_not_exist modelnotfound invalid_model model_not_available",
        words=r"models?\b.{0,100}?(?:not found|(?:does not|doesn't|not) exist"
        r"|has been (?:deprecated|decommissioned|retired))"
        r"|models?[ /:][^ ]{0,150} (?:is|was) not (?:a valid|available|found|served|supported)"
        r"|not a valid model id|no endpoints found for|unknown model|no such model|invalid model"
        r"|^model: |try pulling it first|no models? (?:is |are )?(?:currently )?loaded"
        r"|no available channel|(?:access to|find) (?:the )?model",
    ),
    _make_rule(
        "key",
        *(400, 401, 403),
        codes="api_key_invalid invalid_api_key authentication_error api_key_service_blocked",
        words=r"api[ _-]?key (?:is |has )?(?:not valid|invalid|missing|expired|not found|required)"
        r"|(?:incorrect|invalid|missing|no) (?:api|x-api|auth)\w{0,12}[ _-]?(?:key|credentials)",
    ),
    _make_rule(
        "rate_limit",
        *(403, 413, 429, 500, 503),
        codes=" ".join(_RATE_CODES),
        words=r"rate[ -]?limit|too many requests|tokens per (?:minute|day)",
    ),
    _make_rule(
        "loading",
        *(409, 425, 500, 502, 503),
        words=r"loading (?:the )?model|(?:is|still|being) (?:currently )?(?:loading|warming up)"
        r"|model .{0,100}being loaded|not (?:yet )?ready",
    ),
    _make_rule(
        "busy",
        *(400, 409, 500, 502, 503),
        codes="overloaded_error overloaded engine_overloaded_error",
        words=r"overloaded|(?:server|model|engine|slots?) (?:is|are) (?:currently |all )?busy"
        r"|(?:at|over|no|insufficient) (?:available )?capacity|high (?:demand|load)"
        r"|no (?:idle |available )?slots?",
    ),
)


def find_status(error: ServerError, fault: ProviderFault) -> int | None:
    """Return the HTTP status, or the one in the body if the HTTP status is no error."""
    if error.status >= 300:  # noqa: PLR2004 - HTTP's own classes
        return error.status
    codes = [code.lower() for code in fault.codes]
    named = (_STATUS_OF_CODE[code] for code in codes if code in _STATUS_OF_CODE)
    return fault.status or next(named, None)


def find_cause(error: ServerError, fault: ProviderFault) -> Cause:
    """Return the cause that an answer names, or else that of its status."""
    status = find_status(error, fault)
    if status is not None and status < 400:  # noqa: PLR2004 - as above
        return "redirect"
    if "ngrok-error-code" in error.headers:
        return "tunnel"
    if fault.is_page:
        is_fault = status is not None and status >= 500  # noqa: PLR2004 - as above
        return _PAGE_BY_STATUS.get(status or 0, "server" if is_fault else "web_page")
    return _find_by_words(status, fault) or _find_by_status(error, status, fault)


def _find_by_words(status: int | None, fault: ProviderFault) -> Cause | None:
    codes, text = frozenset(code.lower() for code in fault.codes), fault.text
    is_limited = status == 429 or not _RATE_CODES.isdisjoint(codes)  # noqa: PLR2004 - as above
    if not is_limited and status not in {401, 402, 403, 404} and says_overflow(text, codes):
        return "overflow"
    if "resource_exhausted" not in codes and is_limited and _QUOTA_WORDS.search(text):
        return "credit"
    if fault.reasons:
        return "filter"
    if _FORM_WORDS.search(text):
        return "request"
    for rule in RULES:
        is_said = (status is None or status in rule.statuses) and rule.words.search(text)
        if is_said or not rule.codes.isdisjoint(codes):
            return rule.cause
    return None


def _find_by_status(error: ServerError, status: int | None, fault: ProviderFault) -> Cause:
    if status in {None, 400, 404} and _PATH_WORDS.search(fault.text):
        return "address"
    if status is None:
        return "server" if error.in_stream or fault.is_error else "foreign"
    if status == 404:  # noqa: PLR2004 - as above
        # A server with this path explains which model is missing.
        return "missing_model" if fault.sentences else "address"
    if status == 502 and not (fault.sentences or fault.codes):  # noqa: PLR2004 - as above
        return "tunnel"
    return _BY_STATUS.get(status, "server" if status >= 500 else "request")  # noqa: PLR2004 - as above
