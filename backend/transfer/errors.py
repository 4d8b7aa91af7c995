"""Errors of imports, exports and archives."""

from __future__ import annotations

from backend.errors import ConflictError, NotFoundError, ValidationError


class TransferFileError(ValidationError):
    """A file is broken or of an unknown kind. The detail names the place and gives advice."""

    slug, title = "import-file-invalid", "The file could not be imported"


class ImportNotFoundError(NotFoundError):
    """There is no such import, or it belongs to another account."""

    slug, title = "import-not-found", "Import not found"


class ImportNotContinuableError(ConflictError):
    """The import is running, has finished, or its upload was deleted after a day."""

    slug, title = "import-not-continuable", "The import cannot be continued"


class ArchiveNotFoundError(NotFoundError):
    """The account has no finished archive, or it has expired."""

    slug, title = "archive-not-found", "Archive not found"
