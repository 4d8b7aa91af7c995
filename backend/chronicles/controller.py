"""Events of chronicles: `/chronicles/{chronicle_id}/events`."""

from pathlib import PurePosixPath
from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, Request, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from backend.accounts.auth.identity import Identity
from backend.accounts.profile.activity import ActivityLog
from backend.characters.uploads import (
    MAX_UPLOAD_BYTES,
    FileOperation,
    NamedFileOperation,
    file_answer,
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
    Page,
    PageSize,
    make_etag,
)

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
    return Response(view, headers={"ETag": make_etag(view.revision)})


Events = NamedDependency[EventService]


class EventController(Controller):
    """Events of chronicles."""

    path = "/chronicles/{chronicle_id:uuid}/events"
    tags = ("Chronicles",)

    @get(opt={RAISES: (ChronicleNotFoundError,)}, summary="List and search a chronicle's events")
    async def list_chronicle_events(  # noqa: PLR0913, PLR0917  # what a list can be narrowed by
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
        """Events in story order: by when they were played.

        Those that count now and are not superseded; with `current=false` all, each saying whether
        it does. With `q`, those in whose summary, place, people or keywords each of its words
        occurs, with `who` those with a person whose name contains it, whatever the case; with
        `chat_id` those that come from a message of that chat. A page of a search may be short, or
        empty, while `next` leads on.
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
        """Write an event down. It counts while all of its messages are on the active path."""
        return _tagged_event(await chronicle_events.create(identity, chronicle_id, data))

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
        """Put one event in place of several, which are deleted.

        What `event` leaves out is made of them: summaries are joined in story order, people,
        keywords and messages united, the highest significance is taken. It is pinned if one of them
        is, and stands where the first of them stood. What one of them superseded is superseded by
        it.
        """
        return _tagged_event(await chronicle_events.merge(identity, chronicle_id, data))

    @get("/{event_id:uuid}", opt={RAISES: (EventNotFoundError,)}, summary="Read an event")
    async def get_chronicle_event(
        self,
        chronicle_id: FromPath[UUID],
        event_id: FromPath[UUID],
        identity: Caller,
        chronicle_events: Events,
    ) -> Response[EventView]:
        """An event, whether it counts now or not."""
        return _tagged_event(await chronicle_events.get(identity, chronicle_id, event_id))

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
        request: AnyRequest,
        chronicle_id: FromPath[UUID],
        event_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: Caller,
        chronicle_events: Events,
    ) -> Response[EventView]:
        """Merge into an event: what is absent stays, null goes back to the default.

        What the agent wrote is kept from then on: neither undoing its run nor a rebuild takes it
        away, unless all that changed is whether it is pinned.
        """
        view = await chronicle_events.patch(
            identity, chronicle_id, event_id, data, if_match=request.headers.get("if-match")
        )
        return _tagged_event(view)

    @delete(
        "/{event_id:uuid}",
        opt={RAISES: (ChronicleNotFoundError, EventNotFoundError, PreconditionFailedError)},
        summary="Delete an event",
    )
    async def delete_chronicle_event(
        self,
        request: AnyRequest,
        chronicle_id: FromPath[UUID],
        event_id: FromPath[UUID],
        identity: Caller,
        chronicle_events: Events,
    ) -> None:
        """Delete an event. What it superseded is current again."""
        await chronicle_events.delete(
            identity, chronicle_id, event_id, if_match=request.headers.get("if-match")
        )


def _tagged_event(view: EventView) -> Response[EventView]:
    return Response(view, headers={"ETag": make_etag(view.revision)})
