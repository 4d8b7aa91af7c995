"""Cards into files that other tools read.

`raw` is the source that `merge` draws on: an empty object for a character that was never imported.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from backend.characters.cards import charx, png
from backend.characters.cards.assets import (
    EMBEDDED_SCHEMES,
    RISU_SCHEME,
    embedded_path,
    icons,
    media_type,
)
from backend.characters.cards.errors import CardError
from backend.characters.cards.merge import ExportSpec, card_object, with_changes
from backend.characters.cards.model import Asset, Card, CardAsset
from backend.characters.cards.reader import read_texts

_ICON_PATH = "assets/icon/images/main.png"
_SPECS: Mapping[bytes, ExportSpec] = {b"chara": "v2", b"ccv3": "v3"}


def to_json(card: Card, raw: Mapping[str, Any], spec: ExportSpec = "v3") -> bytes:
    """A JSON file, indented for people."""
    encoded = msgspec.json.encode(card_object(card, raw, spec))
    return msgspec.json.format(encoded, indent=2)


def to_png(card: Card, raw: Mapping[str, Any], picture: bytes) -> bytes:
    """`picture`, a PNG, with the card as V3 and as V2 in it."""
    return png.with_texts(picture, {word: _packed(card, raw, _SPECS[word]) for word in _SPECS})


def to_changed_png(card: Card, before: Card, original: bytes, picture: bytes | None) -> bytes:
    """The PNG that a card was imported from, with what has changed since.

    What did not change stays byte for byte. Each of its texts takes over the fields that changed
    and keeps what it says else: a `chara` that differs from `ccv3` still does.

    Args:
        card: The card now.
        before: The card as it was imported.
        original: The file that it was imported from.
        picture: A PNG that takes the place of the file's picture; None where that one stays.
    """
    if card == before and picture is None:
        return original
    found = read_texts(original)
    believed = next(found[word] for word in png.CARD_KEYWORDS if word in found)
    texts: dict[bytes, bytes] = {}
    for word, spec in _SPECS.items():
        text = found.get(word, believed)
        texts[word] = _packed(with_changes(text.found.card, before, card), text.raw, spec)
    if picture is None:
        return png.with_texts(original, texts)
    return png.with_texts(picture, texts, more=png.find_texts(original).assets.values())


def png_assets(card: Card, original: bytes) -> tuple[Card, list[Asset]]:
    """The files that RisuAI put into a PNG, under paths of an archive, and the card that says so.

    One that is no base64 is left out.
    """
    named = {asset.uri: asset for asset in card.assets}
    files: dict[str, Asset] = {}
    for name, chunk in png.find_texts(original).assets.items():
        uri = RISU_SCHEME + name
        asset = named.get(uri, CardAsset())
        kind, extension = (_path_part(part) for part in (asset.type, asset.ext))
        path = f"assets/{kind or 'other'}/{len(files)}.{extension or 'bin'}"
        with suppress(CardError):
            data = png.decode_value(png.TextReader().read(chunk))
            files[uri] = Asset(path, media_type(path), data)
    assets = [
        msgspec.structs.replace(asset, uri=EMBEDDED_SCHEMES[0] + files[asset.uri].path)
        if asset.uri in files
        else asset
        for asset in card.assets
    ]
    return msgspec.structs.replace(card, assets=assets), list(files.values())


def _path_part(text: str) -> str:
    return "".join(char for char in text[:20].lower() if char.isascii() and char.isalnum())


def _packed(card: Card, raw: Mapping[str, Any], spec: ExportSpec) -> bytes:
    return b2a_base64(msgspec.json.encode(card_object(card, raw, spec)), newline=False)


def to_charx(
    card: Card,
    raw: Mapping[str, Any],
    *,
    picture: bytes | None = None,
    assets: Iterable[Asset] = (),
) -> bytes:
    """A CHARX archive of the card and its files.

    Args:
        card: The card.
        raw: Its source.
        picture: A PNG that takes the place of the main icon.
        assets: The files, under the paths that the card's `assets` name.

    Raises:
        CardError: A path leads out of the archive.
    """
    files = {charx.safe_path(asset.path): asset.data for asset in assets}
    files.pop(charx.CARD_NAME, None)
    if picture is not None:
        card = _with_icon(card, files, picture)
    text = msgspec.json.encode(card_object(card, raw, "v3"))
    return charx.pack({charx.CARD_NAME: text, **files})


def _with_icon(card: Card, files: dict[str, bytes], picture: bytes) -> Card:
    """The card with `picture` for its main icon, and the picture among the files.

    It stands where the former one stood, where that was a PNG, too.
    """
    former = next(iter(icons(card.assets)), None)
    others = [asset for asset in card.assets if asset is not former]
    place = card.assets.index(former) if former else 0
    path = embedded_path(former.uri) if former else None
    target = _ICON_PATH
    if path is not None and path not in map(embedded_path, (other.uri for other in others)):
        files.pop(path, None)
        target = path if path.lower().endswith(".png") else target
    while target in files:
        target = target.replace("/main", "/main_")
    files[target] = picture
    uri = former.uri if former and path == target else EMBEDDED_SCHEMES[0] + target
    name = former.name if former else "main"
    main = CardAsset(type="icon", uri=uri, name=name, ext="png")
    return msgspec.structs.replace(card, assets=[*others[:place], main, *others[place:]])
