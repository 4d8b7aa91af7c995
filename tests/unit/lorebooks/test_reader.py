"""Readers of lorebooks: formats are recognised by their content, and odd values are converted."""

from __future__ import annotations

import base64
import json
from functools import partial
from typing import Any, get_args

import pytest

from backend.characters.cards.charx import pack
from backend.errors import TooLargeError
from backend.lorebooks import entries as limits
from backend.lorebooks.entries import BookFields, CharacterFilter, LoreEntry, Position
from backend.lorebooks.errors import LoreFileError, LoreLimitError
from backend.lorebooks.formats.fields import ReadBook
from backend.lorebooks.formats.reader import read_card_book, read_file

SILLYTAVERNS_ENTRY: dict[str, Any] = {
    "id": 3,
    "keys": ["lamp", "lens"],
    "secondary_keys": ["broken"],
    "comment": "The lens",
    "content": "Cracked.",
    "constant": False,
    "selective": True,
    "insertion_order": 42,
    "enabled": False,
    "position": "before_char",
    "use_regex": True,
    "extensions": {
        "position": 4,
        "exclude_recursion": True,
        "display_index": 7,
        "probability": 60,
        "useProbability": True,
        "depth": 9,
        "selectiveLogic": 2,
        "outlet_name": "",
        "group": "glass",
        "group_override": True,
        "group_weight": 50,
        "prevent_recursion": True,
        "delay_until_recursion": 3,
        "scan_depth": 6,
        "match_whole_words": False,
        "use_group_scoring": True,
        "case_sensitive": True,
        "automation_id": "a",
        "role": 2,
        "vectorized": True,
        "sticky": 1,
        "cooldown": 2,
        "delay": 3,
        "match_persona_description": True,
        "match_scenario": False,
        "triggers": ["quiet"],
        "ignore_budget": True,
        "vendor": 1,
    },
}
AGNAI: dict[str, Any] = {
    "kind": "memory",
    "name": "Harbour",
    "description": "Of ships.",
    "entries": [
        {
            "name": "Lamp",
            "entry": "The lamp is lit.",
            "keywords": ["lamp", "light"],
            "weight": 7,
            "priority": 3,
            "enabled": False,
        }
    ],
}
RISU: dict[str, Any] = {
    "type": "risu",
    "ver": 1,
    "data": [
        {
            "key": "lamp, light",
            "secondkey": "storm,gale",
            "selective": True,
            "insertorder": 12,
            "alwaysActive": True,
            "comment": "Lamp",
            "content": "@@depth 2\nThe lamp is lit.",
            "mode": "normal",
            "activationPercent": 30,
        },
        {"key": "f", "mode": "folder", "comment": "A folder", "content": "", "insertorder": 100},
        {"key": "/a,b{1,2}/i", "content": "A pattern.", "insertorder": 1},
    ],
}
NOVELAI: dict[str, Any] = {
    "lorebookVersion": 5,
    "entries": [
        {
            "text": "The lamp is lit.",
            "displayName": "Lamp",
            "keys": ["lamp", "/l[io]ght/"],
            "forceActivation": True,
            "enabled": False,
            "contextConfig": {"budgetPriority": 400, "tokenBudget": 1},
            "searchRange": 1000,
        }
    ],
    "settings": {"orderByKeyLocations": False},
    "categories": [],
}
KOBOLD_ENTRY: dict[str, Any] = {
    "key": "lamp,light",
    "keysecondary": "",
    "keyanti": "dark, night",
    "content": "The lamp is lit.",
    "comment": "Lamp",
    "folder": None,
    "selective": False,
    "constant": False,
    "probability": "80",
    "wigroup": "",
    "widisabled": False,
}


def read(value: object, **options: Any) -> ReadBook:
    return read_file(json.dumps(value).encode(), given_name="Given", **options)


def one(value: object) -> LoreEntry:
    ((entry, _),) = read(value).entries
    return entry


def world(**entry: Any) -> LoreEntry:
    return one({"entries": {"0": {"key": ["lamp"], **entry}}})


def book(**entry: Any) -> LoreEntry:
    return one({"entries": [{"keys": ["lamp"], **entry}]})


def test_world_info_s_entry_is_read_whole() -> None:
    entry = world(
        uid=0,
        keysecondary=["broken"],
        comment="The lens",
        content="Cracked.",
        constant=True,
        vectorized=True,
        selective=False,
        selectiveLogic=1,
        order=-3,
        position=7,
        disable=True,
        ignoreBudget=True,
        excludeRecursion=True,
        preventRecursion=True,
        delayUntilRecursion=2,
        probability=12.5,
        useProbability=False,
        depth=0,
        role=2,
        group="glass",
        groupOverride=True,
        groupWeight=1,
        scanDepth=0,
        caseSensitive=False,
        matchWholeWords=True,
        useGroupScoring=False,
        sticky=0,
        cooldown=2,
        delay=3,
        characterFilter={"isExclude": True, "names": ["mara.png", "Jan"], "tags": ["t1"]},
        triggers=["swipe", "no such", "normal"],
        matchPersonaDescription=True,
        matchCharacterDescription=True,
        matchCharacterPersonality=True,
        matchCharacterDepthPrompt=True,
        matchScenario=True,
        matchCreatorNotes=True,
        outletName="tower",
        automationId="a",
    )
    assert entry == LoreEntry(
        title="The lens",
        content="Cracked.",
        keys=["lamp"],
        secondary_keys=["broken"],
        selective=False,
        logic="not_all",
        enabled=False,
        constant=True,
        vectorized=True,
        order=-3,
        position="outlet",
        depth=0,
        role="assistant",
        outlet="tower",
        ignore_budget=True,
        exclude_recursion=True,
        prevent_recursion=True,
        delay_until_recursion=2,
        probability=12.5,
        use_probability=False,
        group="glass",
        group_override=True,
        group_weight=1,
        use_group_scoring=False,
        scan_depth=0,
        case_sensitive=False,
        match_whole_words=True,
        sticky=0,
        cooldown=2,
        delay=3,
        character_filter=CharacterFilter(is_exclude=True, names=["mara.png", "Jan"], tags=["t1"]),
        triggers=["normal", "swipe", "other"],
        match_fields=[
            "persona_description",
            "character_description",
            "character_personality",
            "character_depth_prompt",
            "scenario",
            "creator_notes",
        ],
        automation_id="a",
    )


def test_missing_members_of_world_info_have_defaults() -> None:
    assert world() == LoreEntry(keys=["lamp"], selective=False)


@pytest.mark.parametrize("number", range(8))
def test_world_info_s_positions_are_numbered_in_their_order(number: int) -> None:
    position = get_args(Position)[number]
    assert world(position=number).position == position
    assert book(position="before_char", extensions={"position": number}).position == position


@pytest.mark.parametrize(
    ("member", "value", "field", "expected"),
    [
        ("order", "50", "order", 50),
        ("order", "fifty", "order", 100),
        ("order", None, "order", 100),
        ("order", 1e300, "order", 1_000_000),
        ("order", True, "order", 100),
        ("depth", "2.0", "depth", 2),
        ("depth", -5, "depth", 0),
        ("position", "at_depth", "position", "at_depth"),
        ("position", 99, "position", "before_character"),
        ("position", [4], "position", "before_character"),
        ("role", "user", "role", "user"),
        ("role", None, "role", "system"),
        ("constant", "false", "constant", False),
        ("constant", 1, "constant", True),
        ("disable", "true", "enabled", False),
        ("probability", "101", "probability", 100),
        ("probability", "50%", "probability", 100),
        ("delayUntilRecursion", True, "delay_until_recursion", 1),
        ("delayUntilRecursion", False, "delay_until_recursion", 0),
        ("scanDepth", "", "scan_depth", None),
        ("caseSensitive", None, "case_sensitive", None),
        ("sticky", "3", "sticky", 3),
        ("key", "lamp, light,,", "keys", ["lamp", "light"]),
        ("key", "/a,b/", "keys", ["/a,b/"]),
        ("key", None, "keys", []),
        ("key", [1, "", " ", None, "lamp"], "keys", ["1", "lamp"]),
        ("key", {"a": "lamp"}, "keys", ["lamp"]),
        ("content", None, "content", ""),
        ("content", ["one", "two"], "content", "one\ntwo"),
        ("content", 5, "content", "5"),
        ("comment", 5, "title", "5"),
        ("characterFilter", [], "character_filter", CharacterFilter()),
        ("triggers", "swipe", "triggers", ["swipe"]),
    ],
)
def test_values_of_the_wrong_kind_are_bent(
    member: str, value: object, field: str, expected: object
) -> None:
    assert getattr(world(**{member: value}), field) == expected


def test_changed_values_are_reported_once_with_their_number() -> None:
    entries = {str(n): {"key": ["lamp"], "order": "fifty"} for n in range(3)}
    assert read({"entries": entries}).warnings == [
        "A value of `order` could not be used, so the default is used (3 times)."
    ]


def test_sillytavern_s_extensions_win_over_the_entry_itself() -> None:
    entry = one({"name": "B", "entries": [SILLYTAVERNS_ENTRY]})
    assert entry == LoreEntry(
        title="The lens",
        content="Cracked.",
        keys=["lamp", "lens"],
        secondary_keys=["broken"],
        logic="not_any",
        enabled=False,
        vectorized=True,
        order=42,
        position="at_depth",
        depth=9,
        role="assistant",
        ignore_budget=True,
        exclude_recursion=True,
        prevent_recursion=True,
        delay_until_recursion=3,
        probability=60,
        group="glass",
        group_override=True,
        group_weight=50,
        use_group_scoring=True,
        scan_depth=6,
        case_sensitive=True,
        match_whole_words=False,
        sticky=1,
        cooldown=2,
        delay=3,
        triggers=["quiet"],
        match_fields=["persona_description"],
        automation_id="a",
    )


@pytest.mark.parametrize(
    ("members", "keys"),
    [
        ({}, ["stair(s)?"]),
        ({"use_regex": True}, ["/stair(s)?/"]),
        ({"use_regex": True, "case_sensitive": False}, ["/stair(s)?/i"]),
        ({"use_regex": True, "extensions": {"vendor": 1}}, ["/stair(s)?/"]),
        ({"use_regex": True, "extensions": {"useProbability": True}}, ["stair(s)?"]),
        ({"use_regex": True, "keys": ["/a/i", "b/c"]}, ["/a/i", "/b\\/c/"]),
    ],
)
def test_keys_are_patterns_if_use_regex_is_set(members: dict[str, Any], keys: list[str]) -> None:
    assert book(**{"keys": ["stair(s)?"], **members}).keys == keys


def test_a_book_says_things_of_itself() -> None:
    fields: dict[str, Any] = {
        "name": " Harbour ",
        "description": "Of ships.",
        "scan_depth": 4,
        "token_budget": "512",
        "recursive_scanning": False,
        "extensions": {"talekeeper": {"mode": "meaning", "case_sensitive": True}},
    }
    assert read(AGNAI).fields == BookFields(name="Harbour", description="Of ships.")
    bare: dict[str, Any] = {**fields, "entries": []}
    for value in (bare, {"spec": "lorebook_v3", "data": fields}):
        assert read(value).fields == BookFields(
            name="Harbour",
            description="Of ships.",
            scan_depth=4,
            token_budget=512,
            recursive_scanning=False,
            mode="meaning",
            case_sensitive=True,
        )
    assert read({"entries": {}}).fields == BookFields(name="Given")


def test_risu_is_read() -> None:
    found = read(RISU)
    assert (found.source.format, found.skipped, len(found.warnings)) == ("risu", 1, 1)
    (lamp, _), (pattern, _) = found.entries
    assert lamp == LoreEntry(
        title="Lamp",
        content="@@depth 2\nThe lamp is lit.",
        keys=["lamp", "light"],
        secondary_keys=["storm", "gale"],
        selective=True,
        order=12,
        constant=True,
        probability=30,
    )
    assert pattern.keys == ["/a,b{1,2}/i"]


LAMP = partial(LoreEntry, title="Lamp", content="The lamp is lit.")
KOBOLD_LAMP = LAMP(
    keys=["lamp", "light"], secondary_keys=["dark", "night"], logic="not_any", probability=80
)


@pytest.mark.parametrize(
    ("value", "name", "entry"),
    [
        (AGNAI, "agnai", LAMP(keys=["lamp", "light"], order=7, enabled=False)),
        (
            NOVELAI,
            "novelai",
            LAMP(keys=["lamp", "/l[io]ght/"], constant=True, enabled=False, order=400),
        ),
        ([KOBOLD_ENTRY], "kobold", KOBOLD_LAMP),
        ({"folders": {}, "entries": [KOBOLD_ENTRY]}, "kobold", KOBOLD_LAMP),
        ({"folders": {}, "entries": {"5": KOBOLD_ENTRY}}, "kobold", KOBOLD_LAMP),
    ],
)
def test_entries_of_other_programs_are_read(value: object, name: str, entry: LoreEntry) -> None:
    assert read(value).source.format == name
    assert one(value) == entry


def test_kobold_s_keys_of_both_kinds_are_both_kept() -> None:
    entry = one([{**KOBOLD_ENTRY, "keysecondary": "storm", "selective": True}])
    assert (entry.secondary_keys, entry.logic) == (["storm"], "and_any")
    assert entry.content == "@@exclude_keys dark,night\nThe lamp is lit."


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"entries": {"0": {"key": ["a"]}}}, "world_info"),
        ({"entries": [{"key": ["a"], "content": ""}]}, "world_info"),
        ({"entries": {}}, "world_info"),
        ({"entries": []}, "character_book"),
        ({"entries": [{"keys": ["a"], "content": ""}]}, "character_book"),
        ({"entries": {"0": {"keys": ["a"]}}}, "character_book"),
        ({"spec": "lorebook_v3", "data": {"entries": []}}, "character_book"),
        ({"spec": "lorebook_v3", "data": {}}, "character_book"),
        ({"entries": [{"keywords": ["a"], "entry": ""}]}, "agnai"),
        ({"entries": [{"keys": ["a"], "text": ""}]}, "novelai"),
        ({"type": "risu", "data": []}, "risu"),
        ({"entries": [{"key": "a, b"}]}, "kobold"),
        ([], "kobold"),
    ],
)
def test_formats_are_recognised_by_their_content(value: object, found: str) -> None:
    assert read(value).source.format == found


@pytest.mark.parametrize(
    "value",
    [1, "text", None, {}, {"name": "Mara"}, {"entries": 5}, {"entries": {"0": {"vendor": 1}}}],
)
def test_a_value_that_is_no_lorebook_is_refused(value: object) -> None:
    with pytest.raises(LoreFileError, match=r"no lorebook|neither"):
        read(value)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b'{"entries": NaN}', b"GIF89a"])
def test_a_broken_file_is_refused(data: bytes) -> None:
    with pytest.raises(LoreFileError):
        read_file(data, given_name="Given")


def test_a_byte_order_mark_is_passed_over() -> None:
    data = b"\xef\xbb\xbf" + json.dumps(AGNAI).encode()
    assert read_file(data, given_name="Given").source.format == "agnai"


def test_values_that_are_no_entries_are_skipped_and_reported() -> None:
    found = read({"entries": {"0": {"key": ["lamp"]}, "1": None, "2": [1], "3": "x"}})
    assert (len(found.entries), found.skipped) == (1, 3)
    assert found.warnings == [
        "Something among the entries was no entry and was left out (3 times)."
    ]


def test_limits_name_the_allowed_and_the_found_amount() -> None:
    with pytest.raises(LoreLimitError) as caught:
        world(content="c" * 200_001)
    assert (caught.value.allowed, caught.value.found) == (200_000, 200_001)
    deep: Any = []
    for _ in range(70):
        deep = [deep]
    with pytest.raises(LoreLimitError, match="levels of nesting"):
        read({"entries": {"0": {"key": deep}}})
    with pytest.raises(TooLargeError):
        read_file(b" " * (20 * 1024 * 1024 + 1), given_name="Given")


def test_a_book_has_room_for_so_many_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ENTRIES", 2)
    assert len(read({"entries": [{"keys": ["a"]}] * 2}).entries) == 2
    with pytest.raises(LoreLimitError, match="3 entries; 2 are allowed"):
        read({"entries": [{"keys": ["a"]}] * 3})


def test_names_and_keys_that_are_too_long_are_cut_here_and_kept_in_the_source() -> None:
    raw = {"key": ["k" * 2_001, *(f"k{n}" for n in range(201))], "comment": "t" * 501}
    found = read({"entries": {"0": raw}})
    ((entry, source),) = found.entries
    assert (len(entry.keys), len(entry.title)) == (200, 500)
    assert source.raw == raw
    assert len(found.warnings) == 2


CARD = {"name": "Mara", "description": "", "character_book": {"entries": [SILLYTAVERNS_ENTRY]}}
V2 = {"spec": "chara_card_v2", "spec_version": "2.0", "data": CARD}


def png_of(card: object) -> bytes:
    text = b"chara\0" + base64.b64encode(json.dumps(card).encode())
    chunks = [(b"IHDR", b"\0" * 13), (b"tEXt", text), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(body).to_bytes(4, "big") + kind + body + b"\0\0\0\0" for kind, body in chunks
    )


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(V2).encode(),
        json.dumps(CARD).encode(),
        pack({"card.json": json.dumps(V2).encode()}),
        png_of(V2),
    ],
)
def test_the_book_of_a_whole_card_is_read(data: bytes) -> None:
    found = read_file(data, given_name="file")
    assert (found.fields.name, len(found.entries)) == ("Mara", 1)


def test_a_card_without_a_book_is_refused() -> None:
    with pytest.raises(LoreFileError, match="contains no lorebook"):
        read({**V2, "data": {**CARD, "character_book": None}})
    with pytest.raises(LoreFileError, match="The card has no name"):
        read_file(png_of({"spec": "nothing"}), given_name="x")


@pytest.mark.parametrize("value", [{"name": "B"}, {"entries": 5}, {"vendor": 1}])
def test_a_card_s_book_of_any_shape_is_a_book(value: dict[str, Any]) -> None:
    assert read_card_book(value, given_name="Mara").entries == []


@pytest.mark.parametrize(
    ("value", "name", "left_out"),
    [
        (
            {"type": "risuModule", "name": "M", "lorebook": RISU["data"], "trigger": [1]},
            "M",
            "`trigger`",
        ),
        (
            {"type": "risuModule", "module": {"name": "M", "lorebook": RISU["data"], "cjs": "x"}},
            "M",
            "`cjs`",
        ),
        ({"gamestarted": True, "prompt": "x", "worldinfo": [KOBOLD_ENTRY]}, "Given", "`prompt`"),
        ({"scenarioVersion": 3, "title": "T", "prompt": "x", "lorebook": NOVELAI}, "T", "`prompt`"),
        (
            {"node": {"definition": {"name": "N", "x": 1, "embedded_lorebook": AGNAI}}},
            "Harbour",
            "`x`",
        ),
    ],
)
def test_the_lore_in_a_file_with_more_is_read_and_the_rest_named(
    value: object, name: str, left_out: str
) -> None:
    found = read(value)
    assert found.fields.name == name
    assert "The lamp is lit." in found.entries[0][0].content
    assert left_out in found.warnings[-1]
    assert "trigger" not in found.source.raw


def test_the_lore_of_another_program_s_character_is_read() -> None:
    agnai = {"name": "Odd", "persona": {"attributes": {"a": ["b"]}}, "characterBook": AGNAI}
    assert one(agnai).keys == ["lamp", "light"]
    backyard = {"displayName": "Odd", "persona": "p", "loreItems": [{"key": "a, b", "value": "c"}]}
    assert (one(backyard).keys, one(backyard).content) == (["a", "b"], "c")


def test_a_list_is_read_by_the_format_of_its_entries() -> None:
    assert one([{"keywords": ["a"], "entry": "b"}]).content == "b"
    assert one([{"uid": 0, "key": ["a"], "content": "b", "order": 3}]).order == 3


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"name": "G", "members": ["a.png"], "chat_id": "1"}, "a group of SillyTavern"),
        ({"prompts": [], "prompt_order": []}, "a chat-completion preset"),
        ([{"scriptName": "S", "findRegex": "x"}], "a regex script"),
        ({"user_name": "U", "character_name": "C"}, "a chat"),
    ],
)
def test_another_kind_of_file_is_refused_by_its_name(value: object, name: str) -> None:
    with pytest.raises(LoreFileError, match=f"This is {name}, not a lorebook"):
        read(value)
