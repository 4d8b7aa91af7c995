"""The services and the state that the steps of one folder's import share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import TypeVar
from uuid import UUID

from backend.accounts.auth.identity import Identity
from backend.characters.cards.model import MAX_FILE_BYTES
from backend.transfer.contracts import (
    FileTree,
    ImportContext,
    StepResult,
)
from backend.transfer.errors import TransferFileError
from backend.transfer.folders.groups import GroupFile
from backend.transfer.folders.layout import UserFolder
from backend.transfer.folders.settings_file import FolderSettings
from backend.transfer.imported import digest_file, find_imported, record_imported
from backend.transfer.models import ItemKind
from backend.transfer.services import ImportServices
from backend.vault.sealing import Sealer

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderContents:
    """A user folder with its settings and groups. `faults` are the errors of broken files by path.

    `groups` are by the path of their file.
    """

    folder: UserFolder
    settings: FolderSettings
    groups: Mapping[str, GroupFile]
    faults: Mapping[str, TransferFileError]


@dataclass(slots=True, kw_only=True)
class FolderRun:
    """The import of one folder. Only items of the account are in it, and no content of files."""

    services: ImportServices
    contents: FolderContents
    context: ImportContext
    missing: set[tuple[ItemKind, str]] = field(default_factory=set[tuple[ItemKind, str]])
    """Files that were looked up and made no item."""

    @property
    def folder(self) -> UserFolder:
        return self.contents.folder

    @property
    def settings(self) -> FolderSettings:
        return self.contents.settings

    @property
    def identity(self) -> Identity:
        return self.context.identity

    @property
    def sealer(self) -> Sealer:
        return self.context.identity.sealer

    async def work(self, work: Callable[[], T]) -> T:
        """Run CPU-bound work, or work on the tree, in a thread."""
        return await self.services.pool.run(self.identity.user_id, work, is_job=True)

    async def read(self, path: str) -> bytes:
        """Read a whole file. Raises `TransferFileError` if it is too large for one."""
        return await self.work(partial(read_whole, self.context.tree, path))

    async def digest(self, path: str) -> bytes:
        return await self.work(partial(digest_path, self.sealer, self.context.tree, path))

    async def find(self, *digests: bytes) -> UUID | None:
        """Return the item of the first digest that is already there."""
        async with self.services.database.read() as session:
            for digest in digests:
                found = await find_imported(session, self.identity.user_id, digest)
                if found is not None:
                    return found.item_id
        return None

    async def find_unless_copy(self, *digests: bytes) -> UUID | None:
        """Return the item that makes an import unnecessary, or None."""
        return None if self.context.options.copy else await self.find(*digests)

    async def record(self, kind: ItemKind, item_id: UUID, *digests: bytes) -> None:
        """Record an item that its service has stored before."""
        async with self.services.database.write() as session:
            for digest in digests:
                await record_imported(
                    session, self.sealer, digest=digest, kind=kind, item_id=item_id
                )

    def note(self, kind: ItemKind, path: str, item_id: UUID) -> None:
        """Remember the item of a file for later steps."""
        self.context.found[kind, path] = item_id

    async def find_item(self, kind: ItemKind, path: str | None) -> UUID | None:
        """Return the item of a file, or None.

        An import that is continued has not run the steps of the first part again, so that the item
        may only be known by the file's digest.
        """
        if path is None or (kind, path) in self.missing:
            return None
        found = self.context.found.get((kind, path))
        if found is None:
            found = await self.find(await self.digest(path))
            if found is None:
                self.missing.add((kind, path))
            else:
                self.note(kind, path, found)
        return found


def read_whole(tree: FileTree, path: str, *, limit: int = MAX_FILE_BYTES) -> bytes:
    """Read a file of a tree. Raises `TransferFileError`."""
    if (size := tree.get_size(path)) > limit:
        raise TransferFileError(f"The file has {size:,} bytes; {limit:,} are allowed.")
    with tree.open(path) as file:
        return file.read(limit + 1)


def digest_path(sealer: Sealer, tree: FileTree, path: str) -> bytes:
    with tree.open(path) as file:
        return digest_file(sealer, file)


def digest_bytes(sealer: Sealer, data: bytes) -> bytes:
    """Return the digest of a file that has been read."""
    return digest_file(sealer, BytesIO(data))


def skip(detail: str, *, warnings: Sequence[str] = ()) -> StepResult:
    return StepResult(outcome="skipped", detail=detail, warnings=warnings)
