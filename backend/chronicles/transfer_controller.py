"""Chronicles in and out of files: `/chronicles/import`, `/chronicles/{id}/export`."""

from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from backend.accounts.activity import ActivityLog
from backend.accounts.identity import Identity
from backend.characters.uploads import (
    MAX_UPLOAD_BYTES,
    FileOperation,
    NamedFileOperation,
    file_answer,
    read_upload,
)
from backend.chronicles.errors import (
    ChronicleFileError,
    ChronicleFullError,
    ChronicleNotFoundError,
)
from backend.chronicles.transfer import ChronicleTransfer, ImportedChronicle
from backend.wire import FILES, RAISES

AnyRequest = Request[Any, Any, Any]


class ChronicleTransferController(Controller):
    """Chronicles as files."""

    path = "/chronicles"
    tags = ("Chronicles",)

    @post(
        "/import",
        opt={RAISES: (ChronicleFileError, ChronicleFullError)},
        operation_id="importChronicle",
        summary="Import a chronicle file",
        operation_class=NamedFileOperation,
        request_max_body_size=MAX_UPLOAD_BYTES,
    )
    async def import_chronicle(
        self,
        request: AnyRequest,
        identity: NamedDependency[Identity],
        chronicle_transfer: NamedDependency[ChronicleTransfer],
    ) -> ImportedChronicle:
        """Make a chronicle of a file that was exported, with all its events or not at all.

        `name` is what it is called where the file does not say, else the file's name. Events are of
        source `import`. Messages that they come from are kept where they are there, and this
        account's; events of a branch that was left come along only where they all are.
        """
        upload = await read_upload(request)
        stem = PurePosixPath(upload.filename.replace("\\", "/")).stem
        return await chronicle_transfer.import_new(
            identity, upload.data, upload.name.strip() or stem
        )

    @post(
        "/{chronicle_id:uuid}/import",
        opt={RAISES: (ChronicleNotFoundError, ChronicleFileError, ChronicleFullError)},
        operation_id="importChronicleEvents",
        summary="Import a file's events into a chronicle",
        operation_class=FileOperation,
        request_max_body_size=MAX_UPLOAD_BYTES,
    )
    async def import_events(
        self,
        request: AnyRequest,
        chronicle_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        chronicle_transfer: NamedDependency[ChronicleTransfer],
    ) -> ImportedChronicle:
        """Add a file's events to a chronicle, all of them or none; its name stays.

        Those that are there already, word for word and of the same moment, are skipped.
        """
        await chronicle_transfer.check(identity, chronicle_id)
        upload = await read_upload(request)
        return await chronicle_transfer.import_into(identity, chronicle_id, upload.data)

    @get(
        "/{chronicle_id:uuid}/export",
        opt={RAISES: (ChronicleNotFoundError,), FILES: ("application/json",)},
        operation_id="exportChronicle",
        summary="Export a chronicle file",
        media_type="application/json",
    )
    async def export_chronicle(
        self,
        request: AnyRequest,
        chronicle_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        chronicle_transfer: NamedDependency[ChronicleTransfer],
        activity: NamedDependency[ActivityLog],
    ) -> Response[bytes]:
        """The chronicle with all its events, in story order, as JSON that imports back."""
        file = await chronicle_transfer.export(identity, chronicle_id)
        await activity.note(request, "exported", detail="chronicle")
        return file_answer(file)
