"""No number from outside that a database does not take gets to it: every route, every number."""

from __future__ import annotations

import struct
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest

from backend.generation.model import MAX_REPORTED_TOKENS, TokenUsage
from backend.http.schemas import MAX_INTEGER
from tests.integration.security.test_someone_elses import API, BODIES, Scene, shared_url, stage
from tests.support.routes import filled as fill_path
from tests.support.server import ok, problem
from tests.support.thorough import THOROUGH

__all__ = ["shared_url", "stage"]

pytestmark = [pytest.mark.anyio, pytest.mark.every_database]

LARGE = (2**31, 2**63, -(2**63) - 1, *((2**64, 10**30, -(2**31) - 1) if THOROUGH else ()))
"""Just beyond what columns take, and what databases take at all."""
JSON = "application/json"


@pytest.fixture(scope="module")
async def document(stage: Scene) -> dict[str, Any]:
    schema: dict[str, Any] = ok(await stage.things.owner.client.get("/schema"))
    return schema


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, said in item.items():
            yield method.upper(), path, said


def kinds_of(schema: dict[str, Any]) -> set[str]:
    """The types that a schema allows."""
    choices = [schema, *schema.get("oneOf", ()), *schema.get("anyOf", ())]
    found = [each.get("type", ()) for each in choices]
    return {kind for each in found for kind in ([each] if isinstance(each, str) else each)}


def bodies_with(number: int, schema: dict[str, Any], document: dict[str, Any]) -> Iterator[Any]:
    """Values of a schema that hold the number in one place, as deep as the schema goes."""
    if name := schema.get("$ref", "").rpartition("/")[2]:
        yield from bodies_with(number, document["components"]["schemas"][name], document)
        return
    if "integer" in kinds_of(schema) or not schema:
        yield number
    for choice in (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
        if "$ref" in choice or "properties" in choice or "items" in choice:
            yield from bodies_with(number, choice, document)
    for name, each in schema.get("properties", {}).items():
        yield from ({name: value} for value in bodies_with(number, each, document))
    for each in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(each, dict):
            for value in bodies_with(number, cast("dict[str, Any]", each), document):
                yield [value] if each is schema.get("items") else {"member": value}


def filled(path: str, stage: Scene) -> str:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return fill_path(path, dict.fromkeys(names, "x") | stage.things.ids)


def asking(stage: Scene, path: str) -> httpx.AsyncClient:
    """Whose request gets as far as the numbers in it."""
    is_administration = path.startswith(f"{API}/admin/")
    return (stage.administrator if is_administration else stage.things.owner).client


def is_told(answer: httpx.Response, what: object) -> bool:
    """Whether a client that sent too much is told so, or what it sent was harmless."""
    assert answer.status_code < 500, (what, answer.text)
    return answer.status_code == 422


async def test_numbers_in_queries(stage: Scene, document: dict[str, Any]) -> None:
    asked = 0
    for method, path, said in operations(document):
        for parameter in said.get("parameters", ()):
            if parameter["in"] != "query" or "integer" not in kinds_of(parameter["schema"]):
                continue
            wanted = {each["name"]: "lamp" for each in said["parameters"] if each.get("required")}
            for number in LARGE:
                answer = await asking(stage, path).request(
                    method,
                    filled(path, stage),
                    params={**wanted, parameter["name"]: number},
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
            if parameter["name"] in {"after", "before"} and "integer" in kinds_of(
                parameter["schema"]
            ):
                query = {parameter["name"]: MAX_INTEGER}
                ok(await asking(stage, path).get(filled(path, stage), params=query))
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
            for body in bodies_with(number, schema, document):
                answer = await client.request(
                    method, filled(path, stage), json={**whole, **body} if whole else body
                )
                is_told(answer, (method, path, body))
                asked += 1
    assert asked > 150
    await stage.things.shown()


async def test_cursors_that_were_made_by_hand(stage: Scene) -> None:
    events = filled(f"{API}/chronicles/{{chronicle_id}}/events", stage)
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
            answer = await client.get(filled(f"{API}/{path}", stage), headers=headers)
            is_told(answer, (path, number))
        for method, path, said in operations(document):
            if method != "PATCH" or not path.startswith(API):
                continue
            answer = await client.patch(
                filled(path, stage), json={}, headers={"If-Match": f'"{number}"'}
            )
            is_told(answer, (path, said["operationId"], number))
    path = filled(f"{API}/lorebooks/{{lorebook_id}}", stage)
    refused = await client.patch(path, json={}, headers={"If-Match": f'"{2**64}"'})
    problem(refused, 412, "revision-mismatch")


def test_a_provider_s_report_is_brought_to_what_a_request_can_have() -> None:
    usage = TokenUsage(10**30, -5, cached_tokens=7)
    assert usage == TokenUsage(MAX_REPORTED_TOKENS, 0, 7, 0)
