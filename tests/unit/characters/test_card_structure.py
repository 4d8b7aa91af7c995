"""The limits of a file are looked at before anything is built of it."""

from __future__ import annotations

import base64
import io
import json
import re
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from backend.characters.cards import model as limits
from backend.characters.cards import text
from backend.characters.cards.charx import _unquote, resolve
from backend.characters.cards.model import CardAsset, Limit
from backend.characters.cards.png import replace_texts
from backend.characters.cards.reader import read_card
from backend.characters.cards.text import check_structure
from backend.characters.errors import CardError, CardLimitError
from backend.chronicles.errors import ChronicleFileError
from backend.chronicles.transfer import read_file as read_chronicle
from backend.lorebooks.errors import LoreFileError
from backend.lorebooks.formats.reader import read_file as read_lorebook

MEGABYTE = limits.MEGABYTE
SIZE = 8 * MEGABYTE

STRING = re.compile(rb'"(?>(?:[^"\\]++|\\.)*)(?:"|\\?\Z)', re.DOTALL)
STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def measured(data: bytes) -> tuple[int, int]:
    """Depth and values of a text, looked at as a whole."""
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
def test_slices_are_allowed_what_the_whole_text_would_be(
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


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_refused_file_takes_little_more_memory_than_it_has_bytes(
    text: Callable[[], bytes],
) -> None:
    data = text()

    assert peak_of(read_card, data) < 5 * len(data)


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


@pytest.mark.parametrize("text", HIDDEN.values(), ids=HIDDEN)
def test_a_text_that_is_packed_takes_little_more_memory_either(
    text: Callable[[], bytes],
) -> None:
    data = text()

    assert peak_of(read_card, data) < 5 * len(data)


def test_a_data_uri_of_percent_signs_takes_little_more_memory_than_it_has_characters() -> None:
    uri = "data:," + "%" * 300_000

    def resolved(_: bytes) -> object:
        return resolve(CardAsset(type="icon", uri=uri, name="main", ext="png"), {})

    assert peak_of(resolved, b"") < 60 * len(uri)


@given(st.text("%4aG\u00e9", max_size=30), st.integers(3, 9))
def test_a_data_uri_in_slices_is_what_it_is_as_a_whole(text: str, size: int) -> None:
    with patch("backend.characters.cards.charx._SLICE_CHARACTERS", size):
        assert _unquote(text) == unquote_to_bytes(text)


def peak_of(read: Callable[[bytes], object], data: bytes) -> int:
    """Bytes that reading took at most, beside the file itself."""
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
