"""Types of settings: how what stands in the environment is read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from backend.private_networks import Network, parse_private


def _split(value: object) -> object:
    return _parts(value) if isinstance(value, str) else value


def _parse_networks(value: object) -> object:
    return tuple(map(parse_private, _parts(value))) if isinstance(value, str) else value


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _empty_is_absent(value: SecretStr | None) -> SecretStr | None:
    return value if value and value.get_secret_value().strip() else None


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
"""A comma-separated list."""

PrivateNetworks = Annotated[tuple[Network, ...], NoDecode, BeforeValidator(_parse_networks)]
"""A comma-separated list of private networks."""

Secret = Annotated[SecretStr | None, AfterValidator(_empty_is_absent)]

Amount = Annotated[float, Field(ge=0, le=1_000_000)]
Prices = tuple[Amount, Amount] | tuple[Amount, Amount, Amount]
"""For a million tokens: read, written, and read from a cache."""

ServerName = Literal[
    "openrouter",
    "openai",
    "deepseek",
    "mistral",
    "ollama",
    "llama-cpp",
    "koboldcpp",
    "lm-studio",
    "vllm",
    "tabbyapi",
    "other",
]
"""Servers that speak OpenAI's chat completions, as Talekeeper tells them apart."""
