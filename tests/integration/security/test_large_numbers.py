"""Tests that the server validates numbers and ids in requests."""

from __future__ import annotations

import struct
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest

from backend.generation.model import MAX_REPORTED_TOKENS, TokenUsage
from backend.http.schemas import MAX_INTEGER
from tests.integration.security.test_someone_elses import (
    API,
    BODIES,
    Scene,
    scene,
    shared_url,
    stage,
)
from tests.support.routes import filled
from tests.support.server import Running, ok, problem
from tests.support.thorough import THOROUGH

__all__ = ["shared_url", "stage"]

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

LARGE = (2**31, 2**63, -(2**63) - 1, *((2**64, 10**30, -(2**31) - 1) if THOROUGH else ()))
"""Numbers just above the limits of columns and of databases."""

JSON = "application/json"


@pytest.fixture(scope="module")
async def document(stage: Scene) -> dict[str, Any]:
    schema: dict[str, Any] = ok(await stage.things.owner.client.get("/schema"))
    return schema


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, said in item.items():
            yield method.upper(), path, said


def find_types(schema: dict[str, Any]) -> set[str]:
    choices = [schema, *schema.get("oneOf", ()), *schema.get("anyOf", ())]
    found = [each.get("type", ()) for each in choices]
    return {kind for each in found for kind in ([each] if isinstance(each, str) else each)}


def build_bodies(number: int, schema: dict[str, Any], document: dict[str, Any]) -> Iterator[Any]:
    """Yield values of a schema that contain the number in one place, at any depth."""
    if name := schema.get("$ref", "").rpartition("/")[2]:
        yield from build_bodies(number, document["components"]["schemas"][name], document)
        return
    if "integer" in find_types(schema) or not schema:
        yield number
    for choice in (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
        if "$ref" in choice or "properties" in choice or "items" in choice:
            yield from build_bodies(number, choice, document)
    for name, each in schema.get("properties", {}).items():
        yield from ({name: value} for value in build_bodies(number, each, document))
    for each in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(each, dict):
            for value in build_bodies(number, cast("dict[str, Any]", each), document):
                yield [value] if each is schema.get("items") else {"member": value}


def fill_path(path: str, stage: Scene) -> str:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return filled(path, dict.fromkeys(names, "x") | stage.things.ids)


def find_client(stage: Scene, path: str) -> httpx.AsyncClient:
    is_administration = path.startswith(f"{API}/admin/")
    return (stage.administrator if is_administration else stage.things.owner).client


def is_told(answer: httpx.Response, what: object) -> bool:
    """True if the answer is a refusal, or the number was harmless."""
    assert answer.status_code < 500, (what, answer.text)
    return answer.status_code == 422


async def test_numbers_in_queries(stage: Scene, document: dict[str, Any]) -> None:
    asked = 0
    for method, path, said in operations(document):
        for parameter in said.get("parameters", ()):
            if parameter["in"] != "query" or "integer" not in find_types(parameter["schema"]):
                continue
            wanted = {each["name"]: "lamp" for each in said["parameters"] if each.get("required")}
            for number in LARGE:
                answer = await find_client(stage, path).request(
                    method, fill_path(path, stage), params={**wanted, parameter["name"]: number}
                )
                assert is_told(answer, (path, parameter["name"], number)), answer.text
                asked += 1
    assert asked > 40


async def test_the_largest_number_that_is_allowed_leads_to_no_error(
    stage: Scene, document: dict[str, Any]
) -> None:
    asked = 0
    for _, path, said in operations(document):
        for parameter in said.get("parameters", ()):
            if parameter["name"] in {"after", "before"} and "integer" in find_types(
                parameter["schema"]
            ):
                query = {parameter["name"]: MAX_INTEGER}
                ok(await find_client(stage, path).get(fill_path(path, stage), params=query))
                asked += 1
    assert asked >= 3


async def test_numbers_in_bodies(stage: Scene, document: dict[str, Any]) -> None:
    asked, client = 0, stage.things.owner.client
    for method, path, said in operations(document):
        schema = said.get("requestBody", {}).get("content", {}).get(JSON, {}).get("schema", {})
        if not path.startswith(API) or not schema:
            continue
        whole = said["requestBody"]["content"][JSON].get("example") or BODIES.get(
            said["operationId"], {}
        ).get("json", {})
        for number in LARGE:
            for body in build_bodies(number, schema, document):
                answer = await client.request(
                    method, fill_path(path, stage), json={**whole, **body} if whole else body
                )
                is_told(answer, (method, path, body))
                asked += 1
    assert asked > 150
    await stage.things.shown()


async def test_cursors_that_were_made_by_hand(stage: Scene) -> None:
    events = fill_path(f"{API}/chronicles/{{chronicle_id}}/events", stage)
    for moment in (2**63 - 1, -(2**63), 0):
        for place in (2**31 - 1, -(2**31)):
            raw = struct.pack(">qi16s", moment, place, b"\xff" * 16)
            for order in ("oldest", "newest"):
                answer = await stage.things.owner.client.get(
                    events, params={"after": urlsafe_b64encode(raw).decode(), "order": order}
                )
                assert answer.status_code == (422 if moment else 200), answer.text


async def test_ids_of_events_and_revisions(stage: Scene, document: dict[str, Any]) -> None:
    client = stage.things.owner.client
    for number in LARGE:
        headers = {"Last-Event-ID": str(number)}
        for path in ("turns/{turn_id}/events", "jobs/{job_id}/events"):
            answer = await client.get(fill_path(f"{API}/{path}", stage), headers=headers)
            is_told(answer, (path, number))
        for method, path, said in operations(document):
            if method != "PATCH" or not path.startswith(API):
                continue
            answer = await client.patch(
                fill_path(path, stage), json={}, headers={"If-Match": f'"{number}"'}
            )
            is_told(answer, (path, said["operationId"], number))
    path = fill_path(f"{API}/lorebooks/{{lorebook_id}}", stage)
    refused = await client.patch(path, json={}, headers={"If-Match": f'"{2**64}"'})
    problem(refused, 412, "revision-mismatch")


def test_a_provider_s_report_is_brought_to_what_a_request_can_have() -> None:
    usage = TokenUsage(10**30, -5, cached_tokens=7)
    assert usage == TokenUsage(MAX_REPORTED_TOKENS, 0, 7, 0)


MADE_BY_THE_CLIENT = {("takeTurn", "turn_id")}


def find_ids(
    schema: dict[str, Any], document: dict[str, Any], name: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield (member, body) for each id of a schema's body. `ID` stands for the id."""
    if reference := schema.get("$ref", "").rpartition("/")[2]:
        yield from find_ids(document["components"]["schemas"][reference], document, name)
        return
    if schema.get("format") == "uuid":
        yield name, "ID"
        return
    if "items" in schema:
        yield from ((found, [body]) for found, body in find_ids(schema["items"], document, name))
    for choice in (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
        yield from find_ids(choice, document, name)
    for member, each in schema.get("properties", {}).items():
        for found, body in find_ids(each, document, member):
            yield found, {member: body}


def replace_id(body: Any, thing_id: str) -> Any:
    if isinstance(body, dict):
        members = cast("dict[str, Any]", body)
        return {name: replace_id(value, thing_id) for name, value in members.items()}
    if isinstance(body, list):
        return [replace_id(value, thing_id) for value in body]  # pyright: ignore[reportUnknownVariableType]
    return thing_id if body == "ID" else body


async def test_each_id_in_a_body_is_validated(server: Running) -> None:
    async with scene(server) as stage:
        owner, ids = stage.things.owner, stage.things.ids
        document = ok(await owner.client.get("/schema"))
        before, asked = await stage.things.shown(), set[tuple[str, str]]()
        for path, item in document["paths"].items():
            for method, said in item.items():
                name = said["operationId"]
                content = said.get("requestBody", {}).get("content", {}).get(JSON, {})
                whole: dict[str, Any] = (
                    BODIES.get(name, {}).get("json") or content.get("example") or {}
                )
                for member, body in find_ids(content.get("schema", {}), document):
                    if (name, member) in MADE_BY_THE_CLIENT:
                        continue
                    known = {each[1:-1] for each in path.split("/") if each.startswith("{")}
                    if not known <= ids.keys():
                        continue
                    answer = await owner.client.request(
                        method, filled(path, ids), json={**whole, **replace_id(body, str(uuid4()))}
                    )
                    assert answer.status_code in {404, 422}, (name, member, answer.text)
                    asked.add((name, member))
        assert {("patchSettings", "persona_id"), ("patchChatSettings", "chronicle_id")} <= asked
        assert len(asked) > 8
        assert await stage.things.shown() == before


async def test_a_persona_that_is_not_the_user_s_is_refused_and_nothing_changes(
    server: Running,
) -> None:
    async with scene(server) as stage:
        client, theirs = stage.thief.client, stage.things.ids["persona_id"]
        settings = f"{API}/me/settings"
        ok(await client.patch(settings, json={"system_prompt": "Be brief."}))
        for persona_id in (theirs, str(uuid4())):
            answer = await client.patch(
                settings, json={"persona_id": persona_id, "system_prompt": "Be long."}
            )
            problem(answer, 404, "persona-not-found")
        stored = ok(await client.get(settings))
        assert (stored["system_prompt"], stored.get("persona_id")) == ("Be brief.", None)
        own = ok(await client.post(f"{API}/personas", json={"name": "Mine"}), 201)["id"]
        ok(await client.patch(settings, json={"persona_id": own}))
        ok(await client.delete(f"{API}/personas/{own}"), 204)
        # A deleted persona does not prevent changes of other settings.
        ok(await client.patch(settings, json={"system_prompt": "Be long."}))
