"""The OpenAPI document is rendered once, and beside everything else."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from litestar.openapi import OpenAPIConfig

from backend.operations import openapi
from tests.support.server import APPLICATIONS, ok, running

pytestmark = pytest.mark.anyio

AT_ONCE = 8


async def test_requests_are_answered_while_the_document_is_rendered_once_for_all_who_ask(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    threads: list[threading.Thread] = []
    rendered: list[bool] = []
    complete, to_schema = openapi.complete_document, OpenAPIConfig.to_openapi_schema

    def slow(*args: Any) -> dict[str, Any]:
        threads.append(threading.current_thread())
        rendered.append(go_on.wait(20))
        return complete(*args)

    def noting(self: OpenAPIConfig) -> Any:
        threads.append(threading.current_thread())
        return to_schema(self)

    APPLICATIONS.forget()
    monkeypatch.setattr(openapi, "complete_document", slow)
    monkeypatch.setattr(OpenAPIConfig, "to_openapi_schema", noting)
    async with running(sqlite_url, tmp_path) as server, server.browser() as client:
        state = server.server.server_state
        asked = [
            asyncio.create_task(client.get(("/schema", "/schema/openapi.json")[number % 2]))
            for number in range(AT_ONCE)
        ]
        while (
            len(state.tasks) < AT_ONCE and not rendered
        ):  # until all of them wait for the document
            await asyncio.sleep(0.01)
        ok(await client.get("/health"))
        assert not any(each.done() for each in asked)
        go_on.set()
        answers = await asyncio.gather(*asked)
        answers.append(await client.get("/schema"))
        missing = await client.get("/schema/nothing")
    assert rendered == [True]
    assert threading.main_thread() not in threads
    assert len({answer.content for answer in answers}) == 1
    assert ok(answers[0])["openapi"]
    assert missing.status_code == 404
