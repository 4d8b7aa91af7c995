"""The pictures of characters and of personas: encoded anew, sealed, one each at most.

What is shown was written by this module: no metadata, no trailing bytes, nothing of the file that
came in but its pixels.
"""

from __future__ import annotations

import colorsys
import hashlib
import io
import unicodedata
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from PIL import Image, ImageDraw, ImageFont, ImageOps
from sqlalchemy.ext.asyncio import AsyncSession

from backend.accounts.identity import Identity
from backend.characters import repository
from backend.characters.cards import png
from backend.characters.cards.limits import check_file_size
from backend.characters.errors import AvatarNotFoundError, CardError
from backend.characters.models import AVATAR_IMAGE, AVATAR_THUMBNAIL, Avatar
from backend.characters.repository import HolderLink
from backend.characters.schemas import AvatarSize
from backend.cpu_pool import CpuPool
from backend.database.base import new_id
from backend.database.engine import Database
from backend.errors import AppError
from backend.vault.sealing import Sealer

_COLUMNS = {"full": AVATAR_IMAGE, "thumbnail": AVATAR_THUMBNAIL}


class GetHolder(Protocol):
    """`repository.get_character` or `get_persona`: raises for what is not the owner's."""

    async def __call__(
        self, session: AsyncSession, holder_id: UUID, /, *, owner_id: UUID, lock: bool = False
    ) -> object:
        """The row of the character or persona."""
        ...


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as it is served. `tag` changes whenever the picture does."""

    data: bytes
    media_type: str
    tag: str


class AvatarService:
    """The pictures of one kind of holder: of characters, or of personas.

    Args:
        database: Where they are.
        pool: Where pictures are encoded, some hundred megabytes each.
        link: The column that ties a picture to its holder.
        get_holder: Finds the holder; what it raises for a holder that is not there, every method
            here raises.
    """

    def __init__(
        self,
        database: Database,
        pool: CpuPool,
        *,
        link: HolderLink,
        get_holder: GetHolder,
    ) -> None:
        self._database = database
        self._pool = pool
        self._link = link
        self._get_holder = get_holder

    async def read(self, identity: Identity, holder_id: UUID, size: AvatarSize) -> Picture:
        """Raises the holder's not-found error, or `AvatarNotFoundError`."""
        owner_id = identity.user_id
        async with self._database.read() as session:
            stored = await repository.find_avatar(
                session, self._link, holder_id, owner_id=owner_id, size=size
            )
            if stored is None:
                await self._get_holder(session, holder_id, owner_id=owner_id)
                raise AvatarNotFoundError
        data = identity.sealer.open_bytes(_COLUMNS[size], stored.id, stored.sealed)
        return Picture(data, stored.media_type, f"{stored.id.hex}-{size}")

    async def replace(self, identity: Identity, holder_id: UUID, data: bytes) -> None:
        """Make a file (PNG, JPEG, WebP, GIF) the picture.

        Raises the holder's not-found error, `ImageError`, `TooLargeError`.
        """
        owner_id = identity.user_id
        async with self._database.read() as session:
            await self._get_holder(session, holder_id, owner_id=owner_id)
        avatar = await self._pool.run(
            owner_id, partial(sealed_avatar, identity.sealer, self._link, holder_id, data)
        )
        async with self._database.write() as session:
            await self._get_holder(session, holder_id, owner_id=owner_id, lock=True)
            await repository.delete_avatar(session, self._link, holder_id, owner_id=owner_id)
            session.add(avatar)

    async def remove(self, identity: Identity, holder_id: UUID) -> None:
        """Raises the holder's not-found error, or `AvatarNotFoundError`."""
        owner_id = identity.user_id
        async with self._database.write() as session:
            await self._get_holder(session, holder_id, owner_id=owner_id, lock=True)
            if not await repository.delete_avatar(
                session, self._link, holder_id, owner_id=owner_id
            ):
                raise AvatarNotFoundError


def sealed_avatar(
    sealer: Sealer, link: HolderLink, holder_id: UUID, data: bytes, *, is_imported: bool = False
) -> Avatar:
    """The row of a picture, encoded anew. CPU-bound.

    Raises `ImageError`, `TooLargeError`.
    """
    picture = reencode_avatar(data)
    avatar_id = new_id()
    return Avatar(
        id=avatar_id,
        user_id=sealer.user_id,
        media_type=picture.media_type,
        thumbnail_media_type=picture.thumbnail_media_type,
        is_imported=is_imported,
        sealed_image=sealer.seal_bytes(AVATAR_IMAGE, avatar_id, picture.data),
        sealed_thumbnail=sealer.seal_bytes(AVATAR_THUMBNAIL, avatar_id, picture.thumbnail),
        **{link.key: holder_id},
    )


MAX_PIXELS = 25_000_000
AVATAR_SIDE = 1024
THUMBNAIL_SIDE = 256
PLACEHOLDER_SIDE = 512

# Pillow warns of decompression bombs before it refuses them: here a warning is a refusal.
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_IN_NO_FONT = "\U0010ffff"
_AVATAR_QUALITY = 90
_THUMBNAIL_QUALITY = 80


class ImageError(AppError):
    """The picture is broken, of another format than those that are read, or too large to decode.

    Where the pixels were too many, the problem has `limit`, `allowed` and, below Pillow's own
    limit, `found`.
    """

    status, slug, title = 422, "unreadable-image", "The picture could not be read"


@dataclass(frozen=True, slots=True)
class EncodedAvatar:
    """A picture as it is stored: at most `AVATAR_SIDE` pixels a side, `width` by `height`.

    The thumbnail has at most `THUMBNAIL_SIDE` pixels a side. Transparency is kept in both.
    """

    data: bytes
    media_type: str
    width: int
    height: int
    thumbnail: bytes
    thumbnail_media_type: str


def reencode_avatar(data: bytes) -> EncodedAvatar:
    """Read a PNG, JPEG, WebP or GIF (its first frame) into what is stored of it.

    Turned upright as its EXIF says, scaled down where it is larger, stripped of all metadata.

    Raises:
        ImageError: Corrupt, cut short, of another format, or of more than `MAX_PIXELS`.
        TooLargeError: A file over the size limit.
    """
    image = _decode(data)
    image.thumbnail((AVATAR_SIDE, AVATAR_SIDE), Image.Resampling.LANCZOS)
    thumbnail = image.copy()
    thumbnail.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
    return EncodedAvatar(
        data=_encode(image, "WEBP", quality=_AVATAR_QUALITY),
        media_type="image/webp",
        width=image.width,
        height=image.height,
        thumbnail=_encode(thumbnail, "WEBP", quality=_THUMBNAIL_QUALITY),
        thumbnail_media_type="image/webp",
    )


def as_png(data: bytes) -> bytes:
    """The same picture as a PNG of its own size, upright and without metadata.

    Raises:
        ImageError: As `reencode_avatar` does.
        TooLargeError: A file over the size limit.
    """
    return _encode(_decode(data), "PNG")


def placeholder_png(name: str) -> bytes:
    """A PNG for a character without a picture: the initial on a colour of the name's own.

    The same name gives the same picture. Plain colour where the font lacks the initial.
    """
    hue = hashlib.sha256(name.encode()).digest()[0] / 256
    red, green, blue = (round(255 * part) for part in colorsys.hls_to_rgb(hue, 0.4, 0.45))
    image = Image.new("RGB", (PLACEHOLDER_SIDE, PLACEHOLDER_SIDE), (red, green, blue))
    initial = _initial(name)
    if _letter(initial).tobytes() != _letter(_IN_NO_FONT).tobytes():
        image.paste("white", mask=_letter(initial))
    return _encode(image, "PNG")


def _initial(name: str) -> str:
    """The first letter or digit, without its accent (the font has few), in upper case."""
    letters = (char for char in unicodedata.normalize("NFKD", name) if char.isalnum())
    return next(letters, _IN_NO_FONT).upper()[0]


def _letter(char: str) -> Image.Image:
    """A mask of the letter in the middle; a box where the font lacks it."""
    mask = Image.new("L", (PLACEHOLDER_SIDE, PLACEHOLDER_SIDE))
    font = ImageFont.load_default(size=PLACEHOLDER_SIDE / 2)
    middle = (PLACEHOLDER_SIDE / 2, PLACEHOLDER_SIDE / 2)
    ImageDraw.Draw(mask).text(middle, char, fill=255, font=font, anchor="mm")
    return mask


def _decode(data: bytes) -> Image.Image:
    """The pixels as RGB or RGBA, upright; the size is checked before any are decoded."""
    check_file_size(len(data))
    if data.startswith(png.SIGNATURE):
        data = _without_texts(data)
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_pixels(image)
            image.load()
            return _upright(_to_rgb(image))
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(
            f"The picture has more than {MAX_PIXELS:,} pixels, the most that is allowed.",
            extra={"limit": "pixels", "allowed": MAX_PIXELS},
        ) from error
    except Exception as error:  # Pillow's decoders let through whatever their parsing trips over
        raise ImageError("The picture is corrupt, or no PNG, JPEG, WebP or GIF.") from error


def _without_texts(data: bytes) -> bytes:
    """Pillow refuses a picture over a fault in its text: a card's text is none of its business."""
    try:
        return png.without_texts(data)
    except CardError as error:
        raise ImageError(error.detail, extra=error.extra) from error


def _check_pixels(image: Image.Image) -> None:
    pixels = image.width * image.height
    if pixels > MAX_PIXELS:
        raise ImageError(
            f"The picture has {pixels:,} pixels; {MAX_PIXELS:,} are allowed.",
            extra={"limit": "pixels", "allowed": MAX_PIXELS, "found": pixels},
        )


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # 16-bit grey: Pillow's own conversion cuts off instead of scaling.
        image = image.point(lambda value: value * (1 / 256)).convert("L")
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # noqa: BLE001 - EXIF broken in whatever way leaves the pixels as they are
        return image


def _encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    # PNG's encoder would copy these into the file.
    image.info.clear()
    target = io.BytesIO()
    image.save(target, kind, **options)
    return target.getvalue()
