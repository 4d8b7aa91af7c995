"""Tests of characters: create, read, change, list and delete."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backend.accounts.auth.identity import Identity
from backend.characters import service
from backend.characters.cards.model import Card
from backend.database.engine import Database
from tests.integration.characters.people import (
    ON_SQLITE_ALONE,
    Person,
    body,
    card_of,
    character_service,
    count_rows,
)
from tests.support.server import problem, read_pages

pytestmark = pytest.mark.anyio

FULL_CARD: dict[str, Any] = {
    "name": "Magda",
    "nickname": "Mags",
    "description": "{{char}} keeps the lighthouse. ☕",
    "personality": "dry, patient",
    "scenario": "A storm.",
    "first_mes": "The door bangs open.",
    "mes_example": "<START>\n{{char}}: Tea?",
    "creator_notes": "Best at night.",
    "creator_notes_multilingual": {"fr": "La nuit."},
    "system_prompt": "{{original}}\nBe brief.",
    "post_history_instructions": "Stay in scene.",
    "alternate_greetings": ["Fog."],
    "group_only_greetings": ["All of you, inside."],
    "tags": ["sea", "storm"],
    "creator": "ada",
    "character_version": "1.1",
    "source": ["https://example.invalid/1"],
    "creation_date": 1_700_000_000,
    "modification_date": 1_700_000_001,
    "extensions": {"depth_prompt": {"prompt": "Terse.", "depth": 2}, "vendor": {"kept": 10**30}},
    "character_book": {"name": "Lore", "entries": [{"keys": ["lamp"], "content": "It is lit."}]},
    "assets": [{"type": "icon", "uri": "ccdefault:", "name": "main", "ext": "png"}],
}


async def list_names(person: Person, query: str = "") -> list[str]:
    page = body(await person.get(f"/characters?{query}"))
    return [item["name"] for item in page["items"]]


async def test_a_character_holds_every_field_of_its_card(ada: Person) -> None:
    made = await ada.make(**FULL_CARD)
    answer = await ada.get(f"/characters/{made['id']}")
    assert body(answer) == made
    assert card_of(made) == FULL_CARD
    assert (made["revision"], made["has_avatar"]) == (1, False)
    assert answer.headers["etag"] == '"1"'


async def test_only_a_name_is_needed(ada: Person) -> None:
    made = await ada.make(name="Magda")
    assert made["tags"] == []
    assert made["character_book"] is None


@ON_SQLITE_ALONE
@pytest.mark.parametrize(
    ("members", "slug", "words"),
    [
        ({"name": "Magda", "nmae": "Magda"}, "validation-failed", "nmae"),
        ({"description": "No name."}, "validation-failed", "name"),
        ({"name": "Magda", "tags": "sea"}, "validation-failed", "array"),
        ({"name": "Magda", "creation_date": -1}, "validation-failed", "`creation_date`"),
        ({"name": "  "}, "unreadable-card", "`name` is missing or blank"),
        ({"name": "M" * 201}, "card-limit", "201 characters; 200 are allowed"),
        ({"name": "Magda", "scenario": "s" * 200_001}, "card-limit", "`scenario`"),
        ({"name": "Magda", "extensions": {"deep": []}}, "card-limit", "levels of nesting"),
    ],
)
async def test_invalid_cards_cannot_be_created(
    ada: Person, database: Database, members: dict[str, Any], slug: str, words: str
) -> None:
    if "extensions" in members:
        for _ in range(64):
            members["extensions"]["deep"] = [members["extensions"]["deep"]]
    before = await count_rows(database)
    answer = await ada.post("/characters", json=members)
    problem(answer, 422, slug)
    assert words in answer.text
    assert await count_rows(database) == before


async def test_a_patch_leaves_what_is_absent_and_clears_what_is_null(ada: Person) -> None:
    made = await ada.make(**FULL_CARD)

    answer = await ada.patch(
        f"/characters/{made['id']}",
        json={
            "name": "Magdalena",
            "nickname": None,
            "character_book": None,
            "tags": ["land"],
            "extensions": {"depth_prompt": None, "fav": True},
        },
    )

    changed = body(answer)
    assert card_of(changed) == {
        **FULL_CARD,
        "name": "Magdalena",
        "nickname": "",
        "character_book": None,
        "tags": ["land"],
        "extensions": {"vendor": {"kept": 10**30}, "fav": True},
    }
    assert changed["revision"] == 2
    assert answer.headers["etag"] == '"2"'
    assert changed["updated_at"] > made["updated_at"]
    assert changed["created_at"] == made["created_at"]
    assert body(await ada.get(f"/characters/{made['id']}")) == changed
    assert await list_names(ada) == ["Magdalena"]


@ON_SQLITE_ALONE
@pytest.mark.parametrize(
    ("patch", "slug"),
    [
        ({"name": None}, "validation-failed"),
        ({"name": " "}, "unreadable-card"),
        ({"nmae": "Magda"}, "validation-failed"),
        ({"id": "0"}, "validation-failed"),
        ({"tags": "sea"}, "validation-failed"),
        ({"tags": ["t" * 2001]}, "card-limit"),
    ],
)
async def test_a_patch_that_is_refused_changes_nothing(
    ada: Person, patch: dict[str, Any], slug: str
) -> None:
    made = await ada.make(**FULL_CARD)
    problem(await ada.patch(f"/characters/{made['id']}", json=patch), 422, slug)
    assert body(await ada.get(f"/characters/{made['id']}")) == made


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_a_write_upon_a_revision_that_is_gone_is_refused(ada: Person, method: str) -> None:
    path = f"/characters/{(await ada.make(name='Magda'))['id']}"
    changed = body(await ada.patch(path, json={"creator": "ada"}, headers={"If-Match": '"1"'}))
    late = {"json": {"creator": "ben"}} if method == "PATCH" else {}
    answer = await ada.ask(method, path, headers={"If-Match": '"1"'}, **late)
    assert problem(answer, 412, "revision-mismatch")["revision"] == 2
    assert body(await ada.get(path)) == changed
    again = await ada.ask(method, path, headers={"If-Match": '"0", "2"'}, **late)
    assert again.is_success


@pytest.mark.every_database
async def test_changes_at_the_same_time_are_all_kept(
    database: Database, identities: dict[str, Identity]
) -> None:
    characters, owner = character_service(database), identities["ada"]
    made = await characters.create(owner, Card(name="Magda"))
    fields = ("nickname", "creator", "scenario", "personality", "system_prompt")
    await asyncio.gather(
        *(characters.patch(owner, made.id, {field: field}, if_match=None) for field in fields)
    )
    changed = await characters.get(owner, made.id)
    assert [getattr(changed, field) for field in fields] == list(fields)
    assert changed.revision == 1 + len(fields)


async def test_a_deleted_character_leaves_nothing(ada: Person, database: Database) -> None:
    before = await count_rows(database)
    made = await ada.make(name="Magda")
    assert await count_rows(database) != before
    assert (await ada.delete(f"/characters/{made['id']}")).status_code == 204
    problem(await ada.get(f"/characters/{made['id']}"), 404, "character-not-found")
    assert await count_rows(database) == before


async def test_pages_go_from_the_newest_to_the_oldest(ada: Person, ben: Person) -> None:
    for name in ("one", "two", "three", "four", "five"):
        await ada.make(name=name)
    await ben.make(name="ben's own")
    pages = await read_pages(ada.get, "/characters", limit=2)
    names_of = [[item["name"] for item in page] for page in pages]
    assert names_of == [["five", "four"], ["three", "two"], ["one"]]


async def test_a_list_shows_what_is_needed_to_choose(ada: Person) -> None:
    made = await ada.make(**FULL_CARD)
    (item,) = body(await ada.get("/characters"))["items"]
    shown = ("id", "name", "nickname", "tags", "creator", "is_favourite", "has_avatar", "revision")
    assert item == {name: made[name] for name in (*shown, "created_at", "updated_at")}


@ON_SQLITE_ALONE
@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("magda", ["Magda"]),
        ("MAG", ["Magda"]),
        ("skipper", ["Jan"]),
        ("sea", ["Jan", "Magda"]),
        ("sea dry-land", ["Jan"]),
        ("straße", ["Élodie"]),
        ("STRASSE élodie", ["Élodie"]),
        ("sea nobody", []),
        ("  ", ["Élodie", "Jan", "Magda"]),
    ],
)
async def test_a_search_looks_for_each_word_in_names_creators_and_tags(
    ada: Person, search: str, found: list[str]
) -> None:
    await ada.make(name="Magda", tags=["sea", "storm"])
    await ada.make(name="Jan", nickname="Skipper", tags=["sea"], creator="dry-land")
    await ada.make(name="Élodie", tags=["Straße"], description="sea, magda, skipper")
    page = body(await ada.get("/characters", params={"search": search}))
    assert [item["name"] for item in page["items"]] == found
    assert page["next"] is None


@pytest.mark.every_database
async def test_a_search_covers_all_pages(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_SEARCH_ROWS", 3)
    for name in ("match 1", "x", "x", "x", "match 2", "match 3", "x"):
        await ada.make(name=name)
    pages = await read_pages(ada.get, "/characters", search="match", limit=2)
    names_of = [[item["name"] for item in page] for page in pages]
    assert names_of == [["match 3", "match 2"], [], ["match 1"]]


@ON_SQLITE_ALONE
@pytest.mark.parametrize("query", ["limit=0", "limit=501"])
async def test_a_page_has_a_size(ada: Person, query: str) -> None:
    problem(await ada.get(f"/characters?{query}"), 422, "validation-failed")
