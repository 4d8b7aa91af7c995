"""Events of chronicles: `/chronicles/{chronicle_id}/events`."""

from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, Request, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from backend.accounts.identity import Identity
from backend.chats.errors import MessageNotFoundError
from backend.chronicles.errors import (
    ChronicleFullError,
    ChronicleNotFoundError,
    EventNotFoundError,
)
from backend.chronicles.event_search import EventFilter
from backend.chronicles.event_service import EventService
from backend.chronicles.events import EventKind
from backend.chronicles.schemas import (
    EventChange,
    EventMerge,
    EventOrder,
    EventView,
    NewChronicleEvent,
)
from backend.errors import PreconditionFailedError
from backend.wire import EXAMPLE, PATCHES, RAISES, Page, PageSize, etag

AnyRequest = Request[Any, Any, Any]
Caller = NamedDependency[Identity]
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
        return _tagged(await chronicle_events.create(identity, chronicle_id, data))

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
        return _tagged(await chronicle_events.merge(identity, chronicle_id, data))

    @get("/{event_id:uuid}", opt={RAISES: (EventNotFoundError,)}, summary="Read an event")
    async def get_chronicle_event(
        self,
        chronicle_id: FromPath[UUID],
        event_id: FromPath[UUID],
        identity: Caller,
        chronicle_events: Events,
    ) -> Response[EventView]:
        """An event, whether it counts now or not."""
        return _tagged(await chronicle_events.get(identity, chronicle_id, event_id))

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
        return _tagged(view)

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


def _tagged(view: EventView) -> Response[EventView]:
    return Response(view, headers={"ETag": etag(view.revision)})
