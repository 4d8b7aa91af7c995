"""Every route of `/v1` with OpenAI's SDKs for Python and JavaScript."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.openai_sdk import OpenAISdk, PythonSdk, SdkCall, SdkResult, install_node_sdk
from tests.support.server import Account, Running

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=["python", "node"])
def sdk(request: pytest.FixtureRequest) -> OpenAISdk:
    if request.param == "python":
        return PythonSdk()
    return install_node_sdk(request.config.cache.mkdir("npm"))


def chat(text: str, **members: Any) -> SdkCall:
    messages = [{"role": "user", "content": text}]
    return SdkCall("chat.completions", values={"model": "demo", "messages": messages, **members})


async def test_an_sdk_uses_every_route(
    server: Running, ada: Account, key: str, sdk: OpenAISdk
) -> None:
    await ada.new_character(name="Marlena")

    async def run(calls: Sequence[SdkCall]) -> list[SdkResult]:
        return await sdk.run(server.url, key, calls)

    usage = {"include_usage": True}
    listed, named, whole, streamed, called, chosen, texts, vectors = await run(
        [
            SdkCall("models", "list"),
            SdkCall("models", "retrieve", "character:marlena"),
            chat("Hello"),
            chat("Hello", stream=True, stream_options=usage),
            chat("call", stream=True),
            chat("Hello", n=2),
            SdkCall("completions", values={"model": "demo", "prompt": "Once"}),
            SdkCall("embeddings", values={"model": "demo", "input": ["one", "three"]}),
        ]
    )
    assert "character:marlena" in {each["id"] for each in listed.value["data"]}
    assert named.value["id"] == "character:marlena"

    assert whole.text == "The door creaks."
    assert whole.headers["x-talekeeper-chat"] == "a-chat"
    assert whole.value["usage"]["total_tokens"] == 12
    assert streamed.text == "The door creaks."
    assert streamed.parts[-1]["usage"]["total_tokens"] == 12

    [call] = called.parts[1]["choices"][0]["delta"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city":"Oslo"}'}
    assert [each["index"] for each in chosen.value["choices"]] == [0, 1]
    assert texts.value["choices"][0]["text"] == "The door creaks."
    assert [each["embedding"][0] for each in vectors.value["data"]] == [3, 5]


async def test_an_sdk_raises_the_error_of_each_status(
    server: Running, key: str, sdk: OpenAISdk
) -> None:
    invalid, unknown, failed, later = await sdk.run(
        server.url,
        key,
        [
            chat("Hello", temperature=9),
            SdkCall("models", "retrieve", "nobody"),
            chat("fail"),
            chat("fail later", stream=True),
        ],
    )
    [refused] = await sdk.run(server.url, "tk_wrong", [SdkCall("models", "list")])
    errors = [each.error for each in (invalid, unknown, failed, refused)]
    assert [(each["kind"], each["status"], each["code"]) for each in errors if each] == [
        ("BadRequestError", 400, "invalid-parameter"),
        ("NotFoundError", 404, "model-name-not-found"),
        ("InternalServerError", 502, "model-key-refused"),
        ("AuthenticationError", 401, "unauthenticated"),
    ]
    assert invalid.error is not None
    assert invalid.error["param"] == "temperature"
    assert later.text == "The door"
    assert later.error is not None
    assert later.error["code"] == "model-key-refused"
