"""Cards into files that other tools read.

Each function takes the source, `raw`, that `merge` draws on: an empty object for a character that
was never imported.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from backend.characters.cards import charx, png
from backend.characters.cards.assets import EMBEDDED_SCHEMES, embedded_path, icons
from backend.characters.cards.merge import ExportSpec, card_object
from backend.characters.cards.model import Asset, Card, CardAsset
from backend.characters.images import as_png

_ICON_PATH = "assets/icon/images/main.png"


def to_json(card: Card, raw: Mapping[str, Any], spec: ExportSpec = "v3") -> bytes:
    """A JSON file, indented for people."""
    encoded = msgspec.json.encode(card_object(card, raw, spec))
    return msgspec.json.format(encoded, indent=2)


def to_png(card: Card, raw: Mapping[str, Any], image: bytes) -> bytes:
    """A PNG of `image` (any format that is read) that carries the card as V3 and as V2.

    The picture is encoded anew: no chunk of the former file is in it.

    Raises:
        ImageError: `image` can't be read.
    """
    texts = {b"chara": _packed(card, raw, "v2"), b"ccv3": _packed(card, raw, "v3")}
    return png.with_texts(as_png(image), texts)


def _packed(card: Card, raw: Mapping[str, Any], spec: ExportSpec) -> bytes:
    return b2a_base64(msgspec.json.encode(card_object(card, raw, spec)), newline=False)


def to_charx(
    card: Card,
    raw: Mapping[str, Any],
    *,
    image: bytes | None = None,
    assets: Iterable[Asset] = (),
) -> bytes:
    """A CHARX archive of the card and its files.

    Args:
        card: The card.
        raw: Its source.
        image: The character's picture: takes the place of the main icon, as a PNG.
        assets: The files, under the paths that the card's `assets` name.

    Raises:
        CardError: A path leads out of the archive.
        ImageError: `image` can't be read.
    """
    files = {charx.safe_path(asset.path): asset.data for asset in assets}
    files.pop(charx.CARD_NAME, None)
    if image is not None:
        card = _with_icon(card, files, as_png(image))
    text = msgspec.json.encode(card_object(card, raw, "v3"))
    return charx.pack({charx.CARD_NAME: text, **files})


def _with_icon(card: Card, files: dict[str, bytes], picture: bytes) -> Card:
    """The card with `picture` for its main icon, and the picture among the files."""
    former = next(iter(icons(card.assets)), None)
    others = [asset for asset in card.assets if asset is not former]
    path = embedded_path(former.uri) if former else None
    if path is not None and path not in map(embedded_path, (other.uri for other in others)):
        files.pop(path, None)
    target = _ICON_PATH
    while target in files:
        target = target.replace("/main", "/main_")
    files[target] = picture
    main = CardAsset(type="icon", uri=EMBEDDED_SCHEMES[0] + target, name="main", ext="png")
    return msgspec.structs.replace(card, assets=[main, *others])
