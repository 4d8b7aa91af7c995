"""Write cards as files that other tools read.

`raw` is the source of a card, or an empty object if the character was not imported.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, cast

import msgspec

from backend.characters.cards import charx, png
from backend.characters.cards.charx import (
    EMBEDDED_SCHEMES,
    RISU_SCHEME,
    find_embedded_path,
    guess_media_type,
    list_icons,
)
from backend.characters.cards.codec import Object, get_object, omit, overlay
from backend.characters.cards.fields import CARD_FIELDS, FLAT_FIELDS, REQUIRED
from backend.characters.cards.model import Asset, Card, CardAsset
from backend.characters.cards.reader import read_texts
from backend.characters.errors import CardError
from backend.core.files import portable_paths

ExportSpec = Literal["v2", "v3"]

_ICON_PATH = "assets/icon/images/main.png"
_VERSIONS = {"v2": ("chara_card_v2", "2.0"), "v3": ("chara_card_v3", "3.0")}
_ENVELOPE = {"spec", "spec_version", "data"}
_MIRRORED_EXTENSIONS = {"talkativeness", "fav"}
_KNOWN_EXTENSIONS = {"depth_prompt", "talkativeness", "fav", "world"}
"""Extensions that users can edit, so they can also be deleted."""
_SPECS: Mapping[bytes, ExportSpec] = {b"chara": "v2", b"ccv3": "v3"}


def build_card_object(card: Card, raw: Mapping[str, Any], spec: ExportSpec) -> Object:
    """Return the JSON object of `card` in version 2 or 3.

    Known fields come from the card. Unknown members are restored from `raw`, the source: at the
    top, in `data`, in `extensions`, and in each asset's entry.

    Fields of V3 are also written into V2 if they are set. Readers of V2 ignore them, and nothing is
    lost between tools that know both.
    """
    is_nested = isinstance(raw.get("data"), dict)
    nested = get_object(raw, "data")
    data = {
        **_write_known_fields(card, nested if is_nested else raw, spec),
        **omit(nested, CARD_FIELDS.members),
    }
    name, version = _VERSIONS[spec]
    outside = (
        _copy_unknown_members(raw, data)
        if is_nested
        else omit(raw, FLAT_FIELDS.members | _ENVELOPE)
    )
    return {"spec": name, "spec_version": version, "data": data, **outside}


def _write_known_fields(card: Card, source: Mapping[str, Any], spec: ExportSpec) -> Object:
    values = cast("Object", msgspec.to_builtins(card))
    # Extensions of other tools are restored. A known one may have been deleted on purpose.
    others = omit(get_object(source, "extensions"), _KNOWN_EXTENSIONS)
    values["extensions"] = others | values["extensions"]
    values["assets"] = _merge_assets(values["assets"], source.get("assets"))
    required = REQUIRED | {"group_only_greetings"} if spec == "v3" else REQUIRED
    return {
        name: value
        for name, value in CARD_FIELDS.write(values).items()
        if value or name in required or (name in source and value is not None)
    }


def _merge_assets(own: list[Object], listed: object) -> list[Object]:
    """Merge each asset into its former entry, identified by its URI, name and type."""
    entries = cast("list[object]", listed) if isinstance(listed, list) else []
    objects = [cast("Object", entry) for entry in entries if isinstance(entry, dict)]
    former = {_get_asset_key(entry): entry for entry in objects}
    return [{**former.get(_get_asset_key(asset), {}), **asset} for asset in own]


def _get_asset_key(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(name, "")) for name in ("type", "uri", "name"))


def _copy_unknown_members(raw: Mapping[str, Any], data: Object) -> Object:
    """Return the members outside `data`.

    SillyTavern repeats fields there for readers of V1. They are updated from `data`.
    """
    extensions = data["extensions"]
    mirrors = {
        **{name: value for name, value in data.items() if name in CARD_FIELDS.members},
        **{name: extensions[name] for name in _MIRRORED_EXTENSIONS if name in extensions},
        "creatorcomment": data["creator_notes"],
    }
    return {name: mirrors.get(name, value) for name, value in omit(raw, _ENVELOPE).items()}


def to_json(card: Card, raw: Mapping[str, Any], spec: ExportSpec = "v3") -> bytes:
    """Return an indented JSON file."""
    encoded = msgspec.json.encode(build_card_object(card, raw, spec))
    return msgspec.json.format(encoded, indent=2)


def to_png(card: Card, raw: Mapping[str, Any], picture: bytes) -> bytes:
    """Return `picture`, a PNG, with the card as V3 and as V2."""
    return png.replace_texts(
        picture, {word: _pack_card(card, raw, _SPECS[word]) for word in _SPECS}
    )


def to_changed_png(card: Card, before: Card, original: bytes, picture: bytes | None) -> bytes:
    """Return the imported PNG, `original`, with all changes from `before` to `card`.

    Unchanged parts stay byte for byte. Each text of the PNG gets the changed fields and keeps its
    other fields, so that a `chara` that differs from `ccv3` still differs. `picture`, a PNG,
    replaces the picture of the file.
    """
    if card == before and picture is None:
        return original
    found = read_texts(original)
    believed = next(found[word] for word in png.CARD_KEYWORDS if word in found)
    texts: dict[bytes, bytes] = {}
    for word, spec in _SPECS.items():
        text = found.get(word, believed)
        changed = overlay(*map(msgspec.to_builtins, (text.card, before, card)))
        texts[word] = _pack_card(msgspec.convert(changed, Card), text.raw, spec)
    if picture is None:
        return png.replace_texts(original, texts)
    return png.replace_texts(picture, texts, more=png.find_texts(original).assets.values())


def extract_png_assets(card: Card, original: bytes) -> tuple[Card, list[Asset]]:
    """Return the files that RisuAI put into a PNG, and the card with their new URIs.

    The files get paths of an archive. Invalid base64 is left out.
    """
    named = {asset.uri: asset for asset in card.assets}
    files: dict[str, Asset] = {}
    for name, chunk in png.find_texts(original).assets.items():
        uri = RISU_SCHEME + name
        asset = named.get(uri, CardAsset())
        kind, extension = (_clean_path_part(part) for part in (asset.type, asset.ext))
        path = f"assets/{kind or 'other'}/{len(files)}.{extension or 'bin'}"
        with suppress(CardError):
            data = png.decode_value(png.TextReader().read(chunk))
            files[uri] = Asset(path, guess_media_type(path), data)
    assets = [
        msgspec.structs.replace(asset, uri=EMBEDDED_SCHEMES[0] + files[asset.uri].path)
        if asset.uri in files
        else asset
        for asset in card.assets
    ]
    return msgspec.structs.replace(card, assets=assets), list(files.values())


def _clean_path_part(text: str) -> str:
    return "".join(char for char in text[:20].lower() if char.isascii() and char.isalnum())


def _pack_card(card: Card, raw: Mapping[str, Any], spec: ExportSpec) -> bytes:
    return b2a_base64(msgspec.json.encode(build_card_object(card, raw, spec)), newline=False)


def to_charx(
    card: Card,
    raw: Mapping[str, Any],
    *,
    picture: bytes | None = None,
    assets: Iterable[Asset] = (),
) -> bytes:
    """Return a CHARX archive of the card and its files, by the paths in the card's `assets`.

    `picture`, a PNG, replaces the main icon. Raises `CardError` if a path leads out of the archive.
    """
    files = {charx.normalise_path(asset.path): asset.data for asset in assets}
    files.pop(charx.CARD_NAME, None)
    card, files = _rename_files(card, files)
    if picture is not None:
        card = _replace_icon(card, files, picture)
    text = msgspec.json.encode(build_card_object(card, raw, "v3"))
    return charx.pack({charx.CARD_NAME: text, **files})


def _rename_files(card: Card, files: Mapping[str, bytes]) -> tuple[Card, dict[str, bytes]]:
    """Return the files under paths that every system can unpack, and the card with those paths."""
    paths = portable_paths(files)
    assets = [
        msgspec.structs.replace(asset, uri=EMBEDDED_SCHEMES[0] + paths[path])
        if (path := find_embedded_path(asset.uri)) in paths and paths[path] != path
        else asset
        for asset in card.assets
    ]
    moved = {paths[path]: data for path, data in files.items()}
    return msgspec.structs.replace(card, assets=assets), moved


def _replace_icon(card: Card, files: dict[str, bytes], picture: bytes) -> Card:
    """Return the card with `picture` as its main icon, and add the picture to the files.

    It gets the path of the former icon if that is a PNG, too.
    """
    former = next(iter(list_icons(card.assets)), None)
    others = [asset for asset in card.assets if asset is not former]
    place = card.assets.index(former) if former else 0
    path = find_embedded_path(former.uri) if former else None
    target = _ICON_PATH
    if path is not None and path not in map(find_embedded_path, (other.uri for other in others)):
        files.pop(path, None)
        target = path if path.lower().endswith(".png") else target
    while target in files:
        target = target.replace("/main", "/main_")
    files[target] = picture
    uri = former.uri if former and path == target else EMBEDDED_SCHEMES[0] + target
    name = former.name if former else "main"
    main = CardAsset(type="icon", uri=uri, name=name, ext="png")
    return msgspec.structs.replace(card, assets=[*others[:place], main, *others[place:]])
