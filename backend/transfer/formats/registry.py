"""The formats of chat files, and the recognition of one by its content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from backend.transfer.formats.agnai import AGNAI, AGNAI_BUNDLES
from backend.transfer.formats.bundles import BundleFormat
from backend.transfer.formats.character_ai import CHARACTER_AI, CHARACTER_AI_BUNDLES
from backend.transfer.formats.chat_file import ChatFormat
from backend.transfer.formats.kobold_lite import KOBOLD_LITE
from backend.transfer.formats.oobabooga import OOBABOOGA
from backend.transfer.formats.plain_log import PLAIN_LOG
from backend.transfer.formats.risu import RISU
from backend.transfer.formats.risu_backup import RISU_BACKUP, RISU_BUNDLES
from backend.transfer.formats.sillytavern import SILLYTAVERN

HEAD_BYTES: Final = 64 * 1024
"""The part of a file that recognises its format."""

FORMATS: Final[Sequence[ChatFormat]] = (
    SILLYTAVERN,
    RISU_BACKUP,
    RISU,
    OOBABOOGA,
    KOBOLD_LITE,
    CHARACTER_AI,
    AGNAI,
    PLAIN_LOG,
)
"""The first one that matches is used. Plain logs are last, because they have no mark."""

BUNDLES: Final[Sequence[BundleFormat]] = (RISU_BUNDLES, CHARACTER_AI_BUNDLES, AGNAI_BUNDLES)


def find_format(head: bytes, name: str) -> ChatFormat | None:
    """Return the format of a chat file by its beginning and its name, or None."""
    return next((each for each in FORMATS if each.matches(head[:HEAD_BYTES], name)), None)


def get_format(name: str) -> ChatFormat | None:
    """Return a format by its own name, or None."""
    return next((each for each in FORMATS if each.name == name), None)


def find_bundle(head: bytes, name: str) -> BundleFormat | None:
    """Return the format of a file with characters and their chats, or None.

    Such a file matches a `ChatFormat` as well, which reads only its chats.
    """
    return next((each for each in BUNDLES if each.matches(head[:HEAD_BYTES], name)), None)
