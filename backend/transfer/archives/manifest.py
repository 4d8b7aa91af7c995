"""The manifest of an account's archive, and the paths of its files."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from backend.core.files import file_stem
from backend.transfer.errors import TransferFileError

MANIFEST = "manifest.json"
FORMAT = "talekeeper-archive"
MAX_NAME_CHARACTERS = 2_000
MAX_ENTRIES = 250_000
MAX_MANIFEST_BYTES = 128 * 1024 * 1024
MAX_UNREADABLE = 100_000

EntryKind = Literal[
    "provider",
    "preset",
    "scripts",
    "persona",
    "avatar",
    "character",
    "lorebook",
    "file",
    "chat",
    "campaign",
    "character_background",
    "chat_background",
    "chronicle",
    "links",
    "chat_state",
    "campaign_state",
    "settings",
]
KINDS: tuple[EntryKind, ...] = EntryKind.__args__  # type: ignore[attr-defined]  # a Literal
"""The kinds in the order of an import: files that others refer to come first."""

UnreadableKind = Literal[
    "provider",
    "preset",
    "scripts",
    "persona",
    "avatar",
    "background",
    "character",
    "lorebook",
    "file",
    "file_name",
    "chat_title",
    "message",
    "chat_settings",
    "chat_variables",
    "summary",
    "lore_state",
    "chat_source",
    "campaign",
    "proposal",
    "chronicle",
    "settings",
    "variables",
]

FOLDERS: dict[EntryKind, str] = {
    "provider": "providers",
    "preset": "presets",
    "persona": "personas",
    "avatar": "personas",
    "character": "characters",
    "lorebook": "worlds",
    "file": "files",
    "chat": "chats",
    "campaign": "campaigns",
    "character_background": "backgrounds",
    "chat_background": "backgrounds",
    "chronicle": "chronicles",
}
STATE_SUFFIX = ".state.json"
PART_KINDS: frozenset[EntryKind] = frozenset(
    {"avatar", "character_background", "chat_background", "chat_state", "campaign_state"}
)
"""Kinds of files with the id of an item that another file contains."""

ArchivePath = Annotated[str, msgspec.Meta(min_length=1, max_length=400)]


class ArchiveEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of an archive.

    `id` is the id of its item in the account that made the archive, and `name` the item's name,
    which the path may have only in part. `chats` are the chats in a
    campaign's file, or the chats that the events of a chronicle come from.
    """

    path: ArchivePath
    kind: EntryKind
    id: UUID | None = None
    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARACTERS)] = ""
    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    chats: Annotated[list[UUID], msgspec.Meta(max_length=10_000)] = []


class UnreadableItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that could not be decrypted when the archive was made.

    A message is in the archive without the damaged text, because later messages follow it. The
    parts of a chat or account leave out only themselves. Any other item is missing as a whole.
    """

    kind: UnreadableKind
    id: UUID


class ArchiveManifest(msgspec.Struct, frozen=True, kw_only=True):
    """`manifest.json`, the last file of an archive. `counts` are the numbers of files by kind.

    `unreadable` are the items that are not in the archive, at most `MAX_UNREADABLE`.
    """

    format: Literal["talekeeper-archive"] = "talekeeper-archive"
    version: Literal[1] = 1
    talekeeper: str = ""
    created_at: datetime
    counts: dict[str, int] = {}
    unreadable: Annotated[list[UnreadableItem], msgspec.Meta(max_length=MAX_UNREADABLE)] = []
    entries: Annotated[list[ArchiveEntry], msgspec.Meta(max_length=MAX_ENTRIES)]


class PathChooser:
    """Chooses a portable path for each item, from its name. Equal names are numbered."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def choose(self, kind: EntryKind, name: str, suffix: str) -> str:
        """Return `FOLDER/NAME.SUFFIX`. `suffix` includes its dot."""
        stem = file_stem(name, fallback=kind)
        return self.reserve(f"{FOLDERS[kind]}/{stem}") + suffix

    def reserve(self, wanted: str) -> str:
        """Return a free path without a suffix. Files with the same stem belong together."""
        path, number = wanted, 2
        while path.casefold() in self._taken:
            path, number = f"{wanted} ({number})", number + 1
        self._taken.add(path.casefold())
        return path


def read_manifest(data: bytes) -> ArchiveManifest:
    """Read an untrusted manifest. CPU-bound. Raises `TransferFileError`."""
    try:
        manifest = msgspec.json.decode(data, type=ArchiveManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TransferFileError(
            f"{MANIFEST} is damaged, or of a newer version of Talekeeper: {error}."
        ) from error
    seen: set[str] = set()
    for entry in manifest.entries:
        if entry.path in seen:
            raise TransferFileError(f"{MANIFEST} lists {entry.path} twice.")
        seen.add(entry.path)
    return manifest


def list_in_order(manifest: ArchiveManifest) -> list[ArchiveEntry]:
    """Return the files that are imported as items, in order. Files of messages come with chats."""
    items = (entry for entry in manifest.entries if entry.kind != "file")
    return sorted(items, key=lambda entry: KINDS.index(entry.kind))


def is_manifest(start: bytes) -> bool:
    """True if a file begins like a manifest. `start` are its first bytes."""
    return start.lstrip().startswith(b"{") and f'"{FORMAT}"'.encode() in start[:200]
