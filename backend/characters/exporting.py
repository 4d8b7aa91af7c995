"""A character into a file that other tools read. CPU-bound, no database."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from backend.characters.cards.merge import ExportSpec
from backend.characters.cards.model import Asset, Card
from backend.characters.cards.writer import to_charx, to_json, to_png
from backend.characters.images import placeholder_png

_STEM_LENGTH = 80
_FALLBACK_STEM = "character"
# Separators of paths, and what Windows refuses in names.
_FORBIDDEN = re.compile(r'[<>:"/\\|?*]+')
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9 ._-]+")
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file to download. `stem` is its name without the extension, of the user's own words."""

    data: bytes
    media_type: str
    stem: str
    extension: str

    @property
    def disposition(self) -> str:
        """The `Content-Disposition` header: the name in ASCII, and as it is (RFC 6266, 8187)."""
        stem = _file_stem(self.stem)
        folded = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode()
        plain = _file_stem(_NOT_PLAIN.sub("", folded))
        return (
            f'attachment; filename="{plain}.{self.extension}"; '
            f"filename*=UTF-8''{quote(stem, safe='')}.{self.extension}"
        )


def export_json(card: Card, source: Mapping[str, Any], spec: ExportSpec) -> ExportedFile:
    """A JSON card of version 2 or 3."""
    return ExportedFile(to_json(card, source, spec), "application/json", card.name, "json")


def export_png(card: Card, source: Mapping[str, Any], picture: bytes | None) -> ExportedFile:
    """The card inside its picture; inside a placeholder where there is none."""
    image = picture or placeholder_png(card.name)
    return ExportedFile(to_png(card, source, image), "image/png", card.name, "png")


def export_charx(
    card: Card, source: Mapping[str, Any], picture: bytes | None, assets: Iterable[Asset]
) -> ExportedFile:
    """An archive of the card (version 3), its picture, and the files that came with it."""
    data = to_charx(card, source, image=picture, assets=assets)
    return ExportedFile(data, "application/zip", card.name, "charx")


def _file_stem(name: str) -> str:
    """`name` as a file's name on any system: one line, no path, no device, of bounded length."""
    # Not printable are also the marks that turn the direction of writing, and so hide extensions.
    printable = "".join(char if char.isprintable() else " " for char in name)
    words = " ".join(_FORBIDDEN.sub(" ", printable).split())
    stem = words[:_STEM_LENGTH].strip(" .")
    return _FALLBACK_STEM if not stem or _DEVICES.match(stem) else stem
