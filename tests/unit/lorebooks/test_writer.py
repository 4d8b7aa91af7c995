"""Exports of lorebooks contain the imported file with its changes. No unknown member is lost."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.errors import AppError
from backend.lorebooks.entries import BookFields, LoreEntry
from backend.lorebooks.formats.fields import BookSource, EntrySource, ReadBook
from backend.lorebooks.formats.reader import read_card_book, read_file
from backend.lorebooks.formats.writer import (
    REQUIRED,
    Sourced,
    book_object,
    lorebook_v3_object,
    world_info_object,
)
from tests.unit.lorebooks.test_reader import AGNAI, KOBOLD_ENTRY, NOVELAI, RISU, SILLYTAVERNS_ENTRY

FIXTURE = Path(__file__).parents[2] / "fixtures" / "cards" / "syn_lorebook_v3.json"
LOREBOOK_V3 = json.loads(FIXTURE.read_bytes())
ODD_WORLD: dict[str, Any] = {
    "name": None,
    "entries": {
        "5": {"uid": 5, "key": "a, b", "order": "9", "probability": None, "vendor": [1]},
        "x": {"uid": "x", "keysecondary": None, "content": None, "position": "4"},
        "7": {"uid": 5, "extensions": {"vendor": 2}, "delayUntilRecursion": False, "key": []},
    },
    "vendor": 10**40,
}
BARE: dict[str, Any] = {
    "name": "Bare",
    "extensions": {"vendor": 3},
    "entries": [
        {"keys": ["stair(s)?"], "use_regex": True, "content": "Rotten.", "priority": 4, "id": "q"},
        {"keys": ["lamp"], "content": "Lit.", "vendor": 1, "extensions": {"other": 2}},
    ],
}


def read(value: object) -> ReadBook:
    found = read_file(json.dumps(value).encode(), given_name="Given")
    for entry, source in found.entries:
        assert msgspec.json.decode(msgspec.json.encode(entry), type=LoreEntry) == entry
        stored = msgspec.json.decode(msgspec.json.encode(source), type=EntrySource)
        assert stored == source
    assert msgspec.json.decode(msgspec.json.encode(found.fields), type=BookFields) == found.fields
    assert msgspec.json.decode(msgspec.json.encode(found.source), type=BookSource) == found.source
    return found


def world(book: ReadBook, *entries: Sourced) -> dict[str, Any]:
    return world_info_object(book.fields, book.source, entries or book.entries)


def v2(book: ReadBook, *entries: Sourced) -> dict[str, Any]:
    return book_object(book.fields, book.source, entries or book.entries)


def v3(book: ReadBook, *entries: Sourced) -> dict[str, Any]:
    return lorebook_v3_object(book.fields, book.source, entries or book.entries)


def entries_of(book: ReadBook) -> list[LoreEntry]:
    return [entry for entry, _ in book.entries]


def test_world_info_comes_back_as_it_was() -> None:
    sound = copy.deepcopy(ODD_WORLD)
    sound["entries"]["x"]["uid"] = 6
    sound["entries"]["7"]["uid"] = 7
    assert world(read(sound)) == sound


def test_entries_without_a_uid_of_their_own_get_one_and_nothing_else_changes() -> None:
    found = world(read(ODD_WORLD))["entries"]
    assert found.keys() == {"5", "x", "7"}
    assert [entry["uid"] for entry in found.values()] == [5, 6, 8]
    for key, entry in found.items():
        assert {**entry, "uid": ODD_WORLD["entries"][key]["uid"]} == ODD_WORLD["entries"][key]


def test_a_character_book_comes_back_as_it_was() -> None:
    assert v2(read(BARE)) == BARE
    assert v3(read(LOREBOOK_V3)) == LOREBOOK_V3
    book = {"name": "B", "entries": [SILLYTAVERNS_ENTRY]}
    assert v2(read(book)) == book
    odd: list[dict[str, Any]] = [{"name": "B"}, {"vendor": 1}, {"name": " B ", "entries": []}]
    for value in odd:
        found = read_card_book(value, given_name="Mara")
        assert v2(found) == {"entries": [], **value}


def test_members_around_a_lorebook_v3_are_kept() -> None:
    value = {**LOREBOOK_V3, "spec_version": "3.0", "vendor": {"kept": True}}
    assert v3(read(value)) == value


def test_files_get_the_members_that_the_format_asks_for() -> None:
    found = v3(read(BARE))["data"]
    for entry, before in zip(found["entries"], BARE["entries"], strict=True):
        assert {**entry, **before} == entry
        assert {*REQUIRED, "use_regex"} <= entry.keys()
    assert [entry["use_regex"] for entry in found["entries"]] == [True, False]


def test_a_changed_entry_changes_only_its_changed_fields() -> None:
    book = read(BARE)
    (stair, stair_source), (lamp, lamp_source) = book.entries
    changed = msgspec.structs.replace(lamp, content="Dark.", order=5, sticky=2, keys=["lamps"])
    _, entry = v2(book, (stair, stair_source), (changed, lamp_source))["entries"]
    before = BARE["entries"][1]
    assert entry == {
        **before,
        "content": "Dark.",
        "insertion_order": 5,
        "keys": ["lamps"],
        "extensions": {"other": 2, "sticky": 2},
    }


def test_patterns_without_slashes_get_them_once_the_entry_was_changed() -> None:
    book = read(BARE)
    (stair, source), lamp = book.entries
    changed = msgspec.structs.replace(stair, exclude_recursion=True)
    found = v2(book, (changed, source), lamp)
    assert found["entries"][0]["keys"] == ["/stair(s)?/"]
    assert entries_of(read(found))[0] == changed


def test_a_field_that_was_cleared_is_cleared_in_the_file() -> None:
    book = read({"entries": [{"keys": ["a"], "case_sensitive": True, "content": ""}]})
    ((entry, source),) = book.entries
    (written,) = v2(book, (msgspec.structs.replace(entry, case_sensitive=None), source))["entries"]
    assert "case_sensitive" not in written
    renamed = msgspec.structs.replace(book.fields, scan_depth=3, mode="keys")
    found = book_object(renamed, book.source, book.entries)
    assert (found["scan_depth"], found["extensions"]) == (3, {"talekeeper": {"mode": "keys"}})
    assert read(found).fields == renamed


def test_a_book_that_was_named_after_something_gets_no_name_in_its_file() -> None:
    book = read({"entries": [{"keys": ["a"]}]})
    assert book.fields.name == "Given"
    assert "name" not in v2(book)
    renamed = msgspec.structs.replace(book.fields, name="Mine")
    assert book_object(renamed, book.source, book.entries)["name"] == "Mine"


def test_sillytavern_s_copy_of_the_card_s_book_goes_once_it_is_out_of_date() -> None:
    value = {
        "entries": {"0": {"uid": 0, "key": ["a"]}, "1": {"uid": 1, "key": ["b"]}},
        "originalData": {"entries": [{"keys": ["a"]}, {"keys": ["b"]}]},
    }
    book = read(value)
    assert world(book) == value
    assert "originalData" not in world(book, book.entries[0])
    first, second = book.entries
    changed = (msgspec.structs.replace(first[0], content="New."), first[1])
    assert "originalData" not in world(book, changed, second)


@pytest.mark.parametrize(
    "value",
    [AGNAI, RISU, NOVELAI, [KOBOLD_ENTRY], ODD_WORLD, BARE, LOREBOOK_V3],
    ids=["agnai", "risu", "novelai", "kobold", "world_info", "bare", "lorebook_v3"],
)
def test_every_format_goes_out_in_every_format_and_comes_in_the_same(value: object) -> None:
    book = read(value)
    for written in (world(book), v2(book), v3(book)):
        again = read(written)
        assert entries_of(again) == entries_of(book)
        assert again.fields.scan_depth == book.fields.scan_depth
        assert again.warnings == []


def test_unknown_members_are_carried_into_other_formats() -> None:
    (agnai,) = v2(read(AGNAI))["entries"]
    assert agnai["priority"] == 3
    (novelai,) = world(read(NOVELAI))["entries"].values()
    assert novelai["extensions"]["searchRange"] == 1000
    assert novelai["extensions"]["contextConfig"]["tokenBudget"] == 1
    (kobold,) = v3(read([KOBOLD_ENTRY]))["data"]["entries"]
    assert kobold["extensions"]["folder"] is None
    bare = world(read(BARE))
    assert bare["extensions"] == {"vendor": 3}
    stair, lamp = bare["entries"].values()
    assert stair["extensions"] == {"priority": 4}
    assert lamp["extensions"] == {"other": 2, "vendor": 1}
    assert v2(read(bare))["entries"][0]["priority"] == 4
    odd = v2(read(ODD_WORLD))
    assert odd["extensions"]["vendor"] == 10**40
    assert [entry["extensions"].get("vendor") for entry in odd["entries"]] == [[1], None, 2]
    (card,) = world(read({"entries": [SILLYTAVERNS_ENTRY]}))["entries"].values()
    assert card["extensions"] == {"display_index": 7, "vendor": 1}


def test_unknown_members_survive_two_conversions() -> None:
    book = read(ODD_WORLD)
    again = world(read(v2(book)))
    assert again["extensions"]["vendor"] == 10**40
    first, _, third = again["entries"].values()
    assert (first["extensions"]["vendor"], third["extensions"]["vendor"]) == ([1], 2)


def test_entries_made_here_are_written_whole() -> None:
    fields = BookFields(name="Made here")
    entry = LoreEntry(title="T", keys=["/a/"], content="C", position="outlet", sticky=3)
    made = [(entry, None), (LoreEntry(keys=["b"]), None)]
    worldly = world_info_object(fields, None, made)
    assert [each["uid"] for each in worldly["entries"].values()] == [0, 1]
    for written in (
        worldly,
        book_object(fields, None, made),
        lorebook_v3_object(fields, None, made),
    ):
        again = read(written)
        assert again.fields == fields
        assert entries_of(again) == [entry, made[1][0]]
    mixed = read(ODD_WORLD)
    found = world(mixed, *mixed.entries, *made)
    uids = [each["uid"] for each in found["entries"].values()]
    assert len(set(uids)) == 5
    assert entries_of(read(found)) == [*entries_of(mixed), entry, made[1][0]]


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(["1", "/a/", "before_char", "lamp, light", 4, 7]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
NAMES = st.sampled_from(
    (
        *("key", "keysecondary", "comment", "content", "order", "position", "disable", "uid"),
        *("keys", "secondary_keys", "insertion_order", "enabled", "use_regex", "case_sensitive"),
        *("extensions", "characterFilter", "triggers", "probability", "sticky", "scanDepth"),
        *("keywords", "entry", "weight", "text", "displayName", "contextConfig", "keyanti"),
        *("secondkey", "insertorder", "alwaysActive", "selectiveLogic", "role", "vendor"),
    )
)
ENTRY = st.dictionaries(NAMES, ODD | st.dictionaries(NAMES, ODD, max_size=4), max_size=8)
ENTRIES = st.lists(ENTRY | ODD, max_size=4) | st.dictionaries(
    st.text(max_size=3), ENTRY | ODD, max_size=4
)
BESIDE = st.dictionaries(
    st.sampled_from(
        ("name", "description", "scan_depth", "token_budget", "extensions", "spec", "vendor")
    ),
    ODD,
    max_size=4,
)
MARKS: list[dict[str, Any]] = [
    {},
    {"kind": "memory"},
    {"type": "risu"},
    {"lorebookVersion": 5},
    {"folders": {}},
    {"spec": "lorebook_v3"},
]


@st.composite
def books(draw: st.DrawFn) -> dict[str, Any]:
    entries: object = draw(ENTRIES)
    found: dict[str, Any] = {**draw(BESIDE), **draw(st.sampled_from(MARKS))}
    return {**found, "entries": entries, "data": entries}


BOOK = books()


@settings(database=None)
@given(value=BOOK | ODD | ENTRIES)
def test_any_value_is_refused_or_survives_an_export(value: object) -> None:
    try:
        book = read(value)
    except AppError:
        return
    for written in (world(book), v2(book), v3(book)):
        encoded = msgspec.json.encode(written)
        again = read_file(encoded, given_name="Given")
        assert len(again.entries) == len(book.entries)
        for (entry, _), (before, _) in zip(again.entries, book.entries, strict=True):
            assert entry == before


@settings(database=None)
@given(value=BOOK)
def test_any_book_of_a_card_comes_back_as_it_was(value: dict[str, Any]) -> None:
    try:
        book = read_card_book(value, given_name="Mara")
    except AppError:
        return
    if book.source.format == "character_book" and not book.skipped and "data" not in value:
        assert v2(book) == value
