"""Requests for the model list of a provider's server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from backend.generation.adapters.openai.probes import read_image_support, read_listed_window
from backend.generation.catalogue import Ability, ListedModel
from backend.generation.client.client import MAX_RESOURCE_BYTES, AnswerTooLargeError, ServerError
from backend.generation.client.provider import AnyProvider
from backend.generation.json_text import mapping, sequence
from backend.generation.model import (
    ModelError,
    ModelRequestError,
    ModelTimeoutError,
)

LIST_SECONDS = 20.0

MAX_LISTED = 2_000
"""Maximum number of stored models of one server."""

_WITHOUT_LIST = frozenset(
    {
        *(HTTPStatus.OK, HTTPStatus.NOT_FOUND),
        *(HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED),
    }
)
"""Statuses of servers without a model list, which may still reply to prompts."""

_ADVICE = "Most addresses end in /v1. If yours is correct, enter the names of the models."

_LISTS = ("data", "models", "result", "items")
"""Members that contain the list."""

_OUTPUT = ("outputTokenLimit", "max_completion_tokens")
_PRICES = {"input": "prompt", "output": "completion", "cached_input": "input_cache_read"}
"""OpenRouter's names of prices, in dollars per token."""

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


async def list_models(provider: AnyProvider) -> list[ListedModel]:
    """Return the models in a server's list, with the figures in the list.

    If the list contains no context windows, the server is asked for them and the provider learns
    them. Raises `ModelError` without the server's own text, or `NoModelListError`.
    """
    models = await _fetch_list(provider)
    for model in models:
        # The list is newer than a refusal: the server may have restarted with another window.
        if model.context_window and provider.abilities.find(model.name).window:
            provider.learn(model.name, window=None)
        if model.image_support and provider.abilities.find(model.name).images:
            provider.learn(model.name, images=None)
    await provider.learn_windows([each.name for each in models if not each.context_window])
    return models


async def _fetch_list(provider: AnyProvider) -> list[ListedModel]:
    url = provider.list_url
    async with provider.open_connection() as connection:
        try:
            async with asyncio.timeout(LIST_SECONDS):
                listing = await provider.get_client(connection).get(url)
        except TimeoutError:
            raise ModelTimeoutError(
                f"{provider.who} did not list its models within {LIST_SECONDS:g} seconds."
            ) from None
        except AnswerTooLargeError:
            raise ModelListTooLargeError(
                f"The list of models at {url} is larger than {MAX_RESOURCE_BYTES // 2**20} MB. "
                "Enter the names of the models."
            ) from None
        except ModelError:
            raise
        except ServerError as error:
            if error.status in _WITHOUT_LIST:
                raise NoModelListError(
                    f"There is no model list at {url} (status {error.status}). {_ADVICE}"
                ) from None
            raise provider.failure(error) from None
        except Exception as error:  # noqa: BLE001 - a server may answer anything
            raise provider.failure(error) from None
    try:
        return await asyncio.to_thread(read_listing, listing)
    except ValueError:
        raise NoModelListError(f"The response from {url} has no model list. {_ADVICE}") from None


def read_listing(body: Any) -> list[ListedModel]:
    """Return the models of a list: an array, or an object with an array in a usual member.

    An entry is an object or a name. Invalid entries are skipped. At most `MAX_LISTED` + 1 models
    are returned. CPU-bound. Raises `ValueError` if there is no list.
    """
    found: dict[str, ListedModel] = {}
    for each in _find_entries(body):
        entry = {"id": each} if isinstance(each, str) else mapping(each)
        methods = sequence(entry.get("supportedGenerationMethods", ["generateContent"]))
        if "generateContent" in methods:
            model = _read_model(entry)
            if model is not None:
                found[model.name] = model
        if len(found) > MAX_LISTED:
            break
    return list(found.values())


def _find_entries(body: Any) -> Sequence[Any]:
    members = mapping(body)
    places: list[object] = [body, *(members.get(name) for name in _LISTS)]
    if any(isinstance(each, list) for each in places):
        return max(map(sequence, places), key=len)
    # Ollama without a model answers `"data": null`.
    if any(name in members and members[name] is None for name in _LISTS):
        return ()
    raise ValueError("there is no list of models")


def _read_model(entry: Mapping[str, Any]) -> ListedModel | None:
    name = entry.get("id") or entry.get("name") or entry.get("model")
    if not isinstance(name, str):
        return None
    title = entry.get("display_name") or entry.get("displayName") or entry.get("name")
    best, prices = mapping(entry.get("top_provider")), mapping(entry.get("pricing"))
    supported = sequence(entry.get("supported_parameters"))
    figures: dict[str, Any] = {
        "title": title if title != name else None,
        "context_window": read_listed_window(entry),
        "max_output_tokens": _find_first(entry, _OUTPUT) or _find_first(best, _OUTPUT),
        "price": {
            ours: price
            for ours, theirs in _PRICES.items()
            if (price := _convert_price(prices.get(theirs))) is not None
        },
        "image_support": read_image_support(entry),
        "abilities": [ours for theirs, ours in _ABILITIES.items() if theirs in supported] or None,
    }
    model = _convert({"name": name.removeprefix("models/")})
    for figure, value in figures.items():
        if model is not None and value:
            model = _convert({**msgspec.to_builtins(model), figure: value}) or model
    return model


def _convert(members: Mapping[str, Any]) -> ListedModel | None:
    try:
        return msgspec.convert(members, ListedModel)
    except msgspec.ValidationError:
        return None


def _find_first(entry: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((entry[name] for name in names if entry.get(name)), None)


def _convert_price(value: object) -> float | None:
    """Convert dollars per token, as text, to dollars per million tokens."""
    try:
        return round(float(value) * 1_000_000, 6) if isinstance(value, str) else None
    except ValueError:
        return None
