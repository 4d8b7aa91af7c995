"""Lorebooks, their entries, and their links to chats, characters and personas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from backend.lorebooks.links import ChatBook, books_for_chat
from tests.integration.lorebooks.readers import WORLD, Reader
from tests.support.server import Running, ok, problem

pytestmark = pytest.mark.anyio

FULL_ENTRY: dict[str, Any] = {
    "title": "The lens",
    "content": "The lens cracked in the gale. ☕",
    "keys": ["lamp", "/len(s|ses)/i"],
    "secondary_keys": ["broken"],
    "selective": False,
    "logic": "not_all",
    "enabled": False,
    "constant": True,
    "mode": "meaning",
    "vectorized": True,
    "order": -5,
    "position": "at_depth",
    "depth": 2,
    "role": "assistant",
    "outlet": "tower",
    "ignore_budget": True,
    "exclude_recursion": True,
    "prevent_recursion": True,
    "delay_until_recursion": 2,
    "probability": 12.5,
    "use_probability": False,
    "group": "glass",
    "group_override": True,
    "group_weight": 7.0,
    "use_group_scoring": False,
    "scan_depth": 9,
    "case_sensitive": True,
    "match_whole_words": False,
    "sticky": 3,
    "cooldown": 4,
    "delay": 5,
    "character_filter": {"is_exclude": True, "names": ["Mara"], "tags": ["sea"]},
    "triggers": ["swipe", "normal"],
    "match_fields": ["scenario", "creator_notes"],
    "automation_id": "a",
}
AROUND_THE_ENTRY = ("id", "lorebook_id", "place", "revision", "created_at", "updated_at")


async def test_a_new_book_is_empty(ada: Reader) -> None:
    made = await ada.post("/lorebooks", name="Lore", scan_depth=4, is_global=True)
    assert (made["name"], made["scan_depth"], made["is_global"]) == ("Lore", 4, True)
    assert (made["entry_count"], made["revision"], made["character_id"]) == (0, 1, None)
    assert made["recursive_scanning"] is None
    assert made["mode"] is None
    answer = await ada.ask("GET", f"/lorebooks/{made['id']}")
    assert ok(answer) == made
    assert answer.headers["etag"] == '"1"'


async def test_an_entry_stores_every_field(ada: Reader) -> None:
    book = await ada.new_book()
    made = await ada.new_entry(book, **FULL_ENTRY)
    shown = {name: value for name, value in made.items() if name not in AROUND_THE_ENTRY}
    assert shown == FULL_ENTRY
    assert await ada.get(f"/lorebooks/{book}/entries/{made['id']}") == made
    assert await ada.entries(book) == [made]


async def test_an_empty_entry_has_the_defaults_of_world_info(ada: Reader) -> None:
    made = await ada.new_entry(await ada.new_book())
    assert (made["order"], made["depth"], made["probability"]) == (100, 4, 100)
    assert (made["position"], made["logic"]) == ("before_character", "and_any")
    assert made["selective"] is True
    assert made["scan_depth"] is None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("", {"name": " "}),
        ("", {}),
        ("", {"name": "Lore", "nmae": "Lore"}),
        ("", {"name": "L" * 501}),
        ("", {"name": "Lore", "scan_depth": -1}),
        ("/{book}/entries", {"keys": "lamp"}),
        ("/{book}/entries", {"position": 4}),
        ("/{book}/entries", {"content": "c" * 200_001}),
        ("/{book}/entries", {"keys": ["k"] * 201}),
        ("/{book}/entries", {"probability": 101}),
        ("/{book}/entries", {"unknown": 1}),
    ],
)
async def test_invalid_bodies_are_refused(ada: Reader, path: str, body: dict[str, Any]) -> None:
    book = await ada.new_book()
    answer = await ada.ask("POST", f"/lorebooks{path.format(book=book)}", json=body)
    problem(answer, 422, "validation-failed")
    assert await ada.entries(book) == []
    assert len((await ada.get("/lorebooks"))["items"]) == 1


async def test_a_patch_keeps_absent_fields_and_resets_null(ada: Reader) -> None:
    book = await ada.new_book(scan_depth=4, token_budget=500)
    path = f"/lorebooks/{book}"
    changed = await ada.patch(path, scan_depth=None, description="Of the light.", is_global=True)
    assert (changed["scan_depth"], changed["token_budget"]) == (None, 500)
    assert (changed["description"], changed["is_global"]) == ("Of the light.", True)
    assert changed["revision"] == 2
    problem(await ada.ask("PATCH", path, json={"name": None}), 422, "validation-failed")
    problem(await ada.ask("PATCH", path, json={"entries": []}), 422, "validation-failed")
    entry = await ada.new_entry(book, **FULL_ENTRY)
    path = f"{path}/entries/{entry['id']}"
    changed = await ada.patch(path, keys=["lens"], role=None, character_filter={"names": None})
    assert (changed["keys"], changed["role"]) == (["lens"], "system")
    assert changed["character_filter"] == {"is_exclude": True, "names": [], "tags": ["sea"]}
    assert (changed["content"], changed["revision"]) == (FULL_ENTRY["content"], 2)
    assert await ada.get(path) == changed
    problem(await ada.ask("PATCH", path, json={"place": 3}), 422, "validation-failed")


async def test_every_change_of_an_entry_is_a_change_of_its_book(ada: Reader) -> None:
    book = await ada.new_book()
    entry = await ada.new_entry(book, keys=["lamp"])
    other = await ada.new_entry(book, keys=["stair"])
    assert await ada.revision(book) == 3
    await ada.patch(f"/lorebooks/{book}/entries/{entry['id']}", keys=["lens"])
    assert await ada.revision(book) == 4
    await ada.put(f"/lorebooks/{book}/entries/order", entry_ids=[other["id"], entry["id"]])
    assert await ada.revision(book) == 5
    await ada.delete(f"/lorebooks/{book}/entries/{entry['id']}")
    assert await ada.revision(book) == 6


async def test_a_write_to_an_old_revision_is_refused(ada: Reader) -> None:
    book = await ada.new_book()
    entry = (await ada.new_entry(book))["id"]
    for path, stale in (
        (f"/lorebooks/{book}", '"1"'),
        (f"/lorebooks/{book}/entries/{entry}", '"9"'),
    ):
        for method in ("PATCH", "DELETE"):
            answer = await ada.ask(method, path, headers={"If-Match": stale}, json={})
            problem(answer, 412, "revision-mismatch")
        tag = (await ada.ask("GET", path)).headers["etag"]
        ok(await ada.ask("PATCH", path, headers={"If-Match": tag}, json={}))


async def test_deleting_a_book_deletes_its_entries_and_links(ada: Reader) -> None:
    book = await ada.new_book()
    entry = (await ada.new_entry(book))["id"]
    persona = (await ada.post("/personas", name="Wanderer"))["id"]
    await ada.put(f"/personas/{persona}/lorebooks/{book}")
    await ada.delete(f"/lorebooks/{book}")
    problem(await ada.ask("GET", f"/lorebooks/{book}"), 404, "lorebook-not-found")
    answer = await ada.ask("GET", f"/lorebooks/{book}/entries/{entry}")
    problem(answer, 404, "lore-entry-not-found")
    assert (await ada.get(f"/personas/{persona}/lorebooks"))["items"] == []


async def test_an_entry_is_only_found_in_its_own_book(ada: Reader) -> None:
    book, other = await ada.new_book(), await ada.new_book("Another")
    entry = (await ada.new_entry(book))["id"]
    for method in ("GET", "PATCH", "DELETE"):
        answer = await ada.ask(method, f"/lorebooks/{other}/entries/{entry}", json={})
        problem(answer, 404, "lore-entry-not-found")


@pytest.mark.every_database
async def test_entries_are_listed_page_by_page_in_their_order(ada: Reader) -> None:
    book = await ada.new_book()
    made = [(await ada.new_entry(book, title=str(n)))["id"] for n in range(5)]
    await ada.delete(f"/lorebooks/{book}/entries/{made[1]}")
    order = [made[4], made[0], made[2], made[3]]
    path = f"/lorebooks/{book}/entries/order"
    await ada.put(path, entry_ids=order)
    for wrong in (order[:3], [*order, order[0]], [*order[:3], made[1]]):
        problem(await ada.ask("PUT", path, json={"entry_ids": wrong}), 422, "validation-failed")
    order.append((await ada.new_entry(book))["id"])
    pages: list[list[str]] = []
    query: dict[str, Any] = {}
    while True:
        page = await ada.get(f"/lorebooks/{book}/entries", limit=2, **query)
        pages.append([item["id"] for item in page["items"]])
        if page["next"] is None:
            break
        query = {"after": page["next"]}
    assert pages == [order[:2], order[2:4], order[4:]]


@pytest.mark.every_database
async def test_books_are_listed_newest_first_with_their_counts_and_links(ada: Reader) -> None:
    old, new = await ada.new_book("The old light"), await ada.new_book("Straße")
    await ada.new_entry(old)
    character = (await ada.account.new_character())["id"]
    chat = (await ada.account.new_chat())["id"]
    await ada.put(f"/characters/{character}/lorebooks/{old}")
    await ada.put(f"/chats/{chat}/lorebooks/{old}", 200, state="linked")
    first, second = (await ada.get("/lorebooks"))["items"]
    assert (first["id"], second["id"]) == (new, old)
    assert (first["entry_count"], second["entry_count"]) == (0, 1)
    links = {"character_ids": [character], "persona_ids": [], "chat_ids": [chat]}
    assert second["links"] == links
    assert (await ada.get(f"/lorebooks/{old}"))["links"] == links
    for search, found in (
        ("LIGHT the", [old]),
        ("strasse", [new]),
        ("dark", []),
        ("e", [new, old]),
    ):
        page = await ada.get("/lorebooks", search=search)
        assert [item["id"] for item in page["items"]] == found
    page = await ada.get("/lorebooks", limit=1)
    rest = await ada.get("/lorebooks", limit=1, after=page["next"])
    assert [item["id"] for item in rest["items"]] == [old]
    assert rest["next"] is None


async def test_world_info_is_exported_as_it_was_imported(ada: Reader) -> None:
    found = await ada.import_book(WORLD, filename="C:\\books\\The light.json")
    book = found["lorebook"]
    assert (book["name"], book["entry_count"], book["revision"]) == ("The light", 2, 1)
    assert (found["warnings"], found["skipped"]) == ([], 0)
    lens, stair = await ada.entries(book["id"])
    assert (lens["title"], lens["logic"], lens["position"]) == ("The lens", "and_all", "at_depth")
    assert (lens["role"], lens["probability"], lens["order"]) == ("user", 50, 90)
    assert lens["match_fields"] == ["scenario"]
    assert lens["character_filter"] == {"is_exclude": True, "names": ["Mara"], "tags": []}
    assert (stair["order"], stair["selective"]) == (10, False)
    assert await ada.export(book["id"]) == WORLD
    await ada.patch(f"/lorebooks/{book['id']}/entries/{stair['id']}", order=5, sticky=2)
    changed = {**WORLD["entries"]["7"], "order": 5, "sticky": 2}
    entries = {**WORLD["entries"], "7": changed}
    assert await ada.export(book["id"]) == {**WORLD, "entries": entries}


CARD_BOOK = {"name": "The card's own", "entries": [{"keys": ["lamp"], "content": "Lit."}]}


@dataclass(frozen=True)
class Stage:
    """A chat of a character with a persona, and a book from each source."""

    chat: str
    character: str
    persona: str
    books: dict[str, str]


async def set_stage(ada: Reader) -> Stage:
    made = await ada.account.new_character(character_book=CARD_BOOK)
    character = made["id"]
    persona = (await ada.post("/personas", name="Wanderer"))["id"]
    chat = (await ada.account.new_chat(character_ids=[character], persona_id=persona))["id"]
    books = {"card": made["lorebook_id"]}
    books["global"] = await ada.new_book("global", is_global=True)
    for name in ("character", "persona", "chat", "unlinked"):
        books[name] = await ada.new_book(name)
    await ada.put(f"/characters/{character}/lorebooks/{books['character']}")
    await ada.put(f"/personas/{persona}/lorebooks/{books['persona']}")
    await ada.put(f"/chats/{chat}/lorebooks/{books['chat']}", 200, state="linked")
    return Stage(chat, character, persona, books)


async def list_books(ada: Reader, stage: Stage) -> list[tuple[str, str, bool]]:
    names = {book: name for name, book in stage.books.items()}
    page = await ada.get(f"/chats/{stage.chat}/lorebooks")
    return [
        (names[item["lorebook"]["id"]], item["source"], item["is_off"]) for item in page["items"]
    ]


async def books_of_turn(server: Running, ada: Reader, stage: Stage) -> list[ChatBook]:
    async with server.parts.database.read() as session:
        return await books_for_chat(
            session,
            owner_id=UUID(ada.account.user["id"]),
            chat_id=UUID(stage.chat),
            character_ids=[UUID(stage.character)],
            persona_id=UUID(stage.persona),
        )


async def test_the_books_of_a_chat_come_from_four_places(ada: Reader, server: Running) -> None:
    stage = await set_stage(ada)
    assert await list_books(ada, stage) == [
        ("chat", "chat", False),
        ("persona", "persona", False),
        ("card", "character", False),
        ("character", "character", False),
        ("global", "global", False),
    ]
    names = ("chat", "persona", "card", "character", "global")
    refs = await books_of_turn(server, ada, stage)
    assert [str(ref.id) for ref in refs] == [stage.books[name] for name in names]
    await ada.new_entry(stage.books["persona"])
    refs = await books_of_turn(server, ada, stage)
    assert [ref.revision for ref in refs] == [1, 2, 1, 1, 1]
    assert [ref.source for ref in refs] == ["chat", "persona", "character", "character", "global"]


async def test_a_book_with_two_links_is_used_once(ada: Reader, server: Running) -> None:
    stage = await set_stage(ada)
    book = stage.books["global"]
    await ada.put(f"/characters/{stage.character}/lorebooks/{book}")
    await ada.put(f"/personas/{stage.persona}/lorebooks/{book}")
    found = [entry for entry in await list_books(ada, stage) if entry[0] == "global"]
    assert found == [("global", "persona", False)]
    assert len(await books_of_turn(server, ada, stage)) == 5


@pytest.mark.parametrize("name", ["card", "character", "persona", "global", "chat"])
async def test_a_chat_switches_a_book_off_for_itself(
    ada: Reader, server: Running, name: str
) -> None:
    stage = await set_stage(ada)
    path = f"/chats/{stage.chat}/lorebooks/{stage.books[name]}"
    before = await list_books(ada, stage)
    said = await ada.put(path, 200, state="off")
    assert (said["state"], said["is_off"]) == ("off", True)
    is_left = name != "chat"  # because the switch replaced its link
    assert [each for each in await list_books(ada, stage) if each[2]] == (
        [(name, next(source for each, source, _ in before if each == name), True)]
        if is_left
        else []
    )
    refs = await books_of_turn(server, ada, stage)
    assert stage.books[name] not in [str(ref.id) for ref in refs]
    assert len(refs) == 4
    other = (await ada.account.new_chat(character_ids=[stage.character]))["id"]
    page = await ada.get(f"/chats/{other}/lorebooks")
    assert not [item for item in page["items"] if item["is_off"]]
    await ada.delete(path)
    if is_left:
        assert await list_books(ada, stage) == before


async def test_a_chat_reports_its_link_to_a_book(ada: Reader) -> None:
    stage = await set_stage(ada)
    for name, state, source in (
        ("chat", "linked", "chat"),
        ("persona", None, "persona"),
        ("card", None, "character"),
        ("unlinked", None, None),
    ):
        path = f"/chats/{stage.chat}/lorebooks/{stage.books[name]}"
        found = await ada.get(path)
        assert (found["state"], found["source"], found["is_off"]) == (state, source, False)
    problem(await ada.ask("DELETE", path), 404, "lorebook-not-linked")
    problem(await ada.ask("PUT", path, json={"state": "on"}), 422, "validation-failed")
    assert (await ada.put(path, 200, state="off"))["source"] is None
    assert "unlinked" not in [name for name, *_ in await list_books(ada, stage)]
    assert (await ada.put(path, 200, state="linked"))["source"] == "chat"


@pytest.mark.every_database
async def test_links_are_added_and_deleted_once(ada: Reader) -> None:
    stage = await set_stage(ada)
    for kind, holder in (("characters", stage.character), ("personas", stage.persona)):
        path = f"/{kind}/{holder}/lorebooks"
        before = (await ada.get(path))["items"]
        book = stage.books["unlinked"]
        await ada.put(f"{path}/{book}")
        await ada.put(f"{path}/{book}")
        after = [item["id"] for item in (await ada.get(path))["items"]]
        assert after == [*(item["id"] for item in before), book]
        await ada.delete(f"{path}/{book}")
        problem(await ada.ask("DELETE", f"{path}/{book}"), 404, "lorebook-not-linked")
        again = [item["id"] for item in (await ada.get(path))["items"]]
        assert again == after[:-1]


async def test_the_list_of_a_character_begins_with_its_card_s_book(ada: Reader) -> None:
    stage = await set_stage(ada)
    path = f"/characters/{stage.character}/lorebooks"
    own, linked = (await ada.get(path))["items"]
    assert (own["id"], own["character_id"]) == (stage.books["card"], stage.character)
    assert (linked["id"], linked["character_id"]) == (stage.books["character"], None)
    problem(await ada.ask("DELETE", f"{path}/{own['id']}"), 404, "lorebook-not-linked")


async def test_links_are_deleted_with_their_owners(ada: Reader) -> None:
    stage = await set_stage(ada)
    for path in (
        f"/chats/{stage.chat}",
        f"/personas/{stage.persona}",
        f"/characters/{stage.character}",
    ):
        await ada.delete(path)
    nowhere: dict[str, list[str]] = {"character_ids": [], "persona_ids": [], "chat_ids": []}
    items = (await ada.get("/lorebooks"))["items"]
    assert {item["name"] for item in items} == {
        "global",
        "character",
        "persona",
        "chat",
        "unlinked",
    }
    assert all(item["links"] == nowhere for item in items)


async def test_foreign_books_are_not_linked(ada: Reader, ben: Reader, server: Running) -> None:
    theirs, own = await set_stage(ada), await set_stage(ben)
    routes: list[tuple[str, str, Any]] = [
        ("/chats/{chat}/lorebooks/{book}", "chat", {"state": "linked"}),
        ("/characters/{character}/lorebooks/{book}", "character", None),
        ("/personas/{persona}/lorebooks/{book}", "persona", None),
    ]
    for template, holder, body in routes:
        for stage, book in ((own, theirs.books["unlinked"]), (theirs, own.books["unlinked"])):
            ids = {"chat": stage.chat, "character": stage.character, "persona": stage.persona}
            path = template.format(book=book, **ids)
            for method in ("PUT", "DELETE"):
                answer = await ben.ask(method, path, json=body)
                kind = "lorebook" if stage is own else holder
                problem(answer, 404, f"{kind}-not-found")
    assert len(await books_of_turn(server, ada, theirs)) == 5
    assert len(await books_of_turn(server, ben, own)) == 5
    ok(await ben.ask("GET", f"/chats/{own.chat}/lorebooks"))


@pytest.mark.every_database
async def test_global_books_are_only_in_chats_of_their_owner(ada: Reader, ben: Reader) -> None:
    await ada.new_book("hers", is_global=True)
    chat = (await ben.account.new_chat())["id"]
    assert (await ben.get(f"/chats/{chat}/lorebooks"))["items"] == []
