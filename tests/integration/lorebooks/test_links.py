"""Which lorebooks a chat has, from where, and how it switches them off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from backend.lorebooks.links import ChatBook, books_for_chat
from tests.integration.lorebooks.readers import Reader
from tests.support.server import Running, ok, problem

pytestmark = pytest.mark.anyio

CARD_BOOK = {"name": "The card's own", "entries": [{"keys": ["lamp"], "content": "Lit."}]}


@dataclass(frozen=True)
class Stage:
    """A chat of a character with a persona, and a book from every place."""

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


async def shown(ada: Reader, stage: Stage) -> list[tuple[str, str, bool]]:
    names = {book: name for name, book in stage.books.items()}
    page = await ada.get(f"/chats/{stage.chat}/lorebooks")
    return [
        (names[item["lorebook"]["id"]], item["source"], item["is_off"]) for item in page["items"]
    ]


async def for_a_turn(server: Running, ada: Reader, stage: Stage) -> list[ChatBook]:
    async with server.parts.database.read() as session:
        return await books_for_chat(
            session,
            owner_id=UUID(ada.account.user["id"]),
            chat_id=UUID(stage.chat),
            character_ids=[UUID(stage.character)],
            persona_id=UUID(stage.persona),
        )


async def test_a_chat_has_books_from_four_places_in_their_order(
    ada: Reader, server: Running
) -> None:
    stage = await set_stage(ada)
    assert await shown(ada, stage) == [
        ("chat", "chat", False),
        ("persona", "persona", False),
        ("card", "character", False),
        ("character", "character", False),
        ("global", "global", False),
    ]
    names = ("chat", "persona", "card", "character", "global")
    refs = await for_a_turn(server, ada, stage)
    assert [str(ref.id) for ref in refs] == [stage.books[name] for name in names]
    await ada.new_entry(stage.books["persona"])
    refs = await for_a_turn(server, ada, stage)
    assert [ref.revision for ref in refs] == [1, 2, 1, 1, 1]
    assert [ref.source for ref in refs] == ["chat", "persona", "character", "character", "global"]


async def test_a_book_that_a_chat_has_twice_counts_once(ada: Reader, server: Running) -> None:
    stage = await set_stage(ada)
    book = stage.books["global"]
    await ada.put(f"/characters/{stage.character}/lorebooks/{book}")
    await ada.put(f"/personas/{stage.persona}/lorebooks/{book}")
    found = [entry for entry in await shown(ada, stage) if entry[0] == "global"]
    assert found == [("global", "persona", False)]
    assert len(await for_a_turn(server, ada, stage)) == 5


@pytest.mark.parametrize("name", ["card", "character", "persona", "global", "chat"])
async def test_what_a_chat_switches_off_is_off_there_and_nowhere_else(
    ada: Reader, server: Running, name: str
) -> None:
    stage = await set_stage(ada)
    path = f"/chats/{stage.chat}/lorebooks/{stage.books[name]}"
    before = await shown(ada, stage)
    said = await ada.put(path, 200, state="off")
    assert (said["state"], said["is_off"]) == ("off", True)
    is_left = name != "chat"  # whose link the switch took the place of
    assert [each for each in await shown(ada, stage) if each[2]] == (
        [(name, next(source for each, source, _ in before if each == name), True)]
        if is_left
        else []
    )
    refs = await for_a_turn(server, ada, stage)
    assert stage.books[name] not in [str(ref.id) for ref in refs]
    assert len(refs) == 4
    other = (await ada.account.new_chat(character_ids=[stage.character]))["id"]
    page = await ada.get(f"/chats/{other}/lorebooks")
    assert not [item for item in page["items"] if item["is_off"]]
    await ada.delete(path)
    if is_left:
        assert await shown(ada, stage) == before


async def test_a_chat_says_what_it_says_of_a_book(ada: Reader) -> None:
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
    assert "unlinked" not in [name for name, *_ in await shown(ada, stage)]
    assert (await ada.put(path, 200, state="linked"))["source"] == "chat"


@pytest.mark.every_database
async def test_a_link_is_made_once_and_taken_away_once(ada: Reader) -> None:
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


async def test_a_character_s_list_begins_with_its_card_s_own_book(ada: Reader) -> None:
    stage = await set_stage(ada)
    path = f"/characters/{stage.character}/lorebooks"
    own, linked = (await ada.get(path))["items"]
    assert (own["id"], own["character_id"]) == (stage.books["card"], stage.character)
    assert (linked["id"], linked["character_id"]) == (stage.books["character"], None)
    problem(await ada.ask("DELETE", f"{path}/{own['id']}"), 404, "lorebook-not-linked")


async def test_links_go_with_what_they_lead_from(ada: Reader) -> None:
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


async def test_nobody_links_what_is_someone_else_s(
    ada: Reader, ben: Reader, server: Running
) -> None:
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
    assert len(await for_a_turn(server, ada, theirs)) == 5
    assert len(await for_a_turn(server, ben, own)) == 5
    ok(await ben.ask("GET", f"/chats/{own.chat}/lorebooks"))


@pytest.mark.every_database
async def test_nobody_s_global_books_are_in_someone_else_s_chats(ada: Reader, ben: Reader) -> None:
    await ada.new_book("hers", is_global=True)
    chat = (await ben.account.new_chat())["id"]
    assert (await ben.get(f"/chats/{chat}/lorebooks"))["items"] == []
