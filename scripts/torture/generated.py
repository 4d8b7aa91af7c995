"""Requests that schemathesis generates for every operation of the OpenAPI document.

No answer may be a 5xx, and each has to be as the document says: its status, its media type, its
body. A third of the requests walk along the document's links, from what one answer gave to the next
operation that takes it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import warnings
from typing import Any

import httpx

from scripts.torture.campaign import Campaign, Options, campaign
from scripts.torture.report import Row


async def run(options: Options) -> list[Row]:
    """Return one row for the operations and one for the links."""
    alone = dataclasses.replace(options, users=0, workers=0, visitors=0)
    async with campaign(alone, trusted_proxies="127.0.0.1") as made:
        url = made.made.url
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            document = (await client.get("/schema")).raise_for_status().json()
        return await asyncio.to_thread(_explore, made, document, url, options.requests)


def _explore(made: Campaign, document: dict[str, Any], url: str, requests: int) -> list[Row]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that schemathesis brings along
        from scripts.torture import exploring  # noqa: PLC0415  # slow to import

        operations = exploring.list_operations(document)
        examples = exploring.count_examples(requests, len(operations))
        one, other = exploring.Explorer(url), exploring.Explorer(url)
        faults = exploring.explore_operations(one, operations, examples, made.progress.tell)
        left = max(requests // 3, requests - one.asked.total())
        broken = exploring.explore_links(other, document, left, made.progress.tell)
    return [
        Row("generated", f"{len(operations)} operations", _figures(one), faults),
        Row("generated", "along links", _figures(other), broken),
    ]


def _figures(explorer: Any) -> dict[str, Any]:
    by_class = {
        f"{status}xx": sum(n for each, n in explorer.asked.items() if each // 100 == status)
        for status in (2, 4, 5)
    }
    return {"requests": explorer.asked.total(), **by_class}
