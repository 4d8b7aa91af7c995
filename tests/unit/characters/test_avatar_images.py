from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import pytest
from PIL import Image

from backend.characters.cards import png
from backend.characters.cards.model import MAX_FILE_BYTES
from backend.characters.errors import ImageError
from backend.characters.pictures import convert_to_png, draw_placeholder, reencode_avatar
from backend.errors import TooLargeError

RED, BLUE = (200, 30, 30), (30, 30, 200)


def picture(
    kind: str = "PNG", size: tuple[int, int] = (40, 20), mode: str = "RGB", **options: Any
) -> bytes:
    """Red on the left, blue on the right."""
    image = Image.new("RGB", size, RED)
    image.paste(BLUE, (size[0] // 2, 0, *size))
    target = io.BytesIO()
    image.convert(mode).save(target, kind, **options)
    return target.getvalue()


def opened(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image


def near(pixel: Any, colour: tuple[int, int, int]) -> bool:
    return all(abs(a - b) < 24 for a, b in zip(pixel, colour, strict=False))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_every_format_is_stored_as_webp_with_a_thumbnail(kind: str) -> None:
    avatar = reencode_avatar(picture(kind))

    assert (avatar.media_type, avatar.thumbnail_media_type) == ("image/webp", "image/webp")
    assert (avatar.width, avatar.height) == (40, 20)
    stored = opened(avatar.data)
    assert stored.format == "WEBP"
    assert near(stored.getpixel((5, 10)), RED)
    assert near(stored.getpixel((35, 10)), BLUE)
    assert opened(avatar.thumbnail).size == (40, 20)


def test_a_large_picture_is_scaled_down_and_keeps_its_shape() -> None:
    avatar = reencode_avatar(picture(size=(3000, 1500)))

    assert (avatar.width, avatar.height) == (1024, 512)
    assert opened(avatar.data).size == (1024, 512)
    assert opened(avatar.thumbnail).size == (256, 128)


def test_a_sliver_keeps_at_least_a_pixel() -> None:
    avatar = reencode_avatar(picture(size=(5000, 2)))

    assert (avatar.width, avatar.height) == (1024, 1)


def test_a_picture_is_turned_as_its_exif_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # taken with the camera turned: show it a quarter clockwise

    avatar = reencode_avatar(picture("JPEG", exif=exif.tobytes()))

    assert (avatar.width, avatar.height) == (20, 40)
    stored = opened(avatar.data)
    assert near(stored.getpixel((10, 5)), RED)
    assert near(stored.getpixel((10, 35)), BLUE)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"])
def test_broken_exif_does_not_spoil_a_picture(exif: bytes) -> None:
    assert reencode_avatar(picture("JPEG", exif=exif)).width == 40


def test_no_metadata_is_stored() -> None:
    exif = Image.Exif()
    exif[0x010E] = "where I live"
    data = picture("JPEG", exif=exif.tobytes(), comment=b"where I live", icc_profile=b"x" * 200)

    avatar = reencode_avatar(data)

    for stored in (avatar.data, avatar.thumbnail, convert_to_png(data)):
        assert b"where I live" not in stored
        assert not {"exif", "icc_profile", "comment"} & opened(stored).info.keys()


def test_the_first_frame_of_an_animation_is_taken() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, BLUE)]
    for kind in ("GIF", "WEBP", "PNG"):
        target = io.BytesIO()
        frames[0].save(target, kind, save_all=True, append_images=frames[1:])

        assert near(opened(reencode_avatar(target.getvalue()).data).getpixel((4, 4)), RED)


def test_transparency_is_kept() -> None:
    target = io.BytesIO()
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(target, "PNG")
    avatar = reencode_avatar(target.getvalue())

    for stored in (avatar.data, avatar.thumbnail, convert_to_png(target.getvalue())):
        assert opened(stored).convert("RGBA").getpixel((4, 4))[3] == 0  # type: ignore[index]


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK"])
def test_other_colour_modes_are_read(mode: str) -> None:
    kind = "JPEG" if mode == "CMYK" else "PNG"

    assert opened(convert_to_png(picture(kind, mode=mode))).mode == "RGB"


def test_grey_of_16_bits_keeps_its_shades() -> None:
    target = io.BytesIO()
    Image.new("I;16", (4, 4), 0x8000).save(target, "PNG")

    assert opened(convert_to_png(target.getvalue())).getpixel((0, 0)) == (128, 128, 128)


def test_as_png_keeps_size_and_pixels() -> None:
    data = picture()

    assert opened(convert_to_png(data)).tobytes() == opened(data).tobytes()


def test_a_fault_in_the_text_of_a_png_is_no_fault_of_the_picture() -> None:
    data = picture()
    broken = b"\0\0\0\x05tEXta\0bcd\0\0\0\0"

    assert reencode_avatar(data[:33] + broken + data[33:]).width == 40


def _header_only(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I4s", len(body), kind) + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return png.SIGNATURE + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_the_size_is_judged_by_the_header() -> None:
    with pytest.raises(ImageError) as caught:
        reencode_avatar(_header_only(5001, 5000))

    assert caught.value.slug == "unreadable-image"
    assert caught.value.extra == {"limit": "pixels", "allowed": 25_000_000, "found": 25_005_000}


@pytest.mark.parametrize("side", [10_000, 60_000, 2**31 - 1])
def test_huge_dimensions_are_refused_undecoded(side: int) -> None:
    with pytest.raises(ImageError, match="25,000,000 pixels, which is the limit"):
        reencode_avatar(_header_only(side, side))


def test_twenty_five_megapixels_are_read() -> None:
    avatar = reencode_avatar(picture(size=(5000, 5000), compress_level=1))

    assert (avatar.width, avatar.height) == (1024, 1024)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_a_picture_that_is_cut_short_is_refused(kind: str) -> None:
    image = Image.effect_noise((200, 200), 90).convert("RGB")
    target = io.BytesIO()
    image.save(target, kind)
    data = target.getvalue()

    for part in (0.02, 0.5, 0.9):
        with pytest.raises(ImageError):
            reencode_avatar(data[: int(len(data) * part)])


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "ICO"])
def test_other_formats_are_refused(kind: str) -> None:
    with pytest.raises(ImageError, match="not a PNG, JPEG, WebP or GIF"):
        reencode_avatar(picture(kind))


@pytest.mark.parametrize("data", [b"", b"\0", b"<svg/>", b"%!PS-Adobe", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(ImageError):
        convert_to_png(data)


def test_a_file_over_the_size_limit_is_answered_with_413() -> None:
    with pytest.raises(TooLargeError):
        reencode_avatar(bytes(MAX_FILE_BYTES + 1))


def test_a_placeholder_shows_the_initial_on_a_colour_of_the_name() -> None:
    magda = draw_placeholder("Magda")

    assert opened(magda).size == (512, 512)
    assert draw_placeholder("Magda") == magda
    assert draw_placeholder("Maud") != magda
    assert (255, 255, 255) in set(opened(magda).get_flattened_data())


@pytest.mark.parametrize("name", ["", "  ", "日本", "🙂", "\u0301"])
def test_a_name_whose_initial_can_not_be_drawn_is_plain_colour(name: str) -> None:
    assert len(set(opened(draw_placeholder(name)).get_flattened_data())) == 1


def test_an_accent_does_not_hide_the_initial() -> None:
    assert len(set(opened(draw_placeholder("«Élan»")).get_flattened_data())) > 1
