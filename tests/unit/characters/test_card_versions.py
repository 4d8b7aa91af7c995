from __future__ import annotations

import json
from typing import Any

import pytest

from backend.characters.cards.model import (
    CARD_BYTES,
    LIST_ITEMS,
    NAME,
    TAG,
    TAGS,
    TEXT,
    Card,
    CardImport,
    DepthPrompt,
)
from backend.characters.cards.reader import normalise
from backend.characters.errors import CardError, CardLimitError


def v2(**data: Any) -> CardImport:
    return normalise({"spec": "chara_card_v2", "spec_version": "2.0", "data": data})


def v3(version: object = "3.0", **data: Any) -> CardImport:
    return normalise({"spec": "chara_card_v3", "spec_version": version, "data": data})


@pytest.mark.parametrize(
    ("value", "text"),
    [(7, "7"), (1.5, "1.5"), (True, "true"), ({"a": "é"}, '{"a": "é"}'), (["a", "b"], "a\nb")],
)
def test_a_description_of_another_type_becomes_text_with_a_warning(
    value: object, text: str
) -> None:
    found = v2(name="Magda", description=value)
    assert found.card.description == text
    assert [warning for warning in found.warnings if "`description`" in warning]


def test_null_is_an_empty_text_and_says_so() -> None:
    found = v2(name="Magda", scenario=None)
    assert found.card.scenario == ""
    assert found.warnings == ["`scenario` was null and is now empty."]


def test_null_in_an_optional_field_needs_no_warning() -> None:
    found = v3(
        name="Magda",
        character_book=None,
        nickname=None,
        source=None,
        assets=None,
        creation_date=None,
        creator_notes_multilingual=None,
        group_only_greetings=None,
    )

    assert found.card == Card(name="Magda")
    assert found.warnings == []


def test_tags_in_one_text_are_split_at_commas() -> None:
    found = v2(name="Magda", tags="sea, storm ,, lighthouse")
    assert found.card.tags == ["sea", "storm", "lighthouse"]
    assert found.warnings == ["`tags` was a single text and was split at its commas."]


def test_a_greeting_that_is_no_list_is_a_list_of_one() -> None:
    assert v2(name="M", alternate_greetings="Hello, you.").card.alternate_greetings == [
        "Hello, you."
    ]


def test_greetings_as_an_object_are_its_values() -> None:
    found = v2(name="M", alternate_greetings={"0": "Hello.", "1": None, "2": 3})
    assert found.card.alternate_greetings == ["Hello.", "3"]


def test_a_warning_is_given_once_for_many_items() -> None:
    assert len(v2(name="M", alternate_greetings=list(range(900))).warnings) == 1


def test_an_empty_object_that_was_written_as_a_list_is_empty() -> None:
    found = v2(name="M", extensions=[])
    assert found.card.extensions == {}
    assert found.warnings == []


@pytest.mark.parametrize("book", [[], "book", 1])
def test_a_book_that_is_no_object_is_left_out(book: object) -> None:
    assert v2(name="M", character_book=book).card.character_book is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(1.9, 1), ("1700000000", 1_700_000_000), (-5, 0), ("soon", 0), (1e300, 0), (True, 0)],
)
def test_a_date_is_whole_seconds_or_unknown(value: object, seconds: int) -> None:
    assert v3(name="M", creation_date=value).card.creation_date == seconds


@pytest.mark.parametrize("data", [{}, {"name": None}, {"name": " \n"}, {"name": []}])
def test_a_card_without_a_name_is_refused_precisely(data: dict[str, Any]) -> None:
    with pytest.raises(CardError, match="`name` is missing or blank"):
        v2(**data)


@pytest.mark.parametrize("value", [[], "text", 1, None])
def test_a_value_that_is_no_object_is_no_card(value: object) -> None:
    with pytest.raises(CardError, match="a card is a JSON object"):
        normalise(value)


def test_an_object_of_something_else_is_no_card() -> None:
    with pytest.raises(CardError, match="none of a card's fields"):
        normalise({"dependencies": {}, "version": "1.0"})


@pytest.mark.parametrize(
    "lorebook",
    [
        {"entries": {"0": {"key": ["a"], "content": "b"}}},
        {"name": "Eldoria", "description": "", "entries": []},
        {"spec": "lorebook_v3", "data": {"entries": []}},
        {"type": "risu", "ver": 1, "data": []},
    ],
)
def test_lorebooks_of_every_kind_are_recognised(lorebook: dict[str, Any]) -> None:
    with pytest.raises(CardError, match="This is a lorebook"):
        normalise(lorebook)


def test_data_wins_over_its_repetitions_outside() -> None:
    found = normalise(
        {
            "name": "Old",
            "description": "Old",
            "scenario": "Only here",
            "spec": "chara_card_v2",
            "data": {"name": "New", "description": ""},
        }
    )

    assert (found.card.name, found.card.description) == ("New", "")
    assert found.card.scenario == "Only here"


@pytest.mark.parametrize(
    ("raw", "card"),
    [
        (
            {"char_name": "M", "char_persona": "P", "world_scenario": "W", "char_greeting": "G"},
            Card(name="M", description="P", scenario="W", first_mes="G"),
        ),
        (
            {"name": "M", "context": "C", "greeting": "G"},
            Card(name="M", description="C", first_mes="G"),
        ),
        (
            {"name": "M", "creatorcomment": "N", "tags": ["t"]},
            Card(name="M", creator_notes="N", tags=["t"]),
        ),
    ],
)
def test_flat_cards_of_older_tools_are_read(raw: dict[str, Any], card: Card) -> None:
    found = normalise(raw)
    assert (found.card, found.spec) == (card, "v1")


@pytest.mark.parametrize("version", ["3.0", "3", 3, 3.0, " 3.00 "])
def test_a_version_is_read_as_a_number(version: object) -> None:
    assert v3(version, name="M").warnings == []


@pytest.mark.parametrize("version", ["3.1", "10.0", 4])
def test_a_newer_version_is_read_with_a_warning(version: object) -> None:
    found = v3(version, name="M", from_the_future=1)
    assert found.spec == "v3"
    assert "newer than 3.0" in found.warnings[0]


def test_a_newer_spec_by_name_is_read_as_v3() -> None:
    found = normalise({"spec": "chara_card_v4", "spec_version": "4.0", "data": {"name": "M"}})
    assert found.spec == "v3"
    assert "version 4, newer than 3.0" in found.warnings[0]


@pytest.mark.parametrize(
    ("data", "spec"), [({"name": "M"}, "v2"), ({"name": "M", "nickname": "N"}, "v3")]
)
def test_a_card_that_names_no_version_is_read_by_its_fields(
    data: dict[str, Any], spec: str
) -> None:
    found = normalise({"data": data})
    assert found.spec == spec
    assert found.warnings == [f"The card names no known version: it was read as {spec.upper()}."]


def test_texts_are_refused_one_character_over_the_limit_and_never_cut() -> None:
    assert len(v2(name="M", description="x" * TEXT.allowed).card.description) == 200_000

    with pytest.raises(CardLimitError) as caught:
        v2(name="M", description="x" * (TEXT.allowed + 1))

    assert caught.value.slug == "card-limit"
    assert caught.value.detail == "`description` has 200,001 characters; 200,000 are allowed."
    assert caught.value.extra == {"limit": "text_characters", "allowed": 200_000, "found": 200_001}


OVER_A_LIMIT: list[dict[str, Any]] = [
    {"name": "x" * (NAME.allowed + 1)},
    {"name": "M", "nickname": "x" * (NAME.allowed + 1)},
    {"name": "M", "alternate_greetings": ["x"] * (LIST_ITEMS.allowed + 1)},
    {"name": "M", "alternate_greetings": ["x" * (TEXT.allowed + 1)]},
    {"name": "M", "tags": ["x"] * (TAGS.allowed + 1)},
    {"name": "M", "tags": ["x" * (TAG.allowed + 1)]},
    {"name": "M", "alternate_greetings": ["x" * TEXT.allowed] * 21},
    {"name": "M", "assets": [{}] * (LIST_ITEMS.allowed + 1)},
    {"name": "M", "assets": [{"uri": "https://" + "x" * 2_000}]},
    {"name": "M", "creator_notes_multilingual": {str(n): "" for n in range(1_001)}},
    {"name": "M", "extensions": {"depth_prompt": {"prompt": "x" * (TEXT.allowed + 1)}}},
]


@pytest.mark.parametrize("data", OVER_A_LIMIT)
def test_every_text_and_list_has_a_limit(data: dict[str, Any]) -> None:
    with pytest.raises(CardLimitError):
        v3(**data)


def test_a_card_may_have_as_many_tags_as_the_limits_say() -> None:
    tags = [str(number).rjust(TAG.allowed, "x") for number in range(TAGS.allowed)]
    assert v3(name="M", tags=tags).card.tags == tags


def test_the_lorebook_does_not_count_towards_the_size_of_a_card() -> None:
    book = {"entries": [{"content": "x" * CARD_BYTES.allowed}]}
    assert v3(name="M", character_book=book).card.character_book == book


def test_a_picture_in_a_data_uri_is_longer_than_a_text_may_be() -> None:
    uri = "data:image/png;base64," + "A" * 300_000
    assert v3(name="M", assets=[{"uri": uri}]).card.assets[0].uri == uri


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        ({"prompt": "Be terse."}, DepthPrompt("Be terse.", 4, "system")),
        ({"prompt": "P", "depth": "2", "role": "user"}, DepthPrompt("P", 2, "user")),
        ({"prompt": "P", "depth": -1, "role": "narrator"}, DepthPrompt("P", 4, "system")),
        ({"prompt": "P", "depth": 1e400, "role": ["user"]}, DepthPrompt("P", 4, "system")),
        ({"prompt": "P", "depth": True}, DepthPrompt("P", 4, "system")),
        ({"prompt": "  "}, None),
        ({"prompt": 4}, None),
        ("Be terse.", None),
        (None, None),
    ],
)
def test_a_depth_prompt_is_read_with_its_defaults(stored: Any, read: DepthPrompt | None) -> None:
    assert Card(name="M", extensions={"depth_prompt": stored}).depth_prompt == read


def test_the_source_is_kept_as_it_came() -> None:
    raw = {"name": "M", "tags": "a,b", "unknown": {"deep": [1]}}
    before = json.dumps(raw)
    normalise(raw)
    assert json.dumps(raw) == before
