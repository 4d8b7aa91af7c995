"""Contracts of the parts of an import: a tree of files, the steps of a plan, their results."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol
from uuid import UUID

from backend.accounts.auth.identity import Identity
from backend.chats.models import TitleOrigin
from backend.transfer.formats.chat_file import ChatReading
from backend.transfer.models import ItemKind, Outcome


class FileTree(Protocol):
    """The files of an import: a zip, a folder on disk, or a single file.

    Paths are relative, with `/`, without `..`. A tree is read in threads. `open` raises
    `TransferFileError` for a broken file, and the file that it returns cannot be sought.
    """

    @property
    def name(self) -> str:
        """The name of the zip, folder or file, as the user sees it."""
        ...

    def list_paths(self) -> Sequence[str]: ...

    def get_size(self, path: str) -> int: ...

    def open(self, path: str) -> BinaryIO: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of a file. `detail` is the reason, in a sentence for the user."""

    outcome: Outcome
    kind: ItemKind | None = None
    item_id: UUID | None = None
    detail: str = ""
    warnings: Sequence[str] = ()


ReportMessages = Callable[[int], Awaitable[None]]
"""Called with the number of messages of the present file that are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """The choices of a request.

    Args:
        copy: Import files again that are already there.
        character_ids: The members of a chat file, if the file's names do not find them.
        chat_format: The format of a chat file, if it is not recognised.
        secrets: Names of the provider keys of `secrets.json` to import; none by default.
    """

    copy: bool = False
    character_ids: Sequence[UUID] = ()
    chat_format: str | None = None
    secrets: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class ImportContext:
    """An import that runs.

    `found` maps the paths of files to the items that they made, by kind, for later steps. The
    service adds the item of each result, also of earlier runs of the same import.
    """

    identity: Identity
    tree: FileTree
    options: ImportOptions
    report: ReportMessages
    found: dict[tuple[ItemKind, str], UUID] = field(
        default_factory=dict[tuple[ItemKind, str], UUID]
    )


RunStep = Callable[[ImportContext], Awaitable[StepResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportStep:
    """One file of a plan. A step either stores all of its file or nothing.

    `run` finds out if the file is already there (`transfer.imported`). It raises `AppError` if the
    file is refused: its detail becomes the result's. It calls `report` outside transactions.
    """

    path: str
    run: RunStep


class ImportPlanner(Protocol):
    """Knows one kind of tree: a SillyTavern folder, an account's archive, single files."""

    def matches(self, tree: FileTree) -> bool:
        """True if the tree is of this kind. CPU-bound."""
        ...

    def plan(self, context: ImportContext) -> AsyncIterator[ImportStep]:
        """Yield the steps in order: files that others refer to come first."""
        ...

    def count(self, tree: FileTree) -> int:
        """Return the number of steps, for the progress."""
        ...


FindFile = Callable[[str], bytes | None]
"""Returns the content of a file that a message names by path, or None if it is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTarget:
    """The characters, personas and chat that a chat file belongs to.

    Args:
        file_name: The file's name without folder.
        digest: The keyed digest of the file. None if no file is to be recognised again.
        members: The chat's characters.
        speakers: Characters by card file name and by name, for the messages of a group.
        personas: Personas by picture file and by name.
        lorebook_id: The chat's own lorebook.
        joins: The chat whose tree this branch belongs to, if its first messages are the same.
        find_file: Reads the files that messages name.
        title_origin: The source of the chat's title.
    """

    file_name: str
    digest: bytes | None
    members: Sequence[UUID] = ()
    speakers: Mapping[str, UUID] = field(default_factory=dict[str, UUID])
    personas: Mapping[str, UUID] = field(default_factory=dict[str, UUID])
    lorebook_id: UUID | None = None
    joins: UUID | None = None
    find_file: FindFile | None = None
    title_origin: TitleOrigin = "user"


class StoreChat(Protocol):
    """Stores a chat that is being read as a message tree. See `ChatImporter.store`."""

    async def __call__(
        self,
        identity: Identity,
        reading: ChatReading,
        target: ChatTarget,
        *,
        report: ReportMessages,
    ) -> StepResult: ...
