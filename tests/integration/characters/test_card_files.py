"""Tests of cards from files and back into files, and of files that are refused."""

from __future__ import annotations

import json
import tempfile
from typing import Any, NoReturn
from urllib.parse import unquote

import msgspec
import pytest
from sqlalchemy import select, text

from backend.characters.cards.charx import unpack
from backend.characters.cards.png import SIGNATURE, find_texts, iterate_chunks
from backend.characters.models import (
    ASSET_DATA,
    ASSET_DESCRIPTION,
    AssetDescription,
    CharacterAsset,
)
from backend.database.engine import Database
from tests.integration.characters.people import (
    CARD_FIXTURES,
    CARDS,
    FOREIGN,
    ON_SQLITE_ALONE,
    Person,
    body,
    card_of,
    count_rows,
)
from tests.integration.characters.pictures import archive, opened, picture
from tests.support.server import problem

pytestmark = pytest.mark.anyio

PNG_CARD = (CARDS / "syn_v2_and_v3_precedence.png").read_bytes()
CHARX_CARD = (CARDS / "syn_v3.charx").read_bytes()
ICON = "assets/icon/images/main.png"
HAPPY = "assets/emotion/images/happy.png"
JSON_CARD = (CARDS / "syn_v3.json").read_bytes()


def drop_pixels(data: bytes) -> bytes:
    """Remove the pixels of a PNG, so that only the card is left."""
    kept = (chunk.whole for chunk in iterate_chunks(data) if chunk.kind != b"IDAT")
    return b"".join((SIGNATURE, *kept))


async def export(person: Person, character_id: str, query: str) -> bytes:
    answer = await person.get(f"/characters/{character_id}/export?{query}")
    assert answer.status_code == 200, answer.text
    return answer.content


@pytest.mark.parametrize("name", CARD_FIXTURES)
async def test_a_card_file_becomes_a_character(ada: Person, name: str) -> None:
    imported = await ada.import_card((CARDS / name).read_bytes())
    character = imported["character"]
    assert (imported["lorebook"] is None) is (character["character_book"] is None)
    assert body(await ada.get(f"/characters/{character['id']}")) == character
    assert character["has_avatar"] is not name.endswith(".json")
    avatar = await ada.get(f"/characters/{character['id']}/avatar")
    assert avatar.status_code == (200 if character["has_avatar"] else 404)


@ON_SQLITE_ALONE
@pytest.mark.parametrize("query", ["format=png", "format=json", "format=json&spec=v2"])
@pytest.mark.parametrize("name", CARD_FIXTURES)
async def test_an_exported_card_imports_as_the_same_card(
    ada: Person, name: str, query: str
) -> None:
    first = (await ada.import_card((CARDS / name).read_bytes()))["character"]
    again = (await ada.import_card(await export(ada, first["id"], query)))["character"]
    assert card_of(again) == card_of(first)
    assert again["id"] != first["id"]


async def test_an_embedded_lorebook_is_shown_with_the_card(ada: Person) -> None:
    imported = await ada.import_card(JSON_CARD)
    character, lorebook = imported["character"], imported["lorebook"]
    assert character["character_book"] == json.loads(JSON_CARD)["data"]["character_book"]
    assert lorebook["id"] == character["lorebook_id"]
    assert (lorebook["name"], lorebook["entry_count"]) == ("Lighthouse", 2)


@ON_SQLITE_ALONE
@pytest.mark.parametrize("name", ["agnai_attributes", "byaf_character"])
async def test_a_character_of_another_program_comes_with_its_book(ada: Person, name: str) -> None:
    imported = await ada.import_card((FOREIGN / f"{name}.json").read_bytes())
    character, lorebook = imported["character"], imported["lorebook"]
    assert (character["name"], lorebook["entry_count"]) == ("Odd", 1)
    [entry] = character["character_book"]["entries"]
    assert (entry["keys"], entry["content"]) == (["lamp"], "The lamp is old.")
    exported = await ada.get(f"/characters/{character['id']}/export?format=json")
    again = await ada.import_card(exported.content)
    assert card_of(again["character"]) == card_of(character)
    assert again["warnings"] == []


async def test_unknown_members_are_exported_after_an_edit(ada: Person) -> None:
    card = json.loads(JSON_CARD)
    card["data"]["vendor_field"] = {"kept": [1, None]}
    card["beside"] = 10**40
    imported = await ada.import_card(json.dumps(card).encode())
    path = f"/characters/{imported['character']['id']}"
    await ada.patch(path, json={"name": "Renamed"})
    back = json.loads((await ada.get(f"{path}/export?format=json")).content)
    assert back["data"]["name"] == "Renamed"
    assert back["data"]["vendor_field"] == {"kept": [1, None]}
    assert back["beside"] == 10**40


async def test_a_png_carries_both_versions_and_the_picture(ada: Person) -> None:
    character = (await ada.import_card(CHARX_CARD))["character"]
    await ada.put(
        f"/characters/{character['id']}/avatar",
        content=picture(width=320, height=200),
        headers={"Content-Type": "image/png"},
    )
    answer = await ada.get(f"/characters/{character['id']}/export")
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["x-content-type-options"] == "nosniff"
    texts = find_texts(answer.content)
    assert [chunk.read_keyword() for chunk in texts.cards] == [b"ccv3", b"chara"]
    assert opened(answer.content).size == (320, 200)


async def test_a_character_without_a_picture_is_exported_with_a_placeholder(ada: Person) -> None:
    made = await ada.make(name="Magda")
    file = await export(ada, made["id"], "format=png")
    assert opened(file).format == "PNG"
    assert card_of((await ada.import_card(file))["character"]) == card_of(made)


@pytest.mark.parametrize(("spec", "name"), [("v2", "chara_card_v2"), ("v3", "chara_card_v3")])
async def test_a_json_card_is_of_the_version_asked_for(ada: Person, spec: str, name: str) -> None:
    made = await ada.make(name="Magda")
    answer = await ada.get(f"/characters/{made['id']}/export?format=json&spec={spec}")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["spec"] == name


@ON_SQLITE_ALONE
@pytest.mark.parametrize(
    ("name", "plain", "full"),
    [
        ("Magda", "Magda", "Magda"),
        ('Ma"gda\r\nSet-Cookie: a=b', "Ma gda Set-Cookie ab", "Ma gda Set-Cookie a=b"),
        ("../../etc/passwd", "etc passwd", "etc passwd"),
        ("C:\\Windows\\me.exe", "C Windows me.exe", "C Windows me.exe"),
        ("Élodie & 灯台守", "Elodie", "Élodie & 灯台守"),
        ("灯台守", "character", "灯台守"),
        ("photo\u202egnp.exe", "photo gnp.exe", "photo gnp.exe"),
        ("nul", "character", "character"),
        ("...", "character", "character"),
        ("M" * 200, "M" * 80, "M" * 80),
    ],
)
async def test_an_export_is_named_after_the_character(
    ada: Person, name: str, plain: str, full: str
) -> None:
    made = await ada.make(name=name)
    answer = await ada.get(f"/characters/{made['id']}/export?format=json")
    kind, ascii_name, extended = answer.headers["content-disposition"].split("; ")
    assert kind == "attachment"
    assert ascii_name == f'filename="{plain}.json"'
    assert extended.startswith("filename*=UTF-8''")
    assert unquote(extended.removeprefix("filename*=UTF-8''")) == f"{full}.json"


async def test_the_files_of_an_archive_are_kept_sealed(ada: Person, database: Database) -> None:
    character = (await ada.import_card(CHARX_CARD))["character"]

    async with database.read() as session:
        assets = list(await session.scalars(select(CharacterAsset).order_by(CharacterAsset.id)))

    sealer = ada.identity.sealer
    described = [
        msgspec.json.decode(
            sealer.open_bytes(ASSET_DESCRIPTION, asset.id, asset.sealed_description),
            type=AssetDescription,
        )
        for asset in assets
    ]
    assert [(asset.path, asset.media_type) for asset in described] == [
        ("assets/icon/images/main.png", "image/png"),
        ("assets/emotion/images/happy.png", "image/png"),
    ]
    assert all(
        sealer.open_bytes(ASSET_DATA, asset.id, asset.sealed_data).startswith(SIGNATURE)
        for asset in assets
    )
    await ada.delete(f"/characters/{character['id']}")
    assert (await count_rows(database))["character_assets"] == 0


async def test_an_archive_comes_back_with_its_files_and_the_picture(ada: Person) -> None:
    imported = (await ada.import_card(CHARX_CARD))["character"]
    await ada.put(
        f"/characters/{imported['id']}/avatar",
        content=picture(width=320, height=200),
        headers={"Content-Type": "image/png"},
    )

    answer = await ada.get(f"/characters/{imported['id']}/export?format=charx")
    again = (await ada.import_card(answer.content))["character"]

    assert answer.headers["content-disposition"].endswith(".charx")
    before, after = unpack(CHARX_CARD), unpack(answer.content)
    assert after.keys() == before.keys()
    assert after[HAPPY] == before[HAPPY]
    assert opened(after[ICON]).size == (320, 200)
    assert card_of(again) == card_of(imported)
    avatar = await ada.get(f"/characters/{again['id']}/avatar")
    assert opened(avatar.content).size == (320, 200)


@ON_SQLITE_ALONE
async def test_a_picture_is_the_main_icon_of_an_archive(ada: Person) -> None:
    first = (await ada.import_card(PNG_CARD))["character"]
    again = (await ada.import_card(await export(ada, first["id"], "format=charx")))["character"]
    icon = {"type": "icon", "uri": f"embeded://{ICON}", "name": "main", "ext": "png"}
    assert card_of(again) == {**card_of(first), "assets": [icon]}
    assert again["has_avatar"] is True


@ON_SQLITE_ALONE
async def test_a_character_that_came_from_no_archive_is_exported_as_one(ada: Person) -> None:
    made = await ada.make(name="Magda")
    file = await export(ada, made["id"], "format=charx")
    assert list(unpack(file)) == ["card.json"]
    assert card_of((await ada.import_card(file))["character"]) == card_of(made)


@ON_SQLITE_ALONE
@pytest.mark.parametrize("query", ["format=png", "format=json"])
async def test_other_files_name_what_an_archive_held_as_the_card_does(
    ada: Person, query: str
) -> None:
    first = (await ada.import_card(CHARX_CARD))["character"]
    again = (await ada.import_card(await export(ada, first["id"], query)))["character"]
    assert [asset["uri"] for asset in again["assets"]] == [
        f"embeded://{ICON}",
        f"embeded://{HAPPY}",
        "https://example.invalid/a.webp",
    ]


async def test_a_card_whose_picture_is_broken_is_imported_with_a_warning(ada: Person) -> None:
    imported = await ada.import_card(drop_pixels(PNG_CARD))
    assert imported["character"]["name"] == "RIGHT_ccv3"
    assert imported["character"]["has_avatar"] is False
    reason = "The picture is damaged, or is not a PNG, JPEG, WebP or GIF."
    assert imported["warnings"] == [f"The card came without its picture: {reason}"]


def nest(depth: int) -> bytes:
    return b'{"name": "Magda", "extensions": ' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"


def make_card(**members: Any) -> bytes:
    return json.dumps({"spec": "chara_card_v2", "data": {"name": "M", **members}}).encode()


HOSTILE: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 422, "unreadable-card"),
    "blank": (b" \n", 422, "unreadable-card"),
    "no card": (b'{"hello": "world"}', 422, "unreadable-card"),
    "no object": (b"[1, 2, 3]", 422, "unreadable-card"),
    "no name": (b'{"description": "nobody"}', 422, "unreadable-card"),
    "broken json": (JSON_CARD[:-20], 422, "unreadable-card"),
    "deep json": (nest(65), 422, "card-limit"),
    "very deep json": (nest(100_000), 422, "card-limit"),
    "binary": (bytes(range(256)), 422, "unreadable-card"),
    "lorebook": ((CARDS / "syn_lorebook_v3.json").read_bytes(), 422, "unreadable-card"),
    "group": ((FOREIGN / "st_group.json").read_bytes(), 422, "unreadable-card"),
    "several lines": (
        b'{"user_name": "U", "character_name": "C"}\n{"mes": "x"}',
        422,
        "unreadable-card",
    ),
    "long text": (make_card(scenario="s" * 200_001), 422, "card-limit"),
    "yaml tags": (b"name: !!python/object/apply:os.system [id]", 422, "unreadable-card"),
    "yaml bomb": (
        b"a: &a [x, x, x, x, x, x, x, x]\n"
        + b"".join(
            b"%c: &%c [%s]\n" % (b + 1, b + 1, b", ".join([b"*%c" % b] * 8))
            for b in range(ord("a"), ord("j"))
        ),
        422,
        "card-limit",
    ),
    "plain picture": (picture(), 422, "no-card-in-image"),
    "jpeg": (picture("JPEG"), 422, "no-card-in-image"),
    "cut png": (PNG_CARD[:-30], 422, "unreadable-card"),
    "cut charx": (CHARX_CARD[:-30], 422, "unreadable-card"),
    "charx without a card": (archive({"readme.txt": b"hi"}), 422, "unreadable-card"),
    "charx that climbs": (
        archive({"card.json": JSON_CARD, "../../evil.png": b"x"}),
        422,
        "unreadable-card",
    ),
    "charx bomb": (
        archive({"card.json": JSON_CARD, "assets/zeros.png": bytes(30_000_000)}),
        422,
        "card-limit",
    ),
    "file over the limit": (bytes(20 * 1024 * 1024 + 1), 413, "too-large"),
    "body over the limit": (bytes(22 * 1024 * 1024), 413, "too-large"),
}


@ON_SQLITE_ALONE
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_file_that_is_refused_leaves_nothing_behind(
    ada: Person, database: Database, name: str
) -> None:
    data, status, slug = HOSTILE[name]
    before = await count_rows(database)
    refusal = problem(await ada.upload(data), status, slug)
    assert refusal["detail"]
    assert await count_rows(database) == before


async def test_an_import_that_fails_half_way_leaves_nothing_behind(
    ada: Person, database: Database
) -> None:
    async with database.write() as session:
        await session.execute(text("DROP TABLE avatars"))
    before = await count_rows(database)
    answer = await ada.upload(CHARX_CARD)
    assert answer.status_code >= 500
    assert await count_rows(database) == before


@ON_SQLITE_ALONE
@pytest.mark.parametrize(
    ("options", "status", "slug"),
    [
        ({"json": {"name": "Magda"}}, 415, "unsupported-media-type"),
        ({"data": {"file": "in a plain form"}}, 415, "unsupported-media-type"),
        ({"files": {"card": JSON_CARD}}, 422, "validation-failed"),
        ({"files": [("file", JSON_CARD), ("file", JSON_CARD)]}, 422, "validation-failed"),
        ({"files": [("file", b"x")] * 17}, 400, "bad-request"),
        (
            {
                "content": b"--x\r\ncut",
                "headers": {"Content-Type": "multipart/form-data; boundary=x"},
            },
            400,
            "bad-request",
        ),
        (
            {"content": JSON_CARD, "headers": {"Content-Type": "multipart/form-data"}},
            400,
            "bad-request",
        ),
    ],
    ids=["json", "plain form", "no file", "two files", "many parts", "cut", "no boundary"],
)
async def test_a_card_comes_as_one_file_in_a_form(
    ada: Person, database: Database, options: dict[str, Any], status: int, slug: str
) -> None:
    before = await count_rows(database)
    problem(await ada.post("/characters/import", **options), status, slug)
    assert await count_rows(database) == before


@ON_SQLITE_ALONE
async def test_an_upload_is_never_written_to_a_temporary_file(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        pytest.fail("a temporary file was made")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    padded = json.loads(JSON_CARD) | {"padding": "p" * 3_000_000}

    imported = await ada.import_card(json.dumps(padded).encode())

    assert imported["character"]["name"] == "RIGHT_ccv3"
