"""Tests that every route needs sign-in and a scope, except the public routes in this module."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.routes import Route, routes_of
from tests.support.server import Account, Running, ok, problem

pytestmark = pytest.mark.anyio

PUBLIC = {
    "GET /",
    "GET /health",
    "GET /ready",
    "GET /metrics",
    "GET /schema",
    "GET /schema/openapi.json",
    "GET /schema/{path}",
    "HEAD /",
    "GET /worker.js",
    "HEAD /worker.js",
    "GET /page/{version}/{name}",
    "HEAD /page/{version}/{name}",
    "GET /api/v1/instance",
    "GET /api/v1/lan/certificate",
    "POST /api/v1/accounts",
    "POST /api/v1/sessions",
    "POST /api/v1/recoveries",
}
"""Routes without sign-in."""

CHANGES_THE_ACCOUNT = {
    "GET /api/v1/admin/lan",
    "GET /api/v1/admin/users/{user_id}/usage",
    "GET /api/v1/providers/local",
    "GET /api/v1/sessions",
    "DELETE /api/v1/sessions/{session_id}",
    "GET /api/v1/api-keys",
    "POST /api/v1/api-keys",
    "DELETE /api/v1/api-keys/{key_id}",
    "PATCH /api/v1/me",
    "DELETE /api/v1/me",
    "POST /api/v1/me/password",
    "POST /api/v1/me/recovery-code",
    "PATCH /api/v1/me/settings",
    "GET /api/v1/me/activity",
    "GET /api/v1/me/second-factors",
    "POST /api/v1/me/second-factors/totp",
    "POST /api/v1/me/second-factors/totp/confirmation",
    "DELETE /api/v1/me/second-factors/totp",
    "POST /api/v1/me/second-factors/codes",
    "POST /api/v1/me/second-factors/passkeys",
    "POST /api/v1/me/second-factors/passkeys/confirmation",
    "PATCH /api/v1/me/second-factors/passkeys/{passkey_id}",
    "DELETE /api/v1/me/second-factors/passkeys/{passkey_id}",
    "GET /api/v1/admin/embedding-models",
    "POST /api/v1/admin/embedding-models/fetch",
    "GET /api/v1/admin/users",
    "PATCH /api/v1/admin/users/{user_id}",
    "GET /api/v1/admin/invitations",
    "POST /api/v1/admin/invitations",
    "DELETE /api/v1/admin/invitations/{invitation_id}",
    "GET /api/v1/admin/provider-addresses",
    "POST /api/v1/admin/provider-addresses",
    "DELETE /api/v1/admin/provider-addresses/{address_id}",
    "GET /api/v1/me/archive",
    "POST /api/v1/me/archive",
    "DELETE /api/v1/me/archive",
    "GET /api/v1/me/archive/status",
    "POST /api/v1/me/rotate-key",
    "POST /api/v1/providers",
    "POST /api/v1/providers/test",
    "PATCH /api/v1/providers/{provider_id}",
    "DELETE /api/v1/providers/{provider_id}",
    "POST /api/v1/providers/{provider_id}/test",
}
"""Routes with the scope `manage`. Other `GET` routes need `read`, the rest `chat`."""

ONLY_LOOKS = {
    "POST /api/v1/tokens",
    "POST /api/v1/chats/{chat_id}/context",
    "POST /api/v1/lorebooks/{lorebook_id}/test",
}
"""Routes with the scope `read` and another method than `GET`."""


def find_closed_routes(server: Running) -> list[Route]:
    return [route for route in routes_of(server.app) if str(route) not in PUBLIC]


def is_for_keys(route: Route) -> bool:
    """True for a route of the OpenAI-compatible endpoint, which ignores cookies."""
    return route.path.startswith("/v1/")


async def ask(client: httpx.AsyncClient, route: Route, **options: Any) -> httpx.Response:
    path = route.filled({name: str(uuid4()) for name in route.parameters})
    return await client.request(route.method, path, **options)


async def test_other_routes_need_sign_in(server: Running) -> None:
    async with server.browser() as nobody:
        for route in find_closed_routes(server):
            answer = await ask(nobody, route)
            if is_for_keys(route):
                assert answer.json()["error"]["code"] == "unauthenticated", route
            else:
                body = problem(answer, 401, "unauthenticated")
                assert body["detail"].startswith("Sign in"), route
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_public_routes_exist_and_need_no_sign_in(server: Running) -> None:
    routes = {str(route): route for route in routes_of(server.app)}
    assert routes.keys() >= PUBLIC
    async with server.browser() as nobody:
        for name in sorted(PUBLIC):
            assert (await ask(nobody, routes[name])).status_code not in {401, 403}, name


async def test_a_key_reaches_as_far_as_its_scope(server: Running, ada: Account) -> None:
    scopes = ["read", "chat", "manage"]
    assert {str(route) for route in find_closed_routes(server)} >= CHANGES_THE_ACCOUNT
    for scope in scopes:
        body = {"label": scope, "scope": scope}
        made = ok(await ada.client.post("/api/v1/api-keys", json=body), 201)
        async with server.program(made["token"]) as script:
            for route in find_closed_routes(server):
                looks = route.method == "GET" or str(route) in ONLY_LOOKS
                default = "read" if looks else "chat"
                needed = "manage" if str(route) in CHANGES_THE_ACCOUNT else default
                answer = await ask(script, route)
                if scopes.index(scope) < scopes.index(needed) and is_for_keys(route):
                    assert answer.json()["error"]["code"] == "scope-missing"
                elif scopes.index(scope) < scopes.index(needed):
                    problem(answer, 403, "scope-missing")
                else:
                    assert answer.status_code not in {401, 403, 500}, (str(route), answer.text)
