"""Settings that servers refuse, each in its own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.generation.sampling import SamplingField
from tests.fakes.oddities.oddity import (
    ANTHROPIC,
    GEMINI,
    NODS,
    OPENAI,
    Asked,
    Oddity,
    Refusal,
    Refuse,
    Result,
)
from tests.fakes.oddities.wire_formats import FormatName
from tests.fakes.provider_answers import openai
from tests.fakes.scripted_server import Answer


def without(member: str, body: Any, status: int = 400) -> Refuse:
    """Refuse a request that has a member, in a form of the server's own."""

    def refuse(asked: Asked) -> Answer | None:
        return Answer(status=status, body=body) if member in asked.settings else None

    return refuse


def invalid(message: str, **members: Any) -> Any:
    return openai(message, type="invalid_request_error", **members)


def left(*settings: SamplingField, for_good: bool = True) -> Result:
    """The settings that are left out. `for_good`: they are never sent again."""
    learned = {"refused": settings} if for_good else {}
    return Result(text="Mags nods.", left_out=settings, learned=learned)


def setting(
    name: str,
    server: str,
    sampling: Mapping[str, Any],
    refuse: Refuse,
    result: Result = NODS,
    formats: Sequence[FormatName] = OPENAI,
) -> Oddity:
    """A model that refuses a setting, and nods without it."""
    parts = ["Mags ", "nods."]
    return Oddity(name, server, parts, result, formats, refuse=refuse, sampling=sampling)


def refuse_as_claude(asked: Asked) -> Refusal | None:  # noqa: PLR0911 - one answer for each rule
    """Refuse the combinations of settings that Anthropic's API refuses."""
    body = asked.body
    thinking = body.get("thinking", {})
    if thinking.get("type") == "enabled":
        if thinking["budget_tokens"] < 1024:
            return Refusal(
                "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
            )
        if thinking["budget_tokens"] >= body["max_tokens"]:
            return Refusal("`max_tokens` must be greater than `thinking.budget_tokens`.")
    if thinking.get("type") in {"enabled", "adaptive"}:
        if body.get("temperature", 1) != 1:
            return Refusal("`temperature` may only be set to 1 when thinking is enabled.")
        if "top_k" in body:
            return Refusal("`top_k` must be unset when thinking is enabled.")
        if body.get("top_p", 1) < 0.95:
            return Refusal(
                "`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled."
            )
        if asked.roles[-1] == "assistant":
            return Refusal("Expected the final message to be of role user if thinking is enabled.")
    if "temperature" in body and "top_p" in body:
        return Refusal(
            "`temperature` and `top_p` cannot both be specified for this model. Please use only "
            "one."
        )
    return None


def refuse_prefill(asked: Asked) -> Refusal | None:
    if asked.roles[-1] != "assistant":
        return None
    return Refusal("Assistant response prefill is incompatible with enable_thinking.")


def refuse_both(asked: Asked) -> Answer | None:
    if not {"temperature", "top_p"} <= asked.body.keys():
        return None
    words = "`temperature` and `top_p` cannot both be specified for this model."
    return Answer(status=400, body=openai(words, type="None", code="400"))


_EXCLUSIVE: Mapping[str, tuple[Mapping[str, Any], Sequence[SamplingField]]] = {
    "temperature": ({"thinking_budget": 200_000, "temperature": 0.7}, ("temperature",)),
    "temperature-of-one": ({"thinking_budget": 2_000, "temperature": 1.0}, ()),
    "top-k": ({"reasoning_effort": "high", "top_k": 40}, ("top_k",)),
    "top-p": ({"thinking_budget": -1, "top_p": 0.9}, ("top_p",)),
    "high-top-p": ({"thinking_budget": 2_000, "top_p": 0.97}, ()),
    "high-top-p-beside-temperature": (
        {"thinking_budget": 2_000, "temperature": 0.7, "top_p": 0.97},
        ("temperature",),
    ),
    "prefill": ({"thinking_budget": 200, "start_reply_with": "So"}, ("start_reply_with",)),
    "short-reply": ({"thinking_budget": 200_000, "max_output_tokens": 300}, ()),
    "no-thinking": ({"temperature": 0.7, "top_p": 0.9}, ("top_p",)),
    "thinking-off": ({"thinking_budget": 0, "temperature": 0.7, "top_k": 40}, ()),
}
"""Settings that Claude may refuse together, and those of them that are left out."""

CLAUDE = [
    setting(
        f"claude-{name}",
        "Anthropic",
        sampling,
        refuse_as_claude,
        left(*left_out, for_good=False),
        ANTHROPIC,
    )
    for name, (sampling, left_out) in _EXCLUSIVE.items()
]

SETTINGS = [
    *CLAUDE,
    setting(
        "temperature-deprecated",
        "Claude Opus 4.7",
        {"temperature": 0.7},
        lambda asked: (
            Refusal("`temperature` is deprecated for this model.")
            if "temperature" in asked.body
            else None
        ),
        left("temperature"),
        ANTHROPIC,
    ),
    setting(
        "temperature-and-top-p",
        "Claude behind LiteLLM, Copilot",
        {"temperature": 0.7, "top_p": 0.9},
        refuse_both,
        left("top_p", for_good=False),
    ),
    setting(
        "temperature-of-one",
        "OpenAI's models that reason",
        {"temperature": 0.7},
        without(
            "temperature",
            invalid(
                "Unsupported value: 'temperature' does not support 0.7 with this model. Only the "
                "default (1) value is supported.",
                param="temperature",
                code="unsupported_value",
            ),
        ),
        left("temperature"),
    ),
    setting(
        "temperature-of-kimi",
        "Moonshot",
        {"temperature": 0.7},
        without("temperature", invalid("invalid temperature: only 1 is allowed for this model")),
        left("temperature", for_good=False),
    ),
    setting(
        "parameter-unsupported",
        "OpenAI",
        {"top_p": 0.9},
        without(
            "top_p",
            invalid(
                "Unsupported parameter: 'top_p' is not supported with this model.",
                param="top_p",
                code="unsupported_parameter",
            ),
        ),
        left("top_p"),
    ),
    setting(
        "max-tokens-renamed",
        "OpenAI's models that reason",
        {"max_output_tokens": 900},
        without(
            "max_tokens",
            invalid(
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                "'max_completion_tokens' instead.",
                param="max_tokens",
                code="unsupported_parameter",
            ),
        ),
        Result(text="Mags nods.", learned={"without": ("max_tokens",)}),
    ),
    setting(
        "property-unsupported",
        "Groq",
        {"top_k": 40},
        without("top_k", invalid("property 'top_k' is unsupported, did you mean 'top_p'?")),
        left("top_k"),
    ),
    setting(
        "argument-unsupported",
        "xAI",
        {"presence_penalty": 0.5},
        without(
            "presence_penalty",
            {
                "code": "Client specified an invalid argument",
                "error": "Argument not supported on this model: presencePenalty",
            },
        ),
        left("presence_penalty"),
    ),
    setting(
        "parameter-of-a-model",
        "xAI, Grok 4.5",
        {"frequency_penalty": 0.5},
        without(
            "frequency_penalty",
            openai("Model grok-4.5 does not support parameter frequencyPenalty."),
        ),
        left("frequency_penalty"),
    ),
    setting(
        "stop-unsupported",
        "xAI, Grok 4",
        {"stop": ("###",)},
        without(
            "stop",
            {
                "code": "Client specified an invalid argument",
                "error": "Argument not supported on this model: stop",
            },
        ),
        left("stop"),
    ),
    setting(
        "extra-forbidden",
        "Mistral, TabbyAPI, LiteLLM",
        {"top_k": 40},
        without(
            "top_k",
            {
                "detail": [
                    {
                        "type": "extra_forbidden",
                        "loc": ["body", "top_k"],
                        "msg": "Extra inputs are not permitted",
                        "input": 40,
                    }
                ]
            },
            422,
        ),
        left("top_k"),
    ),
    setting(
        "field-unknown",
        "Google's OpenAI route",
        {"min_p": 0.1},
        without(
            "min_p",
            [
                {
                    "error": {
                        "code": 400,
                        "message": 'Invalid JSON payload received. Unknown name "min_p": Cannot '
                        "find field.",
                        "status": "INVALID_ARGUMENT",
                    }
                }
            ],
        ),
        left("min_p"),
    ),
    setting(
        "prefill-with-thoughts",
        "llama.cpp b8763, Jan",
        {"start_reply_with": "Mags"},
        refuse_prefill,
        left("start_reply_with"),
    ),
    setting(
        "value-refused",
        "vLLM",
        {"top_k": 40},
        without(
            "top_k",
            {
                "object": "error",
                "message": "top_k must be -1 (disable), or at least 1, got 40.",
                "type": "BadRequestError",
                "code": 400,
            },
        ),
        left("top_k", for_good=False),
    ),
    setting(
        "gemini-2.0-flash-lite",
        "Gemini 2.0 Flash-Lite",
        {"presence_penalty": 0.5},
        lambda asked: (
            Refusal("Penalty is not enabled for models/gemini-2.0-flash-lite")
            if "presencePenalty" in asked.settings
            else None
        ),
        left("presence_penalty"),
        GEMINI,
    ),
    setting(
        "budget-not-supported",
        "Gemini 3, Gemma",
        {"thinking_budget": 512},
        lambda asked: (
            Refusal("Unable to submit request because Thinking is not enabled for this model.")
            if "thinkingBudget" in asked.settings.get("thinkingConfig", {})
            else None
        ),
        left("thinking_budget"),
        GEMINI,
    ),
]
