"""Requests that ask a server for the context windows of its models.

Few servers list them (vLLM, newer versions of llama.cpp). Most local servers have another route for
it, at their root. The window in force is kept apart from the largest one that the model was trained
for: a server is usually started with less, and cuts or refuses longer prompts.

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

from backend.generation.adapters.openai.dialects import CountingRoute, route_address
from backend.generation.client.client import ModelClient, ServerError
from backend.generation.json_text import mapping, sequence
from backend.generation.model import Prompt, TokenUsage
from backend.generation.servers.window_evidence import is_window
from backend.generation.tokens import MESSAGE_OVERHEAD
from backend.settings import ServerName

TIMEOUT = 5.0
"""Seconds for a count: the reply is there already, and its end waits for this."""

NO_SUCH_ROUTE = {
    HTTPStatus.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.NOT_IMPLEMENTED,
}


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """What a server counted: `usage` where it did, `route` by which, or "" where it has none."""

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
    """Have a server count a prompt and its reply. Raises nothing: no count is an answer, too.

    Args:
        client: Of the server.
        base_url: Its address; the routes stand beside it, at the server's root.
        model: The model's name there.
        routes: Which to try, the first that is there counts.
        prompt: What was sent, without the rounds of tools.
        said: The reply's text.
        thought: What came before it.
    """
    asked = "\n".join(message.text for message in prompt.messages)
    for route in routes:
        address = route_address(base_url, route.path)
        try:
            async with asyncio.timeout(TIMEOUT):
                sent, text, thinking = [
                    await _count(client, address, model, route, each)
                    for each in (asked, said, thought)
                ]
        except ServerError as error:
            if error.status not in NO_SUCH_ROUTE:
                return ServerCounts(None, None)
        except Exception:  # noqa: BLE001 - a server may answer anything, and the reply is there
            return ServerCounts(None, None)
        else:
            if not sent:
                return ServerCounts(None, None)
            usage = TokenUsage(
                prompt_tokens=sent + MESSAGE_OVERHEAD * len(prompt.messages),
                completion_tokens=text + thinking,
                thinking_tokens=thinking,
            )
            return ServerCounts(usage, route.path)
    return ServerCounts(None, "")


async def _count(
    client: ModelClient, address: str, model: str, route: CountingRoute, text: str
) -> int:
    """Return the tokens of a text; 0 if the answer does not say."""
    if not text:
        return 0
    answer = await client.post(address, {"model": model, route.member: text})
    counted = mapping(answer).get(route.answer)
    if listed := sequence(counted):
        return len(listed)
    return counted if isinstance(counted, int) and counted > 0 else 0


REQUEST_SECONDS = 2.0
"""The longest wait for one route. A server that is slower is loading a model."""

ALL_SECONDS = 6.0
"""The longest wait for all routes and models together."""

MOST_MODELS = 32
"""Models of one server that are asked for at once: Ollama has a request for each."""

Ask = Callable[[str, Mapping[str, Any] | None], Awaitable[Any]]
"""Ask a route of a server: its path and, for a POST, the body. Returns the parsed JSON.

Returns None for every failure.
"""

_NUM_CTX = re.compile(r"^num_ctx\s+(\d{1,9})\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class WindowReport:
    """A server's report about one model: its window in force, and the largest one it can have."""

    window: int | None = None
    largest: int | None = None

    def over(self, other: WindowReport) -> WindowReport:
        """Return this report, completed by another one."""
        return WindowReport(self.window or other.window, self.largest or other.largest)


Probe = Callable[[Ask, str], Awaitable[WindowReport]]
"""Asks a server for the window of one model, by its name there."""


async def ask_llama_cpp(ask: Ask, model: str) -> WindowReport:
    """`GET /props`. `n_ctx` is that of one slot; a router has one for each loaded model."""
    props = mapping(await ask(f"/props?model={quote(model, safe='')}&autoload=false", None))
    settings = mapping(props.get("default_generation_settings"))
    return WindowReport(window=_window(settings.get("n_ctx")))


async def ask_koboldcpp(ask: Ask, _: str) -> WindowReport:
    """`GET /api/extra/true_max_context_length`. It serves one model at a time."""
    answer = mapping(await ask("/api/extra/true_max_context_length", None))
    return WindowReport(window=_window(answer.get("value")))


async def ask_lm_studio(ask: Ask, model: str) -> WindowReport:
    """`GET /api/v0/models`. Only a model that is loaded has a window."""
    entry = _entry(mapping(await ask("/api/v0/models", None)).get("data"), model, "id")
    return WindowReport(
        window=_window(entry.get("loaded_context_length")),
        largest=_window(entry.get("max_context_length")),
    )


async def ask_ollama(ask: Ask, model: str) -> WindowReport:
    """`GET /api/ps` for a loaded model, `POST /api/show` for the `num_ctx` that it is loaded with.

    Without that, Ollama chooses by the memory of the graphics card, so only the limit is known.
    """
    running = mapping(await ask("/api/ps", None)).get("models")
    entry = _entry(running, model, "model") or _entry(running, f"{model}:latest", "model")
    if window := _window(entry.get("context_length")):
        return WindowReport(window=window)
    shown = mapping(await ask("/api/show", {"model": model}))
    lengths = (
        length
        for name, length in mapping(shown.get("model_info")).items()
        if name.endswith(".context_length")
    )
    parameters = shown.get("parameters")
    own = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    return WindowReport(
        window=_window(int(own[1])) if own else None, largest=_window(next(lengths, None))
    )


async def ask_tabbyapi(ask: Ask, model: str) -> WindowReport:
    """`GET /v1/model`: the model that is loaded."""
    card = mapping(await ask("/v1/model", None))
    parameters = mapping(card.get("parameters") if card.get("id") == model else None)
    return WindowReport(window=_window(parameters.get("max_seq_len")))


def read_listed_window(entry: Mapping[str, Any]) -> int | None:
    """Return the window that a server's list gives for a model.

    llama.cpp lists the window in force as `n_ctx` and what the model was trained for as
    `n_ctx_train`, which is left out.
    """
    names = ("context_length", "max_model_len", "context_window", "inputTokenLimit")
    found = (_window(entry.get(name)) for name in names)
    return next(filter(None, found), None) or _window(mapping(entry.get("meta")).get("n_ctx"))


_PROBES: Mapping[ServerName, tuple[Probe, ...]] = {
    "llama-cpp": (ask_llama_cpp,),
    "koboldcpp": (ask_koboldcpp,),
    "lm-studio": (ask_lm_studio,),
    "ollama": (ask_ollama,),
    "tabbyapi": (ask_tabbyapi,),
    "other": (ask_llama_cpp, ask_lm_studio, ask_ollama, ask_koboldcpp, ask_tabbyapi),
}
"""Servers that can be asked. One of unknown kind is asked by every route."""


def can_be_asked(server: ServerName) -> bool:
    """True if a kind of server has a route that reports the windows of its models."""
    return server in _PROBES


async def ask_windows(
    client: ModelClient, base_url: str, server: ServerName, models: Sequence[str]
) -> Mapping[str, WindowReport]:
    """Return a server's reports about its models by their names. Failures are left out.

    Args:
        client: To the server, with its key and its network policy.
        base_url: Address of its API; the routes are at the server's root.
        server: Its kind, which decides about the routes.
        models: At most `MOST_MODELS` of them are asked for.
    """
    answers: dict[str, Any] = {}

    async def ask(path: str, body: Mapping[str, Any] | None) -> Any:
        key = f"{path} {body}"
        if key not in answers:
            answers[key] = await _answer(client, route_address(base_url, path), body)
        return answers[key]

    reports: dict[str, WindowReport] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(ALL_SECONDS):
            for name in models[:MOST_MODELS]:
                reports[name] = await find_window(ask, server, name)
    return reports


async def find_window(ask: Ask, server: ServerName, model: str) -> WindowReport:
    """Ask a server by the routes of its kind, until one reports the window in force."""
    found = WindowReport()
    for probe in _PROBES.get(server, ()):
        found = found.over(await probe(ask, model))
        if found.window:
            break
    return found


async def _answer(client: ModelClient, address: str, body: Mapping[str, Any] | None) -> Any:
    """Return the JSON of a route; None if there is none in time."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            return await (client.get(address) if body is None else client.post(address, body))
    except Exception:  # noqa: BLE001 - a server may answer anything, and need not have the route
        return None


def _entry(entries: object, model: str, member: str) -> Mapping[str, Any]:
    """Return the entry of a list that names a model, or an empty one."""
    found = [each for each in map(mapping, sequence(entries)) if each.get(member) == model]
    return found[0] if found else mapping(None)


def _window(value: object) -> int | None:
    """Return a reported number of tokens if it can be a window."""
    return value if is_window(value) else None
