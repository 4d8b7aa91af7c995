"""Lorebooks in files: imports, exports, and the books inside character cards."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, text, update

from backend.characters.cards.charx import unpack
from backend.characters.cards.png import TextReader, decode_value, find_texts
from backend.characters.models import CHARACTER_CARD, CHARACTER_SOURCE, Character, open_card
from backend.lorebooks import entries as limits
from backend.lorebooks.models import Lorebook, LoreEntryRow
from backend.lorebooks.schemas import NewLoreEntry
from backend.memory.models import IndexChange
from backend.operations.deletions import delete_hidden_container
from backend.vault.sealing import Sealer
from tests.integration.lorebooks.readers import WORLD, Reader
from tests.support.server import Running, ok, problem
from tests.support.stored import opened_book

pytestmark = pytest.mark.anyio

CANARY = "k4n4ri3nv0g3l"

FORMATS: dict[str, Any] = {
    "world_info": WORLD,
    "character_book": {"name": "B", "entries": [{"keys": ["lamp"], "content": "Lit."}]},
    "lorebook_v3": {"spec": "lorebook_v3", "data": {"name": "B", "entries": [{"keys": ["a"]}]}},
    "agnai": {"kind": "memory", "name": "B", "entries": [{"keywords": ["a"], "entry": "b"}]},
    "risu": {"type": "risu", "data": [{"key": "a, b", "content": "c"}]},
    "novelai": {"lorebookVersion": 5, "entries": [{"keys": ["a"], "text": "b"}]},
    "kobold": [{"key": "a, b", "keyanti": "c", "content": "d"}],
    "card": {"name": "Mara", "character_book": {"entries": [{"keys": ["a"], "content": "b"}]}},
}


async def count_rows(server: Running, reader: Reader) -> tuple[int, int]:
    """Return the number of books and entries of a user."""
    owner = UUID(reader.account.user["id"])
    async with server.parts.database.read() as session:
        books = await session.scalar(select(func.count()).where(Lorebook.user_id == owner))
        entries = await session.scalar(select(func.count()).where(LoreEntryRow.user_id == owner))
    return books or 0, entries or 0


async def read_sealer(server: Running, ada: Reader) -> Sealer:
    cookie = ada.account.client.cookies["talekeeper_session"]
    identity = await server.parts.sessions.authenticate(cookie, "session")
    assert identity is not None
    return identity.sealer


@pytest.mark.parametrize("name", FORMATS)
async def test_every_format_is_imported_and_exported_in_each(ada: Reader, name: str) -> None:
    found = (await ada.import_book(FORMATS[name]))["lorebook"]
    entries = await ada.entries(found["id"])
    assert found["entry_count"] == len(entries) > 0
    for file_format in ("world_info", "v2", "v3"):
        written = await ada.export(found["id"], file_format)
        again = (await ada.import_book(written))["lorebook"]
        for before, after in zip(entries, await ada.entries(again["id"]), strict=True):
            for field in ("keys", "secondary_keys", "content", "order", "logic", "enabled"):
                assert after[field] == before[field]


async def test_an_import_says_how_entries_are_found(ada: Reader) -> None:
    files = {"file": ("card.json", json.dumps(FORMATS["card"]).encode())}

    async def found_by() -> tuple[str, str]:
        book = await ada.import_book(FORMATS["agnai"])
        card = ok(await ada.account.client.post("/api/v1/characters/import", files=files), 201)
        return book["found_by"], card["found_by"]

    assert await found_by() == ("keys_and_meaning", "keys_and_meaning")
    change = {"lore": {"mode": "keys"}}
    ok(await ada.account.client.patch("/api/v1/me/settings", json=change))
    assert await found_by() == ("keys", "keys")
    own = {**FORMATS["character_book"], "extensions": {"talekeeper": {"mode": "meaning"}}}
    assert (await ada.import_book(own))["found_by"] == "meaning"


async def test_the_form_names_a_book_if_its_file_does_not(ada: Reader) -> None:
    nameless: dict[str, Any] = {"entries": {}}
    forms: list[tuple[dict[str, Any], dict[str, str], str]] = [
        (nameless, {"name": " Harbour "}, "Harbour"),
        (nameless, {}, "file"),
        ({**nameless, "name": "Its own"}, {"name": "Harbour"}, "Its own"),
    ]
    for value, form, name in forms:
        found = await ada.import_book(value, filename="file.json", **form)
        assert found["lorebook"]["name"] == name
    found = await ada.import_book(nameless, filename=".json")
    assert found["lorebook"]["name"].strip()


async def test_an_export_is_a_file_to_download(ada: Reader) -> None:
    book = await ada.new_book("Straße/../x")
    answer = await ada.ask("GET", f"/lorebooks/{book}/export")
    assert answer.headers["content-disposition"].startswith("attachment; filename=")
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("data", "slug"),
    [
        (b"", "unreadable-lorebook"),
        (b"{", "unreadable-lorebook"),
        (b'{"name": "Mara"}', "unreadable-lorebook"),
        (b'{"entries": {"0": {"key": ["a"], "order": 1e999}}}', "unreadable-lorebook"),
        (b'{"entries": ' + b"[" * 70 + b"]" * 70 + b"}", "lorebook-limit"),
        (b'{"entries": [{"keys": [], "content": "' + b"c" * 200_001 + b'"}]}', "lorebook-limit"),
    ],
)
async def test_a_refused_file_adds_nothing(
    ada: Reader, server: Running, data: bytes, slug: str
) -> None:
    answer = await ada.upload(data)
    assert problem(answer, 422, slug)["detail"]
    assert await count_rows(server, ada) == (0, 0)


async def test_a_form_without_a_file_is_refused(ada: Reader) -> None:
    answer = await ada.ask("POST", "/lorebooks/import", files={"other": b"x"})
    problem(answer, 422, "validation-failed")
    answer = await ada.ask("POST", "/lorebooks/import", json=WORLD)
    problem(answer, 415, "unsupported-media-type")


async def test_books_and_accounts_have_limits(
    ada: Reader, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_ENTRIES", 2)
    monkeypatch.setattr(limits, "MAX_BOOKS", 1)
    found = problem(await ada.upload({"entries": [{"keys": ["a"]}] * 3}), 422, "lorebook-limit")
    assert (found["limit"], found["allowed"], found["found"]) == ("lorebook_entries", 2, 3)
    book = (await ada.import_book(WORLD))["lorebook"]["id"]
    full = await ada.ask("POST", f"/lorebooks/{book}/entries", json={})
    assert problem(full, 409, "lorebook-full")["limit"] == "lorebook_entries"
    problem(await ada.upload(WORLD), 409, "lorebook-full")
    problem(await ada.ask("POST", "/lorebooks", json={"name": "B"}), 409, "lorebook-full")
    assert await count_rows(server, ada) == (1, 2)


async def test_an_import_with_the_same_key_is_done_once(ada: Reader, server: Running) -> None:
    data = json.dumps(WORLD).encode()
    answers = [
        ok(
            await ada.ask(
                "POST",
                "/lorebooks/import",
                files={"file": ("world.json", data)},
                headers={"Idempotency-Key": "one"},
            ),
            201,
        )
        for _ in range(2)
    ]
    assert answers[0] == answers[1]
    assert await count_rows(server, ada) == (1, 2)


async def test_every_change_is_reported_to_the_index(ada: Reader, server: Running) -> None:
    async def heard() -> list[tuple[str, UUID, UUID | None]]:
        async with server.parts.database.read() as session:
            rows = list(await session.scalars(select(IndexChange).order_by(IndexChange.id)))
        return [(row.kind, row.container_id, row.source_id) for row in rows]

    async def later(before: list[Any]) -> list[Any]:
        return [each for each in await heard() if each not in before]

    await server.parts.worker.aclose()
    # The server is shared: jobs of another test may have been waiting.
    before = await heard()
    found = await ada.import_book(WORLD)
    book = UUID(found["lorebook"]["id"])
    assert found["job_id"] is not None
    assert await later(before) == [("lore", book, None)]
    before = await heard()
    entry = await ada.new_entry(str(book))
    assert await later(before) == [("lore", book, UUID(entry["id"]))]
    character = await ada.account.new_character(character_book=FORMATS["character_book"])
    assert ("lore", UUID(character["lorebook_id"]), None) in await heard()


async def test_no_text_of_a_lorebook_is_readable_in_the_db(ada: Reader, server: Running) -> None:
    entry = {
        "key": [CANARY],
        "comment": CANARY,
        "content": f"Of {CANARY}.",
        CANARY: CANARY,
        "order": CANARY,
    }
    value = {"name": CANARY, CANARY: [CANARY], "entries": {CANARY: entry}}
    book = (await ada.import_book(value, filename=CANARY))["lorebook"]["id"]
    await ada.new_entry(book, title=CANARY, content=CANARY, keys=[CANARY])
    await ada.patch(f"/lorebooks/{book}", description=CANARY)
    telltale = (CANARY.encode(), base64.b64encode(CANARY.encode()), CANARY.encode().hex().encode())
    for table in ("lorebooks", "lore_entries", "index_changes", "jobs"):
        async with server.parts.database.read() as session:
            rows = (await session.execute(text(f"SELECT * FROM {table}"))).mappings().all()
        for row in rows:
            for column, stored in row.items():
                data = stored if isinstance(stored, bytes) else str(stored).encode()
                assert not any(each in data for each in telltale), (table, column)
    assert await count_rows(server, ada) == (1, 2)


async def test_a_turn_reads_a_book_and_its_entries(ada: Reader, server: Running) -> None:
    book = (await ada.import_book(WORLD))["lorebook"]["id"]
    made = await ada.new_entry(book, keys=["new"])
    sealer = await read_sealer(server, ada)
    async with server.parts.database.read() as session:
        fields, entries = await opened_book(session, sealer, UUID(book))
    assert fields.name == "book"
    assert [place for _, place, _ in entries] == [0, 1, 2]
    assert str(entries[2][0]) == made["id"]
    assert entries[2][2].keys == NewLoreEntry(keys=["new"]).keys


async def test_thousands_of_entries_keep_their_order(ada: Reader, server: Running) -> None:
    entries = {str(n): {"uid": n, "key": [f"k{n}"], "content": f"c{n}"} for n in range(4_100)}
    found = (await ada.import_book({"entries": entries}))["lorebook"]
    assert found["entry_count"] == 4_100
    assert await ada.export(found["id"]) == {"entries": entries}
    sealer = await read_sealer(server, ada)
    async with server.parts.database.read() as session:
        _, loaded = await opened_book(session, sealer, UUID(found["id"]))
    assert [entry.keys for _, _, entry in loaded] == [entry["key"] for entry in entries.values()]


async def test_concurrent_changes_are_all_kept(ada: Reader) -> None:
    book = await ada.new_book()
    await asyncio.gather(*(ada.new_entry(book, title=str(n)) for n in range(8)))
    entries = await ada.entries(book)
    assert sorted(entry["place"] for entry in entries) == list(range(8))
    assert await ada.revision(book) == 9
    fields = {"sticky": 1, "cooldown": 2, "delay": 3, "group": "g", "outlet": "o"}
    path = f"/lorebooks/{book}/entries/{entries[0]['id']}"
    await asyncio.gather(*(ada.patch(path, **{name: fields[name]}) for name in fields))
    changed = await ada.get(path)
    assert {name: changed[name] for name in fields} == fields


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ("entries", "data", "spec", "type", "key", "keys", "content", "position")
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


async def test_anything_that_is_uploaded_is_stored_or_refused(ada: Reader, server: Running) -> None:
    values: list[object] = []

    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(value=JSON_VALUES)
    def collect(value: object) -> None:
        values.append(value)

    collect()
    for value in values:
        answer = await ada.upload(value)
        assert answer.status_code in {201, 422}, (value, answer.text)
        assert answer.status_code == 201 or answer.json()["type"].startswith("urn:talekeeper:")
    books, _ = await count_rows(server, ada)
    assert books <= len(values)


CARDS = Path(__file__).parents[2] / "fixtures" / "cards"
CARD_FILES = ("syn_v3.json", "syn_v3.charx", "syn_v2_and_v3_precedence.png")
CARD_BOOK: dict[str, Any] = json.loads((CARDS / "syn_lorebook_v3.json").read_bytes())["data"]


def read_book(data: bytes) -> Any:
    """Return the `character_book` of a card file."""
    if data.startswith(b"\x89PNG"):
        text = decode_value(TextReader().read(find_texts(data).cards[0]))
        return json.loads(text)["data"]["character_book"]
    text = unpack(data)["card.json"] if data.startswith(b"PK") else data
    return json.loads(text)["data"].get("character_book")


async def load_character(server: Running, character_id: str) -> Character:
    async with server.parts.database.read() as session:
        return await session.get_one(Character, UUID(character_id))


async def test_the_book_of_a_card_becomes_a_lorebook(ada: Reader, server: Running) -> None:
    imported = await ada.import_card((CARDS / "syn_v3.json").read_bytes())
    character, lorebook = imported["character"], imported["lorebook"]
    assert character["character_book"] == CARD_BOOK
    assert character["lorebook_id"] == lorebook["id"]
    found = await ada.get(f"/lorebooks/{lorebook['id']}")
    assert (found["name"], found["character_id"]) == ("Lighthouse", character["id"])
    assert (found["entry_count"], found["scan_depth"]) == (2, 4)
    assert [entry["title"] for entry in await ada.entries(lorebook["id"])] == ["lens", ""]

    row, sealer = await load_character(server, character["id"]), await read_sealer(server, ada)
    assert open_card(sealer, row.id, row.sealed_card).character_book is None
    assert row.sealed_source is not None
    assert b"Fresnel" not in sealer.open_bytes(CHARACTER_SOURCE, row.id, row.sealed_source)


@pytest.mark.parametrize("name", CARD_FILES)
async def test_every_card_format_returns_the_book(ada: Reader, name: str) -> None:
    data = (CARDS / name).read_bytes()
    imported = await ada.import_card(data)
    character = imported["character"]
    entry = (await ada.entries(character["lorebook_id"]))[0]
    path = f"/lorebooks/{character['lorebook_id']}/entries/{entry['id']}"
    for file_format in ("json", "png", "charx"):
        assert read_book(await ada.export_card(character["id"], file_format)) == read_book(data)
    await ada.patch(path, content="The lens is whole.")
    changed = read_book(data)
    changed["entries"][0]["content"] = "The lens is whole."
    for file_format in ("json", "png", "charx"):
        exported = await ada.export_card(character["id"], file_format)
        assert read_book(exported) == changed
        again = await ada.import_card(exported)
        assert again["character"]["character_book"] == changed
    shown = await ada.get(f"/characters/{character['id']}")
    assert shown["character_book"] == changed


@pytest.mark.every_database
async def test_a_book_without_a_name_gets_the_name_of_its_character(ada: Reader) -> None:
    book = {"entries": [{"keys": ["a"], "content": "b"}]}
    made = await ada.account.new_character(name="Mara of the Lamp", character_book=book)
    assert made["character_book"] == book
    (listed,) = (await ada.get("/lorebooks"))["items"]
    assert (listed["name"], listed["id"]) == ("Mara of the Lamp", made["lorebook_id"])
    await ada.patch(f"/lorebooks/{listed['id']}", name="Her own")
    shown = await ada.get(f"/characters/{made['id']}")
    assert shown["character_book"] == {**book, "name": "Her own"}


@pytest.mark.every_database
async def test_a_patch_of_the_card_s_book_changes_the_lorebook(ada: Reader) -> None:
    made = await ada.account.new_character()
    path = f"/characters/{made['id']}"
    assert (made["lorebook_id"], made["character_book"]) == (None, None)
    shown = await ada.patch(path, character_book=CARD_BOOK)
    book = shown["lorebook_id"]
    assert shown["character_book"] == CARD_BOOK
    chat = (await ada.account.new_chat(character_ids=[made["id"]]))["id"]
    await ada.put(f"/chats/{chat}/lorebooks/{book}", 200, state="off")
    before = await ada.entries(book)

    shown = await ada.patch(path, character_book=CARD_BOOK, nickname="Mags")
    assert await ada.entries(book) == before

    shown = await ada.patch(path, character_book={"name": "Renamed", "vendor": {"kept": 1}})
    assert shown["lorebook_id"] == book
    assert shown["character_book"] == {**CARD_BOOK, "name": "Renamed", "vendor": {"kept": 1}}
    assert (await ada.get(f"/lorebooks/{book}"))["name"] == "Renamed"
    assert await ada.revision(book) == 2

    entry = {"keys": ["x"], "content": "y"}
    shown = await ada.patch(path, character_book={"entries": [entry]})
    assert [each["keys"] for each in await ada.entries(book)] == [["x"]]
    assert (await ada.get(f"/chats/{chat}/lorebooks/{book}"))["is_off"] is True

    shown = await ada.patch(path, character_book=None)
    assert (shown["lorebook_id"], shown["character_book"]) == (None, None)
    problem(await ada.ask("GET", f"/lorebooks/{book}"), 404, "lorebook-not-found")
    assert read_book(await ada.export_card(made["id"])) is None


async def test_a_card_outlives_its_lorebook(ada: Reader) -> None:
    made = await ada.account.new_character(character_book=CARD_BOOK)
    await ada.delete(f"/lorebooks/{made['lorebook_id']}")
    shown = await ada.get(f"/characters/{made['id']}")
    assert (shown["lorebook_id"], shown["character_book"]) == (None, None)
    assert shown["name"] == made["name"]


async def test_deleting_a_character_deletes_its_book(ada: Reader, server: Running) -> None:
    made = await ada.account.new_character(character_book=CARD_BOOK)
    await ada.delete(f"/characters/{made['id']}")
    assert (await ada.get("/lorebooks"))["items"] == []
    left = select(LoreEntryRow.id).where(LoreEntryRow.user_id == UUID(ada.account.user["id"]))
    book_id = UUID(made["lorebook_id"])
    await delete_hidden_container(server.parts.database, book_id, model=Lorebook)
    async with server.parts.database.read() as session:
        assert (await session.scalars(left)).all() == []


async def test_world_info_inside_a_card_is_a_book_too(ada: Reader) -> None:
    world = {"entries": {"0": {"uid": 0, "key": ["lamp"], "content": "Lit.", "vendor": 1}}}
    made = await ada.account.new_character(character_book=world)
    (entry,) = await ada.entries(made["lorebook_id"])
    assert (entry["keys"], entry["content"]) == (["lamp"], "Lit.")
    (written,) = made["character_book"]["entries"]
    assert (written["keys"], written["extensions"]["vendor"]) == (["lamp"], 1)
    assert await ada.get(f"/characters/{made['id']}") == made


async def test_a_card_with_a_large_book_is_refused(
    ada: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await ada.account.new_character(character_book=CARD_BOOK)
    before = await ada.get("/lorebooks")
    monkeypatch.setattr(limits, "MAX_ENTRIES", 1)
    card = {"name": "Mara", "character_book": CARD_BOOK}
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
async def test_an_old_card_contains_its_book_until_changed(ada: Reader, server: Running) -> None:
    made = await ada.account.new_character(character_book=CARD_BOOK)
    sealer, row = await read_sealer(server, ada), await load_character(server, made["id"])
    card = open_card(sealer, row.id, row.sealed_card)
    whole = msgspec.structs.replace(card, character_book=CARD_BOOK)
    sealed = sealer.seal_bytes(CHARACTER_CARD, row.id, msgspec.json.encode(whole))
    await ada.delete(f"/lorebooks/{made['lorebook_id']}")
    async with server.parts.database.write() as session:
        await session.execute(
            update(Character).where(Character.id == row.id).values(sealed_card=sealed)
        )
    path = f"/characters/{made['id']}"
    shown = await ada.get(path)
    assert (shown["lorebook_id"], shown["character_book"]) == (None, CARD_BOOK)
    assert read_book(await ada.export_card(made["id"])) == CARD_BOOK

    shown = await ada.patch(path, nickname="Mags")

    assert shown["character_book"] == CARD_BOOK
    assert [entry["title"] for entry in await ada.entries(shown["lorebook_id"])] == ["lens", ""]
    assert await ada.get(path) == shown
    row = await load_character(server, made["id"])
    assert open_card(sealer, row.id, row.sealed_card).character_book is None


@pytest.mark.every_database
async def test_a_card_has_one_book(ada: Reader, server: Running) -> None:
    made = await ada.account.new_character(character_book=CARD_BOOK)
    async with server.parts.database.read() as session:
        books = select(Lorebook.character_id).where(
            Lorebook.user_id == UUID(ada.account.user["id"])
        )
        owners = list(await session.scalars(books))
    assert owners == [UUID(made["id"])]
