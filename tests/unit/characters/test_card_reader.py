"""Card files of every container: the fixtures, damaged files and generated input."""

from __future__ import annotations

import base64
import io
import json
import re
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote_to_bytes

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from backend.characters.cards import model as limits
from backend.characters.cards import text
from backend.characters.cards.charx import resolve, unpack, unquote_in_slices
from backend.characters.cards.model import CardAsset, CardImport, DepthPrompt, Limit
from backend.characters.cards.png import replace_texts
from backend.characters.cards.reader import read_card
from backend.characters.cards.text import check_structure
from backend.characters.cards.writer import to_json
from backend.characters.errors import CardError, CardLimitError
from backend.characters.pictures import reencode_avatar
from backend.chronicles.errors import ChronicleFileError
from backend.chronicles.transfer import read_file as read_chronicle
from backend.errors import AppError
from backend.lorebooks.errors import LoreFileError
from backend.lorebooks.formats.reader import read_file as read_lorebook

MEGABYTE = limits.MEGABYTE
SIZE = 8 * MEGABYTE

STRING = re.compile(rb'"(?>(?:[^"\\]++|\\.)*)(?:"|\\?\Z)', re.DOTALL)
STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def measured(data: bytes) -> tuple[int, int]:
    """Depth and values of a text, computed from the whole text."""
    punctuation = STRING.sub(b"", data)
    steps = (STEPS[byte] for byte in punctuation if byte in STEPS)
    return max(accumulate(steps, initial=0)), sum(map(punctuation.count, (b",", b"[", b"{")))


def is_allowed(data: bytes, slice_bytes: int) -> bool:
    try:
        check_structure(data, slice_bytes=slice_bytes)
    except CardLimitError:
        return False
    return True


@given(
    data=st.lists(st.sampled_from([b'"', b"\\", b"[", b"]", b"{", b"}", b",", b"a", b"\n"])).map(
        b"".join
    ),
    slice_bytes=st.integers(1, 12),
    depth=st.integers(0, 4),
    values=st.integers(0, 6),
)
@example(data=b'"\\\\",[', slice_bytes=2, depth=0, values=9)
@example(data=b'"\\"[[[[', slice_bytes=2, depth=0, values=9)
def test_slices_have_the_limits_of_the_whole_text(
    data: bytes, slice_bytes: int, depth: int, values: int
) -> None:
    deepest, count = measured(data)
    with (
        patch.object(text, "JSON_DEPTH", Limit("json_depth", depth, "deep")),
        patch.object(text, "JSON_VALUES", Limit("json_values", values, "many")),
    ):
        allowed = is_allowed(data, slice_bytes)
    assert allowed == (deepest <= depth and count <= values)


def picture() -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (4, 4)).save(target, "PNG")
    return target.getvalue()


def card(**members: Any) -> bytes:
    data = {"name": "Magda", **members}
    return json.dumps({"spec": "chara_card_v3", "spec_version": "3.0", "data": data}).encode()


def lorebook(data: bytes) -> object:
    return read_lorebook(data, given_name="Book")


TEXTS = {
    "strings in a list": lambda: b"[" + b'"a",' * (SIZE // 4),
    "empty strings": lambda: b"[" + b'"' * MEGABYTE,
    "lists in each other": lambda: b"[" * SIZE,
    "objects in each other": lambda: b'{"a":' * (SIZE // 5),
    "one open string": lambda: b'["' + b"\\\\" * (SIZE // 2),
}


@pytest.mark.parametrize("read", [lorebook, read_chronicle])
def test_lorebooks_and_chronicles_are_refused_as_cheaply(read: Callable[[bytes], object]) -> None:
    data = TEXTS["objects in each other"]()
    assert peak_of(read, data) < 4 * len(data)


HIDDEN = {
    "a PNG's card between blanks": lambda: replace_texts(
        picture(), {b"chara": b"a " * (SIZE // 2)}
    ),
    "a PNG's flood of strings": lambda: replace_texts(
        picture(), {b"chara": base64.b64encode(b"[" + b'"a",' * (SIZE // 6))}
    ),
    "a flood of YAML keys": lambda: b"x: {" + b"a," * (limits.YAML_BYTES.allowed // 2 - 10) + b"}",
}


@pytest.mark.parametrize("text", (TEXTS | HIDDEN).values(), ids=TEXTS | HIDDEN)
def test_a_refused_file_takes_little_more_memory_than_its_size(text: Callable[[], bytes]) -> None:
    data = text()
    assert peak_of(read_card, data) < 5 * len(data)


def test_a_data_uri_of_percent_signs_takes_little_more_memory_than_it_has_characters() -> None:
    uri = "data:," + "%" * 300_000

    def resolved(_: bytes) -> object:
        return resolve(CardAsset(type="icon", uri=uri, name="main", ext="png"), {})

    assert peak_of(resolved, b"") < 60 * len(uri)


@given(st.text("%4aG\u00e9", max_size=30), st.integers(3, 9))
def test_a_data_uri_is_decoded_the_same_in_slices(text: str, size: int) -> None:
    with patch("backend.characters.cards.charx.SLICE_CHARACTERS", size):
        assert unquote_in_slices(text) == unquote_to_bytes(text)


def peak_of(read: Callable[[bytes], object], data: bytes) -> int:
    """The peak memory of reading, in bytes without the file itself."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        with suppress(CardError, LoreFileError, ChronicleFileError):
            read(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - before


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
    """Raise unless the card is refused, or can be stored and exported."""
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
