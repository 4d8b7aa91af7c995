"""Routes of chronicles, their files and their events: `/chronicles`."""

from pathlib import PurePosixPath
from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.activity import ActivityLog
from backend.characters.uploads import (
    MAX_UPLOAD_BYTES,
    FileOperation,
    NamedFileOperation,
    make_file_response,
    read_upload,
)
from backend.chats.errors import MessageNotFoundError
from backend.chronicles.errors import (
    ChronicleFileError,
    ChronicleFullError,
    ChronicleNotFoundError,
    EventNotFoundError,
)
from backend.chronicles.event_search import EventFilter
from backend.chronicles.event_service import EventService
from backend.chronicles.events import ChronicleFields, EventKind
from backend.chronicles.schemas import (
    ChronicleView,
    EventChange,
    EventMerge,
    EventOrder,
    EventView,
    NewChronicle,
    NewChronicleEvent,
)
from backend.chronicles.service import ChronicleService
from backend.chronicles.transfer import ChronicleTransfer, ImportedChronicle
from backend.errors import PreconditionFailedError
from backend.http.schemas import (
    ENDS_WITH_CLIENT,
    EXAMPLE,
    FILES,
    PATCHES,
    RAISES,
    AnyRequest,
    IfMatch,
    Page,
    PageSize,
    tag_view,
)

Caller = NamedDependency[Identity]
Chronicles = NamedDependency[ChronicleService]
Transfer = NamedDependency[ChronicleTransfer]


class ChronicleController(Controller):
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
        """List chronicles, newest first, with the chats that use them."""
        return await chronicles.list_page(identity, limit=limit, after=after)

    @post(opt={RAISES: (ChronicleFullError,)}, summary="Create a chronicle")
    async def create_chronicle(
        self, data: JSONBody[NewChronicle], identity: Caller, chronicles: Chronicles
    ) -> Response[ChronicleView]:
        """Create a chronicle without events. A chat selects it with its setting `chronicle_id`."""
        return tag_view(await chronicles.create(identity, data))

    @get(
        "/{chronicle_id:uuid}", opt={RAISES: (ChronicleNotFoundError,)}, summary="Read a chronicle"
    )
    async def get_chronicle(
        self, chronicle_id: FromPath[UUID], identity: Caller, chronicles: Chronicles
    ) -> Response[ChronicleView]:
        """Get a chronicle without its events."""
        return tag_view(await chronicles.get(identity, chronicle_id))

    @patch(
        "/{chronicle_id:uuid}",
        opt={RAISES: (ChronicleNotFoundError, PreconditionFailedError), PATCHES: ChronicleFields},
        summary="Change a chronicle",
    )
    async def patch_chronicle(
        self,
        chronicle_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: Caller,
        chronicles: Chronicles,
        if_match: IfMatch = None,
    ) -> Response[ChronicleView]:
        """Change a chronicle. Absent fields are kept, null resets one to its default."""
        return tag_view(await chronicles.patch(identity, chronicle_id, data, if_match=if_match))

    @delete(
        "/{chronicle_id:uuid}",
        opt={RAISES: (ChronicleNotFoundError, PreconditionFailedError)},
        summary="Delete a chronicle",
    )
    async def delete_chronicle(
        self,
        chronicle_id: FromPath[UUID],
        identity: Caller,
        chronicles: Chronicles,
        if_match: IfMatch = None,
    ) -> None:
        """Delete a chronicle with its events and the lorebook that the agent wrote for it.

        Its chats are kept without a chronicle. Nothing is written about them until they opt in
        again.
        """
        await chronicles.delete(identity, chronicle_id, if_match=if_match)


class ChronicleTransferController(Controller):
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
        """Create a chronicle from an exported file, with all its events or not at all.

        `name`, or else the name of the file, is used if the file contains no name. The source of
        the events is `import`. Source messages are kept if they exist in this account. Events of an
        inactive branch are imported only if all of their messages exist.
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
        """Add a file's events to a chronicle, all of them or none. Its name is kept.

        Events with the same content and time as an existing one are skipped.
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
        """Export the chronicle with all its events in story order as JSON for import."""
        file = await chronicle_transfer.export(identity, chronicle_id)
        await activity.note(request, "exported", detail="chronicle")
        return make_file_response(file)


Events = NamedDependency[EventService]


class EventController(Controller):
    path = "/chronicles/{chronicle_id:uuid}/events"
    tags = ("Chronicles",)

    @get(opt={RAISES: (ChronicleNotFoundError,)}, summary="List and search a chronicle's events")
    async def list_chronicle_events(  # noqa: PLR0913, PLR0917  # one parameter per filter
        self,
        chronicle_id: FromPath[UUID],
        identity: Caller,
        chronicle_events: Events,
        limit: PageSize = 50,
        after: Annotated[str | None, QueryParameter(max_length=100)] = None,
        order: FromQuery[EventOrder] = "oldest",
        current: FromQuery[bool] = True,  # noqa: FBT002  # a query's parameter
        q: Annotated[str, QueryParameter(max_length=200)] = "",
        kind: FromQuery[EventKind | None] = None,
        who: Annotated[str, QueryParameter(max_length=300)] = "",
        pinned: FromQuery[bool | None] = None,
        min_significance: Annotated[int, QueryParameter(ge=1, le=5)] = 1,
        chat_id: FromQuery[UUID | None] = None,
    ) -> Page[EventView]:
        """List events in story order, by the time they were played.

        By default only active events that are not superseded; all with `current=false`. `q` selects
        events with each of its words in summary, place, people or keywords. `who` selects events
        with a person whose name contains it. Case is ignored. `chat_id` selects events with a
        source message in that chat. A page of a search may be short or empty even if `next` is set.
        """
        wanted = EventFilter(
            current=current,
            q=q,
            kind=kind,
            who=who,
            pinned=pinned,
            min_significance=min_significance,
            chat_id=chat_id,
        )
        return await chronicle_events.list_page(
            identity,
            chronicle_id,
            wanted,
            limit=limit,
            after=after,
            newest=order == "newest",
        )

    @post(
        opt={
            RAISES: (ChronicleNotFoundError, MessageNotFoundError, ChronicleFullError),
            EXAMPLE: {
                "summary": "Mara found the cracked lens under the third stair.",
                "kind": "discovery",
                "day": 3,
                "time": "evening",
                "where": "The lighthouse",
                "who": ["Mara"],
                "keywords": ["lens"],
                "significance": 4,
            },
        },
        summary="Create an event",
    )
    async def create_chronicle_event(
        self,
        chronicle_id: FromPath[UUID],
        data: JSONBody[NewChronicleEvent],
        identity: Caller,
        chronicle_events: Events,
    ) -> Response[EventView]:
        """Create an event. It is active while all of its messages are on the active path."""
        return tag_view(await chronicle_events.create(identity, chronicle_id, data))

    @post(
        "/merge",
        opt={RAISES: (ChronicleNotFoundError, EventNotFoundError, ChronicleFullError)},
        summary="Merge events",
    )
    async def merge_chronicle_events(
        self,
        chronicle_id: FromPath[UUID],
        data: JSONBody[EventMerge],
        identity: Caller,
        chronicle_events: Events,
    ) -> Response[EventView]:
        """Replace several events by one. The others are deleted.

        Fields absent from `event` are derived: summaries are joined in story order, people,
        keywords and messages are united, and the highest significance is used. It is pinned if one
        of them is, and takes the position of the first. It supersedes the events that one of them
        superseded.
        """
        return tag_view(await chronicle_events.merge(identity, chronicle_id, data))

    @get("/{event_id:uuid}", opt={RAISES: (EventNotFoundError,)}, summary="Read an event")
    async def get_chronicle_event(
        self,
        chronicle_id: FromPath[UUID],
        event_id: FromPath[UUID],
        identity: Caller,
        chronicle_events: Events,
    ) -> Response[EventView]:
        """Get an event, even if it is inactive."""
        return tag_view(await chronicle_events.get(identity, chronicle_id, event_id))

    @patch(
        "/{event_id:uuid}",
        opt={
            RAISES: (
                ChronicleNotFoundError,
                EventNotFoundError,
                MessageNotFoundError,
                ChronicleFullError,
                PreconditionFailedError,
            ),
            PATCHES: EventChange,
        },
        summary="Change an event",
    )
    async def patch_chronicle_event(
        self,
        chronicle_id: FromPath[UUID],
        event_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: Caller,
        chronicle_events: Events,
        if_match: IfMatch = None,
    ) -> Response[EventView]:
        """Change an event. Absent fields are kept, null resets one to its default.

        An event of the agent is then kept when its run is undone or the chronicle is rebuilt,
        unless only its pin changed.
        """
        return tag_view(
            await chronicle_events.patch(identity, chronicle_id, event_id, data, if_match=if_match)
        )

    @delete(
        "/{event_id:uuid}",
        opt={RAISES: (ChronicleNotFoundError, EventNotFoundError, PreconditionFailedError)},
        summary="Delete an event",
    )
    async def delete_chronicle_event(
        self,
        chronicle_id: FromPath[UUID],
        event_id: FromPath[UUID],
        identity: Caller,
        chronicle_events: Events,
        if_match: IfMatch = None,
    ) -> None:
        """Delete an event. Events that it superseded become current again."""
        await chronicle_events.delete(identity, chronicle_id, event_id, if_match=if_match)
