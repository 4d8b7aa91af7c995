"""Tables of imports, of the files that they brought, and of account archives."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from sqlalchemy import BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from backend.database.base import Base, CreatedAt, ListedOwnerId, OwnerId, PrimaryId, UpdatedAt
from backend.vault.sealing import Column

ImportState = Literal["running", "stopped", "finished", "failed"]
Outcome = Literal["imported", "already_there", "skipped", "failed"]
ItemKind = Literal[
    "character",
    "chat",
    "lorebook",
    "persona",
    "preset",
    "scripts",
    "campaign",
    "chronicle",
    "provider",
    "settings",
    "file",
]


class Import(Base):
    """An import of a file, or of a folder in a zip, that the account has uploaded.

    The upload is a sealed file named by `id`, deleted at `expires_at` or when the import has
    finished. An import of the command line has no upload and no job. If the job of a row in the
    state `running` has ended, the import was stopped. `sealed_options` is the JSON of the
    request's options and of the upload's name. `job_id` is its last job.
    """

    __tablename__ = "imports"
    __table_args__ = (Index(None, "user_id", "id"), Index(None, "created_at"))

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
    state: Mapped[ImportState] = mapped_column(String, default="running")
    sealed_options: Mapped[bytes]
    size: Mapped[int] = mapped_column(BigInteger, default=0)
    job_id: Mapped[UUID | None]
    expires_at: Mapped[datetime]
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[UpdatedAt]


IMPORT_OPTIONS = Column("imports", "sealed_options")


class ImportResult(Base):
    """The result of one file of an import. `item_id` is the item that it made or found.

    `sealed_detail` is the JSON of its path, the reason and warnings.
    """

    __tablename__ = "import_results"
    __table_args__ = (Index(None, "import_id", "id"), Index(None, "created_at"))

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    import_id: Mapped[UUID] = mapped_column(ForeignKey("imports.id", ondelete="CASCADE"))
    path_digest: Mapped[bytes]
    outcome: Mapped[Outcome] = mapped_column(String)
    kind: Mapped[ItemKind | None] = mapped_column(String)
    item_id: Mapped[UUID | None]
    sealed_detail: Mapped[bytes]
    created_at: Mapped[CreatedAt]


RESULT_DETAIL = Column("import_results", "sealed_detail")


class ImportedFile(Base):
    """A file that was imported, so that it is not imported again.

    `digest` is keyed with the user's key. `item_id` may have been deleted since: then the file is
    new again. For a chat, `message_id` is the last message of the file's path, and `sealed_source`
    the JSON of its file name and header: a chat that branches were joined to has several.
    """

    __tablename__ = "imported_files"
    __table_args__ = (
        Index(None, "user_id", "digest"),
        Index(None, "item_id"),
    )

    id: Mapped[PrimaryId]
    user_id: Mapped[OwnerId]
    digest: Mapped[bytes]
    kind: Mapped[ItemKind] = mapped_column(String)
    item_id: Mapped[UUID]
    message_id: Mapped[UUID | None]
    sealed_source: Mapped[bytes | None]
    created_at: Mapped[CreatedAt]


IMPORTED_SOURCE = Column("imported_files", "sealed_source")


class Archive(Base):
    """An account's archive: a sealed file named by `id`, deleted at `expires_at`.

    `size` is that of the zip in bytes, and 0 until it is complete. `unreadable` is the number of
    items that it lacks because they could not be decrypted.
    """

    __tablename__ = "archives"
    __table_args__ = (Index(None, "user_id", "id"),)

    id: Mapped[PrimaryId]
    user_id: Mapped[ListedOwnerId]
    job_id: Mapped[UUID | None]
    size: Mapped[int] = mapped_column(BigInteger, default=0)
    unreadable: Mapped[int] = mapped_column(default=0)
    expires_at: Mapped[datetime]
    created_at: Mapped[CreatedAt]
