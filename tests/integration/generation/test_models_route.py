"""`GET /models`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.openai_server import MODEL_ID, OpenAIServer
from tests.support.models import asking
from tests.support.server import Account, ok, running

pytestmark = pytest.mark.anyio


async def supports(account: Account) -> dict[str, str]:
    listed = ok(await account.client.get("/api/v1/models"))["items"]
    return {model["id"]: model["tool_support"] for model in listed}


async def test_the_list_says_how_each_model_calls_tools(sqlite_url: str, tmp_path: Path) -> None:
    async with (
        OpenAIServer() as model,
        running(sqlite_url, tmp_path, **asking(model), openai_tool_support="structured") as server,
        server.account("Ada") as ada,
    ):
        assert await supports(ada) == {MODEL_ID: "structured", "demo": "native"}
