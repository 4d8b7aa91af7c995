"""Tests of the OpenAPI document: agreement with the routes, pages of lists, and its rendering."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import pytest
from litestar.openapi import OpenAPIConfig

from backend.errors import MEDIA_TYPE, TYPE_PREFIX
from backend.operations import openapi
from tests.integration.characters.pictures import picture
from tests.support.routes import filled as fill_path
from tests.support.server import (
    APPLICATIONS,
    PASSWORD,
    Account,
    Running,
    ok,
    problem,
    read_pages,
    running,
)
from tests.support.shared import ada, server, shared_url
from tests.support.waiting import PATIENCE

__all__ = ["ada", "server", "shared_url"]

pytestmark = pytest.mark.anyio

JSON, EVENTS = "application/json", "text/event-stream"

BODIES: dict[str, Any] = {
    "forkChat": {"message_id": str(uuid4())},
    "exportCharacters": {"character_ids": [str(uuid4())]},
    "patchMessage": {"hidden": True},
    "beginDowntime": {"activity": "recovery"},
    "putChatLorebook": {"state": "off"},
    "putCharacterScripts": {"allowed": True},
    "chooseCharacterPreset": {"preset_id": None},
    "orderLoreEntries": {"entry_ids": []},
    "renamePasskey": {"label": "The blue key"},
    "removePasskey": {"password": PASSWORD},
    "putSummary": {"text": "They rowed out to the lighthouse."},
    "createCampaignEntity": {"kind": "npc", "name": "Mara"},
    "createCampaignRelation": {"from_id": str(uuid4()), "to_id": str(uuid4())},
    "createCampaignThread": {"title": "The lamp"},
    "createCampaignClock": {"name": "The oil"},
    "createCampaignFact": {"text": "The lamp burns oil."},
    "createCampaignEcho": {"text": "The oil was dear."},
    "createCampaignTerm": {"term": "Lampkeeper"},
    "compactCampaign": {"chat_id": str(uuid4())},
    "rebuildChronicle": {"chat_id": str(uuid4())},
    "changeOneSummary": {"text": "They rowed out."},
    "addMemory": {"chat_id": str(uuid4()), "text": "The lamp is out of oil."},
    "correctClientRequest": {"kind": "quiet"},
    "mergeChronicleEvents": {"event_ids": [str(uuid4()), str(uuid4())]},
}
"""Bodies of routes without an example that refuse an empty object."""


class Operation(NamedTuple):
    method: str
    path: str
    said: dict[str, Any]

    @property
    def id(self) -> str:
        name: str = self.said["operationId"]
        return name

    @property
    def body(self) -> dict[str, Any]:
        content = self.said.get("requestBody", {}).get("content", {})
        found: dict[str, Any] = content.get(JSON, {})
        return found

    def options(self) -> dict[str, Any]:
        if self.path.endswith(("/avatar", "/background")) and self.method == "PUT":
            return {"content": picture(), "headers": {"Content-Type": "image/png"}}
        if not self.body:
            return {}
        return {"json": self.body.get("example", BODIES.get(self.id, {}))}


@pytest.fixture(scope="module", autouse=True)
async def administrator(server: Running) -> AsyncGenerator[Account]:
    async with server.account("Administrator") as account:
        yield account


@pytest.fixture(scope="module")
async def document(server: Running) -> dict[str, Any]:
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as client:
        ok(await client.get(f"{server.url}/schema"))
        schema: dict[str, Any] = ok(await client.get(f"{server.url}/schema"))
        return schema


def is_for_keys(operation: Operation) -> bool:
    """True for a route of the OpenAI-compatible endpoint."""
    return operation.path.startswith("/v1/")


@contextlib.asynccontextmanager
async def with_key(server: Running, account: Account) -> AsyncGenerator[httpx.AsyncClient]:
    made = await account.client.post("/api/v1/api-keys", json={"label": "x", "scope": "chat"})
    async with server.program(ok(made, 201)["token"]) as program:
        yield program


def operations(document: dict[str, Any]) -> Iterator[Operation]:
    for path, item in document["paths"].items():
        for method, said in item.items():
            yield Operation(method.upper(), path, said)


def find_members(document: dict[str, Any], operation: Operation) -> dict[str, dict[str, Any]]:
    schema = operation.body.get("schema", {})
    found: dict[str, dict[str, Any]] = {}
    for each in (schema, *schema.get("oneOf", ())):
        name = each.get("$ref", "").rpartition("/")[2]
        found |= (document["components"]["schemas"][name] if name else each).get("properties", {})
    return found


def operation(document: dict[str, Any], name: str) -> Operation:
    return next(each for each in operations(document) if each.id == name)


def find_names(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def fill(path: str, **values: str) -> str:
    """Fill a path with these values, and with random ids for the others."""
    return fill_path(path, {name: str(uuid4()) for name in find_names(path)} | values)


async def test_every_operation_has_a_name_a_summary_a_text_and_its_errors(
    document: dict[str, Any],
) -> None:
    found = list(operations(document))
    names = [each.id for each in found]
    assert len(set(names)) == len(names) > 50
    for each in found:
        assert each.said["summary"], each.id
        assert each.said["description"], each.id
        kind, name = (JSON, "OpenAIError") if is_for_keys(each) else (MEDIA_TYPE, "Problem")
        shown = each.said["responses"]["default"]["content"][kind]
        assert shown["schema"] == {"$ref": f"#/components/schemas/{name}"}


async def test_it_says_how_to_sign_in(document: dict[str, Any]) -> None:
    assert document["components"]["securitySchemes"].keys() == {"apiKey", "session"}
    assert document["security"] == [{"apiKey": []}, {"session": []}]


async def test_it_says_of_each_route_whether_one_has_to_sign_in(
    server: Running, document: dict[str, Any]
) -> None:
    for each in operations(document):
        async with server.browser() as stranger:
            answer = await stranger.request(each.method, fill(each.path))
        is_open = answer.status_code != 401
        ways: Any = [{"apiKey": []}] if is_for_keys(each) else document["security"]
        said = each.said.get("security", document["security"])
        assert said == ([] if is_open else ways), each.id


async def test_it_names_what_a_route_says_of_things_that_are_not_there(
    server: Running, administrator: Account, document: dict[str, Any]
) -> None:
    async with with_key(server, administrator) as program:
        for each in operations(document):
            if not find_names(each.path):
                continue
            client = program if is_for_keys(each) else administrator.client
            answer = await client.request(each.method, fill(each.path), **each.options())
            assert answer.status_code == 404, (each.id, answer.text)
            said = answer.json()
            slug = said["error"]["code"] if is_for_keys(each) else said["type"]
            slug = slug.removeprefix(TYPE_PREFIX)
            assert f"`{slug}`" in each.said["responses"]["404"]["description"], each.id


async def test_it_names_what_the_parts_that_chats_do_not_know_refuse(
    ada: Account, document: dict[str, Any]
) -> None:
    settle, fork = (operation(document, name) for name in ("patchChatSettings", "forkChat"))
    path = fill(settle.path, chat_id=(await ada.new_chat())["id"])
    answer = await ada.client.patch(path, json={"chronicle_id": str(uuid4())})
    slug = problem(answer, 404, "chronicle-not-found")["type"].removeprefix(TYPE_PREFIX)
    assert f"`{slug}`" in settle.said["responses"]["404"]["description"]
    assert "`chronicle-full`" in settle.said["responses"]["409"]["description"]
    for full in ("`chronicle-full`", "`lorebook-full`"):
        assert full in fork.said["responses"]["409"]["description"]


async def test_its_examples_are_taken(
    ada: Account, server: Running, document: dict[str, Any]
) -> None:
    chat = (await ada.new_chat())["id"]
    made = await ada.client.post("/api/v1/chronicles", json={"name": "The coast"})
    book = await ada.client.post("/api/v1/lorebooks", json={"name": "The coast"})
    campaign = await ada.client.post("/api/v1/campaigns", json={"name": "The coast"})
    ids = {
        "chat_id": chat,
        "campaign_id": ok(campaign, 201)["id"],
        "chronicle_id": ok(made, 201)["id"],
        "lorebook_id": ok(book, 201)["id"],
        "character_id": (await ada.new_character(name="Marlena"))["id"],
    }
    # A choice needs a waiting turn, and vectors an embedding model. Other tests cover these.
    found = [
        each
        for each in operations(document)
        if "example" in each.body and each.id not in {"choose", "createEmbeddings"}
    ]
    assert {"signUp", "logIn", "makeApiKey", "openChat", "takeTurn", "patchSettings"} <= {
        each.id for each in found
    }
    async with server.browser() as stranger, with_key(server, ada) as program:
        for each in sorted(found, key=lambda each: each.id != "signUp"):
            client = stranger if each.said.get("security") == [] else ada.client
            client = program if is_for_keys(each) else client
            answer = await client.request(
                each.method, fill(each.path, **ids), json=each.body["example"]
            )
            assert answer.is_success, (each.id, answer.text)


async def test_the_forms_of_a_turn_are_those_in_which_it_comes(
    ada: Account, document: dict[str, Any]
) -> None:
    chat = (await ada.new_chat())["id"]
    take, follow = (operation(document, name) for name in ("takeTurn", "followTurn"))
    described = take.said["responses"]["200"]["content"]
    path = fill(take.path, chat_id=chat)
    streamed = await ada.client.post(path, json={"text": "Who is there?"})
    whole = await ada.client.post(path, json={"text": "Nobody?"}, headers={"Accept": JSON})
    events = await ada.client.get(fill(follow.path, turn_id=ok(whole)["id"]))

    kinds = [answer.headers["content-type"].partition(";")[0] for answer in (streamed, whole)]
    assert kinds == [EVENTS, JSON]
    assert list(described) == [JSON, EVENTS]
    assert events.headers["content-type"].partition(";")[0] == EVENTS
    assert list(follow.said["responses"]["200"]["content"]) == [EVENTS]
    schemas = document["components"]["schemas"]
    assert described[JSON]["schema"] == {"$ref": "#/components/schemas/TurnView"}
    assert schemas["TurnView"]["properties"].keys() == ok(whole).keys()
    assert schemas["TurnUsage"]["properties"].keys() == ok(whole)["usage"].keys()
    assert schemas["Totals"]["properties"].keys() == ok(whole)["totals"].keys()


async def test_an_answer_without_a_body_is_described_without_one(document: dict[str, Any]) -> None:
    bare = [
        each.said["responses"]["204"]
        for each in operations(document)
        if "204" in each.said["responses"]
    ]
    assert len(bare) > 20
    assert [each for each in bare if "content" in each] == []


def find_links(document: dict[str, Any], name: str) -> dict[str, dict[str, str]]:
    answers = operation(document, name).said["responses"].values()
    links: dict[str, Any] = next(each["links"] for each in answers if "links" in each)
    return {target: link["parameters"] for target, link in links.items()}


async def test_its_links_lead_from_what_was_made_to_where_it_is(
    ada: Account, document: dict[str, Any]
) -> None:
    made = {
        "openChat": ok(await ada.client.post("/api/v1/chats", json={}), 201),
        "createCharacter": await ada.new_character(),
        "createPersona": ok(await ada.client.post("/api/v1/personas", json={"name": "C"}), 201),
        "createLorebook": ok(await ada.client.post("/api/v1/lorebooks", json={"name": "L"}), 201),
        "createChronicle": ok(await ada.client.post("/api/v1/chronicles", json={"name": "C"}), 201),
    }
    followed = 0
    for name, answer in made.items():
        for target, parameters in find_links(document, name).items():
            to = operation(document, target)
            assert parameters.keys() == set(find_names(to.path)), (name, target)
            assert set(parameters.values()) == {"$response.body#/id"}
            if to.method == "GET":
                path = fill(to.path, **dict.fromkeys(parameters, str(answer["id"])))
                answered = await ada.client.get(path)
                slug = answered.json().get("type", "") if answered.status_code == 404 else ""
                # A resource without a picture or summary may return 404, but the resource must
                # exist.
                kind = name.removeprefix("open").removeprefix("create").lower()
                assert slug != f"{TYPE_PREFIX}{kind}-not-found", (name, target)
                followed += 1
    assert followed > 15


async def test_its_links_hand_on_what_the_way_to_them_needs(document: dict[str, Any]) -> None:
    entry = find_links(document, "createLoreEntry")["patchLoreEntry"]
    assert entry == {"lorebook_id": "$request.path.lorebook_id", "entry_id": "$response.body#/id"}
    assert find_links(document, "makeApiKey")["endApiKey"] == {"key_id": "$response.body#/key/id"}
    assert find_links(document, "listMessages")["getMessage"]["message_id"].endswith("#/items/0/id")


async def test_parts_that_are_not_ready_are_described(document: dict[str, Any]) -> None:
    answers = operation(document, "ready").said["responses"]
    assert answers["503"]["content"] == answers["200"]["content"]
    assert answers["503"]["content"][JSON]["schema"]["$ref"].endswith("/Readiness")


async def test_a_member_of_the_wrong_kind_is_named_whatever_it_is_called(
    administrator: Account, document: dict[str, Any]
) -> None:
    asked = 0
    for each in operations(document):
        if is_for_keys(each):  # their own tests send members of the wrong kind
            continue
        for name, schema in find_members(document, each).items():
            odd: Any = 1 if '"array"' in json.dumps(schema) else [[[]]]
            answer = await administrator.client.request(
                each.method, fill(each.path), json={name: odd}
            )
            asked += 1
            if each.method == "PATCH" and answer.status_code == 404:
                continue  # some routes load the resource before they validate the body
            body = problem(answer, 422, "validation-failed")
            assert name in answer.text, (each.id, body)
    assert asked > 150


NO_DEFAULT = {
    "patchChronicleEvent": ("summary",),
    "patchCampaignEntity": ("kind",),
    "patchCampaignRelation": ("from_id", "to_id"),
    "patchCampaignThread": ("title",),
    "patchCampaignFact": ("text",),
    "patchCampaignEcho": ("text",),
    "patchCampaignTerm": ("term",),
}
"""Members that cannot be cleared, in addition to `name`."""


async def campaign_items(account: Account) -> dict[str, str]:
    client = account.client
    made = ok(await client.post("/api/v1/campaigns", json={"name": "The coast"}), 201)
    path = f"/api/v1/campaigns/{made['id']}"
    ids: dict[str, str] = {"campaign_id": made["id"]}
    new: tuple[tuple[str, dict[str, Any]], ...] = (
        ("entities", BODIES["createCampaignEntity"]),
        ("threads", BODIES["createCampaignThread"]),
        ("clocks", BODIES["createCampaignClock"]),
        ("facts", BODIES["createCampaignFact"]),
        ("echoes", BODIES["createCampaignEcho"]),
        ("glossary", BODIES["createCampaignTerm"]),
        ("scenes", {}),
        ("chapters", {}),
    )
    for plural, fields in new:
        item = ok(await client.post(f"{path}/{plural}", json=fields), 201)
        ids[f"{plural}/item_id"] = item["id"]
    mara = ids["entities/item_id"]
    both = {"from_id": mara, "to_id": mara}
    made = ok(await client.post(f"{path}/relations", json=both), 201)
    return {**ids, "relations/item_id": made["id"]}


async def test_a_patch_may_hold_each_member_that_is_described_or_null(
    ada: Account, document: dict[str, Any]
) -> None:
    character = await ada.new_character()
    persona = ok(await ada.client.post("/api/v1/personas", json={"name": "Captain"}), 201)
    book = ok(await ada.client.post("/api/v1/lorebooks", json={"name": "Lore"}), 201)["id"]
    made = await ada.client.post(f"/api/v1/lorebooks/{book}/entries", json={})
    chronicle = ok(await ada.client.post("/api/v1/chronicles", json={"name": "The coast"}), 201)
    chronicle_id = chronicle["id"]
    event = await ada.client.post(
        f"/api/v1/chronicles/{chronicle_id}/events", json={"summary": "The lamp went out."}
    )
    preset = await ada.client.post("/api/v1/presets", json={"name": "Dry"})
    items = await campaign_items(ada)
    keyed = {"kind": "gemini", "api_key": "AIza-nobody"}
    provider = ok(await ada.client.post("/api/v1/providers", json=keyed), 201)
    ids = {
        "provider_id": provider["id"],
        **items,
        "lorebook_id": book,
        "entry_id": ok(made, 201)["id"],
        "chat_id": (await ada.new_chat())["id"],
        "character_id": character["id"],
        "persona_id": persona["id"],
        "preset_id": ok(preset, 201)["id"],
        "chronicle_id": chronicle_id,
        "event_id": ok(event, 201)["id"],
    }
    patched: set[str] = set()
    for each in operations(document):
        schema = each.body.get("schema", {})
        if each.method != "PATCH" or "$ref" in schema:
            continue
        patched.add(each.id)
        path = fill(each.path, **ids)
        assert schema["properties"], each.id
        for name in schema["properties"]:
            answer = await ada.client.patch(path, json={name: None})
            needs_name = name == "name" and each.id != "patchProvider"
            if needs_name or name in NO_DEFAULT.get(each.id, ()):
                assert answer.status_code == 422
            else:
                assert answer.status_code == 200, (each.id, name, answer.text)
        answer = await ada.client.patch(path, json={"no_such_member": 1})
        assert answer.status_code == 422, each.id
    assert patched == {
        "changeMe",
        "patchSettings",
        "patchCharacter",
        "patchPersona",
        "patchPreset",
        "patchProvider",
        "patchChat",
        "patchChatSettings",
        "patchLorebook",
        "patchLoreEntry",
        "patchChronicle",
        "patchChronicleEvent",
        "patchCampaign",
        "patchCampaignEntity",
        "patchCampaignRelation",
        "patchCampaignThread",
        "patchCampaignChapter",
        "patchCampaignClock",
        "patchCampaignFact",
        "patchCampaignScene",
        "patchCampaignEcho",
        "patchCampaignTerm",
    }


async def test_files_have_the_media_types_that_are_described(
    ada: Account, document: dict[str, Any]
) -> None:
    character = (await ada.new_character())["id"]
    persona = ok(await ada.client.post("/api/v1/personas", json={"name": "Captain"}), 201)["id"]
    for path in (f"characters/{character}", f"personas/{persona}"):
        headers = {"content-type": "image/png"}
        await ada.client.put(f"/api/v1/{path}/avatar", content=picture(), headers=headers)
    book = ok(await ada.client.post("/api/v1/lorebooks", json={"name": "Lore"}), 201)["id"]
    made = ok(await ada.client.post("/api/v1/chronicles", json={"name": "The coast"}), 201)
    campaign = ok(await ada.client.post("/api/v1/campaigns", json={"name": "Seagate"}), 201)
    preset = await ada.client.post("/api/v1/presets", json={"name": "Dry"})
    ids = {
        "character_id": character,
        "persona_id": persona,
        "preset_id": ok(preset, 201)["id"],
        "lorebook_id": book,
        "chronicle_id": made["id"],
        "campaign_id": campaign["id"],
        "chat_id": (await ada.new_chat())["id"],
    }
    several: dict[str, Sequence[str | None]] = {
        "exportCharacter": ("png", "json", "charx"),
        "exportChat": ("jsonl", "markdown", "text", "archive"),
    }
    binary = {"type": "string", "format": "binary"}
    seen: dict[str, set[str]] = {}
    for each in operations(document):
        if each.method != "GET" or not each.path.endswith(("/export", "/avatar")):
            continue
        described = each.said["responses"]["200"]["content"]
        for file_format in several.get(each.id, (None,)):
            query = {"format": file_format} if file_format else {}
            answer = await ada.client.get(fill(each.path, **ids), params=query)
            assert answer.status_code == 200, (each.id, answer.text)
            kind = answer.headers["content-type"].partition(";")[0]
            assert described[kind]["schema"] == ({"type": "object"} if kind == JSON else binary)
            seen.setdefault(each.id, set()).add(kind)
        assert seen[each.id] == set(described), each.id
    assert len(seen) == 8


async def test_each_event_of_a_stream_is_described(ada: Account, document: dict[str, Any]) -> None:
    chat = (await ada.new_chat())["id"]
    content = operation(document, "takeTurn").said["responses"]["200"]["content"]
    described = {each["title"]: each for each in content[EVENTS]["schema"]["oneOf"]}
    told = await ada.turn(chat, text="Who is there?")
    assert {"turn.started", "text.delta", "turn.completed"} <= {event.name for event in told}
    for event in told:
        data = described[event.name]["properties"]["data"]
        assert (data["type"], data["contentMediaType"]) == ("string", JSON)
        assert event.data.keys() <= data["contentSchema"]["properties"].keys(), event.name
    for name in ("followTurn", "followJob"):
        content = operation(document, name).said["responses"]["200"]["content"]
        assert all(each["title"] for each in content[EVENTS]["schema"]["oneOf"])


async def test_no_answer_is_called_a_string_that_is_none(document: dict[str, Any]) -> None:
    for each in operations(document):
        for status, answer in each.said["responses"].items():
            for kind, media in answer.get("content", {}).items():
                plain = media.get("schema") == {"type": "string"}
                assert not plain or kind == "text/plain", (each.id, status, kind)


BOUNDED_OTHERWISE = {
    "getUsage": "one for each kind of quota",
    "getUserUsage": "as above",
    "getContext": "the parts of one prompt",
    "previewContext": "as above",
    "listModels": "as many as settings name",
    "listModelsInUse": "those of the settings and of the latest 50 chats",
    "listLocalServers": "at most four programs",
    "listProviders": "at most 20 of one owner",
    "listProviderModels": "at most 2,000 of one server",
    "listProviderAddresses": "at most 100",
    "listProviderPresets": "as many as are known",
    "listRules": "as many as are installed",
    "search": "has a limit of its own, and no second page",
    "listChatLorebooks": "links, limited when they are made",
    "listCharacterLorebooks": "as above",
    "listClientModels": "characters, campaigns, models and the newest chats, for one menu",
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
    server: Running, administrator: Account
) -> None:
    for n in range(4):
        ok(await administrator.client.post("/api/v1/api-keys", json={"label": f"{n}"}), 201)
        ok(await administrator.client.post("/api/v1/admin/invitations", json={}), 201)
        async with server.account(f"Person {n}"), server.signed_in(administrator.name):
            pass
    for path in ("sessions", "api-keys", "admin/users", "admin/invitations"):
        whole = ok(await administrator.client.get(f"/api/v1/{path}"))["items"]
        pages = await read_pages(administrator.client.get, f"/api/v1/{path}", limit=2)
        assert len(whole) >= 4
        assert max(len(page) for page in pages) == 2
        assert [each["id"] for page in pages for each in page] == [each["id"] for each in whole]


AT_ONCE = 8


async def test_requests_are_answered_while_the_document_is_rendered_once_for_all_who_ask(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    threads: list[threading.Thread] = []
    rendered: list[bool] = []
    completed, to_schema = openapi.complete_document, OpenAPIConfig.to_openapi_schema

    def slow(*args: Any) -> dict[str, Any]:
        threads.append(threading.current_thread())
        rendered.append(go_on.wait(20))
        return completed(*args)

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
        while len(state.tasks) < AT_ONCE and not rendered:  # all requests wait for the document
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
