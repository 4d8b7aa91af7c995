"""Every list comes in pages: the walk over all routes that answer with one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.server import Account, Running, ok

pytestmark = pytest.mark.anyio

BOUNDED_OTHERWISE = {
    "getUsage": "one for each kind of quota",
    "getUserUsage": "as above",
    "getContext": "the parts of one prompt",
    "previewContext": "as above",
    "listModels": "as many as settings name",
    "listModelsInUse": "those of the settings and of the latest 50 chats",
    "listProviders": "at most 20 of one owner",
    "listProviderModels": "at most 2,000 of one server",
    "listProviderAddresses": "at most 100",
    "listProviderPresets": "as many as are known",
    "listRules": "as many as are installed",
    "search": "has a limit of its own, and no second page",
    "listChatLorebooks": "links, limited when they are made",
    "listCharacterLorebooks": "as above",
    "listPersonaLorebooks": "as above",
}


def has_items(schema: dict[str, Any], document: dict[str, Any]) -> bool:
    name = schema.get("$ref", "").rpartition("/")[2]
    whole = document["components"]["schemas"][name] if name else schema
    return "items" in whole.get("properties", {})


async def test_every_list_has_a_limit_and_a_cursor(ada: Account) -> None:
    document = ok(await ada.client.get("/schema"))
    found: set[str] = set()
    unbounded: set[str] = set()
    for item in document["paths"].values():
        said = item.get("get", {})
        content = said.get("responses", {}).get("200", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema", {})
        if not has_items(schema, document) or said["operationId"] in BOUNDED_OTHERWISE:
            continue
        names = {each["name"]: each["schema"] for each in said.get("parameters", ())}
        is_bounded = names.get("limit", {}).get("maximum", 10**9) <= 500
        has_cursor = bool(names.keys() & {"after", "before"})
        (found if is_bounded and has_cursor else unbounded).add(said["operationId"])
    assert unbounded == set()
    assert {"listSiblings", "listSessions", "listApiKeys", "listUsers", "listInvitations"} <= found


async def test_sessions_keys_accounts_and_invitations_come_in_pages(
    server: Running, ada: Account
) -> None:
    for n in range(4):
        ok(await ada.client.post("/api/v1/api-keys", json={"label": f"{n}"}), 201)
        ok(await ada.client.post("/api/v1/admin/invitations", json={}), 201)
        async with server.account(f"Person {n}"), server.signed_in("Ada"):
            pass
    for path in ("sessions", "api-keys", "admin/users", "admin/invitations"):
        whole = ok(await ada.client.get(f"/api/v1/{path}"))["items"]
        seen: list[str] = []
        query: dict[str, Any] = {"limit": 2}
        while True:
            part = ok(await ada.client.get(f"/api/v1/{path}", params=query))
            assert len(part["items"]) <= 2
            seen += [each["id"] for each in part["items"]]
            if part["next"] is None:
                break
            query["after"] = part["next"]
        assert seen == [each["id"] for each in whole]
        assert len(seen) >= 4
