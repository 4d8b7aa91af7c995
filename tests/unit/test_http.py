"""Problems that Litestar's errors become."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from litestar import Litestar, post
from litestar.di import NamedDependency, Provide
from litestar.params import JSONBody
from litestar.testing import AsyncTestClient

from backend.http.responses import EXCEPTION_HANDLERS

pytestmark = pytest.mark.anyio


class Said(msgspec.Struct):
    messages: list[str]


@post("/said", status_code=200)
async def said(data: JSONBody[Said], messages: NamedDependency[str]) -> str:
    return f"{messages}: {data.messages[0]}"


@post("/broken")
async def broken(messages: NamedDependency[int]) -> int:
    return messages


async def answer(path: str, body: dict[str, Any], *, dependency: Any = "Mara") -> tuple[int, Any]:
    app = Litestar(
        [said, broken],
        dependencies={"messages": Provide(lambda: dependency, sync_to_thread=False)},
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=None,
        logging_config=None,
    )
    async with AsyncTestClient(app) as client:
        found = await client.post(path, json=body)
        return found.status_code, found.json()


async def test_a_member_that_is_called_like_a_dependency_is_the_client_s_fault() -> None:
    status, problem = await answer("/said", {"messages": 1})
    assert status == 422
    assert problem["errors"] == [
        {"member": "messages", "in": "body", "message": "Expected `array`, got `int`"}
    ]


async def test_a_dependency_of_the_wrong_kind_is_the_server_s_fault() -> None:
    status, problem = await answer("/broken", {}, dependency="no number")
    assert status == 500
    assert problem["type"].endswith(":internal")
