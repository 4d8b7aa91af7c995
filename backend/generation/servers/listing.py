"""What a provider's server lists, of whatever vendor, and asking it for that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from backend.generation.adapters.anthropic import DEFAULT_BASE_URL as ANTHROPIC_URL
from backend.generation.adapters.anthropic import AnthropicProvider
from backend.generation.adapters.gemini import DEFAULT_BASE_URL as GEMINI_URL
from backend.generation.adapters.gemini import GeminiConnection, GeminiProvider
from backend.generation.adapters.openai.probes import read_listed_window
from backend.generation.catalogue import Ability, ListedModel
from backend.generation.client.client import MAX_RESOURCE_BYTES, AnswerTooLargeError, ServerError
from backend.generation.json_text import mapping, sequence
from backend.generation.model import (
    ModelError,
    ModelRequestError,
    ModelTimeoutError,
)
from backend.generation.registry import Adapter

SECONDS = 20.0

MAX_LISTED = 2_000
"""Models of one server that are kept."""

_WITHOUT_LIST = frozenset(
    {
        *(HTTPStatus.OK, HTTPStatus.NOT_FOUND),
        *(HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED),
    }
)
"""Statuses of answers that are not JSON, or refusals, of servers that may still reply."""

_TYPE_NAMES = "Most addresses end in /v1. If yours is right, type the names of its models."

_LISTS = ("data", "models", "result", "items")
"""Members under which servers list their models."""

_OUTPUT = ("outputTokenLimit", "max_completion_tokens")
_PRICES = {"input": "prompt", "output": "completion", "cached_input": "input_cache_read"}
"""OpenRouter's words for prices, in dollars for one token."""

_ABILITIES: Mapping[str, Ability] = {
    "tools": "tools",
    "structured_outputs": "structured",
    "reasoning": "thinking",
}


class ModelListTooLargeError(ModelRequestError):
    """The provider's model list is too large. The user has to enter the names of the models."""

    slug, title = "model-list-too-large", "The model list is too large"


class NoModelListError(ModelRequestError):
    """The server responds, but has no model list. The user has to enter the names of the models."""

    slug, title = "no-model-list", "The model list could not be loaded"


async def list_models(adapter: Adapter) -> list[ListedModel]:
    """Return the models that a server lists, each with the figures in the list.

    A server that does not list windows is asked for them: the adapter learns those.

    Raises `ModelError`, without the server's own words; `NoModelListError` if there is no list.
    """
    models = await _ask_list(adapter)
    for model in models:
        # The list is newer than a refusal: the server may have been started with another window.
        if model.context_window and adapter.abilities.of(model.name).window:
            adapter.learn(model.name, window=None)
    await adapter.learn_windows([each.name for each in models if not each.context_window])
    return models


async def _ask_list(adapter: Adapter) -> list[ListedModel]:
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
        except AnswerTooLargeError:
            raise ModelListTooLargeError(
                f"The list of models at {url} is larger than {MAX_RESOURCE_BYTES // 2**20} MB. "
                "Enter the names of its models."
            ) from None
        except ModelError:
            raise
        except ServerError as error:
            if error.status in _WITHOUT_LIST:
                raise NoModelListError(
                    f"There is no model list at {url} (status {error.status}). {_TYPE_NAMES}"
                ) from None
            raise adapter.failure(error) from None
        except Exception as error:  # noqa: BLE001 - a server may answer anything
            raise adapter.failure(error) from None
    try:
        return await asyncio.to_thread(read_listing, listing)
    except ValueError:
        raise NoModelListError(
            f"The response from {url} has no model list. {_TYPE_NAMES}"
        ) from None


def read_listing(body: Any) -> list[ListedModel]:
    """The models of a listing: an array, or an object with an array under a usual name.

    An entry is an object or a name. Entries that can't be understood are left out. Of more models
    than `MAX_LISTED`, one more is returned. CPU-bound. Raises `ValueError` if there is no list.
    """
    found: dict[str, ListedModel] = {}
    for each in _entries(body):
        entry = {"id": each} if isinstance(each, str) else mapping(each)
        methods = sequence(entry.get("supportedGenerationMethods", ["generateContent"]))
        if "generateContent" in methods:
            model = _model(entry)
            if model is not None:
                found[model.name] = model
        if len(found) > MAX_LISTED:
            break
    return list(found.values())


def _entries(body: Any) -> Sequence[Any]:
    members = mapping(body)
    places: list[object] = [body, *(members.get(name) for name in _LISTS)]
    if any(isinstance(each, list) for each in places):
        return max(map(sequence, places), key=len)
    # Ollama without a model answers `"data": null`.
    if any(name in members and members[name] is None for name in _LISTS):
        return ()
    raise ValueError("there is no list of models")


def _model(entry: Mapping[str, Any]) -> ListedModel | None:
    name = entry.get("id") or entry.get("name") or entry.get("model")
    if not isinstance(name, str):
        return None
    title = entry.get("display_name") or entry.get("displayName") or entry.get("name")
    best, prices = mapping(entry.get("top_provider")), mapping(entry.get("pricing"))
    supported = sequence(entry.get("supported_parameters"))
    figures: dict[str, Any] = {
        "title": title if title != name else None,
        "context_window": read_listed_window(entry),
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
