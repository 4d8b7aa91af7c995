"""Pictures and archives for tests."""

from __future__ import annotations

import io
import zipfile

from PIL import Image
from PIL.PngImagePlugin import PngInfo

METADATA = "taken at home, 52.37 N 4.90 E"


def picture(
    kind: str = "PNG", *, width: int = 1500, height: int = 900, color: str = "teal"
) -> bytes:
    target = io.BytesIO()
    options: dict[str, object] = {"comment": METADATA.encode()}
    if kind == "PNG":
        info = PngInfo()
        info.add_text("Comment", METADATA)
        options = {"pnginfo": info}
    elif kind == "WEBP":
        options = {"xmp": METADATA.encode()}
    Image.new("RGB", (width, height), color).save(target, kind, **options)
    return target.getvalue()


def opened(data: bytes) -> Image.Image:
    """Decode all pixels of a picture."""
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def archive(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in files.items():
            zipped.writestr(name, data)
    return target.getvalue()
