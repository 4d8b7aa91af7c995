"""The lorebook inside a card: out of the file, kept as a lorebook, and back into the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import select, update

from backend.characters.cards.charx import unpack
from backend.characters.cards.png import TextReader, decode_value, find_texts
from backend.characters.models import CHARACTER_CARD, CHARACTER_SOURCE, Character, open_card
from backend.lorebooks import entries as limits
from backend.lorebooks.models import Lorebook, LoreEntryRow
from backend.vault.sealing import Sealer
from tests.integration.lorebooks.readers import Reader
from tests.support.server import Running, problem

pytestmark = pytest.mark.anyio

CARDS = Path(__file__).parents[2] / "fixtures" / "cards"
FILES = ("syn_v3.json", "syn_v3.charx", "syn_v2_and_v3_precedence.png")
BOOK: dict[str, Any] = json.loads((CARDS / "syn_lorebook_v3.json").read_bytes())["data"]


def book_in(data: bytes) -> Any:
    """The `character_book` of a card file."""
    if data.startswith(b"\x89PNG"):
        text = decode_value(TextReader().read(find_texts(data).cards[0]))
        return json.loads(text)["data"]["character_book"]
    text = unpack(data)["card.json"] if data.startswith(b"PK") else data
    return json.loads(text)["data"].get("character_book")


async def row_of(server: Running, character_id: str) -> Character:
    async with server.parts.database.read() as session:
        return await session.get_one(Character, UUID(character_id))


async def sealer_of(server: Running, ada: Reader) -> Sealer:
    cookie = ada.account.client.cookies["talekeeper_session"]
    identity = await server.parts.sessions.authenticate(cookie, "session")
    assert identity is not None
    return identity.sealer


async def test_a_card_s_book_becomes_a_lorebook_and_is_in_the_card_no_more(
    ada: Reader, server: Running
) -> None:
    imported = await ada.import_card((CARDS / "syn_v3.json").read_bytes())
    character, lorebook = imported["character"], imported["lorebook"]
    assert character["character_book"] == BOOK
    assert character["lorebook_id"] == lorebook["id"]
    found = await ada.get(f"/lorebooks/{lorebook['id']}")
    assert (found["name"], found["character_id"]) == ("Lighthouse", character["id"])
    assert (found["entry_count"], found["scan_depth"]) == (2, 4)
    assert [entry["title"] for entry in await ada.entries(lorebook["id"])] == ["lens", ""]

    row, sealer = await row_of(server, character["id"]), await sealer_of(server, ada)
    assert open_card(sealer, row.id, row.sealed_card).character_book is None
    assert row.sealed_source is not None
    assert b"Fresnel" not in sealer.open_bytes(CHARACTER_SOURCE, row.id, row.sealed_source)


@pytest.mark.parametrize("name", FILES)
async def test_every_kind_of_card_file_gives_the_book_back(ada: Reader, name: str) -> None:
    data = (CARDS / name).read_bytes()
    imported = await ada.import_card(data)
    character = imported["character"]
    entry = (await ada.entries(character["lorebook_id"]))[0]
    path = f"/lorebooks/{character['lorebook_id']}/entries/{entry['id']}"
    for file_format in ("json", "png", "charx"):
        assert book_in(await ada.export_card(character["id"], file_format)) == book_in(data)
    await ada.patch(path, content="The lens is whole.")
    changed = book_in(data)
    changed["entries"][0]["content"] = "The lens is whole."
    for file_format in ("json", "png", "charx"):
        exported = await ada.export_card(character["id"], file_format)
        assert book_in(exported) == changed
        again = await ada.import_card(exported)
        assert again["character"]["character_book"] == changed
    shown = await ada.get(f"/characters/{character['id']}")
    assert shown["character_book"] == changed


@pytest.mark.every_database
async def test_a_book_without_a_name_is_called_after_its_character(ada: Reader) -> None:
    book = {"entries": [{"keys": ["a"], "content": "b"}]}
    made = await ada.account.new_character(name="Mara of the Lamp", character_book=book)
    assert made["character_book"] == book
    (listed,) = (await ada.get("/lorebooks"))["items"]
    assert (listed["name"], listed["id"]) == ("Mara of the Lamp", made["lorebook_id"])
    await ada.patch(f"/lorebooks/{listed['id']}", name="Her own")
    shown = await ada.get(f"/characters/{made['id']}")
    assert shown["character_book"] == {**book, "name": "Her own"}


@pytest.mark.every_database
async def test_a_patch_of_the_card_s_book_is_a_change_of_the_lorebook(ada: Reader) -> None:
    made = await ada.account.new_character()
    path = f"/characters/{made['id']}"
    assert (made["lorebook_id"], made["character_book"]) == (None, None)
    shown = await ada.patch(path, character_book=BOOK)
    book = shown["lorebook_id"]
    assert shown["character_book"] == BOOK
    chat = (await ada.account.new_chat(character_ids=[made["id"]]))["id"]
    await ada.put(f"/chats/{chat}/lorebooks/{book}", 200, state="off")
    before = await ada.entries(book)

    shown = await ada.patch(path, character_book=BOOK, nickname="Mags")
    assert await ada.entries(book) == before

    shown = await ada.patch(path, character_book={"name": "Renamed", "vendor": {"kept": 1}})
    assert shown["lorebook_id"] == book
    assert shown["character_book"] == {**BOOK, "name": "Renamed", "vendor": {"kept": 1}}
    assert (await ada.get(f"/lorebooks/{book}"))["name"] == "Renamed"
    assert await ada.revision(book) == 2

    entry = {"keys": ["x"], "content": "y"}
    shown = await ada.patch(path, character_book={"entries": [entry]})
    assert [each["keys"] for each in await ada.entries(book)] == [["x"]]
    assert (await ada.get(f"/chats/{chat}/lorebooks/{book}"))["is_off"] is True

    shown = await ada.patch(path, character_book=None)
    assert (shown["lorebook_id"], shown["character_book"]) == (None, None)
    problem(await ada.ask("GET", f"/lorebooks/{book}"), 404, "lorebook-not-found")
    assert book_in(await ada.export_card(made["id"])) is None


async def test_a_card_without_its_lorebook_goes_on(ada: Reader) -> None:
    made = await ada.account.new_character(character_book=BOOK)
    await ada.delete(f"/lorebooks/{made['lorebook_id']}")
    shown = await ada.get(f"/characters/{made['id']}")
    assert (shown["lorebook_id"], shown["character_book"]) == (None, None)
    assert shown["name"] == made["name"]


async def test_the_book_goes_with_its_character(ada: Reader, server: Running) -> None:
    made = await ada.account.new_character(character_book=BOOK)
    await ada.delete(f"/characters/{made['id']}")
    assert (await ada.get("/lorebooks"))["items"] == []
    async with server.parts.database.read() as session:
        left = select(LoreEntryRow.id).where(LoreEntryRow.user_id == UUID(ada.account.user["id"]))
        assert list(await session.scalars(left)) == []


async def test_world_info_inside_a_card_is_a_book_too(ada: Reader) -> None:
    world = {"entries": {"0": {"uid": 0, "key": ["lamp"], "content": "Lit.", "vendor": 1}}}
    made = await ada.account.new_character(character_book=world)
    (entry,) = await ada.entries(made["lorebook_id"])
    assert (entry["keys"], entry["content"]) == (["lamp"], "Lit.")
    (written,) = made["character_book"]["entries"]
    assert (written["keys"], written["extensions"]["vendor"]) == (["lamp"], 1)
    assert await ada.get(f"/characters/{made['id']}") == made


async def test_a_book_that_is_too_large_is_refused_with_its_card(
    ada: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await ada.account.new_character(character_book=BOOK)
    before = await ada.get("/lorebooks")
    monkeypatch.setattr(limits, "MAX_ENTRIES", 1)
    card = {"name": "Mara", "character_book": BOOK}
    data = json.dumps(card).encode()
    for method, path, options in (
        ("POST", "/characters", {"json": card}),
        ("POST", "/characters/import", {"files": {"file": data}}),
        ("PATCH", f"/characters/{made['id']}", {"json": {"character_book": {"name": "New"}}}),
    ):
        answer = await ada.ask(method, path, **options)
        found = problem(answer, 422, "card-limit")
        assert (found["limit"], found["allowed"], found["found"]) == ("lorebook_entries", 1, 2)
    assert await ada.get("/lorebooks") == before
    assert len((await ada.get("/characters"))["items"]) == 1


@pytest.mark.every_database
async def test_a_card_of_an_older_version_has_its_book_in_it_until_it_is_changed(
    ada: Reader, server: Running
) -> None:
    made = await ada.account.new_character(character_book=BOOK)
    sealer, row = await sealer_of(server, ada), await row_of(server, made["id"])
    card = open_card(sealer, row.id, row.sealed_card)
    whole = msgspec.structs.replace(card, character_book=BOOK)
    sealed = sealer.seal_bytes(CHARACTER_CARD, row.id, msgspec.json.encode(whole))
    await ada.delete(f"/lorebooks/{made['lorebook_id']}")
    async with server.parts.database.write() as session:
        await session.execute(
            update(Character).where(Character.id == row.id).values(sealed_card=sealed)
        )
    path = f"/characters/{made['id']}"
    shown = await ada.get(path)
    assert (shown["lorebook_id"], shown["character_book"]) == (None, BOOK)
    assert book_in(await ada.export_card(made["id"])) == BOOK

    shown = await ada.patch(path, nickname="Mags")

    assert shown["character_book"] == BOOK
    assert [entry["title"] for entry in await ada.entries(shown["lorebook_id"])] == ["lens", ""]
    assert await ada.get(path) == shown
    row = await row_of(server, made["id"])
    assert open_card(sealer, row.id, row.sealed_card).character_book is None


@pytest.mark.every_database
async def test_a_card_has_one_book(ada: Reader, server: Running) -> None:
    made = await ada.account.new_character(character_book=BOOK)
    async with server.parts.database.read() as session:
        books = select(Lorebook.character_id).where(
            Lorebook.user_id == UUID(ada.account.user["id"])
        )
        owners = list(await session.scalars(books))
    assert owners == [UUID(made["id"])]
