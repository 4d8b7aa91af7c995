"""Tests that an exported card equals its file, except for changes."""

from __future__ import annotations

import base64
import io
import json
import struct
import zipfile
import zlib
from typing import Any

import pytest
from sqlalchemy import select

from backend.characters.cards import png
from backend.characters.cards.charx import unpack
from backend.characters.models import CARD_FILE, CardFile
from backend.database.engine import Database
from tests.integration.characters.people import CARDS, ON_SQLITE_ALONE, Person, count_rows
from tests.integration.characters.pictures import opened, picture

pytestmark = pytest.mark.anyio

PNGS = ("syn_v2_and_v3_precedence.png", "syn_v2_only_mixedcase_Chara.png")
BOTH = (CARDS / PNGS[0]).read_bytes()
PICTURE = {"content": picture(width=320, height=200), "headers": {"Content-Type": "image/png"}}


async def import_file(person: Person, data: bytes) -> str:
    return f"/characters/{(await person.import_card(data))['character']['id']}"


async def export(person: Person, path: str, query: str) -> bytes:
    answer = await person.get(f"{path}/export?{query}")
    assert answer.status_code == 200, answer.text
    return answer.content


def read_cards(data: bytes) -> dict[bytes, Any]:
    reader = png.TextReader()
    return {
        chunk.read_keyword(): json.loads(png.decode_value(reader.read(chunk)))
        for chunk in png.find_texts(data).cards
    }


def read_other_chunks(data: bytes) -> list[bytes]:
    cards = {bytes(chunk.whole) for chunk in png.find_texts(data).cards}
    return [
        whole for chunk in png.iterate_chunks(data) if (whole := bytes(chunk.whole)) not in cards
    ]


def add_text(data: bytes, keyword: bytes, value: bytes) -> bytes:
    body = b"tEXt" + keyword + b"\0" + value
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return data[:-12] + chunk + data[-12:]


def archive(card: dict[str, Any], **files: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as opened_archive:
        for name, data in {"card.json": json.dumps(card).encode(), **files}.items():
            opened_archive.writestr(name, data)
    return target.getvalue()


@pytest.mark.parametrize("name", PNGS)
async def test_a_png_comes_back_byte_for_byte(ada: Person, name: str, database: Database) -> None:
    data = (CARDS / name).read_bytes()
    path = await import_file(ada, data)
    assert await export(ada, path, "format=png") == data
    async with database.read() as session:
        file = (await session.scalars(select(CardFile))).one()
    assert data not in file.sealed_data
    assert ada.identity.sealer.open_bytes(CARD_FILE, file.id, file.sealed_data) == data
    await ada.delete(path)
    assert (await count_rows(database))["card_files"] == 0


@ON_SQLITE_ALONE
@pytest.mark.parametrize("name", PNGS)
async def test_an_edit_changes_nothing_else_in_a_png(ada: Person, name: str) -> None:
    data = (CARDS / name).read_bytes()
    path = await import_file(ada, data)
    before = read_cards(data)
    await ada.patch(path, json={"scenario": "A storm.", "extensions": {"fav": True}})

    changed = await export(ada, path, "format=png")

    after = read_cards(changed)
    assert read_other_chunks(changed) == read_other_chunks(data)
    assert list(after) == [b"ccv3", b"chara"]
    for word, card in before.items():
        fields: dict[str, Any] = {**card["data"], "scenario": "A storm."}
        fields["extensions"] = {**fields["extensions"], "fav": True}
        assert after[word]["data"] == {**after[word]["data"], **fields}
        added = after[word]["data"].keys() - fields.keys()
        assert not any(after[word]["data"][field] for field in added)


async def test_a_changed_lorebook_is_in_both_texts_of_a_png(ada: Person) -> None:
    path = await import_file(ada, BOTH)
    book = {"name": "New", "entries": [{"keys": ["reef"], "content": "Sharp."}]}
    await ada.patch(path, json={"character_book": book})
    after = read_cards(await export(ada, path, "format=png"))
    for card in after.values():
        (entry,) = card["data"]["character_book"]["entries"]
        assert (entry["keys"], entry["content"]) == (["reef"], "Sharp.")


async def test_with_a_new_picture_nothing_of_the_former_goes_out(ada: Person) -> None:
    data = add_text(add_text(BOTH, b"Comment", b"private"), b"chara-ext-asset_:0", b"c291bmQ=")
    path = await import_file(ada, data)
    before = read_cards(data)
    await ada.put(f"{path}/avatar", **PICTURE)
    changed = await export(ada, path, "format=png")
    assert opened(changed).size == (320, 200)
    assert b"private" not in changed
    assert list(png.find_texts(changed).assets) == ["0"]
    after = read_cards(changed)
    names = {word: card["data"]["name"] for word, card in after.items()}
    assert names == {word: card["data"]["name"] for word, card in before.items()}
    assert len(set(names.values())) == 2


@ON_SQLITE_ALONE
async def test_without_its_picture_a_card_gets_a_placeholder(ada: Person) -> None:
    path = await import_file(ada, BOTH)
    await ada.delete(f"{path}/avatar")
    changed = await export(ada, path, "format=png")
    assert opened(changed).size == (512, 512)
    assert read_cards(changed).keys() == read_cards(BOTH).keys()


@ON_SQLITE_ALONE
async def test_files_inside_a_png_stand_in_an_archive_as_the_card_says(ada: Person) -> None:
    assets = [
        {"type": "emotion", "uri": "__asset:0", "name": "happy", "ext": "png"},
        {"type": "icon", "uri": "ccdefault:", "name": "main", "ext": "png"},
    ]
    card = {"spec": "chara_card_v3", "spec_version": "3.0", "data": {"name": "M", "assets": assets}}
    data = add_text(picture(), b"ccv3", base64.b64encode(json.dumps(card).encode()))
    data = add_text(data, b"chara-ext-asset_:0", base64.b64encode(b"smile"))
    data = add_text(data, b"chara-ext-asset_:1", base64.b64encode(b"sound"))
    path = await import_file(ada, data)

    files = unpack(await export(ada, path, "format=charx"))

    happy, main = json.loads(files["card.json"])["data"]["assets"]
    assert happy == {**assets[0], "uri": "embeded://assets/emotion/0.png"}
    assert main == {**assets[1], "uri": "embeded://assets/icon/images/main.png"}
    assert files["assets/emotion/0.png"] == b"smile"
    assert files["assets/other/1.bin"] == b"sound"
    assert files["assets/icon/images/main.png"] == png.remove_texts(picture())
    assert await export(ada, path, "format=png") == data


async def test_an_archive_comes_back_with_every_file_at_its_path(ada: Person) -> None:
    icon = {"type": "icon", "uri": "embedded://pictures/face.webp", "name": "me", "ext": "webp"}
    card = {
        "spec": "chara_card_v3",
        "spec_version": "3.0",
        "data": {"name": "Magda", "assets": [{"type": "x", "uri": "embeded://b/c"}, icon]},
    }
    data = archive(card, **{"pictures/face.webp": picture("WEBP"), "b/c": b"c", "notes.txt": b"n"})
    path = await import_file(ada, data)
    before = unpack(data)
    await ada.patch(path, json={"scenario": "A storm."})

    after = unpack(await export(ada, path, "format=charx"))

    fields = json.loads(after.pop("card.json"))["data"]
    before.pop("card.json")
    assert after == before
    assert fields["scenario"] == "A storm."
    assert fields["assets"][1] == icon
    assert opened(await export(ada, path, "format=png")).size == opened(picture()).size


@ON_SQLITE_ALONE
@pytest.mark.parametrize("name", ["syn_v3.charx", "syn_v3.json"])
async def test_a_card_comes_back_with_every_field_as_it_was(ada: Person, name: str) -> None:
    data = (CARDS / name).read_bytes()
    path = await import_file(ada, data)
    files = {"card.json": data} if name.endswith("json") else unpack(data)
    before = json.loads(files.pop("card.json"))
    query = "format=json" if name.endswith("json") else "format=charx"
    back = await export(ada, path, query)
    after = {"card.json": back} if name.endswith("json") else unpack(back)
    assert json.loads(after.pop("card.json")) == before
    assert after == files
