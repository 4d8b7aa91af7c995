"""Exports of cards contain the imported file and its changes."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import msgspec
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from backend.characters.cards import png
from backend.characters.cards.model import Asset, Card, CardAsset
from backend.characters.cards.reader import read_card
from backend.characters.cards.writer import ExportSpec, to_charx, to_json, to_png
from backend.characters.errors import CardError, CardLimitError
from backend.characters.pictures import draw_placeholder

PICTURE = draw_placeholder("Magda")

CARD_FIELDS = frozenset(Card.__struct_fields__)
SYNONYMS = (
    *("char_name", "char_persona", "context", "world_scenario", "char_greeting", "greeting"),
    *("example_dialogue", "creatorcomment"),
)

SILLY_TAVERN: dict[str, Any] = {
    "name": "Magda",
    "description": "Keeps the lighthouse.",
    "creatorcomment": "Notes.",
    "tags": ["sea"],
    "talkativeness": "0.5",
    "fav": False,
    "chat": "Magda - 2024-1-1",
    "create_date": "2024-1-1 @10h",
    "spec": "chara_card_v2",
    "spec_version": "2.0",
    "data": {
        "name": "Magda",
        "description": "Keeps the lighthouse.",
        "creator_notes": "Notes.",
        "tags": ["sea"],
        "extensions": {
            "talkativeness": "0.5",
            "fav": False,
            "world": "Lighthouse",
            "depth_prompt": {"prompt": "Be terse.", "depth": 4, "role": "system"},
            "other/tool": {"keep": 1},
        },
        "from_another_tool": [1, None],
        "assets": [{"type": "icon", "uri": "ccdefault:", "name": "main", "ext": "png", "x": 1}],
    },
}


def exported(card: Card, raw: dict[str, Any], spec: ExportSpec = "v3") -> dict[str, Any]:
    value: dict[str, Any] = json.loads(to_json(card, raw, spec))
    return value


def silly_tavern() -> tuple[Card, dict[str, Any]]:
    imported = read_card(json.dumps(SILLY_TAVERN).encode())
    return imported.card, imported.raw


def test_a_character_that_was_never_imported_is_a_strict_v3_card() -> None:
    assert exported(Card(name="Magda"), {}) == {
        "spec": "chara_card_v3",
        "spec_version": "3.0",
        "data": {
            "name": "Magda",
            "description": "",
            "personality": "",
            "scenario": "",
            "first_mes": "",
            "mes_example": "",
            "creator_notes": "",
            "system_prompt": "",
            "post_history_instructions": "",
            "alternate_greetings": [],
            "tags": [],
            "creator": "",
            "character_version": "",
            "extensions": {},
            "group_only_greetings": [],
        },
    }


def test_a_v2_card_says_so_and_has_nothing_of_v3_that_is_empty() -> None:
    card = exported(Card(name="Magda"), {}, "v2")
    assert (card["spec"], card["spec_version"]) == ("chara_card_v2", "2.0")
    assert "group_only_greetings" not in card["data"]


def test_a_nickname_survives_an_export_as_v2() -> None:
    card = Card(name="Magda", nickname="Mags")
    assert read_card(to_json(card, {}, "v2")).card == card


def test_unknown_members_are_exported_at_every_level() -> None:
    out = exported(*silly_tavern())
    assert out["chat"] == "Magda - 2024-1-1"
    assert out["create_date"] == "2024-1-1 @10h"
    assert out["data"]["from_another_tool"] == [1, None]
    assert out["data"]["extensions"] == SILLY_TAVERN["data"]["extensions"]
    assert out["data"]["assets"] == SILLY_TAVERN["data"]["assets"]


def test_changes_win_over_the_source_and_over_its_repetitions() -> None:
    card, raw = silly_tavern()
    card.name, card.description, card.creator_notes, card.tags = "Maud", "", "New.", []
    card.extensions["fav"] = True
    out = exported(card, raw)
    for place in (out, out["data"]):
        assert (place["name"], place["description"], place["tags"]) == ("Maud", "", [])
    assert out["creatorcomment"] == out["data"]["creator_notes"] == "New."
    assert out["fav"] is True


def test_only_known_fields_are_taken_for_repetitions() -> None:
    raw = {"chat": "top", "creation_date": 5, "data": {"name": "M", "chat": "inner"}}
    out = exported(read_card(json.dumps(raw).encode()).card, raw)
    assert (out["chat"], out["creation_date"], out["data"]["chat"]) == ("top", 5, "inner")


def test_a_book_that_was_taken_away_stays_away() -> None:
    raw: dict[str, Any] = {"data": {"name": "M", "character_book": {"entries": []}}}
    assert "character_book" not in exported(Card(name="M"), raw)["data"]


def test_a_known_extension_that_was_taken_away_stays_away() -> None:
    card, raw = silly_tavern()
    card.extensions = {}
    assert exported(card, raw)["data"]["extensions"] == {"other/tool": {"keep": 1}}


def test_the_fields_of_a_v1_card_move_into_data_and_the_rest_stays() -> None:
    imported = read_card(b'{"char_name": "M", "char_greeting": "Hi", "mood": "dry"}')
    out = exported(imported.card, imported.raw)
    assert out["data"]["name"] == "M"
    assert out["data"]["first_mes"] == "Hi"
    assert {name for name in out if name != "data"} == {"spec", "spec_version", "mood"}


def test_a_source_of_nonsense_does_no_harm() -> None:
    raw = {"data": 5, "extensions": "x", "assets": [1, "two"], "spec": []}
    card = Card(name="M", assets=[CardAsset(type="icon")])
    assert read_card(to_json(card, raw)).card == card


def test_the_json_is_laid_out_for_people() -> None:
    assert b'{\n  "spec": "chara_card_v3",\n' in to_json(Card(name="Zoë"), {})
    assert "Zoë".encode() in to_json(Card(name="Zoë"), {})


def test_a_png_carries_both_versions_before_its_picture() -> None:
    card, raw = silly_tavern()
    data = to_png(card, raw, PICTURE)

    kinds = [chunk.kind for chunk in png.iterate_chunks(data)]
    assert kinds[:3] == [b"IHDR", b"tEXt", b"tEXt"]
    v3, v2 = png.find_texts(data).cards
    assert (v3.read_keyword(), v2.read_keyword()) == (b"ccv3", b"chara")
    assert json.loads(png.decode_value(png.TextReader().read(v3))) == exported(card, raw)
    assert json.loads(png.decode_value(png.TextReader().read(v2))) == exported(card, raw, "v2")
    assert all(chunk.has_valid_crc() for chunk in png.iterate_chunks(data))


def test_a_charx_comes_back_with_its_files() -> None:
    assets = [Asset("assets/emotion/images/happy.png", "image/png", PICTURE)]
    card = Card(name="M", assets=[CardAsset(type="emotion", uri="embeded://" + assets[0].path)])
    imported = read_card(to_charx(card, {}, assets=assets))
    assert (imported.card, imported.assets) == (card, assets)
    assert imported.avatar is None


def test_a_new_picture_takes_the_place_of_the_main_icon_of_a_charx() -> None:
    old = CardAsset(type="icon", uri="embeded://assets/old.png", name="main", ext="png")
    side = CardAsset(type="icon", uri="embeded://assets/icon/images/main.png", name="side")
    files = [
        Asset("assets/old.png", "image/png", b"old"),
        Asset("assets/icon/images/main.png", "image/png", b"side"),
    ]

    data = to_charx(Card(name="M", assets=[side, old]), {}, picture=PICTURE, assets=files)
    imported = read_card(data)

    assert imported.avatar == PICTURE
    assert imported.card.assets == [side, old]
    assert {asset.data for asset in imported.assets} == {b"side", imported.avatar}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.namelist()[0] == "card.json"


def test_a_new_picture_does_not_take_the_place_of_one_in_another_format() -> None:
    old = CardAsset(type="icon", uri="embeded://assets/face.webp", name="face", ext="webp")
    files = [
        Asset("assets/face.webp", "image/webp", b"old"),
        Asset("assets/icon/images/main.png", "image/png", b"other"),
    ]

    imported = read_card(to_charx(Card(name="M", assets=[old]), {}, picture=PICTURE, assets=files))

    path = "assets/icon/images/main_.png"
    new = CardAsset(type="icon", uri="embeded://" + path, name="face", ext="png")
    assert imported.card.assets == [new]
    assert {asset.path: asset.data for asset in imported.assets} == {
        "assets/icon/images/main.png": b"other",
        path: PICTURE,
    }


def test_an_asset_outside_the_archive_is_not_written() -> None:
    with pytest.raises(CardError, match="outside the archive"):
        to_charx(Card(name="M"), {}, assets=[Asset("../x", "", b"")])


TEXTS = st.text(max_size=12)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
NAMES = st.text(min_size=1, max_size=20).filter(str.strip)
TAGS = st.text(max_size=8).map(str.strip).filter(bool)
OBJECTS = st.dictionaries(TEXTS, JSON_VALUES, max_size=3)
ASSETS = st.builds(CardAsset, type=TEXTS, uri=TEXTS, name=TEXTS, ext=TEXTS)
SECONDS = st.integers(0, 2**53 - 1)

CARDS = st.builds(
    Card,
    name=NAMES,
    nickname=TEXTS,
    description=TEXTS,
    personality=TEXTS,
    scenario=TEXTS,
    first_mes=TEXTS,
    mes_example=TEXTS,
    creator_notes=TEXTS,
    creator_notes_multilingual=st.dictionaries(TEXTS, TEXTS, max_size=2),
    system_prompt=TEXTS,
    post_history_instructions=TEXTS,
    alternate_greetings=st.lists(TEXTS, max_size=3),
    group_only_greetings=st.lists(TEXTS, max_size=3),
    tags=st.lists(TAGS, max_size=3),
    creator=TEXTS,
    character_version=TEXTS,
    source=st.lists(TEXTS, max_size=2),
    creation_date=SECONDS,
    modification_date=SECONDS,
    extensions=OBJECTS,
    character_book=st.none() | st.dictionaries(TEXTS, JSON_VALUES, min_size=1, max_size=3),
    assets=st.lists(ASSETS, max_size=3),
)

KNOWN = {*CARD_FIELDS, *SYNONYMS, *("spec", "spec_version", "data", "fav", "talkativeness")}
UNKNOWN = st.dictionaries(TEXTS.filter(lambda name: name not in KNOWN), JSON_VALUES, max_size=3)
SPECS: st.SearchStrategy[ExportSpec] = st.sampled_from(("v2", "v3"))


def unknown_fields(raw: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        {name: value for name, value in raw.items() if name not in KNOWN},
        {name: value for name, value in raw["data"].items() if name not in CARD_FIELDS},
    )


@settings(database=None)
@given(card=CARDS, spec=SPECS)
def test_every_card_comes_back_from_json_as_it_was(card: Card, spec: ExportSpec) -> None:
    imported = read_card(to_json(card, {}, spec))
    assert imported.card == card
    assert imported.spec == spec


@settings(database=None)
@given(card=CARDS, top=UNKNOWN, data=UNKNOWN, extensions=OBJECTS, spec=SPECS)
def test_unknown_fields_come_back_through_any_number_of_exports(
    card: Card,
    top: dict[str, Any],
    data: dict[str, Any],
    extensions: dict[str, Any],
    spec: ExportSpec,
) -> None:
    raw = {**top, "data": {**data, "name": "Former", "extensions": extensions}}
    card.extensions = {**extensions, **card.extensions}
    first = read_card(to_json(card, raw, spec))
    second = read_card(to_json(first.card, first.raw, spec))
    assert first.card == second.card == card
    assert first.raw == second.raw
    assert unknown_fields(first.raw) == unknown_fields(raw)


@settings(max_examples=30, deadline=None, database=None)
@given(card=CARDS, raw=UNKNOWN)
def test_every_card_comes_back_from_png_and_charx_as_it_was(
    card: Card, raw: dict[str, Any]
) -> None:
    for imported in (read_card(to_png(card, raw, PICTURE)), read_card(to_charx(card, raw))):
        assert imported.card == card
        assert imported.spec == "v3"
        assert {name: imported.raw[name] for name in raw} == raw


@settings(database=None)
@given(data=st.dictionaries(st.sampled_from(sorted(CARD_FIELDS - {"name"})), JSON_VALUES))
def test_a_card_with_wrong_types_is_read_and_exported(data: dict[str, Any]) -> None:
    raw = {"spec": "chara_card_v3", "spec_version": "3.0", "data": {"name": "M", **data}}
    try:
        card = read_card(msgspec.json.encode(raw)).card
    except CardLimitError:
        reject()  # a value of another type can be a very long text
    assert msgspec.convert(msgspec.to_builtins(card), Card) == card
    assert read_card(to_json(card, raw)).card == card
