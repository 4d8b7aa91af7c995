"""A server for each module, and its OpenAPI document."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import httpx
import pytest

from tests.support.process import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    folder = tmp_path_factory.mktemp("generated")
    limits = {"max_requests_per_minute_per_user": 0, "max_requests_per_minute_per_address": 0}
    with serving(folder, registration="open", demo_tokens_per_second=0, **limits) as served:
        yield served


@pytest.fixture(scope="module")
def document(served: Served) -> dict[str, Any]:
    answer = httpx.get(f"{served.url}/schema", timeout=60, trust_env=False)
    found: dict[str, Any] = answer.raise_for_status().json()
    return found
