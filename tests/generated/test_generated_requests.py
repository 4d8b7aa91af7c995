"""Requests that schemathesis generates for every operation of the OpenAPI document.

A few requests each; `scripts/torture.py --only generated --requests 20000` makes more of them. No
answer is a 5xx, and each is as the document says: its status, its media type, its body.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.process import Served
from tests.support.thorough import rounds

pytestmark = [
    pytest.mark.generated,
    pytest.mark.slow,
    # Of libraries that schemathesis brings along.
    pytest.mark.filterwarnings("default"),
]

SHARDS = 4
EXAMPLES, REQUESTS = rounds(1, 5), rounds(20, 200)


@pytest.fixture(scope="module")
def exploring() -> Any:
    """The requests that are made up, where the library for it is there."""
    pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from scripts.torture import exploring

    return exploring


@pytest.mark.parametrize("shard", range(SHARDS))
def test_each_answer_is_as_the_document_says(
    shard: int, served: Served, document: dict[str, Any], exploring: Any
) -> None:
    explorer = exploring.Explorer(served.url)
    operations = exploring.list_operations(document)[shard::SHARDS]
    faults = exploring.explore_operations(explorer, operations, EXAMPLES, _tell_nobody)
    assert faults == [], "\n\n".join(faults)
    assert explorer.asked.total() >= len(operations) > 10


def test_what_answers_give_leads_on_along_the_links(
    served: Served, document: dict[str, Any], exploring: Any
) -> None:
    explorer = exploring.Explorer(served.url)
    faults = exploring.explore_links(explorer, document, REQUESTS, _tell_nobody)
    assert faults == [], "\n\n".join(faults)
    assert explorer.asked.total() >= REQUESTS


def _tell_nobody(_: str) -> None:
    """In place of what shows progress."""
