"""Tests of personas: create, read, change, list and delete."""

from __future__ import annotations

from typing import Any

import pytest

from backend.database.engine import Database
from tests.integration.characters.people import ON_SQLITE_ALONE, Person, body, count_rows
from tests.support.server import problem, read_pages

pytestmark = pytest.mark.anyio

PERSONA = {"name": "Ada", "description": "An engineer.\nWears a coat."}


async def test_a_persona_is_read_as_it_was_made(ada: Person) -> None:
    made = await ada.make("/personas", **PERSONA)
    answer = await ada.get(f"/personas/{made['id']}")
    assert body(answer) == made
    assert {name: made[name] for name in PERSONA} == PERSONA
    assert (made["revision"], made["has_avatar"]) == (1, False)
    assert answer.headers["etag"] == '"1"'


@ON_SQLITE_ALONE
@pytest.mark.parametrize(
    "members",
    [
        {},
        {"name": ""},
        {"name": " \n"},
        {"name": "A" * 201},
        {"name": "Ada", "description": "d" * 200_001},
        {"name": "Ada", "age": 36},
    ],
)
async def test_a_persona_has_a_name_and_a_description_and_nothing_else(
    ada: Person, database: Database, members: dict[str, Any]
) -> None:
    before = await count_rows(database)
    problem(await ada.post("/personas", json=members), 422, "validation-failed")
    assert await count_rows(database) == before


@pytest.mark.every_database
async def test_a_patch_leaves_what_is_absent_and_clears_what_is_null(ada: Person) -> None:
    path = f"/personas/{(await ada.make('/personas', **PERSONA))['id']}"
    renamed = body(await ada.patch(path, json={"name": "Ada L."}))
    cleared = body(await ada.patch(path, json={"description": None}))
    assert (renamed["name"], renamed["description"]) == ("Ada L.", PERSONA["description"])
    assert (cleared["name"], cleared["description"]) == ("Ada L.", "")
    assert cleared["revision"] == 3
    assert cleared["updated_at"] > renamed["updated_at"]
    assert body(await ada.get(path)) == cleared


@ON_SQLITE_ALONE
@pytest.mark.parametrize("patch", [{"name": None}, {"name": " "}, {"age": 36}, {"name": 7}])
async def test_a_patch_that_is_refused_changes_nothing(ada: Person, patch: dict[str, Any]) -> None:
    made = await ada.make("/personas", **PERSONA)
    problem(await ada.patch(f"/personas/{made['id']}", json=patch), 422, "validation-failed")
    assert body(await ada.get(f"/personas/{made['id']}")) == made


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_a_write_upon_a_revision_that_is_gone_is_refused(ada: Person, method: str) -> None:
    path = f"/personas/{(await ada.make('/personas', **PERSONA))['id']}"
    changed = body(await ada.patch(path, json={"name": "Ada L."}))
    late = {"json": {"name": "Ada K."}} if method == "PATCH" else {}
    answer = await ada.ask(method, path, headers={"If-Match": '"1"'}, **late)
    problem(answer, 412, "revision-mismatch")
    assert body(await ada.get(path)) == changed


@pytest.mark.every_database
async def test_pages_go_from_the_newest_to_the_oldest(ada: Person, ben: Person) -> None:
    for name in ("one", "two", "three"):
        await ada.make("/personas", name=name)
    await ben.make("/personas", name="ben's own")
    pages = await read_pages(ada.get, "/personas", limit=2)
    assert [[item["name"] for item in page] for page in pages] == [["three", "two"], ["one"]]


@pytest.mark.every_database
async def test_a_deleted_persona_leaves_nothing(ada: Person, database: Database) -> None:
    before = await count_rows(database)
    made = await ada.make("/personas", **PERSONA)
    assert (await ada.delete(f"/personas/{made['id']}")).status_code == 204
    problem(await ada.get(f"/personas/{made['id']}"), 404, "persona-not-found")
    assert await count_rows(database) == before
