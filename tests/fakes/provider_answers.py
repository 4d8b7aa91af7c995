"""Answers of providers that are not replies, as they were seen, and the error that each becomes.

Adding one is one row. Sources are the issues and documents of each server.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
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

credit = partial(Seen, kind=ModelCreditError)
rate = partial(Seen, kind=ModelRateLimitError)
filtered = partial(Seen, kind=ModelBlockedError)
region = partial(Seen, kind=ModelRegionError)
policy = partial(Seen, kind=ModelDataPolicyError)
missing = partial(Seen, kind=ModelNotFoundError)
address = partial(Seen, kind=ModelWrongAddressError)
key = partial(Seen, kind=ModelAuthError)
overflow = partial(Seen, kind=ModelContextOverflowError)
loading = partial(Seen, kind=ModelLoadingError)
overloaded = partial(Seen, kind=ModelOverloadedError)
server = partial(Seen, kind=ModelServerError)
request = partial(Seen, kind=ModelRequestError)
sized = partial(overflow, extra=SIZES)

CREDIT = [
    credit("OpenRouter", 402, openai("Insufficient credits. Add more.", code=402)),
    credit(
        "OpenRouter, for so long a reply",
        402,
        openai(
            "This request requires more credits, or fewer max_tokens. You requested up to 16384 "
            "tokens, but can only afford 3919.",
            code=402,
        ),
    ),
    credit(
        "OpenRouter, for so long a prompt",
        402,
        openai("Prompt tokens limit exceeded: 230799 > 91442. To increase, visit the page."),
    ),
    credit(
        "OpenRouter, the limit of a key",
        403,
        openai("Key limit exceeded (total limit). Manage it using the page", code=403),
    ),
    credit(
        "OpenAI",
        429,
        openai(QUOTA, type="insufficient_quota", code="insufficient_quota", param=None),
    ),
    credit("OpenAI without a code", 429, openai(QUOTA)),
    credit(
        "Anthropic",
        400,
        anthropic(
            "invalid_request_error",
            "Your credit balance is too low to access the Anthropic API. Please go to Plans & "
            "Billing to upgrade or purchase credits.",
        ),
    ),
    credit(
        "Anthropic, a limit of the user's own",
        400,
        anthropic(
            "invalid_request_error",
            "You have reached your specified API usage limits. You will regain access on "
            "2026-09-01 at 00:00 UTC.",
        ),
    ),
    credit("DeepSeek", 402, openai("Insufficient Balance", code="invalid_request")),
    credit(
        "xAI",
        403,
        {
            "code": "The caller does not have permission to execute the specified operation",
            "error": "Your newly created team doesn't have any credits yet.",
        },
    ),
    credit(
        "Hugging Face",
        402,
        {"error": "You have exceeded your monthly included credits for Inference Providers."},
    ),
    credit(
        "Gemini, prepaid",
        429,
        google(429, "RESOURCE_EXHAUSTED", "Your prepayment credits are depleted."),
    ),
    credit(
        "DashScope",
        400,
        openai("Access denied, make sure your account is in good standing.", code="Arrearage"),
    ),
]

RATE = [
    rate(
        "OpenAI",
        429,
        openai(
            "Rate limit reached for gpt-4o in organization org-1 on requests per min (RPM): Limit "
            "3, Used 3, Requested 1. Please try again in 20s. Visit the page to learn more.",
            type="requests",
            code="rate_limit_exceeded",
        ),
        extra={"retry_after": 20},
    ),
    rate(
        "OpenAI, in milliseconds",
        429,
        openai("Too many requests."),
        extra={"retry_after": 1.5},
        headers={"retry-after-ms": "1500", "retry-after": "2"},
    ),
    rate(
        "OpenAI, by the limit that is used up",
        429,
        openai("Slow down."),
        extra={"retry_after": 360},
        headers={
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": "6m0s",
        },
    ),
    rate(
        "Groq",
        429,
        openai(
            "Rate limit reached for model `llama-3.3-70b` in organization `org_1` on tokens per "
            "day (TPD): Limit 100000, Used 99912, Requested 480. Please try again in 5m38.688s. "
            "Need more tokens? Upgrade today.",
            type="tokens",
            code="rate_limit_exceeded",
        ),
        extra={"retry_after": 338.688},
    ),
    rate(
        "Groq, a request larger than the limit of a minute",
        413,
        openai(
            "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested "
            "9000, please reduce your message size and try again.",
            type="tokens",
            code="rate_limit_exceeded",
        ),
    ),
    rate(
        "Gemini",
        429,
        [google(429, "RESOURCE_EXHAUSTED", f"{QUOTA} Please retry in 34.07s.", RETRY_INFO)],
        extra={"retry_after": 34.07},
    ),
    rate(
        "Anthropic",
        429,
        anthropic("rate_limit_error", "This request would exceed your rate limit."),
        extra={"retry_after": 12},
        headers={"retry-after": "12"},
    ),
    rate(
        "OpenRouter, of the provider behind it",
        429,
        routed(
            429,
            "qwen/qwen3:free is temporarily rate-limited upstream. Please retry shortly.",
            provider_name="ModelRun",
            retry_after_seconds=29,
        ),
        extra={"retry_after": 29},
    ),
    rate(
        "in a stream",
        200,
        openai("Rate limit exceeded: free-models-per-min.", code=429),
        in_stream=True,
    ),
    rate("a bare status", 429, None),
    rate("a web page", 429, page("Error 1015")),
]

FILTER = [
    filtered(
        "OpenRouter",
        403,
        openai(
            "anthropic/claude-3-5-haiku requires moderation on Amazon Bedrock. Your input was "
            'flagged for "violence". No credits were charged.',
            code=403,
            metadata={"reasons": ["violence"], "flagged_input": "She draws her"},
        ),
        extra={"reason": "violence"},
    ),
    filtered(
        "OpenAI",
        400,
        openai(
            "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
            code="invalid_prompt",
        ),
        extra={"reason": "invalid_prompt"},
    ),
    filtered(
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
        extra={"reason": "violence"},
    ),
    filtered(
        "Anthropic",
        400,
        anthropic("invalid_request_error", "Output blocked by content filtering policy"),
    ),
    filtered("DeepSeek", 400, openai("Content Exists Risk", code="invalid_request_error")),
    filtered(
        "DashScope",
        400,
        openai("Input data may contain inappropriate content.", code="data_inspection_failed"),
        extra={"reason": "data_inspection_failed"},
    ),
]

REGION = [
    region(
        "Gemini",
        400,
        google(400, "FAILED_PRECONDITION", "User location is not supported for the API use."),
    ),
    region(
        "OpenAI",
        403,
        openai(COUNTRY, code="unsupported_country_region_territory", type="request_forbidden"),
    ),
    region(
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
    ),
    region("Anthropic", 403, anthropic("forbidden", "Request not allowed")),
]

DATA_POLICY = [
    policy(
        "OpenRouter",
        404,
        openai(
            "No endpoints found matching your data policy (Free model publication). Configure: "
            "https://openrouter.ai/settings/privacy",
            code=404,
        ),
    ),
    policy(
        "OpenRouter, with guardrails",
        404,
        openai("No endpoints available matching your guardrail restrictions and data policy."),
    ),
    policy(
        "OpenRouter, with a list of providers",
        404,
        openai("No allowed providers are available for the selected model.", code=404),
    ),
]

MISSING = [
    missing(
        "OpenAI",
        404,
        openai(
            "The model `gpt-9` does not exist or you do not have access to it.",
            type="invalid_request_error",
            code="model_not_found",
        ),
    ),
    missing(
        "OpenAI, a project",
        403,
        openai("Project `p` does not have access to model `o9`", code="model_not_found"),
    ),
    missing("OpenRouter", 400, openai("a/b is not a valid model ID", code=400)),
    missing(
        "OpenRouter, without servers",
        404,
        openai("No endpoints found for nousresearch/hermes-3:free.", code=404),
    ),
    missing("Ollama", 404, openai('model "x" not found, try pulling it first')),
    missing("Ollama's own API", 404, {"error": "model 'x' not found"}),
    missing(
        "LM Studio",
        404,
        openai(
            "No models loaded. Please load a model in the developer page or use the 'lms load' "
            "command.",
            type="invalid_request_error",
            code="model_not_found",
        ),
    ),
    missing(
        "LM Studio, as a bare text",
        400,
        {"error": "No models loaded. Please load a model in the developer page."},
    ),
    missing(
        "vLLM",
        404,
        {
            "object": "error",
            "message": "The model `x` does not exist.",
            "type": "NotFoundError",
            "param": None,
            "code": 404,
        },
    ),
    missing(
        "Gemini",
        404,
        google(
            404,
            "NOT_FOUND",
            "models/gemini-9 is not found for API version v1beta, or is not supported for "
            "generateContent.",
        ),
    ),
    missing("Anthropic", 404, anthropic("not_found_error", "model: claude-9")),
    missing("DeepSeek", 400, openai("Model Not Exist", code="invalid_request")),
    missing(
        "Mistral",
        400,
        {"object": "error", "message": "Invalid model: mistral-9", "type": "invalid_model"},
    ),
    missing(
        "Groq, a model that is gone",
        400,
        openai("The model `m` has been decommissioned.", code="model_decommissioned"),
    ),
    missing(
        "one-api",
        503,
        openai("No available channel for model x under group default", type="new_api_error"),
    ),
]

ADDRESS = [
    address("FastAPI", 404, {"detail": "Not Found"}),
    address("llama.cpp", 404, openai("File Not Found", code=404, type="not_found_error")),
    address("Ollama", 404, "404 page not found"),
    address("LM Studio", 200, {"error": "Unexpected endpoint or method. (POST /chat/completions)"}),
    address("OpenAI", 404, openai("Invalid URL (POST /v1/v1/chat)")),
    address("a web server", 404, page("404 Not Found")),
    address("a web server, for POST", 405, page("405 Not Allowed")),
    address("nothing", 404, ""),
]

KEY = [
    key(
        "OpenAI", 401, openai("Incorrect API key provided: sk-the***self.", code="invalid_api_key")
    ),
    key(
        "Gemini",
        400,
        google(
            400,
            "INVALID_ARGUMENT",
            "API key not valid. Please pass a valid API key.",
            {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"},
        ),
    ),
    key(
        "Gemini, another permission",
        403,
        google(403, "PERMISSION_DENIED", "Method doesn't allow unregistered callers."),
    ),
    key("Anthropic", 401, anthropic("authentication_error", "invalid x-api-key")),
    key("OpenRouter", 401, openai("No auth credentials found", code=401)),
    key("OpenRouter, a deleted key", 401, openai("User not found.", code=401)),
    key(
        "xAI",
        400,
        {"code": "Client specified an invalid argument", "error": "Incorrect API key provided"},
    ),
    key("llama.cpp", 401, openai("Invalid API Key", type="authentication_error")),
    key("vLLM", 401, {"error": "Unauthorized"}),
    key("nothing", 403, None),
]

OVERFLOW = [
    sized(
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
    ),
    sized(
        "llama.cpp, newer",
        400,
        openai(
            "request (5000 tokens) exceeds the available context size (4096 tokens), try "
            "increasing it",
            code=400,
            type="exceed_context_size_error",
        ),
    ),
    overflow(
        "llama.cpp, amid the reply",
        500,
        openai("Context size has been exceeded.", code=500, type="server_error"),
    ),
    sized(
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
    ),
    sized(
        "llama-cpp-python, in a stream",
        200,
        openai("Requested tokens (5000) exceed context window of 4096", type="internal_error"),
        in_stream=True,
    ),
    sized(
        "OpenRouter",
        400,
        openai(
            "This endpoint's maximum context length is 4096 tokens. However, you requested about "
            '5000 tokens (4900 of text input, 100 in the output). Please use the "middle-out" '
            "transform.",
            code=400,
            metadata={"provider_name": "Chutes"},
        ),
    ),
    sized(
        "OpenRouter, of the provider behind it",
        400,
        routed(400, json.dumps(openai("prompt is too long: 5000 tokens > 4096 maximum"))),
    ),
    sized(
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
    ),
    sized(
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
    ),
    sized(
        "vLLM, for a reply that is too long",
        400,
        {
            "object": "error",
            "message": "'max_tokens' or 'max_completion_tokens' is too large: 1000. This model's "
            "maximum context length is 4096 tokens and your request has 4000 input tokens (1000 > "
            "4096 - 4000).",
        },
    ),
    sized(
        "vLLM's engine",
        400,
        openai(
            "The decoder prompt (length 5000) is longer than the maximum model length of 4096. "
            "Make sure that `max_model_len` is no smaller than the number of text tokens."
        ),
    ),
    sized(
        "LM Studio",
        400,
        {
            "error": "Trying to keep the first 5000 tokens when context the overflows. However, "
            "the model is loaded with context length of only 4096 tokens, which is not enough. Try "
            "to load the model with a larger context length, or provide a shorter input"
        },
    ),
    sized(
        "LM Studio, newer",
        400,
        {"error": "Cannot truncate prompt with n_keep (5000) >= n_ctx (4096)"},
    ),
    sized(
        "LM Studio, newest",
        400,
        {
            "error": "The number of tokens to keep from the initial prompt is greater than the "
            "context length (n_keep: 5000>= n_ctx: 4096). Try to load the model with a larger "
            "context length."
        },
    ),
    overflow(
        "Ollama", 400, {"error": "prompt too long; exceeded max context length by 904 tokens"}
    ),
    overflow(
        "Ollama, embeddings",
        400,
        openai("the input length exceeds the context length", type="api_error"),
    ),
    sized("TabbyAPI", 400, {"detail": "Prompt length 5000 is greater than max_seq_len 4096"}),
    sized(
        "TabbyAPI, with the reply",
        500,
        {"error": {"message": "Request length 4000 + 1000 is greater than max_seq_len 4096"}},
    ),
    overflow(
        "KoboldCpp",
        500,
        {"detail": {"msg": "Prompt is too long for the context window.", "type": "bad_input"}},
    ),
    overflow(
        "OpenAI",
        400,
        openai(
            "Your input exceeds the context window of this model. Please adjust your input.",
            code="context_length_exceeded",
        ),
    ),
    sized(
        "OpenAI, by messages",
        400,
        openai(
            "Input tokens exceed the configured limit of 4,096 tokens. Your messages resulted in "
            "5,000 tokens. Please reduce the length of the messages.",
            code="context_length_exceeded",
        ),
    ),
    sized(
        "OpenAI, in earlier years",
        400,
        openai(
            "This model's maximum context length is 4096 tokens. However, your messages resulted "
            "in 5000 tokens."
        ),
    ),
    sized(
        "Anthropic",
        400,
        anthropic("invalid_request_error", "prompt is too long: 5000 tokens > 4096 maximum"),
    ),
    sized(
        "Anthropic, with the reply",
        400,
        anthropic(
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 4000 + 1000 > 4096, decrease "
            "input length or `max_tokens` and try again",
        ),
    ),
    overflow(
        "Anthropic, in bytes",
        413,
        anthropic("request_too_large", "Request exceeds the maximum size"),
    ),
    sized(
        "Gemini",
        400,
        google(
            400,
            "INVALID_ARGUMENT",
            "The input token count (5000) exceeds the maximum number of tokens allowed (4096).",
        ),
    ),
    sized(
        "Mistral",
        400,
        {
            "object": "error",
            "message": "Prompt contains 5000 tokens and 0 draft tokens, too large for model with "
            "4096 maximum context length",
            "type": "invalid_request_prompt",
            "code": "3051",
        },
    ),
    sized(
        "DeepSeek",
        400,
        openai(
            "This model's maximum context length is 4096 tokens. However, you requested 5000 "
            "tokens (4900 in the messages, 100 in the completion). Please reduce the length of the "
            "messages or completion.",
            type="invalid_request_error",
            code="invalid_request_error",
        ),
    ),
    sized(
        "xAI",
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 4096 but the request contains 5000 "
            "tokens.",
        },
    ),
    sized(
        "SGLang",
        400,
        {
            "object": "error",
            "message": "The input (5000 tokens) is longer than the model's context length (4096 "
            "tokens).",
        },
    ),
    sized(
        "Text Generation Inference",
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. "
            "Given: 4000 `inputs` tokens and 1000 `max_new_tokens`",
            "error_type": "validation",
        },
    ),
    sized(
        "Moonshot",
        400,
        openai("Invalid request: Your request exceeded model token limit: 4096 (requested: 5000)"),
    ),
    overflow(
        "DashScope",
        400,
        openai("Range of input length should be [1, 4096]", code="invalid_parameter_error"),
        extra={"window": 4096},
    ),
    sized(
        "Cohere",
        400,
        {
            "message": "too many tokens: total number of tokens in the prompt cannot exceed 4096 - "
            "received 5000. Try using a shorter prompt."
        },
    ),
    overflow("Cerebras", 413, None),
]

LOADING = [
    loading("llama.cpp", 503, openai("Loading model", code=503, type="unavailable_error")),
    loading("Ollama", 500, openai("llm server loading model", type="api_error")),
    loading("LM Studio", 503, {"error": "Model is still loading. Please wait."}),
    loading(
        "Hugging Face",
        503,
        {"error": "Model meta-llama/x is currently loading", "estimated_time": 20.5},
    ),
]

OVERLOADED = [
    overloaded(
        "KoboldCpp",
        503,
        {"detail": {"msg": "Server is busy; please try again later.", "type": "unavailable"}},
    ),
    overloaded("Anthropic", 529, anthropic("overloaded_error", "Overloaded")),
    overloaded(
        "Anthropic, in a stream", 200, anthropic("overloaded_error", "Overloaded"), in_stream=True
    ),
    overloaded(
        "Gemini",
        503,
        google(503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
    ),
    Seen("Together", 503, openai("The server is overloaded or not ready yet."), ModelLoadingError),
    overloaded("a bare status", 503, None),
]

SERVER = [
    server("OpenAI", 500, openai("The server had an error.", type="server_error")),
    server(
        "Ollama",
        500,
        {"error": "model requires more system memory (5.3 GiB) than is available (4.4 GiB)"},
    ),
    server(
        "OpenRouter, in a stream",
        200,
        openai("Provider disconnected", code=502, metadata={"error_type": "provider_unavailable"}),
        in_stream=True,
    ),
    server(
        "Anthropic, in a stream",
        200,
        anthropic("api_error", "Internal server error"),
        in_stream=True,
    ),
    server("a stream without a code", 200, {"error": "oops"}, in_stream=True),
    server("a web page", 500, page("Internal Server Error")),
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
    request(
        "OpenAI",
        400,
        openai("Unsupported parameter: 'top_k'", param="top_k", code="unsupported_parameter"),
    ),
    request(
        "OpenRouter, without tools",
        404,
        openai("No endpoints found that support tool use.", code=404),
    ),
    request(
        "a chat template",
        400,
        openai("Conversation roles must alternate user/assistant/user/assistant/..."),
    ),
    request(
        "FastAPI",
        422,
        {"detail": [{"loc": ["body", "stop"], "msg": "Input should be a list", "input": "She"}]},
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
