"""What a provider's server lists, of whatever vendor, and asking it for that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from backend.generation._json import mapping, sequence
from backend.generation.anthropic import DEFAULT_BASE_URL as ANTHROPIC_URL
from backend.generation.anthropic import AnthropicProvider
from backend.generation.client import ServerError
from backend.generation.figures import Ability, ListedModel
from backend.generation.gemini import DEFAULT_BASE_URL as GEMINI_URL
from backend.generation.gemini import GeminiConnection, GeminiProvider
from backend.generation.model import (
    ModelError,
    ModelRequestError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from backend.generation.registry import Adapter

SECONDS = 20.0

_WINDOW = ("context_length", "max_model_len", "context_window", "inputTokenLimit")
_OUTPUT = ("outputTokenLimit", "max_completion_tokens")
_PRICES = {"input": "prompt", "output": "completion", "cached_input": "input_cache_read"}
"""OpenRouter's words for prices, in dollars for one token."""

_ABILITIES: Mapping[str, Ability] = {
    "tools": "tools",
    "structured_outputs": "structured",
    "reasoning": "thinking",
}


async def list_models(adapter: Adapter) -> list[ListedModel]:
    """The models that a server lists, each with what it tells of it.

    Raises `ModelError`, without the server's own words.
    """
    match adapter:
        case GeminiProvider():
            url = (adapter.config.base_url or GEMINI_URL).rstrip("/")
            url += "/v1beta/models?pageSize=1000"
        case AnthropicProvider():
            url = f"{adapter.config.base_url or ANTHROPIC_URL}/v1/models?limit=1000"
        case _:
            url = f"{adapter.config.base_url}/models"
    async with adapter.connected() as connection:
        client = connection.client if isinstance(connection, GeminiConnection) else connection
        try:
            async with asyncio.timeout(SECONDS):
                listing = await client.get(url)
        except TimeoutError:
            raise ModelTimeoutError(
                f"{adapter.who} did not list its models in {SECONDS:g} s."
            ) from None
        except ModelError:
            raise
        except ServerError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise ModelRequestError(
                    f"{adapter.who} lists no models at this address (404). Most addresses end in "
                    "/v1; if this one is right, name its models."
                ) from None
            raise adapter.failure(error) from None
        except Exception as error:  # noqa: BLE001 - a server may answer anything
            raise adapter.failure(error) from None
    try:
        return read_listing(listing)
    except ValueError:
        raise ModelUnavailableError(f"{adapter.who} answers with something else.") from None


def read_listing(body: Any) -> list[ListedModel]:
    """The models of a listing. What can't be understood of one is left out. Raises `ValueError`."""
    members = mapping(body)
    if "data" not in members and "models" not in members:
        raise ValueError("there is no list of models")
    found: dict[str, ListedModel] = {}
    for each in sequence(members.get("data", members.get("models"))):
        entry = mapping(each)
        methods = sequence(entry.get("supportedGenerationMethods", ["generateContent"]))
        if "generateContent" in methods:
            model = _model(entry)
            if model is not None:
                found[model.name] = model
    return list(found.values())


def _model(entry: Mapping[str, Any]) -> ListedModel | None:
    name = entry.get("id") or entry.get("name")
    if not isinstance(name, str):
        return None
    title = entry.get("display_name") or entry.get("displayName") or entry.get("name")
    best, prices = mapping(entry.get("top_provider")), mapping(entry.get("pricing"))
    supported = sequence(entry.get("supported_parameters"))
    figures: dict[str, Any] = {
        "title": title if title != name else None,
        "context_window": _first(entry, _WINDOW),
        "max_output_tokens": _first(entry, _OUTPUT) or _first(best, _OUTPUT),
        "price": {
            ours: price
            for ours, theirs in _PRICES.items()
            if (price := _price(prices.get(theirs))) is not None
        },
        "abilities": [ours for theirs, ours in _ABILITIES.items() if theirs in supported] or None,
    }
    model = _read({"name": name.removeprefix("models/")})
    for figure, value in figures.items():
        if model is not None and value:
            model = _read({**msgspec.to_builtins(model), figure: value}) or model
    return model


def _read(members: Mapping[str, Any]) -> ListedModel | None:
    try:
        return msgspec.convert(members, ListedModel)
    except msgspec.ValidationError:
        return None


def _first(entry: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((entry[name] for name in names if entry.get(name)), None)


def _price(value: object) -> float | None:
    """Dollars for a million tokens, of a text that says them for one."""
    try:
        return round(float(value) * 1_000_000, 6) if isinstance(value, str) else None
    except ValueError:
        return None
