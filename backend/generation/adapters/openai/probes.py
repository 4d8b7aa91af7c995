"""Requests for token counts, and for the context windows and images of models.

Few servers list windows (vLLM, newer versions of llama.cpp), but most local servers have another
route at their root. The current window differs from the model's maximum, because servers are
usually started with less, and truncate or refuse longer prompts.

Sources, as of November 2026: llama.cpp's README of its server (`/props`), KoboldCpp's API page
(`/api/extra/true_max_context_length`), LM Studio's REST API v0 (`/api/v0/models`), Ollama's API
(`/api/ps`, `/api/show`) and its page on context length, TabbyAPI's (`/v1/model`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from backend.generation.adapters.openai.dialects import CountingRoute, build_route_url
from backend.generation.catalogue import ImageSupport
from backend.generation.client.client import ModelClient, ServerError
from backend.generation.images import count_image_tokens
from backend.generation.json_text import mapping, sequence
from backend.generation.model import Prompt, TokenUsage
from backend.generation.servers.window_evidence import is_window
from backend.generation.tokens import MESSAGE_OVERHEAD
from backend.settings import ServerName

COUNT_SECONDS = 5.0
"""Time limit of a count. The end of the reply waits for it."""

MISSING_ROUTE_STATUSES = {
    HTTPStatus.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.NOT_IMPLEMENTED,
}


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """The counts of a server, and the path of its route; "" if it has none."""

    usage: TokenUsage | None
    route: str | None


async def count_usage(
    client: ModelClient,
    base_url: str,
    model: str,
    routes: Sequence[CountingRoute],
    prompt: Prompt,
    *,
    said: str,
    thought: str,
) -> ServerCounts:
    """Let a server count the tokens of a prompt and its reply. Never raises.

    Args:
        client: The client of the server.
        base_url: The address of its API. The routes are at the server's root.
        model: The model's name.
        routes: The routes to try. The first existing one is used.
        prompt: The prompt as sent, without rounds of tools.
        said: The text of the reply.
        thought: The thoughts of the reply.
    """
    asked = "\n".join(message.text for message in prompt.messages)
    for route in routes:
        address = build_route_url(base_url, route.path)
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                sent, text, thinking = [
                    await _count(client, address, model, route, each)
                    for each in (asked, said, thought)
                ]
        except ServerError as error:
            if error.status not in MISSING_ROUTE_STATUSES:
                return ServerCounts(None, None)
        except Exception:  # noqa: BLE001 - the reply does not depend on it
            return ServerCounts(None, None)
        else:
            if not sent:
                return ServerCounts(None, None)
            usage = TokenUsage(
                prompt_tokens=sent
                + MESSAGE_OVERHEAD * len(prompt.messages)
                + count_image_tokens(*prompt.messages),
                completion_tokens=text + thinking,
                thinking_tokens=thinking,
            )
            return ServerCounts(usage, route.path)
    return ServerCounts(None, "")


async def _count(
    client: ModelClient, address: str, model: str, route: CountingRoute, text: str
) -> int:
    """Return the tokens of a text; 0 if the answer contains no count."""
    if not text:
        return 0
    answer = await client.post(address, {"model": model, route.member: text})
    counted = mapping(answer).get(route.answer)
    if listed := sequence(counted):
        return len(listed)
    return counted if isinstance(counted, int) and counted > 0 else 0


REQUEST_SECONDS = 2.0
"""Time limit of one route. Slower servers are loading a model."""

ALL_SECONDS = 6.0
"""Time limit of all routes and models together."""

MAX_ASKED_MODELS = 32
"""Maximum number of models to ask for, because Ollama needs one request for each."""

Ask = Callable[[str, Mapping[str, Any] | None], Awaitable[Any]]
"""Requests a path, by POST if there is a body. Returns the JSON, or None for any failure."""

_NUM_CTX = re.compile(r"^num_ctx\s+(\d{1,9})\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The current window of a model, the largest one that it can have, and its use of images."""

    window: int | None = None
    largest: int | None = None
    images: ImageSupport | None = None

    def merge(self, other: ModelReport) -> ModelReport:
        """Fill missing values from another report."""
        return ModelReport(
            self.window or other.window,
            self.largest or other.largest,
            self.images or other.images,
        )


Probe = Callable[[Ask, str], Awaitable[ModelReport]]
"""Asks a server for the window of a model."""


async def ask_llama_cpp(ask: Ask, model: str) -> ModelReport:
    """`GET /props`. `n_ctx` is the window of one slot. A router has one for each loaded model."""
    props = mapping(await ask(f"/props?model={quote(model, safe='')}&autoload=false", None))
    settings = mapping(props.get("default_generation_settings"))
    return ModelReport(
        window=_check_window(settings.get("n_ctx")),
        images=read_image_support({"capabilities": props.get("modalities")}),
    )


async def ask_koboldcpp(ask: Ask, _: str) -> ModelReport:
    """`GET /api/extra/true_max_context_length`. The server has one model at a time."""
    answer = mapping(await ask("/api/extra/true_max_context_length", None))
    return ModelReport(window=_check_window(answer.get("value")))


async def ask_lm_studio(ask: Ask, model: str) -> ModelReport:
    """`GET /api/v0/models`. Only loaded models have a window."""
    entry = _find_entry(mapping(await ask("/api/v0/models", None)).get("data"), model, "id")
    return ModelReport(
        window=_check_window(entry.get("loaded_context_length")),
        largest=_check_window(entry.get("max_context_length")),
        images=read_image_support(entry),
    )


async def ask_ollama(ask: Ask, model: str) -> ModelReport:
    """`GET /api/ps` for a loaded model, or `POST /api/show` for its `num_ctx`.

    Without `num_ctx`, Ollama chooses by the memory of the graphics card: only the limit is known.
    """
    running = mapping(await ask("/api/ps", None)).get("models")
    entry = _find_entry(running, model, "model") or _find_entry(running, f"{model}:latest", "model")
    shown = mapping(await ask("/api/show", {"model": model}))
    images = read_image_support(shown)
    if window := _check_window(entry.get("context_length")):
        return ModelReport(window=window, images=images)
    lengths = (
        length
        for name, length in mapping(shown.get("model_info")).items()
        if name.endswith(".context_length")
    )
    parameters = shown.get("parameters")
    own = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    return ModelReport(
        window=_check_window(int(own[1])) if own else None,
        largest=_check_window(next(lengths, None)),
        images=images,
    )


async def ask_tabbyapi(ask: Ask, model: str) -> ModelReport:
    """`GET /v1/model` for the loaded model."""
    card = mapping(await ask("/v1/model", None))
    parameters = mapping(card.get("parameters") if card.get("id") == model else None)
    return ModelReport(window=_check_window(parameters.get("max_seq_len")))


def read_listed_window(entry: Mapping[str, Any]) -> int | None:
    """Return the window in a model's list entry.

    llama.cpp lists the current window as `n_ctx`, and the ignored maximum as `n_ctx_train`.
    """
    names = ("context_length", "max_model_len", "context_window", "inputTokenLimit")
    found = (_check_window(entry.get(name)) for name in names)
    return next(filter(None, found), None) or _check_window(mapping(entry.get("meta")).get("n_ctx"))


_IMAGE_CAPABILITIES = frozenset({"vision", "multimodal"})


def read_image_support(entry: Mapping[str, Any]) -> ImageSupport | None:
    """Return the use of images in a server's description of a model; None if it is unknown.

    OpenRouter has `architecture.input_modalities`, Ollama and llama.cpp a list of `capabilities`
    with `completion`, Mistral and llama.cpp's `/props` an object with `vision`, and LM Studio the
    type `vlm`.
    """
    architecture, given = mapping(entry.get("architecture")), entry.get("capabilities")
    modalities = sequence(architecture.get("input_modalities") or entry.get("input_modalities"))
    if modalities:
        return "native" if "image" in modalities else "none"
    if "vision" in mapping(given):
        return "native" if mapping(given)["vision"] is True else "none"
    if _IMAGE_CAPABILITIES.intersection(map(str, sequence(given))):
        return "native"
    if "completion" in sequence(given):
        return "none"
    return _LM_STUDIO_TYPES.get(entry["type"]) if isinstance(entry.get("type"), str) else None


_LM_STUDIO_TYPES: Mapping[str, ImageSupport] = {"vlm": "native", "llm": "none"}


_PROBES: Mapping[ServerName, tuple[Probe, ...]] = {
    "llama-cpp": (ask_llama_cpp,),
    "koboldcpp": (ask_koboldcpp,),
    "lm-studio": (ask_lm_studio,),
    "ollama": (ask_ollama,),
    "tabbyapi": (ask_tabbyapi,),
    "other": (ask_llama_cpp, ask_lm_studio, ask_ollama, ask_koboldcpp, ask_tabbyapi),
}
"""The routes of each server. All routes are tried at unknown servers."""


def can_be_asked(server: ServerName) -> bool:
    """True if the server has a route for windows."""
    return server in _PROBES


async def ask_windows(
    client: ModelClient, base_url: str, server: ServerName, models: Sequence[str]
) -> Mapping[str, ModelReport]:
    """Return the reports about the first `MAX_ASKED_MODELS` models, by name.

    Failures are omitted. `base_url` is the address of the API; the routes are at the server's root.
    """
    answers: dict[str, Any] = {}

    async def ask(path: str, body: Mapping[str, Any] | None) -> Any:
        key = f"{path} {body}"
        if key not in answers:
            answers[key] = await _fetch(client, build_route_url(base_url, path), body)
        return answers[key]

    reports: dict[str, ModelReport] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(ALL_SECONDS):
            for name in models[:MAX_ASKED_MODELS]:
                reports[name] = await find_window(ask, server, name)
    return reports


async def find_window(ask: Ask, server: ServerName, model: str) -> ModelReport:
    """Try the server's routes until one reports the current window."""
    found = ModelReport()
    for probe in _PROBES.get(server, ()):
        found = found.merge(await probe(ask, model))
        if found.window:
            break
    return found


async def _fetch(client: ModelClient, address: str, body: Mapping[str, Any] | None) -> Any:
    """Return the JSON of a route; None for any failure."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            return await (client.get(address) if body is None else client.post(address, body))
    except Exception:  # noqa: BLE001 - the server may not have the route
        return None


def _find_entry(entries: object, model: str, member: str) -> Mapping[str, Any]:
    """Return the list entry of a model, or an empty one."""
    found = [each for each in map(mapping, sequence(entries)) if each.get(member) == model]
    return found[0] if found else mapping(None)


def _check_window(value: object) -> int | None:
    return value if is_window(value) else None
