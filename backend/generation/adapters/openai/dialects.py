"""The differences between OpenAI-compatible servers: settings, their names, and prefill.

Sources: the servers' references, as of November 2026.
https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md,
https://lite.koboldai.net/koboldcpp_api, https://docs.vllm.ai/en/latest/serving/,
https://theroyallab.github.io/tabbyAPI, https://docs.ollama.com/api/openai-compatibility,
https://lmstudio.ai/docs/developer/openai-compat, https://openrouter.ai/docs/api/reference/parameters,
https://api-docs.deepseek.com, https://docs.mistral.ai/api, https://platform.openai.com/docs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.generation.catalogue import MessageShape
from backend.generation.client.provider import ServicePreset
from backend.generation.sampling import SamplingField
from backend.settings import ServerName


@dataclass(frozen=True, slots=True)
class CountingRoute:
    """The route by which a server counts tokens.

    `path` starts at the server's root. `member` is the request's member with the text, and `answer`
    the answer's member with the tokens or their number.
    """

    path: str
    member: str
    answer: str


def build_route_url(base_url: str, path: str) -> str:
    """Return the URL of a route at a server's root. `base_url` is its API, usually at `/v1`."""
    return base_url.rstrip("/").removesuffix("/v1") + path


_LLAMA_CPP = CountingRoute("/tokenize", "content", "tokens")
_LLAMA_CPP_PYTHON = CountingRoute("/extras/tokenize/count", "input", "count")
_KOBOLDCPP = CountingRoute("/api/extra/tokencount", "prompt", "value")
_VLLM = CountingRoute("/tokenize", "prompt", "count")
_TABBYAPI = CountingRoute("/v1/token/encode", "text", "length")


@dataclass(frozen=True, slots=True)
class ServerDialect:
    """The settings and routes of one server.

    Attributes:
        accepts: The supported settings.
        names: The server's names of settings. A dot separates nested members.
        prefill: Members of a request to continue the last message.
        prefix: Members of the message to continue.
        counts: Routes that may count tokens.
        needs_limit: Without an output limit, the server fills its window or stops early.
        shape: The message shape of models that are not known better.
        concurrency: Default number of concurrent requests; None if unlimited.
        slots: The route that lists its slots, like llama.cpp's.
        reads_addresses: It loads images from addresses. False for local servers, which could be
            asked for addresses inside the operator's network.
    """

    accepts: frozenset[SamplingField]
    names: Mapping[SamplingField, str] = field(default_factory=dict[SamplingField, str])
    prefill: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prefix: Mapping[str, Any] = field(default_factory=dict[str, Any])
    counts: tuple[CountingRoute, ...] = ()
    needs_limit: bool = False
    shape: MessageShape = "lenient"
    concurrency: int | None = None
    slots: str = ""
    reads_addresses: bool = False


_COMMON: frozenset[SamplingField] = frozenset(
    {
        *("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop"),
        *("max_output_tokens", "reasoning_effort", "json_schema"),
    }
)
_DRY_AND_XTC: frozenset[SamplingField] = frozenset(
    {
        *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
        *("dry_sequence_breakers", "xtc_probability", "xtc_threshold"),
    }
)


def _add(more: frozenset[SamplingField], *names: SamplingField) -> frozenset[SamplingField]:
    return more | frozenset(names)


_LOCAL = _add(_COMMON, "top_k", "min_p", "repetition_penalty", "logit_bias", "start_reply_with")
EVERY_SETTING = _add(_LOCAL | _DRY_AND_XTC, "top_a", "typical_p", "grammar")
"""The settings that at least one server supports."""

_CONTINUES = {"continue_final_message": True, "add_generation_prompt": False}

OPENAI_SERVERS: Mapping[ServerName, ServerDialect] = {
    "openrouter": ServerDialect(
        accepts=_add(
            _COMMON,
            *("top_k", "min_p", "top_a", "repetition_penalty", "logit_bias", "start_reply_with"),
        ),
        reads_addresses=True,
    ),
    "openai": ServerDialect(accepts=_add(_COMMON, "logit_bias"), reads_addresses=True),
    "deepseek": ServerDialect(
        accepts=_add(_COMMON, "start_reply_with") - {"seed"}, prefix={"prefix": True}
    ),
    "mistral": ServerDialect(
        accepts=_add(_COMMON, "start_reply_with"),
        names={"seed": "random_seed"},
        prefix={"prefix": True},
        # "Unexpected role 'system' after role 'assistant'"
        shape="system_first",
        reads_addresses=True,
    ),
    "ollama": ServerDialect(accepts=_add(_COMMON, "start_reply_with"), concurrency=1),
    "llama-cpp": ServerDialect(
        accepts=_add(_LOCAL | _DRY_AND_XTC, "typical_p", "grammar"),
        names={"repetition_penalty": "repeat_penalty"},
        counts=(_LLAMA_CPP, _LLAMA_CPP_PYTHON),
        needs_limit=True,
        concurrency=1,
        slots="/slots",
    ),
    "koboldcpp": ServerDialect(
        accepts=EVERY_SETTING,
        names={"typical_p": "typical"},
        counts=(_KOBOLDCPP,),
        needs_limit=True,
        concurrency=1,
    ),
    "lm-studio": ServerDialect(
        accepts=_LOCAL, names={"repetition_penalty": "repeat_penalty"}, concurrency=1
    ),
    "vllm": ServerDialect(
        accepts=_add(_LOCAL, "grammar"),
        names={"grammar": "structured_outputs.grammar"},
        prefill=_CONTINUES,
        counts=(_VLLM,),
    ),
    "tabbyapi": ServerDialect(
        accepts=EVERY_SETTING,
        names={"grammar": "grammar_string"},
        prefill=_CONTINUES,
        counts=(_TABBYAPI,),
    ),
    "other": ServerDialect(accepts=EVERY_SETTING),
}


def _make_local_preset(name: str, title: str, port: int) -> ServicePreset:
    url = f"http://127.0.0.1:{port}/v1"
    return ServicePreset(name=name, title=title, base_url=url, key="optional", is_local=True)


PRESETS: tuple[ServicePreset, ...] = (
    ServicePreset(
        name="openrouter",
        title="OpenRouter",
        base_url="https://openrouter.ai/api/v1",
        key_url="https://openrouter.ai/keys",
    ),
    ServicePreset(
        name="openai",
        title="OpenAI",
        base_url="https://api.openai.com/v1",
        key_url="https://platform.openai.com/api-keys",
    ),
    ServicePreset(
        name="deepseek",
        title="DeepSeek",
        base_url="https://api.deepseek.com/v1",
        key_url="https://platform.deepseek.com/api_keys",
    ),
    ServicePreset(
        name="mistral",
        title="Mistral",
        base_url="https://api.mistral.ai/v1",
        key_url="https://console.mistral.ai/api-keys",
    ),
    _make_local_preset("ollama", "Ollama", 11434),
    _make_local_preset("llama-cpp", "llama.cpp", 8080),
    _make_local_preset("koboldcpp", "KoboldCpp", 5001),
    _make_local_preset("lm-studio", "LM Studio", 1234),
    _make_local_preset("vllm", "vLLM", 8000),
    _make_local_preset("tabbyapi", "TabbyAPI", 5000),
    ServicePreset(name="other", title="Another OpenAI-compatible server", key="optional"),
)
"""The presets of all dialects."""
