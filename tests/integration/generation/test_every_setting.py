"""Tests that each accepted sampling setting is in the request."""

from __future__ import annotations

from typing import Any

import pytest

from backend.generation.adapters import anthropic, gemini
from backend.generation.adapters.anthropic import AnthropicModel, AnthropicProvider
from backend.generation.adapters.gemini import GeminiModel, GeminiProvider
from backend.generation.adapters.openai.dialects import EVERY_SETTING
from backend.generation.adapters.openai.model import OpenAICompatibleModel, OpenAICompatibleProvider
from backend.generation.model import ChatModel, ModelSpec, Prompt, PromptMessage
from backend.generation.sampling import SAMPLING_FIELDS, Sampling, SamplingField
from tests.fakes.anthropic_server import AnthropicServer
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.openai_server import OpenAIServer

pytestmark = pytest.mark.anyio

PROMPT = Prompt([PromptMessage("user", "Go on.")])
START = {"role": "assistant", "content": "Oswin:"}

VALUES: dict[SamplingField, Any] = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "seed": 42,
    "stop": ("Marlena:", "***"),
    "max_output_tokens": 512,
    "safety": {"harassment": "off", "dangerous_content": "low"},
    "thinking_budget": 1024,
    "reasoning_effort": "low",
    "min_p": 0.05,
    "top_a": 0.2,
    "typical_p": 0.95,
    "repetition_penalty": 1.1,
    "dry_multiplier": 0.8,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ("\n", ":"),
    "xtc_probability": 0.5,
    "xtc_threshold": 0.1,
    "logit_bias": {"1734": -50.0},
    "grammar": 'root ::= "yes" | "no"',
    "json_schema": '{"type": "object"}',
    "start_reply_with": "Oswin:",
}

GEMINI_BODY: dict[SamplingField, tuple[str, Any]] = {
    "temperature": ("generationConfig.temperature", 0.7),
    "top_p": ("generationConfig.topP", 0.9),
    "top_k": ("generationConfig.topK", 40),
    "presence_penalty": ("generationConfig.presencePenalty", 0.5),
    "frequency_penalty": ("generationConfig.frequencyPenalty", -0.5),
    "seed": ("generationConfig.seed", 42),
    "stop": ("generationConfig.stopSequences", ["Marlena:", "***"]),
    "max_output_tokens": ("generationConfig.maxOutputTokens", 512),
    "safety": (
        "safetySettings",
        [
            {"category": "HARM_CATEGORY_HARASSMENT", "threshold": "OFF"},
            {"category": "HARM_CATEGORY_DANGEROUS_CONTENT", "threshold": "BLOCK_LOW_AND_ABOVE"},
        ],
    ),
    "thinking_budget": ("generationConfig.thinkingConfig.thinkingBudget", 1024),
}

OPENAI_BODY: dict[SamplingField, tuple[str, Any]] = {
    "temperature": ("temperature", 0.7),
    "top_p": ("top_p", 0.9),
    "presence_penalty": ("presence_penalty", 0.5),
    "frequency_penalty": ("frequency_penalty", -0.5),
    "seed": ("seed", 42),
    "stop": ("stop", ["Marlena:", "***"]),
    "max_output_tokens": ("max_tokens", 512),
    "reasoning_effort": ("reasoning_effort", "low"),
    "top_k": ("top_k", 40),
    "min_p": ("min_p", 0.05),
    "top_a": ("top_a", 0.2),
    "typical_p": ("typical_p", 0.95),
    "repetition_penalty": ("repetition_penalty", 1.1),
    "dry_multiplier": ("dry_multiplier", 0.8),
    "dry_base": ("dry_base", 1.75),
    "dry_allowed_length": ("dry_allowed_length", 2),
    "dry_penalty_last_n": ("dry_penalty_last_n", -1),
    "dry_sequence_breakers": ("dry_sequence_breakers", ["\n", ":"]),
    "xtc_probability": ("xtc_probability", 0.5),
    "xtc_threshold": ("xtc_threshold", 0.1),
    "logit_bias": ("logit_bias", {"1734": -50.0}),
    "grammar": ("grammar", 'root ::= "yes" | "no"'),
    "json_schema": ("response_format.json_schema.schema", {"type": "object"}),
    "start_reply_with": ("messages", [{"role": "user", "content": "Go on."}, START]),
}

ANTHROPIC_BODY: dict[SamplingField, tuple[str, Any]] = {
    "temperature": ("temperature", 0.7),
    "top_p": ("top_p", 0.9),
    "top_k": ("top_k", 40),
    "stop": ("stop_sequences", ["Marlena:", "***"]),
    "max_output_tokens": ("max_tokens", 512),
    "thinking_budget": ("thinking.budget_tokens", 1024),
    "reasoning_effort": ("output_config.effort", "low"),
    "start_reply_with": (
        "messages",
        [
            {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Oswin:"}]},
        ],
    ),
}


def spec(name: str, accepts: frozenset[SamplingField]) -> ModelSpec:
    return ModelSpec(
        id=f"test/{name}",
        provider="test",
        name=name,
        title=name,
        context_window=32_768,
        max_output_tokens=8_192,
        tokenizer="o200k_base",
        accepts=accepts,
    )


def found(body: Any, path: str) -> Any:
    for name in path.split("."):
        body = body[name]
    return body


def test_no_setting_is_missing_from_the_walk() -> None:
    assert set(VALUES) == set(SAMPLING_FIELDS)
    assert set(GEMINI_BODY) == gemini.ADAPTER_ACCEPTS
    assert set(OPENAI_BODY) == EVERY_SETTING
    assert set(ANTHROPIC_BODY) == anthropic.ADAPTER_ACCEPTS
    assert set(GEMINI_BODY) | set(OPENAI_BODY) == set(SAMPLING_FIELDS)


async def exchange(model: ChatModel, sampling: Sampling) -> None:
    assert [piece async for piece in model.stream(PROMPT, sampling)]


def connect_gemini(server: GeminiServer) -> tuple[GeminiProvider, ChatModel]:
    provider = GeminiProvider(server.config())
    return provider, GeminiModel(spec("gemini-2.5-pro", gemini.ADAPTER_ACCEPTS), provider)


def connect_openai(server: OpenAIServer) -> tuple[OpenAICompatibleProvider, ChatModel]:
    provider = OpenAICompatibleProvider(server.config())
    return provider, OpenAICompatibleModel(spec("any", EVERY_SETTING), provider)


def connect_anthropic(server: AnthropicServer) -> tuple[AnthropicProvider, ChatModel]:
    provider = AnthropicProvider(server.config())
    return provider, AnthropicModel(spec("any", anthropic.ADAPTER_ACCEPTS), provider)


WIRES: dict[str, tuple[Any, Any, dict[SamplingField, tuple[str, Any]]]] = {
    "gemini": (GeminiServer, connect_gemini, GEMINI_BODY),
    "openai": (OpenAIServer, connect_openai, OPENAI_BODY),
    "anthropic": (AnthropicServer, connect_anthropic, ANTHROPIC_BODY),
}


@pytest.mark.parametrize(
    ("wire", "field"), [(wire, name) for wire, (*_, body) in WIRES.items() for name in sorted(body)]
)
async def test_a_setting_arrives_in_the_request(wire: str, field: SamplingField) -> None:
    fake, connect, body = WIRES[wire]
    async with fake() as server:
        provider, model = connect(server)
        await exchange(model, Sampling(**{field: VALUES[field]}))
        await provider.aclose()
        path, value = body[field]
        assert found(server.requests[0].body, path) == value


async def test_settings_that_are_not_set_are_left_to_the_provider() -> None:
    async with GeminiServer() as google, OpenAIServer() as server:
        providers = GeminiProvider(google.config()), OpenAICompatibleProvider(server.config())
        await exchange(GeminiModel(spec("any", frozenset()), providers[0]), Sampling())
        await exchange(OpenAICompatibleModel(spec("any", frozenset()), providers[1]), Sampling())
        for provider in providers:
            await provider.aclose()
        assert set(google.requests[0].body) == {"contents", "generationConfig"}
        assert google.requests[0].body["generationConfig"] == {}
        assert set(server.requests[0].body) == {"model", "messages", "stream", "stream_options"}
