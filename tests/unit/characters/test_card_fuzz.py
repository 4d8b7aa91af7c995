"""Damaged files are refused or read; nothing else happens."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.characters.cards.charx import unpack
from backend.characters.cards.reader import read_card
from backend.characters.cards.writer import to_json
from backend.characters.pictures import reencode_avatar
from backend.errors import AppError

CARDS = Path(__file__).parents[2] / "fixtures" / "cards"
FILES = {path.name: path.read_bytes() for path in sorted(CARDS.iterdir())}
YAML = b"name: &n Magda\ncontext: |\n  Keeps the *light*.\nlist: [1, 2.5, {a: *n}]\n"

EDITS = st.lists(
    st.tuples(
        st.sampled_from(("flip", "cut", "insert", "repeat")),
        st.integers(0, 2**16),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=4,
)
Edits = list[tuple[str, int, bytes]]


def damage(data: bytes, edits: Edits) -> bytes:
    for kind, place, extra in edits:
        at = place % (len(data) + 1)
        end = at + len(extra)
        match kind:
            case "flip":
                data = data[:at] + bytes(byte ^ extra[0] for byte in data[at:end]) + data[end:]
            case "cut":
                data = data[:at] + data[end:]
            case "insert":
                data = data[:at] + extra + data[at:]
            case _:
                data = data[:end] + data[at:]
    return data


def read_or_refuse(data: bytes) -> None:
    """Read; whatever is read can be stored and exported."""
    try:
        imported = read_card(data)
    except AppError:
        return
    assert imported.card.name.strip()
    msgspec.json.encode(imported.card)
    assert msgspec.json.decode(msgspec.json.encode(imported.raw)) == imported.raw
    assert read_card(to_json(imported.card, imported.raw)).card == imported.card


@pytest.mark.parametrize("name", FILES)
@settings(database=None)
@given(edits=EDITS)
def test_a_damaged_card_is_read_or_refused(name: str, edits: Edits) -> None:
    read_or_refuse(damage(FILES[name], edits))


@settings(database=None)
@given(edits=EDITS)
def test_a_damaged_yaml_card_is_read_or_refused(edits: Edits) -> None:
    read_or_refuse(damage(YAML, edits))


@settings(database=None)
@given(edits=EDITS)
def test_damage_behind_the_base64_of_a_png_is_read_or_refused(edits: Edits) -> None:
    data = FILES["syn_v2_only_mixedcase_Chara.png"]
    start = data.index(b"Chara\0") + 6
    end = data.index(b"IDAT") - 8
    json_text = base64.b64decode(data[start:end])
    text = b"Chara\0" + base64.b64encode(damage(json_text, edits))
    chunk = len(text).to_bytes(4, "big") + b"tEXt" + text + b"\0\0\0\0"

    read_or_refuse(data[: start - 14] + chunk + data[end + 4 :])


@settings(database=None)
@given(edits=EDITS)
def test_damage_inside_the_headers_of_an_archive_is_read_or_refused(edits: Edits) -> None:
    data = FILES["syn_v3.charx"]
    directory = data.index(b"PK\x01\x02")

    read_or_refuse(data[:directory] + damage(data[directory:], edits))


@settings(database=None)
@given(
    data=st.binary(max_size=200), start=st.sampled_from((b"", b"\x89PNG\r\n\x1a\n", b"PK\x03\x04"))
)
def test_random_bytes_are_refused(data: bytes, start: bytes) -> None:
    read_or_refuse(start + data)


@settings(database=None)
@given(value=st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(("spec", "data", "name", "entries", "type")), inner),
))  # fmt: skip
def test_any_json_is_read_or_refused(value: object) -> None:
    read_or_refuse(json.dumps(value).encode())


@pytest.mark.parametrize("name", ["syn_v2_only_mixedcase_Chara.png", "icon"])
@settings(database=None)
@given(edits=EDITS)
def test_a_damaged_picture_is_read_or_refused(name: str, edits: Edits) -> None:
    data = FILES.get(name) or unpack(FILES["syn_v3.charx"])["assets/icon/images/main.png"]
    try:
        avatar = reencode_avatar(damage(data, edits))
    except AppError:
        return
    assert avatar.data.startswith(b"RIFF")
