"""Decode and encode pictures. Only the pixels of an uploaded file are kept.

Import this module when it is needed, because Pillow takes 10 ms to import.
"""

from __future__ import annotations

import colorsys
import hashlib
import io
import struct
import unicodedata
import warnings
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw, ImageFont, ImageOps

from backend.characters.cards import png
from backend.characters.cards.model import check_file_size
from backend.characters.errors import CardError, ImageError

MAX_PICTURE_PIXELS = 25_000_000
AVATAR_SIDE = 1024
THUMBNAIL_SIDE = 256
BACKGROUND_SIDE = 2560
PLACEHOLDER_SIDE = 512

# Pillow only warns about smaller decompression bombs; this makes them an error.
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)

MESSAGE_PICTURE_SIDE = 2048
"""Vision models read pictures of at most 1,568 to 2,048 pixels a side, and scale down larger ones.
"""
MAX_PNG_BYTES = 3_000_000
"""A larger PNG becomes a JPEG. Claude accepts 5 MB in base64."""

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_UNASSIGNED_CHARACTER = "\U0010ffff"
_AVATAR_QUALITY = 90
_JPEG_QUALITY = 90
_RIFF = struct.Struct("<4sI4s")
_CHUNK = struct.Struct("<4sI")
_PIXEL_CHUNKS = frozenset({b"VP8 ", b"VP8L", b"VP8X", b"ALPH"})
_THUMBNAIL_QUALITY = 80
_BACKGROUND_QUALITY = 80


@dataclass(frozen=True, slots=True)
class EncodedAvatar:
    """A picture in two sizes: at most `AVATAR_SIDE` and `THUMBNAIL_SIDE` pixels a side.

    `width` and `height` are those of the larger one. Both keep transparency.
    """

    data: bytes
    media_type: str
    width: int
    height: int
    thumbnail: bytes
    thumbnail_media_type: str


@dataclass(frozen=True, slots=True)
class EncodedPicture:
    """A picture of a message: a PNG or a JPEG, which all vision models read."""

    data: bytes
    media_type: str
    width: int
    height: int


def reencode_picture(data: bytes) -> EncodedPicture:
    """Encode a PNG, JPEG, WebP or GIF (its first frame) for a message. Raises `ImageError`.

    The picture is rotated as its EXIF data says, scaled down to `MESSAGE_PICTURE_SIDE`, and
    stripped of all metadata. Drawings with sharp edges and transparent pictures stay PNGs.
    """
    is_lossless = data.startswith((png.SIGNATURE, b"GIF8"))
    image = _decode(data)
    image.thumbnail((MESSAGE_PICTURE_SIDE, MESSAGE_PICTURE_SIDE), Image.Resampling.LANCZOS)
    if is_lossless or image.mode == "RGBA":
        encoded = _encode(image, "PNG")
        if len(encoded) <= MAX_PNG_BYTES:
            return EncodedPicture(encoded, "image/png", image.width, image.height)
    if image.mode == "RGBA":
        background = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(background, image).convert("RGB")
    encoded = _encode(image, "JPEG", quality=_JPEG_QUALITY)
    return EncodedPicture(encoded, "image/jpeg", image.width, image.height)


def reencode_avatar(data: bytes) -> EncodedAvatar:
    """Encode a PNG, JPEG, WebP or GIF (its first frame) as an avatar. Raises `ImageError`.

    The picture is rotated as its EXIF data says, scaled down, and stripped of all metadata. One
    that already has this form is kept, so that an avatar can be moved without a loss.
    """
    image = _decode(data)
    is_final = max(image.size) <= AVATAR_SIDE and _has_only_pixels(data)
    image.thumbnail((AVATAR_SIDE, AVATAR_SIDE), Image.Resampling.LANCZOS)
    thumbnail = image.copy()
    thumbnail.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
    return EncodedAvatar(
        data=data if is_final else _encode(image, "WEBP", quality=_AVATAR_QUALITY),
        media_type="image/webp",
        width=image.width,
        height=image.height,
        thumbnail=_encode(thumbnail, "WEBP", quality=_THUMBNAIL_QUALITY),
        thumbnail_media_type="image/webp",
    )


def reencode_background(data: bytes) -> bytes:
    """Encode a picture as `reencode_avatar` does, in one size: a WebP of `BACKGROUND_SIDE` pixels.

    Raises `ImageError`.
    """
    image = _decode(data)
    if max(image.size) <= BACKGROUND_SIDE and _has_only_pixels(data):
        return data
    image.thumbnail((BACKGROUND_SIDE, BACKGROUND_SIDE), Image.Resampling.LANCZOS)
    return _encode(image, "WEBP", quality=_BACKGROUND_QUALITY)


def _has_only_pixels(data: bytes) -> bool:
    """True if it is a WebP of one picture, without metadata and without other bytes."""
    if len(data) < _RIFF.size or _RIFF.unpack_from(data) != (b"RIFF", len(data) - 8, b"WEBP"):
        return False
    at = _RIFF.size
    while at + _CHUNK.size <= len(data):
        kind, size = _CHUNK.unpack_from(data, at)
        if kind not in _PIXEL_CHUNKS:
            return False
        at += _CHUNK.size + size + size % 2
    return at == len(data)


def convert_to_png(data: bytes) -> bytes:
    """Return a picture as a PNG of the same size, upright and without metadata."""
    return _encode(_decode(data), "PNG")


def draw_placeholder(name: str) -> bytes:
    """Draw a PNG for a character without a picture: the initial on a background colour.

    The same name gives the same picture. The initial is left out if the font does not contain it.
    """
    hue = hashlib.sha256(name.encode()).digest()[0] / 256
    red, green, blue = (round(255 * part) for part in colorsys.hls_to_rgb(hue, 0.4, 0.45))
    image = Image.new("RGB", (PLACEHOLDER_SIDE, PLACEHOLDER_SIDE), (red, green, blue))
    initial = _find_initial(name)
    if _draw_letter(initial).tobytes() != _draw_letter(_UNASSIGNED_CHARACTER).tobytes():
        image.paste("white", mask=_draw_letter(initial))
    return _encode(image, "PNG")


def _find_initial(name: str) -> str:
    """Return the first letter or digit in upper case, without accents, which fonts may lack."""
    letters = (char for char in unicodedata.normalize("NFKD", name) if char.isalnum())
    return next(letters, _UNASSIGNED_CHARACTER).upper()[0]


def _draw_letter(char: str) -> Image.Image:
    """Return a mask of the letter in the middle, or of a box if the font lacks the letter."""
    mask = Image.new("L", (PLACEHOLDER_SIDE, PLACEHOLDER_SIDE))
    font = ImageFont.load_default(size=PLACEHOLDER_SIDE / 2)
    middle = (PLACEHOLDER_SIDE / 2, PLACEHOLDER_SIDE / 2)
    ImageDraw.Draw(mask).text(middle, char, fill=255, font=font, anchor="mm")
    return mask


def _decode(data: bytes) -> Image.Image:
    """Return the pixels as RGB or RGBA, upright. The size is checked before decoding."""
    check_file_size(len(data))
    if data.startswith(png.SIGNATURE):
        data = _remove_texts(data)
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_pixels(image)
            image.load()
            return _rotate(_convert_to_rgb(image))
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(
            f"The picture has more than {MAX_PICTURE_PIXELS:,} pixels, which is the limit.",
            extra={"limit": "pixels", "allowed": MAX_PICTURE_PIXELS},
        ) from error
    except Exception as error:  # Pillow's decoders can raise anything for a damaged file
        raise ImageError("The picture is damaged, or is not a PNG, JPEG, WebP or GIF.") from error


def _remove_texts(data: bytes) -> bytes:
    """Remove the texts of a PNG, because Pillow refuses a picture if one of them is damaged."""
    try:
        return png.remove_texts(data)
    except CardError as error:
        raise ImageError(error.detail, extra=error.extra) from error


def _check_pixels(image: Image.Image) -> None:
    pixels = image.width * image.height
    if pixels > MAX_PICTURE_PIXELS:
        raise ImageError(
            f"The picture has {pixels:,} pixels; {MAX_PICTURE_PIXELS:,} are allowed.",
            extra={"limit": "pixels", "allowed": MAX_PICTURE_PIXELS, "found": pixels},
        )


def _convert_to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # Pillow's own conversion of 16-bit grey clips values instead of scaling them.
        image = image.point(lambda value: value * (1 / 256)).convert("L")
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def _rotate(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # noqa: BLE001  # the picture is valid without its damaged EXIF data
        return image


def _encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    # The PNG encoder would copy the metadata into the file.
    image.info.clear()
    target = io.BytesIO()
    image.save(target, kind, **options)
    return target.getvalue()
