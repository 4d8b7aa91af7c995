"""The OpenAPI document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server import ok, running

pytestmark = pytest.mark.anyio


@pytest.fixture
async def document(sqlite_url: str, tmp_path: Path) -> dict[str, Any]:
    async with (
        running(sqlite_url, tmp_path) as server,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        schema: dict[str, Any] = ok(await client.get(f"{server.url}/schema"))
        return schema


async def test_every_operation_has_a_name_a_summary_a_text_and_its_errors(
    document: dict[str, Any],
) -> None:
    operations = [each for path in document["paths"].values() for each in path.values()]
    names = [each["operationId"] for each in operations]
    assert len(set(names)) == len(names) > 50
    for each in operations:
        assert each["summary"], each["operationId"]
        assert each["description"], each["operationId"]
        problem = each["responses"]["default"]["content"]["application/problem+json"]
        assert problem["schema"] == {"$ref": "#/components/schemas/Problem"}


async def test_it_says_how_to_sign_in(document: dict[str, Any]) -> None:
    assert document["components"]["securitySchemes"].keys() == {"apiKey", "session"}
    assert document["security"] == [{"apiKey": []}, {"session": []}]
