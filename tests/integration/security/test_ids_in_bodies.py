"""An id in a body that names nothing of the user's is refused, wherever a body may have one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast
from uuid import uuid4

import pytest

from tests.integration.security.test_someone_elses import API, BODIES, scene
from tests.support.routes import filled
from tests.support.server import Running, ok, problem

pytestmark = pytest.mark.anyio

JSON = "application/json"
MADE_BY_THE_CLIENT = {("takeTurn", "turn_id")}


def ids_in(
    schema: dict[str, Any], document: dict[str, Any], name: str = ""
) -> Iterator[tuple[str, Any]]:
    """(member, body) for each id that a body of this schema may have, with the id as `ID`."""
    if reference := schema.get("$ref", "").rpartition("/")[2]:
        yield from ids_in(document["components"]["schemas"][reference], document, name)
        return
    if schema.get("format") == "uuid":
        yield name, "ID"
        return
    if "items" in schema:
        yield from ((found, [body]) for found, body in ids_in(schema["items"], document, name))
    for choice in (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
        yield from ids_in(choice, document, name)
    for member, each in schema.get("properties", {}).items():
        for found, body in ids_in(each, document, member):
            yield found, {member: body}


def with_id(body: Any, thing_id: str) -> Any:
    if isinstance(body, dict):
        members = cast("dict[str, Any]", body)
        return {name: with_id(value, thing_id) for name, value in members.items()}
    if isinstance(body, list):
        return [with_id(value, thing_id) for value in body]  # pyright: ignore[reportUnknownVariableType]
    return thing_id if body == "ID" else body


async def test_each_id_that_a_body_may_have_is_looked_at(server: Running) -> None:
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
                for member, body in ids_in(content.get("schema", {}), document):
                    if (name, member) in MADE_BY_THE_CLIENT:
                        continue
                    known = {each[1:-1] for each in path.split("/") if each.startswith("{")}
                    if not known <= ids.keys():
                        continue
                    answer = await owner.client.request(
                        method,
                        filled(path, ids),
                        json={**whole, **with_id(body, str(uuid4()))},
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
        # One that has gone since does not keep the other settings from being changed.
        ok(await client.patch(settings, json={"system_prompt": "Be long."}))
