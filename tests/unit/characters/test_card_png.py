from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Iterator

import pytest
from PIL import Image

from backend.characters.cards import png
from backend.characters.cards.model import INFLATED_TEXT
from backend.characters.cards.reader import read_card
from backend.characters.errors import CardError, CardLimitError, NoCardError


def chunk(kind: bytes, data: bytes, *, crc: int | None = None) -> bytes:
    checksum = zlib.crc32(kind + data) if crc is None else crc
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def picture() -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (4, 4), "teal").save(target, "PNG")
    return target.getvalue()


def with_chunks(*chunks: bytes, after_picture: bool = False) -> bytes:
    plain = picture()
    at = len(plain) - 12 if after_picture else 33
    return plain[:at] + b"".join(chunks) + plain[at:]


def encoded(name: str = "Magda", spec: str = "chara_card_v2") -> bytes:
    card = {"spec": spec, "spec_version": spec[-1] + ".0", "data": {"name": name}}
    return base64.b64encode(json.dumps(card).encode())


def text(value: bytes, keyword: bytes = b"chara") -> bytes:
    return chunk(b"tEXt", keyword + b"\0" + value)


def compressed_text(value: bytes, keyword: bytes = b"chara") -> bytes:
    return chunk(b"zTXt", keyword + b"\0\0" + zlib.compress(value))


def international_text(value: bytes, *, packed: bool = False, keyword: bytes = b"chara") -> bytes:
    body = zlib.compress(value) if packed else value
    flag = b"\1\0" if packed else b"\0\0"
    return chunk(b"iTXt", keyword + b"\0" + flag + b"en\0Karte\0" + body)


def borders(data: bytes) -> Iterator[int]:
    position = 8
    yield position
    while position < len(data) - 12:
        position += 12 + struct.unpack_from(">I", data, position)[0]
        yield position


@pytest.mark.parametrize("after_picture", [False, True])
@pytest.mark.parametrize(
    "carrier",
    [
        text(encoded()),
        compressed_text(encoded()),
        international_text(encoded()),
        international_text(encoded(), packed=True),
        text(encoded(), keyword=b"CHARA"),
        compressed_text(encoded(), keyword=b"cCv3"),
    ],
)
def test_every_kind_of_text_chunk_is_read_before_and_after_the_picture(
    carrier: bytes, after_picture: bool
) -> None:
    imported = read_card(with_chunks(carrier, after_picture=after_picture))
    assert imported.card.name == "Magda"
    assert imported.warnings == []


def test_ccv3_is_preferred_in_any_order() -> None:
    data = with_chunks(
        text(encoded("Two")), text(encoded("Three", "chara_card_v3"), b"ccv3"), after_picture=True
    )
    assert read_card(data).card.name == "Three"


@pytest.mark.parametrize(
    "broken",
    [
        text(b"***", b"ccv3"),
        text(base64.b64encode(b"{broken"), b"ccv3"),
        text(base64.b64encode(b'{"spec": "chara_card_v3", "data": {}}'), b"ccv3"),
        chunk(b"zTXt", b"ccv3\0\0no zlib"),
        chunk(b"zTXt", b"ccv3"),
        chunk(b"iTXt", b"ccv3\0\0\0en"),
        text(b"", b"ccv3"),
    ],
)
def test_a_broken_ccv3_falls_back_on_a_sound_chara_with_a_warning(broken: bytes) -> None:
    imported = read_card(with_chunks(broken, text(encoded())))
    assert imported.card.name == "Magda"
    assert imported.warnings[0].startswith("The `ccv3` text was skipped: ")


def test_without_a_readable_text_the_error_is_that_of_ccv3() -> None:
    data = with_chunks(text(b"***"), text(base64.b64encode(b"{broken"), b"ccv3"))
    with pytest.raises(CardError, match="The JSON is invalid at line 1"):
        read_card(data)


def test_a_wrong_checksum_of_a_text_is_a_warning() -> None:
    damaged = chunk(b"tEXt", b"chara\0" + encoded(), crc=0)
    imported = read_card(with_chunks(damaged))
    assert imported.card.name == "Magda"
    assert imported.warnings == ["The checksum of the `chara` text is wrong; it was read anyway."]


def test_plain_json_in_place_of_base64_is_a_warning() -> None:
    imported = read_card(with_chunks(text('{"name": "Zoë"}'.encode())))
    assert imported.card.name == "Zoë"
    assert imported.warnings == ["The `chara` text was plain JSON, not base64."]


def test_base64_may_be_wrapped_in_lines_and_lack_its_padding() -> None:
    lines = base64.encodebytes(b'{"name": "Magda" }').rstrip(b"=\n") + b"\r\n"
    assert read_card(with_chunks(text(lines))).card.name == "Magda"


@pytest.mark.parametrize("value", [b"not base64!", b"AAAAA", b"AA==AA=="])
def test_wrong_base64_is_refused(value: bytes) -> None:
    with pytest.raises(CardError, match="not valid base64"):
        read_card(with_chunks(text(value)))


def test_base64_of_something_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(CardError, match="not UTF-8"):
        read_card(with_chunks(text(base64.b64encode(b'{"name": "\xff"}'))))


@pytest.mark.parametrize(
    "data",
    [picture(), with_chunks(text(b"Photoshop", b"Software"))],
    ids=["no text", "another text"],
)
def test_a_png_without_a_card_is_refused_with_words_for_it(data: bytes) -> None:
    with pytest.raises(NoCardError, match="contains no character card") as caught:
        read_card(data)
    assert caught.value.slug == "no-card-in-image"
    assert isinstance(caught.value, CardError)


@pytest.mark.parametrize("kind", ["JPEG", "GIF", "WEBP"])
def test_a_picture_of_another_format_carries_no_card(kind: str) -> None:
    target = io.BytesIO()
    Image.new("RGB", (4, 4)).save(target, kind)
    with pytest.raises(NoCardError, match="Only PNG pictures can contain cards"):
        read_card(target.getvalue())


def test_a_png_cut_at_any_chunk_border_is_called_cut_short() -> None:
    data = with_chunks(text(encoded()), text(encoded(), b"ccv3"))
    cuts = list(borders(data))
    assert len(cuts) == 5
    for cut in cuts:
        with pytest.raises(CardError, match="truncated"):
            read_card(data[:cut])


def test_a_png_cut_anywhere_is_called_cut_short() -> None:
    data = with_chunks(text(encoded()))
    for cut in range(8, len(data)):
        with pytest.raises(CardError, match="truncated"):
            read_card(data[:cut])


def test_bytes_after_the_end_of_a_png_are_ignored() -> None:
    assert read_card(with_chunks(text(encoded())) + b"\0trailing").card.name == "Magda"


def test_bytes_that_are_no_chunk_are_refused() -> None:
    with pytest.raises(CardError, match="there is no chunk at byte 33"):
        read_card(with_chunks(b"\0\0\0\0\0\0\0\0\0\0\0\0"))


def test_a_thousand_chunks_are_read_and_one_more_is_refused() -> None:
    filler = [chunk(b"tEXt", b"Comment\0x")] * 996
    assert read_card(with_chunks(*filler, text(encoded()))).card.name == "Magda"
    with pytest.raises(CardLimitError) as caught:
        read_card(with_chunks(*filler, filler[0], text(encoded())))
    assert caught.value.extra == {"limit": "png_chunks", "allowed": 1_000, "found": 1_001}


@pytest.mark.parametrize(
    "bomb",
    [compressed_text(b"A" * 50_000_000), international_text(b"A" * 50_000_000, packed=True)],
    ids=["zTXt", "iTXt"],
)
def test_a_compressed_text_is_inflated_up_to_the_limit_only(bomb: bytes) -> None:
    assert len(bomb) < 100_000
    with pytest.raises(CardLimitError) as caught:
        read_card(with_chunks(bomb))
    assert caught.value.extra == {
        "limit": "inflated_text",
        "allowed": 8_388_608,
        "found": 8_388_609,
    }


def test_the_limit_is_on_all_texts_of_a_file_together() -> None:
    # Each broken, so that the next is tried.
    half = compressed_text(b"*" * (INFLATED_TEXT.allowed // 2 + 1))
    with pytest.raises(CardLimitError):
        read_card(with_chunks(half, half, text(encoded())))


def test_a_bomb_is_not_passed_over_for_a_sound_text() -> None:
    bomb = compressed_text(b"A" * 9_000_000, b"ccv3")
    with pytest.raises(CardLimitError):
        read_card(with_chunks(bomb, text(encoded())))


def test_a_compressed_text_that_is_cut_short_is_refused() -> None:
    with pytest.raises(CardError, match="truncated"):
        read_card(with_chunks(chunk(b"zTXt", b"chara\0\0" + zlib.compress(encoded())[:-6])))


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(CardError, match="an unknown compression"):
        read_card(with_chunks(chunk(b"zTXt", b"chara\0\7" + zlib.compress(encoded()))))


def test_assets_inside_a_png_are_not_passed_over_silently() -> None:
    new = text(base64.b64encode(b"sound"), b"chara-ext-asset_:1")
    old = text(base64.b64encode(b"music"), b"chara-ext-asset_2")
    data = with_chunks(text(encoded()), new, old)
    assert read_card(data).warnings == [
        "2 more files inside the PNG are kept for its export, but not shown."
    ]
    assert list(png.find_texts(data).assets) == ["1", "2"]


def test_texts_are_replaced_in_place() -> None:
    comment = text(b"private", b"Comment")
    tail = b"behind the end"
    data = with_chunks(comment, text(b"old"), text(b"older", b"Chara"), after_picture=True) + tail
    written = png.replace_texts(data, {b"chara": b"new"})
    assert written == with_chunks(comment, text(b"new"), after_picture=True) + tail


def test_additional_chunks_are_written_before_the_picture() -> None:
    asset = text(b"c291bmQ=", b"chara-ext-asset_:1")
    more = png.find_texts(with_chunks(asset)).assets.values()
    assert png.replace_texts(picture(), {b"chara": b"x"}, more=more) == with_chunks(
        text(b"x"), asset
    )


def test_a_png_without_its_texts_shows_the_same_picture() -> None:
    stripped = png.remove_texts(with_chunks(text(encoded()), compressed_text(encoded())))
    assert stripped == picture()
