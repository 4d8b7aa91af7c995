"""Chronicles, and their files: `/chronicles`."""

from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

from litestar import Controller, Request, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from backend.accounts.activity import ActivityLog
from backend.accounts.identity import Identity
from backend.characters.uploads import (
    MAX_UPLOAD_BYTES,
    FileOperation,
    NamedFileOperation,
    file_answer,
    read_upload,
)
from backend.chronicles.errors import ChronicleFileError, ChronicleFullError, ChronicleNotFoundError
from backend.chronicles.events import ChronicleFields
from backend.chronicles.schemas import ChronicleView, NewChronicle
from backend.chronicles.service import ChronicleService
from backend.chronicles.transfer import ChronicleTransfer, ImportedChronicle
from backend.errors import PreconditionFailedError
from backend.wire import ENDS_WITH_CLIENT, FILES, PATCHES, RAISES, Page, PageSize, etag

AnyRequest = Request[Any, Any, Any]
Caller = NamedDependency[Identity]
Chronicles = NamedDependency[ChronicleService]
Transfer = NamedDependency[ChronicleTransfer]


class ChronicleController(Controller):
    """Chronicles."""

    path = "/chronicles"
    tags = ("Chronicles",)

    @get(summary="List chronicles")
    async def list_chronicles(
        self,
        identity: Caller,
        chronicles: Chronicles,
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[ChronicleView]:
        """Chronicles, newest first, with the chats that use them."""
        return await chronicles.list_page(identity, limit=limit, after=after)

    @post(opt={RAISES: (ChronicleFullError,)}, summary="Create a chronicle")
    async def create_chronicle(
        self, data: JSONBody[NewChronicle], identity: Caller, chronicles: Chronicles
    ) -> Response[ChronicleView]:
        """Make a chronicle without events. A chat uses it by its settings' `chronicle_id`."""
        return _tagged(await chronicles.create(identity, data))

    @get(
        "/{chronicle_id:uuid}", opt={RAISES: (ChronicleNotFoundError,)}, summary="Read a chronicle"
    )
    async def get_chronicle(
        self, chronicle_id: FromPath[UUID], identity: Caller, chronicles: Chronicles
    ) -> Response[ChronicleView]:
        """A chronicle, without its events."""
        return _tagged(await chronicles.get(identity, chronicle_id))

    @patch(
        "/{chronicle_id:uuid}",
        opt={RAISES: (ChronicleNotFoundError, PreconditionFailedError), PATCHES: ChronicleFields},
        summary="Change a chronicle",
    )
    async def patch_chronicle(
        self,
        request: AnyRequest,
        chronicle_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: Caller,
        chronicles: Chronicles,
    ) -> Response[ChronicleView]:
        """Merge into a chronicle: what is absent stays, null goes back to the default."""
        view = await chronicles.patch(
            identity, chronicle_id, data, if_match=request.headers.get("if-match")
        )
        return _tagged(view)

    @delete(
        "/{chronicle_id:uuid}",
        opt={RAISES: (ChronicleNotFoundError, PreconditionFailedError)},
        summary="Delete a chronicle",
    )
    async def delete_chronicle(
        self,
        request: AnyRequest,
        chronicle_id: FromPath[UUID],
        identity: Caller,
        chronicles: Chronicles,
    ) -> None:
        """Delete a chronicle with its events and the lorebook that the agent wrote for it.

        Chats that use it go on without one, and nothing is written down of them until they opt in
        again.
        """
        await chronicles.delete(identity, chronicle_id, if_match=request.headers.get("if-match"))


class ChronicleTransferController(Controller):
    """Chronicles as files."""

    path = "/chronicles"
    tags = ("Chronicles",)

    @post(
        "/import",
        opt={ENDS_WITH_CLIENT: True, RAISES: (ChronicleFileError, ChronicleFullError)},
        summary="Import a chronicle file",
        operation_class=NamedFileOperation,
        request_max_body_size=MAX_UPLOAD_BYTES,
    )
    async def import_chronicle(
        self, request: AnyRequest, identity: Caller, chronicle_transfer: Transfer
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
        summary="Import a file's events into a chronicle",
        operation_class=FileOperation,
        request_max_body_size=MAX_UPLOAD_BYTES,
    )
    async def import_chronicle_events(
        self,
        request: AnyRequest,
        chronicle_id: FromPath[UUID],
        identity: Caller,
        chronicle_transfer: Transfer,
    ) -> ImportedChronicle:
        """Add a file's events to a chronicle, all of them or none; its name stays.

        Those that are there already, word for word and of the same moment, are skipped.
        """
        await chronicle_transfer.check(identity, chronicle_id)
        upload = await read_upload(request)
        return await chronicle_transfer.import_into(identity, chronicle_id, upload.data)

    @get(
        "/{chronicle_id:uuid}/export",
        opt={
            ENDS_WITH_CLIENT: True,
            RAISES: (ChronicleNotFoundError,),
            FILES: ("application/json",),
        },
        summary="Export a chronicle file",
        media_type="application/json",
    )
    async def export_chronicle(
        self,
        request: AnyRequest,
        chronicle_id: FromPath[UUID],
        identity: Caller,
        chronicle_transfer: Transfer,
        activity: NamedDependency[ActivityLog],
    ) -> Response[bytes]:
        """The chronicle with all its events, in story order, as JSON that imports back."""
        file = await chronicle_transfer.export(identity, chronicle_id)
        await activity.note(request, "exported", detail="chronicle")
        return file_answer(file)


def _tagged(view: ChronicleView) -> Response[ChronicleView]:
    return Response(view, headers={"ETag": etag(view.revision)})
