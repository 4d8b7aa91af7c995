"""Chronicles: `/chronicles`."""

from typing import Any
from uuid import UUID

from litestar import Controller, Request, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody

from backend.accounts.identity import Identity
from backend.chronicles.errors import ChronicleFullError, ChronicleNotFoundError
from backend.chronicles.events import ChronicleFields
from backend.chronicles.schemas import ChronicleView, NewChronicle
from backend.chronicles.service import ChronicleService
from backend.errors import PreconditionFailedError
from backend.wire import PATCHES, RAISES, Page, PageSize, etag

AnyRequest = Request[Any, Any, Any]
TAGS = ("Chronicles",)


class ChronicleController(Controller):
    """Chronicles."""

    path = "/chronicles"
    tags = TAGS

    @get(operation_id="listChronicles", summary="List chronicles")
    async def list_chronicles(
        self,
        identity: NamedDependency[Identity],
        chronicles: NamedDependency[ChronicleService],
        limit: PageSize = 50,
        after: FromQuery[UUID | None] = None,
    ) -> Page[ChronicleView]:
        """Chronicles, newest first, with the chats that use them."""
        return await chronicles.list_page(identity, limit=limit, after=after)

    @post(
        opt={RAISES: (ChronicleFullError,)},
        operation_id="createChronicle",
        summary="Make a chronicle",
    )
    async def create_chronicle(
        self,
        data: JSONBody[NewChronicle],
        identity: NamedDependency[Identity],
        chronicles: NamedDependency[ChronicleService],
    ) -> Response[ChronicleView]:
        """Make a chronicle without events. A chat uses it by its settings' `chronicle_id`."""
        return _tagged(await chronicles.create(identity, data))

    @get(
        "/{chronicle_id:uuid}",
        opt={RAISES: (ChronicleNotFoundError,)},
        operation_id="getChronicle",
        summary="Read a chronicle",
    )
    async def get_chronicle(
        self,
        chronicle_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        chronicles: NamedDependency[ChronicleService],
    ) -> Response[ChronicleView]:
        """A chronicle, without its events."""
        return _tagged(await chronicles.get(identity, chronicle_id))

    @patch(
        "/{chronicle_id:uuid}",
        opt={RAISES: (ChronicleNotFoundError, PreconditionFailedError), PATCHES: ChronicleFields},
        operation_id="patchChronicle",
        summary="Change a chronicle",
    )
    async def patch_chronicle(
        self,
        request: AnyRequest,
        chronicle_id: FromPath[UUID],
        data: JSONBody[dict[str, Any]],
        identity: NamedDependency[Identity],
        chronicles: NamedDependency[ChronicleService],
    ) -> Response[ChronicleView]:
        """Merge into a chronicle: what is absent stays, null goes back to the default."""
        view = await chronicles.patch(
            identity, chronicle_id, data, if_match=request.headers.get("if-match")
        )
        return _tagged(view)

    @delete(
        "/{chronicle_id:uuid}",
        opt={RAISES: (ChronicleNotFoundError, PreconditionFailedError)},
        operation_id="deleteChronicle",
        summary="Delete a chronicle",
    )
    async def delete_chronicle(
        self,
        request: AnyRequest,
        chronicle_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        chronicles: NamedDependency[ChronicleService],
    ) -> None:
        """Delete a chronicle with its events and the lorebook that the agent wrote for it.

        Chats that use it go on without one, and nothing is written down of them until they opt in
        again.
        """
        await chronicles.delete(identity, chronicle_id, if_match=request.headers.get("if-match"))


def _tagged(view: ChronicleView) -> Response[ChronicleView]:
    return Response(view, headers={"ETag": etag(view.revision)})
