"""What is someone else's does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from litestar import Litestar
from litestar.routes import HTTPRoute

from backend.database.engine import Database
from tests.integration.characters.people import Person, body, count_rows, problem
from tests.integration.characters.pictures import picture

pytestmark = pytest.mark.anyio

PNG = {"Content-Type": "image/png"}


def routes_with_an_id(app: Litestar) -> Iterator[tuple[str, str]]:
    """(method, path) of every route that names a character or a persona."""
    for route in app.routes:
        if isinstance(route, HTTPRoute) and "_id:uuid}" in route.path:
            yield from ((method, route.path_format) for method in route.methods - {"OPTIONS"})


def request_body(method: str, path: str) -> dict[str, Any]:
    """A body that the route would take from the owner."""
    match method:
        case "PATCH":
            return {"json": {"name": "Taken over"}}
        case "PUT" if path.endswith("/avatar"):
            return {"content": picture(color="red"), "headers": PNG}
        case "PUT" if path.endswith("/regex-scripts"):
            return {"json": {"allowed": True}}
        case _:
            return {}


async def test_no_route_finds_what_is_someone_else_s(
    app: Litestar, ada: Person, ben: Person, database: Database
) -> None:
    ids = {
        "character": str((await ada.make("/characters", name="Magda"))["id"]),
        "persona": str((await ada.make("/personas", name="Ada"))["id"]),
    }
    for kind, identifier in ids.items():
        await ada.put(f"/{kind}s/{identifier}/avatar", content=picture(), headers=PNG)
    before = await count_rows(database)
    seen = {kind: body(await ada.get(f"/{kind}s/{each}")) for kind, each in ids.items()}
    routes = list(routes_with_an_id(app))

    for method, template in routes:
        kind = "character" if "{character_id}" in template else "persona"
        options = request_body(method, template)
        for stranger_id in (ids[kind], str(uuid4())):
            path = template.replace(f"{{{kind}_id}}", stranger_id)
            problem(await ben.ask(method, path, **options), 404, f"{kind}-not-found")

    assert len(routes) == 14
    assert await count_rows(database) == before
    assert seen == {kind: body(await ada.get(f"/{kind}s/{each}")) for kind, each in ids.items()}


async def test_no_list_shows_what_is_someone_else_s(ada: Person, ben: Person) -> None:
    for collection in ("/characters", "/personas"):
        await ada.make(collection, name="Magda")

        assert body(await ben.get(collection)) == {"items": [], "next": None}
    assert body(await ben.get("/characters?search=magda"))["items"] == []
