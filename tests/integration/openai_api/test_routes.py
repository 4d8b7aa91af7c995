"""Tests of `/v1`: replies and their streams, errors in OpenAI's form, keys, and other origins."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from backend.openai_api import delivery
from tests.integration.openai_api.conftest import ORIGIN, make_key
from tests.support.openai_replies import ScriptedCompletions
from tests.support.server import Account, Running, ok
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"


def body(text: Any, **members: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": text}], **members}


def read_chunks(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    found: dict[str, Any] = response.json()["error"]
    assert found["code"] == code, found
    assert set(found) == {"message", "type", "param", "code"}
    return found


async def test_a_reply_is_one_object_without_stream(client: httpx.AsyncClient) -> None:
    response = await client.post(CHAT, json=body("Hello"))
    reply = ok(response)
    assert reply["object"] == "chat.completion"
    [choice] = reply["choices"]
    assert choice["message"]["content"] == "The door creaks."
    assert choice["message"]["reasoning_content"] == "Hm."
    assert choice["finish_reason"] == "stop"
    assert reply["usage"]["total_tokens"] == 12
    assert reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert response.headers["x-talekeeper-chat"] == "a-chat"


async def test_a_stream_has_a_role_deltas_an_end_and_usage_if_asked(
    client: httpx.AsyncClient,
) -> None:
    options = {"include_usage": True}
    response = await client.post(CHAT, json=body("Hello", stream=True, stream_options=options))
    assert response.headers["content-type"] == "text/event-stream"
    chunks = read_chunks(response)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[1:-1]]
    assert "".join(each.get("content", "") for each in deltas) == "The door creaks."
    assert "".join(each.get("reasoning_content", "") for each in deltas) == "Hm."
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 5


async def test_tool_calls_are_streamed_with_arguments_as_text(client: httpx.AsyncClient) -> None:
    chunks = read_chunks(await client.post(CHAT, json=body("call", stream=True)))
    [call] = chunks[1]["choices"][0]["delta"]["tool_calls"]
    assert (call["index"], call["function"]["name"]) == (0, "weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    message = ok(await client.post(CHAT, json=body("call")))["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["id"] == "call_1"


async def test_text_completions_have_their_own_form(client: httpx.AsyncClient) -> None:
    request = {"model": "demo", "prompt": "Once"}
    whole = ok(await client.post("/v1/completions", json=request))
    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["text"] == "The door creaks."
    chunks = read_chunks(await client.post("/v1/completions", json={**request, "stream": True}))
    assert "".join(each["choices"][0]["text"] for each in chunks) == "The door creaks."
    refused = await client.post("/v1/completions", json={**request, "model": "character:bor"})
    error(refused, 400, "chat-completions-only")


async def test_embeddings_are_listed_in_the_order_of_the_texts(client: httpx.AsyncClient) -> None:
    request = {"model": "demo", "input": ["one", "three"]}
    found = ok(await client.post("/v1/embeddings", json=request))
    assert [each["embedding"][0] for each in found["data"]] == [3, 5]


async def test_an_error_before_any_text_is_an_http_error(client: httpx.AsyncClient) -> None:
    for stream in (True, False):
        response = await client.post(CHAT, json=body("fail", stream=stream))
        found = error(response, 502, "model-key-refused")
        assert found["type"] == "server_error"
        assert "The key is wrong." in found["message"]
        assert response.headers["x-should-retry"] == "false"


async def test_a_later_error_ends_the_stream(client: httpx.AsyncClient) -> None:
    chunks = read_chunks(await client.post(CHAT, json=body("fail later", stream=True)))
    assert chunks[-1]["error"]["code"] == "model-key-refused"
    error(await client.post(CHAT, json=body("fail later")), 502, "model-key-refused")


@pytest.mark.parametrize("asked", ["wait", "wait silently"])
@pytest.mark.parametrize("stream", [True, False])
async def test_closing_the_connection_closes_the_reply(
    server: Running, key: str, completions: ScriptedCompletions, asked: str, *, stream: bool
) -> None:
    async with server.program(key) as client:
        count = len(completions.replies)
        request = asyncio.create_task(client.post(CHAT, json=body(asked, stream=stream)))
        async with asyncio.timeout(PATIENCE):
            while len(completions.replies) == count:
                await asyncio.sleep(0.01)
            request.cancel()
            await completions.replies[-1].closed.wait()


async def test_a_silent_model_keeps_the_stream_alive(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "KEEP_ALIVE_SECONDS", 0)
    request = body("wait silently", stream=True)
    async with client.stream("POST", CHAT, json=request) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            assert line == ": keep-alive"
            break


async def test_headers_of_a_request_are_its_options(
    client: httpx.AsyncClient, completions: ScriptedCompletions
) -> None:
    headers = {
        "X-Talekeeper-Store": "never",
        "X-Talekeeper-Memory": "off",
        "X-Talekeeper-Max-Context": "8192",
        "x-stainless-retry-count": "1",
        "User-Agent": "SillyTavern/1.18",
    }
    ok(await client.post(CHAT, json=body("Hello"), headers=headers))
    options = completions.options[-1]
    assert (options.store, options.uses_memory, options.max_context) == ("never", False, 8192)
    assert (options.retry_count, options.client) == (1, "SillyTavern")


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "code", "kind"),
    [
        ("POST", CHAT, body("x", temperature=9), 400, "invalid-parameter", "invalid_request_error"),
        ("POST", CHAT, [], 400, "bad-request", "invalid_request_error"),
        ("POST", CHAT, body("x") | {"model": "nobody"}, 404, "model-name-not-found", None),
        ("GET", "/v1/models/nobody", None, 404, "model-name-not-found", "invalid_request_error"),
        ("GET", "/v1/nothing", None, 404, "not-found", "invalid_request_error"),
        ("GET", CHAT, None, 405, "method-not-allowed", "invalid_request_error"),
    ],
)
async def test_errors_have_openais_form(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    sent: Any,
    status: int,
    code: str,
    kind: str | None,
) -> None:
    response = await client.request(method, path, json=sent)
    found = error(response, status, code)
    assert kind in {found["type"], None}


async def test_unreadable_and_large_bodies_are_refused(client: httpx.AsyncClient) -> None:
    error(await client.post(CHAT, content=b"{"), 400, "bad-request")
    error(await client.post("/v1/embeddings", content=b" " * 9_000_000), 413, "too-large")
    error(await client.post(CHAT, content=b" " * 34_000_000), 413, "too-large")


async def test_only_keys_with_the_scope_open_the_routes(server: Running, ada: Account) -> None:
    found = error(await ada.client.post(CHAT, json=body("x")), 401, "unauthenticated")
    assert found["type"] == "authentication_error"
    error(await ada.client.get("/v1/models"), 401, "unauthenticated")
    async with server.program("tk_wrong") as stranger:
        error(await stranger.get("/v1/models"), 401, "unauthenticated")
    async with server.program(await make_key(ada, "read")) as reader:
        ok(await reader.get("/v1/models"))
        found = error(await reader.post(CHAT, json=body("x")), 403, "scope-missing")
        assert found["type"] == "permission_error"


async def test_only_names_of_this_server_are_answered(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/models", headers={"Host": "evil.example"})
    error(answer, 403, "unknown-host")


async def test_names_are_listed_and_found(client: httpx.AsyncClient, ada: Account) -> None:
    first = await ada.new_character(name="Märta Ek")
    second = await ada.new_character(name="Marta Ek")
    campaign = await ada.post("/campaigns", {"name": "The Salt Road"}, 201)
    chat = await ada.new_chat(character_ids=[first["id"]], title="The lamp")
    listed = {each["id"]: each for each in ok(await client.get("/v1/models"))["data"]}
    assert listed["character:marta-ek"]["name"] == "Märta Ek"
    assert listed["character:marta-ek-2"]["name"] == "Marta Ek"
    assert listed["campaign:the-salt-road"]["owned_by"] == "talekeeper"
    assert listed[f"chat:{chat['id']}"]["name"] == "The lamp"
    assert {"auto", "demo"} <= listed.keys()
    for name, shown in {
        f"character:{second['id']}": "character:marta-ek-2",
        f"campaign:{campaign['id']}": "campaign:the-salt-road",
        f"chat:{chat['id']}": f"chat:{chat['id']}",
        "demo": "demo",
        "auto": "auto",
    }.items():
        assert ok(await client.get(f"/v1/models/{name}"))["id"] == shown
    await ada.patch(f"/characters/{first['id']}", {"name": "Bor"})
    assert ok(await client.get("/v1/models/character:bor"))["name"] == "Bor"
    await ada.patch("/me/settings", {"client": {"auto": False}})
    error(await client.get("/v1/models/auto"), 404, "model-name-not-found")
    await ada.patch("/me/settings", {"client": None})


async def test_another_accounts_names_are_not_found(
    server: Running, client: httpx.AsyncClient
) -> None:
    async with server.account("Bea") as bea:
        character = await bea.new_character(name="Secret")
        chat = await bea.new_chat()
        for name in (f"character:{character['id']}", "character:secret", f"chat:{chat['id']}"):
            error(await client.get(f"/v1/models/{name}"), 404, "model-name-not-found")


async def test_pages_of_an_allowed_origin_use_a_key(client: httpx.AsyncClient) -> None:
    headers = {"Origin": ORIGIN, "Sec-Fetch-Site": "cross-site"}
    for path in ("/v1/models", "/api/v1/chats"):
        response = await client.get(path, headers=headers)
        ok(response)
        assert_readable(response)
    made = await client.post("/api/v1/chats", json={}, headers=headers)
    ok(made, 201)
    assert_readable(made)
    stream = await client.post(CHAT, json=body("Hello", stream=True), headers=headers)
    assert_readable(stream)
    assert "x-talekeeper-chat" in stream.headers["access-control-expose-headers"].lower()


async def test_pages_of_an_allowed_origin_read_errors(client: httpx.AsyncClient) -> None:
    headers = {"Origin": ORIGIN, "Sec-Fetch-Site": "cross-site"}
    for method, path in [("GET", "/v1/nothing"), ("POST", CHAT), ("GET", "/api/v1/chats/x")]:
        response = await client.request(method, path, headers=headers)
        assert response.status_code >= 400
        assert_readable(response)
    unknown = await client.get("/v1/models", headers={**headers, "Authorization": "Bearer no"})
    error(unknown, 401, "unauthenticated")
    assert_readable(unknown)


async def test_preflight_needs_no_key(server: Running) -> None:
    asked = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    }
    async with server.browser() as browser:
        response = await browser.options(CHAT, headers=asked)
        assert response.status_code == 204
        assert response.headers["access-control-allow-origin"] == ORIGIN
        assert "POST" in response.headers["access-control-allow-methods"]
        assert "x-stainless-os" in response.headers["access-control-allow-headers"]
        stranger = await browser.options(CHAT, headers={**asked, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in stranger.headers


async def test_another_origin_never_acts_with_a_cookie(ada: Account) -> None:
    headers = {"Origin": ORIGIN, "Sec-Fetch-Site": "cross-site"}
    read = await ada.client.get("/api/v1/chats", headers=headers)
    assert read.status_code == 401
    assert_readable(read)
    written = await ada.client.post("/api/v1/chats", json={}, headers=headers)
    assert written.status_code == 403
    signing_in = {"username": "Ada", "password": "a fine long password"}
    signed = await ada.client.post(
        "/api/v1/sessions", json=signing_in, headers={**headers, "Authorization": "Bearer x"}
    )
    assert "set-cookie" not in signed.headers


async def test_other_origins_stay_refused(client: httpx.AsyncClient) -> None:
    headers = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    response = await client.post(CHAT, json=body("x"), headers=headers)
    error(response, 403, "cross-site-request")
    assert "access-control-allow-origin" not in response.headers
    assert response.headers["vary"] == "Origin"
    assert response.headers["cross-origin-resource-policy"] == "same-origin"


def assert_readable(response: httpx.Response) -> None:
    assert response.headers["access-control-allow-origin"] == ORIGIN
    assert "access-control-allow-credentials" not in response.headers
    assert "x-request-id" in response.headers["access-control-expose-headers"].lower()
    assert "Origin" in response.headers["vary"]
    assert response.headers["cross-origin-resource-policy"] == "cross-origin"
    assert "set-cookie" not in response.headers
