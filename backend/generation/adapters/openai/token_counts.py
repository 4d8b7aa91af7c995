"""Tokens counted by a server's own vocabulary, for replies whose usage it does not report.

Sources, as of November 2026: llama.cpp's README (`/tokenize`), KoboldCpp's API page
(`/api/extra/tokencount`), vLLM's reference of its server (`/tokenize`), TabbyAPI's
(`/v1/token/encode`), and llama-cpp-python's own schema (`/extras/tokenize/count`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from backend.generation.adapters.openai.dialects import CountingRoute, build_route_url
from backend.generation.client.client import ModelClient, ServerError
from backend.generation.json_text import mapping, sequence
from backend.generation.model import Prompt, TokenUsage
from backend.generation.tokens import MESSAGE_OVERHEAD

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
        address = build_route_url(base_url, route.path)
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
