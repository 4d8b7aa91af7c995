"""Answers of providers that are not replies, as they were seen, and the error that each becomes.

Adding one is one row. Sources are the issues and documents of each server.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from backend.generation.model import (
    ModelAuthError,
    ModelBlockedError,
    ModelContextOverflowError,
    ModelCreditError,
    ModelDataPolicyError,
    ModelError,
    ModelForeignAnswerError,
    ModelLoadingError,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelRateLimitError,
    ModelRedirectError,
    ModelRegionError,
    ModelRequestError,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    ModelWebPageError,
    ModelWrongAddressError,
)


@dataclass(frozen=True)
class Seen:
    """An answer as it was seen, and the members that its error has."""

    name: str
    status: int
    body: Any
    kind: type[ModelError]
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    in_stream: bool = False


def openai(message: str, **members: Any) -> dict[str, Any]:
    return {"error": {"message": message, **members}}


def anthropic(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def google(code: int, status: str, message: str, *details: Any) -> dict[str, Any]:
    error = {"code": code, "message": message, "status": status, "details": list(details)}
    return {"error": error}


def routed(code: int, raw: Any, **metadata: Any) -> dict[str, Any]:
    """OpenRouter's way to pass on another provider's error."""
    return openai("Provider returned error", code=code, metadata={"raw": raw, **metadata})


def page(title: str) -> str:
    return f"<!DOCTYPE html>\n<html><head><title>{title}</title></head><body>...</body></html>"


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}
QUOTA = "You exceeded your current quota, please check your plan and billing details."
COUNTRY = "Country, region, or territory not supported"
SIZES = {"window": 4096, "needed": 5000}

CREDIT = [
    Seen("OpenRouter", 402, openai("Insufficient credits. Add more.", code=402), ModelCreditError),
    Seen(
        "OpenRouter, for so long a reply",
        402,
        openai(
            "This request requires more credits, or fewer max_tokens. You requested up to 16384 "
            "tokens, but can only afford 3919.",
            code=402,
        ),
        ModelCreditError,
    ),
    Seen(
        "OpenRouter, for so long a prompt",
        402,
        openai("Prompt tokens limit exceeded: 230799 > 91442. To increase, visit the page."),
        ModelCreditError,
    ),
    Seen(
        "OpenRouter, the limit of a key",
        403,
        openai("Key limit exceeded (total limit). Manage it using the page", code=403),
        ModelCreditError,
    ),
    Seen(
        "OpenAI",
        429,
        openai(QUOTA, type="insufficient_quota", code="insufficient_quota", param=None),
        ModelCreditError,
    ),
    Seen("OpenAI without a code", 429, openai(QUOTA), ModelCreditError),
    Seen(
        "Anthropic",
        400,
        anthropic(
            "invalid_request_error",
            "Your credit balance is too low to access the Anthropic API. Please go to Plans & "
            "Billing to upgrade or purchase credits.",
        ),
        ModelCreditError,
    ),
    Seen(
        "Anthropic, a limit of the user's own",
        400,
        anthropic(
            "invalid_request_error",
            "You have reached your specified API usage limits. You will regain access on "
            "2026-09-01 at 00:00 UTC.",
        ),
        ModelCreditError,
    ),
    Seen("DeepSeek", 402, openai("Insufficient Balance", code="invalid_request"), ModelCreditError),
    Seen(
        "xAI",
        403,
        {
            "code": "The caller does not have permission to execute the specified operation",
            "error": "Your newly created team doesn't have any credits yet.",
        },
        ModelCreditError,
    ),
    Seen(
        "Hugging Face",
        402,
        {"error": "You have exceeded your monthly included credits for Inference Providers."},
        ModelCreditError,
    ),
    Seen(
        "Gemini, prepaid",
        429,
        google(429, "RESOURCE_EXHAUSTED", "Your prepayment credits are depleted."),
        ModelCreditError,
    ),
    Seen(
        "DashScope",
        400,
        openai("Access denied, make sure your account is in good standing.", code="Arrearage"),
        ModelCreditError,
    ),
]

RATE = [
    Seen(
        "OpenAI",
        429,
        openai(
            "Rate limit reached for gpt-4o in organization org-1 on requests per min (RPM): Limit "
            "3, Used 3, Requested 1. Please try again in 20s. Visit the page to learn more.",
            type="requests",
            code="rate_limit_exceeded",
        ),
        ModelRateLimitError,
        {"retry_after": 20},
    ),
    Seen(
        "OpenAI, in milliseconds",
        429,
        openai("Too many requests."),
        ModelRateLimitError,
        {"retry_after": 1.5},
        headers={"retry-after-ms": "1500", "retry-after": "2"},
    ),
    Seen(
        "OpenAI, by the limit that is used up",
        429,
        openai("Slow down."),
        ModelRateLimitError,
        {"retry_after": 360},
        headers={
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": "6m0s",
        },
    ),
    Seen(
        "Groq",
        429,
        openai(
            "Rate limit reached for model `llama-3.3-70b` in organization `org_1` on tokens per "
            "day (TPD): Limit 100000, Used 99912, Requested 480. Please try again in 5m38.688s. "
            "Need more tokens? Upgrade today.",
            type="tokens",
            code="rate_limit_exceeded",
        ),
        ModelRateLimitError,
        {"retry_after": 338.688},
    ),
    Seen(
        "Groq, a request larger than the limit of a minute",
        413,
        openai(
            "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested "
            "9000, please reduce your message size and try again.",
            type="tokens",
            code="rate_limit_exceeded",
        ),
        ModelRateLimitError,
    ),
    Seen(
        "Gemini",
        429,
        [google(429, "RESOURCE_EXHAUSTED", f"{QUOTA} Please retry in 34.07s.", RETRY_INFO)],
        ModelRateLimitError,
        {"retry_after": 34.07},
    ),
    Seen(
        "Anthropic",
        429,
        anthropic("rate_limit_error", "This request would exceed your rate limit."),
        ModelRateLimitError,
        {"retry_after": 12},
        headers={"retry-after": "12"},
    ),
    Seen(
        "OpenRouter, of the provider behind it",
        429,
        routed(
            429,
            "qwen/qwen3:free is temporarily rate-limited upstream. Please retry shortly.",
            provider_name="ModelRun",
            retry_after_seconds=29,
        ),
        ModelRateLimitError,
        {"retry_after": 29},
    ),
    Seen(
        "in a stream",
        200,
        openai("Rate limit exceeded: free-models-per-min.", code=429),
        ModelRateLimitError,
        in_stream=True,
    ),
    Seen("a bare status", 429, None, ModelRateLimitError),
    Seen("a web page", 429, page("Error 1015"), ModelRateLimitError),
]

FILTER = [
    Seen(
        "OpenRouter",
        403,
        openai(
            "anthropic/claude-3-5-haiku requires moderation on Amazon Bedrock. Your input was "
            'flagged for "violence". No credits were charged.',
            code=403,
            metadata={"reasons": ["violence"], "flagged_input": "She draws her"},
        ),
        ModelBlockedError,
        {"reason": "violence"},
    ),
    Seen(
        "OpenAI",
        400,
        openai(
            "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
            code="invalid_prompt",
        ),
        ModelBlockedError,
        {"reason": "invalid_prompt"},
    ),
    Seen(
        "Azure",
        400,
        openai(
            "The response was filtered due to the prompt triggering Azure OpenAI's content "
            "management policy.",
            code="content_filter",
            status=400,
            innererror={
                "code": "ResponsibleAIPolicyViolation",
                "content_filter_result": {
                    "hate": {"filtered": False, "severity": "safe"},
                    "violence": {"filtered": True, "severity": "medium"},
                },
            },
        ),
        ModelBlockedError,
        {"reason": "violence"},
    ),
    Seen(
        "Anthropic",
        400,
        anthropic("invalid_request_error", "Output blocked by content filtering policy"),
        ModelBlockedError,
    ),
    Seen(
        "DeepSeek",
        400,
        openai("Content Exists Risk", code="invalid_request_error"),
        ModelBlockedError,
    ),
    Seen(
        "DashScope",
        400,
        openai("Input data may contain inappropriate content.", code="data_inspection_failed"),
        ModelBlockedError,
        {"reason": "data_inspection_failed"},
    ),
]

REGION = [
    Seen(
        "Gemini",
        400,
        google(400, "FAILED_PRECONDITION", "User location is not supported for the API use."),
        ModelRegionError,
    ),
    Seen(
        "OpenAI",
        403,
        openai(COUNTRY, code="unsupported_country_region_territory", type="request_forbidden"),
        ModelRegionError,
    ),
    Seen(
        "OpenRouter, of the provider behind it",
        403,
        routed(
            403,
            {
                "__kind": "OK",
                "data": json.dumps(openai(COUNTRY, code="unsupported_country_region_territory")),
            },
            provider_name="OpenAI",
        ),
        ModelRegionError,
    ),
    Seen("Anthropic", 403, anthropic("forbidden", "Request not allowed"), ModelRegionError),
]

DATA_POLICY = [
    Seen(
        "OpenRouter",
        404,
        openai(
            "No endpoints found matching your data policy (Free model publication). Configure: "
            "https://openrouter.ai/settings/privacy",
            code=404,
        ),
        ModelDataPolicyError,
    ),
    Seen(
        "OpenRouter, with guardrails",
        404,
        openai("No endpoints available matching your guardrail restrictions and data policy."),
        ModelDataPolicyError,
    ),
    Seen(
        "OpenRouter, with a list of providers",
        404,
        openai("No allowed providers are available for the selected model.", code=404),
        ModelDataPolicyError,
    ),
]

MISSING = [
    Seen(
        "OpenAI",
        404,
        openai(
            "The model `gpt-9` does not exist or you do not have access to it.",
            type="invalid_request_error",
            code="model_not_found",
        ),
        ModelNotFoundError,
    ),
    Seen(
        "OpenAI, a project",
        403,
        openai("Project `p` does not have access to model `o9`", code="model_not_found"),
        ModelNotFoundError,
    ),
    Seen("OpenRouter", 400, openai("a/b is not a valid model ID", code=400), ModelNotFoundError),
    Seen(
        "OpenRouter, without servers",
        404,
        openai("No endpoints found for nousresearch/hermes-3:free.", code=404),
        ModelNotFoundError,
    ),
    Seen("Ollama", 404, openai('model "x" not found, try pulling it first'), ModelNotFoundError),
    Seen("Ollama's own API", 404, {"error": "model 'x' not found"}, ModelNotFoundError),
    Seen(
        "LM Studio",
        404,
        openai(
            "No models loaded. Please load a model in the developer page or use the 'lms load' "
            "command.",
            type="invalid_request_error",
            code="model_not_found",
        ),
        ModelNotFoundError,
    ),
    Seen(
        "LM Studio, as a bare text",
        400,
        {"error": "No models loaded. Please load a model in the developer page."},
        ModelNotFoundError,
    ),
    Seen(
        "vLLM",
        404,
        {
            "object": "error",
            "message": "The model `x` does not exist.",
            "type": "NotFoundError",
            "param": None,
            "code": 404,
        },
        ModelNotFoundError,
    ),
    Seen(
        "Gemini",
        404,
        google(
            404,
            "NOT_FOUND",
            "models/gemini-9 is not found for API version v1beta, or is not supported for "
            "generateContent.",
        ),
        ModelNotFoundError,
    ),
    Seen("Anthropic", 404, anthropic("not_found_error", "model: claude-9"), ModelNotFoundError),
    Seen("DeepSeek", 400, openai("Model Not Exist", code="invalid_request"), ModelNotFoundError),
    Seen(
        "Mistral",
        400,
        {"object": "error", "message": "Invalid model: mistral-9", "type": "invalid_model"},
        ModelNotFoundError,
    ),
    Seen(
        "Groq, a model that is gone",
        400,
        openai("The model `m` has been decommissioned.", code="model_decommissioned"),
        ModelNotFoundError,
    ),
    Seen(
        "one-api",
        503,
        openai("No available channel for model x under group default", type="new_api_error"),
        ModelNotFoundError,
    ),
]

ADDRESS = [
    Seen("FastAPI", 404, {"detail": "Not Found"}, ModelWrongAddressError),
    Seen(
        "llama.cpp",
        404,
        openai("File Not Found", code=404, type="not_found_error"),
        ModelWrongAddressError,
    ),
    Seen("Ollama", 404, "404 page not found", ModelWrongAddressError),
    Seen(
        "LM Studio",
        200,
        {"error": "Unexpected endpoint or method. (POST /chat/completions)"},
        ModelWrongAddressError,
    ),
    Seen("OpenAI", 404, openai("Invalid URL (POST /v1/v1/chat)"), ModelWrongAddressError),
    Seen("a web server", 404, page("404 Not Found"), ModelWrongAddressError),
    Seen("a web server, for POST", 405, page("405 Not Allowed"), ModelWrongAddressError),
    Seen("nothing", 404, "", ModelWrongAddressError),
]

KEY = [
    Seen(
        "OpenAI",
        401,
        openai("Incorrect API key provided: sk-the***self.", code="invalid_api_key"),
        ModelAuthError,
    ),
    Seen(
        "Gemini",
        400,
        google(
            400,
            "INVALID_ARGUMENT",
            "API key not valid. Please pass a valid API key.",
            {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"},
        ),
        ModelAuthError,
    ),
    Seen(
        "Gemini, another permission",
        403,
        google(403, "PERMISSION_DENIED", "Method doesn't allow unregistered callers."),
        ModelAuthError,
    ),
    Seen("Anthropic", 401, anthropic("authentication_error", "invalid x-api-key"), ModelAuthError),
    Seen("OpenRouter", 401, openai("No auth credentials found", code=401), ModelAuthError),
    Seen("OpenRouter, a deleted key", 401, openai("User not found.", code=401), ModelAuthError),
    Seen(
        "xAI",
        400,
        {"code": "Client specified an invalid argument", "error": "Incorrect API key provided"},
        ModelAuthError,
    ),
    Seen("llama.cpp", 401, openai("Invalid API Key", type="authentication_error"), ModelAuthError),
    Seen("vLLM", 401, {"error": "Unauthorized"}, ModelAuthError),
    Seen("nothing", 403, None, ModelAuthError),
]

OVERFLOW = [
    Seen(
        "llama.cpp",
        400,
        openai(
            "the request exceeds the available context size. try increasing the context size or "
            "enable context shift",
            code=400,
            type="exceed_context_size_error",
            n_prompt_tokens=5000,
            n_ctx=4096,
        ),
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "llama.cpp, newer",
        400,
        openai(
            "request (5000 tokens) exceeds the available context size (4096 tokens), try "
            "increasing it",
            code=400,
            type="exceed_context_size_error",
        ),
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "llama.cpp, amid the reply",
        500,
        openai("Context size has been exceeded.", code=500, type="server_error"),
        ModelContextOverflowError,
    ),
    Seen(
        "llama-cpp-python",
        400,
        openai(
            "This model's maximum context length is 4096 tokens. However, you requested 5000 "
            "tokens (4900 in the messages, 100 in the completion). Please reduce the length of the "
            "messages or completion.",
            type="invalid_request_error",
            param="messages",
            code="context_length_exceeded",
        ),
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "llama-cpp-python, in a stream",
        200,
        openai("Requested tokens (5000) exceed context window of 4096", type="internal_error"),
        ModelContextOverflowError,
        SIZES,
        in_stream=True,
    ),
    Seen(
        "OpenRouter",
        400,
        openai(
            "This endpoint's maximum context length is 4096 tokens. However, you requested about "
            '5000 tokens (4900 of text input, 100 in the output). Please use the "middle-out" '
            "transform.",
            code=400,
            metadata={"provider_name": "Chutes"},
        ),
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "OpenRouter, of the provider behind it",
        400,
        routed(400, json.dumps(openai("prompt is too long: 5000 tokens > 4096 maximum"))),
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "vLLM",
        400,
        {
            "object": "error",
            "message": "This model's maximum context length is 4096 tokens. However, you requested "
            "5000 tokens.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "vLLM, newer",
        400,
        openai(
            "This model's maximum context length is 4096 tokens. However, you requested 1000 "
            "output tokens and your prompt contains at least 4000 input tokens, for a total of at "
            "least 5000 tokens. Please reduce the length of the input prompt.",
            type="BadRequestError",
            param="input_tokens",
            code=400,
        ),
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "vLLM, for a reply that is too long",
        400,
        {
            "object": "error",
            "message": "'max_tokens' or 'max_completion_tokens' is too large: 1000. This model's "
            "maximum context length is 4096 tokens and your request has 4000 input tokens (1000 > "
            "4096 - 4000).",
        },
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "vLLM's engine",
        400,
        openai(
            "The decoder prompt (length 5000) is longer than the maximum model length of 4096. "
            "Make sure that `max_model_len` is no smaller than the number of text tokens."
        ),
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "LM Studio",
        400,
        {
            "error": "Trying to keep the first 5000 tokens when context the overflows. However, "
            "the model is loaded with context length of only 4096 tokens, which is not enough. Try "
            "to load the model with a larger context length, or provide a shorter input"
        },
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "LM Studio, newer",
        400,
        {"error": "Cannot truncate prompt with n_keep (5000) >= n_ctx (4096)"},
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "LM Studio, newest",
        400,
        {
            "error": "The number of tokens to keep from the initial prompt is greater than the "
            "context length (n_keep: 5000>= n_ctx: 4096). Try to load the model with a larger "
            "context length."
        },
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "Ollama",
        400,
        {"error": "prompt too long; exceeded max context length by 904 tokens"},
        ModelContextOverflowError,
    ),
    Seen(
        "Ollama, embeddings",
        400,
        openai("the input length exceeds the context length", type="api_error"),
        ModelContextOverflowError,
    ),
    Seen(
        "TabbyAPI",
        400,
        {"detail": "Prompt length 5000 is greater than max_seq_len 4096"},
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "TabbyAPI, with the reply",
        500,
        {"error": {"message": "Request length 4000 + 1000 is greater than max_seq_len 4096"}},
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "KoboldCpp",
        500,
        {"detail": {"msg": "Prompt is too long for the context window.", "type": "bad_input"}},
        ModelContextOverflowError,
    ),
    Seen(
        "OpenAI",
        400,
        openai(
            "Your input exceeds the context window of this model. Please adjust your input.",
            code="context_length_exceeded",
        ),
        ModelContextOverflowError,
    ),
    Seen(
        "OpenAI, by messages",
        400,
        openai(
            "Input tokens exceed the configured limit of 4,096 tokens. Your messages resulted in "
            "5,000 tokens. Please reduce the length of the messages.",
            code="context_length_exceeded",
        ),
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "OpenAI, in earlier years",
        400,
        openai(
            "This model's maximum context length is 4096 tokens. However, your messages resulted "
            "in 5000 tokens."
        ),
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "Anthropic",
        400,
        anthropic("invalid_request_error", "prompt is too long: 5000 tokens > 4096 maximum"),
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "Anthropic, with the reply",
        400,
        anthropic(
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 4000 + 1000 > 4096, decrease "
            "input length or `max_tokens` and try again",
        ),
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "Anthropic, in bytes",
        413,
        anthropic("request_too_large", "Request exceeds the maximum size"),
        ModelContextOverflowError,
    ),
    Seen(
        "Gemini",
        400,
        google(
            400,
            "INVALID_ARGUMENT",
            "The input token count (5000) exceeds the maximum number of tokens allowed (4096).",
        ),
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "Mistral",
        400,
        {
            "object": "error",
            "message": "Prompt contains 5000 tokens and 0 draft tokens, too large for model with "
            "4096 maximum context length",
            "type": "invalid_request_prompt",
            "code": "3051",
        },
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "DeepSeek",
        400,
        openai(
            "This model's maximum context length is 4096 tokens. However, you requested 5000 "
            "tokens (4900 in the messages, 100 in the completion). Please reduce the length of the "
            "messages or completion.",
            type="invalid_request_error",
            code="invalid_request_error",
        ),
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "xAI",
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 4096 but the request contains 5000 "
            "tokens.",
        },
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "SGLang",
        400,
        {
            "object": "error",
            "message": "The input (5000 tokens) is longer than the model's context length (4096 "
            "tokens).",
        },
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "Text Generation Inference",
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. "
            "Given: 4000 `inputs` tokens and 1000 `max_new_tokens`",
            "error_type": "validation",
        },
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "Moonshot",
        400,
        openai("Invalid request: Your request exceeded model token limit: 4096 (requested: 5000)"),
        ModelContextOverflowError,
        SIZES,
    ),
    Seen(
        "DashScope",
        400,
        openai("Range of input length should be [1, 4096]", code="invalid_parameter_error"),
        ModelContextOverflowError,
        {"window": 4096},
    ),
    Seen(
        "Cohere",
        400,
        {
            "message": "too many tokens: total number of tokens in the prompt cannot exceed 4096 - "
            "received 5000. Try using a shorter prompt."
        },
        ModelContextOverflowError,
        SIZES,
    ),
    Seen("Cerebras", 413, None, ModelContextOverflowError),
]

LOADING = [
    Seen(
        "llama.cpp",
        503,
        openai("Loading model", code=503, type="unavailable_error"),
        ModelLoadingError,
    ),
    Seen("Ollama", 500, openai("llm server loading model", type="api_error"), ModelLoadingError),
    Seen("LM Studio", 503, {"error": "Model is still loading. Please wait."}, ModelLoadingError),
    Seen(
        "Hugging Face",
        503,
        {"error": "Model meta-llama/x is currently loading", "estimated_time": 20.5},
        ModelLoadingError,
    ),
]

OVERLOADED = [
    Seen(
        "KoboldCpp",
        503,
        {"detail": {"msg": "Server is busy; please try again later.", "type": "unavailable"}},
        ModelOverloadedError,
    ),
    Seen("Anthropic", 529, anthropic("overloaded_error", "Overloaded"), ModelOverloadedError),
    Seen(
        "Anthropic, in a stream",
        200,
        anthropic("overloaded_error", "Overloaded"),
        ModelOverloadedError,
        in_stream=True,
    ),
    Seen(
        "Gemini",
        503,
        google(503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
        ModelOverloadedError,
    ),
    Seen("Together", 503, openai("The server is overloaded or not ready yet."), ModelLoadingError),
    Seen("a bare status", 503, None, ModelOverloadedError),
]

SERVER = [
    Seen("OpenAI", 500, openai("The server had an error.", type="server_error"), ModelServerError),
    Seen(
        "Ollama",
        500,
        {"error": "model requires more system memory (5.3 GiB) than is available (4.4 GiB)"},
        ModelServerError,
    ),
    Seen(
        "OpenRouter, in a stream",
        200,
        openai("Provider disconnected", code=502, metadata={"error_type": "provider_unavailable"}),
        ModelServerError,
        in_stream=True,
    ),
    Seen(
        "Anthropic, in a stream",
        200,
        anthropic("api_error", "Internal server error"),
        ModelServerError,
        in_stream=True,
    ),
    Seen("a stream without a code", 200, {"error": "oops"}, ModelServerError, in_stream=True),
    Seen("a web page", 500, page("Internal Server Error"), ModelServerError),
]

ELSEWHERE = [
    Seen("a login page", 200, page("Please log in"), ModelWebPageError),
    Seen(
        "a login page without a title", 200, "<html><body>Log in</body></html>", ModelWebPageError
    ),
    Seen("Cloudflare's challenge", 403, page("Just a moment..."), ModelWebPageError),
    Seen(
        "a page by its type alone",
        200,
        "Bonjour",
        ModelWebPageError,
        headers={"content-type": "text/html; charset=utf-8"},
    ),
    Seen("nginx", 502, page("502 Bad Gateway"), ModelUnavailableError),
    Seen("Cloudflare's tunnel", 530, page("Cloudflare Tunnel error"), ModelUnavailableError),
    Seen("Cloudflare's tunnel, as JSON", 530, {"error_code": 1033}, ModelUnavailableError),
    Seen("Cloudflare, unreachable", 522, page("522"), ModelUnavailableError),
    Seen(
        "ngrok",
        404,
        page("ngrok"),
        ModelUnavailableError,
        headers={"ngrok-error-code": "ERR_NGROK_3200"},
    ),
    Seen("Cloudflare's time-out", 524, page("524"), ModelTimeoutError),
    Seen("a proxy's time-out", 504, page("504 Gateway Time-out"), ModelTimeoutError),
    Seen("a proxy's limit", 413, page("413 Request Entity Too Large"), ModelRequestError),
    Seen("a redirect", 301, "", ModelRedirectError, headers={"location": "https://b.example/v1"}),
    Seen("other JSON", 200, {"status": "ok"}, ModelForeignAnswerError),
    Seen("a list", 200, [1, 2], ModelForeignAnswerError),
    Seen("a text", 200, "Ollama is running", ModelForeignAnswerError),
]

REQUEST = [
    Seen(
        "OpenAI",
        400,
        openai("Unsupported parameter: 'top_k'", param="top_k", code="unsupported_parameter"),
        ModelRequestError,
    ),
    Seen(
        "OpenRouter, without tools",
        404,
        openai("No endpoints found that support tool use.", code=404),
        ModelRequestError,
    ),
    Seen(
        "a chat template",
        400,
        openai("Conversation roles must alternate user/assistant/user/assistant/..."),
        ModelRequestError,
    ),
    Seen(
        "FastAPI",
        422,
        {"detail": [{"loc": ["body", "stop"], "msg": "Input should be a list", "input": "She"}]},
        ModelRequestError,
    ),
]

ANSWERS = {
    f"{kind}: {seen.name}": seen
    for kind, rows in {
        "credit": CREDIT,
        "rate limit": RATE,
        "filter": FILTER,
        "region": REGION,
        "data policy": DATA_POLICY,
        "missing model": MISSING,
        "address": ADDRESS,
        "key": KEY,
        "overflow": OVERFLOW,
        "loading": LOADING,
        "overloaded": OVERLOADED,
        "server": SERVER,
        "elsewhere": ELSEWHERE,
        "request": REQUEST,
    }.items()
    for seen in rows
}
