"""Rolling summaries: `/chats/{chat_id}/summary`, `/chats/{chat_id}/summaries`."""

from typing import Any
from uuid import UUID

from litestar import Controller, Request, Response, delete, get, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from backend.accounts.identity import Identity
from backend.chats.errors import ChatNotFoundError, MessageBusyError, MessageNotFoundError
from backend.enrichment.errors import SummaryNotFoundError
from backend.enrichment.summary.schemas import NewSummary, SummaryView
from backend.enrichment.summary.service import SummaryService
from backend.errors import PreconditionFailedError
from backend.wire import PREVIEWS, RAISES, Page, PageSize, PlaceCursor, etag

AnyRequest = Request[Any, Any, Any]


class SummaryController(Controller):
    """Rolling summaries of chats."""

    path = "/chats/{chat_id:uuid}"
    tags = ("Summaries",)

    @get(
        "/summary",
        opt={PREVIEWS: True, RAISES: (ChatNotFoundError, SummaryNotFoundError)},
        operation_id="getSummary",
        summary="Read the summary",
    )
    async def get_summary(
        self,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        summaries: NamedDependency[SummaryService],
    ) -> Response[SummaryView]:
        """What is summarised of the active path: the summary that goes furthest.

        It follows the path: of what was swiped away, edited or deleted nothing is summarised.
        """
        return _tagged(await summaries.get(identity, chat_id))

    @put(
        "/summary",
        opt={
            RAISES: (
                ChatNotFoundError,
                MessageNotFoundError,
                MessageBusyError,
                PreconditionFailedError,
            ),
        },
        operation_id="putSummary",
        summary="Write the summary",
    )
    async def put_summary(
        self,
        request: AnyRequest,
        chat_id: FromPath[UUID],
        data: JSONBody[NewSummary],
        identity: NamedDependency[Identity],
        summaries: NamedDependency[SummaryService],
    ) -> Response[SummaryView]:
        """Say it in other words. The next summary builds on these.

        Without a summary, or for one that goes further than the current one does, name the last
        message that it covers.
        """
        view = await summaries.put(
            identity, chat_id, data, if_match=request.headers.get("if-match")
        )
        return _tagged(view)

    @delete(
        "/summary",
        opt={RAISES: (ChatNotFoundError, SummaryNotFoundError, PreconditionFailedError)},
        operation_id="deleteSummary",
        summary="Drop the summary",
    )
    async def delete_summary(
        self,
        request: AnyRequest,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        summaries: NamedDependency[SummaryService],
    ) -> None:
        """Drop the current summary; the one before it, if any, is the current one again."""
        await summaries.delete(identity, chat_id, if_match=request.headers.get("if-match"))

    @get(
        "/summaries",
        opt={RAISES: (ChatNotFoundError,)},
        operation_id="listSummaries",
        summary="List summaries",
    )
    async def list_summaries(
        self,
        chat_id: FromPath[UUID],
        identity: NamedDependency[Identity],
        summaries: NamedDependency[SummaryService],
        limit: PageSize = 20,
        after: PlaceCursor = None,
    ) -> Page[SummaryView]:
        """Summaries along the active path, newest first; the page begins above position `after`.

        The first is the current one; the next one down takes its place when it goes.
        """
        return await summaries.list_page(identity, chat_id, limit=limit, before=after)


def _tagged(view: SummaryView) -> Response[SummaryView]:
    return Response(view, headers={"ETag": etag(view.revision)})
