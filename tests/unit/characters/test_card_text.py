"""JSON and YAML from anywhere."""

from __future__ import annotations

import json

import msgspec
import pytest

from backend.characters.cards.model import (
    JSON_DEPTH,
    JSON_VALUES,
    MAX_FILE_BYTES,
    YAML_BYTES,
    YAML_EXPANDED,
    YAML_VALUES,
)
from backend.characters.cards.reader import read_card
from backend.characters.cards.text import parse_json, parse_text, parse_yaml
from backend.characters.errors import CardError, CardLimitError
from backend.errors import TooLargeError


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def test_json_may_begin_with_a_byte_order_mark() -> None:
    assert read_card(b'\xef\xbb\xbf{"name": "Magda"}').card.name == "Magda"


def test_line_breaks_inside_json_strings_are_taken_as_they_are() -> None:
    assert parse_json(b'{"name": "two\nlines\t"}') == {"name": "two\nlines\t"}


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_numbers_that_json_does_not_have_are_refused(number: bytes) -> None:
    with pytest.raises(CardError, match=r"not a JSON number|too large"):
        parse_json(b'{"name": "M", "x": ' + number + b"}")


def test_a_number_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(CardError, match="a number that is too long"):
        parse_json(b"[" + b"9" * 5_000 + b"]")


@pytest.mark.parametrize("text", [rb'["\ud800"]', rb'["\udc00\ud800"]', rb'{"\ud83d": 1}'])
def test_lone_surrogates_are_replaced_so_that_the_text_can_be_stored(text: bytes) -> None:
    value = parse_json(text)
    assert "\ufffd" in json.dumps(value, ensure_ascii=False)
    assert msgspec.json.decode(msgspec.json.encode(value)) == value


def test_surrogates_that_are_a_pair_stay_the_character_that_they_are() -> None:
    assert parse_json(rb'["\ud83d\ude00 \\ud800"]') == ["😀 \\ud800"]


def test_a_fault_in_the_json_is_located() -> None:
    with pytest.raises(CardError, match="line 2, column 10: Expecting ',' delimiter"):
        parse_json(b'{"name":\n "Magda" "x": 1}')


def test_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(CardError, match="not UTF-8: byte 10"):
        read_card(b'{"name": "\xe9lan"}')


def test_json_is_read_down_to_the_depth_limit_and_no_further() -> None:
    assert parse_json(nested(JSON_DEPTH.allowed))
    with pytest.raises(CardLimitError) as caught:
        parse_json(nested(JSON_DEPTH.allowed + 1))
    assert caught.value.extra == {"limit": "json_depth", "allowed": 64, "found": 65}


@pytest.mark.parametrize("text", [nested(100_000), b"[" * 100_000, b'{"a":' * 100_000])
def test_a_hundred_thousand_brackets_are_counted_not_followed(text: bytes) -> None:
    with pytest.raises(CardLimitError) as caught:
        read_card(text)
    assert caught.value.limit == "json_depth"


def test_brackets_inside_strings_are_no_depth() -> None:
    value = {"name": "M", "description": '\\" \\\\' + "[{" * 1_000}
    assert parse_json(json.dumps(value).encode()) == value


def test_a_flood_of_tiny_values_is_refused_before_they_are_built() -> None:
    with pytest.raises(CardLimitError) as caught:
        parse_json(b"[" + b"[]," * JSON_VALUES.allowed + b"1]")
    assert caught.value.limit == "json_values"


@pytest.mark.parametrize("unit", [b"\\", b'\\"', b'"', b'"",'])
def test_a_large_file_of_broken_strings_is_scanned_once(unit: bytes) -> None:
    # Were the scan quadratic, this would take hours.
    with pytest.raises(CardError):
        parse_json(b'{"' + unit * (2_000_000 // len(unit)))


@pytest.mark.parametrize(
    "text", [b"- a\n" * 100_001, b"{" + b"a," * 50_001 + b"}", b"[" + b"[]," * 100_000 + b"]"]
)
def test_a_flood_of_tiny_yaml_values_is_refused_before_they_are_built(text: bytes) -> None:
    with pytest.raises(CardLimitError) as caught:
        parse_yaml(text)
    assert caught.value.extra == {
        "limit": "yaml_values",
        "allowed": YAML_VALUES.allowed,
        "found": YAML_VALUES.allowed + 1,
    }


def test_a_file_over_the_size_limit_is_answered_with_413() -> None:
    with pytest.raises(TooLargeError) as caught:
        read_card(b" " * (MAX_FILE_BYTES + 1))
    assert caught.value.status == 413
    assert caught.value.extra == {"limit": "file_bytes", "allowed": 20_971_520, "found": 20_971_521}


@pytest.mark.parametrize("data", [b"", b" \n\t "])
def test_an_empty_file_is_called_empty(data: bytes) -> None:
    with pytest.raises(CardError, match="The file is empty"):
        read_card(data)


def test_a_yaml_card_is_read() -> None:
    imported = read_card(
        b"name: Magda\n"
        b"greeting: |-\n  Mind the stair.\n  The third.\n"
        b"context: 'Keeps the lighthouse: dry, patient'\n"
        b"custom: [1, 2.5, true, null, 2024-01-01]\n"
    )

    assert imported.card.name == "Magda"
    assert imported.card.first_mes == "Mind the stair.\nThe third."
    assert imported.card.description == "Keeps the lighthouse: dry, patient"
    assert imported.raw["custom"] == [1, 2.5, True, None, "2024-01-01"]
    assert imported.warnings == []


@pytest.mark.parametrize("name", ["No", "on", "1:30", "2024-01-01", ".nan", ".inf", "0x1f", "<<"])
def test_yaml_takes_a_word_for_a_word(name: str) -> None:
    assert parse_yaml(f"name: {name}".encode()) == {"name": name}


def test_yaml_aliases_are_expanded() -> None:
    value = parse_yaml(b"a: &x [1, {b: c}]\nd: *x\n")
    assert value == {"a": [1, {"b": "c"}], "d": [1, {"b": "c"}]}


def test_yaml_keys_become_texts() -> None:
    assert parse_yaml(b"2: a\nnull: b\ntrue: c\n") == {"2": "a", "null": "b", "true": "c"}


def test_a_yaml_alias_bomb_is_refused_unexploded() -> None:
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(CardLimitError) as caught:
        read_card("\n".join(lines).encode())
    assert caught.value.limit == "yaml_expanded"
    assert caught.value.allowed == YAML_EXPANDED.allowed


def test_a_long_text_behind_many_aliases_is_a_bomb_too() -> None:
    text = b"a: &a " + b"x" * 100_000 + b"\nb: [" + b", ".join([b"*a"] * 1_000) + b"]"
    with pytest.raises(CardLimitError):
        parse_yaml(text)


def test_a_chain_of_yaml_aliases_may_not_go_deeper_than_json() -> None:
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 200))]
    with pytest.raises(CardLimitError) as caught:
        parse_yaml("\n".join(lines).encode())
    assert caught.value.limit == "json_depth"


@pytest.mark.parametrize("text", [b"&a [*a]", b"a: *nothing", b"&a {b: *a}"])
def test_a_yaml_alias_to_itself_or_an_unknown_anchor_is_refused(text: bytes) -> None:
    with pytest.raises(CardError, match="alias"):
        parse_yaml(text)


@pytest.mark.parametrize(
    "text", ["!!python/object/apply:os.system ['true']", "!!binary aGk=", "!!set {b}", "!local b"]
)
def test_yaml_tags_are_refused(text: str) -> None:
    with pytest.raises(CardError, match="tags"):
        parse_yaml(f"a: {text}".encode())


@pytest.mark.parametrize("text", [b"[" * 200_000, b"- " * 200_000, b"{a: " * 100_000])
def test_deep_yaml_is_refused(text: bytes) -> None:
    with pytest.raises(CardLimitError) as caught:
        parse_yaml(text)
    assert caught.value.extra == {"limit": "json_depth", "allowed": 64, "found": 65}


def test_yaml_over_its_size_limit_is_refused() -> None:
    with pytest.raises(CardLimitError) as caught:
        parse_yaml(b"# " + b"x" * YAML_BYTES.allowed)
    assert caught.value.limit == "yaml_bytes"


@pytest.mark.parametrize(
    "text", [b"a: [1", b"a: b: c", b"\x00", b"--- a\n--- b", b"a: " + b"9" * 5_000]
)
def test_broken_yaml_is_refused(text: bytes) -> None:
    with pytest.raises(CardError):
        parse_text(text)


def test_a_fault_in_the_yaml_is_located() -> None:
    with pytest.raises(CardError, match="invalid at line 2, column 5"):
        parse_yaml(b"name: M\nx: y: z\n")
