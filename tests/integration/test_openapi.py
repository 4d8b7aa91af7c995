"""The OpenAPI document, held against what the routes do."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import pytest

from backend.errors import MEDIA_TYPE, TYPE_PREFIX
from tests.integration.characters.pictures import picture
from tests.support.server import Account, Running, ok, problem, running

pytestmark = pytest.mark.anyio

JSON, EVENTS = "application/json", "text/event-stream"
BODIES: dict[str, Any] = {
    "forkChat": {"message_id": str(uuid4())},
    "patchMessage": {"hidden": True},
    "putChatLorebook": {"state": "off"},
    "orderLoreEntries": {"entry_ids": []},
    "putSummary": {"text": "They rowed out to the lighthouse."},
    "rebuildChronicle": {"chat_id": str(uuid4())},
    "mergeChronicleEvents": {"event_ids": [str(uuid4()), str(uuid4())]},
}
"""What routes need that have no example; the others take an empty object."""


class Operation(NamedTuple):
    """A method on a path, as the document has it."""

    method: str
    path: str
    said: dict[str, Any]

    @property
    def id(self) -> str:
        name: str = self.said["operationId"]
        return name

    @property
    def body(self) -> dict[str, Any]:
        """What the document says of a JSON body."""
        content = self.said.get("requestBody", {}).get("content", {})
        found: dict[str, Any] = content.get(JSON, {})
        return found

    def options(self) -> dict[str, Any]:
        """A request that the route can read."""
        if self.path.endswith("/avatar") and self.method == "PUT":
            return {"content": picture(), "headers": {"Content-Type": "image/png"}}
        if not self.body:
            return {}
        return {"json": self.body.get("example", BODIES.get(self.id, {}))}


@pytest.fixture
async def server(sqlite_url: str, tmp_path: Path) -> AsyncGenerator[Running]:
    async with running(sqlite_url, tmp_path) as server:
        yield server


@pytest.fixture
async def ada(server: Running) -> AsyncGenerator[Account]:
    async with server.account("Ada") as account:
        yield account


@pytest.fixture
async def document(server: Running) -> dict[str, Any]:
    async with httpx.AsyncClient(trust_env=False) as client:
        ok(await client.get(f"{server.url}/schema"))
        schema: dict[str, Any] = ok(await client.get(f"{server.url}/schema"))
        return schema


def operations(document: dict[str, Any]) -> Iterator[Operation]:
    for path, item in document["paths"].items():
        for method, said in item.items():
            yield Operation(method.upper(), path, said)


def members_of(document: dict[str, Any], operation: Operation) -> dict[str, dict[str, Any]]:
    """What the JSON body of a route may have in it."""
    schema = operation.body.get("schema", {})
    found: dict[str, dict[str, Any]] = {}
    for each in (schema, *schema.get("oneOf", ())):
        name = each.get("$ref", "").rpartition("/")[2]
        found |= (document["components"]["schemas"][name] if name else each).get("properties", {})
    return found


def operation(document: dict[str, Any], name: str) -> Operation:
    return next(each for each in operations(document) if each.id == name)


def names_in(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def filled(path: str, **values: str) -> str:
    """The path with these values, and ids that nothing has for the others."""
    return path.format_map({name: values.get(name, str(uuid4())) for name in names_in(path)})


async def test_every_operation_has_a_name_a_summary_a_text_and_its_errors(
    document: dict[str, Any],
) -> None:
    found = list(operations(document))
    names = [each.id for each in found]
    assert len(set(names)) == len(names) > 50
    for each in found:
        assert each.said["summary"], each.id
        assert each.said["description"], each.id
        problem = each.said["responses"]["default"]["content"][MEDIA_TYPE]
        assert problem["schema"] == {"$ref": "#/components/schemas/Problem"}


async def test_it_says_how_to_sign_in(document: dict[str, Any]) -> None:
    assert document["components"]["securitySchemes"].keys() == {"apiKey", "session"}
    assert document["security"] == [{"apiKey": []}, {"session": []}]


async def test_it_says_of_each_route_whether_one_has_to_sign_in(
    server: Running, document: dict[str, Any]
) -> None:
    for each in operations(document):
        async with server.browser() as stranger:
            answer = await stranger.request(each.method, filled(each.path))
        is_open = answer.status_code != 401
        assert each.said.get("security", document["security"]) == (
            [] if is_open else document["security"]
        ), each.id


async def test_it_names_what_a_route_says_of_things_that_are_not_there(
    ada: Account, document: dict[str, Any]
) -> None:
    for each in operations(document):
        if not names_in(each.path):
            continue
        answer = await ada.client.request(each.method, filled(each.path), **each.options())
        assert answer.status_code == 404, (each.id, answer.text)
        slug = answer.json()["type"].removeprefix(TYPE_PREFIX)
        assert f"`{slug}`" in each.said["responses"]["404"]["description"], each.id


async def test_it_names_what_the_parts_that_chats_do_not_know_refuse(
    ada: Account, document: dict[str, Any]
) -> None:
    settle, fork = (operation(document, name) for name in ("patchChatSettings", "forkChat"))
    path = filled(settle.path, chat_id=(await ada.new_chat())["id"])
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
    ids = {
        "chat_id": chat,
        "chronicle_id": ok(made, 201)["id"],
        "lorebook_id": ok(book, 201)["id"],
    }
    found = [each for each in operations(document) if "example" in each.body]
    assert {"signUp", "logIn", "makeApiKey", "openChat", "takeTurn", "patchSettings"} <= {
        each.id for each in found
    }
    async with server.browser() as stranger:
        for each in sorted(found, key=lambda each: each.id != "signUp"):
            client = stranger if each.said.get("security") == [] else ada.client
            answer = await client.request(
                each.method, filled(each.path, **ids), json=each.body["example"]
            )
            assert answer.is_success, (each.id, answer.text)


async def test_the_forms_of_a_turn_are_those_in_which_it_comes(
    ada: Account, document: dict[str, Any]
) -> None:
    chat = (await ada.new_chat())["id"]
    take, follow = (operation(document, name) for name in ("takeTurn", "followTurn"))
    described = take.said["responses"]["200"]["content"]
    path = filled(take.path, chat_id=chat)
    streamed = await ada.client.post(path, json={"text": "Who is there?"})
    whole = await ada.client.post(path, json={"text": "Nobody?"}, headers={"Accept": JSON})
    events = await ada.client.get(filled(follow.path, turn_id=ok(whole)["id"]))

    kinds = [answer.headers["content-type"].partition(";")[0] for answer in (streamed, whole)]
    assert kinds == list(described) == [EVENTS, JSON]
    assert events.headers["content-type"].partition(";")[0] == EVENTS
    assert list(follow.said["responses"]["200"]["content"]) == [EVENTS]
    schemas = document["components"]["schemas"]
    assert described[JSON]["schema"] == {"$ref": "#/components/schemas/TurnView"}
    assert schemas["TurnView"]["properties"].keys() == ok(whole).keys()
    assert schemas["TurnUsage"]["properties"].keys() == ok(whole)["usage"].keys()
    assert schemas["Totals"]["properties"].keys() == ok(whole)["totals"].keys()


async def test_what_is_not_ready_is_described_as_what_is(document: dict[str, Any]) -> None:
    answers = operation(document, "ready").said["responses"]
    assert answers["503"]["content"] == answers["200"]["content"]
    assert answers["503"]["content"][JSON]["schema"]["$ref"].endswith("/Readiness")


async def test_a_member_of_the_wrong_kind_is_named_whatever_it_is_called(
    ada: Account, document: dict[str, Any]
) -> None:
    asked = 0
    for each in operations(document):
        for name, schema in members_of(document, each).items():
            odd: Any = 1 if '"array"' in json.dumps(schema) else [[[]]]
            answer = await ada.client.request(each.method, filled(each.path), json={name: odd})
            asked += 1
            if each.method == "PATCH" and answer.status_code == 404:
                continue  # some look for the thing before they look at what it is to be
            body = problem(answer, 422, "validation-failed")
            assert name in answer.text, (each.id, body)
    assert asked > 150


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
    ids = {
        "lorebook_id": book,
        "entry_id": ok(made, 201)["id"],
        "chat_id": (await ada.new_chat())["id"],
        "character_id": character["id"],
        "persona_id": persona["id"],
        "chronicle_id": chronicle_id,
        "event_id": ok(event, 201)["id"],
    }
    patched: set[str] = set()
    for each in operations(document):
        schema = each.body.get("schema", {})
        if each.method != "PATCH" or "$ref" in schema:
            continue
        patched.add(each.id)
        path = filled(each.path, **ids)
        assert schema["properties"], each.id
        for name in schema["properties"]:
            answer = await ada.client.patch(path, json={name: None})
            if (each.id, name) == ("patchChronicleEvent", "summary") or name == "name":
                # what has no default
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
        "patchChat",
        "patchChatSettings",
        "patchLorebook",
        "patchLoreEntry",
        "patchChronicle",
        "patchChronicleEvent",
    }
