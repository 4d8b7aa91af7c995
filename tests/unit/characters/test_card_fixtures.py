"""Each card of tests/fixtures/cards, made from the specifications for these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.characters.cards.model import CardAsset, CardImport, DepthPrompt
from backend.characters.cards.reader import read_card
from backend.characters.errors import CardError

CARDS = Path(__file__).parents[2] / "fixtures" / "cards"

DESCRIPTION = "{{char}} keeps the lighthouse. Naïve café — ☕ test of UTF-8."


def read(name: str) -> CardImport:
    return read_card((CARDS / name).read_bytes())


def test_a_flat_v1_card_is_read() -> None:
    imported = read("syn_v1.json")

    assert imported.spec == "v1"
    assert imported.card.name == "Magda V1"
    assert imported.card.description == DESCRIPTION
    assert imported.card.personality == "dry, patient"
    assert imported.card.scenario == "A storm traps {{user}} at the lighthouse."
    assert imported.card.first_mes.startswith("*The door bangs open.*")
    assert imported.card.mes_example.count("<START>") == 2
    assert imported.card.extensions == {}
    assert imported.card.character_book is None
    assert imported.avatar is None
    assert imported.warnings == []


def test_every_field_of_a_v3_card_is_read() -> None:
    imported = read("syn_v3.json")
    card = imported.card

    assert imported.spec == "v3"
    assert card.name == "RIGHT_ccv3"
    assert card.nickname == "Mags"
    assert card.creator_notes == "Synthetic interop fixture."
    assert card.creator_notes_multilingual == {
        "en": "Synthetic interop fixture.",
        "fr": "Fixture synthétique.",
    }
    assert card.system_prompt == "{{original}}\nKeep replies under 200 words."
    assert card.post_history_instructions == "Stay in scene."
    assert card.alternate_greetings == ['*Fog.* "You\'re late."', '*Dawn.* "Tea?"']
    assert card.group_only_greetings == ['*A crowd.* "All of you, inside."']
    assert card.tags == ["test", "synthetic"]
    assert card.creator == "fixture"
    assert card.character_version == "1.0"
    assert card.source == ["https://example.invalid/card/1"]
    assert (card.creation_date, card.modification_date) == (1_700_000_000, 1_700_000_001)
    assert card.extensions["vendor/unknown"] == {"keep": ["me", 1, None]}
    assert card.depth_prompt == DepthPrompt("Speak tersely.", depth=4, role="system")
    assert card.character_book is not None
    assert card.character_book == imported.raw["data"]["character_book"]
    assert [entry["id"] for entry in card.character_book["entries"]] == [0, "str-id"]
    assert card.assets == [CardAsset(type="icon", uri="ccdefault:", name="main", ext="png")]
    assert imported.warnings == []


def test_the_v3_text_of_a_png_wins_over_the_v2_text_beside_it() -> None:
    imported = read("syn_v2_and_v3_precedence.png")

    assert imported.spec == "v3"
    assert imported.card.name == "RIGHT_ccv3"
    assert imported.card.nickname == "Mags"
    assert imported.avatar == (CARDS / "syn_v2_and_v3_precedence.png").read_bytes()
    assert imported.warnings == []


def test_a_png_keyword_is_found_in_any_letter_case() -> None:
    imported = read("syn_v2_only_mixedcase_Chara.png")

    assert imported.spec == "v2"
    assert imported.card.name == "Magda"
    assert imported.card.description == DESCRIPTION
    assert imported.card.group_only_greetings == []
    assert imported.warnings == []


def test_a_charx_brings_its_assets_and_its_main_icon() -> None:
    imported = read("syn_v3.charx")

    assert imported.spec == "v3"
    assert imported.card.name == "Magda CHARX"
    assert [(asset.path, asset.media_type) for asset in imported.assets] == [
        ("assets/icon/images/main.png", "image/png"),
        ("assets/emotion/images/happy.png", "image/png"),
    ]
    assert imported.avatar == imported.assets[0].data
    assert imported.assets[0].data.startswith(b"\x89PNG")
    assert [asset.type for asset in imported.card.assets] == ["icon", "emotion", "x_vendor"]
    assert imported.warnings == ["The file does not contain every asset of the card: 1 is missing."]


def test_a_lorebook_is_refused_with_words_for_it() -> None:
    with pytest.raises(CardError, match="This is a lorebook, not a character card") as caught:
        read("syn_lorebook_v3.json")

    assert caught.value.status == 422
    assert caught.value.slug == "unreadable-card"
