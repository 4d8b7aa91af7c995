"""Images in requests: `data:` URLs are decoded and checked, https URLs are kept as they are."""

from __future__ import annotations

import binascii
from urllib.parse import urlsplit

from backend.characters.cards import png
from backend.generation.model import PromptImage
from backend.openai_api.errors import InvalidParameterError

MAX_IMAGES = 64
MAX_IMAGE_BYTES = 20 * 1024 * 1024
MAX_URL_CHARACTERS = 2_048

_BASE64 = ";base64"
_HEAD_CHARACTERS = 200
_WEBP_HEAD_BYTES = 12


class ImageReader:
    """Reads the images of one request, and limits their number."""

    def __init__(self) -> None:
        self._count = 0
        self._images: list[PromptImage] = []

    def add(self, url: str, param: str) -> None:
        """Read an image of the current message. `param` is its path in the body.

        Raises `InvalidParameterError`.
        """
        self._count += 1
        if self._count > MAX_IMAGES:
            raise InvalidParameterError(param, f"Send at most {MAX_IMAGES} images.")
        self._images.append(read_image(url, param))

    def take(self) -> tuple[PromptImage, ...]:
        """Return the images of the current message, and begin the next one."""
        images, self._images = tuple(self._images), []
        return images


def read_image(url: str, param: str) -> PromptImage:
    """Return the image of a `data:` or https URL. Raises `InvalidParameterError`."""
    if url[:5].lower() == "data:":
        return _decode_image(url, param)
    if not _is_https(url):
        raise InvalidParameterError(param, "Send a `data:` URL in base64, or an https URL.")
    return PromptImage(url=url)


def find_media_type(data: bytes) -> str | None:
    """Return the media type of a picture by its content. None for other files."""
    if data.startswith(png.SIGNATURE):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:_WEBP_HEAD_BYTES] == b"WEBP":
        return "image/webp"
    return None


def _decode_image(url: str, param: str) -> PromptImage:
    comma = url.find(",", 0, _HEAD_CHARACTERS)
    if comma < 0 or not url[:comma].lower().endswith(_BASE64):
        raise InvalidParameterError(param, "A `data:` URL must be in base64.")
    try:
        data = binascii.a2b_base64(url[comma + 1 :])
    except ValueError:  # binascii.Error, or a character that is not ASCII
        raise InvalidParameterError(param, "The image is not valid base64.") from None
    if len(data) > MAX_IMAGE_BYTES:
        raise InvalidParameterError(
            param, f"The image has {len(data):,} bytes; {MAX_IMAGE_BYTES:,} are allowed."
        )
    media_type = find_media_type(data)
    if media_type is None:
        raise InvalidParameterError(param, "The image is not a PNG, JPEG, WebP or GIF.")
    return PromptImage(media_type=media_type, data=data)


def _is_https(url: str) -> bool:
    if len(url) > MAX_URL_CHARACTERS or not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" and bool(parts.hostname)
