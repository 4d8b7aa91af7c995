"""Files of other programs are translated member by member, or refused by their name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.characters.cards.charx import pack
from backend.characters.cards.codec import MAX_NAMES
from backend.characters.cards.model import JSON_VALUES, CardImport
from backend.characters.cards.reader import read_card
from backend.characters.cards.writer import to_json
from backend.characters.errors import CardError, CardLimitError
from tests.unit.characters.test_card_png import text, with_chunks

CASES = Path(__file__).parents[2] / "fixtures" / "foreign_cards"
ICON = b"\x89PNG\r\n\x1a\nan icon"


def read(value: object) -> CardImport:
    return read_card(value if isinstance(value, bytes) else json.dumps(value).encode())


def case(name: str) -> CardImport:
    return read_card((CASES / f"{name}.json").read_bytes())


def refusal(value: object) -> str:
    with pytest.raises(CardError) as caught:
        read(value)
    return caught.value.detail


def test_a_character_of_agnai_has_a_description_of_its_attributes() -> None:
    found = case("agnai_attributes")
    card = found.card
    assert card.description == "species: human\njob: shopkeeper"
    assert (card.name, card.first_mes, card.scenario) == ("Odd", "Come in.", "A shop")
    assert (card.mes_example, card.system_prompt) == ("Odd: hm", "Be Odd")
    assert (card.post_history_instructions, card.tags) == ("Stay odd", ["shop"])
    assert card.alternate_greetings == ["Hi again"]
    assert card.character_book is not None
    assert card.character_book["entries"][0]["entry"] == "The lamp is old."
    assert found.warnings == ["It was translated from Agnai."]


def test_agnai_members_beyond_a_card_are_named_and_kept() -> None:
    found = read(
        {
            "kind": "character",
            "name": "Odd",
            "description": "A blurb.",
            "appearance": "tall",
            "persona": {"kind": "text", "attributes": {"text": ["Keeps a shop."]}},
            "greeting": "Come in.",
            "insert": {"depth": 3, "prompt": "Be odd."},
            "voice": {"service": "none"},
            "avatar": "data:image/png;base64,iVBORw0KGgo=",
            "userId": "u",
        }
    )
    assert (found.card.description, found.card.creator_notes) == ("Keeps a shop.", "A blurb.")
    assert found.card.depth_prompt is not None
    assert (found.card.depth_prompt.prompt, found.card.depth_prompt.depth) == ("Be odd.", 3)
    assert found.avatar == b"\x89PNG\r\n\x1a\n"
    assert "`appearance`, `voice`" in found.warnings[1]
    assert found.card.extensions["agnai"]["voice"] == {"service": "none"}
    again = read(to_json(found.card, found.raw))
    assert (again.card, again.warnings) == (found.card, [])


def test_a_character_of_backyard_has_macros_and_its_lore_as_a_book() -> None:
    card = case("byaf_character").card
    assert (card.name, card.nickname) == ("Odd", "")
    assert card.description == "{{char}} keeps a shop."
    assert card.character_book is not None
    [entry] = card.character_book["entries"]
    assert (entry["keys"], entry["content"]) == (["lamp"], "The lamp is old.")


def test_an_older_export_of_backyard_is_read() -> None:
    older: dict[str, Any] = {
        "character": {
            "aiName": "odd",
            "aiDisplayName": "Odd the Shopkeeper",
            "aiPersona": "{character} keeps {{kept}} and {user}.",
            "customDialogue": "#{user}: hi\n#{character}: hm",
            "firstMessage": "Come in.",
            "basePrompt": "Be odd.",
            "scenario": "A shop",
            "temperature": 0.8,
            "Chat": [{"ChatItems": []}],
        },
        "version": 4,
    }
    found = read(older)
    card = found.card
    assert (card.name, card.nickname) == ("Odd the Shopkeeper", "odd")
    assert card.description == "{{char}} keeps {{kept}} and {{user}}."
    assert card.mes_example == "{{user}}: hi\n{{char}}: hm"
    assert (card.first_mes, card.system_prompt, card.scenario) == ("Come in.", "Be odd.", "A shop")
    assert [each for each in ("`temperature`", "`Chat`") if each not in str(found.warnings)] == []


CHARACTER: dict[str, Any] = {
    "schemaVersion": 1,
    "name": "Odd",
    "displayName": "Odd",
    "persona": "{character} keeps a shop.",
    "loreItems": [],
    "images": [{"path": "images/odd.png", "label": ""}],
}
SCENARIO: dict[str, Any] = {
    "schemaVersion": 1,
    "narrative": "A shop",
    "firstMessages": [{"text": "Come in, {user}."}],
    "exampleMessages": [{"text": "#{character}: hm"}],
    "formattingInstructions": "Be odd.",
    "temperature": 1,
    "messages": [{"type": "human", "text": "secret words"}],
}
OTHER = {**SCENARIO, "narrative": "A street", "firstMessages": [{"text": "Hi."}], "messages": []}


def byaf(**changed: bytes) -> bytes:
    manifest = {
        "schemaVersion": 1,
        "author": {"name": "Ann", "backyardURL": "https://backyard.test/ann"},
        "characters": ["characters/c/character.json"],
        "scenarios": ["scenarios/1.json", "scenarios/2.json"],
    }
    files = {
        "manifest.json": json.dumps(manifest).encode(),
        "characters/c/character.json": json.dumps(CHARACTER).encode(),
        "characters/c/images/odd.png": ICON,
        "scenarios/1.json": json.dumps(SCENARIO).encode(),
        "scenarios/2.json": json.dumps(OTHER).encode(),
    }
    return pack({**files, **changed})


def test_an_archive_of_backyard_is_read_with_its_scenarios_and_pictures() -> None:
    found = read(byaf())
    card = found.card
    assert (card.name, card.scenario, card.first_mes) == ("Odd", "A shop", "Come in, {{user}}.")
    assert card.mes_example == "<START>\n{{char}}: hm"
    assert (card.system_prompt, card.alternate_greetings) == ("Be odd.", ["Hi."])
    assert (card.creator, found.avatar) == ("Ann", ICON)
    assert [asset.path for asset in found.assets] == ["characters/c/images/odd.png"]
    assert "secret words" not in str(found.raw)
    for named in ("messages of its chats", "`narrative`", "`temperature`"):
        assert named in str(found.warnings)


def test_an_archive_of_backyard_has_the_limits_of_any_json() -> None:
    many = b"[" + b"0," * (JSON_VALUES.allowed // 2) + b"0]"
    with pytest.raises(CardLimitError):
        read(byaf(**{"scenarios/1.json": many, "scenarios/2.json": many}))
    assert "none of the characters" in refusal(
        pack({"manifest.json": b'{"characters": ["x.json"]}'})
    )
    assert "scenarios/1.json" in refusal(byaf(**{"scenarios/1.json": b"{"}))


def test_members_in_camel_case_are_read_flat_and_in_data() -> None:
    card = case("camel_v1").card
    assert (card.first_mes, card.mes_example, card.system_prompt) == (
        "Come in.", "Odd: hm", "Be Odd",
    )  # fmt: skip
    data = {"name": "Odd", "firstMes": "Hi", "mesExample": "hm", "postHistoryInstructions": "Stay"}
    nested = read({"spec": "chara_card_v2", "spec_version": "2.0", "data": data})
    assert nested.card.first_mes == "Hi"
    assert nested.card.mes_example == "hm"
    assert nested.card.post_history_instructions == "Stay"
    assert nested.warnings == []


FOREIGN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pygmalion": (
        {"char_name": "Odd", "char_persona": "P", "char_greeting": "G", "world_scenario": "S"},
        {"name": "Odd", "description": "P", "first_mes": "G", "scenario": "S"},
    ),
    "janitor": (
        {"name": "Odd", "personality": "P", "first_message": "G", "example_dialogs": "E"},
        {"personality": "P", "first_mes": "G", "mes_example": "E"},
    ),
    "chub": (
        {
            "node": {
                "fullPath": "ann/odd",
                "topics": ["shop"],
                "definition": {
                    "name": "Odd",
                    "personality": "P",
                    "tavern_personality": "T",
                    "first_message": "G",
                    "example_dialogs": "E",
                    "description": "N",
                    "embedded_lorebook": {"entries": []},
                },
            }
        },
        {
            "description": "P",
            "personality": "T",
            "first_mes": "G",
            "mes_example": "E",
            "creator_notes": "N",
            "creator": "ann",
            "tags": ["shop"],
            "character_book": {"entries": []},
        },
    ),
    "character.ai": (
        {
            "character": {
                "external_id": "x",
                "participant__name": "Odd",
                "title": "T",
                "description": "P",
                "greeting": "G",
                "definition": "{{char}}: hm",
            }
        },
        {
            "name": "Odd",
            "description": "P",
            "first_mes": "G",
            "mes_example": "{{char}}: hm",
            "creator_notes": "T",
        },
    ),
    "risu": (
        {"name": "Odd", "desc": "P", "firstMessage": "G", "globalLore": [{"key": "a"}]},
        {
            "description": "P",
            "first_mes": "G",
            "character_book": {"type": "risu", "data": [{"key": "a"}]},
        },
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_characters_of_other_programs_are_read(name: str) -> None:
    raw, fields = FOREIGN[name]
    for found in (read(raw), read_card(with_chunks(text(json.dumps(raw).encode())))):
        assert {field: getattr(found.card, field) for field in fields} == fields
        assert read(to_json(found.card, found.raw)).card == found.card


def test_a_list_of_one_character_is_read_and_one_of_several_is_refused() -> None:
    card = {"name": "Odd", "description": "Keeps a shop."}
    assert read([card]).card.name == "Odd"
    assert "a list of 2 objects" in refusal([card, card])
    lines = "\n".join(json.dumps(card) for _ in range(2)).encode()
    assert "several JSON objects" in refusal(lines)


CHAT = b'{"user_name": "U", "character_name": "C", "chat_metadata": {}}\n'
OTHERS: list[tuple[object, str, str]] = [
    (json.loads((CASES / "st_group.json").read_text()), "a group of SillyTavern", "members"),
    (CHAT, "a chat", "Import it as a chat"),
    (CHAT + b'{"name": "C", "mes": "Hi", "is_user": false}\n', "a chat", "Import it as a chat"),
    ({"internal": [], "visible": []}, "a chat", ""),
    ({"histories": {"histories": []}}, "a chat", ""),
    ({"name": "C", "greeting": "Hi", "messages": [{"msg": "a"}]}, "a chat", ""),
    ({"type": "risuModule", "name": "M", "lorebook": []}, "a module of RisuAI", "as a lorebook"),
    (b"o\0packed", "a packed RisuAI module", "cannot be imported"),
    ({"entries": {"0": {"key": ["a"], "content": "b"}}}, "a lorebook", "as a lorebook"),
    ({"kind": "memory", "name": "B", "entries": []}, "a lorebook", "as a lorebook"),
    ({"lorebookVersion": 5, "entries": []}, "a lorebook", "as a lorebook"),
    ([{"key": "a", "content": "b"}], "a list of lorebook entries", "as a lorebook"),
    ({"node": {"definition": {"name": "B", "embedded_lorebook": {"entries": [1]}}}},
     "a lorebook of Chub", "as a lorebook"),
    ({"gamestarted": True, "prompt": "x", "worldinfo": []}, "a story of KoboldAI", "as a lorebook"),
    ({"scenarioVersion": 3, "title": "x", "context": []}, "a story of NovelAI", "as a lorebook"),
    ({"name": "P", "prompts": [], "prompt_order": []}, "a chat-completion preset", "as a preset"),
    ({"name": "P", "mainPrompt": "x", "jailbreak": "y"}, "a preset of RisuAI", ""),
    ({"name": "P", "kind": "gen-setting"}, "a preset of Agnai", ""),
    ({"temp": 1, "rep_pen": 1}, "a preset for text completion", ""),
    ({"name": "I", "input_sequence": "a", "output_sequence": "b"}, "an instruct template", ""),
    ({"name": "C", "story_string": "x"}, "a context template", ""),
    ([{"scriptName": "S", "findRegex": "x"}], "a regex script", "as a regex script"),
    ({"name": "Q", "qrList": []}, "a set of quick replies", ""),
    ({"personas": {}, "persona_descriptions": {}}, "a backup of personas", "personas"),
    ({"format": "talekeeper-chronicle", "name": "C"}, "a chronicle", "as a chronicle"),
    ({"format": "talekeeper-campaign", "name": "C"}, "a campaign", "as a campaign"),
    ({"schemaVersion": 1, "characters": [], "scenarios": []}, "the manifest of", ".byaf"),
    (SCENARIO, "a scenario of a Backyard archive", ".byaf"),
    (pack({"campaign.md": b"x"}), "a campaign", "as a campaign"),
    (pack({"one.png": b"x", "two.png": b"y"}), "not a CHARX", "each one separately"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "name", "advice"), OTHERS)
def test_another_kind_of_file_is_refused_by_its_name(value: object, name: str, advice: str) -> None:
    detail = refusal(value)
    assert name in detail
    assert advice in detail


def test_an_unknown_file_that_has_nothing_but_a_name_is_refused_with_its_members() -> None:
    detail = refusal({"name": "Odd", "bio": ["Keeps a shop."], "lore": {"a\x1b`": 1}})
    assert "no description, greeting or examples" in detail
    assert "`bio`, `lore`" in detail
    many = {f"m{number}": "x" * 1_000 for number in range(200)}
    assert f"and {200 - MAX_NAMES} more" in refusal({"name": "Odd", **many})
    assert len(refusal({"name": "Odd", "y" * 100_000: 1, "\x00`\n": 1})) < 500
    assert read({"name": "Odd"}).warnings == []


def test_members_that_become_no_field_are_named() -> None:
    found = read({"name": "Odd", "description": "d", "context": "c", "bio": "b", "x": 1})
    assert found.warnings == [
        "Not used here, and kept for the export: `bio`.",
        "Left out, because its field was read from another member: `context`.",
    ]
    data = {"name": "Odd", "bio": "b"}
    nested = {"spec": "chara_card_v2", "spec_version": "2.0", "data": data, "hint": "h"}
    assert read(nested).warnings == ["Not used here, and kept for the export: `hint`, `bio`."]


def test_a_module_of_risu_in_an_archive_is_named() -> None:
    card = json.dumps({"spec": "chara_card_v3", "data": {"name": "Odd"}}).encode()
    found = read(pack({"card.json": card, "module.risum": b"o\0"}))
    assert "module.risum" in found.warnings[-1]
